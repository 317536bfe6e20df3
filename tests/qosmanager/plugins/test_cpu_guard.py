"""The plugin cpu-guard: from samples to claims, and what it shares with CPU suppress and CPU evict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.qosmanager.framework import decision_problem
from runtimeproxy.qosmanager.guard.law import LawState
from runtimeproxy.qosmanager.guard.reading import be_cores, is_guarded, loads_of, workload_of
from runtimeproxy.qosmanager.guard.state import GuardState
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    CPUS,
    QUOTA,
    Claim,
    Decision,
    PluginContext,
    Role,
)
from runtimeproxy.qosmanager.plugins.cpu_guard import MOST_SLICED, CpuGuardOptions, CpuGuardPlugin
from runtimeproxy.qosmanager.plugins.cpu_suppress import CpuSuppress, SuppressState
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Level,
    Metric,
    Metrics,
    Pod,
    Snapshot,
    Strategies,
    Window,
)
from runtimeproxy.slo.schema import CpuGuard, PodCpuGuard, Threshold
from runtimeproxy.units import CPU_PERIOD_US, MAX_INT64, parse_cpu_list
from tests.qosmanager.snapshots import BEST_EFFORT, BURSTABLE, container_of, node_of, pod_of, values_of

WEB = pod_of("web")
BATCH = pod_of("batch", QoSClass.BE)
CLASSES = {
    KubeQoSClass.GUARANTEED: "/kubepods",
    KubeQoSClass.BURSTABLE: BURSTABLE,
    KubeQoSClass.BEST_EFFORT: BEST_EFFORT,
}
ON = CpuGuard(enable=True)
_BE = (BE_CLASS.level, BE_CLASS.id)


class Seconds(Metrics):
    """Samples of each second, as a test says them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.found: dict[tuple[str, Metric], list[tuple[float, float]]] = {}
        self.problems: dict[Metric, str] = {}

    def add(self, cgroup: str, metric: Metric, value: float) -> None:
        found = self.found.setdefault((cgroup, metric), [])
        found.append((self.now_s, value))
        del found[:-15]

    def timed(self, cgroup: str, metric: Metric, length_s: float) -> Sequence[tuple[float, float]]:
        return [each for each in self.found.get((cgroup, metric), ()) if each[0] > self.now_s - length_s]

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        values = [value for _, value in self.timed(cgroup, metric, length_s)]
        if not values:
            return None
        high = max(values)
        return Window(values[-1], sum(values) / len(values), high, high, high, high, len(values))

    def absence(self, cgroup: str, metric: Metric) -> str:
        return self.problems.get(metric, "")


class Guarded:
    """A node with one guarded pod and one BE pod, second by second."""

    def __init__(
        self,
        cpus: int = 4,
        strategy: CpuGuard = ON,
        *,
        pods: Sequence[Pod] = (WEB, BATCH),
        held: Sequence[Claim] = (),
        options: CpuGuardOptions | None = None,
        **fields: Any,
    ) -> None:
        self.plugin = CpuGuardPlugin()
        self.metrics = Seconds()
        self.node = node_of(cpus, **{"qos_cgroups": CLASSES, "features": frozenset({"idle"}), **fields})
        self.strategies = Strategies(cpu_guard=strategy)
        self.pods = tuple(pods)
        self.be_limit_cores: float | None = None
        self.state: GuardState = self.plugin.setup(PluginContext(gates={}, held=held, options=options))
        self.decision: Decision[GuardState] = Decision(self.state)
        self.be_cores = 2.0
        self.is_dry_run = False
        self.node_cores: float | None = None
        self.metric = Metric.CPU_PRESSURE_FULL

    def second(
        self,
        waited: float | None,
        *,
        used: float = 1.0,
        throttled: Mapping[str, float] | None = None,
        elapsed_s: float = 1.0,
        be_is_read: bool = True,
    ) -> Decision[GuardState]:
        """A second passes in which the guarded pod waits so long (a share), and it decides."""
        metrics = self.metrics
        metrics.now_s += elapsed_s
        if waited is not None:
            metrics.add(WEB.cgroup, self.metric, waited)
        metrics.add(WEB.cgroup, Metric.CPU_USAGE, used)
        for cgroup, share in (throttled or {}).items():
            metrics.add(cgroup, Metric.CPU_THROTTLED, share)
        got, bound, quota_us = self.be_cores, self.state.law.bound, self.quota_us()
        if bound is not None and not self.is_dry_run:
            got = min(got, bound / 1_000)
        if isinstance(quota_us, int) and not self.is_dry_run:
            got = min(got, quota_us / CPU_PERIOD_US)
        if self.node_cores is not None:
            metrics.add(NODE_CGROUP, Metric.CPU_USAGE, self.node_cores)
        if be_is_read:
            metrics.add(BEST_EFFORT, Metric.CPU_USAGE, got)
        self.decision = self.plugin.run(self.snapshot(), self.state)
        self.state = self.decision.state
        return self.decision

    def remember(self, **fields: Any) -> None:
        """Changes what it remembers, in place of hours."""
        self.state = replace(self.state, **fields)

    def seconds(self, waits: Sequence[float | None], **arguments: Any) -> list[int | None]:
        """The bounds after each of these seconds."""
        found = list[int | None]()
        for each in waits:
            self.second(each, **arguments)
            found.append(self.state.law.bound)
        return found

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now_s=self.metrics.now_s,
            wall_s=self.metrics.now_s,
            pods=self.pods,
            node=self.node,
            strategies=self.strategies,
            metrics=self.metrics,
            be_limit_cores=self.be_limit_cores,
        )

    def quota_us(self) -> int | str | None:
        return values_of(self.decision.claims, QUOTA, Role.AT_MOST).get(_BE)

    @property
    def cpus(self) -> frozenset[int] | None:
        value = values_of(self.decision.claims, CPUS, Role.AT_MOST).get(_BE)
        return None if value is None else parse_cpu_list(str(value))


