"""systemd's service protocol: state notifications, the watchdog, passed sockets.

Source: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from runtimeproxy.errors import ConfigError
from runtimeproxy.http2.frames import ACK, EMPTY_SETTINGS, PING, PREFACE, ping, read_frame

logger = logging.getLogger(__name__)

LISTEN_FDS_START: Final = 3
"""First passed file descriptor. Source: systemd src/systemd/sd-daemon.h, SD_LISTEN_FDS_START."""

_OPAQUE: Final = b"watchdog"
"""Data of the watchdog's PING."""


class Notifier:
    """Notifies the service manager; does nothing when there is none, and never raises.

    Args:
        address: NOTIFY_SOCKET's value: a path, or `@name` for an abstract socket; None for no service
            manager.

    Attributes:
        is_muted: whether nothing is sent, because another process is the main one, whose notifications count.
    """

    def __init__(self, address: str | None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.is_muted = False

    @property
    def has_manager(self) -> bool:
        return bool(self._address)

    def ready(self, status: str = "") -> bool:
        # Also ends a reload.
        return self.send(READY=1, STATUS=status)

    def status(self, text: str) -> bool:
        # One line for `systemctl status`.
        return self.send(STATUS=text)

    def watchdog(self) -> bool:
        return self.send(WATCHDOG=1)

    def reloading(self) -> bool:
        # `ready` follows.
        return self.send(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)

    def stopping(self, status: str = "") -> bool:
        return self.send(STOPPING=1, STATUS=status)

    def main_pid(self, pid: int) -> bool:
        # The service manager watches this process from now on.
        return self.send(MAINPID=pid)

    def send(self, **fields: str | int) -> bool:
        """Sends all fields that are not empty in one datagram; returns whether the manager's queue has it."""
        if not self._address or self.is_muted:
            return False
        lines = [f"{key}={value}".replace("\n", " ") for key, value in fields.items() if value != ""]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except (OSError, ValueError):
            return False
        return True


def watchdog_interval_s(environ: Mapping[str, str], pid: int | None = None) -> float | None:
    """Longest time between two signs of life; None when no watchdog watches this process.

    Send them at half of it: sd_watchdog_enabled(3) recommends that.
    """
    watched = environ.get("WATCHDOG_PID", "")
    if watched and watched != str(os.getpid() if pid is None else pid):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    if not _is_number(text) or int(text) == 0:
        return None
    return int(text) / 1_000_000


async def feed_watchdog(interval_s: float, socket_path: str, notifier: Notifier) -> None:
    """Feeds the watchdog twice per interval while the daemon answers on its own socket; runs until cancelled.

    `interval_s`: systemd kills the daemon after this time without a notification.
    """
    pause_s = interval_s / 2
    while True:
        if await answers_ping(socket_path, pause_s):
            notifier.watchdog()
        else:
            logger.error("no answer on the proxy's own socket %s: the watchdog is not fed", socket_path)
        await asyncio.sleep(pause_s)


async def answers_ping(socket_path: str, timeout_s: float) -> bool:
    """Whether the relay accepts a client on its own socket and answers an HTTP/2 PING.

    The relay answers PINGs itself as long as no call has chosen an upstream, so this shows that the
    listener and the loop work, whatever the runtime does: restarting the proxy does not repair a runtime.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket_path)
            try:
                writer.write(PREFACE + EMPTY_SETTINGS + ping(_OPAQUE))
                await _ping_ack(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    return True


async def _ping_ack(reader: asyncio.StreamReader) -> None:
    while True:
        type_, flags, _, payload = await read_frame(reader)
        if type_ == PING and flags & ACK and payload == _OPAQUE:
            return


def listen_sockets(
    environ: Mapping[str, str], *, first: int = LISTEN_FDS_START, pid: int | None = None
) -> list[socket.socket]:
    """The listening sockets that the service manager passed to this process; empty when it passed none.

    They are non-blocking and closed on exec. The receiver closes them and never unlinks their paths.

    `first`: the first passed file descriptor. `pid`: this process; None for the real one.

    Raises:
        ConfigError: the variables are invalid, or a descriptor is not a listening Unix stream socket with a
            path. Those already taken are closed then.
    """
    if environ.get("LISTEN_PID", "") != str(os.getpid() if pid is None else pid):
        return []
    count = environ.get("LISTEN_FDS", "")
    if not _is_number(count):
        raise ConfigError("environment", "LISTEN_FDS", f"not a number of file descriptors: {count!r}")
    taken: list[socket.socket] = []
    for descriptor in range(first, first + int(count)):
        try:
            taken.append(_listening_socket(descriptor))
        except ValueError as error:
            for each in taken:
                each.close()
            reason = f"file descriptor {descriptor} is {error}"
            raise ConfigError("environment", "LISTEN_FDS", reason) from error
    return taken


def _listening_socket(descriptor: int) -> socket.socket:
    try:
        taken = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ValueError(f"not a socket: {error.strerror}") from error
    problem = ""
    is_stream = taken.family == socket.AF_UNIX and taken.type == socket.SOCK_STREAM
    if not is_stream or not taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        problem = "not a listening Unix stream socket"
    elif not isinstance(name := taken.getsockname(), str) or not name:
        # An abstract name has no permissions, and every process of the network namespace may take it.
        problem = "a socket without a path: name one in ListenStream="
    if problem:
        taken.close()
        raise ValueError(problem)
    taken.set_inheritable(False)
    taken.setblocking(False)
    return taken


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
