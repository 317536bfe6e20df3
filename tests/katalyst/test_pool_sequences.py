"""Random sequences of events: all invariants hold after each, and while pods follow from state to state."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.katalyst.explain import reasons
from runtimeproxy.katalyst.hints import HintPolicy
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import (
    ContainerFacts,
    LiveContainer,
    ObservedPod,
    Outcome,
    admit,
    adopt,
    configure,
    create,
    initial,
    ramp_done,
    reconcile,
    remove,
    resize,
)
from runtimeproxy.katalyst.pools import (
    AdvisedSizes,
    PoolSettings,
    PoolState,
    StateEncoder,
    from_document,
    others,
    problems,
)
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.katalyst.transition import Placement, after_shrink, growing, of_state
from tests.katalyst.pool_doubles import GIB, T16, machine

MACHINES = {
    "16 CPUs, 4 NUMA nodes": T16,
    "2 CPUs": machine(2, 1, 1),
    "4 CPUs": machine(4, 1, 1),
    "8 CPUs without SMT": machine(8, 1, 1, threads=1),
    "24 CPUs, 2 sockets": machine(24, 2, 2),
    "128 CPUs, 8 NUMA nodes": machine(128, 2, 8),
}


class Events:
    """Events on one node, each drawn by a seed of its own: without one the others stay what they are."""

    def __init__(self, topology: Topology, seed: int) -> None:
        self.draw = random.Random(seed)
        self.topology = topology
        settings = PoolSettings(
            reserved_count=self.draw.choice([0, 1, 2]) if len(topology.cpus) > 2 else 0,
            reserved_memory_bytes=GIB,
            enable_reclaim_numa_binding=self.draw.random() < 0.5,
        )
        self.state = initial(topology, self.other_settings(settings))
        self.now_s = 0.0
        self.known: dict[str, PodFacts] = {}
        assert problems(self.state) == ()

    def other_settings(self, settings: PoolSettings) -> PoolSettings:
        on, overlap = self.draw.random() < 0.5, self.draw.random() < 0.3
        policy = self.draw.choice(list(HintPolicy))
        return settings._replace(enable_reclaim=on, overlap=overlap, numa_hint_policy=policy)

    def qos(self) -> KatalystQos:
        level, bound = self.draw.choice(list(QosLevel)), self.draw.random() < 0.5
        numa_share = self.draw.random() > 0.15
        if level is QosLevel.DEDICATED:
            kind = self.draw.choice(["exclusive", "evenly", "cores", "", "", ""]) if bound else ""
            return KatalystQos(
                level=level,
                pool="dedicated",
                numa_binding=bound,
                numa_exclusive=kind == "exclusive",
                distribute_evenly=kind == "evenly",
                full_pcpus=kind == "cores",
                numa_number=self.draw.choice([None, None, 1, 2]) if bound else None,
                numa_share=numa_share,
            )
        if level is QosLevel.RECLAIMED:
            return KatalystQos(level=level, pool="reclaim", numa_binding=bound)
        if level is QosLevel.SYSTEM:
            return KatalystQos(
                level=level, pool=self.draw.choice(["", "reserve", "share"]), numa_binding=bound
            )
        pool = self.draw.choice(["share", "share", "batch", "a"])
        return KatalystQos(pool=pool, numa_binding=bound, numa_share=numa_share)

    def pod(self) -> PodFacts:
        millicpu = self.draw.choice([None, 0, 100, 1_000, 1_500, 2_000, 4_000, self.draw.randrange(20_000)])
        memory_bytes = self.draw.choice([None, GIB, 5 * GIB])
        name = f"pod-{len(self.known):03}"
        pod = PodFacts(name, self.qos(), "ns", name, millicpu, millicpu, memory_bytes)
        self.known[pod.uid] = pod
        return pod

    def live(self) -> list[ObservedPod]:
        return [
            ObservedPod(
                self.known[uid],
                tuple(
                    LiveContainer(name, each.id, each.millicpu, pod.cpus)
                    for name, each in pod.containers.items()
                ),
            )
            for uid, pod in self.state.pods.items()
        ]

    def next_outcome(self) -> Outcome:
        """What the next event does."""
        self.now_s += self.draw.uniform(0, 10)
        uids, kind = sorted(self.state.pods), self.draw.random()
        is_forced = self.draw.random() < 0.2
        if kind < 0.4 or not uids:
            return admit(self.state, self.pod(), is_forced=is_forced)
        uid = self.draw.choice(uids)
        if kind < 0.62:
            name, pod = self.draw.choice(["main", "side"]), self.known[uid]
            container = ContainerFacts(pod, name, pod.millicpu)
            return create(self.state, container, self.now_s, is_forced=is_forced)
        if kind < 0.72:
            return ramp_done(self.state, self.now_s)
        if kind < 0.8:
            return resize(self.state, uid, "main", self.draw.choice([0, 500, 3_000]))
        if kind < 0.9:
            return remove(self.state, uid, *self.draw.choice([(), (), ("main",)]))
        if kind < 0.95:
            return self.configured()
        if kind < 0.96:
            return self.restarted()
        lost = [each for each in self.live() if self.draw.random() < 0.8]
        return reconcile(self.state, lost, self.draw.sample(uids, 1))

    def configured(self) -> PoolState:
        count = len(self.topology.cpus)
        off = set(self.draw.sample(range(count), self.draw.choice([0, 0, count // 4])))
        if len(self.topology.numa_nodes) > 1 and self.draw.random() < 0.3:
            off |= self.topology.by_numa[self.draw.choice(self.topology.numa_nodes)]
        topology = replace(self.topology, cpus=tuple(cpu for cpu in self.topology.cpus if cpu.id not in off))
        advice = self.draw.choice(
            [None, AdvisedSizes({"share": 3}, frozenset(self.draw.sample(sorted(self.known), 1)))]
        )
        return configure(self.state, self.other_settings(self.state.settings), topology, advice)

    def restarted(self) -> PoolState:
        """On the node as it was at first, with what was saved."""
        saved = json.loads(StateEncoder().text(self.state))
        read = from_document(saved, self.topology)
        assert read == self.state
        return configure(read, read.settings, self.topology, read.advice)

    def run(self, events: Sequence[int]) -> Iterator[tuple[PoolState, PoolState]]:
        for seed in events:
            self.draw.seed(seed)
            before = self.state
            outcome = self.next_outcome()
            if isinstance(outcome, PoolState):
                self.state = outcome
                yield before, outcome


class Pods:
    """What pods have while pools change: some get the rest before the next change, some do not."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.has: dict[str, Placement] = {}

    def follow(self, before: PoolState, after: PoolState) -> None:
        known, now = self.has, after_shrink(self.has, after, others(before.pods, after.pods))
        assert now == after_shrink(known, after)
        for uid in now.keys() & known.keys():
            # In the first step no pod gains CPUs, unless it keeps none of its own.
            assert now[uid].cpus
            assert now[uid].cpus <= known[uid].cpus or not known[uid].cpus & after.pods[uid].cpus
        check_alone(after, now)
        order = list(growing(now, after))
        assert order == sorted(order, key=lambda uid: (not after.pods[uid].dedicated, uid))
        assert set(order) == {uid for uid, each in of_state(after).items() if now[uid] != each}
        for uid in order[: self._draw.randint(0, len(order))]:
            now[uid] = of_state(after)[uid]
            check_alone(after, now)
        self.has = now

    def finish(self, state: PoolState) -> None:
        self.has |= {uid: of_state(state)[uid] for uid in growing(self.has, state)}
        assert self.has == of_state(state)