def test_it_is_off_without_a_strategy() -> None:
    assert not CpuGuardPlugin().is_enabled(Snapshot(now_s=0.0))
    assert CpuGuardPlugin().is_enabled(Snapshot(now_s=0.0, strategies=Strategies(cpu_guard=ON)))


def test_waits_above_the_target_bound_be_pods() -> None:
    node = Guarded()
    # 40 ms/s of 20 is an error of 2: a quarter less than the 2 cores that BE pods use.
    assert node.seconds([0.04] * 4) == [None, None, None, 1_500]
    assert node.quota_us() == 150_000
    assert node.decision.is_guarding
    assert node.cpus is None
    text = node.decision.explanation
    for part in (
        "rule 1: 2000m less 25%, at least 400m = 1500m",
        "E 2.00 of default/web, B 1500m, B_bad 2000m, F 400m",
        "default/web: w 40.0, t 20.0 ms/s (default: 0 of 60 quiet seconds at this load), e 2.00",
    ):
        assert part in text
    assert node.decision.claims[0].reason.startswith("rule 1: ")


def test_the_load_of_the_pod_that_waited() -> None:
    """The law asks for it after the wait, too; a pod that is gone has none."""
    node, law = Guarded(), LawState(bad_pod=WEB.uid)
    assert loads_of(node.snapshot(), law, {}) == {}, "not known yet"
    node.second(0.0, used=0.5)
    assert loads_of(node.snapshot(), law, {}) == {WEB.uid: 500.0}
    assert loads_of(node.snapshot(), LawState(), {WEB.uid: 1.5}).get(WEB.uid) == 500.0
    node.pods = (BATCH,)
    assert loads_of(node.snapshot(), law, {}) == {WEB.uid: 0.0}


def test_start_up_boosts_end_while_a_pod_waits_but_not_for_one_that_waits_for_itself() -> None:
    node = Guarded()
    node.seconds([0.04] * 3)
    assert node.decision.waiting_pods == frozenset()
    node.second(0.04)
    assert node.decision.waiting_pods == {"web"}
    node.remember(law=replace(node.state.law, futile={"web": node.metrics.now_s + 300}))
    assert node.second(0.04).waiting_pods == frozenset()
    node.remember(law=LawState())
    assert node.seconds([0.0] * 3)
    assert node.decision.waiting_pods == frozenset()


def test_a_small_wait_bounds_nothing() -> None:
    node = Guarded()
    assert set(node.seconds([0.019] * 60)) == {None}
    assert [each for each in node.decision.claims if each.target == BE_CLASS] == []


def test_the_bound_goes_when_nothing_waits_any_more() -> None:
    node = Guarded()
    node.seconds([0.08] * 4)
    assert node.seconds([0.0] * 300)[-1] is None
    assert node.quota_us() is None


def test_run_delay_where_there_is_no_pressure() -> None:
    node = Guarded()
    node.metric = Metric.CPU_RUN_DELAY
    assert node.seconds([0.4] * 4)[-1] == 1_500
    assert "w 400.0, t 200.0 permille run delay" in node.decision.explanation


def test_threads_are_read_of_pods_without_pressure_the_busiest_first() -> None:
    other = pod_of("other")
    node = Guarded(pods=[BATCH, other, WEB])
    node.metrics.add(other.cgroup, Metric.CPU_USAGE, 3.0)
    assert node.second(None).threads_of == (other.cgroup, WEB.cgroup)
    assert node.second(0.0).threads_of == (other.cgroup,)
    node.strategies = Strategies(cpu_guard=CpuGuard(enable=True, feedback=False))
    assert node.second(0.0).threads_of == ()


@pytest.mark.parametrize("cgroup", [WEB.cgroup, WEB.containers[0].cgroup, BURSTABLE, "/kubepods"])
def test_a_throttled_pod_changes_nothing(cgroup: str) -> None:
    node = Guarded()
    assert set(node.seconds([0.5] * 30, throttled={cgroup: 0.1})) == {None}
    assert "blind: throttled by its own limit, or by one above (1 pods)" in node.decision.explanation
    assert not node.decision.is_guarding


def test_throttled_be_pods_are_no_reason() -> None:
    node = Guarded()
    assert node.seconds([0.04] * 4, throttled={BEST_EFFORT: 0.9})[-1] == 1_500


@pytest.mark.parametrize(
    ("pod", "arguments", "reason"),
    [
        (WEB, {"used": 0.01}, "used less than 20 ms of CPU"),
        (WEB, {"elapsed_s": 1.6}, "the pass took too short or too long"),
        (pod_of("web", created_s=-5.0), {}, "younger than 30 s"),
        (pod_of("web", is_boosted=True), {}, "its start is boosted"),
    ],
)
def test_what_is_no_sample(pod: Pod, arguments: dict[str, Any], reason: str) -> None:
    node = Guarded(pods=[pod, BATCH])
    assert set(node.seconds([0.5] * 15, **arguments)) == {None}
    assert reason in node.decision.explanation
    assert node.decision.pod_notes[f"no sample: {reason}"] == ["web"]


