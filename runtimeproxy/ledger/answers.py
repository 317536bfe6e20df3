"""From the decisions of policies to what is wanted of a cgroup. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.fields.tables import PARAMETERS, RESOURCE_PARAMETERS
from runtimeproxy.hooks.algebra import Claim, FieldValue, Resolved, Role
from runtimeproxy.hooks.audit import AuditKind, shown
from runtimeproxy.hooks.carried import NOT_CARRIED, CarriedFields
from runtimeproxy.hooks.changes import CLEAR
from runtimeproxy.hooks.claimants import Claimant, labels_of
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import (
    ANNOTATIONS,
    CGROUP,
    CGROUP_PARENT,
    KERNEL_SETTINGS,
    LABELS,
    NODE_CGROUP,
    RESOURCES,
    SYSCTL,
    UNIFIED,
    Field,
    is_same,
)
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.ledger.books import Value, Wanted
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import (
    CGROUP_UNKNOWN,
    IN_VM,
    LIMIT,
    LOWER_LIMIT,
    NOT_RECORDED,
    UnappliedCause,
    Withheld,
)
from runtimeproxy.pods.records import Book, ContainerRecord, Level, PodRecord
from runtimeproxy.pods.resources import NO_RESOURCES
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.units import MIN_CPU_SHARES, UNLIMITED

KUBEPODS: Final = "kubepods"
"""The cgroup of all pods; with systemd the last part of its slice's name. Source: kubelet,
pkg/kubelet/cm/node_container_manager_linux.go, defaultNodeAllocatableCgroupName."""
_NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})
_RESIZED: Final = {parameter: name for name, parameter in RESOURCE_PARAMETERS.items()}
"""Names in `Resources` by cgroup parameter."""


def wanted_of(
    decision: Decision,
    target: CgroupTarget,
    requested: Mapping[str, Value] = _NOTHING,
    booked: Mapping[str, Value] = _NOTHING,
    *,
    is_base_known: bool = True,
) -> Wanted:
    """Turns a decision on a pod, container or QoS class into claims on its cgroup."""
    is_container = target.level is Level.CONTAINER
    fields = decision.merged.fields
    claims = claims_of(fields, is_container=is_container, is_base_known=is_base_known)
    withheld = left_out(decision, is_container=is_container) if decision.audit else {}
    if not is_base_known:
        withheld |= _amounts(claims_of(fields, is_container=is_container), claims)
    return Wanted(
        target,
        claims,
        requested,
        booked,
        once=decision.written_once,
        unanswered=decision.without_answer,
        withheld=withheld,
    )


def _amounts(
    asked: Mapping[str, tuple[Claim, ...]], claims: Mapping[str, tuple[Claim, ...]]
) -> dict[str, Withheld]:
    """The claims that are left out as they are based on a previous value, which is not known."""
    found: dict[str, Withheld] = {}
    for name, each in asked.items():
        left = tuple(claim for claim in each if claim not in claims.get(name, ()))
        if left:
            found[name] = Withheld(left, UnappliedCause.BASE_UNKNOWN, NOT_RECORDED)
    return found


def claims_of(
    fields: Mapping[Field, Resolved], *, is_container: bool, is_base_known: bool = True
) -> dict[str, tuple[Claim, ...]]:
    """The claims on the fields of a decision, by cgroup parameter.

    The resources of a container are values of its cgroup; those of a sandbox are not those of its pod.

    `is_base_known`: whether the previous values are the kubelet's. Of a pod or container that was found at
    the runtime they may be ours, and each loss of the records would apply amounts to them again.
    """
    claims: dict[str, tuple[Claim, ...]] = {}
    for field, each in fields.items():
        name = cgroup_parameter(field, is_container=is_container)
        found = each.claims if is_base_known else _without_amounts(each.claims)
        if field.group == UNIFIED:
            found = tuple(
                claim._replace(value=_unified_value(name, claim.value))
                if isinstance(claim.value, str)
                else claim
                for claim in found
            )
        if name and found:
            claims[name] = claims.get(name, ()) + found
    return claims


def _without_amounts(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The claims that are not based on a previous value."""
    if any(claim.role is Role.SET for claim in claims):
        return claims
    return tuple(claim for claim in claims if claim.role is Role.AT_MOST)


def cgroup_parameter(field: Field, *, is_container: bool) -> str:
    """The cgroup parameter of a field; empty if it is none, or none of this cgroup."""
    if field.group == CGROUP:
        return field.key
    if is_container and field.group == RESOURCES:
        return RESOURCE_PARAMETERS.get(field.key, "")
    return field.key if is_container and field.group == UNIFIED and field.key in PARAMETERS else ""


