"""Which entries of a runtime's list enter the store."""

from __future__ import annotations

import pytest

from runtimeproxy.pods.store import plan_merge, untouched


@pytest.mark.parametrize(
    ("listed", "known", "tombstones", "since", "add", "drop"),
    [
        pytest.param({"a"}, {}, {}, 5, {"a"}, set(), id="unknown-is-added"),
        pytest.param({"a"}, {"a": 3}, {}, 5, set(), set(), id="known-stays"),
        pytest.param(set(), {"a": 3}, {}, 5, set(), {"a"}, id="gone-is-dropped"),
        pytest.param(set(), {"a": 5}, {}, 5, set(), {"a"}, id="last-event-before-the-question"),
        pytest.param(set(), {"a": 6}, {}, 5, set(), set(), id="created-after-the-question"),
        pytest.param({"a"}, {}, {"a": 6}, 5, set(), set(), id="removed-after-the-question"),
        pytest.param({"a"}, {}, {"a": 4}, 5, {"a"}, set(), id="removed-before-and-there-again"),
        pytest.param({"abcd"}, {}, {"ab": 6}, 5, set(), set(), id="removed-under-a-prefix"),
        pytest.param({"abcd", "xy"}, {"old": 1, "new": 9}, {"ab": 6}, 5, {"xy"}, {"old"}, id="all-together"),
    ],
)
def test_plan_merge(
    listed: set[str],
    known: dict[str, int],
    tombstones: dict[str, int],
    since: int,
    add: set[str],
    drop: set[str],
) -> None:
    assert plan_merge(listed, known, tombstones, since) == (add, drop)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param({}, True, id="no-events"),
        pytest.param({"abcd": 5}, True, id="before"),
        pytest.param({"abcd": 6}, False, id="after"),
        pytest.param({"ab": 6}, False, id="prefix-after"),
        pytest.param({"abcde": 6}, True, id="another-id"),
    ],
)
def test_untouched(events: dict[str, int], expected: bool) -> None:
    assert untouched("abcd", 5, events) is expected
