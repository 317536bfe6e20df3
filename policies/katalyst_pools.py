"""Katalyst's pools: the CPUs and NUMA nodes of each pod, by its QoS level.

The daemon keeps the pools (`runtimeproxy.ledger.pools`): it places a pod before the runtime makes it, and the
others leave its CPUs first. This policy says what each pod has of them at the moment, and refuses what cannot
be placed. All containers of a pod have the same CPUs. A pod without a level is one of `shared_cores` in the
pool `share`, since it must not run on CPUs that another one has alone.

CPUs that a claim of a DRA driver gave to one container alone stay as they are.
Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy and pkg/agent/qrm-plugins/memory/dynamicpolicy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    PodChange,
    PodView,
    Policy,
    Reason,
    ResourceChange,
)
from runtimeproxy.katalyst.hints import HintPolicy
from runtimeproxy.katalyst.pools import PoolPod, PoolSettings, RefusalKind
from runtimeproxy.katalyst.transition import Placement
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.units import format_cpu_list, parse_cpu_list

_BY_POOLS: Final = "CPUs of its pool"
_CODES: Final[Mapping[RefusalKind, StatusCode]] = {
    RefusalKind.INVALID: StatusCode.INVALID_ARGUMENT,
    RefusalKind.NO_ROOM: StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.RESIZE: StatusCode.FAILED_PRECONDITION,
}
MOST_CPUS: Final = 4096
"""Source: Linux arch/x86/Kconfig, NR_CPUS is 8192 at most; machines have a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystPoolsOptions:
    """Settings of the pools. Dynamic configuration stands above those that it sets."""

    reserved_cpus: str = ""
    """CPUs that no pod of these levels has, as a list such as `0,32`; empty: `reserved_count` are picked."""
    reserved_count: int = 0
    """How many are picked, evenly from all NUMA nodes."""
    reserved_memory_bytes: int = 0
    """Memory of each NUMA node that bound pods cannot book."""
    enable_reclaim: bool = False
    """Whether `reclaimed_cores` have all CPUs that the others do not request; Katalyst's `enableReclaim`."""
    overlap: bool = False
    """Whether `reclaimed_cores` share the CPUs of `shared_cores`; Katalyst's
    `allowSharedCoresOverlapReclaimedCores`."""
    reclaim_reserve: int | None = None
    """The least number of CPUs of `reclaimed_cores`; unset: 4, or one for each NUMA node."""
    snb_ratio: float = 2.0
    """What the requests of `shared_cores` that are bound to a NUMA node are multiplied with."""
    ramp_up_s: float = 30.0
    """How long a new pod of `shared_cores` has all CPUs that are not bound, before it joins its pool."""
    numa_hint_policy: Literal["spreading", "packing", "none"] = "spreading"
    """Which NUMA node a bound pod of `shared_cores` gets."""
    enable_reclaim_numa_binding: bool = False
    """Whether pods of `reclaimed_cores` may be bound to a NUMA node."""

    def __post_init__(self) -> None:
        try:
            parse_cpu_list(self.reserved_cpus)
        except ValueError as error:
            raise ValueError(f"reserved_cpus: {error}") from None
        for name, value, most in (
            ("reserved_count", self.reserved_count, MOST_CPUS),
            ("reserved_memory_bytes", self.reserved_memory_bytes, 2**50),
            ("reclaim_reserve", self.reclaim_reserve or 0, MOST_CPUS),
            ("ramp_up_s", self.ramp_up_s, 86_400),
        ):
            if not 0 <= value <= most:
                raise ValueError(f"{name} is not in 0 to {most}")
        if not 1 <= self.snb_ratio <= 100:
            raise ValueError("snb_ratio is not in 1 to 100")

    @property
    def settings(self) -> PoolSettings:
        """The same for the pools."""
        return PoolSettings(
            reserved_cpus=parse_cpu_list(self.reserved_cpus),
            reserved_count=self.reserved_count,
            reserved_memory_bytes=self.reserved_memory_bytes,
            enable_reclaim=self.enable_reclaim,
            overlap=self.overlap,
            reclaim_reserve=self.reclaim_reserve,
            snb_ratio=self.snb_ratio,
            ramp_up_s=self.ramp_up_s,
            numa_hint_policy=HintPolicy(self.numa_hint_policy),
            enable_reclaim_numa_binding=self.enable_reclaim_numa_binding,
        )