def wanted_of_node(decision: Decision) -> list[Wanted]:
    """Turns a decision on the node into claims on cgroups such as those of host applications."""
    found: dict[str, dict[str, tuple[Claim, ...]]] = {}
    for field, each in decision.merged.fields.items():
        if field.group == NODE_CGROUP:
            cgroup, _, name = field.key.rpartition("/")
            found.setdefault(cgroup, {})[name] = each.claims
    return [
        Wanted(CgroupTarget(Level.NODE, cgroup), claims, unanswered=decision.without_answer)
        for cgroup, claims in found.items()
    ]


def settings_of(decision: Decision) -> dict[str, int | str]:
    """The sysctls and other kernel settings that a decision on the node wants, by name."""
    return {
        field.key: each.value
        for field, each in decision.merged.fields.items()
        if field.group in (SYSCTL, KERNEL_SETTINGS) and isinstance(each.value, int | str)
    }


def lost_settings(decision: Decision) -> dict[str, Withheld]:
    """The kernel settings that a policy wants and another one sets to another value, by name."""
    found: dict[str, Withheld] = {}
    for field, each in decision.merged.fields.items():
        if field.group in (SYSCTL, KERNEL_SETTINGS):
            lost = tuple(claim for claim in each.claims if claim.value != each.value)
            if lost:
                reason = f"{labels_of(each.owners)} sets this value"
                found[field.key] = Withheld(lost, UnappliedCause.CONFLICT, reason)
    return found


def at_next_start(
    decision: Decision, record: PodRecord | ContainerRecord, carried: CarriedFields
) -> dict[str, Withheld]:
    """Wanted values that only creation can give to something that runs already, by field.

    `carried`: whether the next one gets them.

    Records have the names of variables, mounts and devices that policies gave, and not their values: another
    value of one of these is not seen.
    """
    found: dict[str, Withheld] = {}
    is_container = isinstance(record, ContainerRecord)
    what = "container" if is_container else "sandbox"
    for field, each in decision.merged.fields.items():
        if cgroup_parameter(field, is_container=is_container) or each.value is None:
            continue
        if not _has(record, field, each.value):
            claims = each.claims or tuple(Claim(owner, Role.SET, None) for owner in each.owners)
            cause, reason = UnappliedCause.NEXT_START, f"it counts at the creation only: with the next {what}"
            if not carried.carries_at_creation(field, is_container=is_container):
                cause, reason = UnappliedCause.NOT_CARRIED, carried.reason
            value = shown(field, each.value) or "cleared"
            found[str(field)] = Withheld(claims, cause, reason, value)
    return found


def without_cgroup(
    decision: Decision, record: PodRecord | ContainerRecord, *, has_none: bool = False
) -> dict[str, Withheld]:
    """What a decision wants of something that runs and whose cgroup is not known, by cgroup parameter.

    Without what its message has given it.

    `has_none`: whether it has no cgroup of its own.
    """
    is_container = isinstance(record, ContainerRecord)
    cause, reason = UnappliedCause.CGROUP_UNKNOWN, CGROUP_UNKNOWN
    if has_none:
        cause, reason = UnappliedCause.NO_CGROUP, IN_VM
    return {
        name: Withheld(each.claims, cause, reason)
        for field, each in decision.merged.fields.items()
        if (name := cgroup_parameter(field, is_container=is_container))
        and each.claims
        and (field.group == CGROUP or not _has(record, field, each.value))
    }


def left_out(decision: Decision, *, is_container: bool) -> dict[str, Withheld]:
    """Wanted values of something that runs which kernel, node or runtime do not take, by field."""
    found: dict[str, Withheld] = {}
    for entry in decision.audit:
        if entry.kind is AuditKind.LEFT_OUT and entry.field and entry.mode is Mode.ENFORCE:
            group, _, key = entry.field.removesuffix("]").partition("[")
            name = key if group == CGROUP else entry.field
            if is_container:
                name = RESOURCE_PARAMETERS.get(entry.field.removeprefix(f"{RESOURCES}."), name)
            claims = (Claim(Claimant(entry.policy), Role.SET, None),)
            is_of_mode = entry.note == NOT_CARRIED
            cause = UnappliedCause.NOT_CARRIED if is_of_mode else UnappliedCause.INVALID
            found[name] = Withheld(claims, cause, entry.reason, entry.new or "cleared")
    return found


