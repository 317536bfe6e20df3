"""gRPC frames and the protobuf messages in them: prefix, compression, bounds.

Source: the gRPC specification, doc/PROTOCOL-HTTP2.md ("Length-Prefixed-Message") and doc/compression.md.
"""

from __future__ import annotations

import zlib
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


class UnreadableMessageError(RuntimeProxyError):
    """A message that the proxy cannot understand; the runtime may still do so."""


class MessageTooLargeError(RuntimeProxyError):
    """A message that is longer than the bound once it is decompressed."""


def is_compressed(frame: bytes) -> bool:
    """Whether the flag of a frame says that its message is compressed."""
    return bool(frame) and frame[0] == 1


def open_frame(frame: bytes, encoding: str, max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> bytes:
    """The message in the one frame of a request.

    Args:
        frame: All bytes of the request up to its end.
        encoding: The call's `grpc-encoding`; counts only if the frame says that it is compressed.
        max_bytes: Bound on the message, decompressed.

    Raises:
        UnreadableMessageError: Not exactly one whole frame, unknown flags or compression, or broken data.
        MessageTooLargeError: The message is over the bound.
    """
    if len(frame) < PREFIX_BYTES or frame[0] > 1:
        raise UnreadableMessageError("not a gRPC message")
    if int.from_bytes(frame[1:PREFIX_BYTES]) != len(frame) - PREFIX_BYTES:
        raise UnreadableMessageError("not exactly one whole gRPC message")
    body = frame[PREFIX_BYTES:]
    if frame[0]:
        return _decompressed(body, encoding, max_bytes)
    if len(body) > max_bytes:
        raise MessageTooLargeError(f"the message has {len(body)} bytes, more than {max_bytes}")
    return body


def open_response(frame: bytes, max_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> bytes:
    """The message in a response's frame; nothing is known of its compression but how its bytes begin.

    Raises:
        UnreadableMessageError: As for `open_frame`.
        MessageTooLargeError: As for `open_frame`.
    """
    encoding = "gzip" if frame[PREFIX_BYTES : PREFIX_BYTES + 2] == GZIP_MAGIC else "unknown"
    return open_frame(frame, encoding, max_bytes)


def frame_message(body: bytes) -> bytes:
    """A frame with an uncompressed message.

    It is legal whatever the call's `grpc-encoding` is: the flag of each message decides.
    """
    return b"\0" + len(body).to_bytes(4) + body


def _decompressed(body: bytes, encoding: str, max_bytes: int) -> bytes:
    bits = WINDOW_BITS.get(encoding)
    if bits is None:
        raise UnreadableMessageError(f"compressed with {encoding[:32]!r}")
    found = b""
    try:
        while body:
            opener = zlib.decompressobj(bits)
            found += opener.decompress(body, max_bytes + 1 - len(found))
            if len(found) > max_bytes:
                raise MessageTooLargeError(f"the decompressed message has more than {max_bytes} bytes")
            if not opener.eof:
                raise UnreadableMessageError("the compressed message ends too early")
            body = opener.unused_data
    except zlib.error as error:
        raise UnreadableMessageError(f"broken {encoding} data") from error
    return found
