"""Evictions by conditions: hold times, soft thresholds, bounds, turns of services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from runtimeproxy.katalyst.eviction_config import EvictionConfig
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.conditions import (
    CONDITION_S,
    GAP_S,
    CheckResult,
    ConditionPlugin,
    ConditionState,
    MetThreshold,
    Victim,
    known_request,
    nearest_in_turn,
    service_of,
)
from runtimeproxy.qosmanager.eviction import Allowance, EvictOptions
from runtimeproxy.qosmanager.framework import decision_problem
from runtimeproxy.qosmanager.plugin import Decision, Eviction, EvictionOutcome, EvictionResult, PluginContext
from runtimeproxy.qosmanager.snapshot import Node, Pod, PodEviction, Snapshot
from tests.qosmanager.snapshots import container_of, pod_of


@dataclass(frozen=True, slots=True)
class Options(EvictOptions):
    cool_seconds: float = 0.0


class Programmed(ConditionPlugin[ConditionState]):
    """Finds what a test says."""

    name = "programmed"
    options_type = Options
    state_type = ConditionState

    def __init__(self) -> None:
        self.findings: Sequence[MetThreshold] = ()
        self.left_out: Mapping[str, Sequence[Pod]] = {}

    def cool_s(self, state: ConditionState) -> float:
        assert isinstance(state.options, Options)
        return state.options.cool_seconds

    def find(self, snapshot: Snapshot, state: ConditionState, free: Allowance) -> CheckResult[ConditionState]:
        return CheckResult(state, self.findings, (), self.left_out)


class Driver:
    """Runs the plugin at simulated times."""

    def __init__(self, options: Options | None = None) -> None:
        self.plugin = Programmed()
        self.node = Node()
        self.state = self.plugin.setup(PluginContext(gates={}, options=options))

    def at(self, now_s: float, *findings: MetThreshold, pods: Iterable[Pod] = ()) -> Decision[ConditionState]:
        self.plugin.findings = findings
        decision = self.plugin.run(Snapshot(now_s=now_s, pods=tuple(pods), node=self.node), self.state)
        self.state = decision.state
        return decision

    def uids(self, now_s: float, *findings: MetThreshold) -> list[str]:
        return [each.pod_uid for each in self.at(now_s, *findings).evictions]


def finding(*names: str, **fields: Any) -> MetThreshold:
    return MetThreshold("cpu", "10 of 5", [Victim(pod_of(name), f"{name} has 3") for name in names], **fields)


def test_a_threshold_has_to_stay_met() -> None:
    driver = Driver()
    for now_s in range(100, 160, 5):
        assert driver.uids(now_s, finding("a", hold_s=60)) == []
    assert driver.state.since_s == {"cpu": 100}
    decision = driver.at(160, finding("a", hold_s=60))
    assert decision.evictions == [Eviction("a", "cpu: 10 of 5; a has 3")]
    assert decision.explanation == "cpu: 10 of 5: pods to evict: 1"


@pytest.mark.parametrize("breaks", [pytest.param((), id="not-met"), pytest.param((-1,), id="soft")])
def test_a_break_begins_anew(breaks: tuple[int, ...]) -> None:
    driver = Driver()
    driver.at(0, finding("a", hold_s=10))
    driver.at(5, *(finding("a", is_hard=False) for _ in breaks))
    assert driver.uids(10, finding("a", hold_s=10)) == []
    assert driver.at(15, finding("a", hold_s=10)).explanation == "cpu: 10 of 5: met for 5 s of 10 s"
    assert driver.uids(20, finding("a", hold_s=10)) == ["a"]


def test_time_without_a_check_does_not_hold() -> None:
    """The daemon was away: whether the threshold was met meanwhile is not known."""
    driver = Driver()
    driver.at(0, finding("a", hold_s=20))
    assert driver.uids(GAP_S, finding("a", hold_s=20)) == []
    assert driver.uids(GAP_S * 2 + 1, finding("a", hold_s=20)) == []
    assert driver.uids(GAP_S * 3 + 1, finding("a", hold_s=20)) == []
    assert driver.uids(GAP_S * 3 + 6, finding("a", hold_s=20)) == ["a"]


def test_a_soft_threshold_evicts_nothing_and_is_told_for_five_minutes() -> None:
    driver = Driver()
    decision = driver.at(0, finding("a", is_hard=False))
    assert not decision.evictions
    assert decision.explanation == "cpu: 10 of 5: soft threshold, nothing is evicted"
    assert driver.at(5).explanation == "cpu: condition, last met 5 s ago"
    assert driver.at(CONDITION_S - 1).explanation == f"cpu: condition, last met {CONDITION_S - 1:.0f} s ago"
    assert driver.at(CONDITION_S).explanation == "no threshold is met"


def test_a_burst_is_three_pods() -> None:
    driver = Driver()
    decision = driver.at(0, finding(*"abcde", most=5))
    assert [each.pod_uid for each in decision.evictions] == ["a", "b", "c"]
    assert decision.explanation == "cpu: 10 of 5: no more than 3 pods in 60 s"
    assert driver.uids(59, finding(*"abcde", most=5)) == []
    assert driver.uids(60, finding(*"abcde", most=5)) == ["d", "e"]
    # The same pod not before 300 s.
    assert driver.uids(299, finding(*"abcde", most=5)) == []
    assert driver.uids(300, finding(*"abcde", most=5)) == ["a", "b", "c"]


def test_several_findings_share_the_burst() -> None:
    driver = Driver()
    memory = MetThreshold("memory", "", [Victim(pod_of(name)) for name in "abcd"], most=2)
    assert driver.uids(0, finding("a", "b", most=2), memory) == ["a", "b", "c"]


def test_it_cools_after_an_eviction_but_not_after_a_refused_one() -> None:
    driver = Driver(Options(cool_seconds=300))
    decision = driver.at(0, finding("a"))
    assert len(decision.evictions) == 1
    assert driver.at(5, finding("b")).explanation == "cpu: 10 of 5: cooling for 295 s"
    result = EvictionResult(decision.evictions[0], EvictionOutcome.REFUSED, "a disruption budget")
    driver.state = driver.plugin.on_evictions([result], Snapshot(now_s=5), driver.state)
    # The refused one is not tried again for some time, others are at once.
    assert driver.uids(10, finding("a", "b")) == ["b"]
    assert driver.uids(309, finding("c")) == []
    assert driver.uids(310, finding("c")) == ["c"]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_of("x", QoSClass.SYSTEM), id="system"),
        pytest.param(pod_of("x", QoSClass.LSE), id="lse"),
        pytest.param(pod_of("x", eviction=PodEviction(allowed=frozenset({"CPUEvict"}))), id="annotation"),
    ],
)
def test_pods_that_never_go(pod: Pod) -> None:
    decision = Driver().at(0, MetThreshold("cpu", "10 of 5", [Victim(pod)]))
    assert not decision.evictions
    assert decision.explanation == "cpu: 10 of 5: no pod that may be evicted"


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("web-7d4b9c8f6d-x2k4p", "web"),
        ("web-x2k4p", "web"),
        ("db-0", "db"),
        ("db-main-12", "db-main"),
        ("web", "web"),
        ("my-tools", "my-tools"),
        ("batch-aeiou", "batch-aeiou"),
    ],
)
def test_services(name: str, service: str) -> None:
    assert service_of(pod_of(name)) == f"default/{service}"


@pytest.mark.parametrize(
    ("amounts", "wanted", "services", "expected"),
    [
        pytest.param({"a-0": 4, "b-0": 9, "c-0": 2}, 3.9, {}, ["a-0", "c-0", "b-0"], id="nearest"),
        pytest.param(
            {"a-0": 4, "b-0": 4, "c-0": 4}, 4, {"a": 9.0, "b": 3.0}, ["c-0", "b-0", "a-0"], id="turn"
        ),
        # A service's second pod does not keep others from their turn.
        pytest.param(
            {"a-0": 4, "a-1": 4, "b-0": 3, "c-0": 1},
            4,
            {"a": 9.0},
            ["b-0", "c-0", "a-0", "a-1"],
            id="one-each",
        ),
        # The fourth nearest service has no turn, however long it waits.
        pytest.param(
            {"a-0": 4, "b-0": 5, "c-0": 6, "d-0": 90},
            4,
            {"a": 3.0, "b": 2.0, "c": 1.0},
            ["c-0", "b-0", "a-0", "d-0"],
            id="far",
        ),
    ],
)
def test_not_the_largest_first(
    amounts: dict[str, float], wanted: float, services: dict[str, float], expected: list[str]
) -> None:
    """Katalyst's PR #873: one service was hit again and again."""
    known = {f"default/{name}": at_s for name, at_s in services.items()}
    pods = [pod_of(name) for name in amounts]
    found = nearest_in_turn(pods, lambda pod: amounts[pod.name], wanted, known)
    assert [pod.name for pod in found] == expected


