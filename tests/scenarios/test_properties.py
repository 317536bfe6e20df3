"""What holds for any load: drawn nodes, pods and loads, and the values that are written to their cgroups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups.order import Key
from runtimeproxy.fields.formats import Value
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.plugins.cpu_burst import CpuBurstPlugin
from runtimeproxy.qosmanager.plugins.cpu_evict import CpuEvict
from runtimeproxy.qosmanager.plugins.cpu_suppress import CpuSuppress
from runtimeproxy.qosmanager.plugins.memory_evict import MemoryEvict
from runtimeproxy.qosmanager.snapshot import Cpu, Snapshot, Strategies
from runtimeproxy.slo.schema import CpuSuppressPolicy, PodCpuBurst, Threshold
from runtimeproxy.testing.node.kernel import BURST, CPUS, QUOTA, OverTime, Workload, constant
from runtimeproxy.testing.node.simulation import SimulatedNode, changes_of_direction
from runtimeproxy.units import CPU_PERIOD_US
from tests.scenarios.scenarios import AUTO, best_effort, growing, latency_sensitive, noisy, quota_cores

SETTINGS: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    # A failing run of a node is readable as it is, and takes minutes to shrink.
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
}
CEILING = 3
"""Of a quota, in limits, by `AUTO`."""
GROWTH = 0.1
"""Of the node: what BE pods get back in a second. Source: cpu_suppress.go, beMaxIncreaseCPUPercent."""
GROWN_S = 12
"""After which all can be given back."""

cores = st.floats(0, 12).map(lambda value: round(value, 2))
thresholds = st.builds(
    Threshold,
    enable=st.just(True),
    cpu_suppress_policy=st.sampled_from(CpuSuppressPolicy),
    cpu_suppress_threshold_percent=st.integers(0, 100),
    cpu_suppress_min_percent=st.none() | st.integers(0, 100),
)
sections = st.fixed_dictionaries(
    {
        "web": cores,
        "api": cores,
        "system": st.floats(0, 1.5),
        "threshold": thresholds,
        "lse": st.frozensets(st.integers(0, 7), max_size=4),
    }
)
"""For a time: loads in cores, the strategy, and the CPUs of an LSE pod; empty for none."""


def section(web: float, policy: CpuSuppressPolicy, **fields: Any) -> Mapping[str, Any]:
    """An LS pod with a load, on a node whose pods may use 70 % of it."""
    threshold = Threshold(enable=True, cpu_suppress_policy=policy, cpu_suppress_threshold_percent=70)
    given_: dict[str, Any] = {"lse": frozenset(), **fields}
    return {"web": web, "api": 0.0, "system": 0.0, "threshold": threshold, **given_}


class Run:
    """A node with LS and BE pods, whose loads, strategy and LSE pod are changed while it runs."""

    def __init__(self, count: int, version: Any) -> None:
        cpus = [Cpu(n, n // 2, n * 2 // count, n * 2 // count) for n in range(count)]
        self.node = SimulatedNode(cpus, plugins=[CpuSuppress(), CpuBurstPlugin()], version=version)
        self.count = count
        self.section: Mapping[str, Any] = {}
        self.lse: frozenset[int] = frozenset()
        self.node.kernel.system_cores = self.load("system")
        self.node.add_pod(latency_sensitive("web", self.load("web")))
        api = latency_sensitive("api", self.load("api"), 1_000, cpu_burst=AUTO)
        beside = replace(api.containers[0], name="beside", limits={"cpu": 500})
        self.node.add_pod(replace(api, containers=[*api.containers, beside]))
        for name in ("batch", "crawler"):
            self.node.add_pod(best_effort(name, 2.0 * count, count * 1_000))

    def load(self, name: str) -> OverTime:
        return lambda _elapsed_s: self.section.get(name, 0.0)

    def begin(self, section: Mapping[str, Any]) -> None:
        if self.lse:
            self.node.remove_pod("lse")
        # Never all CPUs of the node.
        self.lse = frozenset(cpu for cpu in section["lse"] if cpu < self.count - 1)
        self.section = section
        if self.lse:
            exclusive = latency_sensitive("lse", constant(0.5), request=1_000)
            self.node.add_pod(replace(exclusive, qos=QoSClass.LSE, cpus=self.lse))
        self.node.strategies = Strategies(threshold=section["threshold"], cpu_burst=AUTO)

    def values(self) -> dict[Key, Value]:
        """All values that plugins may change."""
        kernel = self.node.kernel
        names = (QUOTA, BURST, CPUS)
        return {Key(path, name): kernel.value(path, name) for path in kernel.cgroups for name in names}


def be_cpus(node: SimulatedNode) -> frozenset[int]:
    return node.kernel.effective_cpus(node.cgroup().path)


def be_bound(node: SimulatedNode) -> float:
    """What BE pods together may use, in cores."""
    quota = int(node.value(QUOTA))
    return min(quota / CPU_PERIOD_US if quota != -1 else math.inf, len(be_cpus(node)))


def shared_room(node: SimulatedNode) -> float:
    """What LS pods and the system leave of nine tenths of the threshold of burst (50 %), in cores."""
    total = len(node.kernel.cpus) - any(pod.qos is QoSClass.LSE for pod in node.pods)
    return 0.45 * total - (node.kernel.used_cores - node.used_cores() - node.used_cores("lse"))


def same_bounds(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    policies = [each["threshold"].cpu_suppress_policy for each in (one, other)]
    return policies[0] is policies[1] and one["lse"] == other["lse"]


class Expected(NamedTuple):
    """The bound of all BE pods together, in cores."""

    least: float
    """Whatever the load is."""
    wanted: float
    most: float


def expected(node: SimulatedNode, threshold: Threshold, lse: frozenset[int] = frozenset()) -> Expected:
    """By what others leave of the threshold in this second; a hundredth of the node is left out."""
    count = len(node.kernel.cpus)
    allowed = count - len(lse)
    floor = count * (threshold.cpu_suppress_min_percent or 0) / 100
    others = node.kernel.used_cores - node.used_cores()
    left = count * threshold.cpu_suppress_threshold_percent / 100 - others
    if threshold.cpu_suppress_policy is CpuSuppressPolicy.CFS_QUOTA:
        least, slack = max(floor, 0.02), 0.0101 * count
        wanted = max(left, least)
        return Expected(min(least, allowed), min(wanted - slack, allowed), wanted + slack)
    least = max(math.ceil(floor), 2)
    # The last CPU is given if more than a quarter of it is left.
    wanted, most = max(left - 0.26, least), max(math.ceil(left + 0.01), least)
    return Expected(min(least, allowed), min(wanted, allowed), most)


def check_burst(node: SimulatedNode, before: Mapping[Key, Value]) -> None:
    """Quotas stay within limit and ceiling, a pod has the sum of them, and no more than the room is given."""
    grown = 0.0
    quotas = [int(node.value(QUOTA, "api", n)) for n in range(2)]
    for n, (quota, limit) in enumerate(zip(quotas, (100_000, 50_000), strict=True)):
        assert limit <= quota <= CEILING * limit
        grown += max(quota - int(before[Key(node.cgroup("api", n).path, QUOTA)]), 0) / CPU_PERIOD_US
    assert grown <= max(shared_room(node), 0.0) + 1e-4
    assert int(node.value(QUOTA, "api")) == sum(quotas)


CPUSET, CFS_QUOTA = CpuSuppressPolicy.CPUSET, CpuSuppressPolicy.CFS_QUOTA


@settings(max_examples=60, **SETTINGS)
@given(
    count=st.sampled_from([1, 2, 4, 8, 16]),
    version=st.sampled_from([1, 2]),
    sections=st.lists(sections, min_size=1, max_size=4),
)
@example(count=16, version=2, sections=[section(12.0, CPUSET), section(0.0, CPUSET)])
@example(count=16, version=1, sections=[section(12.0, CFS_QUOTA), section(0.0, CFS_QUOTA)])
# As many CPUs are left as an LSE pod leaves, which is less than a step, or the floor.
@example(
    count=16, version=2, sections=[section(12.0, CPUSET), section(0.0, CPUSET, lse=frozenset(range(13)))]
)
def test_bounds_follow_the_load_and_all_is_given_back(
    count: int, version: int, sections: list[Mapping[str, Any]]
) -> None:
    """BE pods never have a CPU of an LSE pod, have what others leave and the floor, and all in the end."""
    run = Run(count, version)
    node, without = run.node, run.values()
    step = math.ceil(GROWTH * count)
    for section, last in zip(sections, [None, *sections], strict=False):
        run.begin(section)
        # Another policy begins with its own bound, and what was an LSE pod's comes back at once.
        is_same = last is not None and same_bounds(last, section)
        for second in range(GROWN_S + 3):
            before, bound_before = run.values(), be_bound(node)
            node.advance(1)
            bound, wanted = be_bound(node), expected(node, section["threshold"], run.lse)
            assert not be_cpus(node) & run.lse
            assert node.kernel.effective_cpus(node.cgroup("batch", 0).path) == be_cpus(node)
            assert wanted.least - 1e-3 <= bound <= wanted.most + 1e-3
            if second or is_same:
                assert bound <= max(bound_before + step, wanted.least) + 1e-3
            if second >= GROWN_S:
                assert bound >= wanted.wanted - 1e-3
            check_burst(node, before)
    run.begin({**sections[-1], "lse": frozenset()})
    node.strategies = Strategies()
    node.set_cpu_burst(PodCpuBurst())
    node.advance(1)
    assert run.values() == without
    assert not node.kernel.violations


@pytest.mark.slow
@settings(max_examples=10, **SETTINGS)
@given(
    threshold=thresholds,
    loads=st.tuples(cores, cores, cores, st.floats(0, 12)),
    limits=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    priorities=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    noise=st.sampled_from([0.0, 0.002]),
)
# 6 CPUs are left, or a little more.
@example(
    threshold=Threshold(enable=True, cpu_suppress_policy=CPUSET, cpu_suppress_threshold_percent=65),
    loads=(0.0, 0.0, 4.4, 12.0),
    limits=(1, 1),
    priorities=(0, 0),
    noise=0.002,
)
def test_at_constant_load_all_values_come_to_rest(
    threshold: Threshold,
    loads: tuple[float, float, float, float],
    limits: tuple[int, int],
    priorities: tuple[int, int],
    noise: float,
) -> None:
    """Within five minutes (the last room is given in small steps) at the right value; none swings."""
    node = SimulatedNode(16, plugins=[CpuSuppress(), CpuBurstPlugin()])
    node.strategies = Strategies(threshold=threshold, cpu_burst=AUTO)
    for n in range(2):
        name, load = f"api{n}", noisy(constant(loads[n]), noise, n)
        node.add_pod(latency_sensitive(name, load, limits[n] * 1_000, cpu_burst=AUTO, priority=priorities[n]))
        node.watch(name, lambda name=name: quota_cores(node, name))  # type: ignore[misc]
    node.add_pod(latency_sensitive("web", noisy(constant(loads[2]), noise, 2)))
    node.add_pod(best_effort("batch", loads[3]))
    node.watch("BE", lambda: be_bound(node))
    node.advance(300)
    written = len(node.writes)
    node.advance(30)
    assert len(node.writes) == written
    wanted = expected(node, threshold)
    assert wanted.wanted - 0.1 <= be_bound(node) <= wanted.most + 0.1
    for n in range(2):
        quota, container = quota_cores(node, f"api{n}"), node.cgroup(f"api{n}", 0)
        if quota < CEILING * limits[n] and container.wanted_cores > quota:
            # It would have more, and not even a step of a fiftieth is left.
            assert shared_room(node) < 0.02 * limits[n] + 0.3 * bool(noise)
        if quota > limits[n]:
            assert shared_room(node) > -0.8
    # Work that waits from the start, and burst beside suppression, turn the bound of BE pods some times.
    assert {name: changes_of_direction(node.series[name]) for name in ("api0", "api1")} == {
        "api0": 0,
        "api1": 0,
    }
    assert changes_of_direction(node.series["BE"]) <= 3


def test_decisions_do_not_depend_on_the_wall_clock() -> None:
    """It is set forward and back, by seconds and by years."""

    class Jumping(SimulatedNode):
        def snapshot(self) -> Snapshot:
            jumps = (0.0, 60.0, -3_600.0, 1e9, -1e9)
            return replace(super().snapshot(), wall_s=self.now_s + jumps[int(self.now_s) % len(jumps)])

    runs: list[SimulatedNode] = []
    for kind in (SimulatedNode, Jumping):
        node = kind(
            16,
            memory_bytes=16 << 30,
            plugins=[CpuSuppress(), CpuBurstPlugin(), CpuEvict(), MemoryEvict()],
            gates={"BECPUEvict": True, "BEMemoryEvict": True},
        )
        node.strategies = Strategies(
            threshold=Threshold(
                enable=True,
                cpu_evict_be_satisfaction_lower_percent=30,
                cpu_evict_be_satisfaction_upper_percent=40,
                memory_evict_threshold_percent=80,
            ),
            cpu_burst=AUTO,
        )
        node.add_pod(latency_sensitive("web", noisy(constant(8.0), 0.2, 1)))
        node.add_pod(latency_sensitive("api", noisy(constant(2.0), 0.3, 2), 1_000, cpu_burst=AUTO))
        for number in range(3):
            pod = best_effort(f"batch{number}", 8.0)
            used = Workload(cores=constant(8.0), memory_bytes=growing(18.0 + number))
            node.add_pod(replace(pod, containers=[replace(pod.containers[0], workload=used)]))
        node.advance(240)
        runs.append(node)
    assert runs[0].evictions
    assert runs[0].evictions == runs[1].evictions
    assert runs[0].writes == runs[1].writes
