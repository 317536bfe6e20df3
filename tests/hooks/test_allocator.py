"""Allocations of CPUs: the rules, and the state of a node."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.hooks.allocator import (
    NO_ALLOCATIONS,
    Allocated,
    Allocations,
    NodeAllocator,
    SharePools,
    from_text,
    gained_cpus,
    overlaps,
    to_text,
)
from runtimeproxy.node.derived import RESOURCE_STATUS, computed_pools
from runtimeproxy.node.objects import TopologyFacts
from runtimeproxy.node.snapshot import Cpu, PodCpus
from runtimeproxy.qos import QOS_CLASS_LABEL, QoSClass

RULES = SharePools()


def pod(uid: str, cpus: str = "2-3", qos: QoSClass = QoSClass.LSR) -> PodView:
    annotations = {RESOURCE_STATUS: f'{{"cpuset": "{cpus}"}}'} if cpus else {}
    return PodView(uid=uid, qos=qos, labels={QOS_CLASS_LABEL: qos.value}, annotations=annotations)


def owned(*cpus: int, qos: QoSClass = QoSClass.LSR) -> PodCpus:
    return PodCpus(qos, frozenset(cpus))


class Disk:
    """The states that have been saved; it can be made to fail."""

    def __init__(self) -> None:
        self.states: list[Allocations] = []
        self.error: Exception | None = None

    def save(self, allocations: Allocations) -> None:
        if self.error is not None:
            raise self.error
        self.states.append(allocations)


def make(disk: Disk | None = None, allocations: Allocations = NO_ALLOCATIONS) -> NodeAllocator:
    return NodeAllocator(RULES, save=(disk or Disk()).save, allocations=allocations)


def test_pods_with_cpus_of_their_own_are_noted() -> None:
    state = RULES.admit(pod("a"), NO_ALLOCATIONS)
    assert state == {"a": owned(2, 3)}
    assert RULES.admit(pod("a"), state) is state
    assert RULES.admit(pod("b", ""), state) is state
    assert RULES.admit(pod("a", ""), state) == {}
    assert RULES.release("a", state) == {}
    assert RULES.release("b", state) is state
    assert RULES.rebuild([pod("a"), pod("b", "")]) == state


def test_a_container_brings_a_pod_that_nobody_admitted() -> None:
    assert RULES.create(ContainerView(name="main", pod=pod("a")), NO_ALLOCATIONS) == {"a": owned(2, 3)}


@pytest.mark.parametrize(
    ("before", "after", "gained"),
    [
        ({}, {"a": owned(2, 3)}, {2, 3}),
        ({"a": owned(2, 3)}, {"a": owned(2, 3), "b": owned(3, 4)}, {4}),
        ({"a": owned(2, 3)}, {"a": owned(2, 3, qos=QoSClass.LSE)}, {2, 3}),
        ({"a": owned(2, 3)}, {}, set()),
        ({"a": owned(2, 3, qos=QoSClass.LSE)}, {"a": owned(2, 3)}, set()),
    ],
)
def test_cpus_that_others_must_leave(
    before: dict[str, PodCpus], after: dict[str, PodCpus], gained: set[int]
) -> None:
    assert gained_cpus(before, after) == gained


def test_cpus_that_two_pods_have_are_a_problem_of_the_later_one() -> None:
    state = {"a": owned(2, 3), "b": owned(3, 4), "c": owned(5)}
    assert overlaps("b", state) == ("CPUs 3 are also allocated to the pod with uid a",)
    assert overlaps("c", state) == ()
    assert overlaps("unknown", state) == ()


STATES = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(PodCpus, st.sampled_from(QoSClass), st.frozensets(st.integers(0, 255), min_size=1)),
    max_size=5,
)


@given(STATES)
def test_a_saved_state_comes_back(state: dict[str, PodCpus]) -> None:
    assert from_text(to_text(state)) == state


@pytest.mark.parametrize(
    "text", ["", "[1]", '["a"]', '{"a": 1}', '{"a": {}}', '{"a": {"qos": "X", "cpus": ""}}', "[" * 100_000]
)
def test_another_text_is_no_state(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        from_text(text)


# --- the node's state --------------------------------------------------------------------------------------


def test_a_state_counts_when_it_has_been_saved() -> None:
    disk = Disk()
    counted: list[Allocations] = []

    def save(allocations: Allocations) -> None:
        counted.append(allocator.allocations)
        disk.save(allocations)

    allocator = NodeAllocator(RULES, save=save)
    assert allocator.admit(pod("a")) == Allocated(frozenset({2, 3}))
    assert counted == [{}]
    assert disk.states == [{"a": owned(2, 3)}] == [allocator.allocations]
    # Nothing new: nothing to save.
    allocator.create(ContainerView(name="main", pod=pod("a")))
    assert len(disk.states) == 1


def test_cpus_are_named_until_the_others_have_left_them() -> None:
    allocator = make()
    occupied = allocator.admit(pod("a")).occupied
    assert occupied == {2, 3}
    container = ContainerView(name="main", pod=pod("a"))
    assert allocator.create(container).occupied == occupied
    allocator.left("a", occupied)
    assert allocator.create(container).occupied == frozenset()
    # Another allocation of the same pod: only what is new, and what an older answer says does not count.
    assert allocator.admit(pod("a", "3-4")).occupied == {4}
    allocator.left("a", occupied)
    assert allocator.create(ContainerView(pod=pod("a", "3-4"))).occupied == {4}
    allocator.release("a")
    assert allocator.admit(pod("b")).occupied == {2, 3}


def test_share_pools_shrink_when_a_pod_arrives_and_grow_when_it_leaves() -> None:
    """The first user: LS loses the CPUs of every pod that has some, BE only those of LSE pods."""
    cpus = [Cpu(id=n, core=n, socket=0, numa_node=n // 4, l3=0) for n in range(8)]
    allocator = make()

    def pools() -> tuple[set[int], set[int]]:
        found = computed_pools(cpus, (), allocator.allocations.values(), TopologyFacts())
        return {cpu for pool in found.ls for cpu in pool.cpus}, {
            cpu for pool in found.be for cpu in pool.cpus
        }

    everything = set(range(8))
    assert pools() == (everything, everything)
    allocator.admit(pod("a", "2-3"))
    assert pools() == (everything - {2, 3}, everything)
    allocator.admit(pod("b", "4", QoSClass.LSE))
    assert pools() == (everything - {2, 3, 4}, everything - {4})
    allocator.release("a")
    allocator.release("b")
    assert pools() == (everything, everything)


def test_a_pod_that_cannot_be_saved_is_not_admitted_and_not_refused() -> None:
    disk = Disk()
    allocator = make(disk)
    disk.error = OSError("disk full")
    result = allocator.admit(pod("a"))
    assert "disk full" in result.problems[0]
    assert not result.occupied
    assert allocator.allocations == {}
    disk.error = None
    assert allocator.create(ContainerView(pod=pod("a"))) == Allocated(frozenset({2, 3}))
    assert allocator.allocations == {"a": owned(2, 3)}


def test_a_release_counts_even_if_it_cannot_be_saved() -> None:
    disk = Disk()
    allocator = make(disk)
    allocator.admit(pod("a"))
    disk.error = OSError("disk full")
    allocator.release("a")
    assert allocator.allocations == {}


def test_after_a_start_the_pods_that_are_there_count() -> None:
    disk = Disk()
    saved = {"gone": owned(1), "there": owned(2)}
    allocator = make(disk, saved)
    assert allocator.allocations == saved
    allocator.admit(pod("new", "5"))
    allocator.rebuild([pod("there", "2"), pod("other", "7")])
    assert allocator.allocations == {"there": owned(2), "other": owned(7), "new": owned(5)}
    allocator.release("new")
    allocator.rebuild([])
    assert allocator.allocations == {}


def test_changes_are_told_without_the_lock() -> None:
    allocator = make()
    seen: list[Allocations] = []

    def on_change() -> None:
        # A second event from within would wait for ever if the lock were held.
        seen.append(allocator.allocations)
        if "a" in allocator.allocations:
            allocator.release("a")

    allocator.on_change = on_change
    allocator.admit(pod("a"))
    assert [dict(each) for each in seen] == [{"a": owned(2, 3)}, {}]


def test_pods_that_arrive_at_once_all_get_their_cpus() -> None:
    disk = Disk()
    allocator = make(disk)
    together = threading.Barrier(4, timeout=10)

    def arrive(number: int) -> None:
        together.wait()
        allocator.admit(pod(f"pod-{number}", str(number)))

    threads = [threading.Thread(target=arrive, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocator.allocations == {f"pod-{number}": owned(number) for number in range(4)}
    assert disk.states[-1] == allocator.allocations


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "create", "release", "restart"]),
        st.sampled_from("abc"),
        st.sampled_from(["", "0-1", "1-2", "5"]),
        st.sampled_from([QoSClass.LSR, QoSClass.LSE]),
        st.booleans(),
    ),
    max_size=20,
)


@given(EVENTS)
def test_any_order_of_events_leads_to_the_pods_that_are_there(
    events: list[tuple[str, str, str, QoSClass, bool]],
) -> None:
    """Also: what counts has been saved, and CPUs that are new to a pod are named until others have left."""
    disk = Disk()
    allocator = make(disk)
    there: dict[str, PodView] = {}
    for kind, uid, cpus, qos, has_left in events:
        view = pod(uid, cpus, qos)
        before = allocator.allocations
        if kind == "release":
            there.pop(uid, None)
            allocator.release(uid)
        elif kind == "restart":
            allocator = make(disk, from_text(to_text(allocator.allocations)))
            allocator.rebuild(there.values())
        else:
            there[uid] = view
            result = allocator.admit(view) if kind == "admit" else allocator.create(ContainerView(pod=view))
            assert gained_cpus(before, allocator.allocations) <= result.occupied
            if has_left:
                allocator.left(uid, result.occupied)
            again = allocator.create(ContainerView(pod=view)).occupied
            assert again == (frozenset() if has_left else result.occupied)
        assert allocator.allocations == RULES.rebuild(there.values())
        assert not disk.states or disk.states[-1] == allocator.allocations
