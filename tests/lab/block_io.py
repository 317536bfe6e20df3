"""Loop devices, and how fast a process of a cgroup writes to them without the page cache."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Final

_WRITE: Final = """
import mmap, os, sys, time
path, procs, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
device = os.open(path, os.O_WRONLY | os.O_DIRECT)
# After the device was opened: a container's cgroup may not.
with open(procs, "w") as file:
    file.write("0")
buffer = mmap.mmap(-1, 1 << 16)
begun, done = time.monotonic(), 0
while done < size:
    done += os.pwrite(device, buffer, done % (16 << 20))
print(size / (time.monotonic() - begun))
"""


class LoopDevice:
    """A loop device on a file of its own; as a context manager it is there in the block.

    Attributes:
        path: Such as `/dev/loop0`.
        number: MAJ:MIN.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._file = folder / "loop-device.img"
        self._size_bytes = size_bytes
        self.path = self.number = ""

    def __enter__(self) -> LoopDevice:
        with self._file.open("wb") as file:
            file.truncate(self._size_bytes)
        command = ["losetup", "--find", "--show", str(self._file)]
        self.path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        self.number = (Path("/sys/class/block") / Path(self.path).name / "dev").read_text().strip()
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["losetup", "--detach", self.path], check=False)
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()


def write_rate(path: str, procs: Path, size_bytes: int) -> float:
    """Bytes a second that a process which joins a cgroup writes to a device."""
    command = [sys.executable, "-c", _WRITE, path, str(procs), str(size_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise OSError(f"writing to {path} from {procs}: {done.stderr.strip()}")
    return float(done.stdout)
