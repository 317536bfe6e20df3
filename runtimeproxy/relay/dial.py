"""Connecting to an upstream that may be away for a while."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_RETRY_FIRST_S: Final = 0.01
_RETRY_MOST_S: Final = 0.1
"""A kubelet that lost its event stream has it back within a second of the runtime."""
_AWAY = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EINTR)


class Dial:
    """Connects at once, or tries again until the time is over; a Unix connect never blocks.

    Args:
        socket_path: of the upstream.
        wait_s: how long an upstream that is away is waited for.
        on_connected: takes the socket, possibly before `start` returns.
        on_failed: takes the last error, never before `start` returns.
    """

    def __init__(
        self,
        socket_path: str,
        wait_s: float,
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._socket_path = socket_path
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + wait_s
        self._retry: asyncio.Handle | None = None

    def start(self) -> None:
        """Tries for the first time."""
        self._connect(_RETRY_FIRST_S)

    def cancel(self) -> None:
        """Nobody waits for the upstream any more."""
        if self._retry is not None:
            self._retry.cancel()

    def _connect(self, retry_s: float) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self._socket_path)
        except OSError as error:
            sock.close()
            self._missed(error, retry_s)
        else:
            self._on_connected(sock)

    def _missed(self, error: OSError, retry_s: float) -> None:
        is_over = self._loop.time() + retry_s > self._deadline_s
        if error.errno not in _AWAY or is_over:
            # Not from within the read that brought the first call: it is not known to the relay yet.
            self._retry = self._loop.call_soon(self._on_failed, error)
            return
        self._retry = self._loop.call_later(retry_s, self._connect, min(retry_s * 2, _RETRY_MOST_S))
