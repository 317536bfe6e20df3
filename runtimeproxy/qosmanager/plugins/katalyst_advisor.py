"""The advisor of Katalyst's pools: how many CPUs they need by usage, and what is left for `reclaimed_cores`.

The daemon bounds what it claims, and makes pools of it (`runtimeproxy.katalyst.advice`). A plugin of one's
own can be the advisor in its place: it claims the same fields of pools.

Source: katalyst-core pkg/agent/sysadvisor/plugin/qosaware/resource; see `runtimeproxy.qosmanager.advisor`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final, Literal, NamedTuple

from runtimeproxy.katalyst.names import (
    DEDICATED,
    RECLAIM,
    QosLevel,
    is_shared_pool,
    numa_pool,
    pool_and_numa_node,
)
from runtimeproxy.qosmanager.advisor.formulas import (
    HEADROOM_STEP_BYTES,
    HEADROOM_STEP_MILLICPU,
    HeldHeadroom,
    Limits,
    PoolNeed,
    idle_bytes,
    idle_millicpu,
    quota_us,
    regulated_headroom,
    regulated_requirement,
    required_cores,
    split,
)
from runtimeproxy.qosmanager.advisor.recording import InputRecorder
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    QUOTA,
    Claim,
    Decision,
    Mode,
    Need,
    Plugin,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, CpuPools, Level, Metric, Node, Pod, Snapshot
from runtimeproxy.vocabulary import PoolField

STALE_S: Final = 30.0
"""Without samples for so long it claims nothing any more. Source: SysAdvisor's freshness of metrics."""
LONGEST_WINDOW_S: Final = 60.0
"""The most of `window_s`."""
DROPPING_S: Final = 10.0
"""How long a pod is bounded so that the kernel drops its page cache."""
DROP_PAUSE_S: Final = 60.0
"""Until the next time for the same pod."""
MOST_DROPPING: Final = 3
"""Pods that are bounded at a time."""
LEAST_CACHE_BYTES: Final = 64 << 20
"""Less is not worth it."""
MEMORY_HIGH: Final = "memory.high"
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystAdvisorOptions:
    """`[plugins.katalyst-advisor.options]`."""

    policy: Literal["canonical", "dynamic-quota", "none"] = "canonical"
    """`canonical` sizes pools by usage; `dynamic-quota` also lets `reclaimed_cores` run on all CPUs of the
    pools, and bounds them by a quota (it needs `overlap` of the pools); `none` claims nothing."""
    margin: float = 0.2
    """CPUs of a pool beyond its usage or load, as a part of that, 0 to 10."""
    window_s: float = 10.0
    """Usage and load are means of so long a time, 1 to 60."""
    hold_s: float = 60.0
    """How long a need has to be smaller before the requirement falls, and more to be idle before the headroom
    rises, 0 to 3,600."""
    fall_percent: int = 10
    """A requirement falls by this part of itself in one step, at least by one CPU, 1 to 100."""
    beyond_requests: bool = False
    """Whether a pool may need more CPUs than its pods request."""
    memory_margin_percent: int = 5
    """The part of the node's memory that the headroom leaves free, 0 to 90."""
    drop_cache: bool = False
    """Whether page cache of pods of `reclaimed_cores` is dropped when memory is short: `memory.high` of
    cgroup version 2 for some seconds."""
    drop_cache_below_percent: int = 10
    """Memory is short if less than this part of the node's is free, 0 to 90; page cache is not free."""
    record_folder: str = ""
    """Absolute path of a folder for recordings, a file for each day, which a replay reads; empty: none."""