def _has(record: PodRecord | ContainerRecord, field: Field, value: FieldValue) -> bool:
    """Whether something that runs was made with a value."""
    wanted = None if value is CLEAR else value
    if field.group == UNIFIED:
        return record.booked.unified.get(field.key) == wanted
    if field.group == RESOURCES:
        return is_same(field, getattr(record.booked, field.key, None), value)
    if field.group in (LABELS, ANNOTATIONS):
        entries: Mapping[str, str] = getattr(record, field.group)
        return entries.get(field.key) == wanted
    if field.group == CGROUP_PARENT and isinstance(record, PodRecord):
        return record.cgroup_parent == wanted
    return str(field) in record.owners


def target_of(pod: PodRecord, container: ContainerRecord | None = None, cgroup: str = "") -> CgroupTarget:
    """The cgroup of a recorded pod, or of a container in it."""
    name = f"{pod.namespace}/{pod.name}"
    if container is None:
        return CgroupTarget(Level.POD, cgroup or pod.cgroup_parent, name, pod.uid)
    return CgroupTarget(Level.CONTAINER, cgroup, f"{name}/{container.name}", pod.uid)


def target_of_view(view: PodView | ContainerView, cgroup: str) -> CgroupTarget:
    """The cgroup of the pod or container that policies were asked about."""
    pod = view if isinstance(view, PodView) else view.pod
    name = f"{pod.namespace}/{pod.name}"
    if isinstance(view, PodView):
        return CgroupTarget(Level.POD, cgroup, name, pod.uid)
    return CgroupTarget(Level.CONTAINER, cgroup, f"{name}/{view.name}", pod.uid)


def owned_claims(record: ContainerRecord) -> dict[str, tuple[Claim, ...]]:
    """The claims behind the values that a container was given, where it has no book, as after version 0.1.

    None behind a value that is as the kubelet requested it: nothing is to be given back.
    """
    claims: dict[str, tuple[Claim, ...]] = {}
    for name, parameter in RESOURCE_PARAMETERS.items():
        owners, value = record.owners.get(f"{RESOURCES}.{name}", ()), getattr(record.booked, name)
        if owners and value not in (None, getattr(record.requested, name)):
            claims[parameter] = tuple(Claim(owner, Role.SET, value) for owner in owners)
    return claims


def class_cgroups(
    pods: Iterable[tuple[tuple[str, ...], KubeQoSClass]], kubelet_root: str = ""
) -> dict[KubeQoSClass, str]:
    """The cgroups of the QoS classes; GUARANTEED stands for that of all pods.

    Those of most pods count: some of before may run on after a change of the kubelet's cgroup driver.

    Args:
        pods: Path and QoS class of some pods.
        kubelet_root: The kubelet's outermost cgroup, for a node without pods; empty if it is not known.

    Source: kubelet, pkg/kubelet/cm/pod_container_manager_linux.go; with systemd `kubepods.slice` holds
    `kubepods-burstable.slice`, else `kubepods` holds `burstable`.
    """
    roots: Counter[tuple[str, ...]] = Counter()
    for path, qos in pods:
        depth = 1 if qos is KubeQoSClass.GUARANTEED else 2
        # Others are not the kubelet's.
        if len(path) > depth and path[-depth - 1].removesuffix(".slice").rpartition("-")[2] == KUBEPODS:
            roots[path[:-depth]] += 1
    if kubelet_root and not roots:
        roots[cgroup_path(kubelet_root)] = 1
    if not roots:
        return {}
    root = max(roots, key=roots.__getitem__)
    stem = root[-1].removesuffix(".slice")
    found = {KubeQoSClass.GUARANTEED: root}
    for each in (KubeQoSClass.BURSTABLE, KubeQoSClass.BEST_EFFORT):
        name = each.value.lower()
        found[each] = (*root, f"{stem}-{name}.slice" if stem != root[-1] else name)
    return {qos: "/" + "/".join(path) for qos, path in found.items()}


def by_parameter(resources: Resources) -> dict[str, Value]:
    """The values of a container's resources, by cgroup parameter; of other files of `unified` the texts."""
    found: dict[str, Value] = {name: _unified_value(name, text) for name, text in resources.unified.items()}
    for name, parameter in RESOURCE_PARAMETERS.items():
        value: Value | None = getattr(resources, name)
        if value is not None:
            found[parameter] = value
    return found


def _unified_value(name: str, text: str) -> Value:
    """The value of a file of `unified`; its text if no parameter has that name, or such a value."""
    parameter = PARAMETERS.get(name)
    with suppress(ValueError):
        return parameter.canonical(text) if parameter is not None else text
    return text


