"""What runs in the pods and beside them, with the standard library only.

`python workloads.py serve PORT ITERATIONS`: a server that works for requests.
`python workloads.py burn FILE ITERATIONS`: greedy work without end.
`python workloads.py regular SHARE`: work of a fixed amount, by the clock.
"""

from __future__ import annotations

import hashlib
import mmap
import socketserver
import sys
import time
from pathlib import Path
from typing import Final

COUNTER_BYTES: Final = 8
COPIED_BYTES: Final = 16 * 1024 * 1024
PIECE_S: Final = 0.002
"""CPU time of regular work at once."""


def work(iterations: int) -> None:
    """Work of a fixed amount, without the interpreter's lock: threads run beside each other."""
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", iterations)


def serve(port: int, iterations: int) -> None:
    """Answers each byte of a connection with one, after work of its own; each connection has a thread."""

    class Handler(socketserver.BaseRequestHandler):
        """One connection."""

        def handle(self) -> None:
            while self.request.recv(1):
                work(iterations)
                self.request.sendall(b".")

    class Server(socketserver.ThreadingTCPServer):
        """All connections."""

        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", port), Handler) as server:
        server.serve_forever()


def burn(file: Path, iterations: int) -> None:
    """Works without end, and counts how often in a file."""
    file.write_bytes(bytes(COUNTER_BYTES))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), COUNTER_BYTES) as counter:
        # Larger than caches: batch work moves data, too, and takes the memory's bandwidth from others.
        source, target = bytearray(COPIED_BYTES), bytearray(COPIED_BYTES)
        count = 0
        while True:
            work(iterations)
            target[:] = source
            count += 1
            counter[:] = count.to_bytes(COUNTER_BYTES, "little")


def regular(share: float) -> None:
    """Computes for 2 ms of CPU time again and again, so often that it needs this share of one CPU.

    What comes late is not left out: the work of a minute is the same whatever runs beside it.
    """
    due_s = time.monotonic()
    while True:
        due_s += PIECE_S / share
        time.sleep(max(due_s - time.monotonic(), 0.0))
        until_s = time.thread_time() + PIECE_S
        while time.thread_time() < until_s:
            pass


def counted(file: Path) -> int:
    """How often `burn` has worked so far."""
    return int.from_bytes(file.read_bytes(), "little")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", port, iterations]:
            serve(int(port), int(iterations))
        case ["burn", file, iterations]:
            burn(Path(file), int(iterations))
        case ["regular", share]:
            regular(float(share))
        case words:
            sys.exit(f"unknown: {' '.join(words)}")
