"""The store: ids, prefixes, groups, events and tombstones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.checkpoint.codec import RowKind, Saved
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import compact
from runtimeproxy.pods.store import PodStore


def pod(identity: str = "pod-1", uid: str = "u1") -> PodRecord:
    return PodRecord(id=identity, uid=uid)


def container(identity: str = "box-1", pod_id: str = "pod-1") -> ContainerRecord:
    return ContainerRecord(id=identity, pod_id=pod_id)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("abc1", "abc1", id="whole"),
        pytest.param("abc1x", None, id="longer"),
        pytest.param("abc", None, id="two-have-the-prefix"),
        pytest.param("x", "xyz", id="unique-prefix"),
        pytest.param("", None, id="empty"),
        pytest.param("q", None, id="unknown"),
        pytest.param("y" * 64, None, id="full-length"),
    ],
)
def test_get(wanted: str, expected: str | None) -> None:
    store = PodStore()
    for identity in ("abc1", "abc2", "xyz"):
        store.pods.put(pod(identity))
    found = store.pods.get(wanted)
    assert (found.id if found else None) == expected


def test_members_are_in_order_and_follow_changes() -> None:
    store = PodStore()
    for identity in ("a", "b"):
        store.containers.put(container(identity))
    store.containers.put(replace(container("a"), name="changed"))
    assert [found.id for found in store.containers.members("pod-1")] == ["a", "b"]
    store.containers.put(container("a", pod_id="pod-2"))
    assert [found.id for found in store.containers.members("pod-1")] == ["b"]
    assert [found.id for found in store.containers.members("pod-2")] == ["a"]
    assert store.containers.members("pod-3") == ()


def test_sandboxes_of_one_pod_are_found_by_uid() -> None:
    store = PodStore()
    store.pods.put(pod("a", "u1"))
    store.pods.put(pod("b", "u1"))
    store.pods.put(pod("c", "u2"))
    assert [found.id for found in store.pods.members("u1")] == ["a", "b"]


def test_removing_a_pod_removes_its_containers() -> None:
    store = PodStore()
    store.pods.put(pod())
    store.containers.put(container("a"))
    store.containers.put(container("b", pod_id="pod-2"))
    assert store.remove_pod("pod") == pod()
    assert [found.id for found in store.containers] == ["b"]


def test_a_list_asked_for_before_a_removal_does_not_bring_it_back() -> None:
    store = PodStore()
    store.containers.put(container("a"))
    with store.listing() as since:
        store.containers.remove("a")
        store.containers.merge({"a": container("a"), "b": container("b")}, since)
    assert [found.id for found in store.containers] == ["b"]


def test_a_removal_of_an_unknown_id_counts_too() -> None:
    store = PodStore()
    with store.listing() as since:
        store.containers.remove("a")
        store.containers.merge({"a": container("a")}, since)
    assert len(store.containers) == 0


def test_an_event_after_the_question_wins_over_the_answer() -> None:
    store = PodStore()
    with store.listing() as since:
        store.containers.put(replace(container("a"), name="from-the-call"))
        assert not store.containers.fill(replace(container("a"), name="from-the-runtime"), since)
        store.containers.merge({}, since)
    found = store.containers.get("a")
    assert found is not None
    assert found.name == "from-the-call"


def test_an_answer_fills_what_nothing_happened_to() -> None:
    store = PodStore()
    store.containers.put(container("a"))
    with store.listing() as since:
        assert store.containers.fill(replace(container("a"), name="from-the-runtime"), since)
    found = store.containers.get("a")
    assert found is not None
    assert found.name == "from-the-runtime"


def test_what_the_runtime_lost_is_dropped_and_told() -> None:
    store = PodStore()
    store.containers.put(container("a"))
    with store.listing() as since:
        dropped = store.containers.merge({}, since)
    assert dropped == (container("a"),)
    assert store.containers.members("pod-1") == ()


def test_tombstones_last_until_no_answer_is_awaited() -> None:
    store = PodStore()
    with store.listing() as since:
        with store.listing():
            store.containers.remove("a")
        assert not store.containers.fill(container("a"), since)
    with store.listing() as since:
        assert store.containers.fill(container("a"), since)


def test_equal_texts_of_many_pods_are_one_object() -> None:
    first, second = (compact({"".join(["ke", "y"]): "".join(["val", "ue"])}) for _ in range(2))
    assert next(iter(first)) is next(iter(second))
    assert first["key"] is second["key"]
    assert compact({}) is compact({})


def saved(*containers: ContainerRecord, pods: tuple[PodRecord, ...] = ()) -> Saved:
    return Saved(pods, containers)


OWNED = replace(container("a"), owners={"f": (Claimant("policy"),)}, booked=Resources(cpu_shares=2))


def test_a_checkpoint_fills_an_empty_store() -> None:
    store = PodStore()
    with store.listing() as since:
        assert store.load(saved(OWNED, pods=(pod(),)), since) == ("a",)
    assert (store.containers.get("a"), store.pods.get("pod-1")) == (OWNED, pod())


def test_what_happened_in_this_process_wins_over_the_checkpoint() -> None:
    store = PodStore()
    mine = replace(container("a"), name="mine")
    store.containers.put(mine)
    with store.listing() as since:
        store.containers.remove("b")
        assert store.load(saved(OWNED, container("b")), since) == ()
    assert list(store.containers) == [mine]


def test_what_the_runtime_said_gives_way_to_the_checkpoint() -> None:
    store = PodStore()
    with store.listing() as since:
        store.containers.fill(replace(container("a"), recovered=True), since)
    with store.listing() as since:
        assert store.load(saved(OWNED), since) == ("a",)
    assert store.containers.get("a") == OWNED


def test_the_runtimes_list_drops_what_only_the_checkpoint_has() -> None:
    store = PodStore()
    with store.listing() as since:
        store.load(saved(OWNED, pods=(pod(),)), since)
    with store.listing() as since:
        assert store.containers.merge({}, since) == (OWNED,)
        assert store.pods.merge({}, since) == (pod(),)
    assert store.containers.members("pod-1") == ()


def test_a_checkpoint_that_was_read_again_counts_where_nothing_happened() -> None:
    store = PodStore()
    with store.listing() as since:
        store.load(saved(OWNED, container("b")), since)
        store.containers.put(replace(container("b"), name="mine"))
    newer = replace(OWNED, owners={"f": (Claimant("other"),)})
    with store.listing() as since:
        assert store.load(saved(newer, container("b"), container("c")), since) == ("a", "c")
    assert store.containers.get("a") == newer


def test_what_is_told_of_changes() -> None:
    store, told = PodStore(), list[tuple[RowKind, str, bool]]()
    store.on_change = lambda kind, identity, seen: told.append((kind, identity, seen))
    store.pods.put(pod())
    with store.listing() as since:
        store.containers.fill(container("a"), since)
        store.load(saved(container("b")), since)
    store.remove_pod("pod-1")
    assert told == [
        (RowKind.POD, "pod-1", True),
        (RowKind.CONTAINER, "a", False),
        (RowKind.POD, "pod-1", True),
        (RowKind.CONTAINER, "a", True),
        (RowKind.CONTAINER, "b", True),
    ]


def test_a_list_that_was_under_way_does_not_drop_what_another_process_saved() -> None:
    store = PodStore()
    with store.listing() as since:
        saved = Saved(containers=(ContainerRecord(id="new", owners={"a": (Claimant("b"),)}),))
        assert store.load(saved, since) == ("new",)
        assert store.containers.merge({}, since) == ()
    assert store.containers.get("new") is not None
    with store.listing() as since:
        assert [record.id for record in store.containers.merge({}, since)] == ["new"]


def test_a_call_on_what_was_taken_counts_against_a_list_too() -> None:
    store = PodStore()
    with store.listing():
        store.load(Saved(containers=(container("a"),)), store.event)
        since = store.event
        store.containers.put(container("a"))
        assert store.containers.merge({}, since) == ()
    assert store.containers.get("a") is not None


def test_what_another_process_saved_after_it_took_over_counts() -> None:
    store = PodStore()
    store.containers.put(ContainerRecord(id="before", name="mine"))
    moved = store.event
    store.containers.put(ContainerRecord(id="after", name="mine"))
    theirs = tuple(ContainerRecord(id=identity, name="theirs") for identity in ("before", "after", "new"))
    with store.listing() as since:
        assert store.load(Saved(containers=theirs), since) == ("new",)
    with store.listing() as since:
        assert store.load(Saved(containers=theirs), since, outdated=moved) == ("before",)
    assert {record.id: record.name for record in store.containers} == {
        "before": "theirs",
        "after": "mine",
        "new": "theirs",
    }


def test_what_another_process_saved_counts_more_than_what_the_runtime_said_before() -> None:
    store = PodStore()
    shares = Resources(cpu_shares=100)
    known = replace(container("a"), requested=shares, booked=shares, state=Lifecycle.STOPPED, recovered=True)
    with store.listing() as since:
        store.containers.fill(known, since)
        store.pods.put(pod())
    more = Resources(cpu_shares=200)
    theirs = replace(OWNED, requested=more, booked=more, state=Lifecycle.RUNNING)
    with store.listing() as since:
        assert store.load(saved(theirs), since, outdated=store.event) == ("a",)
    assert store.containers.get("a") == replace(theirs, state=Lifecycle.STOPPED)
