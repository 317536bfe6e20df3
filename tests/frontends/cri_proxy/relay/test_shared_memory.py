"""What calls that only declare their size take away from others: nothing for ever, and no refusals."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from tests.frontends.cri_proxy.relay.playbook import DEFAULT_WINDOW, HELD, Play, forward_as_it_came, opened
from tests.peers.wire import HEADERS, SETTINGS_ACK, Frame, credit, data, message, reset, settings

PREFIX = 5
MEBIBYTE = 1 << 20
LARGEST = 16 * MEBIBYTE


def declared(size: int) -> bytes:
    """The prefix of a message, and nothing of it."""
    return message(b"")[:1] + size.to_bytes(4, "big")


def connected(budget: MemoryBudget, *, decides: bool = False) -> Play:
    """One of several connections."""
    play = Play(forward_as_it_came if decides else None, budget=budget)
    play.client(settings(), SETTINGS_ACK)
    return play


def declaring(budget: MemoryBudget, calls: int) -> Play:
    """A connection whose intercepted calls say that they are large, and send no more."""
    play = connected(budget)
    for stream_id in range(1, 2 * calls, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, declared(LARGEST)))
    play.open()
    play.forget()
    return play


def waiting(budget: MemoryBudget) -> Play:
    """A connection with one intercepted call whose rest needs memory."""
    play = connected(budget)
    play.client(play.call(1, HELD), data(1, message(bytes(100_000))[:1000]))
    play.open()
    play.forget()
    return play


def refused(frames: list[Frame]) -> list[int]:
    """The streams that ended here."""
    return [frame.stream_id for frame in frames if frame.type_ == HEADERS]


@pytest.mark.parametrize("calls", [4, 8, 1200])
def test_what_calls_declare_refuses_nobody(calls: int) -> None:
    budget = MemoryBudget()
    greedy = declaring(budget, calls)
    assert refused(greedy.client_got()) == []
    other = connected(budget, decides=True)
    other.client(other.call(1, HELD), data(1, message(b"small"), end=True))
    assert other.interceptor.calls[0].events == [("message", message(b"small"))]
    assert refused(other.client_got()) == []


def test_large_messages_of_others_come_although_one_connection_declares_many() -> None:
    budget = MemoryBudget()
    declaring(budget, 1200)
    used_bytes = budget.used_bytes
    assert used_bytes <= 2 * LARGEST
    waiting(budget)
    assert budget.used_bytes == used_bytes + 100_000 + PREFIX


def test_a_late_message_is_refused_once_others_wait_for_its_memory() -> None:
    budget = MemoryBudget(LARGEST)
    greedy, other = declaring(budget, 1), waiting(budget)
    budget.expire()
    assert (greedy.client_got(), other.client_got()) == ([], [])
    budget.expire()
    refusal, ending = greedy.client_got()
    fields = greedy.read_refusal(refusal)
    assert (ending.stream_id, fields["grpc-status"]) == (1, "8")
    assert fields["grpc-message"].endswith("the request did not come while others wait for its memory")
    assert greedy.interceptor.calls[0].names == ["cancelled"]
    assert other.client_got() == [credit(1, 100_000 + PREFIX - DEFAULT_WINDOW)]


def test_no_more_are_refused_than_make_room() -> None:
    budget = MemoryBudget(3 * LARGEST + 3 * PREFIX, 4 * LARGEST)
    greedy, other = declaring(budget, 3), waiting(budget)
    for _ in range(5):
        budget.expire()
    assert refused(greedy.client_got()) == [1]
    assert other.client_got() != []


def test_a_late_message_may_come_while_nobody_waits() -> None:
    budget = MemoryBudget(LARGEST)
    greedy = declaring(budget, 1)
    for _ in range(5):
        budget.expire()
    assert greedy.interceptor.calls[0].names == []
    other = waiting(budget)
    budget.expire()
    other.client(reset(1))
    for _ in range(5):
        budget.expire()
    waiting(budget)
    budget.expire()
    assert greedy.interceptor.calls[0].names == []


def test_a_message_that_is_decided_on_is_not_late() -> None:
    budget = MemoryBudget(1000, small_bytes=0)
    deciding = connected(budget)
    deciding.client(deciding.call(1, HELD), data(1, message(bytes(900)), end=True))
    waiting(budget)
    for _ in range(5):
        budget.expire()
    assert deciding.interceptor.calls[0].names == ["message"]


def test_one_refusal_may_end_other_late_messages_of_its_connection() -> None:
    budget = MemoryBudget(2 * LARGEST + 2 * PREFIX, 4 * LARGEST)
    greedy, other = declaring(budget, 2), declaring(budget, 4)
    # As if the first refusal had broken its connection.
    greedy.interceptor.calls[0].on_cancelled = greedy.relay.on_lost  # type: ignore[method-assign]
    for _ in range(2):
        budget.expire()
    assert greedy.interceptor.calls[1].names == ["cancelled"]
    assert [call.names for call in other.interceptor.calls] == [[]] * 4


@pytest.mark.parametrize(
    "content",
    [b"abc", declared(LARGEST) + b"x", message(b"abc") + b"more"],
    ids=["no-prefix", "less-than-declared", "more-than-declared"],
)
def test_a_message_that_has_ended_takes_no_more_memory_than_it_has(content: bytes) -> None:
    play = opened(small_bytes=0)
    play.hold(3)
    play.client(data(3, content, end=True))
    assert play.budget.used_bytes == len(content)
