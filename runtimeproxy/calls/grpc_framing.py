"""gRPC frames and the protobuf messages in them: prefix, compression, bounds.

Source: the gRPC specification, doc/PROTOCOL-HTTP2.md ("Length-Prefixed-Message") and doc/compression.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from runtimeproxy.errors import RuntimeProxyError

PREFIX_BYTES: Final = 5
"""One byte of flags and four of length."""

DEFAULT_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Source: containerd and the kubelet's CRI client both stop at 16 MiB."""

WINDOW_BITS: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""Compressions that are understood, as zlib's window bits."""

GZIP_MAGIC: Final = b"\x1f\x8b"
"""Source: RFC 1952, section 2.3.1."""


SLICE_BYTES: Final = 64 * 1024
"""Compressed data is opened in slices of this length at most, so that the work can stop between two."""

MOST_GZIP_MEMBERS: Final = 16
"""Compressed data that is more than this many files one after the other is not read; gRPC sends one."""

MAX_RESPONSE_BYTES: Final = 64 * 1024
"""Longest response that is read, decompressed: those of held calls hold a few ids and names."""


class UnreadableMessageError(RuntimeProxyError):
    """A message that the proxy cannot understand; the runtime may still do so."""


class MessageTooLargeError(RuntimeProxyError):
    """A message that is longer than the bound once it is decompressed."""


def is_compressed(frame: bytes) -> bool:
    """Whether the flag of a frame says that its message is compressed."""
    return bool(frame) and frame[0] == 1


class Opening:
    """The one message of a frame, which is opened slice by slice if it is compressed.

    Attributes:
        is_compressed: Whether the frame says so.
        size_bytes: How long what is open is.
    """

    def __init__(self, frame: bytes, encoding: str, max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        """Checks the frame and opens what is not compressed.

        Args:
            frame: All bytes of the request up to its end.
            encoding: The call's `grpc-encoding`; counts only if the frame says that it is compressed.
            max_bytes: Bound on the message, decompressed.

        Raises:
            UnreadableMessageError: Not exactly one whole frame, unknown flags or compression.
            MessageTooLargeError: The message is over the bound.
        """
        if len(frame) < PREFIX_BYTES or frame[0] > 1:
            raise UnreadableMessageError("not a gRPC message")
        if int.from_bytes(frame[1:PREFIX_BYTES]) != len(frame) - PREFIX_BYTES:
            raise UnreadableMessageError("not exactly one whole gRPC message")
        self._data = memoryview(frame)[PREFIX_BYTES:]
        self.is_compressed = bool(frame[0])
        if self.is_compressed and encoding not in WINDOW_BITS:
            raise UnreadableMessageError(f"compressed with {encoding[:32]!r}")
        if not self.is_compressed and len(self._data) > max_bytes:
            raise MessageTooLargeError(f"the message has {len(self._data)} bytes, more than {max_bytes}")
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._opener: zlib._Decompress | None = None
        self._members = 0
        self._opened_to = 0
        self._found = bytearray()
        self.size_bytes = 0 if self.is_compressed else len(self._data)

    @property
    def is_done(self) -> bool:
        """Whether all of it is open."""
        return not self.is_compressed or (self._opener is None and self._opened_to == len(self._data))

    def take(self) -> bytearray | memoryview:
        """What is open; it is kept here no longer."""
        found = self._found if self.is_compressed else self._data
        self._found, self._data = bytearray(), memoryview(b"")
        return found

    def open_first(self, on_slice: Callable[[], None] | None = None) -> None:
        """Opens the first slice; `on_slice` as for `open_rest`.

        Raises:
            UnreadableMessageError: Broken data.
            MessageTooLargeError: The message is over the bound.
        """
        if not self.is_done:
            if on_slice is not None:
                on_slice()
            self._open_slice()

    def open_rest(self, on_slice: Callable[[], None] | None = None) -> None:
        """Opens what is left; `on_slice` is called before each slice, and what it raises ends the work.

        Raises:
            UnreadableMessageError: Broken data, or more than one message of gRPC's is made of.
            MessageTooLargeError: The message is over the bound.
        """
        while not self.is_done:
            if on_slice is not None:
                on_slice()
            self._open_slice()

    def _open_slice(self) -> None:
        """Reads and gives one slice at most, of one member."""
        opener = self._opener or self._next_opener()
        data = self._data[self._opened_to : self._opened_to + SLICE_BYTES]
        room_bytes = min(SLICE_BYTES, self._max_bytes + 1 - len(self._found))
        try:
            found = opener.decompress(data, room_bytes)
        except zlib.error as error:
            raise UnreadableMessageError(f"broken {self._encoding} data") from error
        # At a member's end zlib may name what follows it in both places.
        left = opener.unused_data if opener.eof else opener.unconsumed_tail
        self._opened_to += len(data) - len(left)
        self._found += found
        self.size_bytes = len(self._found)
        if self.size_bytes > self._max_bytes:
            raise MessageTooLargeError(f"the decompressed message has more than {self._max_bytes} bytes")
        if opener.eof:
            self._opener = None
        elif not data and not found:
            raise UnreadableMessageError("the compressed message ends too early")

    def _next_opener(self) -> zlib._Decompress:
        self._members += 1
        if self._members > MOST_GZIP_MEMBERS:
            raise UnreadableMessageError(f"compressed data of more than {MOST_GZIP_MEMBERS} members")
        self._opener = zlib.decompressobj(WINDOW_BITS[self._encoding])
        return self._opener


def open_frame(frame: bytes, encoding: str, max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> bytes:
    """The message in the one frame of a request; see `Opening` for what it raises."""
    opening = Opening(frame, encoding, max_bytes)
    opening.open_rest()
    return bytes(opening.take())


def open_response(frame: bytes) -> bytes:
    """The message in a response's frame; nothing is known of its compression but how its bytes begin.

    Raises:
        UnreadableMessageError: As for `Opening`.
        MessageTooLargeError: The message is longer than responses of held calls are.
    """
    encoding = "gzip" if frame[PREFIX_BYTES : PREFIX_BYTES + 2] == GZIP_MAGIC else "unknown"
    return open_frame(frame, encoding, MAX_RESPONSE_BYTES)


def frame_message(body: bytes) -> bytes:
    """A frame with an uncompressed message.

    It is legal whatever the call's `grpc-encoding` is: the flag of each message decides.
    """
    return b"\0" + len(body).to_bytes(4) + body
