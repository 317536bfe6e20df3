"""Design 2, "Opening": before and while the connection to the runtime is opened."""

from __future__ import annotations

import pytest

from runtimeproxy.frontends.cri_proxy.relay.preconnect import EARLY_BYTES, MAX_EARLY_BYTES, EarlyMemory
from runtimeproxy.http2.frames import PREFACE
from tests.frontends.cri_proxy.relay.playbook import ELSEWHERE, HELD, OTHER, RUNTIME, Play, forward_as_it_came
from tests.peers.wire import (
    SETTINGS_ACK,
    TABLE_SIZE,
    Frame,
    credit,
    data,
    goaway,
    message,
    ping,
    ping_ack,
    priority,
    reset,
    settings,
)


def test_an_empty_settings_frame_is_sent_before_the_client_has_sent_a_call() -> None:
    play = Play()
    assert play.client_got() == [settings()]
    assert play.upstreams == []


def test_the_runtime_gets_the_preface_first() -> None:
    play = Play()
    first = settings({TABLE_SIZE: 100})
    play.client(first, call := play.call(1, end=True))
    play.open()
    assert play.runtime_bytes() == PREFACE + bytes(first) + bytes(call)


def test_the_clients_first_settings_ack_is_swallowed_and_only_that() -> None:
    play = Play()
    play.client(settings(), SETTINGS_ACK, play.call(1, end=True))
    play.open()
    assert SETTINGS_ACK not in play.runtime_got()
    play.runtime(settings())
    play.client(SETTINGS_ACK)
    assert play.runtime_got() == [SETTINGS_ACK]


def test_the_first_settings_ack_is_swallowed_after_the_upstream_is_open_too() -> None:
    play = Play()
    play.client(settings(), play.call(1, end=True))
    play.open()
    play.forget()
    play.client(SETTINGS_ACK, ping())
    assert play.runtime_got() == [ping()]


def test_the_upstreams_own_settings_follow_as_it_sends_them() -> None:
    play = Play()
    play.client(settings(), play.call(1, end=True))
    play.open()
    play.forget()
    theirs = settings({TABLE_SIZE: 123, 0x6: 456})
    play.runtime(theirs)
    assert play.client_got() == [theirs]


@pytest.mark.parametrize(("path", "upstream"), [(HELD, RUNTIME), (ELSEWHERE, OTHER)])
def test_the_upstream_is_chosen_by_the_first_path(path: str, upstream: object) -> None:
    play = Play()
    play.client(settings(), SETTINGS_ACK, ping(), credit(0, 100), priority(1))
    assert play.upstreams == []
    play.client(play.call(1, path, end=True))
    assert play.upstreams == [upstream]


def test_later_calls_do_not_open_it_again() -> None:
    play = Play()
    play.client(settings(), play.call(1, end=True), play.call(3, end=True))
    assert play.upstreams == [RUNTIME]


def test_pings_are_answered_by_the_relay_until_it_is_open() -> None:
    play = Play()
    play.client_got()
    play.client(settings(), ping(b"aaaaaaaa"), play.call(1, end=True), ping(b"bbbbbbbb"))
    assert play.client_got() == [SETTINGS_ACK, ping_ack(b"aaaaaaaa"), ping_ack(b"bbbbbbbb")]
    play.open()
    assert not [frame for frame in play.runtime_got() if frame.type_ == ping().type_]
    play.client(ping())
    assert play.runtime_got() == [ping()]
    assert play.client_got() == []


def test_settings_are_acknowledged_by_the_relay_and_the_runtimes_first_ack_swallowed() -> None:
    play = Play()
    play.client_got()
    play.client(settings({TABLE_SIZE: 1}), settings({TABLE_SIZE: 2}), play.call(1, end=True))
    assert play.client_got() == [SETTINGS_ACK, SETTINGS_ACK]
    play.open()
    assert [frame.payload for frame in play.runtime_got()][:2] == [
        settings({TABLE_SIZE: 1}).payload,
        settings({TABLE_SIZE: 2}).payload,
    ]
    play.client(settings({TABLE_SIZE: 3}))
    play.runtime(settings(), SETTINGS_ACK, SETTINGS_ACK, SETTINGS_ACK)
    assert play.client_got() == [settings(), SETTINGS_ACK]


def test_settings_after_the_opening_are_the_runtimes_to_acknowledge() -> None:
    play = Play()
    play.client(settings(), play.call(1, end=True))
    play.open()
    play.forget()
    play.client(settings({TABLE_SIZE: 9}))
    assert play.client_got() == []
    assert play.runtime_got() == [settings({TABLE_SIZE: 9})]


def test_everything_else_waits_in_its_order() -> None:
    play = Play()
    items = [settings(), play.call(1), data(1, b"x"), credit(1, 5), priority(3), play.call(3), data(1, b"y")]
    play.client(*items)
    play.open()
    assert play.runtime_got() == items


def test_data_of_streams_that_are_reset_meanwhile_is_dropped_and_credited() -> None:
    play = Play()
    play.client_got()
    calls = [play.call(1), play.call(3)]
    play.client(*calls, data(1, b"abc", pad=4), data(3, b"stays"), data(1, b"defg"), reset(1))
    assert play.client_got() == [credit(0, 3 + 5 + 4)]
    play.open()
    assert play.runtime_got() == [*calls, data(3, b"stays"), reset(1)]


