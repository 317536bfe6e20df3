"""Start-up boosts: who has one, how much, until when; a day of restarts, with processes that come and go."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from runtimeproxy.errors import UNLIKE_OURS
from runtimeproxy.ledger.boost_rules import (
    MOST_BOOSTS,
    MOST_S,
    QUIET_FROM_S,
    QUIET_S,
    WITHIN_S,
    Amounts,
    Boost,
    Boosts,
    End,
    NoBoost,
    given_us,
)

ASKED = Amounts(50_000, 100_000, 150_000)
"""500m, boosted to 2 CPUs."""
SAVED = {
    "container": "c",
    "uid": "u1",
    "name": "main",
    "asked": list(ASKED),
    "begun_s": 1.0,
    "end_s": 121.0,
    "given_us": 150_000,
    "reason": "",
}


def boost(identity: str = "c1", name: str = "main", begun_s: float = 0.0, max_s: float = 120.0) -> Boost:
    return Boost(identity, "u1", name, ASKED, begun_s, begun_s + max_s)


def begun(*identities: str, idle_cpus: float | None = 100.0) -> Boosts:
    rules = Boosts()
    for identity in identities:
        assert rules.begin(boost(identity, identity), 0.0)
    rules.give(0.0, idle_cpus)
    return rules


@pytest.mark.parametrize(
    ("asked", "room_cpus", "given"),
    [
        (ASKED, 1.5, 150_000),
        (ASKED, 8.0, 150_000),
        (ASKED, 1.0, 100_000),
        (ASKED, 0.05, 5_000),
        (ASKED, 0.049, 0),
        (ASKED, 0.0, 0),
        (ASKED, -3.0, 0),
        (Amounts(1_000, 100_000, 2_000), 0.03, 2_000),
        (Amounts(1_000, 100_000, 2_000), 0.01, 0),
        (Amounts(25_000, 50_000, 75_000), 1.0, 50_000),
    ],
)
def test_what_a_node_gives(asked: Amounts, room_cpus: float, given: int) -> None:
    assert given_us(asked, room_cpus) == given


def test_all_boosts_together_are_half_of_the_idle_cpus_at_most() -> None:
    rules = begun(*(f"c{index}" for index in range(100)), idle_cpus=8.0)
    assert rules.cpus == pytest.approx(4.0)
    assert [each.given_us for each in rules.active.values()][:4] == [150_000, 150_000, 100_000, 0]
    assert sum(each.waits is NoBoost.NO_ROOM for each in rules.active.values()) == 97
    # Those that began first come next.
    rules.end(10.0, ready={"c0"})
    assert [each.container for each in rules.give(10.0, 8.0)] == ["c3"]
    assert rules.cpus == pytest.approx(4.0)


@pytest.mark.parametrize("idle_cpus", [0.0, None])
def test_without_idle_cpus_a_boost_waits_and_its_time_runs(idle_cpus: float | None) -> None:
    rules = begun("c1", idle_cpus=idle_cpus)
    assert rules.active["c1"].waits is (NoBoost.UNKNOWN_IDLE if idle_cpus is None else NoBoost.NO_ROOM)
    assert rules.give(60.0, 8.0)
    assert rules.next_s() == 120.0
    assert [why for _, why in rules.end(120.0)] == [End.TIME]
    rules = begun("c1", idle_cpus=idle_cpus)
    rules.end(120.0)
    assert (rules.ended[End.TIME], sum(rules.denied.values())) == (0, 1)


def use(rules: Boosts, seconds: range, cpus: float, usage_us: int = 0) -> int:
    """Notes a usage each second; returns what was used by the end."""
    for second in seconds:
        rules.note_usage("c1", float(second), usage_us)
        usage_us += int(cpus * 1_000_000)
    return usage_us


@pytest.mark.parametrize(
    ("cpus", "ended_s"),
    [(0.0, QUIET_FROM_S + QUIET_S), (0.39, QUIET_FROM_S + QUIET_S), (0.4, 120.0), (2.0, 120.0)],
)
def test_a_boost_ends_after_10_s_of_little_use_but_not_of_the_first_5_s(cpus: float, ended_s: float) -> None:
    rules, usage_us = begun("c1"), 0
    for second in range(200):
        usage_us = use(rules, range(second, second + 1), cpus, usage_us)
        if ended := rules.end(float(second)):
            assert float(second) == ended_s
            assert ended[0][1] is (End.TIME if ended_s == 120.0 else End.QUIET)
            return
    pytest.fail("it has not ended")


def test_one_busy_second_begins_the_10_s_anew() -> None:
    rules = begun("c1")
    usage_us = use(rules, range(14), 0.1)
    usage_us = use(rules, range(14, 15), 2.0, usage_us)
    use(rules, range(15, 26), 0.1, usage_us)
    assert rules.end(24.9) == []
    assert [why for _, why in rules.end(25.0)] == [End.QUIET]


def test_a_counter_that_fell_is_no_quiet_time() -> None:
    rules = begun("c1")
    use(rules, range(20), 0.0, 5_000_000)
    rules.note_usage("c1", 20.0, 1)
    assert rules.active["c1"].quiet_since_s is None
    rules.note_usage("other", 20.0, 1)
    assert list(rules.active) == ["c1"]


@pytest.mark.parametrize(
    ("end", "about"),
    [
        (End.READY, {"ready": {"c1"}}),
        (End.GONE, {"gone": {"c1"}, "ready": {"c1"}}),
        (End.WITHDRAWN, {"withdrawn": {"c1"}}),
        (End.PRESSURE, {"is_pressed": lambda uid: uid == "u1"}),
    ],
)
def test_a_boost_ends_with_the_first_of_its_events(end: End, about: dict[str, object]) -> None:
    rules = begun("c1", "c2")
    ended = rules.end(1.0, **about)  # type: ignore[arg-type]
    assert {why for _, why in ended} == {end}
    assert ("c2" in rules.active) is (end is not End.PRESSURE)
    assert rules.ended[end] == len(ended)


def test_three_boosts_in_ten_minutes_however_often_it_crashes() -> None:
    rules, given_s = Boosts(), list[float]()
    for crash in range(400):
        now_s, identity = crash * 10.0, f"c{crash}"
        rules.begin(boost(identity, begun_s=now_s), now_s)
        given_s += [now_s] * len(rules.give(now_s, 100.0))
        rules.end(now_s + 9.0, gone={identity})
    for index in range(len(given_s) - MOST_BOOSTS):
        assert given_s[index + MOST_BOOSTS] - given_s[index] >= WITHIN_S
    assert len(given_s) == 3 * 7
    assert rules.denied[NoBoost.OFTEN] == 400 - len(given_s)


def test_a_container_has_one_boost_whatever_is_told_of_it() -> None:
    rules = begun("c1")
    assert not rules.begin(boost("c1", "c1"), 1.0)
    rules.end(2.0, ready={"c1"})
    assert not rules.begin(boost("c1", "c1"), 3.0)
    assert rules.active == {}


def test_what_waits_never_gets_more_than_three_either() -> None:
    rules = Boosts()
    for index in range(5):
        rules.begin(boost(f"c{index}"), 0.0)
    assert len(rules.give(0.0, 100.0)) == MOST_BOOSTS
    assert [each.waits for each in rules.active.values()][3:] == [NoBoost.OFTEN] * 2


def restarted(rules: Boosts, now_s: float) -> Boosts:
    """What a process that was killed leaves to the next one."""
    again = Boosts()
    again.take_document(json.loads(json.dumps(rules.as_document(now_s))), now_s)
    return again


def test_a_restart_keeps_deadlines_and_what_was_given() -> None:
    rules = begun("c1", "c2")
    rules.end(1.0, ready={"c2"})
    again = restarted(rules, 2.0)
    assert again.active == {"c1": replace(rules.active["c1"], waits=None, last_usage=None)}
    assert not again.begin(boost("c2", "c2"), 3.0)
    assert [why for _, why in again.end(120.0)] == [End.TIME]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"boosts": [], "given": [[1]]},
        {"boosts": [{}], "given": []},
        {"boosts": [{"container": "c", "asked": [0, 1, 1], "given_us": 0}], "given": []},
        {"boosts": [{"container": "c", "asked": [1, 1, 1], "given_us": 9}], "given": []},
        {"boosts": "x", "given": []},
        {"boosts": [{**SAVED, "begun_s": 1e9}], "given": []},
        {"boosts": [{**SAVED, "begun_s": float("nan")}], "given": []},
        {"boosts": [SAVED], "given": [["u1", "main", 1e9, "c"]]},
    ],
)
def test_what_is_no_state_of_ours_changes_nothing(document: dict[str, object]) -> None:
    rules = begun("c1")
    with pytest.raises(UNLIKE_OURS):
        rules.take_document(document, 100.0)
    assert list(rules.active) == ["c1"]


@pytest.mark.parametrize("end_s", [1e308, float("nan")])
def test_no_saved_boost_is_longer_than_any_strategy_says(end_s: float) -> None:
    rules = Boosts()
    rules.take_document({"boosts": [{**SAVED, "end_s": end_s}], "given": []}, 100.0)
    assert rules.next_s() == 1.0 + MOST_S


def test_1000_restarts_none_missed() -> None:
    """Containers restart 1,000 times, at least 200 s apart; the daemon is killed now and then."""
    draw, rules, running = random.Random(31), Boosts(), dict[str, tuple[str, float]]()
    last_s: dict[str, float] = {}
    ended: dict[str, float] = {}
    starts, now_s = 0, 0.0
    begun_s: dict[str, float] = {}
    while starts < 1_000:
        now_s += 1.0
        for name in [each for each in (f"n{index}" for index in range(8)) if draw.random() < 0.05]:
            if now_s - last_s.get(name, -WITHIN_S) <= WITHIN_S / MOST_BOOSTS:
                continue
            starts, last_s[name] = starts + 1, now_s
            if name in running:
                old, _ = running.pop(name)
                ended |= {each.container: now_s for each, _ in rules.end(now_s, gone={old})}
            identity = f"{name}-{starts}"
            running[name], begun_s[identity] = (identity, now_s), now_s
            assert rules.begin(boost(identity, name, begun_s=now_s, max_s=60.0), now_s)
        assert all(each.given_us for each in rules.give(now_s, 100.0))
        if draw.random() < 0.02:
            rules = restarted(rules, now_s)
        ended |= {each.container: now_s for each, _ in rules.end(now_s)}
    assert sum(len(each) for each in rules._history.values()) <= 8 * (MOST_BOOSTS + 1)
    missed = [each for each in begun_s if each not in ended and each not in rules.active]
    assert missed == []
    assert all(ended[each] - begun_s[each] <= 60.0 for each in ended)
    assert len(ended) + len(rules.active) == starts