def test_a_rank_is_above_turns() -> None:
    pods = [pod_of("a-0", priority=9), pod_of("b-0", priority=5)]
    services = {"default/b": 5.0}
    found = nearest_in_turn(pods, lambda pod: 1.0, 1.0, services, lambda pod: (pod.priority_value,))
    assert [pod.name for pod in found] == ["b-0", "a-0"]


def test_no_service_goes_twice_while_others_wait() -> None:
    driver = Driver(Options(most_pods=1, per_seconds=1, same_pod_after_seconds=0))
    pods = [pod_of(f"{service}-{number}") for service in "abc" for number in range(3)]
    gone: list[str] = []
    for check in range(9):
        there = [pod for pod in pods if pod.uid not in gone]
        # All of `a` are larger.
        order = nearest_in_turn(
            there, lambda pod: 8.0 if pod.name[0] == "a" else 4.0, 9.0, driver.state.services
        )
        gone += driver.uids(check * 5.0, MetThreshold("cpu", "", [Victim(pod) for pod in order]))
    assert [name[0] for name in gone] == list("abcabcabc")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(pod_of("a", containers=(container_of("a", requests={"x": 3}),)), 3, id="container"),
        pytest.param(pod_of("a", requests={"x": 4}), 4, id="annotation"),
        pytest.param(pod_of("a", has_known_requests=True), 0, id="none"),
        pytest.param(pod_of("a"), None, id="unknown"),
        pytest.param(
            pod_of(
                "a",
                containers=(container_of("a", requests={"x": 3}), container_of("b")),
                has_known_requests=True,
            ),
            3,
            id="sidecar",
        ),
    ],
)
def test_requests(pod: Pod, expected: int | None) -> None:
    assert known_request(pod, "x") == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", "no threshold is met"),
        ("ba", "left out: default/a, default/b: why"),
        ("abcdefg", "left out: default/a, default/b, default/c, default/d, default/e and 2 more: why"),
    ],
)
def test_left_out_pods_are_named(names: str, expected: str) -> None:
    driver = Driver()
    driver.plugin.left_out = {"why": [pod_of(name) for name in names]}
    decision = driver.at(0)
    assert decision.explanation == expected
    assert decision.left_out == {"why": list(names)}
    assert decision_problem(decision) == ""


