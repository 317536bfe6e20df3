"""Durations, times and label selectors as people write and read them."""

from __future__ import annotations

import argparse
import contextlib
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.commands.catalog import AUDIT_KINDS, COMMANDS
from runtimeproxy.commands.values import (
    duration_s,
    label_selector,
    past_moment,
    shown_duration,
    shown_time,
)
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("1h30m", 5400), ("2d", 172_800), ("500ms", 0.5), ("1.5h", 5400)],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["400d", "9" * 400 + "d"])
def test_a_duration_that_is_too_long(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is more than 366 d"):
        duration_s(text)


@pytest.mark.parametrize("text", ["", "10", "10x", "m", "-5m", "0s", "5 m", "nan"])
def test_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration such as"):
        duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (90_000, "1 d 1 h"),
        (86_400 * 40, "40 d"),
    ],
)
def test_a_duration_for_people(seconds: float, text: str) -> None:
    assert shown_duration(seconds) == text


def test_a_time_for_people() -> None:
    now = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).astimezone().replace(hour=12)
    assert shown_time(now - timedelta(minutes=5), now) == "11:55:00 (5 min ago)"
    assert shown_time(now + timedelta(minutes=5), now) == "12:05:00 (in 5 min)"
    assert shown_time(now, now) == "12:00:00 (now)"
    assert shown_time(now - timedelta(days=2), now).endswith("12:00:00 (2 d ago)")


IN, NOT_IN = LabelOperator.IN, LabelOperator.NOT_IN


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("app=web", LabelSelector(match_labels={"app": "web"})),
        ("app==web, x/y=", LabelSelector(match_labels={"app": "web", "x/y": ""})),
        (
            "tier!=front,!old,new",
            LabelSelector(
                match_expressions=(
                    LabelRequirement(key="tier", operator=NOT_IN, values=("front",)),
                    LabelRequirement(key="old", operator=LabelOperator.DOES_NOT_EXIST),
                    LabelRequirement(key="new", operator=LabelOperator.EXISTS),
                )
            ),
        ),
        (
            "env in (a, b),env notin (c)",
            LabelSelector(
                match_expressions=(
                    LabelRequirement(key="env", operator=IN, values=("a", "b")),
                    LabelRequirement(key="env", operator=NOT_IN, values=("c",)),
                )
            ),
        ),
        # Twice the same label: both must hold, which no pod can.
        (
            "a=1,a=2",
            LabelSelector(
                match_labels={"a": "1"},
                match_expressions=(LabelRequirement(key="a", operator=IN, values=("2",)),),
            ),
        ),
    ],
)
def test_a_label_selector(text: str, selector: LabelSelector) -> None:
    assert label_selector(text) == selector


@pytest.mark.parametrize("text", ["", ",", "a=b=c", "a in b", "a b", "-a=1", "a=b c", "!", "a in ()x", "a>1"])
def test_no_label_selector(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        label_selector(text)


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)


@given(st.dictionaries(NAMES, NAMES, min_size=1, max_size=3), st.dictionaries(NAMES, NAMES, max_size=4))
def test_a_selector_of_pairs_matches_what_has_them(wanted: dict[str, str], labels: dict[str, str]) -> None:
    selector = label_selector(",".join(f"{key}={value}" for key, value in wanted.items()))
    assert selector.matches(labels) is (wanted.items() <= labels.items())
    assert selector.matches({**labels, **wanted})


@given(st.text(max_size=30))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    for parse in (label_selector, duration_s, past_moment):
        # Any other error would fail the test.
        with contextlib.suppress(argparse.ArgumentTypeError):
            parse(text)


def test_kinds_of_audit_entries_are_those_of_the_audit() -> None:
    assert set(AUDIT_KINDS) == {kind.value for kind in AuditKind}


def test_commands_find_the_admin_socket_by_the_daemons_socket() -> None:
    admin = [command for command in COMMANDS if "--admin-socket" in command.arguments]
    assert {command.name for command in admin} >= {"policy", "bypass", "record"}
    assert all("--endpoint" in command.arguments for command in admin)


NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", "2026-11-23T12:00:00Z"),
        ("2h", "2026-11-23T10:00:00Z"),
        ("1h30m", "2026-11-23T10:30:00Z"),
        ("90s ago", "2026-11-23T11:58:30Z"),
        ("3d", "2026-11-20T12:00:00Z"),
        ("today", "2026-11-23T00:00:00+01:00"),
        ("Yesterday", "2026-11-22T00:00:00+01:00"),
        ("3 days ago", "2026-11-20T00:00:00+01:00"),
        ("1 day ago", "2026-11-22T00:00:00+01:00"),
        ("12:30", "2026-11-23T12:30:00+01:00"),
        # Still to come today.
        ("14:30:15", "2026-11-22T14:30:15+01:00"),
        ("2026-11-20", "2026-11-20T00:00:00+01:00"),
        ("2026-11-20 14:30", "2026-11-20T14:30:00+01:00"),
        ("2026-11-20T14:30:00Z", "2026-11-20T14:30:00Z"),
        ("2026-11-20t14:30:00z", "2026-11-20T14:30:00Z"),
        ("2026-11-20T14:30:00.123-05:00", "2026-11-20T14:30:00.123-05:00"),
    ],
)
def test_a_past_moment(text: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    try:
        assert past_moment(text, NOW) == datetime.fromisoformat(moment)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "2026-13-01", "5", "-2h", "0001-01-01", "9" * 400, "\udcff"]
)
def test_no_past_moment(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time such as 2h, yesterday, 14:30"):
        past_moment(text)
