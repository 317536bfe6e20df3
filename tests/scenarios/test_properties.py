"""What holds for any load: drawn nodes, pods and loads, and the values that are written to their cgroups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.plugins.cpu_burst import CpuBurst
from runtimeproxy.qosmanager.plugins.cpu_suppress import CpuSuppress
from runtimeproxy.qosmanager.snapshot import Cpu, Strategies
from runtimeproxy.slo.schema import CpuSuppressPolicy, PodCpuBurst, Threshold
from runtimeproxy.testing.node.kernel import CPUS, QUOTA, constant
from runtimeproxy.testing.node.simulation import SimulatedNode, SimulatedPod, changes_of_direction
from runtimeproxy.units import parse_cpu_list
from tests.scenarios.scenarios import AUTO, best_effort, latency_sensitive, noisy, quota_cores

SETTINGS = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # A failing run of a node is readable as it is, and takes minutes to shrink.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

cores = st.floats(0, 12).map(lambda value: round(value, 2))
thresholds = st.builds(
    Threshold,
    enable=st.just(True),
    cpu_suppress_policy=st.sampled_from(CpuSuppressPolicy),
    cpu_suppress_threshold_percent=st.integers(0, 100),
    cpu_suppress_min_percent=st.none() | st.integers(0, 100),
)


def node_with(count: int, threshold: Threshold, version: Any, pods: list[SimulatedPod]) -> SimulatedNode:
    cpus = [Cpu(n, n // 2, n * 2 // count, n * 2 // count) for n in range(count)]
    node = SimulatedNode(cpus, plugins=[CpuSuppress(), CpuBurst()], version=version)
    node.strategies = Strategies(threshold=threshold, cpu_burst=AUTO)
    for pod in pods:
        node.add_pod(pod)
    return node


def class_cpus(node: SimulatedNode) -> frozenset[int]:
    return node.kernel.effective_cpus(node.cgroup().path)


@SETTINGS
@given(
    count=st.sampled_from([4, 8, 16]),
    threshold=thresholds,
    version=st.sampled_from([1, 2]),
    loads=st.tuples(cores, cores, cores),
    noise=st.sampled_from([0.0, 0.3]),
    lse=st.frozensets(st.integers(0, 3), max_size=2),
)
def test_best_effort_pods_stay_within_bounds(
    count: int,
    threshold: Threshold,
    version: int,
    loads: tuple[float, float, float],
    noise: float,
    lse: frozenset[int],
) -> None:
    """BE pods never have a CPU of an LSE pod, keep their floor, and get all back in the end."""
    exclusive = replace(latency_sensitive("lse", constant(1.0)), qos=QoSClass.LSE, cpus=lse)
    pods = [
        latency_sensitive("web", noisy(constant(loads[0]), noise, 1)),
        latency_sensitive("api", noisy(constant(loads[1]), noise, 2), 1_000, cpu_burst=AUTO),
        best_effort("batch", loads[2]),
        *([exclusive] if lse else []),
    ]
    node = node_with(count, threshold, version, pods)
    floor = count * (threshold.cpu_suppress_min_percent or 0) / 100
    for _ in range(40):
        node.advance(1)
        assert not class_cpus(node) & lse
        assert node.kernel.effective_cpus(node.cgroup("batch", 0).path) == class_cpus(node)
        quota = int(node.value(QUOTA))
        assert quota == -1 or quota >= max(2_000, int(floor * 100_000) - 100)
        assert len(class_cpus(node)) >= min(max(2, floor), count - len(lse))
        assert int(node.value(QUOTA, "api")) >= int(node.value(QUOTA, "api", 0))
    assert not node.kernel.violations
    node.strategies = Strategies()
    node.set_cpu_burst(PodCpuBurst())
    node.advance(1)
    assert node.value(QUOTA) == -1
    assert (parse_cpu_list(str(node.value(CPUS))) or node.kernel.cpus) == node.kernel.cpus
    assert node.value(QUOTA, "api", 0) == node.value(QUOTA, "api") == 100_000
    assert node.value(QUOTA, "batch", 0) == 800_000


@SETTINGS
@given(
    threshold=thresholds,
    loads=st.tuples(cores, cores, cores),
    limits=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    priorities=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_at_constant_load_all_values_come_to_rest(
    threshold: Threshold,
    loads: tuple[float, float, float],
    limits: tuple[int, int],
    priorities: tuple[int, int],
) -> None:
    """Within five minutes (the last room is given in small steps); no value swings."""
    pods = [
        latency_sensitive(f"api{n}", constant(load), limit * 1_000, cpu_burst=AUTO, priority=priority)
        for n, (load, limit, priority) in enumerate(zip(loads, limits, priorities, strict=False))
    ]
    node = node_with(16, threshold, 2, [*pods, best_effort("batch", loads[2])])
    for pod in pods:
        node.watch(pod.name, lambda name=pod.name: quota_cores(node, name))  # type: ignore[misc]
    node.watch("quota", lambda: int(node.value(QUOTA)))
    node.watch("cpus", lambda: len(class_cpus(node)))
    node.advance(300)
    written = len(node.writes)
    node.advance(30)
    assert len(node.writes) == written
    for name, values in node.series.items():
        # Work that waits from the start, and burst beside suppression, turn a value a few times.
        assert changes_of_direction(values) <= 4, name
