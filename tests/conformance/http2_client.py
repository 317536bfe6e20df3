"""The client's end of a raw HTTP/2 connection."""

from __future__ import annotations

import socket
from pathlib import Path

from runtimeproxy.http2.frames import DEFAULT_MAX_FRAME_BYTES, PREFACE
from tests.conformance.http2 import Fields, Http2End, Stream
from tests.relay import wire
from tests.relay.wire import DATA, END_HEADERS, END_STREAM, HEADERS, Frame


class Http2Client(Http2End):
    """The client's end; connects, and sends its preface unless told otherwise."""

    def __init__(self, path: Path, settings: dict[int, int] | None = None, *, begin: bool = True) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        super().__init__(sock)
        sock.connect(str(path))
        self._next_id = 1
        if begin:
            self.send(PREFACE, wire.settings(settings))

    def open(self, path: str, *fields: tuple[str, str], end: bool = False) -> int:
        """Sends the headers of a call and returns its stream's id."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        block = self.encoded(request_fields(path, *fields))
        self.send(Frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block))
        return stream_id

    def message(
        self, stream_id: int, message: bytes = b"", *, end: bool = True, compressed: bool = False
    ) -> None:
        """Sends a request message of at most 16 KiB."""
        flags = END_STREAM if end else 0
        self.send(Frame(DATA, flags, stream_id, wire.message(message, compressed)))

    def large_message(self, stream_id: int, message: bytes, *, compressed: bool = False) -> None:
        """Sends a request message that fits into the first windows, in frames of 16 KiB."""
        data = wire.message(message, compressed)
        last = len(data) - DEFAULT_MAX_FRAME_BYTES
        for place in range(0, len(data), DEFAULT_MAX_FRAME_BYTES):
            flags = END_STREAM if place >= last else 0
            self.send(Frame(DATA, flags, stream_id, data[place : place + DEFAULT_MAX_FRAME_BYTES]))

    def call(self, path: str, message: bytes = b"", *fields: tuple[str, str]) -> Stream:
        """Makes a call with one message and returns all that came for it."""
        stream_id = self.open(path, *fields)
        self.message(stream_id, message)
        return self.answer(stream_id)

    def answer(self, stream_id: int) -> Stream:
        """Waits for the end of a stream."""
        stream = self.stream(stream_id)
        self.until(lambda: stream.is_over)
        return stream


def request_fields(path: str, *fields: tuple[str, str]) -> Fields:
    """The header fields of a gRPC request, as the kubelet's client sends them."""
    return (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.76.0"),
        ("te", "trailers"),
        *fields,
    )
