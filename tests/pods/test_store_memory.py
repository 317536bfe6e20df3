"""The store keeps nothing of what is gone."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest

from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.store import PodStore, RecordIndex

HOLDERS = ("*/runtimeproxy/pods/*", __file__)
TAKEN = Saved((PodRecord(id="taken", uid="u"),), (ContainerRecord(id="taken", pod_id="p"),))


def live(store: PodStore, numbers: range) -> None:
    """Lets pods with one container each come and go."""
    for number in numbers:
        store.pods.put(PodRecord(id=f"pod-{number}", uid=f"uid-{number}"))
        store.containers.put(ContainerRecord(id=f"box-{number}", pod_id=f"pod-{number}"))
        store.containers.remove(f"box-{number}")
        store.remove_pod(f"pod-{number}")


def entries(index: RecordIndex[Any]) -> dict[str, int]:
    """How many entries each table of a index has."""
    return {name: len(table) for name, table in vars(index).items() if isinstance(table, dict)}


def traced_bytes() -> int:
    """Memory that the store's code and this file hold, whatever else this process does meanwhile."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, each) for each in HOLDERS])
    return sum(trace.size for trace in snapshot.traces)


def test_a_life_cycle_fills_each_table_and_leaves_all_empty() -> None:
    store = PodStore()
    with store.listing() as since:
        live(store, range(10))
        store.load(TAKEN, since)
        filled = [entries(index) for index in (store.pods, store.containers)]
        store.containers.remove("taken")
        store.remove_pod("taken")
    assert all(all(lengths.values()) for lengths in filled), filled
    for index in (store.pods, store.containers):
        assert not any(entries(index).values()), entries(index)


@pytest.mark.slow
def test_ten_thousand_life_cycles_leave_nothing() -> None:
    store = PodStore()
    live(store, range(100))
    tracemalloc.start()
    try:
        held_bytes = [traced_bytes()]
        for begin in range(0, 10_000, 2_000):
            live(store, range(begin, begin + 2_000))
            held_bytes.append(traced_bytes())
    finally:
        tracemalloc.stop()
    grown_bytes = [after - before for before, after in pairwise(held_bytes)]
    assert min(grown_bytes) < 10_000, f"a leak grows in each round, a table's resize in one: {grown_bytes}"
