"""A lean HTTP/2 client for load: one Unix socket, unary gRPC calls, header blocks as grpc-go encodes them.

Nothing but frame boundaries is looked at while the clock runs; what the calls answered is decoded afterwards.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from hpack import Decoder, Encoder

from runtimeproxy.http2.frames import PREFACE
from tests.peers import wire
from tests.peers.wire import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame_bytes,
)

_WINDOW = 2**30 - 1
_DEFAULT_WINDOW = 65_535


class LoadError(Exception):
    """The server ended the connection or a stream, or a call failed."""


class HeaderEncoder:
    """Request header blocks as grpc-go writes them.

    Every field that is not in a table goes in as "literal with incremental indexing", also the one that
    differs in each call.

    Source: golang.org/x/net/http2/hpack Encoder.WriteField; grpc-go http2_client.go createHeaderFields.
    """

    def __init__(self, extra: tuple[tuple[str, str], ...] = ()) -> None:
        self._encoder = Encoder()
        self._extra = extra

    def block(self, path: str, *more: tuple[str, str]) -> bytes:
        """The next block on the connection; blocks must be sent in the order in which they were made."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.72.1"),
            ("te", "trailers"),
            *self._extra,
            *more,
        ]
        encoded: bytes = self._encoder.encode(fields)
        return encoded


class Connection:
    """One connection; `send` starts calls, `completed` waits for the end of some."""

    def __init__(self, path: str, timeout_s: float = 30.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.answers: dict[int, bytearray] = {}
        """Response bodies (gRPC frames) by stream."""
        self.blocks: list[bytes] = []
        """All header blocks that came, in order."""
        self._next_stream = 1
        self._window = _DEFAULT_WINDOW
        self._consumed = 0
        self._buffer = b""
        self.socket.sendall(
            wire.wire(
                PREFACE,
                wire.settings({wire.INITIAL_WINDOW: _WINDOW}),
                wire.credit(0, _WINDOW - _DEFAULT_WINDOW),
            )
        )

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def send(self, calls: list[tuple[bytes, bytes]]) -> list[int]:
        """Starts calls, each a header block and a body (a gRPC frame of at most 16,384 bytes).

        Returns:
            Their stream ids.
        """
        parts = []
        streams = []
        size = 0
        for block, body in calls:
            stream = self._next_stream
            self._next_stream += 2
            size += len(body)
            streams.append(stream)
            parts.append(frame_bytes(HEADERS, END_HEADERS, stream, block))
            parts.append(frame_bytes(DATA, END_STREAM, stream, body))
        while self._window < size:
            self.receive()
        self._window -= size
        self.socket.sendall(b"".join(parts))
        return streams

    def completed(self) -> list[int]:
        """Waits until at least one stream has ended; returns all that have, in order."""
        while True:
            ended = self.receive()
            if ended:
                return ended

    def receive(self) -> list[int]:
        """Reads once, and waits if nothing is there; returns the streams that have ended."""
        read = self.socket.recv(262_144)
        if not read:
            raise LoadError("the server closed the connection")
        ended: list[int] = []
        buffer = self._buffer + read if self._buffer else read
        at, end = 0, len(buffer)
        while end - at >= 9:
            start = at + 9
            next_at = start + (buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2])
            if next_at > end:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            if kind <= HEADERS:
                stream = int.from_bytes(buffer[at + 5 : start], "big")
                self._stream_frame(kind, stream, buffer[start:next_at])
                if flags & END_STREAM:
                    ended.append(stream)
            else:
                self._other_frame(kind, flags, buffer[at + 5 : next_at])
            at = next_at
        self._buffer = buffer[at:]
        return ended

    def _stream_frame(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            self.blocks.append(payload)
            return
        answer = self.answers.get(stream)
        if answer is None:
            self.answers[stream] = bytearray(payload)
        else:
            answer += payload
        self._consumed += len(payload)
        if self._consumed > _WINDOW // 2:
            self.socket.sendall(bytes(wire.credit(0, self._consumed)))
            self._consumed = 0

    def _other_frame(self, kind: int, flags: int, stream_and_payload: bytes) -> None:
        stream, payload = stream_and_payload[:4], stream_and_payload[4:]
        if kind == WINDOW_UPDATE and not any(stream):
            self._window += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            self.socket.sendall(bytes(wire.SETTINGS_ACK))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(bytes(wire.ping_ack(payload)))
        elif kind == RST_STREAM and not any(payload):
            return  # NO_ERROR: grpc-go may send it behind the end of an answer
        elif kind in (RST_STREAM, GOAWAY, CONTINUATION):
            raise LoadError(f"frame of type {kind}: {payload!r}")


class StatusReader:
    """Decodes the header blocks of one connection in order and finds the calls that failed."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=2**20)
        self._known: dict[bytes, tuple[tuple[str, str], ...]] = {}

    def fields(self, block: bytes) -> tuple[tuple[str, str], ...]:
        """The fields of the next block. A block of indexes only says the same until the table changes."""
        known = self._known.get(block)
        if known is not None:
            return known
        decoded = tuple((str(name), str(value)) for name, value in self._decoder.decode(block))
        if all(byte & 0x80 and byte != 0xFF for byte in block):
            self._known[block] = decoded
        else:
            self._known.clear()
        return decoded

    def failures(self, blocks: list[bytes]) -> Iterator[str]:
        """What is wrong with each call that did not end with status 0."""
        for block in blocks:
            fields = dict(self.fields(block))
            status = fields.get("grpc-status")
            if status not in (None, "0") or fields.get(":status", "200") != "200":
                yield f"{fields}"


def call(path: str, method: str, message: bytes = b"", timeout_s: float = 30.0) -> bytes:
    """One call on a connection of its own; returns the response message.

    Raises:
        LoadError: The call did not succeed.
        OSError: The socket cannot be reached, or the answer takes too long.
    """
    connection = Connection(path, timeout_s)
    try:
        (stream,) = connection.send([(HeaderEncoder().block(method), wire.message(message))])
        while stream not in connection.completed():
            pass
        for failure in StatusReader().failures(connection.blocks):
            raise LoadError(f"{method}: {failure}")
        return bytes(connection.answers[stream][5:])
    finally:
        connection.close()
