"""The protocol at the sans-io core: what goes over the wire, and what becomes of what should not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri_api.nri.v1alpha1 import PLUGIN_SERVICE, RUNTIME_SERVICE
from cri_api.ttrpc import request_pb2
from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.nri import ttrpc
from runtimeproxy.frontends.nri.ttrpc import (
    DATA,
    FRAME_HEADER,
    MESSAGE_HEADER,
    NO_DATA,
    PLUGIN_CONNECTION,
    REMOTE_CLOSED,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    MessageTooLongError,
    ProtocolError,
    Request,
    Response,
    Session,
    Side,
)


def frame(connection_id: int, payload: bytes) -> bytes:
    return FRAME_HEADER.pack(connection_id, len(payload)) + payload


def message(stream_id: int, type_: int, body: bytes = b"", flags: int = 0) -> bytes:
    return MESSAGE_HEADER.pack(len(body), stream_id, type_, flags) + body


def request(stream_id: int, method: str = "Configure", payload: bytes = b"", **fields: object) -> bytes:
    """A call of the runtime, as the plugin's side gets it."""
    read = request_pb2.Request(service=PLUGIN_SERVICE, method=method, payload=payload)
    for name, value in fields.items():
        setattr(read, name, value)
    return frame(PLUGIN_CONNECTION, message(stream_id, REQUEST, read.SerializeToString()))


def response(stream_id: int, body: bytes) -> bytes:
    """The runtime's answer to the plugin."""
    return frame(RUNTIME_CONNECTION, message(stream_id, RESPONSE, body))


def frames(output: bytes) -> Iterator[tuple[int, bytes]]:
    while output:
        connection_id, length = FRAME_HEADER.unpack_from(output)
        yield connection_id, output[FRAME_HEADER.size : FRAME_HEADER.size + length]
        output = output[FRAME_HEADER.size + length :]


def refusals(session: Session) -> list[tuple[int, StatusCode]]:
    """Stream id and code of the errors that the plugin's side has answered with."""
    found = []
    for connection_id, payload in frames(session.take_output()):
        assert connection_id == PLUGIN_CONNECTION
        _, stream_id, type_, _ = MESSAGE_HEADER.unpack_from(payload)
        assert type_ == RESPONSE
        read = request_pb2.Response.FromString(payload[MESSAGE_HEADER.size :])
        found.append((stream_id, StatusCode(read.status.code)))
    return found


@pytest.fixture
def plugin() -> Session:
    return Session(Side.PLUGIN)


@pytest.fixture
def runtime() -> Session:
    return Session(Side.RUNTIME)


def test_the_bytes_of_a_call(plugin: Session) -> None:
    # By hand from the sources that the module names, not with its structs.
    assert plugin.send_request("RegisterPlugin", b"\n\x01p", 2.0) == 1
    body = b"\n" + bytes([len(RUNTIME_SERVICE)]) + RUNTIME_SERVICE.encode()
    body += b"\x12\x0eRegisterPlugin" + b"\x1a\x03\n\x01p" + b"\x20\x80\xa8\xd6\xb9\x07"
    header = len(body).to_bytes(4, "big") + b"\x00\x00\x00\x01\x01\x00"
    assert plugin.take_output() == b"\x00\x00\x00\x02" + (10 + len(body)).to_bytes(4, "big") + header + body
    assert plugin.take_output() == b""


def test_calls_go_both_ways(plugin: Session, runtime: Session) -> None:
    first, second = plugin.send_request("RegisterPlugin", b"a"), runtime.send_request("Configure", b"b", 2.0)
    assert (first, second) == (1, 1)
    (registration,) = runtime.receive(plugin.take_output())
    (configuration,) = plugin.receive(runtime.take_output())
    assert registration == Request(1, RUNTIME_SERVICE, "RegisterPlugin", b"a", None)
    assert configuration == Request(1, PLUGIN_SERVICE, "Configure", b"b", 2.0)
    runtime.send_response(registration, b"c")
    plugin.send_error(configuration, StatusCode.FAILED_PRECONDITION, "no")
    assert plugin.receive(runtime.take_output()) == [Response(1, 0, "", b"c")]
    assert runtime.receive(plugin.take_output()) == [Response(1, 9, "no", b"")]
    assert (plugin.send_request("UpdateContainers", b""), runtime.send_request("Synchronize", b"")) == (3, 3)


