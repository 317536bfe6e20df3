"""The command `upgrade`: signals the instance on a socket to hand over, and waits for the result."""

from __future__ import annotations

import time
from typing import Final

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.relay.listener import lock_path, read_lock
from runtimeproxy.service.handover.upgrade import SERVING_S, TAKEN_OVER
from runtimeproxy.service.signals import UPGRADE, signal_instance

_PACE_S: Final = 0.05
_SLACK_S: Final = 10.0
"""For a start or a reload that the instance finishes first, and for a busy node."""

_UNREADABLE: Final = (0, "")


class UpgradeFailedError(RuntimeProxyError):
    """The instance that served before goes on."""


def upgrade(endpoint: str, start_s: float) -> tuple[int, int]:
    """Has the instance on a socket start its successor; returns the process ids of both.

    Args:
        endpoint: the path of the socket.
        start_s: how long the successor may take to come up.

    Raises:
        NoInstanceError: no instance serves there, or it is another user's.
        UpgradeFailedError: the successor did not come up, or the result is not known in time.
    """
    path = lock_path(endpoint)
    before = last = _lines(path)
    pid = signal_instance(endpoint, UPGRADE)
    deadline_s = time.monotonic() + start_s + SERVING_S + _SLACK_S
    while time.monotonic() < deadline_s:
        now = _lines(path)
        if now[0] != pid and _text(now) == TAKEN_OVER:
            return pid, now[0]
        # Read twice: the first time it may have been half written.
        if now == last and (failure := _failure(pid, before, now)):
            raise UpgradeFailedError(f"{endpoint}: {failure}")
        last = now
        time.sleep(_PACE_S)
    raise UpgradeFailedError(f"{endpoint}: process {pid} did not report the result in time; see its log")


def _failure(pid: int, before: tuple[int, str], now: tuple[int, str]) -> str:
    """Why the upgrade failed; empty while its result is not known."""
    if now in (before, _UNREADABLE):
        return ""
    if now[0] != pid:
        return f"process {pid} has ended, and process {now[0]} was started anew"
    return f"{_text(now)}; process {pid} serves" if now[1] else f"process {pid} was told to end"


def _text(lines: tuple[int, str]) -> str:
    """The note without its time."""
    return lines[1].partition(" ")[2]


def _lines(path: str) -> tuple[int, str]:
    try:
        return read_lock(path)
    except (OSError, ValueError):
        # `signal_instance` finds out whether there is an instance.
        return _UNREADABLE
