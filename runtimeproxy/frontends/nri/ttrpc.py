"""ttrpc over the two logical connections of an NRI socket: bytes in, requests and responses out, no I/O.

A frame of the socket is `connection id, length` and a piece of that connection's bytes. On connection 1 the
runtime calls the plugin, on connection 2 the plugin calls the runtime; each is a stream of ttrpc messages:
`length, stream id, type, flags` and the message. There is no flow control, no cancellation and no keep-alive.

Source: github.com/containerd/nri v0.12.5, pkg/net/multiplex; github.com/containerd/ttrpc v1.2.9, channel.go,
server.go, client.go. Wrong messages are answered as Go's server does; where that reads on for up to 4 GiB,
the connection ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from google.protobuf.message import DecodeError

from cri_api.nri.v1alpha1 import PLUGIN_SERVICE, RUNTIME_SERVICE
from cri_api.parsing import parse
from cri_api.ttrpc import request_pb2
from runtimeproxy.errors import StatusCode

FRAME_HEADER: Final = struct.Struct(">LL")
"""Connection id, length of the payload."""
MESSAGE_HEADER: Final = struct.Struct(">LLBB")
"""Length of the message, stream id, type, flags."""

PLUGIN_CONNECTION: Final = 1
RUNTIME_CONNECTION: Final = 2
RESERVED_CONNECTION: Final = 0

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3

REMOTE_CLOSED: Final = 0x1
NO_DATA: Final = 0x4

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Of one message without its header; Go's side neither sends nor takes more."""
MAX_FRAME_PAYLOAD_BYTES: Final = MESSAGE_HEADER.size + MAX_MESSAGE_BYTES
"""That are taken; Go's side sends no more."""
SENT_FRAME_BYTES: Final = 4096
"""Of a frame that is sent, with its header. Go's side reads through a buffer of 4,096 bytes, and closes all
with ENOMEM if the payload of a frame is longer than what is free there."""
MAX_SENT_FRAMES: Final = 64
"""Of one message. Go's side queues 256 frames of a connection, and closes all when more come before they are
read: one message of 2 MB in such frames was enough on a busy node. A longer message goes in the two frames
of Go's own writer, which always suit Go's reader: as much as its buffer holds, and the rest."""
MAX_OPEN_REQUESTS: Final = 256
"""Requests of the peer that have no response yet. A runtime asks one at a time."""
MAX_OPEN_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Of the payloads of these requests."""
MAX_STREAM_ID: Final = 0xFFFFFFFF

_MAX_PARTS_BYTES: Final = 128 * 1024
"""Of a message around its payload: names, metadata, details."""
_MAX_TEXT: Final = 4096
"""Characters of a status message."""


class ProtocolError(Exception):
    """The peer has broken the protocol, and its connection is of no use any more; the text says how."""


class MessageTooLongError(Exception):
    """A request that no peer takes."""


class Side(Enum):
    """One end of the socket: the connection and service that it serves, and those that it calls."""

    PLUGIN = (PLUGIN_CONNECTION, PLUGIN_SERVICE, RUNTIME_CONNECTION, RUNTIME_SERVICE)
    RUNTIME = (RUNTIME_CONNECTION, RUNTIME_SERVICE, PLUGIN_CONNECTION, PLUGIN_SERVICE)


@dataclass(frozen=True, slots=True)
class Request:
    """A call of the peer.

    Attributes:
        payload: The request message of the method.
        timeout_s: How long the peer waits; None: without a limit.
    """

    stream_id: int
    service: str
    method: str
    payload: bytes
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a call of this side.

    Attributes:
        code: The status code, `StatusCode.OK` or any other number.
        payload: The response message of the method.
    """

    stream_id: int
    code: int
    message: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of ttrpc, and the connection it has come on."""

    connection_id: int
    stream_id: int
    type: int
    flags: int
    body: bytes


class _MessageReader:
    """Takes the bytes of the socket apart. Keeps less than one message for each connection."""

    def __init__(self) -> None:
        # The header of a frame that has not come whole, and what is left of the frame that is being read.
        self._header = bytearray()
        self._left_bytes = 0
        self._connection_id = 0
        self._unread = {PLUGIN_CONNECTION: bytearray(), RUNTIME_CONNECTION: bytearray()}

    @property
    def is_within_message(self) -> bool:
        return bool(self._header or self._left_bytes or any(self._unread.values()))

    def read(self, data: bytes | bytearray | memoryview) -> Iterator[_Message]:
        """Gives the messages that these bytes complete; raises ProtocolError."""
        at, end = 0, len(data)
        while at < end:
            if self._left_bytes:
                piece = data[at : at + self._left_bytes]
                at += len(piece)
                self._left_bytes -= len(piece)
                # Frames of connections that were not opened are skipped, as Go's side does.
                if (unread := self._unread.get(self._connection_id)) is not None:
                    unread += piece
                    yield from self._messages(unread)
                continue
            missing = FRAME_HEADER.size - len(self._header)
            self._header += data[at : at + missing]
            at += missing
            if len(self._header) == FRAME_HEADER.size:
                self._begin_frame()

    def _begin_frame(self) -> None:
        self._connection_id, self._left_bytes = FRAME_HEADER.unpack(self._header)
        self._header.clear()
        if self._connection_id == RESERVED_CONNECTION:
            raise ProtocolError("a frame of the reserved connection 0")
        if self._left_bytes > MAX_FRAME_PAYLOAD_BYTES:
            # Without the number, which differs each time: reasons are logged once in an interval.
            raise ProtocolError(f"a frame of more than {MAX_FRAME_PAYLOAD_BYTES} bytes")

    def _messages(self, unread: bytearray) -> Iterator[_Message]:
        """Gives all complete messages at the beginning of a connection's unread bytes."""
        at, end = 0, len(unread)
        while end - at >= MESSAGE_HEADER.size:
            length, stream_id, type_, flags = MESSAGE_HEADER.unpack_from(unread, at)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            body_at = at + MESSAGE_HEADER.size
            if end - body_at < length:
                break
            at = body_at + length
            body = bytes(memoryview(unread)[body_at:at])
            yield _Message(self._connection_id, stream_id, type_, flags, body)
        if at:
            del unread[:at]


