"""Asks an advisor what it would have said at each moment of a recording, and compares that with the real use.

`[plugins.katalyst-advisor.options] record_folder` makes the recordings, also in dry-run. A replay changes
nothing of what pods did then: it judges an advisor before it acts, and says nothing of what would follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from runtimeproxy.errors import described
from runtimeproxy.katalyst.names import RECLAIM
from runtimeproxy.qosmanager.advisor.recording import RecordedMetrics, moments, snapshot_of
from runtimeproxy.qosmanager.framework import decision_problem
from runtimeproxy.qosmanager.plugin import AnyPlugin, Claim, PluginContext
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Snapshot
from runtimeproxy.vocabulary import PoolField

_LOOK_BACK_S: Final = 1.0


@dataclass(slots=True)
class AdvisorReplay:
    """An advisor's answers on a recording; a number per moment in each series.

    Attributes:
        times_s: Of the moments, by the recording's clock.
        required: By pool, the CPUs that it needs by the advisor; NaN: it said nothing.
        used: By pool, the cores that its pods used.
        headroom: Cores for `reclaimed_cores` by the advisor.
        idle: Cores that everything else left to them.
        problems: Answers that could not be used.
    """

    times_s: list[float] = field(default_factory=list)
    required: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, list[float]] = field(default_factory=dict)
    headroom: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def short(self) -> int:
        """At how many moments a pool used more than it was said to need."""
        return sum(
            used > required
            for name, series in self.required.items()
            for required, used in zip(series, self.used[name], strict=True)
        )

    @property
    def too_much(self) -> int:
        """At how many moments the headroom was larger than what was idle."""
        return sum(said > idle + 1e-6 for said, idle in zip(self.headroom, self.idle, strict=True))


def replayed(lines: Iterable[str], plugin: AnyPlugin, options: dict[str, Any] | None = None) -> AdvisorReplay:
    """Return what an advisor says on a recording.

    Args:
        lines: Of the file.
        plugin: The advisor.
        options: Of its `options_type`.

    Raises:
        ValueError: The recording cannot be read.
    """
    made = plugin.options_type(**(options or {})) if plugin.options_type is not None else None
    state = plugin.setup(PluginContext(gates={}, options=made))
    metrics, replay = RecordedMetrics(), AdvisorReplay()
    for moment in moments(lines):
        try:
            metrics.add(moment)
            snapshot = snapshot_of(moment, metrics)
        except (KeyError, TypeError) as error:
            raise ValueError(f"a moment lacks, or has as another type: {error}") from None
        claims: Iterable[Claim] = ()
        try:
            decision = plugin.run(snapshot, state) if plugin.is_enabled(snapshot) else None
        except Exception as error:  # noqa: BLE001 - code of others
            decision, problem = None, described(error)
        else:
            problem = decision_problem(decision) if decision is not None else ""
        if problem:
            replay.problems.append(problem)
        elif decision is not None:
            state, claims = decision.state, decision.claims
        _add(replay, snapshot, claims)
    return replay


def _add(replay: AdvisorReplay, snapshot: Snapshot, claims: Iterable[Claim]) -> None:
    pools = snapshot.node.cpu_pools
    assert pools is not None  # noqa: S101 - a recording has them
    said = {(each.target.id, each.field): each.value for each in claims if each.target.level is Level.POOL}
    count = len(replay.times_s)
    replay.times_s.append(snapshot.now_s)
    by_pool: dict[str, float] = {}
    reclaimed = 0.0
    for pod in snapshot.pods:
        member = pools.members[pod.uid]
        used = snapshot.metrics.window(pod.cgroup, Metric.CPU_USAGE, _LOOK_BACK_S)
        cores = used.avg if used is not None else 0.0
        by_pool[member.pool] = by_pool.get(member.pool, 0.0) + cores
        reclaimed += cores if member.level == "reclaimed_cores" else 0.0
    names = {name for name, key in said if key == PoolField.REQUIRED_CPUS} | replay.required.keys()
    for name in sorted(names):
        replay.required.setdefault(name, [float("nan")] * count)
        replay.used.setdefault(name, [float("nan")] * count)
        required = said.get((name, PoolField.REQUIRED_CPUS))
        replay.required[name].append(float(required) if required is not None else float("nan"))
        replay.used[name].append(by_pool.get(name, 0.0))
    of_node = snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, _LOOK_BACK_S)
    usable = len(snapshot.node.cpus) - len(pools.reserved_cpus)
    others = (of_node.avg if of_node is not None else 0.0) - reclaimed
    replay.idle.append(max(0.0, usable - max(others, 0.0)))
    replay.headroom.append(float(said.get((RECLAIM, PoolField.HEADROOM_MILLICPU), 0)) / 1_000)
