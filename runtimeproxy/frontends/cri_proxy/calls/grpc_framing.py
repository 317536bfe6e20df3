"""gRPC frames and the protobuf messages in them: prefix, compression, limits.

Source: the gRPC specification, doc/PROTOCOL-HTTP2.md ("Length-Prefixed-Message") and doc/compression.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.frontends.cri_proxy.interception import DEFAULT_MAX_MESSAGE_BYTES, PREFIX_BYTES

WINDOW_BITS: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""The supported compressions, as zlib's window bits."""

COMPRESSED: Final = b"\1"
"""The flags in front of a compressed message."""

GZIP_MAGIC: Final = b"\x1f\x8b"
"""Source: RFC 1952, section 2.3.1."""

SLICE_BYTES: Final = 64 * 1024
"""Decompression works in slices of at most this length and can stop between two."""

MAX_GZIP_MEMBERS: Final = 16
"""Longest series of gzip members that is read; gRPC sends one."""

MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Longest response that is read, decompressed: those of intercepted calls hold a few ids and names."""


class UnreadableMessageError(RuntimeProxyError):
    """A message that the proxy cannot parse; the runtime may be able to."""


class MessageTooLargeError(RuntimeProxyError):
    """A message that is longer than the limit once it is decompressed."""


def payload(frame: bytes, max_bytes: int) -> memoryview:
    """The bytes behind the prefix of the one frame of a request; compressed if the flag says so.

    Raises:
        UnreadableMessageError: Not exactly one whole frame, or unknown flags.
        MessageTooLargeError: The message is not compressed and longer than `max_bytes`.
    """
    if len(frame) < PREFIX_BYTES or frame[0] > 1:
        raise UnreadableMessageError("not a gRPC message")
    size_bytes = len(frame) - PREFIX_BYTES
    if int.from_bytes(frame[1:PREFIX_BYTES]) != size_bytes:
        raise UnreadableMessageError("not exactly one whole gRPC message")
    if not frame[0] and size_bytes > max_bytes:
        raise MessageTooLargeError(f"the message has {size_bytes} bytes, more than {max_bytes}")
    return memoryview(frame)[PREFIX_BYTES:]


class Decompressor:
    """The one message of a frame, decompressed slice by slice if it is compressed.

    Attributes:
        is_compressed: Whether the frame's flag says so.
        size_bytes: Length of the part that is decompressed.
    """

    def __init__(self, frame: bytes, encoding: str, max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        """Checks the frame.

        Args:
            frame: All bytes of the request up to its end.
            encoding: The call's `grpc-encoding`; ignored unless the frame's flag says that it is compressed.
            max_bytes: Limit of the message, decompressed.

        Raises:
            UnreadableMessageError: Not exactly one whole frame, unknown flags or compression.
            MessageTooLargeError: The message is over the limit.
        """
        self._data = payload(frame, max_bytes)
        self.is_compressed = bool(frame[0])
        if self.is_compressed and encoding not in WINDOW_BITS:
            raise UnreadableMessageError(f"compressed with {encoding[:32]!r}")
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._read_bytes = 0
        self._found = bytearray()
        self.size_bytes = 0 if self.is_compressed else len(self._data)

    @property
    def is_done(self) -> bool:
        return not self.is_compressed or (self._member is None and self._read_bytes == len(self._data))

    def take(self) -> bytearray | memoryview:
        """Returns the decompressed part and drops the reference to it."""
        found = self._found if self.is_compressed else self._data
        self._found, self._data = bytearray(), memoryview(b"")
        return found

    def run(self, on_slice: Callable[[], None] | None = None, *, slices: int | None = None) -> None:
        """Decompresses the rest.

        Args:
            on_slice: Called before each slice; an exception of it ends the work.
            slices: At most so many; None for all.

        Raises:
            UnreadableMessageError: Broken data, or more members than `MAX_GZIP_MEMBERS`.
            MessageTooLargeError: The message is over the limit.
        """
        while not self.is_done and slices != 0:
            if on_slice is not None:
                on_slice()
            self._run_slice()
            slices = None if slices is None else slices - 1

    def _run_slice(self) -> None:
        """Reads and appends at most one slice, of one member."""
        member = self._member or self._next_member()
        data = self._data[self._read_bytes : self._read_bytes + SLICE_BYTES]
        room_bytes = min(SLICE_BYTES, self._max_bytes + 1 - len(self._found))
        try:
            found = member.decompress(data, room_bytes)
        except zlib.error as error:
            raise UnreadableMessageError(f"broken {self._encoding} data") from error
        # At a member's end zlib may name what follows it in both places.
        left = member.unused_data if member.eof else member.unconsumed_tail
        self._read_bytes += len(data) - len(left)
        self._found += found
        self.size_bytes = len(self._found)
        if self.size_bytes > self._max_bytes:
            raise MessageTooLargeError(f"the decompressed message has more than {self._max_bytes} bytes")
        if member.eof:
            self._member = None
        elif not data and not found:
            raise UnreadableMessageError("the compressed message ends too early")

    def _next_member(self) -> zlib._Decompress:
        self._members += 1
        if self._members > MAX_GZIP_MEMBERS:
            raise UnreadableMessageError(f"compressed data of more than {MAX_GZIP_MEMBERS} members")
        self._member = zlib.decompressobj(WINDOW_BITS[self._encoding])
        return self._member


def open_response(frame: bytes) -> bytes:
    """The message in a response's frame; its compression is recognized by its first bytes.

    Raises:
        UnreadableMessageError: As for `Decompressor`.
        MessageTooLargeError: The message is longer than responses of intercepted calls are.
    """
    message = payload(frame, MAX_RESPONSE_BYTES)
    if not frame[0]:
        return bytes(message)
    encoding = "gzip" if bytes(message[:2]) == GZIP_MAGIC else "unknown"
    compressed = Decompressor(frame, encoding, MAX_RESPONSE_BYTES)
    compressed.run()
    return bytes(compressed.take())


def frame_message(body: bytes) -> bytes:
    # Legal with any `grpc-encoding`, for each frame has its flag.
    return b"\0" + len(body).to_bytes(4) + body