def test_passes_that_are_never_a_second_apart_are_a_problem_of_the_plugin() -> None:
    """Another interval by the configuration: it would be blind for good."""
    node = Guarded()
    node.seconds([0.01] * 5, elapsed_s=2.0)
    assert node.decision.problem == ""
    node.second(0.01, elapsed_s=2.0)
    assert "samples are not about a second apart: qosmanager.interval_s" in node.decision.problem


def test_a_pod_of_the_class_that_is_bounded_bounds_nothing() -> None:
    """An LS pod without requests: with less for BE pods it would wait more."""
    inside = pod_of("inside", kube_qos=KubeQoSClass.BEST_EFFORT)
    node = Guarded(pods=[WEB, BATCH, inside])
    for _ in range(10):
        node.metrics.add(inside.cgroup, Metric.CPU_USAGE, 1.0)
        node.metrics.add(inside.cgroup, Metric.CPU_PRESSURE_FULL, 0.9)
        assert node.seconds([0.0]) == [None]
    reason = "no sample: of the class BestEffort itself, which would be bounded"
    assert node.decision.pod_notes[reason] == ["inside"]


def test_pods_that_are_there_twice_or_have_no_uid() -> None:
    """A decision with two claims for one value, or with one for nothing, is left out as a whole."""
    pods = [WEB, BATCH, *(replace(each, sandbox_id="sandbox-again") for each in (WEB, BATCH))]
    pods += [replace(each, sandbox_id=f"sandbox-{each.name}-of-none", uid="") for each in (WEB, BATCH)]
    strategy, features = CpuGuard(enable=True, slice=True), frozenset({"idle", "slice"})
    node = Guarded(pods=pods, strategy=strategy, features=features)
    assert decision_problem(node.second(0.0)) == ""
    assert values_of(node.decision.claims, "cpu.idle", Role.SET) == {(Level.POD, "batch"): 1}
    assert sliced(node) == {"web"}


def test_usage_of_be_pods_whose_class_is_not_known() -> None:
    """Nothing read is not the same as nothing used: such seconds would count as quiet."""
    node = Guarded(qos_cgroups={})
    assert set(node.seconds([0.04] * 5)) == {None}
    assert be_cores(node.snapshot()) == (None, None)
    assert len(node.state.history) == 0
    node.metrics.add(BATCH.cgroup, Metric.CPU_USAGE, 1.5)
    assert be_cores(node.snapshot()) == (1.5, 1.5)
    node.pods = (WEB,)
    assert be_cores(node.snapshot()) == (0.0, 0.0)


def test_what_is_said_of_each_pod() -> None:
    node = Guarded(pods=[WEB, BATCH, pod_of("none", QoSClass.NONE)])
    node.seconds([0.04] * 2)

    def notes() -> dict[str, str]:
        return {uid: text for text, uids in node.decision.pod_notes.items() for uid in uids}

    # The first second is of an unknown length.
    assert notes()["web"] == "1 of 3 samples so far"
    node.seconds([0.04] * 2)
    wait = "w 40.0, t 20.0 ms/s (default: 0 of 60 quiet seconds at this load), e 2.00"
    assert notes() == {
        "web": f"{wait}; BE pods are bounded by what it waits",
        "batch": f"BE pods together: {node.decision.claims[0].reason}",
    }
    node.metrics.problems = {Metric.CPU_PRESSURE_FULL: "PSI is off"}
    node.seconds([None] * 10)
    assert notes()["web"] == "no sample: nothing was read: PSI is off"
    assert notes()["batch"].startswith("BE pods together: blind: nothing was read (1 pods): PSI is off; ")


def test_what_the_hypervisor_takes_is_said() -> None:
    node = Guarded()
    for steal in (0.0, 0.018):
        node.metrics.add(NODE_CGROUP, Metric.CPU_STEAL, steal)
        assert "hypervisor" not in node.second(0.002).explanation
    node.metrics.add(NODE_CGROUP, Metric.CPU_STEAL, 0.072)
    assert "the hypervisor takes 30 ms of CPU time a second (steal)" in node.second(0.002).explanation


def test_pods_that_wait_for_themselves_are_named() -> None:
    node = Guarded()
    node.seconds([0.04] * 4)
    now_s = node.metrics.now_s
    others = {f"other-{number}": now_s + 60 for number in range(3)}
    node.remember(law=replace(node.state.law, futile={**others, "web": now_s + 301}, settled={}))
    node.second(0.04)
    said = node.decision.explanation.split("; ")
    assert {"futile: other-0 for 59 s: it waits, but not behind BE pods", "futile: 1 more pods"} <= set(said)
    (note,) = (text for text, uids in node.decision.pod_notes.items() if uids == ["web"])
    assert note.endswith("e 2.00; futile for 300 s: it waits, but not behind BE pods")


def test_a_pod_that_is_old_enough_counts() -> None:
    node = Guarded(pods=[pod_of("web", created_s=-5.0), BATCH])
    assert any(node.seconds([0.5] * 40))


def test_a_clock_that_was_set_back_makes_no_pod_younger() -> None:
    node = Guarded(pods=[pod_of("web", created_s=1e9), BATCH])
    bounds = node.seconds([0.5] * 40)
    assert set(bounds[:30]) == {None}
    assert any(bounds[30:])


