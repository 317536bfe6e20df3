"""Design 2, limits: the larger of acknowledged and announced SETTINGS for a peer, the smaller for us."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.relay.peer_settings import Http2Settings, PeerSettings
from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import Play, opened
from tests.peers.wire import (
    INITIAL_WINDOW,
    MAX_FRAME,
    SETTINGS_ACK,
    TABLE_SIZE,
    Frame,
    credit,
    data,
    headers,
    message,
    priority,
    settings,
)


def announced(*values: dict[int, int]) -> PeerSettings:
    """A peer's settings after these frames, none acknowledged."""
    peer = PeerSettings()
    for each in values:
        peer.announce(settings(each).payload)
    return peer


def test_before_any_frame_the_defaults_of_the_protocol_count() -> None:
    assert announced().largest == announced().smallest == Http2Settings(4096, 65_535, 16_384)


def test_the_three_settings_are_read_and_others_left_out() -> None:
    peer = announced({TABLE_SIZE: 1, 0x3: 7, INITIAL_WINDOW: 2, 0x6: 8, MAX_FRAME: 3})
    assert peer.announced == Http2Settings(1, 2, 3)


def test_both_values_count_until_the_ack() -> None:
    peer = announced({INITIAL_WINDOW: 100, MAX_FRAME: 20_000})
    assert (peer.smallest.initial_window_bytes, peer.largest.initial_window_bytes) == (100, 65_535)
    assert (peer.smallest.max_frame_bytes, peer.largest.max_frame_bytes) == (16_384, 20_000)
    peer.acknowledge()
    assert peer.smallest == peer.largest == Http2Settings(4096, 100, 20_000)


def test_acks_are_matched_in_order() -> None:
    peer = announced({INITIAL_WINDOW: 100}, {INITIAL_WINDOW: 300}, {INITIAL_WINDOW: 200})
    seen = []
    for _ in range(4):
        acked = peer.acknowledge()
        seen.append(acked and (acked.initial_window_bytes, peer.largest.initial_window_bytes))
    assert seen == [(100, 300), (300, 300), (200, 200), None]


def test_a_later_frame_changes_only_what_it_names() -> None:
    assert announced({INITIAL_WINDOW: 1}, {MAX_FRAME: 30_000}).announced == Http2Settings(4096, 1, 30_000)


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\4\0\0\0\1\0\5\0"])
def test_malformed_settings_are_the_receivers_to_judge(payload: bytes) -> None:
    play = opened()
    odd = Frame(4, 0, 0, payload)
    play.client(odd)
    play.runtime(odd)
    assert (play.runtime_got(), play.client_got()) == ([odd], [odd])


def longest(play: Play, size: int) -> None:
    """The client sends a frame of this size."""
    play.client(Frame(0xF0, 0, 0, bytes(size)))


def test_a_raised_frame_size_counts_as_soon_as_it_is_announced() -> None:
    play = opened()
    play.runtime(settings({MAX_FRAME: 20_000}))
    longest(play, 20_000)
    with pytest.raises(PeerError, match="longer than the runtime allows"):
        longest(play, 20_001)


def test_a_lowered_frame_size_counts_once_it_is_acknowledged() -> None:
    play = opened(runtime_settings={MAX_FRAME: 20_000})
    play.runtime(settings({MAX_FRAME: 16_384}))
    longest(play, 20_000)
    play.client(SETTINGS_ACK)
    with pytest.raises(PeerError, match="longer than the runtime allows"):
        longest(play, 16_385)


def test_a_lowered_frame_size_counts_in_the_read_that_acknowledges_it() -> None:
    play = opened(runtime_settings={MAX_FRAME: 20_000})
    play.runtime(settings({MAX_FRAME: 16_384}))
    with pytest.raises(PeerError, match="longer than the runtime allows"):
        play.client(SETTINGS_ACK, Frame(0xF0, 0, 0, bytes(16_385)))


def test_the_same_rules_hold_for_the_runtimes_frames() -> None:
    play = opened()
    play.client(settings({MAX_FRAME: 20_000}))
    play.runtime(data(1, bytes(20_000)))
    play.runtime(SETTINGS_ACK)
    play.client(settings({MAX_FRAME: 16_384}))
    play.runtime(data(1, bytes(20_000)))
    with pytest.raises(PeerError, match="longer than the client allows") as raised:
        play.runtime(SETTINGS_ACK, data(1, bytes(16_385)))
    assert raised.value.code == 0x6


def held_and_decided(play: Play, content: bytes) -> None:
    call = play.hold(3)
    play.client(data(3, b"", end=True))
    play.forget()
    call.reply.forward(content)


def sent(play: Play) -> int:
    return sum(len(frame.payload) for frame in play.runtime_got() if frame.type_ == 0)


def test_a_raised_window_counts_for_own_data_once_it_is_acknowledged() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 100})
    held_and_decided(play, bytes(5000))
    assert sent(play) == 100
    play.runtime(settings({INITIAL_WINDOW: 1000}))
    assert sent(play) == 0
    play.client(SETTINGS_ACK)
    assert sent(play) == 900


def test_a_lowered_window_counts_for_own_data_as_soon_as_it_is_announced() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 1000})
    play.runtime(settings({INITIAL_WINDOW: 100}))
    held_and_decided(play, bytes(5000))
    assert sent(play) == 100


def test_a_raised_window_counts_for_the_clients_data_as_soon_as_it_is_announced() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 10})
    play.hold(3)
    play.runtime(settings({INITIAL_WINDOW: 1000}))
    play.client(data(3, message(bytes(2000))[:1000]))
    with pytest.raises(PeerError, match="beyond a stream's window"):
        play.client(data(3, bytes(5000)))


def test_several_announcements_wait_for_their_own_acks() -> None:
    play = opened(runtime_settings={INITIAL_WINDOW: 100})
    play.runtime(settings({INITIAL_WINDOW: 50}), settings({INITIAL_WINDOW: 5000}))
    held_and_decided(play, bytes(9000))
    assert sent(play) == 50
    play.client(SETTINGS_ACK)
    assert sent(play) == 0
    play.client(SETTINGS_ACK)
    assert sent(play) == 4950


def test_the_clients_table_may_grow_as_far_as_the_runtime_announced() -> None:
    play = opened()
    play.runtime(settings({TABLE_SIZE: 8192}))
    play.client(SETTINGS_ACK)
    play.client_headers.encoder.header_table_size = 8192
    play.client(play.call(3), call := play.call(5))
    assert play.runtime_got()[-1] == call


def test_a_table_larger_than_the_runtime_announced_is_an_error() -> None:
    play = opened()
    play.client_headers.encoder.header_table_size = 8192
    with pytest.raises(PeerError, match="header block") as raised:
        play.client(play.call(3))
    assert raised.value.code == 0x9


def test_settings_alone_do_not_change_the_clients_table() -> None:
    play = opened()
    play.client(play.call(3))
    play.runtime(settings({TABLE_SIZE: 0}))
    play.client(SETTINGS_ACK, call := play.call(5))
    assert play.runtime_got()[-1] == call
    assert play.interceptor.calls == []


def test_credit_and_priority_frames_are_no_settings() -> None:
    play = opened()
    play.client(credit(0, 5), priority(3), headers(3, play.client_headers.request("/x"), end=True))
    assert [frame.type_ for frame in play.runtime_got()] == [8, 2, 1]