@pytest.mark.parametrize(
    ("measured_s", "is_there", "expected"),
    [
        pytest.param(None, False, ["b"], id="now"),
        # `a` was evicted at 0, and seen at 5 for the last time.
        pytest.param(5.0, False, [], id="before-it-had-gone"),
        pytest.param(6.0, False, ["b"], id="after-it-had-gone"),
        # One that does not go is no reason to wait for ever.
        pytest.param(0.0, True, [], id="before-it-was-evicted"),
        pytest.param(1.0, True, ["b"], id="it-stays"),
    ],
)
def test_what_was_measured_before_a_pod_had_gone_evicts_no_other(
    measured_s: float | None, *, is_there: bool, expected: list[str]
) -> None:
    driver = Driver()
    a, b = pod_of("a"), pod_of("b")
    assert [each.pod_uid for each in driver.at(0, finding("a"), pods=(a, b)).evictions] == ["a"]
    driver.at(5, pods=(a, b))
    decision = driver.at(10, finding("b", measured_s=measured_s), pods=(a, b) if is_there else (b,))
    assert [each.pod_uid for each in decision.evictions] == expected
    assert ("before the last pod had gone" in decision.explanation) is (expected == [])


def test_it_waits_for_the_configuration_of_the_cluster() -> None:
    """What had to last begins anew when that is known."""
    driver = Driver()
    held = finding("a", hold_s=10.0)
    assert driver.uids(0, held) == []
    driver.node = Node(is_eviction_unknown=True)
    assert driver.at(5, held).explanation.startswith("waits until it is known")
    driver.node = Node()
    assert [driver.uids(at_s, held) for at_s in (10, 15, 20)] == [[], [], ["a"]]


