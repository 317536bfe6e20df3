"""Design 2, "Back-pressure": what waits while a transport is over its mark, and how much of it may."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.flow_control import OWN_BYTES_PER_TURN
from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import HELD, Play, grant, opened
from tests.peers.wire import CANCEL, Frame, credit, data, message, ping, ping_ack, reset

BOUND = 1000


def test_credit_is_summed_per_stream_and_connection_while_the_client_does_not_read() -> None:
    play = opened()
    play.hold(3)
    play.hold(5)
    play.relay.on_client_writable(False)
    size = 200_000
    for stream_id in (3, 5):
        play.client(data(stream_id, message(bytes(size))[:1000]))
        play.client(data(stream_id, bytes(1000)))
    assert play.client_got() == []
    play.relay.on_client_writable(True)
    rest = size + 5 - 65_535
    assert sorted(play.client_got()) == sorted([credit(0, 4000), credit(3, rest), credit(5, rest)])


def test_passing_frames_do_not_wait_for_the_buffer() -> None:
    play = opened()
    play.relay.on_client_writable(False)
    play.relay.on_runtime_writable(False)
    play.client(ping())
    play.runtime(ping_ack())
    assert (play.runtime_got(), play.client_got()) == ([ping()], [ping_ack()])


def test_own_frames_wait_in_their_order() -> None:
    play = opened(lambda call, _: call.reply.refuse(9, "no"))
    play.relay.on_client_writable(False)
    play.relay.on_runtime_writable(False)
    for stream_id in (3, 5, 7):
        play.client(play.call(stream_id, HELD), data(stream_id, message(b""), end=True))
    assert [frame.type_ for frame in play.runtime_got()] == [1, 1, 1]
    assert play.client_got() == []
    play.relay.on_runtime_writable(True)
    assert play.runtime_got() == [reset(3, CANCEL), reset(5, CANCEL), reset(7, CANCEL)]
    play.relay.on_client_writable(True)
    assert [frame.stream_id for frame in play.client_got() if frame.type_ == 1] == [3, 5, 7]


def test_a_buffer_that_drains_in_the_middle_of_a_frame_sends_own_frames_at_its_end() -> None:
    play = opened()
    play.hold(3)
    play.relay.on_client_writable(False)
    whole = bytes(data(1, bytes(100)))
    play.runtime(whole[:50])
    play.client(data(3, message(bytes(50))[:20]))
    play.relay.on_client_writable(True)
    assert play.client_bytes() == whole[:50]
    play.runtime(whole[50:])
    assert play.client_bytes() == whole[50:] + bytes(credit(0, 20))


def test_above_a_thousand_own_frames_the_connection_is_closed() -> None:
    play = opened(lambda call, _: call.reply.refuse(9, "no"))
    play.relay.on_client_writable(False)
    stream_id = 1
    while play.relay.failure is None:
        stream_id += 2
        play.client(play.call(stream_id, HELD), data(stream_id, message(b""), end=True))
    # The credit for the DATA is summed into one frame.
    assert len(play.interceptor.calls) == BOUND + 1
    assert isinstance(play.relay.failure, PeerError)
    assert play.relay.failure.code == 0xB


def test_pings_before_the_opening_are_bounded_too() -> None:
    play = Play()
    play.relay.on_client_writable(False)
    play.client(*(ping() for _ in range(BOUND)))
    with pytest.raises(PeerError, match="too many frames"):
        play.client(ping())


def test_a_decision_that_finds_too_many_own_frames_does_not_raise_at_the_one_who_decided() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, message(b""), end=True))
    play.relay.on_client_writable(False)
    for _ in range(BOUND):
        play.relay.to_client.send(bytes(ping()))
    wakes = play.wakes
    call.reply.refuse(9, "no")
    assert isinstance(play.relay.failure, PeerError)
    assert play.wakes > wakes


def test_credit_for_too_many_streams_ends_its_own_connection_and_not_the_one_that_made_room() -> None:
    budget = MemoryBudget(100_000)
    first, second = Play(budget=budget), Play(budget=budget)
    for play in (first, second):
        play.client(play.call(1, HELD))
        play.open()
        play.client(data(1, message(bytes(90_000))[:10]))
    second.relay.on_client_writable(False)
    for stream_id in range(10, 10 + BOUND):
        second.relay.to_client.credit(stream_id, 1)
    first.client(reset(1))
    assert [type(play.relay.failure) for play in (first, second)] == [type(None), PeerError]
    assert second.wakes


def test_own_data_is_written_only_while_the_runtimes_buffer_is_below_its_mark() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, end=True))
    play.relay.on_runtime_writable(False)
    call.reply.forward(bytes(100))
    assert play.runtime_got() == []
    play.relay.on_runtime_writable(True)
    assert play.runtime_got() == [data(3, bytes(100), end=True)]


def own_bytes(frames: list[Frame]) -> int:
    return sum(len(frame.payload) for frame in frames if frame.type_ == 0)


def test_own_data_asks_the_transport_again_after_a_while() -> None:
    play = opened()
    call = play.hold(3)
    play.client(data(3, end=True))
    grant(play, 3, 1 << 20)
    grant(play, 0, 1 << 20)
    wakes = play.wakes
    call.reply.forward(bytes(300_000))
    turns = [own_bytes(play.runtime_got())]
    assert play.wakes > wakes
    while play.relay.flow.wants_turn:
        play.relay.flow.pump()
        turns.append(own_bytes(play.runtime_got()))
    assert len(turns) > 2
    assert max(turns) < OWN_BYTES_PER_TURN + 16_384
    assert sum(turns) == 300_000


def test_many_short_messages_take_turns_too() -> None:
    play = opened(lambda call, data: call.reply.forward(data))
    grant(play, 0, 1 << 24)
    for stream_id in range(3, 103, 2):
        play.client(play.call(stream_id, HELD), data(stream_id, message(bytes(10_000)), end=True))
    got = own_bytes(play.runtime_got())
    assert got < OWN_BYTES_PER_TURN + 16_384
    while play.relay.flow.wants_turn:
        play.relay.flow.pump()
        got += own_bytes(play.runtime_got())
    assert got == 50 * 10_005


def test_several_messages_share_the_runtimes_window() -> None:
    play = opened()
    calls = [play.hold(stream_id) for stream_id in (3, 5, 7)]
    play.client(data(3, end=True), data(5, end=True), data(7, end=True))
    for call in calls:
        call.reply.forward(bytes(60_000))
    got = own_bytes(play.runtime_got())
    assert got == 65_535
    while got < 180_000:
        for stream_id in (0, 3, 5, 7):
            grant(play, stream_id, 30_000)
        more = own_bytes(play.runtime_got())
        assert more
        got += more
    assert got == 180_000