class KatalystPools(Policy):
    """Sets the CPUs and NUMA nodes of Katalyst's pools; refuses a pod that has no room, where that is set."""

    name: ClassVar[str] = "katalyst-pools"
    is_default: ClassVar[bool] = False
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.CPU_POOLS})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({"cpuset.cpus", "cpuset.mems"}),
        "container": frozenset({"cpuset.cpus", "cpuset.mems"}),
    }
    priority: ClassVar[int] = 40
    options_type: ClassVar[type[KatalystPoolsOptions] | None] = KatalystPoolsOptions

    def __init__(self, options: KatalystPoolsOptions | None = None) -> None:
        self.pool_settings = (options or KatalystPoolsOptions()).settings

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the CPUs of a pod without cgroups of containers, or refuse it.

        Other pods have them in the cgroups of their containers.
        """
        _check(node, pod.uid)
        found = _placed(node, pod.uid)
        if found is None:
            return None
        placed, now = found
        problems = (placed.problem,) if placed.problem else ()
        if pod.has_container_cgroups:
            return PodChange(problems=problems) if problems else None
        cgroup: dict[str, int | str] = {"cpuset.cpus": format_cpu_list(now.cpus)}
        reasons = {"cpuset.cpus": _cpus_reason(placed, now)}
        if now.mems:
            cgroup["cpuset.mems"] = format_cpu_list(now.mems)
            reasons["cpuset.mems"] = _mems_reason(placed, now)
        return PodChange(cgroup=cgroup, reason=_BY_POOLS, reasons=reasons, problems=problems)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the CPUs and NUMA nodes of a container, or refuse it."""
        uid = container.pod.uid
        _check(node, uid, container.name)
        found = _placed(node, uid)
        if found is None or container.cpu_claims:
            return None
        placed, now = found
        reasons = {"cpuset_cpus": _cpus_reason(placed, now)}
        if now.mems:
            reasons["cpuset_mems"] = _mems_reason(placed, now)
        mems = format_cpu_list(now.mems) if now.mems else None
        resources = ResourceChange(cpuset_cpus=format_cpu_list(now.cpus), cpuset_mems=mems)
        return ContainerChange(resources=resources, reason=_BY_POOLS, reasons=reasons)


def _check(node: Node, uid: str, container: str = "") -> None:
    """Refuses what the pools have refused.

    Raises:
        RefusalError: The pod, or the container, cannot be placed.
    """
    refusal = node.cpu_pools.refusals.get((uid, container)) if node.cpu_pools is not None else None
    if refusal is not None:
        raise RefusalError(refusal.reason, _CODES[refusal.kind])


def _placed(node: Node, uid: str) -> tuple[PoolPod, Placement] | None:
    """The pod in the pools, and what it has now; None: the pools do not handle it."""
    pools = node.cpu_pools
    if pools is None:
        return None
    placed, now = pools.state.pods.get(uid), pools.placements.get(uid)
    return (placed, now) if placed is not None and now is not None else None


def _cpus_reason(placed: PoolPod, now: Placement) -> Reason:
    """Say by which level and pool a pod has its CPUs, and what of them others have yet to leave."""
    pool = _owner_text(placed)
    why = f"; {placed.reason}" if placed.reason else ""
    waits = placed.cpus - now.cpus
    rest = f" (CPUs {format_cpu_list(waits)} once others have left them)" if waits else ""
    return Reason(placed.level.value, " ", pool, why, rest, " = ", format_cpu_list(now.cpus))


def _mems_reason(placed: PoolPod, now: Placement) -> Reason:
    bound = "the NUMA nodes that it is bound to" if placed.numa_ids else "NUMA nodes of its level"
    return Reason(placed.level.value, ": ", bound, " = ", format_cpu_list(now.mems))


def _owner_text(placed: PoolPod) -> str:
    if placed.is_ramping_up and not placed.dedicated:
        return f"ramping up, then in pool {placed.pool}"
    if placed.dedicated:
        return "with CPUs of its own"
    return f"in pool {placed.owner}" if placed.owner else "without a pool"