def test_a_deadline_that_has_passed_leaves_no_time(plugin: Session) -> None:
    read = plugin.receive(request(1, timeout_nano=-5) + request(3, timeout_nano=1_500_000))
    assert [each.timeout_s for each in read if isinstance(each, Request)] == [0.0, 0.0015]


def test_a_request_without_any_time_still_has_a_deadline(plugin: Session, runtime: Session) -> None:
    # 0 on the wire is no limit at all.
    runtime.send_request("Configure", b"", 0.0)
    (read,) = plugin.receive(runtime.take_output())
    assert isinstance(read, Request)
    assert read.timeout_s == 1e-9


@pytest.mark.parametrize("size", [0, 4000, 4088, 4096, 100_000, ttrpc.MAX_SENT_FRAMES * 4088 - 100])
def test_frames_fit_into_the_buffer_of_the_other_side(size: int, runtime: Session) -> None:
    runtime.send_request("Synchronize", bytes(size))
    output = runtime.take_output()
    sizes = [FRAME_HEADER.size + len(payload) for _, payload in frames(output)]
    assert max(sizes) <= 4096
    assert len(sizes) <= 256


def test_a_long_message_has_the_two_frames_of_gos_writer(plugin: Session, runtime: Session) -> None:
    runtime.send_request("Synchronize", bytes(4_000_000))
    output = runtime.take_output()
    whole, rest = (payload for _, payload in frames(output))
    assert len(whole) == 4096
    (length, *_) = MESSAGE_HEADER.unpack_from(whole)
    assert len(whole) + len(rest) == MESSAGE_HEADER.size + length
    (read,) = plugin.receive(output)
    assert read.payload == bytes(4_000_000)


def test_no_message_is_longer_than_4_mib(plugin: Session, runtime: Session) -> None:
    with pytest.raises(MessageTooLongError):
        runtime.send_request("Synchronize", bytes(4 * 1024 * 1024))
    assert runtime.take_output() == b""
    (read,) = plugin.receive(request(1))
    assert isinstance(read, Request)
    plugin.send_response(read, bytes(4 * 1024 * 1024))
    assert refusals(plugin) == [(1, StatusCode.RESOURCE_EXHAUSTED)]
    assert plugin.open_requests == 0


def test_a_request_has_one_answer(plugin: Session) -> None:
    (read,) = plugin.receive(request(1))
    assert isinstance(read, Request)
    plugin.send_response(read, b"")
    assert plugin.take_output() != b""
    plugin.send_response(read, b"")
    plugin.send_error(read, 2, "late")
    assert plugin.take_output() == b""


def test_a_text_that_is_no_utf_8_is_sent_all_the_same(plugin: Session, runtime: Session) -> None:
    (read,) = runtime_request(plugin, runtime)
    plugin.send_error(read, 2, "a\udcff" + "b" * 10_000)
    (answer,) = runtime.receive(plugin.take_output())
    assert isinstance(answer, Response)
    assert answer.message == "a?" + "b" * 4094


def runtime_request(plugin: Session, runtime: Session) -> list[Request]:
    runtime.send_request("Configure", b"")
    return [each for each in plugin.receive(runtime.take_output()) if isinstance(each, Request)]


REFUSED = {
    "an even id": (request(2), [(2, StatusCode.INVALID_ARGUMENT)]),
    "id 0": (request(0), [(0, StatusCode.INVALID_ARGUMENT)]),
    "the same id": (request(3) + request(3), [(3, StatusCode.INVALID_ARGUMENT)]),
    "a lower id": (request(3) + request(1), [(1, StatusCode.INVALID_ARGUMENT)]),
    "no protobuf": (
        frame(PLUGIN_CONNECTION, message(1, REQUEST, b"\xff\xff")),
        [(1, StatusCode.INVALID_ARGUMENT)],
    ),
    "a group": (frame(PLUGIN_CONNECTION, message(1, REQUEST, b"\x0b")), [(1, StatusCode.INVALID_ARGUMENT)]),
    "no service": (frame(PLUGIN_CONNECTION, message(1, REQUEST)), [(1, StatusCode.UNIMPLEMENTED)]),
    "another service": (request(1, service=RUNTIME_SERVICE), [(1, StatusCode.UNIMPLEMENTED)]),
    "two million pieces of metadata": (
        frame(PLUGIN_CONNECTION, message(1, REQUEST, b"\x2a\x00" * 2_000_000)),
        [(1, StatusCode.INVALID_ARGUMENT)],
    ),
    "data of no stream": (
        frame(PLUGIN_CONNECTION, message(1, DATA, b"x")),
        [(1, StatusCode.INVALID_ARGUMENT)],
    ),
    "data of a call": (
        request(1) + frame(PLUGIN_CONNECTION, message(1, DATA, b"x")),
        [(1, StatusCode.INVALID_ARGUMENT)],
    ),
    "data after a half-closed stream": (
        request(1)
        + frame(PLUGIN_CONNECTION, message(1, DATA, flags=REMOTE_CLOSED | NO_DATA) + message(1, DATA, b"x")),
        [(1, StatusCode.INVALID_ARGUMENT)],
    ),
}