def test_the_credit_of_dropped_data_can_be_used_again() -> None:
    play = Play()
    call = play.call(1)
    play.client(call)
    for _ in range(20):
        play.client(data(1, bytes(16_000)), reset(1), play.call(3))
        play.client(*(data(3, bytes(16_000)) for _ in range(3)), reset(3))
    play.open()
    assert not [frame for frame in play.runtime_got() if frame.type_ == data(1).type_]


def test_data_of_a_held_call_waits_for_the_upstream() -> None:
    play = Play(forward_as_it_came)
    play.client(call := play.call(1, HELD), data(1, message(b"abc"), end=True))
    play.open()
    assert play.runtime_got() == [call, data(1, message(b"abc"), end=True)]


def test_waiting_bytes_are_bounded() -> None:
    play = Play()
    play.client(play.call(1))
    seen = [play.relay.early.is_full]
    play.client(*(priority(1) for _ in range(MAX_EARLY_BYTES // 14 + 1)))
    seen.append(play.relay.early.is_full)
    play.open()
    seen.append(play.relay.early.is_full)
    assert seen == [False, True, False]


def test_waiting_bytes_of_all_clients_together_are_bounded() -> None:
    early = EarlyMemory(4 * EARLY_BYTES)
    plays = [Play(early=early) for _ in range(10)]
    for play in plays:
        play.client(play.call(1), *(priority(1) for _ in range(EARLY_BYTES // 14)))
        play.client(priority(1))
    # Nobody has more than what fits whatever others have; the first ones had it when there was room.
    assert [play.relay.early.is_full for play in plays] == [True] * 10
    assert Play(early=early).relay.early.is_full is False
    for play in plays[:5]:
        play.open()
    for play in plays[5:8]:
        play.relay.on_lost()
    assert [play.relay.early.is_full for play in plays[8:]] == [False] * 2
    for play in plays[8:]:
        play.client(settings())
        play.relay.drain()
        play.relay.on_lost()
    assert early.used_bytes == 0


def test_a_clients_small_calls_wait_whatever_others_have() -> None:
    early = EarlyMemory(0)
    play = Play(early=early)
    play.client(play.call(1), data(1, bytes(16_000), end=True))
    assert not play.relay.early.is_full


def test_if_the_upstream_stays_away_each_waiting_stream_is_refused_then_goaway() -> None:
    play = Play()
    play.client(settings(), play.call(1), play.call(3, HELD), play.call(5, end=True), play.call(7), reset(7))
    play.client_got()
    play.relay.on_upstream_failed("runtime is not reachable: No such file or directory")
    *refusals, last = play.client_got()
    assert [frame.stream_id for frame in refusals] == [1, 3, 5]
    for frame in refusals:
        assert frame.ends_stream
        fields = play.read_refusal(frame)
        assert fields["grpc-status"] == "14"
        assert fields["grpc-message"] == (
            "koord-runtime-proxy: runtime is not reachable: No such file or directory"
        )
    assert last == goaway(7)


def test_if_the_upstream_stays_away_held_calls_are_cancelled() -> None:
    play = Play()
    play.client(play.call(1, HELD), data(1, message(b"abc"), end=True), play.call(3, HELD))
    play.relay.on_upstream_failed("gone")
    assert [call.names for call in play.interceptor.calls] == [["message", "cancelled"], ["cancelled"]]
    assert not play.relay.has_intercepted_calls


def test_a_handler_that_raises_then_keeps_nobody_from_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    def raises() -> None:
        raise RuntimeError("a defect")

    play = Play()
    play.client(play.call(1, HELD), play.call(3))
    play.forget()
    play.interceptor.calls[0].on_cancelled = raises  # type: ignore[method-assign]
    play.relay.on_upstream_failed("gone")
    assert [frame.stream_id for frame in play.client_got()] == [1, 3, 0]
    assert len(caplog.records) == 1


def test_a_call_refused_while_the_upstream_is_away_is_refused_once() -> None:
    play = Play(lambda call, _: call.reply.refuse(9, "no"))
    play.client(play.call(1, HELD), data(1, message(b""), end=True))
    refused = [frame.stream_id for frame in play.client_got() if frame.type_ == 1]
    play.relay.on_upstream_failed("gone")
    assert refused == [1]
    assert play.client_got() == [goaway(1)]


def test_a_refusal_before_the_upstream_is_open_reaches_the_runtime_as_a_reset() -> None:
    play = Play(lambda call, _: call.reply.refuse(9, "no"))
    play.client(call := play.call(1, HELD), data(1, message(b""), end=True))
    play.open()
    assert play.runtime_got() == [call, reset(1)]


def test_frames_without_a_call_never_reach_a_runtime() -> None:
    play = Play()
    play.client(settings(), SETTINGS_ACK, *(ping() for _ in range(5)))
    assert play.upstreams == []
    assert play.runtime_bytes() == b""


def test_a_frame_that_is_incomplete_waits_for_its_rest() -> None:
    play = Play()
    play.client(play.call(1))
    play.open()
    play.forget()
    whole = bytes(data(1, b"abcdef"))
    play.client(whole[:3])
    play.client(whole[3:12])
    assert play.runtime_bytes() == b""
    play.client(whole[12:])
    assert play.runtime_bytes() == whole


def test_frames_are_compared_as_values() -> None:
    assert data(1, b"a") == Frame(0, 0, 1, b"a")
