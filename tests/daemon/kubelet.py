"""A process that looks like a kubelet: it has the name and the flags, and waits for its end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.deadline import wait_until

_WAITS = "import signal; signal.pause()"


@contextmanager
def kubelet(folder: Path, *flags: str) -> Iterator[int]:
    """Runs it until the end of the block; gives its process id."""
    program = folder / "kubelet"
    program.symlink_to(sys.executable)
    process = subprocess.Popen([program, "-S", "-c", _WAITS, *flags], stdin=subprocess.DEVNULL)
    try:
        name = Path(f"/proc/{process.pid}/comm")
        wait_until(lambda: name.read_text() == "kubelet\n", "the program's name")
        yield process.pid
    finally:
        process.kill()
        process.wait()
