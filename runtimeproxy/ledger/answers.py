"""From the decisions of policies to what is wanted of a cgroup. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from runtimeproxy.cgroups.parameters import PARAMETERS
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import (
    CGROUP,
    NODE_CGROUP,
    RESOURCE_PARAMETERS,
    RESOURCES,
    SERVER_PREFIX,
    SYSCTL,
    UNIFIED,
    Field,
    MergedField,
)
from runtimeproxy.hooks.remote.registrations import SUFFIX
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.ledger.books import Target, Value, Wanted
from runtimeproxy.ledger.executor import LIMIT
from runtimeproxy.pods.records import Book, ContainerRecord, Level, PodRecord
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.units import MIN_CPU_SHARES, UNLIMITED

NO_FIELDS: Final[Mapping[Field, MergedField]] = MappingProxyType({})
"""The empty mapping that all calls share."""
KUBEPODS: Final = "kubepods"
"""The cgroup of all pods; with systemd the last part of its slice's name. Source: kubelet,
pkg/kubelet/cm/node_container_manager_linux.go, defaultNodeAllocatableCgroupName."""
_NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})


def wanted_of(
    decision: Decision,
    target: Target,
    requested: Mapping[str, Value] = _NOTHING,
    booked: Mapping[str, Value] = _NOTHING,
    *,
    is_base_known: bool = True,
) -> Wanted:
    """What a decision on a pod, container or QoS class wants of its cgroup.

    Args:
        decision: Of all policies.
        target: The cgroup.
        requested: See `Wanted`.
        booked: See `Wanted`.
        is_base_known: See `claims_of`.
    """
    is_container = target.level is Level.CONTAINER
    claims = claims_of(decision.merged.fields, is_container=is_container, is_base_known=is_base_known)
    return Wanted(target, claims, requested, booked, decision.written_once, decision.without_answer)


def claims_of(
    fields: Mapping[Field, MergedField], *, is_container: bool, is_base_known: bool = True
) -> dict[str, tuple[Claim, ...]]:
    """The claims on the fields of a decision, by cgroup parameter.

    The resources of a container are values of its cgroup; those of a sandbox are not those of its pod.

    Args:
        fields: Of the decision.
        is_container: Whether it is on a container.
        is_base_known: Whether the values of before are the kubelet's. Of a pod or container that was found at
            the runtime they may be ours, and amounts would count on them again with each loss of the records.
    """
    claims: dict[str, tuple[Claim, ...]] = {}
    for field, each in fields.items():
        name = _parameter(field, is_container=is_container)
        found = each.claims if is_base_known else _without_amounts(each.claims)
        if name and found:
            claims[name] = claims.get(name, ()) + found
    return claims


def _without_amounts(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """The claims that count on no value of before."""
    if any(claim.role is Role.SET for claim in claims):
        return claims
    return tuple(claim for claim in claims if claim.role is Role.AT_MOST)


def _parameter(field: Field, *, is_container: bool) -> str:
    """The cgroup parameter of a field; empty if it is none, or none of this cgroup."""
    if field.group == CGROUP:
        return field.key
    if is_container and field.group == RESOURCES:
        return RESOURCE_PARAMETERS.get(field.key, "")
    return field.key if is_container and field.group == UNIFIED and field.key in PARAMETERS else ""


def wanted_of_node(decision: Decision) -> list[Wanted]:
    """What a decision on the node wants of cgroups that are no pod's, such as those of host applications."""
    found: dict[str, dict[str, tuple[Claim, ...]]] = {}
    for field, each in decision.merged.fields.items():
        if field.group == NODE_CGROUP:
            cgroup, _, name = field.key.rpartition("/")
            found.setdefault(cgroup, {})[name] = each.claims
    return [
        Wanted(Target(Level.NODE, cgroup), claims, silent=decision.without_answer)
        for cgroup, claims in found.items()
    ]


def sysctls_of(decision: Decision) -> dict[str, int | str]:
    """The sysctls that a decision on the node wants, in the policies' order."""
    return {
        field.key: each.value
        for field, each in decision.merged.fields.items()
        if field.group == SYSCTL and isinstance(each.value, int | str)
    }


def target_of(pod: PodRecord, container: ContainerRecord | None = None, cgroup: str = "") -> Target:
    """The cgroup of a recorded pod, or of a container in it."""
    name = f"{pod.namespace}/{pod.name}"
    if container is None:
        return Target(Level.POD, cgroup or pod.cgroup_parent, name, pod.uid)
    return Target(Level.CONTAINER, cgroup, f"{name}/{container.name}", pod.uid)


def target_of_view(view: PodView | ContainerView, cgroup: str) -> Target:
    """The cgroup of the pod or container that policies were asked about."""
    pod = view if isinstance(view, PodView) else view.pod
    name = f"{pod.namespace}/{pod.name}"
    if isinstance(view, PodView):
        return Target(Level.POD, cgroup, name, pod.uid)
    return Target(Level.CONTAINER, cgroup, f"{name}/{view.name}", pod.uid)


def owned_claims(record: ContainerRecord) -> dict[str, tuple[Claim, ...]]:
    """The claims behind the values that a container was given, where it has no book, as after version 0.1.

    None behind a value that is as the kubelet requested it: nothing is to be given back.
    """
    claims: dict[str, tuple[Claim, ...]] = {}
    for name, parameter in RESOURCE_PARAMETERS.items():
        owner, value = record.owners.get(f"{RESOURCES}.{name}"), getattr(record.booked, name)
        if owner is not None and value not in (None, getattr(record.requested, name)):
            owner = f"{SERVER_PREFIX}{owner}" if owner.endswith(SUFFIX) else owner
            claims[parameter] = (Claim(owner, Role.SET, value),)
    return claims


def class_cgroups(pods: Iterable[tuple[tuple[str, ...], KubeQoSClass]]) -> dict[KubeQoSClass, str]:
    """The cgroups of the QoS classes; GUARANTEED stands for that of all pods.

    Those of most pods count: some of before may run on after a change of the kubelet's cgroup driver.

    Args:
        pods: Path and QoS class of some pods.

    Source: kubelet, pkg/kubelet/cm/pod_container_manager_linux.go; with systemd `kubepods.slice` holds
    `kubepods-burstable.slice`, else `kubepods` holds `burstable`.
    """
    roots: Counter[tuple[str, ...]] = Counter()
    for path, qos in pods:
        depth = 1 if qos is KubeQoSClass.GUARANTEED else 2
        # Others are not the kubelet's.
        if len(path) > depth and path[-depth - 1].removesuffix(".slice").rpartition("-")[2] == KUBEPODS:
            roots[path[:-depth]] += 1
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
    """The values of a container's resources, by cgroup parameter."""
    found: dict[str, Value] = dict(resources.unified)
    for name, parameter in RESOURCE_PARAMETERS.items():
        value: Value | None = getattr(resources, name)
        if value is not None:
            found[parameter] = value
    return found


def pod_values(containers: Collection[ContainerRecord]) -> dict[str, Value]:
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


def _sum(limits: Iterable[int | None]) -> int:
    total = 0
    for limit in limits:
        if limit is None or limit <= 0:
            return UNLIMITED
        total += limit
    return total


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
    return wanted._replace(claims=kept)


def _with_infinity(value: Value) -> float:
    return float("inf") if value == UNLIMITED else float(value)
