"""CPU burst: throttled containers get more than their limit while the node's shared CPUs have room.

By the strategy of its pod a container gets a larger quota while it is throttled. The amount is added to the
value that policies lead to, so that CPU normalization keeps its effect. The other part of CPU burst, that of
the kernel (`cpu.cfs_burst_us`), needs no samples: it is the policy `cpu-burst`.

Source: Koordinator pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst.go. Unlike Koordinator, which scales
all bursting containers down together once the shared CPUs are overloaded, and up again below, and so swings
around the threshold:

- On overload only as much is taken back as leads below the threshold, from pods of the lowest priority first.
- Growth ends where the shared CPUs would no longer count as idle; pods of the highest priority come first.
- What was given or taken within the averaged time counts as if the average showed it already.
- After an overload nothing grows for a while.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.plugin import QUOTA, Claim, Decision, Need, Plugin, PluginContext, Role, Target
from runtimeproxy.qosmanager.snapshot import (
    LOOK_BACK_S,
    NODE_CGROUP,
    Container,
    ContainerState,
    Level,
    Metric,
    Pod,
    Snapshot,
)
from runtimeproxy.slo.dynamic import GATES, QUOTA_BURST
from runtimeproxy.slo.schema import PodCpuBurst
from runtimeproxy.units import CPU_PERIOD_US

CLASSES: Final = frozenset({QoSClass.LS, QoSClass.SYSTEM, QoSClass.NONE})
"""QoS classes that burst, by the label. Source: Koordinator pkg/util, IsPodCPUBurstable."""

WINDOW_S: Final = 5.0
"""Over which the usage of the shared CPUs is averaged. Source: getNodeStateForBurst, a sample each second."""
COOLING_PERCENT: Final = 90
"""Of the threshold: above it nothing grows. Source: getNodeStateForBurst."""
RELIEF_PERCENT: Final = 95
"""Of the threshold: an overload is reduced to it, the middle of cooling."""
HOLD_S: Final = 10.0
"""How long nothing grows after an overload: twice the averaged time."""
LEAST_STEP_PERCENT: Final = 2
"""Of the quota without burst: smaller growth is left out."""


class PoolState(StrEnum):
    """How busy the shared CPUs are."""

    IDLE = "idle"
    COOLING = "cooling"
    """Nothing grows."""
    OVERLOAD = "overload"
    """Quotas shrink."""
    UNKNOWN = "unknown"
    """Nothing grows."""


class Operation(StrEnum):
    """A step of the quota of a container."""

    RESET = "reset"
    DOWN = "down"
    REMAIN = "remain"
    UP = "up"


def pool_ratio(total_cores: float, used_cores: float) -> float:
    """Return the usage of the shared CPUs, 0 to 1 and above; 1 without any. Source: getNodeStateForBurst."""
    return used_cores / total_cores if total_cores > 0 else 1.0


def pool_state(ratio: float | None, threshold_percent: int) -> PoolState:
    """Return the state of the shared CPUs; without a ratio it is not known. Source: as `pool_ratio`."""
    if ratio is None:
        return PoolState.UNKNOWN
    if ratio * 100 >= threshold_percent:
        return PoolState.OVERLOAD
    return PoolState.COOLING if ratio * 100 >= threshold_percent * COOLING_PERCENT / 100 else PoolState.IDLE


class Bucket(NamedTuple):
    """The token bucket of a container: CPU time beyond its limit, in percent of the limit times seconds."""

    tokens: float
    capacity: int
    at_s: float
    """When the tokens were counted."""


def new_bucket(capacity: int, container_id: str, now_s: float) -> Bucket:
    """Return a bucket, filled up to a half at most. Source: burstLimiter."""
    # Containers that start together must not end together: Koordinator draws lots, here the id decides.
    share = zlib.crc32(container_id.encode()) / 2**33
    return Bucket(int(capacity * share), capacity, now_s)


def refilled(bucket: Bucket, usage_percent: int, now_s: float) -> Bucket:
    """Return the bucket after the usage, in percent of the limit, since then. Source: burstLimiter."""
    tokens = bucket.tokens
    if usage_percent >= 100 or usage_percent < 60:
        tokens += (100 - usage_percent) * max(now_s - bucket.at_s, 0.0)
    return bucket._replace(tokens=min(max(tokens, -bucket.capacity), bucket.capacity), at_s=now_s)


def limited(
    bucket: Bucket | None, strategy: PodCpuBurst, usage_percent: int, container_id: str, now_s: float
) -> tuple[Bucket | None, bool]:
    """Return the bucket after this round, and whether quotas may grow. Source: cfsBurstAllowedByLimiter."""
    period_s, percent = strategy.cfs_quota_burst_period_seconds, strategy.cfs_quota_burst_percent
    if period_s < 0:
        return None, True
    if percent < 100:
        return None, False
    capacity = period_s * (percent - 100)
    if bucket is None or bucket.capacity != capacity:
        bucket = new_bucket(capacity, container_id, now_s)
    bucket = refilled(bucket, usage_percent, now_s)
    return bucket, bucket.tokens > 0


def operation(strategy: PodCpuBurst, throttled: float | None, *, is_allowed: bool) -> Operation:
    """Return what a container asks for, apart from the node's state. Source: genOperationByContainer."""
    if strategy.policy not in QUOTA_BURST:
        return Operation.RESET
    if not is_allowed:
        return Operation.DOWN
    return Operation.UP if throttled else Operation.REMAIN


