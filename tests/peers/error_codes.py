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
    """Scripts that send each code as GOAWAY and as RST_STREAM; each ends its connection after the first call.

    Attributes:
        all_sent: set when every code has been sent.
    """

    def __init__(self, codes: Iterable[int] = CODES) -> None:
        self.all_sent = asyncio.Event()
        both = (frames.GOAWAY, frames.RST_STREAM)
        self._left = sorted(((kind, code) for code in codes for kind in both), reverse=True)
        self._sent = self._left[-1]
        # One for each; the last one serves all that follow.
        self.scripts: list[Script] = [self._end_call] * len(self._left)

    async def _end_call(self, peer: Peer) -> None:
        stream_id, _ = await peer.request()
        # Not before: on a busy machine a client in a hurry may be gone before it has asked.
        if self._left:
            self._sent = self._left.pop()
        kind, code = self._sent
        if kind == frames.GOAWAY:
            peer.send(frames.goaway(stream_id, code))
        else:
            peer.send(frames.rst_stream(stream_id, code))
        if not self._left:
            self.all_sent.set()
