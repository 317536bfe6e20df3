"""Whether a runtime answers calls; asked with the relay's own frames, before any gRPC is loaded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hpack import Decoder, Encoder, HPACKError

from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.frames import (
    ACK,
    DATA,
    EMPTY_SETTINGS,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    PeerError,
    frame,
    header_fragment,
    ping_ack,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S: Final = 1.0
"""How long an answer may take."""

_REQUEST: Final[Mapping[str, str]] = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/runtime.v1.RuntimeService/Version",
    ":authority": "localhost",
    "content-type": "application/grpc",
    "te": "trailers",
}
"""The cheapest call of the CRI."""
_STREAM_ID: Final = 1
_EMPTY_MESSAGE: Final = bytes(5)
_NOT_YET: Final = str(int(StatusCode.UNAVAILABLE)).encode()


async def answers_calls(socket_path: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether the runtime answers `Version` with anything but UNAVAILABLE.

    Source: containerd, which says "server is not initialized yet" with that code until it has loaded all.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket_path)
            try:
                writer.write(PREFACE + EMPTY_SETTINGS + _call())
                return await _is_answered(reader, writer)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, HPACKError, PeerError):
        return False


def _call() -> bytes:
    block = Encoder().encode(_REQUEST.items())
    return frame(HEADERS, END_HEADERS, _STREAM_ID, block) + frame(
        DATA, END_STREAM, _STREAM_ID, _EMPTY_MESSAGE
    )


async def _is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Reads up to the first message or the end of the call."""
    decoder = Decoder()
    while True:
        high, low, type_, flags, _ = FRAME_HEADER.unpack(await reader.readexactly(HEADER_BYTES))
        payload = await reader.readexactly(high << 8 | low)
        if type_ == DATA:
            return True
        if type_ in (RST_STREAM, GOAWAY):
            return False
        if type_ == HEADERS:
            fields = dict(decoder.decode(header_fragment(payload, flags), raw=True))
            if flags & END_STREAM:
                return fields.get(b"grpc-status") != _NOT_YET
        elif type_ == SETTINGS and not flags & ACK:
            writer.write(SETTINGS_ACK)
        elif type_ == PING and not flags & ACK:
            writer.write(ping_ack(payload))