def ceiling_us(base_us: int, strategy: PodCpuBurst) -> int:
    return base_us * max(strategy.cfs_quota_burst_percent, 100) // 100


def stepped(current_us: int, base_us: int, ceil_us: int, op: Operation) -> int:
    """Return the quota after one operation, within base and ceiling. Source: applyCFSQuotaBurst."""
    target = {
        Operation.UP: current_us * 12 // 10,
        Operation.DOWN: current_us * 8 // 10,
        Operation.RESET: base_us,
        Operation.REMAIN: current_us,
    }[op]
    return min(max(target, base_us), ceil_us)


class Grant(NamedTuple):
    """A change of quotas that the averaged usage may not show yet."""

    at_s: float
    cores: float
    """Below 0: taken back."""


class Burst(NamedTuple):
    """One container that may burst, in one round."""

    id: str
    name: str
    """Of pod and container, for people."""
    priority: int
    base_us: int
    """Its quota without burst."""
    ceil_us: int
    current_us: int
    used_cores: float | None
    op: Operation

    @property
    def share(self) -> float:
        return self.current_us / self.base_us


class SharePool(NamedTuple):
    """The CPUs that are shared, in one round."""

    state: PoolState
    total_cores: float = 0.0
    used_cores: float = 0.0
    """The average, or the last sample if that is higher."""
    average_cores: float = 0.0
    threshold_percent: int = 0

    def room_cores(self, grants: Iterable[Grant]) -> float:
        """How much more can be used before growth has to end."""
        limit = self.total_cores * self.threshold_percent * COOLING_PERCENT / 10_000
        return limit - self.used_cores - sum(each.cores for each in grants if each.cores > 0)

    def excess_cores(self, grants: Iterable[Grant]) -> float:
        """How much has to be taken back."""
        limit = self.total_cores * self.threshold_percent * RELIEF_PERCENT / 10_000
        return self.average_cores - limit + sum(each.cores for each in grants if each.cores < 0)


def planned(
    bursts: Sequence[Burst], pool: SharePool, grants: Sequence[Grant] = (), *, is_held: bool = False
) -> dict[str, int]:
    """Return the quota of each container. `grants` are of the averaged time; `is_held` excludes growth."""
    quotas = {
        each.id: stepped(
            each.current_us,
            each.base_us,
            each.ceil_us,
            Operation.REMAIN if each.op is Operation.UP else each.op,
        )
        for each in bursts
    }
    if pool.state is PoolState.OVERLOAD:
        quotas.update(_reductions(bursts, pool.excess_cores(grants)))
    elif pool.state is PoolState.IDLE and not is_held:
        quotas.update(_growth(bursts, pool.room_cores(grants)))
    return quotas


