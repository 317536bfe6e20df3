"""Runtimes with habits: each serves one call of a real client in a way that RFC 9113 allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.peers.aio import Peer
from tests.peers.wire import (
    ACK,
    CANCEL,
    DATA,
    ENHANCE_YOUR_CALM,
    HEADERS,
    INITIAL_WINDOW,
    INTERNAL_ERROR,
    NO_ERROR,
    PING,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    Frame,
    credit,
    data,
    goaway,
    headers,
    message,
    ping_ack,
    reset,
    settings,
)

ANSWER = b"the answer"

Habit = Callable[[Peer], Awaitable[None]]


async def heard(peer: Peer) -> Frame:
    """The next frame of a call; what belongs to the connection is answered on the way."""
    while True:
        frame = await peer.frame()
        if frame.type_ == SETTINGS and not frame.flags & ACK:
            peer.send(SETTINGS_ACK)
        elif frame.type_ == PING and not frame.flags & ACK:
            peer.send(ping_ack(frame.payload))
        elif frame.type_ in (DATA, HEADERS, RST_STREAM):
            return frame


async def opened(peer: Peer, values: dict[int, int] | None = None) -> int:
    """Waits for the call; returns its stream."""
    peer.send(settings(values))
    while (frame := await heard(peer)).type_ != HEADERS:
        pass
    return frame.stream_id


async def rest_of(peer: Peer, size: int, *, step: int | None = None) -> int:
    """Takes a message of this size, giving credit back `step` bytes at a time when the window is used up."""
    received = 0
    while received < size:
        frame = await heard(peer)
        if frame.type_ != DATA:
            return -1
        received += len(frame.payload)
        if frame.payload:
            give(peer, frame.stream_id, len(frame.payload), step)
    return received


def give(peer: Peer, stream_id: int, size: int, step: int | None) -> None:
    """Gives credit back in pieces, the stream's after the connection's."""
    while size > 0:
        piece = min(size, step or size)
        peer.send(credit(0, piece), credit(stream_id, piece))
        size -= piece


def answer(peer: Peer, stream_id: int) -> None:
    """A response with a message."""
    peer.send(peer.response(stream_id), data(stream_id, message(ANSWER)), peer.trailers(stream_id))


MESSAGE_BYTES = 300_000
SENT_BYTES = MESSAGE_BYTES + 5


async def ordinary(peer: Peer) -> None:
    """Does what most do."""
    stream_id = await opened(peer)
    await rest_of(peer, SENT_BYTES)
    answer(peer, stream_id)


async def credits_in_small_pieces(peer: Peer) -> None:
    """Gives credit back a little at a time."""
    stream_id = await opened(peer)
    await rest_of(peer, SENT_BYTES, step=777)
    answer(peer, stream_id)


async def credits_when_all_is_used(peer: Peer) -> None:
    """Waits until a window is used up."""
    stream_id = await opened(peer)
    used = received = 0
    while received < SENT_BYTES:
        size = len((await heard(peer)).payload)
        used, received = used + size, received + size
        if used == 65_535:
            peer.send(credit(stream_id, used), credit(0, used))
            used = 0
    answer(peer, stream_id)


async def lowers_its_window(peer: Peer) -> None:
    """Announces a smaller window in mid-stream."""
    stream_id = await opened(peer)
    peer.send(settings({INITIAL_WINDOW: 500}))
    await rest_of(peer, SENT_BYTES)
    answer(peer, stream_id)


async def raises_its_window(peer: Peer) -> None:
    """Begins with a tiny window and raises it when that is used up."""
    stream_id = await opened(peer, {INITIAL_WINDOW: 10})
    first = 0
    while first < 10:
        frame = await heard(peer)
        first += len(frame.payload)
    peer.send(settings({INITIAL_WINDOW: 1 << 20}), credit(0, 1 << 20))
    received = first
    while received < SENT_BYTES:
        received += len((await heard(peer)).payload)
    answer(peer, stream_id)


async def opens_with_no_window(peer: Peer) -> None:
    """Announces a window of nothing."""
    stream_id = await opened(peer, {INITIAL_WINDOW: 0})
    peer.send(credit(stream_id, 3))
    received = len((await heard(peer)).payload)
    peer.send(credit(stream_id, SENT_BYTES))
    while received < SENT_BYTES:
        size = len((await heard(peer)).payload)
        received += size
        peer.send(credit(0, size))
    answer(peer, stream_id)


async def answers_before_the_message(peer: Peer) -> None:
    """Says UNIMPLEMENTED at the headers, and never resets the stream."""
    stream_id = await opened(peer)
    peer.send(
        headers(stream_id, peer.headers.block([(":status", "200"), ("grpc-status", "12")]), end=True),
    )


async def answers_before_the_message_and_resets(peer: Peer) -> None:
    """Says UNIMPLEMENTED at the headers, then does not want the rest."""
    await answers_before_the_message(peer)
    peer.send(reset(1, NO_ERROR))


async def hangs(peer: Peer) -> None:
    """Takes everything and says nothing until the client gives up."""
    await opened(peer)
    while (frame := await heard(peer)).type_ != RST_STREAM:
        give(peer, frame.stream_id, len(frame.payload), None)


async def dies(peer: Peer) -> None:
    """Takes everything and is gone."""
    await opened(peer)
    await rest_of(peer, SENT_BYTES)
    await peer.close()


async def dies_in_mid_answer(peer: Peer) -> None:
    """Answers half and is gone."""
    stream_id = await opened(peer)
    await rest_of(peer, SENT_BYTES)
    peer.send(peer.response(stream_id), data(stream_id, message(ANSWER)[:7]))
    await peer.close()


async def says_goodbye_first(peer: Peer) -> None:
    """Announces its end, but serves what it has."""
    stream_id = await opened(peer)
    peer.send(goaway(stream_id))
    await rest_of(peer, SENT_BYTES)
    answer(peer, stream_id)


def resets_with(code: int) -> Habit:
    """Takes everything, then resets the stream."""

    async def resets(peer: Peer) -> None:
        stream_id = await opened(peer)
        await rest_of(peer, SENT_BYTES)
        peer.send(reset(stream_id, code))

    return resets


HABITS: dict[str, tuple[Habit, str]] = {
    "ordinary": (ordinary, "OK"),
    "credits-in-small-pieces": (credits_in_small_pieces, "OK"),
    "credits-when-all-is-used": (credits_when_all_is_used, "OK"),
    "lowers-its-window": (lowers_its_window, "OK"),
    "raises-its-window": (raises_its_window, "OK"),
    "opens-with-no-window": (opens_with_no_window, "OK"),
    "says-goodbye-first": (says_goodbye_first, "OK"),
    "answers-before-the-message": (answers_before_the_message, "UNIMPLEMENTED"),
    "answers-early-and-resets": (answers_before_the_message_and_resets, "UNIMPLEMENTED"),
    "hangs": (hangs, "DEADLINE_EXCEEDED"),
    "dies": (dies, "UNAVAILABLE"),
    "dies-in-mid-answer": (dies_in_mid_answer, "UNAVAILABLE"),
    "resets-internal": (resets_with(INTERNAL_ERROR), "INTERNAL"),
    "resets-cancel": (resets_with(CANCEL), "CANCELLED"),
    "resets-calm": (resets_with(ENHANCE_YOUR_CALM), "RESOURCE_EXHAUSTED"),
}
"""Each with the status that a client gets of it without a relay."""
