"""What becomes of a pod or container by an update: its resources, and the owners of its fields. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from runtimeproxy.fields.tables import RESOURCE_FIELDS, RESOURCE_PARAMETERS, UPDATABLE
from runtimeproxy.hooks.changes import CLEAR, ResourceChange
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, Owners
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, overlay

_MEMORY_LIMITS: Final = frozenset(
    (f"{RESOURCES}.memory_limit_bytes", f"{RESOURCES}.memory_swap_limit_bytes", f"{UNIFIED}[memory.max]")
)

_CREATION_ONLY: Final = frozenset(f"{RESOURCES}.{name}" for name in RESOURCE_FIELDS if name not in UPDATABLE)


class PendingUpdate(NamedTuple):
    """An update of a container that the runtime has not answered."""

    sent: Resources
    """From the kubelet."""
    forwarded: Resources
    """The same with the changes of policies."""


def with_updates(record: ContainerRecord, updates: Iterable[PendingUpdate]) -> ContainerRecord:
    """The record as it is when the runtime has answered these."""
    for update in updates:
        record = replace(
            record,
            requested=overlay(record.requested, update.sent),
            booked=overlay(record.booked, update.forwarded),
        )
    return record


def given_fields(resources: Resources) -> frozenset[str]:
    """The fields that have a value, by the names under which changed fields have owners."""
    scalars = {f"{RESOURCES}.{field}" for field in RESOURCE_FIELDS if getattr(resources, field) is not None}
    return frozenset(scalars | {f"{UNIFIED}[{key}]" for key in resources.unified})


def merged_owners(before: Owners, sent: Resources, decided: Owners, released: Collection[str] = ()) -> Owners:
    """The owner of each field after an update; fields that the kubelet sent and no policy set have none.

    `released`: the fields that no policy sets any more.
    """
    if not before and not decided:
        return NO_ENTRIES
    gone = given_fields(sent).union(released)
    kept = {name: owners for name, owners in before.items() if name not in gone}
    return {**kept, **decided} or NO_ENTRIES


def released_fields(
    record: ContainerRecord, requested: Resources, wanted: Collection[str], without_answer: frozenset[str]
) -> frozenset[str]:
    """The resources that a policy owns by the record and that none wants any more.

    Without those that no update changes: the container keeps them. What a hook server set still holds. A
    memory limit is not lowered in passing: if the container uses more, the kernel refuses it, and with it the
    whole update.

    `without_answer`: the policies whose earlier values still hold.
    """
    released: set[str] = set()
    for name, owners in record.owners.items():
        still_holds = any(each.kind is ClaimantKind.SERVER or each.name in without_answer for each in owners)
        if name.startswith(RESOURCES) and name not in (*wanted, *_CREATION_ONLY) and not still_holds:
            released.add(name)
    if is_lower(requested.memory_limit_bytes, record.booked.memory_limit_bytes):
        released -= _MEMORY_LIMITS
    return frozenset(released)


def is_lower(limit_bytes: int | None, than_bytes: int | None) -> bool:
    """Whether a limit is lower than another one; None and -1 are no limit."""
    if limit_bytes is None or limit_bytes < 0:
        return False
    return than_bytes is None or than_bytes < 0 or limit_bytes < than_bytes


def released_change(released: Collection[str], requested: Resources) -> ResourceChange:
    """The change that sets released fields to what the kubelet has asked for."""
    values = {name: getattr(requested, name) for name in RESOURCE_FIELDS if f"{RESOURCES}.{name}" in released}
    cleared = {name: CLEAR if value is None else value for name, value in values.items()}
    prefix = f"{UNIFIED}["
    keys = [name.removeprefix(prefix).removesuffix("]") for name in released if name.startswith(prefix)]
    unified = {key: requested.unified.get(key, CLEAR) for key in keys}
    return ResourceChange(**cleared, unified=unified)


def fitted_change(fitted: Mapping[str, int | str]) -> ResourceChange:
    """The change of a container's resources to values within bounds, given by cgroup parameter."""
    values: dict[str, Any] = {
        field: fitted[name] for field, name in RESOURCE_PARAMETERS.items() if name in fitted
    }
    return ResourceChange(**values)


def fitted_owners(fitted: Mapping[str, int | str], owner: Claimant) -> Owners:
    """The owner of fields that have other values because of bounds above."""
    if not fitted:
        return NO_ENTRIES
    names = (field for field, name in RESOURCE_PARAMETERS.items() if name in fitted)
    return {f"{RESOURCES}.{field}": (owner,) for field in names}


def quotas_after_update(
    cgroup: str, pod_cgroup: str, sent_us: int | None, quota_us: int | None, others: Collection[Resources]
) -> Mapping[str, int]:
    """The new quota of a container, and the one that the kubelet then gives its pod; the pod's first.

    The kernel refuses the kubelet's write, too, while the burst is above it.

    Args:
        cgroup: The container's; empty if it is not known, or not there yet.
        pod_cgroup: The pod's; empty if it is not known.
        sent_us: The quota that the kubelet asks for.
        quota_us: The same with the changes of policies.
        others: What the kubelet has requested for the pod's other containers.
    """
    quotas_us: dict[str, int] = {}
    limits = [each.cpu_quota_us or -1 for each in others]
    if pod_cgroup and sent_us and min(sent_us, *limits, sent_us) > 0:
        quotas_us[pod_cgroup] = sent_us + sum(limits)
    if cgroup and quota_us:
        quotas_us[cgroup] = quota_us
    return quotas_us


def has_taken(wanted: Resources, reported: Resources) -> bool:
    """Whether a runtime reports the values of an update; those that it does not report are ignored."""
    pairs = [(name, getattr(wanted, name), getattr(reported, name)) for name in UPDATABLE]
    is_same = [RESOURCE_FIELDS[name].is_same(*pair) for name, *pair in pairs if None not in pair]
    is_same += [
        reported.unified[key] == value for key, value in wanted.unified.items() if key in reported.unified
    ]
    return bool(is_same) and all(is_same)


def slice_of(pod: PodRecord | None) -> str:
    """The pod's cgroup if it is a systemd slice; empty if not, or if it is not known."""
    parent = pod.cgroup_parent if pod is not None else ""
    return parent if parent.endswith(".slice") else ""
