"""Sends as fast as it can, from a cgroup: `python sender.py CGROUP.PROCS ADDRESS PORT`; until it is ended."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

BUFFER_BYTES = 256 << 10
"""What waits in a queue of the node at most: 40 ms at 50 Mbit/s, 400 ms at 5 Mbit/s."""
BLOCK = bytes(64 << 10)


def favour() -> None:
    """Has the calling thread run before others on a busy machine: a sender without CPU has no rate.

    Nice values are compared within a session only where the kernel makes a group of each (`autogroup`).
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main(procs: str, address: str, port: str) -> None:
    favour()
    # A socket belongs to the cgroup in which it is made.
    Path(procs).write_text(str(os.getpid()))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        connection.connect((address, int(port)))
        while True:
            connection.sendall(BLOCK)


if __name__ == "__main__":
    main(*sys.argv[1:])