def _reductions(bursts: Iterable[Burst], excess_cores: float) -> Iterator[tuple[str, int]]:
    # From the lowest priority first, and of one priority from the one that has most.
    for each in sorted(bursts, key=lambda one: (one.priority, -one.share, one.id)):
        if excess_cores <= 0:
            return
        if each.op in (Operation.UP, Operation.REMAIN):
            quota_us = stepped(each.current_us, each.base_us, each.ceil_us, Operation.DOWN)
            excess_cores -= _freed_cores(each, quota_us)
            yield each.id, quota_us


def _growth(bursts: Iterable[Burst], room_cores: float) -> Iterator[tuple[str, int]]:
    """Gives to the highest priority first, and of one priority to the one that has least."""
    room_us = round(room_cores * CPU_PERIOD_US)
    for each in sorted(bursts, key=lambda one: (-one.priority, one.share, one.id)):
        if each.op is not Operation.UP:
            continue
        wanted_us = stepped(each.current_us, each.base_us, each.ceil_us, Operation.UP) - each.current_us
        more_us = min(wanted_us, room_us)
        if more_us >= max(min(each.base_us * LEAST_STEP_PERCENT // 100, wanted_us), 1):
            room_us -= more_us
            yield each.id, each.current_us + more_us


def _freed_cores(burst: Burst, quota_us: int) -> float:
    """How much less a container can use with a lower quota."""
    used = burst.current_us / CPU_PERIOD_US
    if burst.used_cores is not None:
        used = min(used, burst.used_cores)
    return max(used - quota_us / CPU_PERIOD_US, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstState:
    """Amounts beyond the limits of containers, and their limiters."""

    added_us: Mapping[str, int] = field(default_factory=dict)
    """By container id; none with 0."""
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    """By container id."""
    grants: tuple[Grant, ...] = ()
    held_until_s: float | None = None
    """Nothing grows before; None: there was no overload."""


class CpuBurstPlugin(Plugin[BurstState]):
    """Adds to the quotas of throttled containers."""

    name: ClassVar[str] = "cpu-burst"
    gates: ClassVar[tuple[str, ...]] = GATES["cpu-burst"]
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            Need(Level.NODE, Metric.CPU_USAGE, WINDOW_S),
            Need(Level.POD, Metric.CPU_USAGE, WINDOW_S),
            Need(Level.CONTAINER, Metric.CPU_USAGE, LOOK_BACK_S),
            Need(Level.CONTAINER, Metric.CPU_THROTTLED, LOOK_BACK_S),
        }
    )

    def setup(self, context: PluginContext) -> BurstState:
        """The present amounts in the daemon: quotas must not jump."""
        added = {
            claim.target.id: claim.value
            for claim in context.held
            if claim.role is Role.ADD and claim.field == QUOTA and isinstance(claim.value, int)
        }
        return BurstState(added_us=added)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return snapshot.asks_for(self.name)

    def run(self, snapshot: Snapshot, state: BurstState) -> Decision[BurstState]:
        now_s = snapshot.now_s
        pool = share_pool(snapshot)
        found = [_burst_of(snapshot, state, *each) for each in _containers(snapshot)]
        bursts = [burst for burst, _ in found if burst is not None]
        grants = tuple(each for each in state.grants if each.at_s > now_s - WINDOW_S)
        held_until_s = now_s + HOLD_S if pool.state is PoolState.OVERLOAD else state.held_until_s
        is_held = held_until_s is not None and now_s < held_until_s
        quotas = planned(bursts, pool, grants, is_held=is_held)
        after = BurstState(
            added_us={each.id: more for each in bursts if (more := quotas[each.id] - each.base_us) > 0},
            buckets=dict(bucket for _, bucket in found if bucket is not None),
            grants=(*grants, *_new_grants(bursts, quotas, now_s)),
            held_until_s=held_until_s if is_held else None,
        )
        claims = tuple(_added(bursts, quotas, pool))
        explanation = (
            f"shared CPUs {pool.state}: {pool.average_cores:.2f} of {pool.total_cores:.2f} cores used, "
            f"threshold {pool.threshold_percent} %; {len(after.added_us)} containers burst"
        )
        return Decision(after, claims, explanation=explanation)


def share_pool(snapshot: Snapshot) -> SharePool:
    """Return the CPUs that pods without CPUs of their own share. Source: getNodeStateForBurst.

    The total is without the requests of LSE and LSR pods, the usage without that of LSE, LSR and BE pods.
    """
    node, threshold = snapshot.node, snapshot.strategies.cpu_burst.share_pool_threshold_percent
    window = snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, WINDOW_S)
    if window is None or not node.cpus:
        return SharePool(PoolState.UNKNOWN, threshold_percent=threshold)
    bound = 0
    average, last = window.avg, window.last
    for pod in snapshot.pods:
        if pod.qos in (QoSClass.LSE, QoSClass.LSR):
            bound += sum(each.requests.get("cpu", 0) for each in pod.containers)
        if pod.qos in (QoSClass.LSE, QoSClass.LSR, QoSClass.BE):
            average -= snapshot.metrics.mean(pod.cgroup, Metric.CPU_USAGE, WINDOW_S) or 0.0
            last -= snapshot.metrics.last(pod.cgroup, Metric.CPU_USAGE, WINDOW_S) or 0.0
    total = len(node.cpus) - bound / 1_000
    state = pool_state(pool_ratio(total, average), threshold)
    return SharePool(state, max(total, 0.0), max(average, last), average, threshold)


