"""The CPU guard on simulated nodes: what it leaves alone, what it bounds, and how calm it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.guard.law import CALM
from runtimeproxy.testing.node.kernel import CPUS, QUOTA, Workload, constant
from runtimeproxy.testing.node.simulation import SimulatedContainer, SimulatedNode, SimulatedPod
from runtimeproxy.units import CPU_PERIOD_US, parse_cpu_list
from tests.scenarios.guard_family import SETTLING_S, DrawnNode, drawn, most_within, run, without_trials
from tests.scenarios.scenarios import (
    between,
    greedy,
    guard_equal_weights,
    guard_from_the_first_second,
    guard_own_threads,
    guard_surge,
    guard_throttled,
    guard_unreachable,
    guarded_node,
    latency_sensitive,
    service,
    watch_guard,
)

BEST_EFFORT = "/kubepods/besteffort"


def bounds(node: SimulatedNode, after_s: float = 0.0) -> list[float]:
    """The times at which CPUs or quota of the class changed."""
    return sorted({each.at_s for each in node.writes if each.cgroup == BEST_EFFORT and each.at_s > after_s})


def cuts(node: SimulatedNode) -> list[str]:
    """The moments at which rule 1 applied, with its bound."""
    rows = zip(node.times_s, node.series["rule"], node.series["B"], strict=True)
    return [f"{at_s:g}: {bound}" for at_s, rule, bound in rows if rule == 1]


def bound_cores(node: SimulatedNode) -> float:
    """What BE pods may use, by CPUs and by quota."""
    quota = int(node.value(QUOTA))
    cpus = len(parse_cpu_list(str(node.value(CPUS)))) or len(node.facts.cpus)
    return min(quota / CPU_PERIOD_US, cpus) if quota > 0 else cpus


def test_a_pod_throttled_by_its_own_limit_leaves_be_pods_alone() -> None:
    node = guard_throttled(120).node
    assert "blind: throttled by its own limit" in node.explanation("cpu-guard")
    assert cuts(node) == []
    assert max(node.series["w"][30:]) > 100


def test_a_pod_that_waits_behind_its_own_threads_leaves_be_pods_alone() -> None:
    node = guard_own_threads(190).node
    assert cuts(node) == []
    assert bound_cores(node) == 16


def test_greedy_be_pods_from_the_first_second() -> None:
    """Nothing is known of quiet seconds: the default target holds."""
    node = guard_from_the_first_second(160).node
    assert max(node.series["t"]) == min(node.series["t"][40:]) == 20.0
    assert max(node.series["w"][100:]) < 25.0
    assert min(node.series["BE used"][100:]) > 3.0
    assert bounds(node, 100) == []


def test_a_target_that_cannot_be_reached_gives_the_bound_back() -> None:
    """In three steps; then it is tried less and less often."""
    node = guard_unreachable(400).node
    said = node.explanation("cpu-guard")
    assert "futile: default/web for " in said
    series = list(zip(node.series["rule"], node.series["B"], strict=True))
    returns = [number for number in range(1, len(series)) if series[number][0] == 3 != series[number - 1][0]]
    assert returns
    assert all(series[number + 3][0] != 3 for number in returns)
    assert bound_cores(node) >= 6.0
    assert len(bounds(node, 300)) <= 8


def test_at_equal_weights_be_pods_keep_their_floor() -> None:
    """What the service waits falls with what BE pods use: nothing is futile, and nothing changes any more."""
    node = guard_equal_weights(300).node
    assert node.series["B"][-1] == 1.6
    assert "which has an effect" in node.explanation("cpu-guard")
    assert bounds(node, 180) == []
    unbounded, bounded = node.series["w"][120], sum(node.series["w"][-60:]) / 60
    assert bounded * 5 < unbounded


@pytest.mark.slow
def test_a_surge_is_followed_and_forgotten() -> None:
    node = guard_surge(600).node
    before, after = (sum(node.series["BE used"][at_s : at_s + 60]) / 60 for at_s in (230, 530))
    # 16 CPUs without the 5 of the service: half of them, at a target of 5 ms/s.
    assert before > 4.5
    assert after > 4.5
    assert max(node.series["p99"][140:290]) < 1.2 * max(node.series["p99"][30:110])
    assert len(bounds(node, 200)) <= 10
    assert node.kernel.violations == []


def test_unbounded_within_five_minutes_after_the_last_pressure() -> None:
    node = guarded_node(8)
    node.add_pod(service("web", between(2.0, 5.0, 60, 100), request=4_000))
    watch_guard(node, "web")
    greedy(node, 8.0, 0.25)
    node.advance(100)
    assert bound_cores(node) < 8
    for name in ("batch0", "batch1"):
        node.remove_pod(name)
    node.advance(300)
    assert node.value(CPUS) == ""
    assert node.value(QUOTA) == -1


@pytest.mark.slow
def test_250_pods() -> None:
    """No BE pod on a CPU of an LSE pod; the floor is kept; all pods are judged."""
    node = guarded_node(64)
    lse = latency_sensitive("lse", constant(2.0), request=4_000)
    node.add_pod(replace(lse, qos=QoSClass.LSE, cpus=frozenset(range(4))))
    for number in range(166):
        node.add_pod(service(f"web{number}", constant(0.25), request=400, threads=4))
    for number in range(83):
        workload = Workload(cores=constant(1.0))
        pod = SimulatedPod(
            name=f"b{number}", qos=QoSClass.BE, containers=[SimulatedContainer(workload=workload)]
        )
        node.add_pod(pod)
    # They are old enough then.
    node.advance(30, step_s=10)
    for second in range(8):
        node.advance(1)
        assert bound_cores(node) >= 2 or second < 4
        assert not parse_cpu_list(str(node.value(CPUS))) & frozenset(range(4))
    assert "E " in node.explanation("cpu-guard")


SETTLED_S = SETTLING_S + 150
FAMILY = drawn(6, 80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drawn_node", "low"),
    [pytest.param(each, (0.1, 0.0)[n % 2], id=f"{n}-{each.cpus}-cpus") for n, each in enumerate(FAMILY)],
)
def test_properties_on_a_drawn_node(drawn_node: DrawnNode, low: float) -> None:
    """At constant load; then the services' load falls or goes, and BE pods stay."""
    level = [1.0]
    node = drawn_node.start(lambda: level[0])
    exclusive = frozenset({0}) if drawn_node.cpus >= 8 and drawn_node.policy == "none" else frozenset()
    if exclusive:
        # It gives no sample.
        lse = latency_sensitive("lse", constant(0.01), request=1_000)
        node.add_pod(replace(lse, qos=QoSClass.LSE, cpus=exclusive))
    drawn_node.start_greedy(node)
    floor = drawn_node.floor / 1_000
    watched: list[str] = []

    def watch() -> None:
        if bound_cores(node) < floor - 0.001:
            watched.append(f"{node.now_s:g} s: {bound_cores(node)} of {floor}")
        if exclusive and not parse_cpu_list(str(node.value(CPUS))).isdisjoint(exclusive):
            watched.append(f"{node.now_s:g} s: CPUs {node.value(CPUS)}")

    found = run(node, SETTLED_S, watch)
    assert most_within(without_trials(found)) <= 1, found.changes()
    level[0] = low
    calm = run(node, 320, watch)
    pressed = [each.at_s for each in calm.seconds if each.error is not None and each.error >= CALM]
    last_s = max(pressed, default=calm.seconds[0].at_s)
    assert last_s < calm.seconds[0].at_s + 20
    unbounded = [each.at_s for each in calm.seconds if each.bound is None]
    assert unbounded, calm.changes(0)
    assert unbounded[0] <= last_s + 300
    assert watched == []
    assert node.kernel.violations == []
