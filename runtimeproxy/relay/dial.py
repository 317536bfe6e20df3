"""Connecting to an upstream that may be away for a while."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.state import Upstream

_RETRY_FIRST_S: Final = 0.01
_RETRY_MOST_S: Final = 0.1
"""A kubelet that lost its event stream has it back within a second of the runtime."""
_AWAY = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EINTR)


def unconnected() -> socket.socket:
    """Returns a socket to connect to an upstream with.

    Raises:
        OSError: no file descriptor is left, or no memory.
    """
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


class Dial:
    """Connects at once, or tries again until the time is over; a Unix connect never blocks.

    Args:
        upstream: where to connect to.
        wait_s: how long an upstream that is away is waited for.
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
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tries for the first time."""
        self._try(_RETRY_FIRST_S)

    def cancel(self) -> None:
        """Nobody waits for the upstream any more."""
        for waiting in (self._retry, self._asking):
            if waiting is not None:
                waiting.cancel()
        self._close()

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def _try(self, retry_s: float) -> None:
        if self._upstream.presence.is_in_doubt:
            self._asking = self._loop.create_task(self._ask(retry_s), name="ask-upstream")
        else:
            self._connect(retry_s)

    async def _ask(self, retry_s: float) -> None:
        """Connects once the upstream answers; if it never does, its own words are the best that there is."""
        presence = self._upstream.presence
        if not await presence.answers():
            if not self._is_over(retry_s):
                self._again(retry_s)
                return
            # Others need not wait as long for what did not come.
            presence.back()
        self._connect(retry_s)

    def _connect(self, retry_s: float) -> None:
        try:
            if self._sock is None:
                self._sock = unconnected()
            self._sock.connect(self._upstream.socket_path)
        except OSError as error:
            if self._sock is None:
                # Out of descriptors or memory, which says nothing about the upstream and passes.
                self._again_or_fail(error, retry_s)
            else:
                self._missed(error, retry_s)
            return
        sock, self._sock = self._sock, None
        self._on_connected(sock)

    def _missed(self, error: OSError, retry_s: float) -> None:
        # One whose backlog is full is there.
        if error.errno != errno.EAGAIN:
            self._upstream.presence.lost()
        if error.errno in _AWAY:
            self._again_or_fail(error, retry_s)
        else:
            self._fail(error)

    def _again_or_fail(self, error: OSError, retry_s: float) -> None:
        if self._is_over(retry_s):
            self._fail(error)
        else:
            self._again(retry_s)

    def _fail(self, error: OSError) -> None:
        self._close()
        # Not from within the read that brought the first call: it is not known to the relay yet.
        self._retry = self._loop.call_soon(self._on_failed, error)

    def _is_over(self, retry_s: float) -> bool:
        return self._loop.time() + retry_s > self._deadline_s

    def _again(self, retry_s: float) -> None:
        self._retry = self._loop.call_later(retry_s, self._try, min(retry_s * 2, _RETRY_MOST_S))
