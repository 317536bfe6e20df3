"""Allocations of CPUs: the rules, and the document of a state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.errors import UNLIKE_OURS
from runtimeproxy.hooks import PodView
from runtimeproxy.hooks.allocator import (
    NO_ALLOCATIONS,
    SharePools,
    as_document,
    from_document,
    gained_cpus,
    overlaps,
)
from runtimeproxy.node.snapshot import PodCpus
from runtimeproxy.qos import QOS_CLASS_LABEL, QoSClass
from runtimeproxy.slo.names import RESOURCE_STATUS

RULES = SharePools()


def pod(uid: str, cpus: str = "2-3", qos: QoSClass = QoSClass.LSR) -> PodView:
    annotations = {RESOURCE_STATUS: f'{{"cpuset": "{cpus}"}}'} if cpus else {}
    return PodView(uid=uid, qos=qos, labels={QOS_CLASS_LABEL: qos.value}, annotations=annotations)


def owned(*cpus: int, qos: QoSClass = QoSClass.LSR) -> PodCpus:
    return PodCpus(qos, frozenset(cpus))


def test_pods_with_cpus_of_their_own_are_noted() -> None:
    state = RULES.admit(pod("a"), NO_ALLOCATIONS)
    assert state == {"a": owned(2, 3)}
    assert RULES.admit(pod("a"), state) is state
    assert RULES.admit(pod("b", ""), state) is state
    assert RULES.admit(pod("a", ""), state) == {}
    assert RULES.release("a", state) == {}
    assert RULES.release("b", state) is state
    assert RULES.rebuild([pod("a"), pod("b", "")]) == state


@pytest.mark.parametrize("qos", [QoSClass.LS, QoSClass.BE, QoSClass.SYSTEM, QoSClass.NONE])
def test_other_classes_take_no_cpus(qos: QoSClass) -> None:
    other = pod("b", qos=qos)
    state = RULES.admit(pod("a"), NO_ALLOCATIONS)
    assert RULES.admit(other, state) is state
    assert RULES.admit(other, state) is state
    assert RULES.rebuild([other]) == {}


def test_a_container_brings_a_pod_that_nobody_admitted() -> None:
    assert RULES.admit(pod("a"), NO_ALLOCATIONS) == {"a": owned(2, 3)}


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
    assert from_document(json.loads(json.dumps(as_document(state)))) == state


@pytest.mark.parametrize(
    "document",
    [[1], {}, {"pods": [1]}, {"pods": {"a": 1}}, {"pods": {"a": {"qos": "X", "cpus": ""}}}],
    ids=str,
)
def test_another_document_is_no_state(document: Any) -> None:
    with pytest.raises(UNLIKE_OURS):
        from_document(document)
