"""An end of an HTTP/2 connection on a blocking socket, and a client of it: for tests of frames and bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hpack import Decoder, Encoder

from runtimeproxy.http2.frames import DEFAULT_MAX_FRAME_BYTES, PREFACE
from tests.peers import wire
from tests.peers.bytes_client import WAIT_S
from tests.peers.wire import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    Frame,
)

LARGEST_WINDOW = 2**31 - 1

Fields = tuple[tuple[str, str], ...]


@dataclass
class Stream:
    """All that the other end has sent on one stream.

    `blocks` are the header blocks as bytes, `headers` the same decoded; `data` is DATA without padding.
    """

    frames: list[Frame] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    headers: list[Fields] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset_code: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the other end sends no more on it."""
        return self.ended or self.reset_code is not None

    @property
    def trailers(self) -> dict[str, str]:
        """The last header block."""
        return dict(self.headers[-1])

    @property
    def wire(self) -> list[tuple[int, int, bytes]]:
        """What came, comparable across connections: kind and flags of each frame, and its bytes."""
        return [(each.type_, each.flags, each.payload) for each in self.frames]


class Http2End:
    """Reads frames and remembers them; answers SETTINGS and PING as RFC 9113 wants it.

    Attributes:
        credits: Whether received DATA is credited at once, as greedy clients do.
        goaways: Last stream id and code of each GOAWAY that came.
        pings: The PINGs that came.
        ping_acks: The own PINGs that were answered.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(WAIT_S)
        self.sock = sock
        self.credits = True
        self.streams: dict[int, Stream] = {}
        self.goaways: list[tuple[int, int]] = []
        self.pings: list[bytes] = []
        self.ping_acks: list[bytes] = []
        self.settings_acks = 0
        self.closed = False
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._decoder.max_header_list_size = 1024 * 1024
        self._open_block: tuple[int, int, bytearray] | None = None
        self._buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    def send(self, *frames: Frame | bytes) -> None:
        """Writes frames, or any bytes."""
        self.sock.sendall(wire.wire(*frames))

    def encoded(self, fields: Fields) -> bytes:
        """A header block; the encoder's state follows."""
        block: bytes = self._encoder.encode(list(fields))
        return block

    def until(self, condition: Callable[[], object]) -> None:
        """Takes frames until the condition holds.

        Raises:
            TimeoutError: nothing comes any more.
            ConnectionError: the other end has closed.
        """
        while not condition():
            if not self.take():
                raise ConnectionError("the other end has closed")

    def until_closed(self) -> None:
        """Takes frames until the other end closes."""
        while self.take():
            pass

    def take(self) -> bool:
        """Takes one frame; False at the end of the connection."""
        try:
            taken = self._frame()
        except ConnectionError:
            taken = None
        if taken is None:
            self.closed = True
            return False
        self._took(taken)
        return True

    def stream(self, stream_id: int) -> Stream:
        """What came on a stream so far."""
        return self.streams.setdefault(stream_id, Stream())

    def _frame(self) -> Frame | None:
        head = self._read(wire.HEADER_BYTES)
        if head is None:
            return None
        size, type_, flags, stream_id = wire.frame_head(head)
        payload = self._read(size)
        return None if payload is None else Frame(type_, flags, stream_id, payload)

    def _read(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            data = self.sock.recv(max(65536, size - len(self._buffer)))
            if not data:
                return None
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _took(self, each: Frame) -> None:
        if each.type_ == SETTINGS:
            self._settings(each)
        elif each.type_ == PING:
            self._ping(each)
        elif each.type_ == GOAWAY:
            self.goaways.append(struct.unpack_from(">LL", each.payload))
        elif each.stream_id:
            self._stream_frame(each)

    def _settings(self, each: Frame) -> None:
        if each.flags & wire.ACK:
            self.settings_acks += 1
        else:
            self._reply(wire.SETTINGS_ACK)

    def _ping(self, each: Frame) -> None:
        if each.flags & wire.ACK:
            self.ping_acks.append(each.payload)
        else:
            self.pings.append(each.payload)
            self.on_ping(each.payload)

    def _stream_frame(self, each: Frame) -> None:
        stream = self.stream(each.stream_id)
        if each.type_ in {DATA, HEADERS, CONTINUATION, RST_STREAM}:
            stream.frames.append(each)
        if each.type_ == DATA:
            stream.data += each.content
            if self.credits and each.payload:
                size = len(each.payload)
                self._reply(wire.credit(0, size), wire.credit(each.stream_id, size))
        elif each.type_ == RST_STREAM:
            stream.reset_code = int.from_bytes(each.payload, "big")
        elif each.type_ in {HEADERS, CONTINUATION}:
            self._header_frame(each, stream)
            return
        if each.type_ == DATA and each.flags & wire.END_STREAM:
            stream.ended = True
            self.on_end(each.stream_id)

    def _header_frame(self, each: Frame, stream: Stream) -> None:
        if each.type_ == HEADERS:
            self._open_block = (each.stream_id, each.flags, bytearray(each.content))
        elif self._open_block is not None:
            self._open_block[2].extend(each.payload)
        if self._open_block is None or not each.flags & wire.END_HEADERS:
            return
        _, flags, block = self._open_block
        self._open_block = None
        stream.blocks.append(bytes(block))
        decoded = self._decoder.decode(bytes(block), raw=True)
        stream.headers.append(tuple((name.decode(), value.decode("latin-1")) for name, value in decoded))
        if len(stream.headers) == 1:
            self.on_headers(each.stream_id)
        if flags & wire.END_STREAM:
            stream.ended = True
            self.on_end(each.stream_id)

    def on_ping(self, opaque: bytes) -> None:
        """A PING has come: answers it."""
        self._reply(wire.ping_ack(opaque))

    def on_headers(self, stream_id: int) -> None:
        """The first header block of a stream has come."""

    def on_end(self, stream_id: int) -> None:
        """The other end sends no more on a stream."""

    def _reply(self, *frames: Frame) -> None:
        # Whoever has just closed does not need the answer.
        with contextlib.suppress(ConnectionError):
            self.send(*frames)


class Http2Client(Http2End):
    """The client's end; connects, and sends its preface unless told otherwise."""

    def __init__(self, path: Path, settings: dict[int, int] | None = None, *, begin: bool = True) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        super().__init__(sock)
        self._next_id = 1
        try:
            sock.connect(str(path))
            if begin:
                self.send(PREFACE, wire.settings(settings))
        except OSError:
            sock.close()
            raise

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
