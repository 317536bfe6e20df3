"""Upstreams: where calls go, connecting to one that may be away for a while, and whether it answers again."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.client import AnsweredError, GrpcClient, RpcError, request_block

if TYPE_CHECKING:
    from collections.abc import Awaitable

PROBE_TIMEOUT_S: Final = 1.0
"""How long the answer to a probe may take."""

_RETRY_FIRST_S: Final = 0.01
_RETRY_MOST_S: Final = 0.1
"""A kubelet that lost its event stream has it back within a second of the runtime."""
_AWAY = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EINTR)

_PROBE_PATH: Final = "/runtime.v1.RuntimeService/Version"
"""The cheapest call of the CRI."""
_NOT_READY: Final = (StatusCode.UNAVAILABLE, StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED)
"""Codes of a runtime that is starting, or hangs: its server may end the call before the client does."""


class Upstream:
    """A server that calls go to, and whether it was lost. Used in the loop's thread.

    A runtime that starts listens before it answers: containerd refuses every call until it has loaded its
    containers. Clients that were waiting would get that refusal at once, and some give up after a few.
    So an upstream that was away is probed before clients are connected to it.

    Args:
        is_intercepted: whether calls to it may be intercepted: those to the runtime.
        probe: whether the upstream answers calls, within a bound of time and without raising; None for one
            that is back as soon as it accepts connections.

    Attributes:
        needs_probe: whether it was away and has not answered a probe since.
    """

    def __init__(
        self,
        name: str,
        socket_path: str,
        *,
        is_intercepted: bool,
        probe: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.name = name
        self.socket_path = socket_path
        self.is_intercepted = is_intercepted
        self.probe = probe
        self.needs_probe = False

    def on_lost(self) -> None:
        # A connection to it has ended, or could not be made.
        self.needs_probe = self.probe is not None

    async def answers(self) -> bool:
        """Probes it; after a success it needs no probe until it is lost again."""
        if self.probe is None or not await self.probe():
            return False
        self.needs_probe = False
        return True


Router: TypeAlias = Callable[[str], Upstream]
"""Chooses the upstream by `:path`; always the same one for the same path."""


def unconnected_socket() -> socket.socket:
    """Returns a socket to connect to an upstream with.

    Raises:
        OSError: no file descriptor is left, or no memory.
    """
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


class Dial:
    """Connects at once, or tries again until the time is over; a Unix connect never blocks.

    Args:
        on_connected: takes the socket, possibly before `start` returns.
        on_failed: takes the last error, never before `start` returns.
        sock: a socket to connect with, so that no file descriptor is needed; None makes one.
    """

    def __init__(
        self,
        upstream: Upstream,
        wait_s: float,
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[OSError], None],
        sock: socket.socket | None = None,
    ) -> None:
        self._upstream = upstream
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + wait_s
        self._retry: asyncio.Handle | None = None
        self._probing: asyncio.Task[None] | None = None

    def start(self, retry_s: float = _RETRY_FIRST_S) -> None:
        if self._upstream.needs_probe:
            self._probing = self._loop.create_task(self._probe(retry_s), name="probe-upstream")
        else:
            self._connect(retry_s)

    def cancel(self) -> None:
        for waiting in (self._retry, self._probing):
            if waiting is not None:
                waiting.cancel()
        self._close()

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    async def _probe(self, retry_s: float) -> None:
        """Connects once the upstream answers; after the deadline also without, to pass its own error on."""
        if not await self._upstream.answers():
            if self._loop.time() + retry_s <= self._deadline_s:
                self._try_again(retry_s)
                return
            # Other clients need not wait as long for it.
            self._upstream.needs_probe = False
        self._connect(retry_s)

    def _connect(self, retry_s: float) -> None:
        may_pass = True
        try:
            if self._sock is None:
                self._sock = unconnected_socket()
            self._sock.connect(self._upstream.socket_path)
        except OSError as error:
            # Without a socket it is out of descriptors or memory, which says nothing about the upstream.
            if self._sock is not None:
                # An upstream with a full backlog is there.
                if error.errno != errno.EAGAIN:
                    self._upstream.on_lost()
                may_pass = error.errno in _AWAY
            if may_pass and self._loop.time() + retry_s <= self._deadline_s:
                self._try_again(retry_s)
                return
            self._close()
            # Not from within the read that brought the first call: it is not known to the relay yet.
            self._retry = self._loop.call_soon(self._on_failed, error)
            return
        sock, self._sock = self._sock, None
        self._on_connected(sock)

    def _try_again(self, retry_s: float) -> None:
        self._retry = self._loop.call_later(retry_s, self.start, min(retry_s * 2, _RETRY_MOST_S))


async def answers_calls(socket_path: str, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether a runtime answers `Version` with anything but UNAVAILABLE, UNKNOWN or DEADLINE_EXCEEDED.

    Source: containerd says "server is not initialized yet" until it has loaded all; version 1.6 with UNKNOWN.
    """
    client = GrpcClient(socket_path)
    try:
        outcome = await client.unary(request_block(_PROBE_PATH), b"", timeout_s)
    finally:
        client.close()
    if isinstance(outcome, AnsweredError):
        return outcome.code not in _NOT_READY
    return not isinstance(outcome, RpcError)