def test_the_configuration_of_the_cluster_names_plugins_of_other_packages_too() -> None:
    driver = Driver()
    for names, expected in (
        ((), False),
        (("*",), True),
        (("-programmed", "*"), False),
        (("programmed",), True),
    ):
        driver.node = Node(eviction=EvictionConfig(dry_run=names))
        assert driver.at(0).is_dry_run is expected


def test_pods_of_a_dry_run_stay_and_are_proposed_once() -> None:
    driver = Driver()
    pods = tuple(pod_of(name) for name in "abc")

    def check(now_s: float, *findings: MetThreshold) -> list[str]:
        decision = driver.at(now_s, *findings, pods=pods)
        results = [EvictionResult(each, EvictionOutcome.DRY_RUN) for each in decision.evictions]
        driver.state = driver.plugin.on_evictions(results, Snapshot(now_s=now_s, pods=pods), driver.state)
        return [each.pod_uid for each in decision.evictions]

    assert check(0, finding(*"abc")) == ["a"]
    # Its service was not hit, and what was measured before is as true as it was.
    assert driver.state.services == {}
    again = finding(*"abc", measured_s=-5.0)
    assert check(5, again) == []
    expected = "cpu: 10 of 5: pods to evict: 1, 1 of them proposed before in dry-run"
    assert driver.at(10, again, pods=pods).explanation == expected
    assert check(15, finding(*"abc", most=2)) == ["b"]
    assert check(300, finding(*"abc")) == ["a"]


def test_after_a_dry_run_all_pods_may_go() -> None:
    driver = Driver()
    driver.node = Node(eviction=EvictionConfig(dry_run=("programmed",)))
    decision = driver.at(0, finding("a"))
    results = [EvictionResult(each, EvictionOutcome.DRY_RUN) for each in decision.evictions]
    driver.state = driver.plugin.on_evictions(results, Snapshot(now_s=0), driver.state)
    assert driver.uids(5, finding("a")) == []
    driver.node = Node()
    assert driver.uids(10, finding("a")) == ["a"]
    assert driver.uids(15, finding("a")) == []


def test_a_pod_that_a_dry_run_has_proposed_is_the_one_of_its_check() -> None:
    driver = Driver()
    driver.plugin.is_one_in_a_check = True  # type: ignore[misc]  # of the class elsewhere
    decision = driver.at(0, finding("a"))
    results = [EvictionResult(each, EvictionOutcome.DRY_RUN) for each in decision.evictions]
    driver.state = driver.plugin.on_evictions(results, Snapshot(now_s=0), driver.state)
    other = finding("b")._replace(scope="memory")
    assert "memory: 10 of 5: waits for the pod that goes" in driver.at(5, finding("a"), other).explanation


def test_the_grace_period_is_an_option() -> None:
    (eviction,) = Driver(Options(grace_seconds=20.0)).at(0, finding("a")).evictions
    assert eviction.grace_s == 20.0
