"""Cuts the connections of a server of this process, as its sudden death would."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def cut(bound_path: str) -> int:
    """Shuts down all accepted connections of a listening Unix socket and returns their number.

    Args:
        bound_path: Path to which the listening socket was bound, whatever the file's name is now.
    """
    return sum(_cut(int(entry.name), bound_path) for entry in _DESCRIPTORS.iterdir())


def _cut(descriptor: int, bound_path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            accepted = not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if connection.getsockname() != bound_path or not accepted:
                return False
            connection.shutdown(socket.SHUT_RDWR)
            return True
    except OSError:
        # Another thread closed the descriptor, or its peer was faster.
        return False
