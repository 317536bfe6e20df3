"""The admin socket: 0600 in a folder that only the daemon's user enters.

Its server is made at the first connection. Bytes are copied between a client and that server, which listens
in a private folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

MOST_CLIENTS: Final = 32
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_TEMPORARY_SUFFIX: Final = ".new"
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
        except (OSError, ValueError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.problem = f"{self.path}: {text}"
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
        if path.exists() and not path.is_socket():
            raise ValueError("exists and is not a socket")
        if not replaces and _is_served(self.path):
            raise ValueError("another process listens on this socket")
        temporary = Path(self.path + _TEMPORARY_SUFFIX)
        temporary.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(str(temporary))
            temporary.chmod(MODE)
            sock.listen()
            self._inode = temporary.stat().st_ino
            temporary.rename(path)
        except OSError:
            sock.close()
            temporary.unlink(missing_ok=True)
            raise
        return sock

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            _unlink(Path(self.path), self._inode)

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


def _unlink(path: Path, inode: int) -> None:
    # Another socket may have the name meanwhile.
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


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
