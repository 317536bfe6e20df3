"""Accepts clients, relays each of them, and ends them gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.relay.connection import Connection
from runtimeproxy.relay.listener import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Collection

    from runtimeproxy.relay.connection import ConnectionOptions
    from runtimeproxy.relay.listener import Listener

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 1024
"""A node has a handful of CRI clients; what is above this leaks connections."""

_CLOSE_S: Final = 1.5
"""A little more than a connection lingers to write what it has."""

_PEER_CREDENTIALS = struct.Struct("iII")


class RelayServer:
    """All connections of one listening socket.

    Args:
        options: what the connections share.
        allowed_uids: users besides root and this process's own that may connect.
    """

    def __init__(self, options: ConnectionOptions, allowed_uids: Collection[int] = ()) -> None:
        self._options = options
        self._allowed_uids = frozenset((0, os.geteuid(), *allowed_uids))
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def start(self, listener: Listener) -> None:
        """Accepts clients on a listening socket."""
        loop = asyncio.get_running_loop()
        # From 3.13 on the loop would unlink the path itself, also that of a socket from systemd.
        extra: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._server = await loop.create_unix_server(
            self._accept, sock=listener.sock, backlog=BACKLOG, **extra
        )

    def _accept(self) -> asyncio.BaseProtocol:
        # Counted when its transport is there: a loop may give up an accepted socket without a word.
        def admit(transport: asyncio.Transport) -> bool:
            self._connections.add(connection)
            self._idle.clear()
            return self._admit(transport)

        connection = Connection(self._options, admit, self._closed)
        return connection.protocol()

    def _admit(self, transport: asyncio.Transport) -> bool:
        """Whether a client may talk to the runtime through this process."""
        if len(self._connections) > MAX_CONNECTIONS:
            logger.error("connection refused: there are %d already", MAX_CONNECTIONS)
            return False
        sock = transport.get_extra_info("socket")
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        except OSError as error:
            # An error that went on to the loop would leave the client connected.
            logger.warning("connection refused: its user is not known: %s", error)
            return False
        pid, uid, _ = _PEER_CREDENTIALS.unpack(raw)
        if uid in self._allowed_uids:
            return True
        logger.warning("connection refused: user %d (process %d) is not allowed", uid, pid)
        return False

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._idle.set()

    def stop_accepting(self) -> None:
        """Takes no more clients; those that are connected go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def drain(self, held_s: float) -> None:
        """Ends all connections: GOAWAY, held calls finish (at most `held_s`), everything else is cut.

        What is short may end by itself: calls that pass have as long as a client may take to answer, 1 s.
        """
        has_settled = asyncio.Event()
        for connection in tuple(self._connections):
            connection.drain(has_settled.set)
        try:
            async with asyncio.timeout(held_s):
                while any(connection.is_unsettled for connection in self._connections):
                    has_settled.clear()
                    await has_settled.wait()
        except TimeoutError:
            logger.warning("calls did not end within %.1f s", held_s)
        for connection in tuple(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._idle.wait()