def test_a_floor_that_grows_raises_the_bound() -> None:
    """By the strategy, while it sees and while it is blind; or below the bound of the process before."""
    more = Strategies(cpu_guard=CpuGuard(enable=True, floor_millicores=1_500))
    node = Guarded()
    assert node.seconds([0.08] * 4)[-1] == 1_000
    node.strategies = more
    assert node.seconds([0.08]) == [1_500]
    node = Guarded()
    assert node.seconds([*[0.08] * 4, *[None] * 12])[-1] == 1_000
    node.strategies = more
    node.second(None)
    assert (node.state.law.bound, node.quota_us()) == (1_500, 150_000)
    node = Guarded(held=[Claim(BE_CLASS, QUOTA, Role.AT_MOST, 20_000)])
    node.second(None)
    assert (node.state.law.bound, node.quota_us()) == (400, 40_000)


def test_a_floor_of_more_than_the_node_has() -> None:
    node = Guarded(strategy=CpuGuard(enable=True, floor_millicores=MAX_INT64))
    node.seconds([0.08] * 4)
    assert decision_problem(node.decision) == ""
    assert node.quota_us() == 400_000


def test_blind_it_holds_and_gives_back() -> None:
    node = Guarded()
    node.seconds([0.04] * 4)
    bounds = node.seconds([None] * 9)
    assert set(bounds) == {1_500}
    node.metrics.problems = {Metric.CPU_PRESSURE_FULL: "PSI is off"}
    node.second(None)
    assert (
        "blind: nothing was read (1 pods): PSI is off; 1500m is held for 60 s more"
        in node.decision.explanation
    )
    assert set(node.seconds([None] * 59)) == {1_500}
    is_held = node.decision.is_guarding
    later = node.seconds([None] * 150)
    assert later[0] == 1_700
    assert (is_held, node.decision.is_guarding) == (True, False)
    assert later[-1] is None


def test_what_cannot_be_read_in_any_way_is_a_problem_of_the_plugin() -> None:
    node = Guarded()
    node.metrics.problems = {Metric.CPU_PRESSURE_FULL: "PSI is off"}
    # Threads may tell it.
    assert node.second(None).problem == ""
    node.metrics.problems[Metric.CPU_RUN_DELAY] = "no schedstat"
    assert node.second(None).problem == (
        "BE pods are not bounded, as it cannot be read what others wait: PSI is off; no schedstat"
    )
    node.pods = (BATCH,)
    assert node.second(None).problem == ""
    node.pods = (WEB, BATCH)
    node.strategies = Strategies(cpu_guard=CpuGuard(enable=True, feedback=False))
    assert node.second(None).problem == ""
    node.strategies = Strategies(cpu_guard=ON)
    node.metric = Metric.CPU_RUN_DELAY
    node.seconds([0.1] * 2)
    assert node.decision.problem == ""


def test_unknown_usage_of_be_pods_is_a_problem_of_the_plugin() -> None:
    node = Guarded()
    problems = list[str]()
    for _ in range(12):
        node.second(0.01, be_is_read=False)
        problems.append(node.decision.problem)
    assert problems[:10] == [""] * 10
    assert problems[-1] == "BE pods are not bounded, as it cannot be read what they use"
    assert "blind: what BE pods use is not known" in node.decision.explanation
    node.pods = (WEB,)
    assert node.second(0.01, be_is_read=False).problem == ""


def test_cpu_suppress_claims_when_a_blind_guard_holds_no_bound() -> None:
    """At once without one; else when the hold has ended, beside what is given back in steps."""
    node, suppress = Guarded(), CpuSuppress()
    node.node_cores = 3.0
    node.strategies = Strategies(threshold=Threshold(enable=True), cpu_guard=ON)
    state = suppress.setup(PluginContext(gates={}))

    def suppresses() -> bool:
        nonlocal state
        decision = suppress.run(replace(node.snapshot(), is_guarded=node.decision.is_guarding), state)
        state = decision.state
        assert ("cpu-guard" in decision.explanation) is node.decision.is_guarding
        return bool(decision.claims)

    node.second(None)
    assert (suppresses(), node.quota_us()) == (True, None)
    assert node.decision.explanation.startswith(
        "blind: nothing was read (1 pods); nothing is bounded; CPU suppress bounds BE pods"
    )
    node.seconds([0.04] * 4)
    assert (suppresses(), node.quota_us()) == (False, 150_000)
    node.seconds([None] * 9)
    assert not suppresses()
    node.second(None)
    assert (
        "; 1500m is held for 60 s more, and CPU suppress claims nothing until then"
        in node.decision.explanation
    )
    held = list[bool]()
    for _ in range(60):
        held.append(suppresses())
        assert node.quota_us() == 150_000
        node.second(None)
    assert held == [False] * 60
    assert (suppresses(), node.quota_us()) == (True, 170_000)
    assert "; given back in steps: 1700m; CPU suppress bounds BE pods beside it" in node.decision.explanation
    # It sees again, and goes on from the smaller one of both.
    node.be_limit_cores = 1.0
    node.seconds([0.018] * 2)
    assert (suppresses(), node.quota_us()) == (False, 100_000)