class Session:
    """The protocol's state at one end of the socket; it holds streams of a bounded number and size."""

    def __init__(self, side: Side) -> None:
        self._served, self._own_service, self._called, self._peer_service = side.value
        self._reader = _MessageReader()
        self._last_served_id = 0
        self._open_requests: dict[int, int] = {}
        self._open_bytes = 0
        self._next_id = 1
        self._calls: set[int] = set()
        self._output: list[bytes] = []

    @property
    def open_requests(self) -> int:
        """Requests of the peer without a response."""
        return len(self._open_requests)

    @property
    def is_within_message(self) -> bool:
        """Whether the end of the socket would be in the middle of a frame or message."""
        return self._reader.is_within_message

    def receive(self, data: bytes | bytearray | memoryview) -> Sequence[Request | Response]:
        """Takes bytes of the socket; returns what they complete.

        Raises:
            ProtocolError: Nothing can be read any more.
        """
        received: list[Request | Response] = []
        for message in self._reader.read(data):
            if message.connection_id == self._served:
                request = self._take_served(message)
                if request is not None:
                    received.append(request)
            elif (response := self._take_response(message)) is not None:
                received.append(response)
        return received

    def send_request(self, method: str, payload: bytes, timeout_s: float | None = None) -> int:
        """Calls a method of the peer's service; returns the stream's id.

        Raises:
            MessageTooLongError: Nothing has been sent.
            ProtocolError: All stream ids of this connection have been used.
        """
        timeout_nano = 0 if timeout_s is None else max(1, round(timeout_s * 1e9))
        message = request_pb2.Request(
            service=self._peer_service, method=method, payload=payload, timeout_nano=timeout_nano
        ).SerializeToString()
        if len(message) > MAX_MESSAGE_BYTES:
            raise MessageTooLongError(f"{method}: {len(message)} bytes are more than {MAX_MESSAGE_BYTES}")
        stream_id = self._next_id
        if stream_id > MAX_STREAM_ID:
            raise ProtocolError("no stream ids are left")
        self._next_id += 2
        self._calls.add(stream_id)
        self._send(self._called, stream_id, REQUEST, message)
        return stream_id

    def abandon(self, stream_id: int) -> None:
        """Forgets a call: its response is dropped when it comes."""
        self._calls.discard(stream_id)

    def send_response(self, request: Request, payload: bytes) -> None:
        """Answers a request; one that has its answer already gets no other."""
        message = request_pb2.Response(payload=payload).SerializeToString()
        if len(message) > MAX_MESSAGE_BYTES:
            text = f"the response has {len(message)} bytes, more than {MAX_MESSAGE_BYTES}"
            self.send_error(request, StatusCode.RESOURCE_EXHAUSTED, text)
        elif self._close(request.stream_id):
            self._send(self._served, request.stream_id, RESPONSE, message)

    def send_error(self, request: Request, code: int, message: str) -> None:
        """Refuses a request; one that has its answer already gets no other."""
        if self._close(request.stream_id):
            self._refuse(request.stream_id, code, message)

    def take_output(self) -> bytes:
        """Returns what is to be written to the socket; it is not kept."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def _take_served(self, message: _Message) -> Request | None:
        """Takes a message of the connection on which the peer calls; None if it is no request."""
        stream_id = message.stream_id
        if message.type == REQUEST:
            return self._take_request(stream_id, message.body)
        if message.type == DATA:
            is_end = message.flags & REMOTE_CLOSED and not message.body
            if not (is_end and stream_id in self._open_requests):
                # No method streams. The end of the peer's side alone is harmless.
                self._close(stream_id)
                self._refuse(stream_id, StatusCode.INVALID_ARGUMENT, "no stream takes data")
        # Go's server leaves other types to later versions.
        return None

    def _take_request(self, stream_id: int, body: bytes) -> Request | None:
        if stream_id % 2 == 0:
            self._refuse(stream_id, StatusCode.INVALID_ARGUMENT, "the stream id of a request is odd")
            return None
        if stream_id <= self._last_served_id:
            self._refuse(stream_id, StatusCode.INVALID_ARGUMENT, "a stream id is used once, and grows")
            return None
        self._last_served_id = stream_id
        try:
            read = parse(request_pb2.Request, body, max_parts_bytes=_MAX_PARTS_BYTES)
        except DecodeError as error:
            self._refuse(stream_id, StatusCode.INVALID_ARGUMENT, f"no request: {error}")
            return None
        if read.service != self._own_service:
            self._refuse(stream_id, StatusCode.UNIMPLEMENTED, f"service {read.service}")
            return None
        size_bytes = len(read.payload)
        if self.open_requests >= MAX_OPEN_REQUESTS or self._open_bytes + size_bytes > MAX_OPEN_BYTES:
            self._refuse(stream_id, StatusCode.RESOURCE_EXHAUSTED, "too many requests wait for a response")
            return None
        self._open_requests[stream_id] = size_bytes
        self._open_bytes += size_bytes
        # A deadline that has passed is negative.
        timeout_s = max(0, read.timeout_nano) / 1e9 if read.timeout_nano else None
        return Request(stream_id, read.service, read.method, read.payload, timeout_s)

    def _take_response(self, message: _Message) -> Response | None:
        """Takes a message of the connection on which this side calls; None if it belongs to no call."""
        stream_id = message.stream_id
        if stream_id not in self._calls:
            # The answer to a call that has timed out, or to none.
            return None
        self._calls.discard(stream_id)
        if message.type != RESPONSE:
            text = f"a message of type {message.type} in place of a response"
            return Response(stream_id, StatusCode.INTERNAL, text, b"")
        try:
            read = parse(request_pb2.Response, message.body, max_parts_bytes=_MAX_PARTS_BYTES)
        except DecodeError as error:
            return Response(stream_id, StatusCode.INTERNAL, f"no response: {error}", b"")
        return Response(stream_id, read.status.code, read.status.message, read.payload)

    def _close(self, stream_id: int) -> bool:
        """Ends the stream of a request; False if it was not open."""
        size_bytes = self._open_requests.pop(stream_id, None)
        if size_bytes is None:
            return False
        self._open_bytes -= size_bytes
        return True

    def _refuse(self, stream_id: int, code: int, message: str) -> None:
        # A text may have halves of surrogate pairs, which protobuf does not take.
        text = message[:_MAX_TEXT].encode(errors="replace").decode()
        status = request_pb2.Status(code=code, message=text)
        response = request_pb2.Response(status=status).SerializeToString()
        self._send(self._served, stream_id, RESPONSE, response)

    def _send(self, connection_id: int, stream_id: int, type_: int, body: bytes) -> None:
        message = MESSAGE_HEADER.pack(len(body), stream_id, type_, 0) + body
        most = SENT_FRAME_BYTES - FRAME_HEADER.size
        if len(message) <= MAX_SENT_FRAMES * most:
            pieces = [message[at : at + most] for at in range(0, len(message), most)]
        else:
            pieces = [message[:SENT_FRAME_BYTES], message[SENT_FRAME_BYTES:]]
        for piece in pieces:
            self._output += (FRAME_HEADER.pack(connection_id, len(piece)), piece)