@pytest.mark.parametrize(("data", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_with_a_stream_costs_that_stream(
    data: bytes, expected: list[tuple[int, StatusCode]], plugin: Session
) -> None:
    plugin.receive(data)
    assert refusals(plugin) == expected
    (later,) = plugin.receive(request(9))
    assert isinstance(later, Request)
    assert later.stream_id == 9


IGNORED = {
    "nothing": b"",
    "an empty frame": frame(PLUGIN_CONNECTION, b""),
    "a frame of a connection that is not open": frame(7, b"garbage" * 100),
    "an unknown type": frame(PLUGIN_CONNECTION, message(1, 9, b"x")),
    "a response where the peer calls": frame(PLUGIN_CONNECTION, message(1, RESPONSE)),
    "a response to nothing": response(1, b""),
    "a request where this side calls": frame(RUNTIME_CONNECTION, message(1, REQUEST)),
}


@pytest.mark.parametrize("data", IGNORED.values(), ids=IGNORED.keys())
def test_what_is_for_nobody_is_ignored(data: bytes, plugin: Session) -> None:
    assert plugin.receive(data) == []
    assert plugin.take_output() == b""
    assert not plugin.is_within_message
    assert len(plugin.receive(request(1))) == 1


def test_the_end_of_the_peers_half_of_a_stream_is_no_end_of_the_call(plugin: Session) -> None:
    half_closed = frame(PLUGIN_CONNECTION, message(1, DATA, flags=REMOTE_CLOSED | NO_DATA))
    (read,) = plugin.receive(request(1) + half_closed)
    assert isinstance(read, Request)
    plugin.send_response(read, b"")
    assert refusals(plugin) == [(1, StatusCode.OK)]


FATAL = {
    "the reserved connection": (frame(0, b"x"), "reserved"),
    "a long frame": (FRAME_HEADER.pack(1, 4 * 1024 * 1024 + 11), "a frame of more than 4194314 bytes"),
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", "a frame of"),
    "a long message": (
        frame(1, MESSAGE_HEADER.pack(4 * 1024 * 1024 + 1, 1, 1, 0)),
        "a message of more than 4194304 bytes",
    ),
}


@pytest.mark.parametrize(("data", "reason"), FATAL.values(), ids=FATAL.keys())
def test_what_breaks_the_framing_ends_the_connection(data: bytes, reason: str, plugin: Session) -> None:
    with pytest.raises(ProtocolError, match=reason):
        plugin.receive(data)


BAD_RESPONSES = {
    "no protobuf": response(1, b"\xff\xff"),
    "a million details": response(1, request_pb2.Response(
        status=request_pb2.Status.FromString(b"\x1a\x00" * 1_000_000)
    ).SerializeToString()),
    "data": frame(RUNTIME_CONNECTION, message(1, DATA, b"x")),
    "a request": frame(RUNTIME_CONNECTION, message(1, REQUEST, b"x")),
}  # fmt: skip


@pytest.mark.parametrize("data", BAD_RESPONSES.values(), ids=BAD_RESPONSES.keys())
def test_what_is_no_response_fails_the_call_it_is_for(data: bytes, plugin: Session) -> None:
    plugin.send_request("RegisterPlugin", b"")
    (read,) = plugin.receive(data)
    assert isinstance(read, Response)
    assert (read.stream_id, read.code) == (1, StatusCode.INTERNAL)
    assert plugin.receive(data) == []


def test_the_answer_to_a_call_that_nobody_waits_for_is_dropped(plugin: Session) -> None:
    stream_id = plugin.send_request("RegisterPlugin", b"")
    plugin.abandon(stream_id)
    assert plugin.receive(response(stream_id, b"")) == []


def test_open_requests_are_bounded(plugin: Session) -> None:
    ids = range(1, 2 * (ttrpc.MAX_OPEN_REQUESTS + 10), 2)
    read = plugin.receive(b"".join(map(request, ids)))
    assert len(read) == plugin.open_requests == ttrpc.MAX_OPEN_REQUESTS
    refused = refusals(plugin)
    assert [code for _, code in refused] == [StatusCode.RESOURCE_EXHAUSTED] * 10


def test_bytes_of_open_requests_are_bounded(plugin: Session) -> None:
    body = bytes(3 * 1024 * 1024)
    read = [each for number in range(7) for each in plugin.receive(request(2 * number + 1, payload=body))]
    assert len(read) == 5
    assert refusals(plugin) == [(11, StatusCode.RESOURCE_EXHAUSTED), (13, StatusCode.RESOURCE_EXHAUSTED)]
    for each in read:
        assert isinstance(each, Request)
        plugin.send_response(each, b"")
    assert len(plugin.receive(request(15, payload=body))) == 1


def test_ids_end(plugin: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttrpc, "MAX_STREAM_ID", 3)
    assert [plugin.send_request("M", b"") for _ in range(2)] == [1, 3]
    with pytest.raises(ProtocolError):
        plugin.send_request("M", b"")


def test_a_peer_that_ends_within_a_message_is_known(plugin: Session) -> None:
    data = request(1)
    for end in range(1, len(data)):
        session = Session(Side.PLUGIN)
        session.receive(data[:end])
        assert session.is_within_message
    plugin.receive(data)
    assert not plugin.is_within_message


def seconds(session: Session, pieces: list[bytes]) -> float:
    began_s = time.process_time()
    for piece in pieces:
        session.receive(piece)
    return time.process_time() - began_s


def test_work_grows_with_the_bytes_only() -> None:
    # Quadratic work would take minutes for each of these.
    long = request(1, payload=bytes(1024 * 1024))
    piecewise = [long[at : at + 1] for at in range(len(long))]
    assert seconds(Session(Side.PLUGIN), piecewise) < 10
    empty = frame(PLUGIN_CONNECTION, b"") * 1_000_000
    assert seconds(Session(Side.PLUGIN), [empty]) < 10
    tiny = message(1, 9) * (4 * 1024 * 1024 // 10)
    assert seconds(Session(Side.PLUGIN), [frame(PLUGIN_CONNECTION, tiny)]) < 10
    content = long[FRAME_HEADER.size :]
    one_byte_frames = b"".join(frame(PLUGIN_CONNECTION, content[at : at + 1]) for at in range(200_000))
    assert seconds(Session(Side.PLUGIN), [one_byte_frames]) < 10


calls = st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=10_000), st.booleans()), max_size=8)


