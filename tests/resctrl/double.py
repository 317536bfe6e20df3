"""Starts the double of resctrl, and asks it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.lab.programs import missing
from tests.resctrl.fuse import unmount
from tests.resctrl.schemata import Variant

STOP_TIMEOUT_S: Final = 60.0


class Command(NamedTuple):
    """A write, mkdir or rmdir."""

    pid: int
    """The process that did it."""
    path: str
    """Below the mount."""
    text: str | None
    """None of mkdir and rmdir."""
    code: int
    """errno, 0 if it was done."""


@dataclass
class Double:
    """A mounted double."""

    root: Path
    """Where it is mounted."""
    process: subprocess.Popen[str]

    def read(self, path: str) -> str:
        """The text of a file."""
        return (self.root / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Writes a file, as one command."""
        descriptor = os.open(self.root / path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    @property
    def status(self) -> str:
        """What the kernel says of the last command."""
        return self.read("info/last_cmd_status").strip()

    @property
    def groups(self) -> set[str]:
        """The names of all control groups but the default one."""
        own = {"info", "mon_groups", "mon_data"}
        return {each.name for each in self.root.iterdir() if each.is_dir() and each.name not in own}

    def tasks(self, group: str = "") -> set[int]:
        """The tasks of a group, by its path."""
        return {int(each) for each in self.read(f"{group}/tasks".lstrip("/")).split()}

    def commands(self, since: int = 0) -> list[Command]:
        """All writes, mkdir and rmdir since the mount, also what was refused."""
        return [Command(*each) for each in self._ask({"commands": since})]

    def show_counters(self, **texts: str) -> None:
        """Shows texts like `Unavailable` in place of counters, by event; others count."""
        self._ask({"counters": texts})

    def show_counters_of(self, texts: Mapping[str, str]) -> None:
        """The same by `GROUP/EVENT` or `GROUP/CACHE/EVENT`."""
        self._ask({"counters": texts})

    def deny(self, codes: Mapping[str, int]) -> None:
        """Refuses writes, mkdir and rmdir of these paths with an errno; no others."""
        self._ask({"denied": codes})

    def keep_rmids(self) -> None:
        """Leaves RMIDs of groups that are removed in limbo."""
        self._ask({"keeps_rmids": True})

    def _ask(self, command: Mapping[str, object]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def mounted(mount_point: Path, variant: Variant | None = None) -> Iterator[Double]:
    """Mounts a double until the block ends.

    Args:
        mount_point: A folder, which is made if need be.
        variant: Processor and kernel; None: Intel, two caches.
    """
    need_fuse()
    mount_point.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.resctrl",
        str(mount_point),
        "--variant",
        json.dumps(asdict(variant or Variant())),
    ]
    folder = Path(__file__).parents[2]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "mounted\n", "the double has not started"
        yield Double(mount_point, process)
        process.stdin.close()
        process.wait(STOP_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        unmount(mount_point)


def need_fuse() -> None:
    """Skips a test where nothing can be mounted."""
    if os.geteuid() != 0:
        missing("a mount needs root")
    if not Path("/dev/fuse").exists():
        missing("the kernel has no FUSE")
