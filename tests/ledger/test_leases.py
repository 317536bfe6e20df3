"""Leases: which requests count, and when claims end; all by a table and a clock of its own."""

from __future__ import annotations

import json

import pytest

from runtimeproxy.ledger.leases import (
    LEASE_S,
    MOST_FORMER,
    MOST_HOLD_S,
    Answer,
    Lease,
    Phase,
    as_document,
    ended,
    from_document,
    is_due,
    is_hold_over,
    lapsed,
    on_request,
    phase,
    released,
    restored,
    taken_over,
    unrenewed_s,
)

NOW_S = 1000.0
LEASED = Lease("a", 7, NOW_S + LEASE_S)
TAKEN, WHOLE, OVER = Answer.TAKEN, Answer.SEND_WHOLE_SET, Answer.TAKEN_OVER


@pytest.mark.parametrize(
    ("lease", "session", "sequence", "is_whole", "answer"),
    [
        pytest.param(Lease(), "a", 1, False, WHOLE, id="the-first-request-is-no-whole-set"),
        pytest.param(Lease(), "a", 1, True, TAKEN, id="the-first-request"),
        pytest.param(LEASED, "a", 8, False, TAKEN, id="the-next-one"),
        pytest.param(LEASED, "a", 7, False, TAKEN, id="the-same-again"),
        pytest.param(LEASED, "a", 9, False, WHOLE, id="a-gap"),
        pytest.param(LEASED, "a", 6, False, WHOLE, id="an-old-one"),
        pytest.param(LEASED, "a", 90, True, TAKEN, id="the-whole-set-heals-a-gap"),
        pytest.param(LEASED, "b", 8, False, WHOLE, id="another-session-with-changes"),
        pytest.param(LEASED, "b", 1, True, TAKEN, id="another-session-takes-over"),
        pytest.param(LEASED._replace(former=("b",)), "b", 2, True, OVER, id="one-that-was-taken-over"),
        pytest.param(LEASED._replace(former=("b",)), "b", 2, False, OVER, id="its-changes"),
        pytest.param(LEASED._replace(has_lapsed=True), "a", 8, False, TAKEN, id="all-are-held"),
        pytest.param(LEASED._replace(needs_whole=True), "a", 8, False, WHOLE, id="some-have-ended"),
        pytest.param(LEASED._replace(needs_whole=True), "a", 8, True, TAKEN, id="sends-them-again"),
        pytest.param(restored(NOW_S), "a", 8, False, WHOLE, id="after-a-restart"),
        pytest.param(restored(NOW_S), "a", 8, True, TAKEN, id="after-a-restart-the-whole-set"),
    ],
)
def test_requests(lease: Lease, session: str, sequence: int, is_whole: bool, answer: Answer) -> None:
    found, after = on_request(lease, session, sequence, NOW_S + 5, is_whole=is_whole)
    assert found is answer
    if answer is TAKEN:
        assert (after.session, after.sequence, after.end_s) == (session, sequence, NOW_S + 5 + LEASE_S)
        assert after[3:6] == (False, False, False)
        assert (lease.session in after.former) == (lease.session not in ("", session))
    else:
        assert after is lease


def test_a_session_takes_over_and_the_old_one_takes_it_back() -> None:
    lease = taken_over(LEASED, "b", NOW_S)
    assert (lease.session, lease.sequence, lease.former) == ("b", 0, ("a",))
    assert on_request(lease, "a", 8, NOW_S, is_whole=True)[0] is OVER
    assert on_request(lease, "b", 1, NOW_S, is_whole=False)[0] is TAKEN
    back = taken_over(lease, "a", NOW_S)
    assert (back.session, back.former) == ("a", ("b",))
    assert on_request(back, "a", 1, NOW_S, is_whole=False)[0] is TAKEN


def test_its_own_session_goes_on_where_it_is() -> None:
    lease = taken_over(LEASED, "a", NOW_S + 1)
    assert (lease.sequence, lease.end_s, lease.former) == (7, NOW_S + 1 + LEASE_S, ())


def test_sessions_that_are_remembered_are_bounded() -> None:
    lease = LEASED
    for number in range(20):
        lease = taken_over(lease, f"s{number}", NOW_S)
    assert len(lease.former) == MOST_FORMER
    assert lease.former[-1] == "s18"


def test_the_end_of_a_lease() -> None:
    assert not is_due(LEASED, NOW_S + LEASE_S - 0.001)
    assert is_due(LEASED, NOW_S + LEASE_S)
    assert not is_due(Lease(), NOW_S)
    held = lapsed(LEASED, has_released=False)
    assert not is_due(held, NOW_S + 1000)
    assert on_request(held, "a", 8, NOW_S + 20, is_whole=False)[0] is TAKEN
    partly = lapsed(LEASED, has_released=True)
    assert on_request(partly, "a", 8, NOW_S + 20, is_whole=False)[0] is WHOLE


@pytest.mark.parametrize(
    ("hold_s", "over_s"), [(0.0, LEASE_S), (60.0, LEASE_S + 60), (10_000.0, LEASE_S + MOST_HOLD_S)]
)
def test_the_end_of_a_hold(hold_s: float, over_s: float) -> None:
    held = lapsed(LEASED, has_released=False)
    assert not is_hold_over(LEASED, NOW_S + 10_000, hold_s)
    assert not is_hold_over(held, NOW_S + over_s - 0.001, hold_s)
    assert is_hold_over(held, NOW_S + over_s, hold_s)


def test_a_lease_that_processes_have_left_goes_on() -> None:
    assert unrenewed_s(LEASED, NOW_S + 10) is None
    assert unrenewed_s(Lease(), NOW_S) is None
    assert unrenewed_s(restored(NOW_S), NOW_S + 10) == 10
    assert unrenewed_s(restored(NOW_S, 4), NOW_S + 10) == 14
    assert unrenewed_s(lapsed(LEASED, has_released=False), NOW_S + LEASE_S + 20) == LEASE_S + 20
    assert unrenewed_s(taken_over(restored(NOW_S, 4), "a", NOW_S + 1), NOW_S + 1) is None
    assert is_due(restored(NOW_S, LEASE_S), NOW_S)
    assert is_hold_over(lapsed(restored(NOW_S, LEASE_S + 60), has_released=False), NOW_S, 60)


def test_the_phases() -> None:
    assert phase(Lease()) is Phase.NONE
    assert phase(LEASED) is Phase.LEASED
    assert phase(restored(NOW_S)) is Phase.RESTORED
    assert phase(lapsed(restored(NOW_S), has_released=True)) is Phase.HELD
    assert phase(released(lapsed(LEASED, has_released=True))) is Phase.NONE
    assert on_request(released(LEASED), "a", 8, NOW_S, is_whole=False)[0] is WHOLE
    assert phase(ended(LEASED)) is Phase.NONE
    assert ended(LEASED).session == ""


@pytest.mark.parametrize("lease", [Lease(), LEASED, LEASED._replace(former=("x", "y"), has_lapsed=True)])
def test_a_successor_gets_the_same_lease(lease: Lease) -> None:
    assert from_document(json.loads(json.dumps(as_document(lease)))) == lease
