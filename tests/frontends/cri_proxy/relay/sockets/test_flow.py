"""What passes through sockets: order, large messages, and sides that do not read."""

from __future__ import annotations

import asyncio

from tests.frontends.cri_proxy.relay.playbook import HELD, ScriptedCall, forward_as_it_came
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import Peer, until
from tests.peers.wire import (
    CANCEL,
    DATA,
    HEADERS,
    INITIAL_WINDOW,
    PING,
    RST_STREAM,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    credit,
    data,
    headers,
    message,
    ping,
    reset,
    settings,
)

MEBIBYTE = 1 << 20


def transports(stage: Stage) -> tuple[asyncio.Transport, asyncio.Transport]:
    """The relay's own two ends of its only connection: the client's and the runtime's."""
    (connection,) = stage.server._connections
    assert connection._runtime is not None
    assert connection._client.transport is not None
    assert connection._runtime.transport is not None
    return connection._client.transport, connection._runtime.transport


async def test_a_call_passes_byte_for_byte(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(call := client.call(3), data(3, message(b"abc"), pad=3, end=True))
    assert [await runtime.next_of(HEADERS), await runtime.frame()] == [
        call,
        data(3, message(b"abc"), pad=3, end=True),
    ]
    runtime.send(answer := runtime.response(3), data(3, message(b"x")), trailers := runtime.trailers(3))
    assert [await client.frame() for _ in range(3)] == [answer, data(3, message(b"x")), trailers]


async def test_a_refusal_reaches_both_sides(stage: Stage) -> None:
    stage.decide(lambda call, _: call.reply.refuse(9, "not on this node"))
    client, runtime = await stage.pair()
    client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
    fields = client.headers.read((await client.next_of(HEADERS)).payload)
    assert (fields["grpc-status"], fields["grpc-message"]) == ("9", "not on this node")
    assert await runtime.next_of(RST_STREAM) == reset(3, CANCEL)


async def test_a_decision_may_come_later(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.send(client.call(3, HELD), data(3, message(b"abc"), end=True))
    await until(lambda: bool(stage.held and stage.held[0].events))
    client.send(client.call(5, end=True))
    assert (await runtime.next_of(HEADERS, stream_id=5)).stream_id == 5
    stage.held[0].reply.forward(b"changed")
    assert await runtime.next_of(DATA) == data(3, b"changed", end=True)


async def upload(client: Peer, stream_id: int, content: bytes) -> None:
    """Sends a message within the windows of its stream and connection."""
    windows = {0: 65_535, stream_id: 65_535}
    at = 0
    while at < len(content):
        size = min(16_384, len(content) - at, *windows.values())
        if size == 0:
            found = await client.next_of(WINDOW_UPDATE)
            windows[found.stream_id] += found.number
            continue
        client.send(data(stream_id, content[at : at + size], end=at + size == len(content)))
        at += size
        for window in windows:
            windows[window] -= size


async def download(runtime: Peer, stream_id: int) -> bytes:
    """Takes a message and gives credit back late: only when a window is used up."""
    received = bytearray()
    while True:
        frame = await runtime.next_of(DATA, stream_id=stream_id)
        received += frame.payload
        if frame.ends_stream:
            return bytes(received)
        if len(received) % 65_535 == 0:
            runtime.send(credit(stream_id, 65_535), credit(0, 65_535))


async def test_a_message_of_three_megabytes_is_held_and_changed(stage: Stage) -> None:
    changed = bytes(range(256)) * (3 * MEBIBYTE // 256 + 5)
    stage.decide(lambda call, _: call.reply.forward(changed))
    client, runtime = await stage.pair()
    whole = message(bytes(3 * MEBIBYTE))
    client.send(client.call(3, HELD))
    _, arrived = await asyncio.gather(upload(client, 3, whole), download(runtime, 3))
    assert stage.held[0].events == [("message", whole)]
    assert arrived == changed


async def test_own_data_takes_turns_with_what_passes(stage: Stage) -> None:
    stage.decide(lambda call, _: call.reply.forward(bytes(8 * MEBIBYTE)))
    client, runtime = await stage.pair()
    runtime.send(settings({INITIAL_WINDOW: 1 << 24}), credit(0, 1 << 24))
    await client.next_of(settings().type_)
    client.send(SETTINGS_ACK, client.call(3, HELD), data(3, message(b""), end=True), ping())
    await runtime.next_of(DATA)
    seen = 16_384
    while (frame := await runtime.frame()).type_ == DATA:
        seen += len(frame.payload)
    assert frame == ping()
    assert seen < 2 * MEBIBYTE
    while not (await runtime.next_of(DATA)).ends_stream:
        pass


async def test_a_client_that_does_not_read_stops_the_runtime_and_bounds_the_memory(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    frames = 2048
    runtime.send(*(data(1, bytes(16_384)) for _ in range(frames)))
    to_client, to_runtime = transports(stage)
    await until(lambda: not to_runtime.is_reading())
    assert to_client.get_write_buffer_size() < 2 * MEBIBYTE
    assert runtime.writer.transport.get_write_buffer_size() > 16 * MEBIBYTE
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(frames):
        assert len((await client.next_of(DATA)).payload) == 16_384
    assert to_runtime.is_reading()


async def test_a_client_that_was_full_before_the_runtime_was_there_stops_it_too(stage: Stage) -> None:
    client = await stage.client()
    client.begin()
    await client.frame()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    outbox = stage.relay.to_client
    # The relay answers them itself, as long as there is no runtime.
    while outbox.is_writable:
        client.send(bytes(ping()) * 200)
        await asyncio.sleep(0)
    client.send(call := client.call(1, end=True))
    runtime = await stage.runtime.peer()
    assert await runtime.next_of(HEADERS) == call
    to_client, to_runtime = transports(stage)
    assert not to_runtime.is_reading()
    runtime.send(settings(), SETTINGS_ACK, answer := runtime.trailers(1))
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await client.next_of(HEADERS) == answer
    assert to_client.get_write_buffer_size() < MEBIBYTE
    assert to_runtime.is_reading()


async def test_own_credit_for_a_client_that_does_not_read_waits_and_is_summed(stage: Stage) -> None:
    client, runtime = await stage.pair()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    runtime.send(*(data(1, bytes(16_384)) for _ in range(256)))
    _, to_runtime = transports(stage)
    await until(lambda: not to_runtime.is_reading())
    client.send(client.call(3, HELD), *(data(3, message(bytes(60_000))[:50]) for _ in range(20)))
    client.send(data(3, end=True))
    await until(lambda: bool(stage.held and stage.held[0].events))
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await client.next_of(WINDOW_UPDATE) == credit(0, 1000)


async def test_a_runtime_that_does_not_read_stops_the_client(stage: Stage) -> None:
    client, runtime = await stage.pair()
    runtime.writer.transport.pause_reading()  # type: ignore[attr-defined]
    frames = 60_000
    client.send(bytes(ping()) * frames)
    to_client, to_runtime = transports(stage)
    await until(lambda: not to_client.is_reading())
    assert to_runtime.get_write_buffer_size() < 2 * MEBIBYTE
    runtime.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(frames):
        assert (await runtime.next_of(ping().type_)).payload == ping().payload


async def test_own_data_waits_for_a_runtime_that_does_not_read(stage: Stage) -> None:
    client, runtime = await stage.pair()
    runtime.send(settings({INITIAL_WINDOW: 1 << 24}), credit(0, 1 << 24))
    await client.next_of(settings().type_)
    runtime.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(SETTINGS_ACK, client.call(3, HELD), data(3, message(b""), end=True))
    await until(lambda: bool(stage.held and stage.held[0].events))
    stage.held[0].reply.forward(bytes(12 * MEBIBYTE))
    _, to_runtime = transports(stage)
    outbox = stage.relay.to_runtime
    await until(lambda: not outbox.is_writable)
    assert to_runtime.get_write_buffer_size() < MEBIBYTE
    runtime.writer.transport.resume_reading()  # type: ignore[attr-defined]
    received = 0
    while not (frame := await runtime.next_of(DATA)).ends_stream:
        received += len(frame.payload)
    assert received + len(frame.payload) == 12 * MEBIBYTE


async def test_a_client_with_many_small_messages_waits_until_there_is_memory(stage: Stage) -> None:
    client, _ = await stage.pair()
    stage.budget.unreserved_bytes = MEBIBYTE
    to_client, _ = transports(stage)
    calls = 200
    decided: list[ScriptedCall] = []
    for stream_id in range(3, 2 * calls + 3, 2):
        client.send(client.call(stream_id, HELD), data(stream_id, message(bytes(16_000)), end=True))
    await until(lambda: not to_client.is_reading())
    assert len(stage.held) < calls

    def whole() -> list[ScriptedCall]:
        return [call for call in stage.held if call.names == ["message"]]

    while len(decided) < calls:
        await until(lambda: len(whole()) > len(decided))
        for call in whole()[len(decided) :]:
            call.reply.refuse(9, "not on this node")
            decided.append(call)
    assert to_client.is_reading()


async def test_calls_of_many_clients_do_not_mix(stage: Stage) -> None:
    stage.decide(forward_as_it_came)
    pairs = [await stage.pair() for _ in range(10)]
    for number, (client, _) in enumerate(pairs):
        client.send(client.call(3, HELD), data(3, message(bytes((number,))), end=True))
    for number, (client, runtime) in enumerate(pairs):
        assert await runtime.next_of(DATA) == data(3, message(bytes((number,))), end=True)
        runtime.send(headers(3, runtime.headers.trailers(number), end=True))
        found = await client.next_of(HEADERS)
        assert client.headers.read(found.payload)["grpc-status"] == str(number)


FLOOD = 40_000


async def test_a_flood_of_tiny_frames_arrives_whole_and_in_order(stage: Stage) -> None:
    """That it takes many turns of the loop is proven without sockets, in `test_turns.py`."""
    client, runtime = await stage.pair()
    expected = [number.to_bytes(8, "big") for number in range(FLOOD)]
    for sender, receiver in ((client, runtime), (runtime, client)):
        sender.send(*map(ping, expected))
        assert [(await receiver.next_of(PING)).payload for _ in range(FLOOD)] == expected


async def test_what_was_sent_before_the_end_arrives_although_it_takes_several_turns(stage: Stage) -> None:
    client, runtime = await stage.pair()
    runtime.send(*(ping(number.to_bytes(8, "big")) for number in range(10_000)))
    runtime.writer.write_eof()
    found = [frame.payload for frame in await client.rest() if frame.type_ == ping().type_]
    assert found == [number.to_bytes(8, "big") for number in range(10_000)]
