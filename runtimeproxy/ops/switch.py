"""The switch by command: tells the instance on a socket to let held calls pass, or to hold them again."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Final

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.relay.listener import lock_path

BYPASS_ON: Final = signal.SIGUSR1
"""Lets all new calls pass unheld."""
BYPASS_OFF: Final = signal.SIGUSR2
"""Holds the calls that policies may change again."""


class NoInstanceError(RuntimeProxyError):
    """Nobody holds the lock of the socket."""


def set_bypass(endpoint: str, *, is_on: bool) -> int:
    """Sends the signal to the instance that serves a socket.

    Args:
        endpoint: the path of its socket.
        is_on: whether calls shall pass unheld.

    Returns:
        The process id of the instance.

    Raises:
        NoInstanceError: no instance serves there, or it is another user's.
    """
    path = Path(lock_path(endpoint))
    try:
        pid = int(path.read_text("ascii"))
        process = os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise NoInstanceError(f"{endpoint}: no instance serves here") from error
    try:
        # Held after the process was opened, so it is this process and not one that got its number later.
        if not _is_held(path):
            raise NoInstanceError(f"{endpoint}: no instance serves here")
        signal.pidfd_send_signal(process, BYPASS_ON if is_on else BYPASS_OFF)
    except OSError as error:
        raise NoInstanceError(f"{endpoint}: process {pid}: {error.strerror}") from error
    finally:
        os.close(process)
    return pid


def _is_held(path: Path) -> bool:
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
