"""The rules of all evictions, for any pods and tasks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.qos import NEVER_EVICTED, PriorityClass, QoSClass
from runtimeproxy.qosmanager.eviction import (
    EvictOptions,
    EvictState,
    ReleaseTask,
    choose,
    is_threshold_pair,
    resource_of,
)
from runtimeproxy.qosmanager.snapshot import Snapshot
from tests.qosmanager.snapshots import pod_of

KINDS = ("cpu", "memory")
amounts = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 50))


@pytest.mark.parametrize(
    ("priority_class", "expected"),
    [
        (PriorityClass.BATCH, "kubernetes.io/batch-cpu"),
        (PriorityClass.MID, "kubernetes.io/mid-cpu"),
        (PriorityClass.PROD, "cpu"),
        (PriorityClass.FREE, "cpu"),
    ],
)
def test_resource_of_a_pod(priority_class: PriorityClass, expected: str) -> None:
    assert resource_of(pod_of("a", priority_class=priority_class), "cpu") == expected


@pytest.mark.parametrize(
    ("threshold", "lower", "expected"),
    [(80, 78, True), (80, 80, False), (0, -2, True), (1, -1, True), (0, 0, False), (-1, -3, False)],
)
def test_thresholds_that_can_be_used(threshold: int, lower: int, expected: bool) -> None:
    assert is_threshold_pair(threshold, lower) is expected


@settings(max_examples=60)
@given(data=st.data())
def test_evictions_are_needed_bounded_and_safe(data: st.DataObject) -> None:
    names = [f"pod{number}" for number in range(data.draw(st.integers(0, 8)))]
    pods = [pod_of(name, data.draw(st.sampled_from(QoSClass))) for name in names]
    releases = {name: data.draw(amounts) for name in names}
    tasks = [
        ReleaseTask(f"task{number}", data.draw(amounts), data.draw(st.permutations(pods)), "")
        for number in range(data.draw(st.integers(0, 3)))
    ]
    before = data.draw(st.dictionaries(st.sampled_from([*names, "gone"]), st.floats(0, 1_000)))
    options = EvictOptions(most_pods=data.draw(st.integers(0, 5)))
    state = EvictState(options=options, evicted=before)
    now_s = 1_000.0
    snapshot = Snapshot(now_s=now_s, pods=tuple(pods))
    choice = choose(tasks, snapshot, state, lambda pod: releases[pod.name])
    chosen = [each.pod_uid for each in choice.evictions]
    recent = sum(at_s > now_s - options.per_seconds for at_s in before.values())
    assert len(set(chosen)) == len(chosen) <= max(options.most_pods - recent, 0)
    missing = {kind: max((task.needs.get(kind, 0) for task in tasks), default=0) for kind in KINDS}
    for name in chosen:
        (pod,) = (each for each in pods if each.uid == name)
        assert pod.qos not in NEVER_EVICTED
        assert before.get(name, -1_000.0) <= now_s - options.same_pod_after_seconds
        # Something that it releases was still missing.
        assert any(missing[kind] > 0 and releases[name].get(kind, 0) > 0 for kind in KINDS)
        for kind in KINDS:
            missing[kind] -= releases[name].get(kind, 0)
        assert choice.evicted[name] == now_s
    # No pod is chosen twice when the same is to be released once more.
    again = choose(
        tasks, snapshot, EvictState(options=options, evicted=choice.evicted), lambda pod: releases[pod.name]
    )
    assert not {each.pod_uid for each in again.evictions} & set(chosen)