def test_a_guard_that_holds_its_bound_keeps_be_pods_off_cpus_of_lse_pods() -> None:
    """CPU suppress, which does so else, claims nothing."""
    lse = pod_of("lse", QoSClass.LSE, cpus=frozenset({0, 1}), kube_qos=KubeQoSClass.GUARANTEED)
    node = Guarded(pods=[WEB, BATCH, lse])
    node.strategies = Strategies(threshold=Threshold(enable=True), cpu_guard=ON)
    node.seconds([0.04] * 4)
    assert (node.quota_us(), node.cpus) == (150_000, frozenset({2, 3}))
    node.seconds([None] * 69)
    assert (node.decision.is_guarding, node.quota_us(), node.cpus) == (True, 150_000, frozenset({2, 3}))
    node.second(None)
    assert (node.decision.is_guarding, node.cpus) == (False, None)


def test_without_guarded_pods_it_is_blind() -> None:
    node = Guarded(pods=[BATCH])
    node.second(None)
    assert "blind: there is no LS, LSR or LSE pod" in node.decision.explanation
    assert node.decision.claims == ()


def test_be_pods_beside_a_guarded_one_yield() -> None:
    batch_resources = pod_of(
        "spark", QoSClass.BE, containers=(container_of("spark", requests={"kubernetes.io/batch-cpu": 500}),)
    )
    node = Guarded(
        pods=[
            WEB,
            BATCH,
            batch_resources,
            pod_of("besteffort", QoSClass.LS, kube_qos=KubeQoSClass.BEST_EFFORT),
        ]
    )
    node.second(0.0)
    assert values_of(node.decision.claims, "cpu.idle", Role.SET) == {(Level.POD, "batch"): 1}
    node.strategies = Strategies(cpu_guard=CpuGuard(enable=True, idle_pods=False))
    assert node.second(0.0).claims == ()


def test_pods_with_batch_resources_yield_alike_where_the_strategy_says_so() -> None:
    requests = {"kubernetes.io/batch-cpu": 500}
    spark = pod_of("spark", QoSClass.BE, containers=(container_of("spark", requests=requests),))
    node = Guarded(strategy=CpuGuard(enable=True, equal_weights=True), pods=[WEB, BATCH, spark])
    node.second(0.0)
    both = {(Level.POD, "batch"): 1, (Level.POD, "spark"): 1}
    assert values_of(node.decision.claims, "cpu.idle", Role.SET) == both
    # In place of the weight that batch resources give.
    assert values_of(node.decision.claims, "cpu.shares", Role.SET) == {(Level.POD, "spark"): 2}


def test_the_class_is_idle_only_where_the_strategy_says_so() -> None:
    node = Guarded(strategy=CpuGuard(enable=True, class_idle=True))
    node.second(0.0)
    assert values_of(node.decision.claims, "cpu.idle", Role.SET) == {_BE: 1, (Level.POD, "batch"): 1}
    node.pods = (BATCH,)
    node.second(0.0)
    assert values_of(node.decision.claims, "cpu.idle", Role.SET) == {}


def sliced(node: Guarded) -> set[str]:
    """The pods whose tasks have short slices."""
    found = values_of(node.decision.claims, "sched_slice_us", Role.SET)
    assert set(found.values()) <= {1_000}
    return {uid for level, uid in found if level is Level.POD}


SLICES = CpuGuard(enable=True, slice=True, feedback=False)


def test_tasks_of_guarded_pods_have_short_slices() -> None:
    node = Guarded(strategy=SLICES, features=frozenset({"slice"}))
    node.second(0.0)
    assert sliced(node) == {"web"}
    node.pods = (BATCH,)
    node.second(0.0)
    assert sliced(node) == set()
    node.pods = (WEB, BATCH)
    node.strategies = Strategies(cpu_guard=ON)
    node.second(0.0)
    assert sliced(node) == set()


@pytest.mark.parametrize(
    ("cpus", "features", "reason"),
    [
        (4, {"idle"}, "tasks have no slices (Linux 6.12), or the daemon may not set them"),
        (1, {"slice"}, "on one CPU the kernel's slices are shorter than 1 ms"),
    ],
)
def test_no_slices_and_why(cpus: int, features: set[str], reason: str) -> None:
    node = Guarded(cpus, SLICES, features=frozenset(features))
    node.second(0.0)
    assert sliced(node) == set()
    assert reason in node.decision.explanation


def test_short_slices_are_bounded_and_stay_where_they_are() -> None:
    """Changing hands would write to all tasks of two pods."""
    pods = [pod_of(f"web-{number:02}") for number in range(MOST_SLICED + 2)]
    node = Guarded(strategy=SLICES, features=frozenset({"slice"}), pods=pods)
    node.metrics.add(pods[-1].cgroup, Metric.CPU_USAGE, 3.0)
    node.second(0.0)
    first = sliced(node)
    assert (len(first), "web-65" in first, "web-64" in first) == (MOST_SLICED, True, False)
    assert "short slices of 64 pods at most: 2 have none" in node.decision.explanation
    node.metrics.add(pods[-2].cgroup, Metric.CPU_USAGE, 9.0)
    node.second(0.0)
    assert sliced(node) == first
    node.pods = tuple(each for each in node.pods if each.uid != "web-65")
    node.second(0.0)
    assert sliced(node) == {*first, "web-64"} - {"web-65"}


def test_a_kernel_without_idle_groups() -> None:
    node = Guarded(features=frozenset())
    assert node.second(0.0).claims == ()
    assert "the kernel has no cpu.idle (5.15)" in node.decision.explanation


