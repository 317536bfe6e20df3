"""Pools, by what happens on a node. Ids such as B4 are of Katalyst's own tests, on their node of 16 CPUs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from runtimeproxy.errors import UNLIKE_OURS
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import (
    ContainerFacts,
    LiveContainer,
    ObservedPod,
    admit,
    adopt,
    configure,
    create,
    created,
    initial,
    ramp_done,
    ramp_due_s,
    reconcile,
    remove,
    resize,
)
from runtimeproxy.katalyst.pools import (
    AdvisedSizes,
    PoolSettings,
    PoolState,
    Refusal,
    RefusalKind,
    StateEncoder,
    from_document,
    problems,
)
from runtimeproxy.katalyst.topology import Topology
from tests.katalyst.pool_doubles import (
    DNB,
    EXCLUSIVE,
    GIB,
    RECLAIMED,
    SHARED,
    SNB,
    T16,
    UNBOUND,
    admitted,
    checked,
    cpus,
    cpus_of,
    facts,
    machine,
    mems_of,
    pools_of,
    refused,
    running,
    steps,
    system,
    t16,
)

EVENLY = replace(DNB, distribute_evenly=True, numa_number=2)
ON_0 = frozenset({0})


@pytest.mark.parametrize(
    ("settings", "pod", "expected"),
    [
        pytest.param({}, facts("p", RECLAIMED, 2), "1,3-4,6", id="B4"),
        pytest.param({}, facts("p", EXCLUSIVE, 2), "1,8-9", id="B5, B7"),
        pytest.param({}, facts("p", DNB, 2), "1,9", id="B8"),
        pytest.param({"enable_reclaim": True}, facts("p", SNB, 0.3, bind_result=ON_0), "1", id="B10"),
        pytest.param({"overlap": True}, facts("p", SNB, 1, bind_result=ON_0), "1,8-9", id="B11"),
        pytest.param({}, facts("p", system("reserve")), "0,2", id="B13"),
        pytest.param({}, facts("p", system()), "0-15", id="B14"),
        pytest.param({}, facts("p", replace(RECLAIMED, numa_binding=True), 2), "1,3-4,6", id="B16"),
        pytest.param({}, facts("p", replace(EVENLY, numa_ids=cpus("2-3")), 4), "4,6,12,14", id="B17"),
        pytest.param(
            {}, facts("p", replace(EVENLY, full_pcpus=True, numa_ids=cpus("2-3")), 6), "4-7,12,14", id="B20"
        ),
        pytest.param({}, facts("p", SHARED, 2), "1,3-15", id="B3: it ramps up"),
    ],
)
def test_what_a_pod_gets(settings: dict[str, object], pod: PodFacts, expected: str) -> None:
    assert cpus_of(running(t16(**settings), pod), "p") == expected


def test_b1_a_container_before_the_main_one_puts_the_pod_into_no_pool() -> None:
    pod = facts("p", SHARED, 2, main_container="main")
    state = admitted(t16(), pod)
    state = checked(create(state, ContainerFacts(pod, "init", 2_000), 0.0))
    state = ramp_done(state, 1_000.0)
    assert pools_of(state).keys() == {"reserve", "reclaim", "fallback"}
    assert cpus_of(state, "p") == "1,3-15"


@pytest.mark.parametrize("what", ["B2", "skip_qrm_admit"])
def test_a_pod_that_is_not_handled_changes_nothing(what: str) -> None:
    state, pod = t16(), facts(what, DNB, is_handled=False)
    assert admitted(state, pod) == state
    assert checked(create(state, ContainerFacts(pod, "main", 1_000), 0.0)) == state
    assert adopt(state, [ObservedPod(pod)]) == state


def test_b19_whole_cores_that_are_not_there() -> None:
    qos = replace(DNB, full_pcpus=True, numa_ids=ON_0)
    assert refused(admit(t16(), facts("p", qos, 4)))


def test_b22_a_pod_leaves_ramp_up() -> None:
    state = running(t16(), facts("a", SHARED, 2))
    assert ramp_due_s(state) == 30.0
    assert ramp_done(state, 29.9) == state
    done = checked(ramp_done(state, 30.0))
    assert steps(state, done) == [("SHRINK", "a", "1,3-11")]
    assert pools_of(done) == {"reserve": "0,2", "share": "1,3-11", "reclaim": "12-15"}
    assert ramp_due_s(done) is None
    assert cpus_of(running(done, facts("r", RECLAIMED, 2)), "r") == "12-15"


def test_b23_d18_reclaimed_pods_keep_their_part_of_a_pool() -> None:
    state = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
    state = running(state, facts("r", RECLAIMED, 2))
    settings = state.settings._replace(enable_reclaim=True, overlap=True)
    state = replace(state, settings=settings, pools={**state.pools, "reclaim": cpus("1,3-5")})
    # Such pools are none of ours: CPUs 12 to 15 are in none.
    ramping = create(state, ContainerFacts(facts("b", SHARED, 2), "main", 2_000), 0.0)
    assert isinstance(ramping, PoolState)
    done = checked(ramp_done(ramping, 30.0))
    assert pools_of(done) == {"reserve": "0,2", "share": "1,3-15", "reclaim": "1,3,5,9,11,13"}
    assert steps(ramping, done) == [
        ("SHRINK", "r", "1,3,5"),
        ("GROW", "a", "1,3-15"),
        ("GROW", "r", "1,3,5,9,11,13"),
    ]


def test_d3_what_pools_need() -> None:
    state = t16(enable_reclaim=True)
    for uid in ("a", "b"):
        state = running(state, facts(uid, SNB, 1.1, bind_result=frozenset({3})))
    state = ramp_done(running(state, facts("c", SHARED, 3.1)), 30.0)
    # 5 CPUs (2200m x 2) of the 4 that NUMA node 3 has, and 4 for 3100m.
    assert pools_of(state)["share-NUMA3"] == "6-7,14-15"
    assert len(state.pools["share"]) == 4
    assert problems(state) == ()


class TestMemory:
    STATE = t16(reserved_memory_bytes=GIB, enable_reclaim_numa_binding=True)

    def test_f2(self) -> None:
        assert mems_of(running(self.STATE, facts("p", RECLAIMED, memory_bytes=GIB)), "p") == "0-3"

    def test_f3(self) -> None:
        state = running(self.STATE, facts("p", EXCLUSIVE, 2, memory_bytes=2 * GIB))
        assert mems_of(state, "p") == "0"
        assert state.pods["p"].booked_bytes == {0: 7_516_192_768}

    def test_f5(self) -> None:
        state = running(self.STATE, facts("p", SNB, 1, memory_bytes=GIB, bind_result=ON_0))
        assert mems_of(state, "p") == "0"
        assert state.pods["p"].booked_bytes == {0: GIB}
        assert mems_of(running(state, facts("q", SHARED)), "q") == "1-3"

    def test_f6(self) -> None:
        qos = replace(RECLAIMED, numa_binding=True)
        state = running(running(self.STATE, facts("p", qos, 1)), facts("q", RECLAIMED))
        [node] = state.pods["p"].numa_ids
        assert mems_of(state, "p") == str(node)
        assert state.pods["q"].mems == frozenset({0, 1, 2, 3}) - {node}
        assert state.pods["p"].cpus <= T16.by_numa[node]
        assert not state.pods["q"].cpus & T16.by_numa[node]

    def test_memory_that_is_not_left_decides_too(self) -> None:
        state = self.STATE
        for uid in "abcd":
            state = running(state, facts(uid, SNB, 1, memory_bytes=6 * GIB))
        assert sorted(min(state.pods[uid].numa_ids) for uid in "abcd") == [0, 1, 2, 3]
        assert "memory" in refused(admit(state, facts("e", SNB, 1, memory_bytes=2 * GIB)))

    def test_a_numa_node_without_memory_is_in_no_mems(self) -> None:
        topology = replace(T16, memory_bytes={0: 8 * GIB, 1: 0, 2: 8 * GIB, 3: 8 * GIB, 4: 64 * GIB})
        state = initial(topology, PoolSettings())
        assert mems_of(running(state, facts("p", SHARED)), "p") == "0,2-4"
        # A NUMA node that has memory only can be used by all.
        assert mems_of(running(state, facts("p", RECLAIMED)), "p") == "0,2-4"


def test_608_a_pod_is_placed_once() -> None:
    topology = machine(96, 2, 2)
    state = initial(topology, PoolSettings())
    first, second = facts("a", EXCLUSIVE, 20), facts("b", EXCLUSIVE, 20)
    state = running(state, first)
    assert state.pods["a"].cpus == topology.by_numa[0]
    # The kubelet creates sandbox and container once more.
    assert admitted(state, first) == state
    again = checked(create(state, ContainerFacts(first, "main", 20_000), 50.0))
    assert again.pods["a"].cpus == topology.by_numa[0]
    assert steps(state, again) == []
    state = running(state, second)
    assert state.pods["b"].cpus == topology.by_numa[1]
    assert refused(admit(state, facts("c", EXCLUSIVE, 20)))


def test_608_a_container_with_all_cpus_is_not_adopted_with_them() -> None:
    topology = machine(96, 2, 2)
    container = LiveContainer("main", "id", 20_000, cpus=topology.all_cpus)
    live = ObservedPod(facts("a", EXCLUSIVE, 20), (container,))
    applied = checked(adopt(initial(topology, PoolSettings()), [live]))
    assert applied.pods["a"].cpus == topology.by_numa[0]


def test_435_a_pod_that_does_not_fit_is_refused_with_the_reason() -> None:
    state = running(t16(), facts("a", SHARED, 10))
    outcome = admit(state, facts("b", SHARED, 5))
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RefusalKind.NO_ROOM
    assert "14 CPUs" in outcome.reason
    assert "15000m" in outcome.reason
    assert refused(admit(state, facts("b", EXCLUSIVE, 8)))
    assert refused(admit(state, facts("b", DNB, 5)))
    assert refused(admit(state, facts("b", SNB, 5)))


@pytest.mark.parametrize("qos", [SHARED, SNB, DNB, EXCLUSIVE, UNBOUND])
def test_where_nothing_is_refused_a_pod_is_one_of_share(qos: KatalystQos) -> None:
    state = running(t16(), facts("a", SHARED, 14))
    state = checked(admit(state, facts("b", qos, 5), is_forced=True))
    assert state.pods["b"].level is QosLevel.SHARED
    assert state.pods["b"].problem
    assert cpus_of(state, "b") == "1,3-15"


def test_k8s_111705_shared_pods_have_the_cpus_of_a_pod_that_is_gone() -> None:
    before = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
    state = running(before, facts("d", EXCLUSIVE, 2))
    assert not state.pods["a"].cpus & state.pods["d"].cpus
    after = checked(remove(state, "d"))
    assert after.pods["a"].cpus == before.pods["a"].cpus
    assert steps(state, after) == [("GROW", "a", cpus_of(before, "a"))]


def test_dra_driver_cpu_15_freed_cpus_go_back_without_another_create() -> None:
    state = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
    state = running(state, facts("d", DNB, 4))
    after = checked(remove(state, "d"))
    assert steps(state, after) == [("GROW", "a", cpus_of(after, "a"))]
    assert after.pods["a"].cpus > state.pods["a"].cpus


def test_pr_631_a_pod_that_ramps_up_has_no_cpus_of_bound_pods() -> None:
    state = running(t16(), facts("s", SNB, 1, bind_result=ON_0))
    state = running(running(state, facts("d", EXCLUSIVE, 4)), facts("a", SHARED, 1))
    assert not state.pods["a"].cpus & T16.cpus_of(state.pods["s"].numa_ids | state.pods["d"].numa_ids)
    # One that is bound while it ramps up takes its CPUs away at once.
    after = admitted(state, facts("n", DNB, 3))
    assert [step for step, uid, _ in steps(state, after) if uid == "a"] == ["SHRINK"]
    assert not after.pods["a"].cpus & T16.cpus_of(after.pods["n"].numa_ids)


def test_pr_737_ramp_up_takes_nothing_from_reclaim() -> None:
    before = t16(enable_reclaim=True)
    state = running(running(before, facts("r", RECLAIMED, 1)), facts("a", SHARED, 8))
    assert state.pools == before.pools
    assert cpus_of(ramp_done(state, 30.0), "a") != cpus_of(state, "a")


@pytest.mark.parametrize("qos", [DNB, EXCLUSIVE, UNBOUND])
def test_koordinator_1403_pools_have_no_cpu_that_a_pod_has_alone(qos: KatalystQos) -> None:
    state = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
    after = admitted(state, facts("d", qos, 4))
    shared = after.pods["a"].cpus | after.pools["share"]
    assert not shared & after.pods["d"].dedicated
    # The others leave before the pod is there.
    first = steps(state, after)[0]
    assert first[:2] == ("SHRINK", "a")
    assert not cpus(first[2]) & after.pods["d"].dedicated


def test_594_reclaimed_pods_follow_a_new_shared_pod() -> None:
    state = running(t16(enable_reclaim=True), facts("r", RECLAIMED, 1))
    assert cpus_of(state, "r") == "1,3-15"
    state = running(state, facts("a", SHARED, 4))
    done = checked(ramp_done(state, 30.0))
    assert {uid for _, uid, _ in steps(state, done)} == {"a", "r"}
    assert not done.pods["r"].cpus & done.pods["a"].cpus


@pytest.mark.parametrize(("numa_share", "shares"), [(True, True), (False, False)])
def test_pr_556_dedicated_pods_share_a_numa_node_unless_they_do_not_want_to(
    numa_share: bool, shares: bool
) -> None:
    state = initial(machine(8, 1, 1), PoolSettings())
    state = running(state, facts("s", replace(SNB, numa_share=numa_share), 1))
    outcome = admit(state, facts("d", DNB, 2))
    assert isinstance(outcome, PoolState) == shares
    if isinstance(outcome, PoolState):
        assert problems(outcome) == ()
        assert outcome.pods["s"].cpus.isdisjoint(outcome.pods["d"].cpus)


def test_cri_resource_manager_527_966_all_but_the_requester_and_the_deleted_have_a_change() -> None:
    state = t16()
    for uid in "abc":
        state = created(running(state, facts(uid, SHARED, 1)), uid, "main", f"id-{uid}")
    state = ramp_done(state, 30.0)
    applied = checked(create(state, ContainerFacts(facts("d", EXCLUSIVE, 2), "main", 2_000), 31.0))
    assert {uid for _, uid, _ in steps(state, applied)} == {"a", "b", "c"}
    live = [ObservedPod(facts(uid, SHARED, 1), (LiveContainer("main", f"id-{uid}"),)) for uid in "ac"]
    after = checked(reconcile(applied, live))
    assert after.pods.keys() == {"a", "c"}
    assert {uid for _, uid, _ in steps(applied, after)} == {"a", "c"}


class TestContainers:
    def test_sidecars_have_the_cpus_of_the_main_container(self) -> None:
        pod = facts("p", DNB, 3, main_container="main")
        state = admitted(t16(), pod)
        assert cpus_of(state, "p") == "1,8-9"
        for name, millicpu in (("proxy", 1_000), ("main", 2_000)):
            state = checked(create(state, ContainerFacts(pod, name, millicpu), 0.0))
            assert cpus_of(state, "p") == "1,8-9"

    def test_a_pod_of_unknown_request_is_placed_with_its_main_container(self) -> None:
        pod = facts("p", DNB, None, main_container="main")
        state = admitted(t16(), pod)
        state = created(checked(create(state, ContainerFacts(pod, "proxy", 100), 0.0)), "p", "proxy", "1")
        assert cpus_of(state, "p") == "1,3-15"
        applied = checked(create(state, ContainerFacts(pod, "main", 2_000), 1.0))
        assert cpus_of(applied, "p") == "1,9"
        assert steps(state, applied) == [("SHRINK", "p", "1,9")]
        # What it was placed for stays, whichever container goes.
        after = checked(remove(applied, "p", "main"))
        assert cpus_of(after, "p") == "1,9"

    def test_a_shared_pod_of_unknown_request_needs_room_for_its_main_container(self) -> None:
        pod = facts("p", SHARED, None)
        state = admitted(t16(), pod)
        assert "99000m" in refused(create(state, ContainerFacts(pod, "main", 99_000), 0.0))
        assert checked(create(state, ContainerFacts(pod, "main", 14_000), 0.0)).pods["p"].request == 14_000

    def test_ramp_up_begins_with_the_main_container(self) -> None:
        pod = facts("p", SHARED, 3, main_container="main")
        state = checked(create(t16(), ContainerFacts(pod, "init", 100), 0.0))
        assert ramp_due_s(state) is None
        state = checked(create(state, ContainerFacts(pod, "main", 2_000), 40.0))
        assert ramp_due_s(state) == 70.0
        # A pool has what main containers request.
        state = ramp_done(replace(state, settings=state.settings._replace(enable_reclaim=True)), 70.0)
        assert len(state.pools["share"]) == 2

    def test_a_restart_keeps_the_place_and_its_old_container_goes_alone(self) -> None:
        pod = facts("p", SHARED, 2)
        state = created(running(t16(), pod), "p", "main", "first")
        state = ramp_done(state, 30.0)
        again = checked(create(state, ContainerFacts(pod, "main", 2_000), 60.0))
        assert again.pools == state.pools
        assert cpus_of(again, "p") == cpus_of(state, "p")
        assert checked(remove(again, "p", "main", "first")) == again
        state = created(again, "p", "main", "second")
        assert checked(remove(state, "p", "main", "first")) == state
        assert checked(remove(state, "p", "main", "second")).pods["p"].containers == {}

    def test_a_container_whose_creation_failed_leaves_the_pod(self) -> None:
        pod = facts("p", EXCLUSIVE, 2)
        before = admitted(t16(), pod)
        state = checked(create(before, ContainerFacts(pod, "main", 2_000), 0.0))
        after = checked(remove(state, "p", "main"))
        assert replace(after, generation=before.generation) == before


class TestResize:
    def resized(self, qos: KatalystQos, cpus: float, to: float, ramp_s: float = 30.0) -> PoolState | Refusal:
        state = ramp_done(running(t16(enable_reclaim=True), facts("p", qos, cpus)), ramp_s)
        return resize(state, "p", "main", round(to * 1_000))

    def test_a_pool_follows(self) -> None:
        applied = checked(self.resized(SHARED, 2, 5))
        assert len(applied.pools["share"]) == 5
        assert applied.pods["p"].cpus == applied.pools["share"]

    def test_a_bound_pool_follows(self) -> None:
        applied = checked(self.resized(SNB, 1, 1.5))
        assert len(applied.pods["p"].cpus) == 3
        assert applied.pods["p"].millicpu == 1_500

    @pytest.mark.parametrize(
        ("qos", "to", "ramp_s"), [(DNB, 3, 30.0), (SHARED, 3, 0.0), (SHARED, 15, 30.0), (SNB, 4.5, 30.0)]
    )
    def test_it_is_refused(self, qos: KatalystQos, to: float, ramp_s: float) -> None:
        outcome = self.resized(qos, 2, to, ramp_s)
        assert isinstance(outcome, Refusal)
        assert outcome.kind is RefusalKind.RESIZE

    def test_a_pod_cannot_be_bound_by_it(self) -> None:
        state = ramp_done(running(t16(), facts("p", SHARED, 2)), 30.0)
        assert refused(resize(state, "p", "main", 3_000, SNB))

    @pytest.mark.parametrize("qos", [SHARED, DNB])
    def test_a_request_that_was_not_known_is_none(self, qos: KatalystQos) -> None:
        pod = facts("p", qos, 3)
        state = checked(create(t16(), ContainerFacts(pod, "main", None), 0.0))
        after = checked(resize(state, "p", "main", 3_000))
        assert after.pods["p"].containers["main"].millicpu == 3_000
        assert after.pods["p"].request == 3_000
        assert after.pods["p"].cpus == state.pods["p"].cpus

    def test_the_same_request_is_none(self) -> None:
        state = running(t16(), facts("p", DNB, 2))
        assert checked(resize(state, "p", "main", 2_000)) == state
        assert checked(resize(state, "p", "unknown", 2_000)) == state


class TestReclaim:
    def test_it_is_never_empty(self) -> None:
        state = initial(machine(4, 1, 1), PoolSettings(enable_reclaim=True))
        state = running(state, facts("d", EXCLUSIVE, 4))
        assert cpus_of(running(state, facts("r", RECLAIMED, 1)), "r") == "0-3"

    def test_it_evades_cpus_that_a_pod_has_alone(self) -> None:
        state = running(t16(enable_reclaim=True), facts("d", EXCLUSIVE, 2))
        state = running(ramp_done(running(state, facts("a", SHARED, 11)), 30.0), facts("r", RECLAIMED))
        assert not state.pods["r"].cpus & state.pods["d"].cpus

    def test_off_and_on(self) -> None:
        state = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
        on = checked(configure(state, state.settings._replace(enable_reclaim=True), T16))
        assert [len(on.pools[name]) for name in ("share", "reclaim")] == [2, 12]
        off = checked(configure(on, state.settings, T16))
        assert off.pools == state.pools
        assert {step for step, _, _ in steps(on, off)} == {"GROW"}
        assert configure(off, state.settings, T16) == off

    def test_overlap_on_what_is_not_requested(self) -> None:
        state = ramp_done(running(t16(), facts("a", SHARED, 7)), 30.0)
        settings = state.settings._replace(enable_reclaim=True, overlap=True)
        after = checked(configure(state, settings, T16))
        assert pools_of(after)["share"] == "1,3-15"
        # 1 - 7/14 of it.
        assert len(after.pools["reclaim"]) == 7
        assert after.pools["reclaim"] < after.pools["share"]


class TestPools:
    def test_named_pools_share_what_is_too_little_by_requests(self) -> None:
        state = initial(machine(16, 1, 1), PoolSettings())
        for pool, millicpu in (("a", 2), ("b", 6)):
            state = running(state, facts(pool, KatalystQos(pool=pool), millicpu))
        state = ramp_done(state, 30.0)
        # Reclaim is off: what is left beyond 4 CPUs is given back by size.
        assert {name: len(each) for name, each in state.pools.items()} == {
            "reserve": 0,
            "a": 3,
            "b": 9,
            "reclaim": 4,
        }
        state = checked(configure(state, PoolSettings(reserved_count=10), state.topology))
        assert {name: len(each) for name, each in state.pools.items() if name in "ab"} == {"a": 2, "b": 4}

    def test_a_pod_without_a_request_ramps_up_for_ever(self) -> None:
        state = ramp_done(running(t16(), facts("p", SHARED, 0)), 30.0)
        assert "share" not in state.pools
        assert cpus_of(state, "p") == "1,3-15"
        # It is in the pool of others, if there is one.
        state = ramp_done(running(state, facts("q", SHARED, 1)), 60.0)
        assert cpus_of(state, "p") == cpus_of(state, "q") != "1,3-15"

    def test_advice_splits_a_pod_off(self) -> None:
        state = t16(enable_reclaim=True)
        for uid, millicpu in (("a", 2), ("b", 3)):
            state = running(state, facts(uid, SHARED, millicpu))
        state = ramp_done(state, 30.0)
        advice = AdvisedSizes({"share": 4}, frozenset({"b"}))
        after = checked(configure(state, state.settings, T16, advice))
        assert {name: len(each) for name, each in after.pools.items()} == {
            "reserve": 2,
            "share": 4,
            "isolation-b": 3,
            "reclaim": 7,
        }
        assert after.pods["b"].cpus == after.pools["isolation-b"]
        # Where there is no room for it, it is in its pool.
        crowded = ramp_done(running(after, facts("c", SHARED, 8)), 30.0)
        large = AdvisedSizes({"share": 12}, frozenset({"b"}))
        assert "isolation-b" not in checked(configure(crowded, state.settings, T16, large)).pools
        alone = ramp_done(running(t16(enable_reclaim=True), facts("b", SHARED, 3)), 30.0)
        huge = AdvisedSizes({"isolation-b": 20}, frozenset({"b"}))
        alone = checked(configure(alone, alone.settings, T16, huge))
        assert (alone.pods["b"].owner, len(alone.pods["b"].cpus)) == ("share", 3)
        overlapping = checked(configure(alone, alone.settings._replace(overlap=True), T16, huge))
        assert len(overlapping.pools["reclaim"]) == 14 - 3

    def test_system_pods_are_where_their_pools_are(self) -> None:
        state = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
        state = running(running(state, facts("s", system("share"))), facts("b", system(numa_binding=True)))
        state = running(state, facts("d", EXCLUSIVE, 2))
        assert state.pods["s"].cpus == state.pools["share"]
        assert state.pods["b"].cpus == T16.all_cpus - state.reserved - state.dedicated
        assert state.pods["b"].mems == frozenset({0, 1, 2, 3}) - state.pods["d"].numa_ids


class TestTopology:
    def test_cpus_go_offline_and_come_back(self) -> None:
        state = running(running(t16(), facts("d", DNB, 2)), facts("x", EXCLUSIVE, 2))
        state = ramp_done(running(state, facts("a", SHARED, 2)), 30.0)
        fewer = Topology(
            tuple(cpu for cpu in T16.cpus if cpu.id not in state.pods["d"].cpus), T16.memory_bytes
        )
        after = checked(configure(state, state.settings, fewer))
        assert after.pods["d"].cpus <= fewer.all_cpus
        assert after.pods["d"].problem
        back = checked(configure(after, state.settings, T16))
        assert len(back.pods["d"].cpus) == 2
        assert back.pods["d"].problem == ""

    def test_a_pod_whose_cpus_are_all_offline_is_one_of_share(self) -> None:
        state = running(t16(), facts("x", EXCLUSIVE, 2))
        fewer = Topology(tuple(cpu for cpu in T16.cpus if cpu.numa_node != 0), T16.memory_bytes)
        after = checked(configure(state, state.settings, fewer))
        assert after.pods["x"].problem
        assert after.pods["x"].cpus

    @pytest.mark.parametrize("qos", [SNB, EXCLUSIVE])
    def test_a_numa_node_goes_offline_with_bound_pods(self, qos: KatalystQos) -> None:
        state = running(t16(), facts("p", qos, 2, bind_result=frozenset({1})))
        [node] = state.pods["p"].numa_ids
        fewer = Topology(tuple(cpu for cpu in T16.cpus if cpu.numa_node != node), T16.memory_bytes)
        after = checked(configure(state, state.settings, fewer))
        assert after.pods["p"].cpus <= fewer.all_cpus
        # Others are placed as before.
        after = running(running(after, facts("q", SNB, 1)), facts("r", SHARED, 1))
        assert checked(configure(after, state.settings, T16)).pods["p"].cpus

    def test_a_restart_on_another_topology(self) -> None:
        state = ramp_done(running(t16(), facts("a", SHARED, 2)), 30.0)
        fewer = Topology(T16.cpus[:12], T16.memory_bytes)
        saved = json.loads(StateEncoder().text(state))
        read = from_document(saved, fewer)
        assert read == state
        assert checked(configure(read, state.settings, fewer)).topology == fewer

    def test_reserved_cpus_by_number(self) -> None:
        state = initial(T16, PoolSettings(reserved_cpus=cpus("0,8,99"), reserved_count=5))
        assert pools_of(state)["reserve"] == "0,8"


class TestAdoption:
    def live(self, uid: str, qos: KatalystQos, count: float, has: str = "") -> ObservedPod:
        container = LiveContainer("main", f"id-{uid}", round(count * 1_000), cpus=cpus(has))
        return ObservedPod(facts(uid, qos, count), (container,))

    def test_pods_stay_where_they_are(self) -> None:
        live = [
            self.live("a", SHARED, 2),
            self.live("d", DNB, 2, "6,14"),
            self.live("e", DNB, 2, "4-5,12-13"),
            self.live("s", SNB, 1, "3,11"),
            self.live("x", EXCLUSIVE, 2, "1,8-9"),
        ]
        states = [checked(adopt(t16(), order)) for order in itertools.permutations(live)]
        state = states[0]
        assert all(each == state for each in states)
        assert cpus_of(state, "d") == "6,14"
        assert len(state.pods["e"].cpus) == 2
        assert state.pods["s"].numa_ids == frozenset({1})
        assert cpus_of(state, "x") == "1,8-9"
        assert state.pods["a"].owner == "share"
        assert not any(pod.problem for pod in state.pods.values())

    def test_one_that_has_cpus_alone_keeps_those_that_it_runs_on(self) -> None:
        applied = checked(adopt(t16(), [self.live("d", DNB, 2, "1,9-12"), self.live("a", SHARED, 1)]))
        assert cpus_of(applied, "d") == "1,9"

    def test_a_pool_of_its_own_stays_where_there_is_too_little_room(self) -> None:
        live = [self.live("a", SHARED, 14), self.live("b", KatalystQos(pool="batch"), 2)]
        state = checked(adopt(t16(), live))
        assert (state.pods["b"].owner, bool(state.pods["b"].problem)) == ("batch", True)

    def test_what_does_not_fit_is_one_of_share(self) -> None:
        live = [self.live("a", EXCLUSIVE, 14), self.live("b", EXCLUSIVE, 2)]
        state = checked(adopt(t16(), live))
        assert [bool(state.pods[uid].problem) for uid in "ab"] == [False, True]

    def test_it_gets_its_place_once_there_is_room(self) -> None:
        live = [self.live("a", EXCLUSIVE, 14), self.live("b", EXCLUSIVE, 2)]
        state = checked(adopt(t16(), live))
        assert reconcile(state, live) == state
        applied = checked(reconcile(state, live[1:]))
        assert cpus_of(applied, "b") == "1,8-9"
        assert applied.pods["b"].problem == ""
        assert steps(state, applied)[-1] == ("DEDICATED", "b", "1,8-9")

    @pytest.mark.parametrize(("qos", "count"), [(SHARED, 2), (SHARED, None), (DNB, None), (SNB, None)])
    def test_a_container_that_was_created_while_calls_passed_by(
        self, qos: KatalystQos, count: float | None
    ) -> None:
        pod = facts("p", qos, count)
        state = checked(reconcile(admitted(t16(), pod), [ObservedPod(pod)]))
        assert state.pods["p"].is_waiting
        live = [ObservedPod(pod, (LiveContainer("main", "id", 2_000),))]
        state = checked(reconcile(state, live))
        assert state.pods["p"].owner in ("share", "dedicated", "share-NUMA2")
        assert not state.pods["p"].problem
        assert checked(reconcile(state, live)) == state

    def test_a_main_container_that_exits_leaves_the_pool_as_it_is(self) -> None:
        pod = facts("p", SHARED, 3)
        state = t16(enable_reclaim=True)
        for name, millicpu in (("main", 2_500), ("side", 500)):
            state = checked(create(state, ContainerFacts(pod, name, millicpu), 0.0))
        state = ramp_done(state, 30.0)
        after = checked(reconcile(state, [ObservedPod(pod, (LiveContainer("side", "id", 500),))]))
        assert after.pools == state.pools

    def test_reconciling_leaves_pods_in_flight(self) -> None:
        pod = facts("new", DNB, 2)
        state = running(t16(), pod)
        assert checked(reconcile(state, [], {"new"})) == state
        live = [ObservedPod(pod, (LiveContainer("main", "id", 2_000),))]
        after = checked(reconcile(state, live))
        assert after.pods["new"].containers["main"].id == "id"
        assert after.pods["new"].cpus == state.pods["new"].cpus
        assert checked(reconcile(after, live)) == after
        assert checked(reconcile(after, [])).pods == {}


class TestDocument:
    def state(self) -> PoolState:
        state = running(t16(reserved_memory_bytes=GIB), facts("d", DNB, 2, memory_bytes=GIB))
        state = created(running(state, facts("a", SHARED, 2), now_s=1.5), "a", "main", "id")
        return replace(state, advice=AdvisedSizes({"share": 3}, frozenset({"a"})))

    def test_it_is_read_back(self) -> None:
        state = self.state()
        saved = {"boot_id": "b", **json.loads(StateEncoder().text(state))}
        assert from_document(saved, T16) == state

    @pytest.mark.parametrize("member", ["pools", "pods", "settings", "version"])
    def test_another_content_is_refused(self, member: str) -> None:
        saved = json.loads(StateEncoder().text(self.state()))
        saved[member] = 7
        with pytest.raises(UNLIKE_OURS):
            from_document(saved, T16)

    def test_texts_follow_the_states(self) -> None:
        encoder, state = StateEncoder(), self.state()
        for after in (
            state,
            ramp_done(state, 40.0),
            running(state, facts("b", SHARED, 2)),
            remove(state, "d"),
            configure(state, state.settings._replace(enable_reclaim=True), T16),
            configure(state, state.settings, replace(T16, cpus=T16.cpus[:-1])),
            configure(state, state.settings, T16, AdvisedSizes({"share": 4}, frozenset())),
        ):
            assert isinstance(after, PoolState)
            assert from_document(json.loads(encoder.text(after)), after.topology) == after
