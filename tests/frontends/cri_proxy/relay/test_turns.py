"""Many tiny frames in one read: at most so many in one turn of the loop, in order, and none is lost."""

from __future__ import annotations

import pytest

from tests.frontends.cri_proxy.relay.playbook import HELD, forward_as_it_came, opened
from tests.peers.wire import DATA, Frame, credit, data, message, ping, unknown, wire

MOST = 2000


def test_a_turn_takes_its_part_of_the_clients_frames() -> None:
    play = opened()
    frames = [credit(1, number + 1) for number in range(3 * MOST + 5)]
    half = bytes(frames[-1])[:6]
    play.relay.request.receive(wire(*frames[:-1]) + half)
    got, turns = play.runtime_got(), 1
    assert got == frames[:MOST]
    while play.relay.request.is_behind:
        play.relay.request.receive(b"")
        got += play.runtime_got()
        turns += 1
    assert (got, turns) == (frames[:-1], 4)
    play.client(bytes(frames[-1])[6:])
    assert play.runtime_got() == frames[-1:]


def test_a_turn_takes_its_part_of_the_runtimes_frames() -> None:
    play = opened()
    frames = [unknown(payload=str(number).encode()) for number in range(3 * MOST + 5)]
    half = bytes(frames[-1])[:10]
    play.relay.response.receive(wire(*frames[:-1]) + half)
    got, turns = play.client_got(), 1
    assert got == frames[:MOST]
    while play.relay.response.is_behind:
        play.relay.response.receive(b"")
        got += play.client_got()
        turns += 1
    assert (got, turns) == (frames[:-1], 4)
    play.runtime(bytes(frames[-1])[10:])
    assert play.client_got() == frames[-1:]


def test_as_many_as_fit_into_a_turn_leave_nothing_behind() -> None:
    play = opened()
    play.relay.request.receive(wire(*[ping()] * MOST))
    play.relay.response.receive(wire(*[ping()] * MOST))
    assert (play.relay.request.is_behind, play.relay.response.is_behind) == (False, False)
    assert len(play.runtime_got()) == len(play.client_got()) == MOST


@pytest.mark.parametrize("side", ["client", "runtime"])
def test_what_comes_meanwhile_stands_behind_what_waits(side: str) -> None:
    play = opened()
    receive = play.relay.request.receive if side == "client" else play.relay.response.receive
    frames = [ping(number.to_bytes(8, "big")) for number in range(2 * MOST + 10)]
    receive(wire(*frames[: MOST + 5]))
    receive(wire(*frames[MOST + 5 :]))
    receive(b"")
    assert (play.runtime_got() if side == "client" else play.client_got()) == frames


def test_a_held_message_in_tiny_frames_is_whole() -> None:
    play = opened(forward_as_it_came)
    call = play.hold(3)
    whole = message(bytes(number % 251 for number in range(3 * MOST)))
    frames = [Frame(DATA, 0, 3, whole[at : at + 1]) for at in range(len(whole))]
    play.relay.request.receive(wire(*frames, data(3, end=True)))
    assert call.names == []
    while play.relay.request.is_behind:
        play.relay.request.receive(b"")
    assert call.events == [("message", whole)]


def test_calls_behind_many_frames_are_held_and_passed_in_order() -> None:
    play = opened()
    first, second = play.call(3, HELD), play.call(5, end=True)
    play.relay.request.receive(wire(*[ping()] * MOST, first, data(3, message(b"x"), end=True), second))
    assert play.interceptor.calls == []
    play.relay.request.receive(b"")
    assert play.interceptor.calls[0].names == ["message"]
    assert play.runtime_got()[MOST:] == [first, second]
