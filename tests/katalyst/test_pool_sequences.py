"""Random sequences of events: all invariants hold after each, and changes lead from state to state."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from runtimeproxy.katalyst.explain import reasons
from runtimeproxy.katalyst.hints import HintPolicy
from runtimeproxy.katalyst.levels import KatalystQos, QosLevel
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
    Change,
    ChangeStep,
    PoolAdvice,
    PoolSettings,
    PoolState,
    PoolUpdate,
    as_document,
    from_document,
    problems,
)
from runtimeproxy.katalyst.topology import Topology
from tests.katalyst.pool_doubles import GIB, T16, machine

MACHINES = {
    "16 CPUs, 4 NUMA nodes": T16,
    "2 CPUs": machine(2, 1, 1),
    "4 CPUs": machine(4, 1, 1),
    "8 CPUs without SMT": machine(8, 1, 1, threads=1),
    "24 CPUs, 2 sockets": machine(24, 2, 2),
    "128 CPUs, 8 NUMA nodes": machine(128, 2, 8),
}


class Sequence:
    """Events on one node, drawn by a seed."""

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
                    LiveContainer(name, each.id, each.millicpu, each.is_init, pod.cpus)
                    for name, each in pod.containers.items()
                ),
            )
            for uid, pod in self.state.pods.items()
        ]

    def next_outcome(self) -> tuple[Outcome, tuple[str, str] | None]:
        """What the next event does, and the container that it creates."""
        self.now_s += self.draw.uniform(0, 10)
        uids, kind = sorted(self.state.pods), self.draw.random()
        is_forced = self.draw.random() < 0.2
        if kind < 0.4 or not uids:
            return admit(self.state, self.pod(), is_forced=is_forced), None
        uid = self.draw.choice(uids)
        if kind < 0.62:
            name, pod = self.draw.choice(["main", "side"]), self.known[uid]
            container = ContainerFacts(pod, name, pod.millicpu)
            return create(self.state, container, self.now_s, is_forced=is_forced), (uid, name)
        if kind < 0.72:
            return ramp_done(self.state, self.now_s), None
        if kind < 0.8:
            return resize(self.state, uid, "main", self.draw.choice([0, 500, 3_000])), None
        if kind < 0.9:
            return remove(self.state, uid, *self.draw.choice([(), (), ("main",)])), None
        if kind < 0.95:
            return self.configured(), None
        if kind < 0.96:
            return self.restarted(), None
        lost = [each for each in self.live() if self.draw.random() < 0.8]
        return reconcile(self.state, lost, self.draw.sample(uids, 1)), None

    def configured(self) -> PoolUpdate:
        count = len(self.topology.cpus)
        off = set(self.draw.sample(range(count), self.draw.choice([0, 0, count // 4])))
        if len(self.topology.numa_nodes) > 1 and self.draw.random() < 0.3:
            off |= self.topology.by_numa[self.draw.choice(self.topology.numa_nodes)]
        topology = replace(self.topology, cpus=tuple(cpu for cpu in self.topology.cpus if cpu.id not in off))
        advice = self.draw.choice(
            [None, PoolAdvice({"share": 3}, frozenset(self.draw.sample(sorted(self.known), 1)))]
        )
        return configure(self.state, self.other_settings(self.state.settings), topology, advice)

    def restarted(self) -> PoolUpdate:
        """On the node as it was at first, with what was saved."""
        saved = json.loads(json.dumps(as_document(self.state)))
        read = from_document(saved, self.topology)
        assert read == self.state
        return configure(read, read.settings, self.topology, read.advice)

    def run(self, events: int) -> Iterator[tuple[PoolState, PoolUpdate, tuple[str, str] | None]]:
        for _ in range(events):
            before = self.state
            outcome, creating = self.next_outcome()
            if isinstance(outcome, PoolUpdate):
                self.state = outcome.state
                yield before, outcome, creating


def check_changes(before: PoolState, applied: PoolUpdate, creating: tuple[str, str] | None) -> None:
    has = {(pod.uid, name): (pod.cpus, pod.mems) for pod, name, _ in before.containers()}
    assert [each.step for each in applied.changes] == sorted(each.step for each in applied.changes)
    shrunk = [each for each in applied.changes if each.step is ChangeStep.SHRINK]
    apply(has, shrunk)
    check_alone(applied.state, has, creating)
    apply(has, [each for each in applied.changes if each.step is not ChangeStep.SHRINK])
    for pod, name, _ in applied.state.containers():
        if (pod.uid, name) != creating:
            assert has[pod.uid, name] == (pod.cpus, pod.mems)


def apply(has: dict[tuple[str, str], tuple[frozenset[int], frozenset[int]]], changes: list[Change]) -> None:
    for each in changes:
        place = (each.cpus, each.mems)
        assert has.get((each.uid, each.container)) != place
        has[each.uid, each.container] = place


def check_alone(
    after: PoolState,
    has: dict[tuple[str, str], tuple[frozenset[int], frozenset[int]]],
    creating: tuple[str, str] | None,
) -> None:
    """Once the others have shrunk, no other pod runs on the CPUs that a pod has alone."""
    for pod, name, _ in after.containers():
        others = after.dedicated - pod.dedicated
        is_system_or_reclaimed = pod.level in (QosLevel.SYSTEM, QosLevel.RECLAIMED)
        if (pod.uid, name) != creating and not is_system_or_reclaimed and not pod.cpus & others:
            assert not has.get((pod.uid, name), (frozenset(),))[0] & others


def check(topology: Topology, seed: int, events: int) -> None:
    sequence = Sequence(topology, seed)
    for before, applied, creating in sequence.run(events):
        state = applied.state
        assert problems(state) == (), f"seed {seed}"
        check_changes(before, applied, creating)
        assert from_document(json.loads(json.dumps(as_document(state))), state.topology) == state
    assert all(reasons(sequence.state, uid) for uid in sequence.state.pods)
    # A restart, with what was saved and without.
    live = sequence.live()
    again = reconcile(sequence.state, live)
    assert problems(again.state) == ()
    # A pod without the place that it asked for may get one.
    assert again.state == sequence.state or any(pod.problem for pod in sequence.state.pods.values())
    anew = [
        adopt(initial(sequence.state.topology, sequence.state.settings), order).state
        for order in (live, live[::-1])
    ]
    assert anew[0] == anew[1]
    assert problems(anew[0]) == ()


@pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)
def test_invariants_hold(topology: Topology) -> None:
    for seed in range(2):
        check(topology, seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("topology", MACHINES.values(), ids=MACHINES)
def test_invariants_hold_for_long(topology: Topology) -> None:
    for seed in range(100, 112):
        check(topology, seed, 200)


def test_the_same_events_give_the_same_states() -> None:
    runs = [[applied for _, applied, _ in Sequence(T16, 7).run(80)] for _ in range(2)]
    assert runs[0] == runs[1]
