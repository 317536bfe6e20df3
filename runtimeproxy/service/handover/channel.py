"""The socket pair between two daemons, of which one follows the other."""

from __future__ import annotations

import asyncio
import socket
from enum import StrEnum
from typing import Final

LINE_LIMIT_BYTES: Final = 256
"""Words are short; whoever sends more is no daemon."""


class Word(StrEnum):
    """What is said, one word a line; the package's page has the order."""

    LOADED = "loaded"
    GO = "go"
    SERVING = "serving"
    MAIN = "main"
    DRAINED = "drained"
    STOPPING = "stopping"


class PeerGoneError(Exception):
    """The other process has ended."""


class StrangeWordError(PeerGoneError):
    """The other process says what it must not: it is as good as gone."""


class Channel:
    """One end of the socket pair. Used in the event loop's thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        """To be called once, before all else."""
        self._sock.setblocking(False)
        self._streams = await asyncio.open_unix_connection(sock=self._sock, limit=LINE_LIMIT_BYTES)

    def say(self, word: Word) -> None:
        """Says a word; nobody may be there to hear it."""
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(f"{word}\n".encode())

    async def hear(self, *expected: Word) -> Word:
        """Waits for one of the words.

        Raises:
            PeerGoneError: the other process has ended.
            StrangeWordError: it said something else.
        """
        if self._streams is None:
            raise PeerGoneError("nothing was opened")
        try:
            line = await self._streams[0].readline()
        except (OSError, ValueError) as error:
            raise StrangeWordError(f"it broke off: {error}") from error
        text = line.decode("utf-8", "replace").strip()
        if not text:
            raise PeerGoneError("it hung up")
        if text not in expected:
            raise StrangeWordError(f"it said {text!r}")
        return Word(text)

    async def close(self) -> None:
        """Sends what was said and closes this end."""
        if self._streams is None:
            self._sock.close()
            return
        writer = self._streams[1]
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            # The other process may be gone already.
            return
