"""Threads that need CPU time, with the standard library only: `python cpu_seconds.py THREADS SECONDS FILE`.

All threads together use so many CPU seconds; then FILE has the time at which they were done, as seconds since
the epoch.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from pathlib import Path


def use(seconds: float) -> None:
    """Computes until this process has used so many CPU seconds; without the interpreter's lock."""
    while time.process_time() < seconds:
        hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 2_000)


def main(threads: int, seconds: float, file: Path) -> None:
    """Uses them, and writes when that was done."""
    workers = [threading.Thread(target=use, args=(seconds,)) for _ in range(threads)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    temporary = file.with_suffix(".new")
    temporary.write_text(str(time.time()))
    temporary.replace(file)
    # Until it is ended.
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
