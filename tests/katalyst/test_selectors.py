"""Label selectors as texts, and whether two of them overlap. Vectors G: katalyst-core pkg/controller/kcc."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.documents.reading import InputError
from runtimeproxy.katalyst.selectors import MAX_SELECTOR_CHARS, ComparedSelector, Operator, parse_selector


@pytest.mark.parametrize(
    ("text", "labels", "is_match"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "c"}, False),
        (" a = b , c ", {"a": "b", "c": ""}, True),
        ("a=b,c", {"a": "b"}, False),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b, c)", {}, False),
        ("a notin (b,c)", {}, True),
        ("a notin (b,c)", {"a": "c"}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("a=", {"a": ""}, True),
        ("a=,b=c", {"a": "", "b": "c"}, True),
        ("a in (,b)", {"a": ""}, True),
        ("a in ()", {"a": ""}, True),
        ("in in (in)", {"in": "in"}, True),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "5"}, False),
        ("a<5", {"a": "4"}, True),
        ("a<5", {}, False),
        ("a<5", {"a": "x"}, False),
        ("example.com/a=b", {"example.com/a": "b"}, True),
    ],
)
def test_what_a_selector_matches(text: str, labels: dict[str, str], is_match: bool) -> None:
    assert parse_selector(text).matches(labels) is is_match


@pytest.mark.parametrize(
    "text",
    [
        *(
            "=b",
            "a=b,",
            "a=b,,c",
            ",a",
            "a in b",
            "a in (b",
            "a in (b c)",
            "a notin",
            "a b",
            "(a)",
            "!",
            "!a=b",
        ),
        *("a=b=c", "a>", "a>x", "/a=b", "a=-b", "a b=c", f"a={'b' * 64}", "ä=b", "a in (b))"),
        *(f"a in ({','.join(map(str, range(10_000)))})", f"a={' ' * MAX_SELECTOR_CHARS}b"),
        ",".join(f"a{number}" for number in range(2_000)),
    ],
)
def test_what_kubernetes_refuses_and_what_is_too_long(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_selector(text)
    assert len(str(caught.value)) < 300


@settings(max_examples=50)
@given(st.text(alphabet="ab=!,() in<>\t\0", max_size=40))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    with suppress(InputError):
        parse_selector(text).matches({"a": "b"})


ALLOWED = frozenset({"l1", "l2"})


def overlap(one: str, other: str, keys: frozenset[str] = ALLOWED) -> bool:
    first, second = (ComparedSelector(parse_selector(text), keys) for text in (one, other))
    assert first.overlaps(second) is second.overlaps(first)
    return first.overlaps(second)


@pytest.mark.parametrize(
    ("one", "other", "is_overlap"),
    [
        pytest.param("l1=aa", "l1=bb", False, id="G8"),
        pytest.param("l1=aa", "l1!=bb", True, id="G9"),
        pytest.param("l1=aa", "l1 in (aa,bb)", True, id="G9-in"),
        pytest.param("l1=aa", "l1 in (aa,bb),l2=cc", True, id="G11"),
        pytest.param("l1=aa", "l2=bb", True, id="G12"),
        pytest.param("l1 in (aa),l2 notin (bb,cc)", "l1 notin (cc,dd),l2 notin (cc)", True, id="G14"),
        pytest.param("l1=aa", "l1 notin (cc,dd),l2 notin (cc)", True, id="G15"),
        pytest.param("l1=aa", "l1!=aa", False, id="a-value-that-is-forbidden"),
        pytest.param("l1 in (aa,bb)", "l1 notin (aa,bb,cc)", False, id="values-that-are-forbidden"),
        pytest.param("l1 in (aa,bb)", "l1!=aa", True, id="one-value-is-left"),
        pytest.param("l1!=aa", "l1!=bb", True, id="two-negatives"),
        pytest.param("l1=aa,l2=x", "l1=aa,l2=y", False, id="by-the-second-key"),
        pytest.param("l1", "!l1", True, id="other-operators-leave-a-key-unused"),
        pytest.param("l3=aa", "l3=bb", True, id="a-key-that-is-not-allowed"),
    ],
)
def test_an_overlap(one: str, other: str, is_overlap: bool) -> None:
    assert overlap(one, other) is is_overlap


VALUES = ("aa", "bb", "cc")


def pure_on_a_key(key: str) -> st.SearchStrategy[list[str]]:
    """Conditions on a key that all name values, or all forbid some."""
    sets = st.lists(st.sets(st.sampled_from(VALUES), min_size=1), max_size=2)
    operators = st.sampled_from(["in", "notin"])
    return st.builds(
        lambda operator, found: [f"{key} {operator} ({','.join(sorted(each))})" for each in found],
        operators,
        sets,
    )


pure = st.builds(lambda one, other: ",".join([*one, *other]), pure_on_a_key("l1"), pure_on_a_key("l2"))


@settings(max_examples=60)
@given(pure, pure)
def test_an_overlap_is_exact_where_a_key_is_only_named_or_only_forbidden(one: str, other: str) -> None:
    of_key = (None, *VALUES, "another")
    nodes = (
        {key: value for key, value in (("l1", first), ("l2", second)) if value is not None}
        for first, second in product(of_key, of_key)
    )
    both = [parse_selector(one), parse_selector(other)]
    assert overlap(one, other) is any(all(each.matches(node) for each in both) for node in nodes)


def test_the_operators_are_read_as_two() -> None:
    found = {each.operator for each in parse_selector("a=b,c==d,e!=f,g in (h),i notin (j)").requirements}
    assert found == {Operator.IN, Operator.NOT_IN}
