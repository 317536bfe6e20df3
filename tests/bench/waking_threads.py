"""Processes whose threads wait, with the standard library only: `python waking_threads.py THREADS`.

Reads files `cgroup.procs` from its standard input, one a line, up to an empty line: for each there is a
process in that cgroup, with so many threads, one of which wakes each second. It prints a line when all are
there; they end with the standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

_STACK_BYTES = 65_536
_READY = b"."


def wait(procs: str, threads: int, ready: int) -> None:
    """Goes into the cgroup, and stays there."""
    try:
        with open(procs, "w") as file:  # noqa: PTH123 - nothing more is loaded for each process
            file.write(str(os.getpid()))
        for _ in range(threads - 1):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        os.write(ready, _READY)
        while True:
            time.sleep(1.0)
    finally:
        os.write(ready, b"x")
        os._exit(1)


def main(threads: int) -> None:
    """Starts the processes, and ends them."""
    threading.stack_size(_STACK_BYTES)
    seen, ready = os.pipe()
    children: list[int] = []
    try:
        while procs := sys.stdin.readline().strip():
            child = os.fork()
            if child == 0:
                wait(procs, threads, ready)
            children.append(child)
        if not all(os.read(seen, 1) == _READY for _ in children):
            raise ChildProcessError("not all processes are there")
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