def test_protection_alone() -> None:
    node = Guarded(strategy=CpuGuard(enable=True, feedback=False))
    assert set(node.seconds([0.9] * 10)) == {None}
    assert not node.decision.is_guarding
    assert [each.field for each in node.decision.claims] == ["cpu.idle"]


def test_a_strategy_that_is_flipped() -> None:
    node = Guarded()
    node.seconds([0.08] * 4)
    assert node.quota_us() is not None
    node.strategies = Strategies(cpu_guard=CpuGuard(enable=True, feedback=False))
    node.second(0.08)
    node.second(0.08)
    assert node.quota_us() is None
    node.strategies = Strategies(cpu_guard=ON)
    assert node.seconds([0.08] * 3)[-1] is not None


# --- the lever ----------------------------------------------------------------------------------------------


def test_whole_cpus_on_a_large_node() -> None:
    node = Guarded(16, cpu_manager_policy="none")
    node.be_cores = 8.0
    node.seconds([0.04] * 4)
    assert (node.quota_us(), len(node.cpus or ())) == (None, 6)
    first = node.cpus or frozenset()
    node.seconds([0.04] * 5)
    assert len(node.cpus or ()) == 4
    assert (node.cpus or frozenset()) <= frozenset(range(16))
    assert first


def test_the_floor_is_whole_cpus_where_the_bound_is() -> None:
    """A tenth of 24 CPUs are three: two would be less."""
    node = Guarded(24, cpu_manager_policy="none")
    node.be_cores = 20.0
    for _ in range(60):
        node.second((node.state.law.bound or 20_000) / 20_000)
    assert (node.state.law.bound, len(node.cpus or ()), node.quota_us()) == (3_000, 3, None)
    assert "which has an effect" in node.decision.explanation


@pytest.mark.parametrize(("cpus", "policy"), [(16, "static"), (16, ""), (4, "none")])
def test_a_node_that_is_another_one_meanwhile(cpus: int, policy: str) -> None:
    """CPUs went offline, or the kubelet's policy changed: the bound is a quota, of the same size."""
    node = Guarded(16, cpu_manager_policy="none")
    node.be_cores = 8.0
    node.seconds([0.04] * 4)
    assert (node.quota_us(), len(node.cpus or ())) == (None, 6)
    node.node = replace(node.node, cpus=node_of(cpus).cpus, cpu_manager_policy=policy)
    # Never unbounded in between.
    node.second(0.018)
    assert (node.quota_us(), len(node.cpus or ())) == (600_000, min(cpus, 6))
    node.second(0.018)
    assert (node.quota_us(), node.cpus) == (600_000, None)


def test_a_quota_under_the_static_policy() -> None:
    node = Guarded(16, cpu_manager_policy="static")
    node.be_cores = 8.0
    node.seconds([0.04] * 4)
    assert (node.quota_us(), node.cpus) == (600_000, None)


def test_never_cpus_of_lse_pods() -> None:
    lse = pod_of("lse", QoSClass.LSE, cpus=frozenset(range(8)), kube_qos=KubeQoSClass.GUARANTEED)
    node = Guarded(16, cpu_manager_policy="none", pods=[WEB, BATCH, lse])
    node.be_cores = 6.0
    node.seconds([0.04] * 4)
    assert node.cpus == frozenset(range(8, 12)) or len(node.cpus or ()) == 4
    assert not (node.cpus or frozenset()) & frozenset(range(8))
    node.strategies = Strategies(cpu_guard=ON, threshold=Threshold(enable=True))
    node.seconds([0.0] * 400)
    # It bounds nothing, and what CPU suppress would keep from BE pods is kept.
    assert node.state.law.bound is None
    assert node.cpus == frozenset(range(8, 16))


# --- targets ------------------------------------------------------------------------------------------------


def test_quiet_seconds_make_a_target(tmp_path: Path) -> None:
    node = Guarded(options=CpuGuardOptions(folder=str(tmp_path)))
    node.be_cores = 0.1
    file = tmp_path / "cpu-guard.json"
    # The first time 90 s after the first decision, then every 10 minutes.
    node.seconds([0.004] * 90)
    assert not file.exists()
    node.second(0.004)
    assert list(json.loads(file.read_text())) == ["default/web:web"]
    file.unlink()
    node.seconds([0.004] * 599)
    assert not file.exists()
    node.second(0.004)
    assert file.exists()
    node.be_cores = 2.0
    assert any(node.seconds([0.012] * 20))
    assert "1.3 x " in node.decision.explanation
    again = Guarded(options=CpuGuardOptions(folder=str(tmp_path)))
    again.seconds([0.012] * 4)
    assert again.state.law.bound is not None


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    node = Guarded(options=CpuGuardOptions(folder=str(tmp_path / "gone")))
    node.second(0.004)
    node.remember(saved_s=node.metrics.now_s - 600)
    node.second(0.004)
    assert "cannot be written: there is no such folder" in node.decision.explanation


def test_a_file_of_others(tmp_path: Path) -> None:
    (tmp_path / "cpu-guard.json").write_text('{"web": 3}')
    node = Guarded(options=CpuGuardOptions(folder=str(tmp_path)))
    node.second(0.0)
    assert "targets are learnt anew" in node.decision.explanation


def test_the_pods_own_target() -> None:
    own = PodCpuGuard(target_pressure_milliseconds=100, target_run_delay_percent=50)
    node = Guarded(pods=[pod_of("web", cpu_guard=own), BATCH])
    assert set(node.seconds([0.04] * 10)) == {None}
    assert node.seconds([0.2] * 3)[-1] == 1_500
    assert "t 100.0 ms/s (strategy)" in node.decision.explanation


