"""Before the runtime is there, the relay judges frames as the runtime would."""

from __future__ import annotations

import pytest

from runtimeproxy.http2.frames import PeerError
from tests.frontends.cri_proxy.relay.playbook import Play
from tests.peers.wire import (
    ACK,
    CONTINUATION,
    DATA,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    credit,
    data,
    settings,
    unknown,
)

ENABLE_PUSH = 0x2


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(PRIORITY, 0, 1, bytes(4)), id="priority-too-short"),
        pytest.param(Frame(RST_STREAM, 0, 1, bytes(5)), id="rst-stream-too-long"),
        pytest.param(Frame(PING, 0, 0, bytes(7)), id="ping-too-short"),
        pytest.param(Frame(PING, ACK, 0, bytes(9)), id="ping-ack-too-long"),
        pytest.param(Frame(WINDOW_UPDATE, 0, 0, bytes(3)), id="window-update-too-short"),
        pytest.param(Frame(SETTINGS, 0, 0, bytes(5)), id="half-a-setting"),
        pytest.param(Frame(SETTINGS, ACK, 0, bytes(6)), id="settings-ack-with-payload"),
        pytest.param(Frame(0xF0, 0, 0, bytes(16_385)), id="longer-than-any-frame"),
    ],
)
def test_a_frame_of_a_wrong_length_is_a_frame_size_error(frame: Frame) -> None:
    with pytest.raises(PeerError) as raised:
        Play().client(settings(), frame)
    assert raised.value.code == FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(SETTINGS, 0, 1, b""), id="settings-on-a-stream"),
        pytest.param(Frame(PING, 0, 1, bytes(8)), id="ping-on-a-stream"),
        pytest.param(Frame(GOAWAY, 0, 1, bytes(8)), id="goaway-on-a-stream"),
        pytest.param(Frame(PRIORITY, 0, 0, bytes(5)), id="priority-on-the-connection"),
        pytest.param(Frame(RST_STREAM, 0, 0, bytes(4)), id="rst-stream-on-the-connection"),
        pytest.param(Frame(HEADERS, 0x4, 0, b"\x82"), id="headers-on-the-connection"),
        pytest.param(Frame(DATA, 0, 0, b"x"), id="data-on-the-connection"),
        pytest.param(Frame(DATA, 0, 1, b"x"), id="data-on-an-idle-stream"),
        pytest.param(Frame(CONTINUATION, 0x4, 1, b""), id="continuation-alone"),
        pytest.param(Frame(PUSH_PROMISE, 0x4, 1, bytes(4)), id="push-by-a-client"),
        pytest.param(Frame(WINDOW_UPDATE, 0, 0, bytes(4)), id="credit-of-nothing"),
        pytest.param(settings({ENABLE_PUSH: 2}), id="enable-push-neither-0-nor-1"),
        pytest.param(settings({MAX_FRAME: 16_383}), id="max-frame-size-too-small"),
        pytest.param(settings({MAX_FRAME: 1 << 24}), id="max-frame-size-too-large"),
    ],
)
def test_a_frame_out_of_place_is_a_protocol_error(frame: Frame) -> None:
    with pytest.raises(PeerError) as raised:
        Play().client(settings(), frame)
    assert raised.value.code == PROTOCOL_ERROR


def test_an_initial_window_above_the_largest_is_a_flow_control_error() -> None:
    with pytest.raises(PeerError) as raised:
        Play().client(settings({INITIAL_WINDOW: 1 << 31}))
    assert raised.value.code == FLOW_CONTROL_ERROR


def test_data_beyond_the_connections_first_window_is_a_flow_control_error() -> None:
    play = Play()
    frames = [data(1, bytes(16_384)) for _ in range(3)]
    play.client(settings(), play.call(1), *frames, data(1, bytes(16_383)), data(1, b"", end=True))
    with pytest.raises(PeerError) as raised:
        play.client(data(1, b"x"))
    assert raised.value.code == FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(settings({INITIAL_WINDOW: (1 << 31) - 1}), id="largest-window"),
        pytest.param(settings({MAX_FRAME: (1 << 24) - 1, ENABLE_PUSH: 0}), id="largest-frame"),
        pytest.param(settings({0x7777: 0xFFFFFFFF}), id="unknown-setting"),
        pytest.param(Frame(GOAWAY, 0, 0, bytes(8) + b"debug"), id="goaway-with-text"),
        pytest.param(credit(1, 0), id="stream-credit-of-nothing-ends-only-its-stream"),
        pytest.param(Frame(PRIORITY, 0, 9, bytes(5)), id="priority-of-an-idle-stream"),
        pytest.param(unknown(9), id="unknown-type"),
    ],
)
def test_what_the_runtime_would_take_waits_for_it(frame: Frame) -> None:
    play = Play()
    first = settings()
    play.client(first, call := play.call(1), frame)
    play.open()
    assert play.runtime_got() == [first, call, frame]


def test_once_the_runtime_is_there_it_judges_itself() -> None:
    play = Play()
    play.client(settings(), play.call(1))
    play.open()
    play.forget()
    wrong = [Frame(PING, 0, 0, bytes(7)), Frame(RST_STREAM, 0, 1, bytes(5)), credit(0, 0)]
    play.client(*wrong)
    assert play.runtime_got() == wrong
