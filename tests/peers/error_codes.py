"""Servers that end calls with every error code of HTTP/2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from runtimeproxy.http2 import frames
from tests.peers.aio import Peer, Script

CODES: Final = (*range(16), 0xFF, 2**32 - 1)
"""All of RFC 9113 (7), and some that no document has. gRPC's core ends its process at a GOAWAY with 13
(HTTP_1_1_REQUIRED), and at one with 14."""


class Codes:
    """A script for each code as GOAWAY and as RST_STREAM; each ends its connection after the first call.

    Attributes:
        all_sent: set when every code has been sent.
    """

    def __init__(self, codes: Iterable[int] = CODES) -> None:
        self.all_sent = asyncio.Event()
        self._left = {(kind, code) for code in codes for kind in (frames.GOAWAY, frames.RST_STREAM)}
        self.scripts: list[Script] = [self._script(kind, code) for kind, code in sorted(self._left)]

    def _script(self, kind: int, code: int) -> Script:
        async def end_call(peer: Peer) -> None:
            stream_id, _ = await peer.request()
            if kind == frames.GOAWAY:
                peer.send(frames.goaway(stream_id, code))
            else:
                peer.send(frames.rst_stream(stream_id, code))
            self._left.discard((kind, code))
            if not self._left:
                self.all_sent.set()

        return end_call