def test_an_annotation_asks_for_no_less_than_what_may_be_learnt() -> None:
    """A strategy may: the node's owner says so."""
    own, asked = PodCpuGuard(target_pressure_milliseconds=1), frozenset({"target_pressure_milliseconds"})
    node = Guarded(pods=[pod_of("web", cpu_guard=own), BATCH])
    assert node.seconds([0.004] * 4)[-1] is not None
    node = Guarded(pods=[pod_of("web", cpu_guard=own, annotated_guard=asked), BATCH])
    assert set(node.seconds([0.004] * 70)) == {None}
    text = "t 5.0 ms/s (asks for 1 ms/s, at least 5 ms/s by annotation), e 0.80"
    assert text in node.decision.explanation
    assert next(iter(node.decision.pod_notes)).endswith(text)
    # And for no less than what is usual, once that is known.
    node.be_cores = 0.1
    node.seconds([0.01] * 70)
    assert "(asks for 1 ms/s, at least 1.1 x 1" in node.decision.explanation
    # One that was changed applies at once.
    node.pods = (
        pod_of("web", cpu_guard=PodCpuGuard(target_pressure_milliseconds=40), annotated_guard=asked),
        BATCH,
    )
    node.second(0.01)
    assert "t 40.0 ms/s (annotation)" in node.decision.explanation


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (pod_of("a", QoSClass.LS), True),
        (pod_of("a", QoSClass.LSR), True),
        (pod_of("a", QoSClass.LSE), True),
        (pod_of("a", QoSClass.BE), False),
        (pod_of("a", QoSClass.NONE), False),
        (pod_of("a", QoSClass.SYSTEM), False),
        (pod_of("a", QoSClass.NONE, cpu_guard=PodCpuGuard(target_run_delay_percent=5)), True),
        (pod_of("a", QoSClass.BE, cpu_guard=PodCpuGuard(target_run_delay_percent=5)), False),
    ],
)
def test_which_pods_count(pod: Pod, expected: bool) -> None:
    assert is_guarded(pod) is expected


def test_pods_of_one_workload() -> None:
    box = (container_of("main"),)
    one, other = (pod_of(f"web-7d4b9c6f5d-{end}", containers=box) for end in ("x2vbn", "qzk8w"))
    assert workload_of(one) == workload_of(other) == "default/web:main"
    assert workload_of(pod_of("web-0", containers=box)) == "default/web:main"


def test_a_probe_makes_quiet_seconds() -> None:
    node = Guarded(strategy=CpuGuard(enable=True, probe=True))
    node.seconds([0.015] * 4)
    node.remember(quiet_s=node.metrics.now_s - 1_798)
    quotas = list[object]()
    for _ in range(15):
        node.second(0.015)
        quotas.append(node.quota_us())
    # 5 s at the floor, and back to where it was.
    assert quotas == [None] + [40_000] * 5 + [None] * 9
    probed_s = node.state.probed_s
    assert node.state.quiet_s == probed_s + 5
    node.remember(quiet_s=node.metrics.now_s - 1_800)
    again = list[object]()
    for _ in range(15):
        node.second(0.015)
        again.append(node.quota_us())
    # Ten minutes have not passed.
    assert again == [None] * 15


def test_a_probe_that_is_not_in_force_teaches_nothing() -> None:
    """As in dry-run: BE pods use what they want all the time."""
    node = Guarded(strategy=CpuGuard(enable=True, probe=True))
    node.is_dry_run = True
    node.seconds([0.015] * 4)
    node.remember(quiet_s=node.metrics.now_s - 1_798)
    node.seconds([0.015] * 15)
    assert node.state.probed_s > 4
    assert node.state.quiet_s < node.state.probed_s
    assert len(node.state.history) == 0


@pytest.mark.parametrize("waited", [0.015, None])
def test_a_probe_ends_with_the_feedback(waited: float | None) -> None:
    node = Guarded(strategy=CpuGuard(enable=True, probe=True))
    node.seconds([0.015] * 4)
    node.remember(quiet_s=node.metrics.now_s - 1_800)
    node.second(0.015)
    assert node.quota_us() == 40_000
    if waited is None:
        # Or as soon as it is blind: CPU suppress bounds BE pods then.
        node.remember(sampled_s=node.metrics.now_s - 10)
    else:
        node.strategies = Strategies(cpu_guard=CpuGuard(enable=True, probe=True, feedback=False))
    node.second(waited)
    assert node.quota_us() is None


# --- others -------------------------------------------------------------------------------------------------


def test_it_begins_with_what_the_daemon_has() -> None:
    held = [Claim(BE_CLASS, QUOTA, Role.AT_MOST, 120_000)]
    node = Guarded(held=held)
    node.second(None)
    assert node.quota_us() == 120_000
    assert set(node.seconds([0.018] * 30)) == {1_200}


@pytest.mark.parametrize("is_of_suppress", [False, True])
def test_a_bound_that_it_finds_at_its_floor_stays_for_a_minute(is_of_suppress: bool) -> None:
    """A restart is no reason to let others wait more; then more is tried, to compare."""
    held = [Claim(BE_CLASS, QUOTA, Role.AT_MOST, 40_000)]
    node = Guarded(held=() if is_of_suppress else held)
    node.be_limit_cores = 0.4 if is_of_suppress else None
    node.seconds([0.5] * 2)
    node.be_limit_cores = None
    assert set(node.seconds([0.5] * 55)) == {400}
    assert any((bound or 0) > 400 for bound in node.seconds([0.5] * 30))


