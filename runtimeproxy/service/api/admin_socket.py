"""The admin socket: 0600 in a folder that only the daemon's user enters.

Its server is made at the first connection. Bytes are copied between a client and that server, which listens
in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from runtimeproxy.listener import is_live, publish, unlink_own

logger = logging.getLogger(__name__)

MOST_CLIENTS: Final = 32
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_PEER_CREDENTIALS: Final = struct.Struct("iII")
_CHUNK_BYTES: Final = 64 * 1024


class AdminSocket:
    """Used in the event loop's thread.

    Attributes:
        start: Starts the server, if it has not been started, and returns the path of its socket.
        problem: Why it does not serve; empty if it does.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.start: Callable[[], Awaitable[str]] | None = None
        self.problem = "it is not published yet"
        self._inode = 0
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def publish(self, *, replaces: bool = False) -> None:
        """Listens under the path; a problem is logged, and the daemon serves without it.

        Args:
            replaces: Whether the process that listens there now is the one before this one.
        """
        await self._close()
        try:
            sock = self._listen(replaces=replaces)
        except OSError as error:
            self.problem = f"{self.path}: {error.strerror or error}"
            logger.warning("the admin socket does not serve: %s", self.problem)
            return
        self._server = await asyncio.start_unix_server(self._accept, sock=sock)
        self.problem = ""

    async def stop(self) -> None:
        """Ends all connections, and removes the socket if it is still this process's."""
        await self._close()
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    def _listen(self, *, replaces: bool) -> socket.socket:
        path = Path(self.path)
        path.parent.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if not replaces and is_live(self.path):
            raise OSError(errno.EADDRINUSE, "another process listens on this socket")
        sock, self._inode = publish(self.path, MODE)
        return sock

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            unlink_own(self.path, self._inode)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if (
            self.start is None
            or task is None
            or len(self._clients) >= MOST_CLIENTS
            or not _may_connect(writer)
        ):
            writer.close()
            return
        self._clients.add(task)
        try:
            own_reader, own_writer = await asyncio.open_unix_connection(await self.start())
            try:
                await _splice(reader, writer, own_reader, own_writer)
            finally:
                own_writer.close()
        except (OSError, asyncio.CancelledError) as error:
            if isinstance(error, OSError):
                logger.warning("a client of the admin socket cannot be served: %s", error)
        finally:
            writer.close()
            self._clients.discard(task)


def _may_connect(writer: asyncio.StreamWriter) -> bool:
    """Whether it is root or this process's own user; the file's mode says so already."""
    sock: socket.socket = writer.get_extra_info("socket")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return _PEER_CREDENTIALS.unpack(raw)[1] in (0, os.geteuid())


async def _splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    own_reader: asyncio.StreamReader,
    own_writer: asyncio.StreamWriter,
) -> None:
    """Copies both ways until one side has ended."""
    copies = [
        asyncio.ensure_future(_copy(reader, own_writer)),
        asyncio.ensure_future(_copy(own_reader, writer)),
    ]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in copies:
            each.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
