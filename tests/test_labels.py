"""Label selectors: which of them overlap, and which names Kubernetes refuses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.labels import (
    Conditions,
    LabelOperator,
    LabelRequirement,
    LabelSelector,
    label_problems,
    namespace_problem,
)


def selector(*expressions: tuple[str, str, tuple[str, ...]], **labels: str) -> LabelSelector:
    return LabelSelector(
        match_labels=labels,
        match_expressions=tuple(
            LabelRequirement(key=key, operator=LabelOperator(operator), values=values)
            for key, operator, values in expressions
        ),
    )


POOL_A = selector(pool="a")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (POOL_A, POOL_A, True),
        (POOL_A, selector(pool="b"), False),
        (POOL_A, selector(disk="ssd"), False),
        (POOL_A, selector(pool="a", disk="ssd"), True),
        (POOL_A, selector(("pool", "In", ("a", "b"))), True),
        (POOL_A, selector(("pool", "In", ("b", "c"))), False),
        (POOL_A, selector(("pool", "NotIn", ("b",))), True),
        (POOL_A, selector(("pool", "NotIn", ("a",))), False),
        (POOL_A, selector(("pool", "Exists", ())), True),
        (POOL_A, selector(("pool", "DoesNotExist", ())), False),
        (POOL_A, selector(("disk", "DoesNotExist", ())), True),
        (selector(("pool", "Exists", ())), selector(("pool", "NotIn", ("a",))), False),
        (selector(("pool", "Exists", ())), selector(("pool", "Exists", ()), ("disk", "Exists", ())), False),
        (selector(("os", "NotIn", ("windows",))), selector(("arch", "NotIn", ("arm64",))), False),
        (selector(("os", "DoesNotExist", ())), selector(("arch", "NotIn", ("arm64",))), True),
        (selector(("pool", "In", ("a",)), ("pool", "NotIn", ("a",))), LabelSelector(), False),
        (POOL_A, LabelSelector(), True),
    ],
)
def test_overlapping_selectors(first: LabelSelector, second: LabelSelector, expected: bool) -> None:
    assert Conditions(first).overlap(Conditions(second)) is expected
    assert Conditions(second).overlap(Conditions(first)) is expected


_EXPRESSIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(["In", "NotIn"]),
            st.lists(st.sampled_from("xy"), min_size=1, max_size=2, unique=True).map(tuple),
        ),
        st.tuples(st.sampled_from("ab"), st.sampled_from(["Exists", "DoesNotExist"]), st.just(())),
    ),
    max_size=3,
)
_SELECTORS = st.builds(
    lambda labels, expressions: selector(*expressions, **labels),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
    _EXPRESSIONS,
)
_ALL_LABELS = [
    {key: value for key, value in zip("ab", values, strict=True) if value}
    for values in itertools.product(("", "x", "y", "z"), repeat=2)
]


@given(_SELECTORS, _SELECTORS)
def test_selectors_that_overlap_match_some_labels_both(first: LabelSelector, second: LabelSelector) -> None:
    matched_by_both = any(first.matches(labels) and second.matches(labels) for labels in _ALL_LABELS)
    if Conditions(first).overlap(Conditions(second)):
        assert matched_by_both
    for each in (first, second):
        operators = {one.operator for one in each.match_expressions}
        if operators <= {LabelOperator.IN, LabelOperator.DOES_NOT_EXIST}:
            keys = {*each.match_labels, *(one.key for one in each.match_expressions if one.values)}
            named = [labels for labels in _ALL_LABELS if set(labels) == keys]
            if any(first.matches(labels) and second.matches(labels) for labels in named):
                assert Conditions(first).overlap(Conditions(second))


def test_a_long_name_is_not_shown_whole() -> None:
    problems = [*label_problems(LabelSelector(match_labels={"-" * 10_000: "x" * 10_000}))]
    assert len(problems) == 2
    assert all(len(reason) < 200 for _, reason in problems)
    assert len(namespace_problem("A" * 10_000)) < 200
    assert namespace_problem("prod") == ""