class Dropping(NamedTuple):
    """A pod whose page cache is dropped."""

    since_s: float
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisorState:
    """What was given out last."""

    required: Mapping[str, PoolNeed] = field(default_factory=dict)
    """By pool."""
    cpu: HeldHeadroom | None = None
    memory: HeldHeadroom | None = None
    held: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Claims of before this process, by pool and field."""
    dropping: Mapping[str, Dropping] = field(default_factory=dict)
    """By uid, until `DROP_PAUSE_S` is over."""
    claims: tuple[Claim, ...] = ()
    sampled_s: float | None = None
    """When there were samples last."""


class _Pool(NamedTuple):
    """A pool of `shared_cores` at a moment."""

    usage: float
    load: float
    cores: float
    """With the margin."""
    most: int
    missing: int
    """Pods without samples, which have their requests."""

    def reason(self, size: int) -> str:
        missing = f", {self.missing} pods by request" if self.missing else ""
        return (
            f"used {self.usage:.2f}, load {self.load:.2f}, with the margin {self.cores:.2f} of at most "
            f"{self.most} CPUs{missing}; regulated to {size}"
        )


class KatalystAdvisor(Plugin[AdvisorState]):
    """Claims what pools need, the headroom and, by policy, a quota."""

    name: ClassVar[str] = "katalyst-advisor"
    default_mode: ClassVar[Mode] = Mode.OFF
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            *(
                Need(level, metric, LONGEST_WINDOW_S)
                for level in (Level.NODE, Level.POD)
                for metric in (Metric.CPU_USAGE, Metric.MEMORY_USAGE, Metric.MEMORY_WITH_CACHE)
            ),
            Need(Level.NODE, Metric.MEMORY_NUMA, LONGEST_WINDOW_S),
            Need(Level.POD, Metric.MEMORY_WORKING_SET, LONGEST_WINDOW_S),
            Need(Level.POD, Metric.CPU_LOAD, LONGEST_WINDOW_S),
            Need(Level.POD, Metric.CPU_PRESSURE, LONGEST_WINDOW_S),
        }
    )
    interval_s: ClassVar[float] = 1.0
    options_type: ClassVar[type[KatalystAdvisorOptions]] = KatalystAdvisorOptions

    def __init__(self) -> None:
        self._options = KatalystAdvisorOptions()
        self._recorder = InputRecorder("", self.needs)

    def option_problems(self, options: KatalystAdvisorOptions) -> Sequence[tuple[str, str]]:
        problems = [
            (name, f"is not in {least:g} to {most:g}")
            for name, least, most in (
                ("margin", 0, 10),
                ("window_s", 1, LONGEST_WINDOW_S),
                ("hold_s", 0, 3_600),
                ("fall_percent", 1, 100),
                ("memory_margin_percent", 0, 90),
                ("drop_cache_below_percent", 0, 90),
            )
            if not least <= getattr(options, name) <= most
        ]
        if options.record_folder and not Path(options.record_folder).is_absolute():
            problems.append(("record_folder", "is not an absolute path"))
        return problems

    def setup(self, context: PluginContext) -> AdvisorState:
        self._options = context.options or KatalystAdvisorOptions()
        self._recorder = InputRecorder(self._options.record_folder, self.needs)
        of_pools = (each for each in context.held if each.target.level is Level.POOL)
        held = {(each.target.id, each.field): int(each.value) for each in of_pools}
        return AdvisorState(held=held, claims=tuple(context.held))

    def is_enabled(self, snapshot: Snapshot) -> bool:
        # No strategy asks for it; without pools its explanation says so.
        return True

    def run(self, snapshot: Snapshot, state: AdvisorState) -> Decision[AdvisorState]:
        pools, options = snapshot.node.cpu_pools, self._options
        problem = self._recorder.write(snapshot)
        if pools is None:
            text = "there are no pools: the policy katalyst-pools is off, or cannot work here"
            return Decision(AdvisorState(), explanation=text)
        if options.policy == "none":
            return Decision(AdvisorState(), explanation="; ".join(filter(None, ("policy none", problem))))
        used = snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, options.window_s)
        if used is None or not snapshot.node.cpus:
            since_s = snapshot.now_s if state.sampled_s is None else state.sampled_s
            if snapshot.now_s - since_s >= STALE_S:
                text = f"no samples for {STALE_S:g} s: it claims nothing, sizes follow from requests"
                return Decision(AdvisorState(sampled_s=since_s), explanation=text)
            text = "there are no samples: what was claimed before stays for now"
            return Decision(replace(state, sampled_s=since_s), state.claims, explanation=text)
        advised = _Advising(snapshot, pools, options, state, max(used.avg, used.last))
        claims = tuple(advised.claims())
        after = replace(advised.state, claims=claims, sampled_s=snapshot.now_s)
        return Decision(after, claims, explanation="; ".join(filter(None, (*advised.explanations, problem))))


class _Advising:
    """One decision; claims and the next state of a snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        pools: CpuPools,
        options: KatalystAdvisorOptions,
        state: AdvisorState,
        used_cores: float,
    ) -> None:
        self._snapshot, self._pools, self._options = snapshot, pools, options
        self._now_s = snapshot.now_s
        self._used_cores = used_cores
        by_uid = {pod.uid: pod for pod in snapshot.pods}
        self._members: dict[str, list[Pod]] = {}
        self._reclaimed: list[Pod] = []
        for uid, member in pools.members.items():
            pod = by_uid.get(uid)
            if pod is not None and member.level == QosLevel.RECLAIMED:
                self._reclaimed.append(pod)
            elif pod is not None and member.level == QosLevel.SHARED and member.pool in pools.pools:
                self._members.setdefault(member.pool, []).append(pod)
        self._usable = (
            frozenset(cpu.id for cpu in snapshot.node.cpus)
            - pools.reserved_cpus
            - pools.pools.get(DEDICATED, frozenset())
        )
        self.state = state
        self.explanations: list[str] = []

    def claims(self) -> Iterator[Claim]:
        required = self._required()
        yield from self._of_pools(required)
        supply = max(0, len(self._usable) - sum(each.size for each, _ in required.values()))
        yield from self._headroom(required, supply)
        if self._options.policy == "dynamic-quota":
            yield from self._quota(supply)
        yield from self._drops()

    def _required(self) -> dict[str, tuple[PoolNeed, _Pool]]:
        found: dict[str, tuple[PoolNeed, _Pool]] = {}
        for name in sorted(self._members):
            if not is_shared_pool(name):
                continue
            pool = self._pool(name)
            before = self.state.required.get(name)
            held = self.state.held.get((name, PoolField.REQUIRED_CPUS))
            if before is None:
                # One moment is no reason to take CPUs from a pool: it falls from what it has, by steps.
                size = held if held is not None else len(self._pools.pools[name])
                before = PoolNeed(min(size, pool.most), self._now_s, pool.cores)
            fall = max(1, before.size * self._options.fall_percent // 100)
            limits = Limits(fall, self._options.hold_s)
            after = regulated_requirement(before, pool.cores, pool.most, self._now_s, limits)
            found[name] = after, pool
        # Of other pools there is nothing to remember.
        required = {name: each for name, (each, _) in found.items()}
        self.state = replace(self.state, required=required, held={})
        return found

    def _pool(self, name: str) -> _Pool:
        length_s = self._options.window_s
        usage = load = 0.0
        requested, missing, is_known = 0, 0, True
        for pod in self._members[name]:
            requests = [each.requests.get("cpu") for each in pod.containers]
            is_known = is_known and None not in requests
            request = sum(each or 0 for each in requests)
            requested += request
            used = self._snapshot.metrics.mean(pod.cgroup, Metric.CPU_USAGE, length_s)
            if used is None:
                missing += 1
                usage += request / 1_000
                load += request / 1_000
                continue
            usage += used
            load += _load_or_usage(self._snapshot, pod.cgroup, length_s, used) or used
        most = self._available(name)
        if is_known and requested and not self._options.beyond_requests:
            most = min(most, -(-requested // 1_000))
        return _Pool(usage, load, required_cores(usage, load, self._options.margin), most, missing)

    def _available(self, name: str) -> int:
        """The CPUs that a pool can have at most."""
        _, numa_node = pool_and_numa_node(name)
        bound = {node for _, node in map(pool_and_numa_node, self._members)} - {None}
        cpus = [cpu for cpu in self._snapshot.node.cpus if cpu.id in self._usable]
        if numa_node is not None:
            return max(1, sum(cpu.numa_node == numa_node for cpu in cpus))
        there = sum(cpu.numa_node not in bound for cpu in cpus)
        return max(1, there - self._pools.least_reclaim_cpus)

    def _of_pools(self, required: Mapping[str, tuple[PoolNeed, _Pool]]) -> Iterator[Claim]:
        for name, (regulated, pool) in required.items():
            target, reason = Target(Level.POOL, name), pool.reason(regulated.size)
            yield Claim(target, PoolField.REQUIRED_CPUS, Role.SET, regulated.size, reason=reason)
            self.explanations.append(f"{name} needs {regulated.size} CPUs")
            if self._options.policy == "dynamic-quota" and self._pools.overlap:
                size = len(self._pools.pools[name])
                reason = "dynamic-quota: reclaimed_cores run on all of its CPUs, within their quota"
                yield Claim(target, PoolField.OVERLAP_CPUS, Role.SET, size, reason=reason)

    def _headroom(self, required: Mapping[str, tuple[PoolNeed, _Pool]], supply_cpus: int) -> Iterator[Claim]:
        has_reclaim = self._pools.enable_reclaim or self._pools.overlap
        reclaimed = sum(
            self._snapshot.metrics.last(pod.cgroup, Metric.CPU_USAGE, self._options.window_s) or 0.0
            for pod in self._reclaimed
        )
        capacity = 1_000.0 * (len(self._snapshot.node.cpus) - len(self._pools.reserved_cpus))
        idle = idle_millicpu(
            capacity, 1_000 * self._used_cores, 1_000 * reclaimed, supply_cpus if has_reclaim else 0
        )
        hold_s = self._options.hold_s
        cpu = regulated_headroom(self.state.cpu, idle, HEADROOM_STEP_MILLICPU, self._now_s, hold_s)
        self.state = replace(self.state, cpu=cpu)
        why = "" if has_reclaim else "; enable_reclaim is off"
        cpu_reason = (
            f"{supply_cpus} CPUs that no pool needs; {capacity / 1_000:g} cores, others use "
            f"{max(self._used_cores - reclaimed, 0.0):.2f}{why}"
        )
        weights = dict(self._numa_supply(required))
        memory_reason, memory = self._memory(is_wanted=has_reclaim)
        memory_weights = self._numa_memory()
        shares = split(cpu.amount, weights, HEADROOM_STEP_MILLICPU)
        yield _headroom_claim(RECLAIM, PoolField.HEADROOM_MILLICPU, cpu.amount, cpu_reason)
        if len(weights) > 1:
            for numa_node, amount in shares.items():
                name = numa_pool(RECLAIM, numa_node)
                yield _headroom_claim(name, PoolField.HEADROOM_MILLICPU, amount, "its part of the node's")
        if memory is None:
            self.explanations += (f"headroom {cpu.amount / 1_000:g} CPUs", memory_reason)
            return
        self.explanations.append(f"headroom {cpu.amount / 1_000:g} CPUs and {memory / _GIB:.1f} GiB")
        yield _headroom_claim(RECLAIM, PoolField.HEADROOM_BYTES, memory, memory_reason)
        if len(memory_weights) > 1:
            for numa_node, amount in split(memory, memory_weights, HEADROOM_STEP_BYTES).items():
                name = numa_pool(RECLAIM, numa_node)
                yield _headroom_claim(name, PoolField.HEADROOM_BYTES, amount, "its part of the node's")

    def _numa_supply(self, required: Mapping[str, tuple[PoolNeed, _Pool]]) -> Iterator[tuple[int, float]]:
        """What each NUMA node has beside the pools, those of several nodes by their CPUs there."""
        by_numa: dict[int, set[int]] = {}
        for cpu in self._snapshot.node.cpus:
            by_numa.setdefault(cpu.numa_node, set()).add(cpu.id)
        for numa_node, cpus in sorted(by_numa.items()):
            taken = 0.0
            for name, (regulated, _) in required.items():
                of_pool = self._pools.pools[name]
                taken += regulated.size * len(of_pool & cpus) / max(1, len(of_pool))
            yield numa_node, max(0.0, len(self._usable & cpus) - taken)

    def _memory(self, *, is_wanted: bool) -> tuple[str, int | None]:
        node, metrics = self._snapshot.node, self._snapshot.metrics
        capacity = _memory_bytes(node)
        used = metrics.window(NODE_CGROUP, Metric.MEMORY_USAGE, self._options.window_s)
        if not capacity:
            return "headroom of memory: the size of the node's memory is not known", None
        if used is None:
            return "headroom of memory: there are no samples of the node's memory", None
        reclaimed = sum(
            metrics.last(pod.cgroup, Metric.MEMORY_USAGE, self._options.window_s) or 0.0
            for pod in self._reclaimed
        )
        reserved = node.reserved.get("memory", 0) + capacity * self._options.memory_margin_percent // 100
        most_used = max(used.avg, used.last)
        idle = idle_bytes(capacity, most_used, reclaimed, reserved) if is_wanted else 0.0
        hold_s = self._options.hold_s
        memory = regulated_headroom(self.state.memory, idle, HEADROOM_STEP_BYTES, self._now_s, hold_s)
        self.state = replace(self.state, memory=memory)
        others = max(most_used - reclaimed, 0.0) / _GIB
        reason = f"{capacity / _GIB:.1f} GiB, others use {others:.1f}, {reserved / _GIB:.1f} are reserved"
        return reason, memory.amount

    def _numa_memory(self) -> dict[int, float]:
        """What each NUMA node has free; its size where that is not known."""
        windows = self._snapshot.metrics.numa_windows(NODE_CGROUP, self._options.window_s)
        return {
            numa_node: max(0.0, size - windows[numa_node].last) if numa_node in windows else float(size)
            for numa_node, size in self._snapshot.node.memory_bytes.items()
        }

    def _quota(self, supply_cpus: int) -> Iterator[Claim]:
        amount = quota_us(supply_cpus, self._pools.least_reclaim_cpus)
        reason = (
            f"dynamic-quota: {supply_cpus} CPUs that no pool needs, {self._pools.least_reclaim_cpus} at least"
        )
        yield Claim(BE_CLASS, QUOTA, Role.AT_MOST, amount, reason=reason)
        if not self._pools.overlap:
            self.explanations.append("dynamic-quota needs overlap of the pools, which is off")

    def _drops(self) -> Iterator[Claim]:
        """Bounds pods with much page cache for some seconds, if memory is short."""
        dropping = {
            uid: each
            for uid, each in self.state.dropping.items()
            if self._now_s - each.since_s < DROP_PAUSE_S
        }
        self.state = replace(self.state, dropping=dropping)
        if not self._options.drop_cache:
            return
        if self._snapshot.node.cgroup_version != 2:
            self.explanations.append("drop_cache needs cgroup version 2")
            return
        if self._is_memory_short():
            self._begin_drops(dropping)
        there = {pod.uid for pod in self._reclaimed}
        for uid, each in sorted(dropping.items()):
            if uid in there and self._now_s - each.since_s < DROPPING_S:
                reason = "memory is short: page cache that is not in use is dropped"
                target = Target(Level.POD, uid)
                yield Claim(target, MEMORY_HIGH, Role.AT_MOST, each.high_bytes, reason=reason)

    def _is_memory_short(self) -> bool:
        capacity = _memory_bytes(self._snapshot.node)
        used = self._snapshot.metrics.last(NODE_CGROUP, Metric.MEMORY_WITH_CACHE, self._options.window_s)
        if not capacity or used is None:
            return False
        return (capacity - used) * 100 < capacity * self._options.drop_cache_below_percent

    def _begin_drops(self, dropping: dict[str, Dropping]) -> None:
        metrics, length_s = self._snapshot.metrics, self._options.window_s
        found: list[tuple[float, str, int]] = []
        for pod in self._reclaimed:
            with_cache = metrics.last(pod.cgroup, Metric.MEMORY_WITH_CACHE, length_s)
            working_set = metrics.last(pod.cgroup, Metric.MEMORY_WORKING_SET, length_s)
            if with_cache is None or working_set is None or pod.uid in dropping:
                continue
            if with_cache - working_set >= LEAST_CACHE_BYTES:
                found.append((working_set - with_cache, pod.uid, int(working_set)))
        active = sum(self._now_s - each.since_s < DROPPING_S for each in dropping.values())
        for _, uid, high_bytes in sorted(found)[: max(0, MOST_DROPPING - active)]:
            dropping[uid] = Dropping(self._now_s, high_bytes)


def _memory_bytes(node: Node) -> int:
    """The node's memory by its Node object, else by its NUMA nodes; 0: not known."""
    return node.capacity.get("memory", 0) or sum(node.memory_bytes.values())


def _headroom_claim(pool: str, name: PoolField, amount: int, reason: str) -> Claim:
    return Claim(Target(Level.POOL, pool), name, Role.SET, amount, reason=reason)


def _load_or_usage(snapshot: Snapshot, cgroup: str, length_s: float, usage: float) -> float:
    """Return how many tasks of a cgroup with this usage run or wait, the mean of the last `length_s`.

    The load where a source of samples has it. The kernel has none of a cgroup: then it is the usage in cores
    and the share of time under CPU pressure (PSI), in which at least one task waits.
    """
    load = snapshot.metrics.mean(cgroup, Metric.CPU_LOAD, length_s)
    if load is not None:
        return load
    return usage + (snapshot.metrics.mean(cgroup, Metric.CPU_PRESSURE, length_s) or 0.0)
