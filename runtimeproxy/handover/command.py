"""The command `upgrade`: tells the instance on a socket to hand over, and says what came of it."""

from __future__ import annotations

import time
from typing import Final

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.handover.upgrade import SERVING_S
from runtimeproxy.ops.switch import UPGRADE, signal_instance
from runtimeproxy.relay.listener import lock_path, read_lock

_PACE_S: Final = 0.05
_SLACK_S: Final = 10.0
"""For a start-up or a reload that the instance ends first, and for a node that is busy."""


class UpgradeFailedError(RuntimeProxyError):
    """The instance that served before goes on."""


def upgrade(endpoint: str, start_s: float) -> tuple[int, int]:
    """Has the instance on a socket start its successor; returns the process ids of both.

    Args:
        endpoint: the path of the socket.
        start_s: how long the successor may take to come up.

    Raises:
        NoInstanceError: no instance serves there, or it is another user's.
        UpgradeFailedError: the successor did not come up, or nobody says so.
    """
    path = lock_path(endpoint)
    before = _lines(path)
    pid = signal_instance(endpoint, UPGRADE)
    deadline_s = time.monotonic() + start_s + SERVING_S + _SLACK_S
    while time.monotonic() < deadline_s:
        told, note = _lines(path)
        if note != before[1] and told != pid:
            return pid, told
        if note != before[1]:
            raise UpgradeFailedError(f"{endpoint}: {note.partition(' ')[2]}; process {pid} serves")
        time.sleep(_PACE_S)
    raise UpgradeFailedError(f"{endpoint}: process {pid} does not say what came of it; see its log")


def _lines(path: str) -> tuple[int, str]:
    try:
        return read_lock(path)
    except (OSError, ValueError):
        # Whether there is an instance is not decided here.
        return 0, ""