def test_processes_that_soon_end_give_a_bound_back(tmp_path: Path) -> None:
    """Each is blind at first: the hold counts from the start of the first one, and each gives a step back."""
    options, now_s, bounds = CpuGuardOptions(folder=str(tmp_path)), 0.0, list[int | None]()
    held: Sequence[Claim] = [Claim(BE_CLASS, QUOTA, Role.AT_MOST, 120_000)]
    for _ in range(25):
        node = Guarded(held=held, options=options)
        node.metrics.now_s = now_s
        bounds.append(node.seconds([None] * 10)[-1])
        held = [each for each in node.decision.claims if each.field == QUOTA]
        now_s = node.metrics.now_s
    assert bounds[:8] == [*[1_200] * 6, 1_400, 1_600]
    assert bounds[-1] is None


@pytest.mark.parametrize("saved", ['{"first_s": 1.0}', '{"first_s": 1e9}', '{"first_s": "soon"}', "[]"])
def test_a_process_that_lives_holds_what_it_finds(saved: str, tmp_path: Path) -> None:
    """Files of others are none, and times to come are of another boot."""
    file = tmp_path / "cpu-guard-started.json"
    file.write_text(saved)
    held = [Claim(BE_CLASS, QUOTA, Role.AT_MOST, 120_000)]
    node = Guarded(held=held, options=CpuGuardOptions(folder=str(tmp_path)))
    node.metrics.now_s = 10.0
    assert set(node.seconds([None] * 50)) == {1_200}
    assert file.exists()
    node.seconds([0.018] * 41)
    assert not file.exists()


def test_it_begins_with_cpus_that_the_daemon_has() -> None:
    held = [Claim(BE_CLASS, CPUS, Role.AT_MOST, "2-7")]
    node = Guarded(16, held=held, cpu_manager_policy="none")
    node.second(None)
    assert node.cpus == frozenset(range(2, 8))
    assert node.state.law.bound == 6_000


def test_cpus_that_are_kept_for_others_are_no_bound() -> None:
    lse = pod_of("lse", QoSClass.LSE, cpus=frozenset(range(8)), kube_qos=KubeQoSClass.GUARANTEED)
    held = [Claim(BE_CLASS, CPUS, Role.AT_MOST, "8-15")]
    node = Guarded(16, held=held, pods=[WEB, BATCH, lse], cpu_manager_policy="none")
    node.second(None)
    assert node.state.law.bound is None


def test_it_goes_on_from_the_bound_of_cpu_suppress() -> None:
    node = Guarded()
    node.be_limit_cores = 1.25
    node.seconds([None] * 5)
    assert (node.decision.is_guarding, node.state.law.bound) == (False, None)
    # The first one is of an unknown length.
    node.seconds([0.018] * 2)
    assert (node.decision.is_guarding, node.quota_us()) == (True, 125_000)


def test_cpu_suppress_leaves_be_pods_to_it() -> None:
    state = SuppressState(quota_us=100_000)
    snapshot = Guarded().snapshot()
    strategies = Strategies(threshold=Threshold(enable=True))
    decision = CpuSuppress().run(replace(snapshot, strategies=strategies, is_guarded=True), state)
    assert decision.claims == ()
    assert decision.state == SuppressState()
    assert "cpu-guard" in decision.explanation


def test_unknown_cpus_change_nothing() -> None:
    held = [Claim(BE_CLASS, QUOTA, Role.AT_MOST, 120_000)]
    node = Guarded(0, held=held)
    assert node.second(0.5).claims == tuple(held)
    assert node.decision.explanation == "the CPUs of the node are not known"


def test_options_that_cannot_be_used() -> None:
    options = CpuGuardOptions(folder="here", metrics_listen="/run/x.sock")
    assert [key for key, _ in CpuGuardPlugin().option_problems(options)] == ["folder", "metrics_listen"]
    assert CpuGuardPlugin().option_problems(CpuGuardOptions(metrics_listen="127.0.0.1:9447")) == []


def test_metrics() -> None:
    node = Guarded()
    assert list(node.plugin.collector.collect()) == []
    node.seconds([0.04] * 4)
    found = {
        (
            sample.name.removeprefix("koord_qos_manager_cpu_guard_"),
            tuple(sample.labels.values()),
        ): sample.value
        for family in node.plugin.collector.collect()
        for sample in family.samples
    }
    web = ("default", "web", "pressure")
    assert found == {
        ("blind", ()): 0,
        ("rule", ()): 1,
        ("error", ()): 2.0,
        ("bound_millicores", ()): 1_500,
        ("bad_bound_millicores", ()): 2_000,
        ("floor_millicores", ()): 400,
        ("pod_wait_ratio", web): 0.04,
        ("pod_target_ratio", web): 0.02,
    }
    node.seconds([None] * 11)
    values = {
        sample.name: sample.value for family in node.plugin.collector.collect() for sample in family.samples
    }
    assert values["koord_qos_manager_cpu_guard_blind"] == 1
    assert "koord_qos_manager_cpu_guard_error" not in values
    assert not node.plugin.is_enabled(Snapshot(now_s=0.0))
    assert list(node.plugin.collector.collect()) == []
