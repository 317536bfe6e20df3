"""The daemon's signals: how they wait for its handlers, and sending them to a running instance.

Imports nothing heavy: `block` is called before the rest of the program is imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final

from runtimeproxy.errors import RuntimeProxyError

BYPASS_ON: Final = signal.SIGUSR1
"""Lets all calls pass without policies."""
BYPASS_OFF: Final = signal.SIGUSR2
"""Ends that."""
UPGRADE: Final = signal.SIGRTMIN + 1
"""Starts a successor and hands everything over to it."""

_WAITING: Final = frozenset((signal.SIGHUP, BYPASS_ON, BYPASS_OFF, UPGRADE))
"""Would end a process that has no handlers yet. SIGTERM and SIGINT end a start at once."""

_NOT_ALLOWED: Final = "user {} may not send a signal to the instance here; run the command as root"


class NoInstanceError(RuntimeProxyError):
    """No process holds the lock of the socket."""


def block() -> None:
    # Also in processes that this one starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITING)


def unblock() -> None:
    # Those that wait are delivered at once.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITING)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Makes them wait in this thread, and in processes that it starts within the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_instance(endpoint: str, number: int) -> int:
    """Sends a signal to the instance that serves on a socket; returns its process id.

    `endpoint`: the path of the socket.

    Raises:
        NoInstanceError: no instance serves there, or this user may not send it signals.
    """
    from runtimeproxy.listener import is_locked, lock_path, read_lock

    path = lock_path(endpoint)
    try:
        pid, _ = read_lock(path)
        process = os.pidfd_open(pid)
    except PermissionError as error:
        raise NoInstanceError(f"{endpoint}: {_NOT_ALLOWED.format(os.geteuid())}") from error
    except (OSError, ValueError) as error:
        raise NoInstanceError(f"{endpoint}: no instance serves here") from error
    try:
        # Locked after the process was opened, so it is this process and not one that got its number later.
        if not is_locked(path):
            raise NoInstanceError(f"{endpoint}: no instance serves here")
        signal.pidfd_send_signal(process, number)
    except PermissionError as error:
        raise NoInstanceError(f"{endpoint}: {_NOT_ALLOWED.format(os.geteuid())}") from error
    except OSError as error:
        raise NoInstanceError(f"{endpoint}: process {pid}: {error.strerror}") from error
    finally:
        os.close(process)
    return pid


def is_served(endpoint: str) -> bool:
    """Whether an instance holds the lock of a socket."""
    from runtimeproxy.listener import is_locked, lock_path

    try:
        return is_locked(lock_path(endpoint))
    except OSError:
        return False