@given(
    calls=calls,
    cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    answers=st.binary(max_size=5000),
)
def test_what_is_sent_is_received_however_it_is_cut(
    calls: list[tuple[str, bytes, bool]], cuts: list[int], answers: bytes
) -> None:
    plugin, runtime = Session(Side.PLUGIN), Session(Side.RUNTIME)
    sent = [
        runtime.send_request(method, payload, 1.0 if limited else None) for method, payload, limited in calls
    ]
    data = runtime.take_output()
    read: list[Request | Response] = []
    number = 0
    while data:
        cut = cuts[number % len(cuts)]
        read += plugin.receive(data[:cut])
        data, number = data[cut:], number + 1
    assert [
        (each.method, each.payload, each.timeout_s is not None) for each in read if isinstance(each, Request)
    ] == calls
    for each in read:
        assert isinstance(each, Request)
        plugin.send_response(each, answers)
    assert runtime.receive(plugin.take_output()) == [Response(each, 0, "", answers) for each in sent]


@given(st.lists(st.binary(max_size=300), max_size=20), st.sampled_from(Side))
def test_any_bytes_have_a_defined_outcome(pieces: list[bytes], side: Side) -> None:
    session = Session(side)
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            session.receive(piece)
    assert len(session.take_output()) <= 100 + 10 * sum(map(len, pieces))
