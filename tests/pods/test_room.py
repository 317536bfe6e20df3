"""The memory of labels and annotations in all records has a bound, whatever way they came."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.resources import NO_ENTRIES, memory_bytes
from runtimeproxy.pods.store import PodStore, fitted, record_bytes

MAX = 100_000
OURS = {"koordinator.sh/cpuBurst": "{}", "scheduling.koordinator.sh/resource-status": "{}"}


def pod(number: int = 0, size: int = 0, annotations: dict[str, str] | None = None) -> PodRecord:
    return PodRecord(
        id=f"s{number}",
        name=f"web{number}",
        labels={"app": "web"},
        annotations={**OURS, **(annotations or {"example.com/large": "x" * size})},
    )


def put(store: PodStore, record: PodRecord) -> None:
    store.pods.put(record)


def fill(store: PodStore, record: PodRecord) -> None:
    store.pods.fill(record, store.event)


def merge(store: PodStore, record: PodRecord) -> None:
    store.pods.merge({**{each.id: each for each in store.pods}, record.id: record}, store.event)


def load(store: PodStore, record: PodRecord) -> None:
    store.load(Saved(pods=(record,)), store.event)


def revise(store: PodStore, record: PodRecord) -> None:
    store.pods.put(replace(record, annotations={}))
    store.pods.revise(record)


WAYS = [put, fill, merge, load, revise]


def of_all(store: PodStore) -> int:
    return sum(map(record_bytes, store.pods)) + sum(map(record_bytes, store.containers))


@pytest.mark.parametrize("way", WAYS)
def test_what_no_policy_reads_is_left_out_first(way: Callable[[PodStore, PodRecord], None]) -> None:
    store = PodStore(MAX)
    way(store, pod(1, MAX // 4))
    (found,) = store.pods
    assert found.trimmed
    assert found.annotations == OURS
    assert found.labels == {"app": "web"}
    assert store.kept_bytes == of_all(store) < 5_000
    assert store.trimmed == 1


@pytest.mark.parametrize("way", WAYS)
def test_then_all_labels_and_annotations_are(way: Callable[[PodStore, PodRecord], None]) -> None:
    store = PodStore(MAX)
    way(store, pod(1, annotations={"koordinator.sh/large": "x" * (MAX // 4)}))
    (found,) = store.pods
    assert (found.trimmed, found.labels, found.annotations) == (True, NO_ENTRIES, NO_ENTRIES)
    assert store.kept_bytes == of_all(store) < 2_000


@pytest.mark.parametrize("way", WAYS)
def test_many_records_stay_below_the_bound_and_leave_room(way: Callable[[PodStore, PodRecord], None]) -> None:
    store = PodStore(MAX)
    for number in range(100):
        way(store, pod(number, 10_000))
        assert store.kept_bytes == of_all(store) <= MAX
    way(store, PodRecord(id="small", labels={"app": "web"}))
    assert store.pods.get("small") == PodRecord(id="small", labels={"app": "web"})


def test_what_is_replaced_or_removed_is_counted_no_more() -> None:
    store = PodStore(MAX)
    store.pods.put(pod(1, 5_000))
    box = ContainerRecord(id="box", pod_id="s1", annotations={"a": "x" * 4_000}, labels={"b": "c"})
    store.containers.put(box)
    store.containers.put(replace(box, state=Lifecycle.RUNNING))
    assert store.kept_bytes == of_all(store) > 9_000
    store.containers.put(replace(box, annotations={}))
    store.pods.put(pod(1, 100))
    assert store.kept_bytes == of_all(store) < 3_000
    assert not store.trimmed
    store.remove_pod("s1")
    assert store.kept_bytes == 0
    store.pods.put(pod(2))
    store.pods.merge({}, store.event)
    assert store.kept_bytes == 0


def test_many_short_entries_count_for_what_they_take() -> None:
    entries = {f"{number:x}": "" for number in range(10_000)}
    assert memory_bytes(entries) >= sys.getsizeof(entries) + sum(map(sys.getsizeof, entries))


def test_a_record_that_fits_is_the_same() -> None:
    record = pod(1, 1_000)
    assert fitted(record, record_bytes(record)) is record
    assert fitted(record, record_bytes(record) - 1).trimmed
