"""What a handler charges beside its message: `Reply.reserve`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from tests.frontends.cri_proxy.relay.playbook import Play, ScriptedCall, grant, opened_with
from tests.peers.wire import Frame, data, message, reset

KIBIBYTE = 1 << 10
PREFIX = 5


def decided(play: Play, stream_id: int, size: int) -> ScriptedCall:
    """An intercepted call whose whole message is with its handler."""
    call = play.hold(stream_id)
    whole = message(bytes(size))
    for at in range(0, len(whole), 16_000):
        play.client(data(stream_id, whole[at : at + 16_000], end=at + 16_000 >= len(whole)))
    return call


class Grants:
    """Notes which reservations were granted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> Callable[[], None]:
        return lambda: self.names.append(name)


def test_it_counts_beside_the_message_until_the_call_has_left() -> None:
    budget, granted = MemoryBudget(), Grants()
    play = opened_with(budget)
    call = decided(play, 3, 100 * KIBIBYTE)
    held = 100 * KIBIBYTE + PREFIX
    call.reply.reserve(300 * KIBIBYTE, granted("first"))
    assert (granted.names, budget.used_bytes) == (["first"], held + 300 * KIBIBYTE)
    call.reply.reserve(200 * KIBIBYTE, granted("less"))
    assert (granted.names, budget.used_bytes) == (["first", "less"], held + 200 * KIBIBYTE)
    call.reply.forward(None)
    assert budget.used_bytes == held + 200 * KIBIBYTE
    call.reply.reserve(0, granted("nothing"))
    assert budget.used_bytes == held
    grant(play, 0, held)
    grant(play, 3, held)
    assert budget.used_bytes == 0


def test_a_changed_message_counts_instead_of_the_one_that_came() -> None:
    budget, granted = MemoryBudget(), Grants()
    play = opened_with(budget)
    call = decided(play, 3, 100 * KIBIBYTE)
    call.reply.reserve(50 * KIBIBYTE, granted("extra"))
    call.reply.forward(bytes(400 * KIBIBYTE))
    assert budget.used_bytes == 450 * KIBIBYTE
    play.client(reset(3))
    assert budget.used_bytes == 0


def test_a_small_message_that_became_large_counts() -> None:
    budget = MemoryBudget()
    play = opened_with(budget)
    call = decided(play, 3, 10)
    call.reply.forward(bytes(100 * KIBIBYTE))
    assert budget.used_bytes == 100 * KIBIBYTE
    grant(play, 0, 1 << 20)
    grant(play, 3, 1 << 20)
    assert budget.used_bytes == 0


def test_up_to_64_kib_in_all_are_there_at_once_whatever_others_hold() -> None:
    budget, granted = MemoryBudget(100 * KIBIBYTE), Grants()
    decided(opened_with(budget), 3, 100 * KIBIBYTE)
    call = decided(opened_with(budget), 3, 14 * KIBIBYTE)
    call.reply.reserve(50 * KIBIBYTE, granted("small"))
    call.reply.reserve(50 * KIBIBYTE + 1, granted("large"))
    assert granted.names == ["small"]


def test_more_waits_for_others() -> None:
    budget, granted = MemoryBudget(200 * KIBIBYTE), Grants()
    plays = [opened_with(budget) for _ in range(3)]
    first = decided(plays[0], 3, 150 * KIBIBYTE)
    second = decided(plays[1], 3, 10 * KIBIBYTE)
    second.reply.reserve(100 * KIBIBYTE, granted("second"))
    third = plays[2].hold(3)
    plays[2].client(data(3, message(bytes(90 * KIBIBYTE))[:10]))
    assert granted.names == []
    wakes = plays[1].wakes
    first.reply.refuse(9, "no")
    assert granted.names == ["second"]
    assert plays[1].wakes > wakes
    # What holds its message goes before a message that is still to come.
    assert (third.names, budget.used_bytes) == ([], 110 * KIBIBYTE + PREFIX)


def test_a_client_is_read_while_all_wait_for_a_message_that_is_coming() -> None:
    play = opened_with(MemoryBudget(100_000, unreserved_bytes=10_000))
    play.hold(3)
    whole = message(bytes(90_000))
    play.client(data(3, whole[:10]))
    call = decided(play, 5, 15_000)

    def is_paused() -> bool:
        return play.relay.memory.must_pause

    assert is_paused()
    call.reply.reserve(80_000, Grants()("more"))
    assert not is_paused()


def test_a_reservation_that_is_replaced_while_it_waits_is_not_granted() -> None:
    budget, granted = MemoryBudget(200 * KIBIBYTE), Grants()
    first = decided(opened_with(budget), 3, 150 * KIBIBYTE)
    second = decided(opened_with(budget), 3, 10 * KIBIBYTE)
    second.reply.reserve(100 * KIBIBYTE, granted("second"))
    second.reply.reserve(120 * KIBIBYTE, granted("third"))
    first.reply.refuse(9, "no")
    assert granted.names == ["third"]