def requested_of_pod(containers: Collection[ContainerRecord]) -> dict[str, Value]:
    """What the requests of its containers come to for a pod: one unlimited container makes it unlimited.

    Source: kubelet, pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod.
    """
    if not containers:
        return {}
    requested = [record.requested for record in containers]
    shares = [each.cpu_shares for each in requested if each.cpu_shares is not None]
    found: dict[str, Value] = {
        "cpu.cfs_quota_us": _sum(each.cpu_quota_us for each in requested),
        "memory.limit_in_bytes": _sum(each.memory_limit_bytes for each in requested),
    }
    if shares:
        # The least stands for a container without a request.
        found["cpu.shares"] = sum(each for each in shares if each > MIN_CPU_SHARES) or MIN_CPU_SHARES
    return found


def with_requests(pod: PodRecord, containers: Collection[ContainerRecord]) -> PodRecord:
    """The sandbox with what its containers' requests come to, if the runtime tells none of its own.

    CRI-O tells none in a sandbox's status. Where the containers' may be those of policies, none are known.
    """
    if pod.requested != NO_RESOURCES or any(each.recovered for each in containers):
        return pod
    sums = {name: value for name, value in requested_of_pod(containers).items() if value != UNLIMITED}
    found: dict[str, Any] = {_RESIZED[name]: value for name, value in sums.items()}
    return replace(pod, requested=Resources(**found))


def resized_pod(
    pod: PodRecord, before: Collection[ContainerRecord], now: Collection[ContainerRecord]
) -> PodRecord:
    """The sandbox after a resize of its containers, where nothing tells of its own.

    Values that were the sums of its containers' follow these; others are the pod's own, or what an init
    container needed alone, and rise to what the containers need now. Those without a limit add nothing:
    an ephemeral container is one. Source: Kubernetes k8s.io/component-helpers/resource, PodLimits.

    Args:
        pod: The sandbox.
        before: Its containers.
        now: The same after the resize.
    """
    sums_before, sums = requested_of_pod(before), requested_of_pod(now)
    changed: dict[str, Any] = {}
    for parameter, value in sums.items():
        name, of_containers = _RESIZED[parameter], sums_before.get(parameter)
        asked = getattr(pod.requested, name) or UNLIMITED
        if value != of_containers and asked == of_containers:
            changed[name] = None if value == UNLIMITED else value
        elif asked != UNLIMITED:
            least_before, least = _least(name, before), _least(name, now)
            if least != least_before and (asked == least_before or least > max(asked, least_before)):
                changed[name] = least
    if not changed:
        return pod
    return replace(pod, requested=replace(pod.requested, **changed), booked=replace(pod.booked, **changed))


def _least(name: str, containers: Iterable[ContainerRecord]) -> int:
    """The sum of a resource of the containers that have a value."""
    least = MIN_CPU_SHARES if name == "cpu_shares" else 0
    values = (getattr(each.requested, name) or 0 for each in containers)
    return sum(value for value in values if value > least)


def _sum(limits: Iterable[int | None]) -> int:
    total = 0
    for limit in limits:
        if limit is None or limit <= 0:
            return UNLIMITED
        total += limit
    return total


def has_limit(book: Book | None) -> bool:
    """Whether policies have an answer about a memory limit."""
    return book is not None and LIMIT in book.entries


def without_lower_limit(wanted: Wanted, book: Book | None) -> Wanted:
    """The answer about something that runs, where a lower memory limit waits for the next call."""
    claims = wanted.claims.get(LIMIT, ())
    entry = book.entries.get(LIMIT) if book is not None else None
    before = wanted.requested.get(LIMIT) if entry is None else entry.resolved
    values = [claim.value for claim in claims if isinstance(claim.value, int)]
    if not values or (entry is not None and entry.claims == claims):
        return wanted
    lowest = min(_with_infinity(value) for value in values)
    if lowest >= _with_infinity(UNLIMITED if before is None else before):
        return wanted
    kept = {name: each for name, each in wanted.claims.items() if name != LIMIT}
    if entry is not None and entry.claims:
        kept[LIMIT] = entry.claims
    withheld = {**wanted.withheld, LIMIT: Withheld(claims, UnappliedCause.LOWER_LIMIT, LOWER_LIMIT)}
    return wanted._replace(claims=kept, withheld=withheld)


def _with_infinity(value: Value) -> float:
    return float("inf") if value == UNLIMITED else float(value)
