"""Commands to the instance that serves on a socket: signals to the process that holds its lock."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Final

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.relay.listener import lock_path, read_lock

BYPASS_ON: Final = signal.SIGUSR1
"""Lets all new calls pass unheld."""
BYPASS_OFF: Final = signal.SIGUSR2
"""Holds the calls that policies may change again."""
UPGRADE: Final = signal.SIGRTMIN + 1
"""Starts a successor and hands everything over to it."""


class NoInstanceError(RuntimeProxyError):
    """Nobody holds the lock of the socket."""


def set_bypass(endpoint: str, *, is_on: bool) -> int:
    """Tells the instance on a socket to let held calls pass, or to hold them again; returns its process id.

    Args:
        endpoint: the path of its socket.
        is_on: whether calls shall pass unheld.

    Raises:
        NoInstanceError: no instance serves there, or it is another user's.
    """
    return signal_instance(endpoint, BYPASS_ON if is_on else BYPASS_OFF)


def signal_instance(endpoint: str, number: int) -> int:
    """Sends a signal to the instance that serves a socket; returns its process id.

    Raises:
        NoInstanceError: no instance serves there, or it is another user's.
    """
    path = lock_path(endpoint)
    try:
        pid, _ = read_lock(path)
        process = os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise NoInstanceError(f"{endpoint}: no instance serves here") from error
    try:
        # Held after the process was opened, so it is this process and not one that got its number later.
        if not _is_held(Path(path)):
            raise NoInstanceError(f"{endpoint}: no instance serves here")
        signal.pidfd_send_signal(process, number)
    except OSError as error:
        raise NoInstanceError(f"{endpoint}: process {pid}: {error.strerror}") from error
    finally:
        os.close(process)
    return pid


def is_served(endpoint: str) -> bool:
    """Whether an instance serves a socket, as far as its lock tells."""
    try:
        return _is_held(Path(lock_path(endpoint)))
    except OSError:
        return False


def _is_held(path: Path) -> bool:
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