@pytest.mark.parametrize("end", ["forward", "changed", "refuse", "reset", "lost"])
def test_nothing_is_granted_after_the_end_of_a_call(end: str) -> None:
    budget, granted = MemoryBudget(200 * KIBIBYTE), Grants()
    first = decided(opened_with(budget), 3, 150 * KIBIBYTE)
    play = opened_with(budget)
    second = decided(play, 3, 10 * KIBIBYTE)
    second.reply.reserve(100 * KIBIBYTE, granted("second"))
    if end == "forward":
        second.reply.forward(None)
    elif end == "changed":
        second.reply.forward(bytes(20 * KIBIBYTE))
    elif end == "refuse":
        second.reply.refuse(9, "no")
    elif end == "reset":
        play.client(reset(3))
    else:
        play.relay.on_lost()
    first.reply.refuse(9, "no")
    second.reply.reserve(5, granted("late"))
    assert granted.names == []
    assert budget.used_bytes == 0
    assert play.relay.memory.unreserved_bytes == 0


@pytest.mark.parametrize("end", ["answered", "reset", "lost"])
def test_what_is_kept_of_a_call_is_charged_until_it_is_over(end: str) -> None:
    budget = MemoryBudget(64 * 1024 * KIBIBYTE)
    play = opened_with(budget)
    kept = []
    for stream_id in range(3, 103, 2):
        call = play.hold(stream_id)
        play.client(data(stream_id, message(b"x"), end=True))
        kept.append(call.reply.keep(500 * KIBIBYTE))
        call.reply.forward(None)
    # A quarter of the budget is for one connection, half of it for all.
    assert kept == [True] * 32 + [False] * 18
    other = opened_with(budget)
    other.hold(3)
    other.client(data(3, message(b"x"), end=True))
    assert other.interceptor.calls[-1].reply.keep(500 * KIBIBYTE)
    assert budget.kept_bytes == 33 * 500 * KIBIBYTE
    other.relay.on_lost()
    for stream_id in range(3, 103, 2):
        if end == "answered":
            play.runtime(play.trailers(stream_id))
        elif end == "reset":
            play.client(reset(stream_id))
    if end == "lost":
        play.relay.on_lost()
    assert budget.kept_bytes == play.relay.memory.kept_bytes == 0


def test_before_the_message_is_there_nothing_is_reserved() -> None:
    budget, granted = MemoryBudget(), Grants()
    play = opened_with(budget)
    call = play.hold(3)
    call.reply.reserve(100 * KIBIBYTE, granted("early"))
    assert (granted.names, budget.used_bytes) == ([], 0)


def test_calls_that_all_hold_their_message_and_wait_for_more_come_through() -> None:
    budget, granted = MemoryBudget(400 * KIBIBYTE), Grants()
    plays = [opened_with(budget) for _ in range(4)]
    calls = [decided(play, 3, 100 * KIBIBYTE - PREFIX) for play in plays]
    for number, call in enumerate(calls):
        call.reply.reserve(300 * KIBIBYTE, granted(str(number)))
    most = 0
    for number, call in enumerate(calls):
        assert str(number) in granted.names
        most = max(most, budget.used_bytes)
        call.reply.refuse(9, "no")
    assert granted.names == ["0", "1", "2", "3"]
    assert most <= 2 * 400 * KIBIBYTE
    assert budget.used_bytes == 0


def test_a_handler_may_answer_when_its_memory_is_granted() -> None:
    budget = MemoryBudget(200 * KIBIBYTE)
    first = decided(opened_with(budget), 3, 150 * KIBIBYTE)
    play = opened_with(budget)
    second = decided(play, 3, 1 * KIBIBYTE)
    second.reply.reserve(100 * KIBIBYTE, lambda: second.reply.forward(None))
    play.forget()
    first.reply.refuse(9, "no")
    assert [(frame.type_, frame.stream_id) for frame in play.runtime_got()] == [(0, 3)]
    assert budget.used_bytes == 0


def test_an_error_in_the_handler_ends_its_own_connection() -> None:
    budget = MemoryBudget(200 * KIBIBYTE)
    other = opened_with(budget)
    first = decided(other, 3, 150 * KIBIBYTE)
    play = opened_with(budget)
    second = decided(play, 3, 1 * KIBIBYTE)

    def broken() -> None:
        raise ValueError("broken")

    second.reply.reserve(100 * KIBIBYTE, broken)
    first.reply.refuse(9, "no")
    assert isinstance(play.relay.failure, ValueError)
    assert other.relay.failure is None


def test_many_small_messages_that_open_to_large_ones_take_their_connections_part_only() -> None:
    """As 15 KB of gzip do, of which each opens to 16 MiB."""
    budget, granted = MemoryBudget(), Grants()
    play = opened_with(budget)
    calls = [decided(play, stream_id, 15_000) for stream_id in range(3, 123, 2)]
    for number, call in enumerate(calls):
        call.reply.reserve(16 << 20, granted(str(number)))
    assert granted.names == ["0"]
    other = decided(opened_with(budget), 3, 15_000)
    other.reply.reserve(16 << 20, granted("other"))
    assert granted.names == ["0", "other"]
    play.relay.on_lost()
    assert budget.used_bytes == (16 << 20) + 15_005


def test_the_frame_of_a_message_within_the_window_still_passes_at_once() -> None:
    play = opened_with(MemoryBudget())
    call = play.hold(3)
    call.decide = lambda scripted, _: scripted.reply.reserve(100, lambda: scripted.reply.forward(None))
    whole = Frame(0, 1, 3, message(b"abc"))
    play.client(whole)
    assert (play.runtime_got(), play.client_got()) == ([whole], [])