def _containers(snapshot: Snapshot) -> Iterator[tuple[Pod, Container]]:
    for pod in snapshot.pods:
        if pod.qos in CLASSES:
            for container in pod.containers:
                if container.state is ContainerState.RUNNING:
                    yield pod, container


def _burst_of(
    snapshot: Snapshot, state: BurstState, pod: Pod, container: Container
) -> tuple[Burst | None, tuple[str, Bucket] | None]:
    """A container in this round, and its token bucket; None for an unlimited one."""
    base_us, limit = container.cpu_quota_us, container.limits.get("cpu", 0)
    if base_us is None or base_us <= 0 or limit <= 0:
        return None, None
    used_cores = snapshot.metrics.last(container.cgroup, Metric.CPU_USAGE, LOOK_BACK_S)
    throttled = snapshot.metrics.last(container.cgroup, Metric.CPU_THROTTLED, LOOK_BACK_S)
    # What the container may use here is less than its limit where CPUs are faster than usual.
    percent = int(used_cores * CPU_PERIOD_US * 100 / base_us) if used_cores is not None else 100
    bucket, is_allowed = limited(
        state.buckets.get(container.id), pod.cpu_burst, percent, container.id, snapshot.now_s
    )
    op = operation(pod.cpu_burst, throttled, is_allowed=is_allowed)
    ceil_us = ceiling_us(base_us, pod.cpu_burst)
    burst = Burst(
        container.id,
        f"{pod.full_name}/{container.name}",
        pod.priority_value,
        base_us,
        ceil_us,
        min(base_us + state.added_us.get(container.id, 0), ceil_us),
        used_cores,
        op,
    )
    return burst, (container.id, bucket) if bucket is not None else None


def _new_grants(bursts: Iterable[Burst], quotas: Mapping[str, int], now_s: float) -> Iterator[Grant]:
    given = taken = 0.0
    for each in bursts:
        more_us = quotas[each.id] - each.current_us
        if more_us > 0:
            given += more_us / CPU_PERIOD_US
        elif more_us < 0:
            taken += _freed_cores(each, quotas[each.id])
    if given:
        yield Grant(now_s, given)
    if taken:
        yield Grant(now_s, -taken)


def _added(bursts: Iterable[Burst], quotas: Mapping[str, int], pool: SharePool) -> Iterator[Claim]:
    for each in bursts:
        more_us = quotas[each.id] - each.base_us
        if more_us > 0:
            reason = f"{quotas[each.id] / each.base_us:.2f} times the limit, shared CPUs {pool.state}"
            target = Target(Level.CONTAINER, each.id)
            yield Claim(target, QUOTA, Role.ADD, more_us, ceiling=each.ceil_us, reason=reason)
