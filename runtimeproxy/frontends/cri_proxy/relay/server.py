"""Accepts clients, relays each of them, and ends them gracefully."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import struct
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from runtimeproxy.frontends.cri_proxy.relay.connection import Connection
from runtimeproxy.frontends.cri_proxy.relay.upstream import unconnected_socket
from runtimeproxy.listener import BACKLOG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from runtimeproxy.frontends.cri_proxy.relay.connection import ConnectionOptions
    from runtimeproxy.listener import Listener

logger = logging.getLogger(__name__)

ConnectionT = TypeVar("ConnectionT")

MAX_CONNECTIONS: Final = 1024
"""As the daemon's memory allows: an idle one has 12 KiB, one whose client does not read up to 0.6 MiB."""
MANY_CONNECTIONS: Final = 64
"""Of one process. The kubelet has two or three, an agent one; a test suite may leave hundreds behind."""

_SHORT: Final = 3 / 4
"""Of the room for connections; from there on idle ones are ended."""
_FULL_FOR_MANY: Final = 7 / 8
"""The rest of the room is for processes that do not have many connections."""
_FEW_CONNECTIONS: Final = 4
"""A process with at most so many keeps them, also idle ones: it is not the one that takes the room."""

_CLOSE_S: Final = 1.5
"""A little more than a connection lingers to write its output."""

_ACCEPTED_AT_ONCE: Final = 64
"""Clients taken from the backlog before the loop does other work."""
LATE_S: Final = 5.0
"""How long a large message may take to come while others wait for its memory."""
_NO_DESCRIPTORS_S: Final = 1.0
"""How long clients wait when the process or the node is out of file descriptors or memory."""

_CUT_S: Final = 0.5
"""How long connections may take to write their output after the longest drain; the rest is cut."""

_PEER_CREDENTIALS = struct.Struct("iII")
_MOST_SPARE_DESCRIPTORS: Final = 64
_DESCRIPTORS: Final = 2
"""Of a connection: the client's and its upstream's."""


class Peer(NamedTuple):
    """A process that connects, as SO_PEERCRED has it.

    The pid is 0 for processes of pid namespaces that this one does not see, as when the proxy runs in a
    container of its own: all those of a user are one peer.
    """

    pid: int
    uid: int