def check_alone(after: PoolState, has: dict[str, Placement]) -> None:
    """No pod runs on the CPUs that another one has alone, unless the state says so."""
    for uid, pod in after.pods.items():
        of_others = after.dedicated - pod.dedicated
        is_system_or_reclaimed = pod.level in (QosLevel.SYSTEM, QosLevel.RECLAIMED)
        if not is_system_or_reclaimed and not pod.cpus & of_others:
            assert not has[uid].cpus & of_others


def check(topology: Topology, events: Sequence[int]) -> None:
    sequence, encoder = Events(topology, events[0]), StateEncoder()
    pods = Pods(sequence.draw)
    whole, changes = encoder.text(sequence.state), list[str]()
    for before, state in sequence.run(events):
        assert problems(state) == ()
        pods.follow(before, state)
        change, text = encoder.change(before, state), encoder.text(state)
        whole, changes = (text, []) if change is None else (whole, [*changes, change])
        for saved, since in ((text, ()), (whole, changes)):
            assert from_document(json.loads(saved), state.topology, map(json.loads, since)) == state
    pods.finish(sequence.state)
    assert all(reasons(sequence.state, uid) for uid in sequence.state.pods)
    # A restart, with what was saved and without.
    live = sequence.live()
    again = reconcile(sequence.state, live)
    assert problems(again) == ()
    # A pod without the place that it asked for may get one.
    assert again == sequence.state or any(pod.problem for pod in sequence.state.pods.values())
    anew = [
        adopt(initial(sequence.state.topology, sequence.state.settings), order)
        for order in (live, live[::-1])
    ]
    assert anew[0] == anew[1]
    assert problems(anew[0]) == ()


SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)
@given(events=st.lists(SEEDS, min_size=30, max_size=60))
@settings(max_examples=2)
def test_invariants_hold(topology: Topology, events: list[int]) -> None:
    check(topology, events)


@pytest.mark.slow
@pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)
@given(events=st.lists(SEEDS, min_size=100, max_size=200))
@settings(max_examples=14)
def test_invariants_hold_for_long(topology: Topology, events: list[int]) -> None:
    check(topology, events)


def test_the_same_events_give_the_same_states() -> None:
    runs = [[after for _, after in Events(T16, 7).run(range(80))] for _ in range(2)]
    assert runs[0] == runs[1]