def _most_descriptors() -> int:
    """The first file descriptor that is not for clients: a 16th, 4 to 64, is for the daemon's own work."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - max(4, min(_MOST_SPARE_DESCRIPTORS, soft // 16))


def idle_of_the_greediest(
    idle: Mapping[Peer, deque[ConnectionT]], held: Mapping[Peer, int], count: int
) -> Iterator[tuple[Peer, ConnectionT]]:
    """Takes out the idle connections to end: each time the oldest of the process that has most then."""
    left = dict(held)
    for _ in range(count):
        peer = max((each for each in idle if idle[each]), key=left.__getitem__, default=None)
        if peer is None or left[peer] <= _FEW_CONNECTIONS:
            return
        left[peer] -= 1
        yield peer, idle[peer].popleft()


class _RefusedError(Exception):
    """A client is refused; its arguments are the cause, by which the log is limited, and the reason."""


class RelayServer:
    """All connections of one listening socket.

    Args:
        allowed_uids: users besides root and this process's own that may connect.
        many_per_process: with so many connections a process gets no more when there is hardly any room left.
            This process itself, whose watchdog connects here, is admitted however many others are connected.
        most_connections: how many there may be, if there are descriptors for them.

    Attributes:
        budget: for the messages of intercepted calls.
        defect_count: how many errors there have been in the relay's own code.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        allowed_uids: Collection[int] = (),
        many_per_process: int = MANY_CONNECTIONS,
        most_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._options = replace(options, on_defect=self._count_defect)
        self._allowed_uids = frozenset((0, os.geteuid(), *allowed_uids))
        self._failures = options.relay.failures
        self.counts = options.relay.counts
        self.budget = options.relay.budget
        self._many_per_process = many_per_process
        self._most_connections = most_connections
        self._peers: Counter[Peer] = Counter()
        self._connections: dict[Connection, Peer] = {}
        self._adopting: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._is_accepting = False
        self._retry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self.defect_count = 0

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def received_bytes(self) -> tuple[int, int]:
        """How many bytes of HTTP/2 came from clients and from upstreams since the start; in any thread."""
        client_bytes, runtime_bytes = self.counts.client_bytes, self.counts.runtime_bytes
        for connection in list(self._connections):
            from_client, from_runtime = connection.received_bytes
            client_bytes += from_client
            runtime_bytes += from_runtime
        return client_bytes, runtime_bytes

    @property
    def stream_counts(self) -> tuple[int, int]:
        """The calls of all clients that are in progress, and how many of them are intercepted ones."""
        found = [connection.stream_counts for connection in self._connections]
        return sum(streams for streams, _ in found), sum(intercepted for _, intercepted in found)

    async def is_runtime_away(self) -> bool:
        """Whether the runtime was lost and does not answer yet; it is asked if that is not known."""
        runtime = self._options.default_upstream
        return runtime.needs_probe and not await runtime.answers()

    def _count_defect(self) -> None:
        self.defect_count += 1

    async def start(self, listener: Listener) -> None:
        """Accepts clients on a listening socket, which stays the caller's to close."""
        listener.sock.listen(BACKLOG)
        self._listening = listener.sock
        self.accept()
        self._expire_reservations()
        runtime = self._options.default_upstream.socket_path
        logger.info("serving on %s", listener.address, extra={"runtime": runtime})

    def accept(self) -> None:
        if self._listening is not None:
            self._is_accepting = True
            # asyncio's own servers close the socket when they stop, and lose clients that they just accepted.
            self._loop.add_reader(self._listening, self._accept, self._listening)

    def stop_accepting(self) -> None:
        """Stops accepting; connected clients go on, new ones wait in the backlog."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._is_accepting and self._listening is not None:
            self._is_accepting = False
            self._loop.remove_reader(self._listening)

    def _expire_reservations(self) -> None:
        """Ends, every few seconds, requests that do not come while others wait for their memory."""
        # The timer first: an error in one connection must not stop it for all.
        self._expiry = self._loop.call_later(LATE_S, self._expire_reservations)
        self._options.relay.budget.expire()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failures.report("clients have to wait", error.errno, str(error), level=logging.ERROR)
                self.stop_accepting()
                self._retry = self._loop.call_later(_NO_DESCRIPTORS_S, self.accept)
                return
            self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        """Serves a client if it may connect, and if there is a descriptor for its upstream."""
        sock.setblocking(False)
        try:
            peer = self._admit(sock)
            is_own = peer.pid == os.getpid()
            if not is_own:
                self._make_room(peer, sock)
            upstream_socket = self._upstream_socket(is_needed=not is_own)
        except _RefusedError as refused:
            sock.close()
            cause, text = refused.args
            self._failures.report("connection refused", cause, text)
            self.counts.refused[cause if isinstance(cause, str) else cause[0]] += 1
            return
        self.counts.accepted += 1
        connection = Connection(self._options, self._on_closed, upstream_socket)
        self._connections[connection] = peer
        self._peers[peer] += 1
        task = self._loop.create_task(self._adopt(connection, sock), name="adopt-client-connection")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, connection: Connection, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(connection.protocol, sock)
        except OSError as error:
            self._failures.report("connection lost at its beginning", error.errno, str(error))
            connection.abort()
            self._on_closed(connection)
            sock.close()

    def _admit(self, sock: socket.socket) -> Peer:
        """Returns the peer that may talk to the runtime through this process.

        Raises:
            _RefusedError: it may not.
        """
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        except OSError as error:
            raise _RefusedError("credentials", f"its user is unknown: {error}") from error
        pid, uid, _ = _PEER_CREDENTIALS.unpack(raw)
        peer = Peer(pid, uid)
        if uid not in self._allowed_uids:
            raise _RefusedError(("user", uid), f"user {uid} (process {pid}) is not allowed")
        return peer

    def _make_room(self, peer: Peer, sock: socket.socket) -> None:
        """Ends idle connections if room is short.

        Raises:
            _RefusedError: there is none left for this peer.
        """
        count = len(self._connections)
        # The kernel gives the lowest number that is free.
        left = max(0, _most_descriptors() - sock.fileno()) // _DESCRIPTORS
        most = min(self._most_connections, count + left)
        short = int(most * _SHORT)
        if count < short:
            return
        self._retire_idle(count + 1 - short)
        held, full = self._peers[peer], int(most * _FULL_FOR_MANY)
        # What is kept for others must be enough for one that does not have many.
        if count >= full and held >= min(self._many_per_process, most - full):
            text = f"process {peer.pid} of user {peer.uid} has {held}, and there is room for {most} in all"
            raise _RefusedError(("process", peer.uid), text)
        if count >= self._most_connections:
            raise _RefusedError("connections", f"there are {count} already")

    def _retire_idle(self, excess: int) -> None:
        """Ends so many connections, less those that end already, with GOAWAY; calls that begin go on."""
        ending = sum(connection.is_draining for connection in self._connections)
        if excess <= ending:
            return
        idle: dict[Peer, deque[Connection]] = {}
        for connection, peer in self._connections.items():
            if connection.is_idle:
                idle.setdefault(peer, deque()).append(connection)
        for peer, connection in idle_of_the_greediest(idle, self._peers, excess - ending):
            self.counts.ended["no_room"] += 1
            text = f"room is short, and process {peer.pid} of user {peer.uid} has {self._peers[peer]}"
            self._failures.report("idle connection ends", peer, text)
            connection.drain(connection.close, waits_for_all=True)

    def _upstream_socket(self, *, is_needed: bool) -> socket.socket | None:
        """Returns a socket for the client's upstream, if that leaves enough descriptors to the daemon.

        Raises:
            _RefusedError: it is needed, and there are not enough file descriptors.
        """
        try:
            sock = unconnected_socket()
        except OSError as error:
            if is_needed:
                raise _RefusedError("descriptors", str(error)) from error
            return None
        if is_needed and sock.fileno() >= _most_descriptors():
            sock.close()
            raise _RefusedError("descriptors", "the last file descriptors are reserved for the daemon")
        return sock

    def _on_closed(self, connection: Connection) -> None:
        peer = self._connections.pop(connection, None)
        if peer is not None:
            client_bytes, runtime_bytes = connection.received_bytes
            self.counts.client_bytes += client_bytes
            self.counts.runtime_bytes += runtime_bytes
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]
        self._gone.set()

    async def drain(self, most_s: float) -> None:
        """Ends all connections: GOAWAY, intercepted calls finish, everything else is cut.

        Passing calls have 1 s to end by themselves, as long as a client may take to answer. Returns at the
        latest 0.5 s after `most_s`.
        """
        over_s = self._loop.time() + most_s + _CUT_S
        has_settled = asyncio.Event()
        for connection in await self._established():
            connection.drain(has_settled.set)
        try:
            async with asyncio.timeout(most_s):
                while any(connection.is_unsettled for connection in self._connections):
                    has_settled.clear()
                    await has_settled.wait()
        except TimeoutError:
            logger.warning("calls did not end within %.1f s", most_s)
        await self._close(self._connections, min(_CLOSE_S, over_s - self._loop.time()))
        if self._expiry is not None:
            self._expiry.cancel()

    async def retire(self, most_s: float) -> None:
        """Ends the present connections: GOAWAY, then waits for all calls, at most `most_s`."""
        has_settled = asyncio.Event()
        retiring = await self._established()
        for connection in retiring:
            connection.drain(has_settled.set, waits_for_all=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while retiring := retiring & self._connections.keys():
                    has_settled.clear()
                    for connection in retiring:
                        if not connection.is_unsettled:
                            connection.close()
                    await has_settled.wait()
        if cut := retiring & self._connections.keys():
            logger.warning("connections cut after %.1f s", most_s, extra={"connections": len(cut)})
            await self._close(cut, _CLOSE_S)

    async def _established(self) -> set[Connection]:
        """Waits for connections that are being adopted; returns all."""
        while self._adopting:
            await asyncio.wait(self._adopting)
        return set(self._connections)

    async def _close(self, ending: Collection[Connection], most_s: float) -> None:
        closing = set(ending)
        for connection in closing:
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while closing & self._connections.keys():
                    self._gone.clear()
                    await self._gone.wait()
