"""Processes in a cgroup of this machine's version 1, in the hierarchy that `CgroupWriter` looks at."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteResult
from tests.lab.programs import need_controllers_of_v1

SCORE = "oom_score_adj"
CAP_SYS_RESOURCE = 24
"""Source: Linux include/uapi/linux/capability.h."""


class Box:
    """A cgroup with processes."""

    def __init__(self, cgroup: str) -> None:
        self.cgroup, self.path = cgroup, tuple(cgroup.strip("/").split("/"))
        self.started: list[subprocess.Popen[bytes]] = []
        self.writer = CgroupWriter()

    def folder(self, *below: str) -> Path:
        return DEFAULT_ROOT.joinpath("pids", *self.path, *below)

    def start(self, *below: str, score: int = 0, program: tuple[str, ...] = ("sleep", "600")) -> int:
        """A process in the cgroup, or in one below, that has a score."""
        folder = self.folder(*below)
        folder.mkdir(parents=True, exist_ok=True)

        # It runs the program once it is there.
        command = ("sh", "-c", 'read -r _ && exec "$@"', "sh", *program)
        child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.started.append(child)
        (folder / "cgroup.procs").write_text(str(child.pid))
        Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(score))
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(b"\n")
        return child.pid

    def text(self) -> str:
        return self.writer.look(self.path, (SCORE,))[SCORE].text

    def write(self, value: int, *replaces: int) -> WriteResult:
        values = CgroupValues(self.cgroup, {SCORE: value}, replaces={SCORE: replaces} if replaces else {})
        (result,) = self.writer.write_levels([[values]])
        return result

    def end(self) -> None:
        for child in self.started:
            child.kill()
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for child in self.started:
            child.wait()
        for folder in (*sorted(self.folder().rglob("*/"), reverse=True), self.folder()):
            folder.rmdir()

    def pids(self) -> list[int]:
        files = (self.folder() / "cgroup.procs", *self.folder().rglob("*/cgroup.procs"))
        return [int(pid) for file in files for pid in file.read_text().split()]


def score_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def has_right(capability: int) -> bool:
    """Whether this process has a capability."""
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> capability & 1)


@contextmanager
def real_box() -> Iterator[Box]:
    """A cgroup like that of a container; its processes are killed at the end."""
    need_controllers_of_v1("pids")
    top = f"test-{uuid.uuid4().hex[:12]}"
    made = Box(f"/{top}/{uuid.uuid4().hex}")
    made.folder().mkdir(parents=True)
    try:
        yield made
    finally:
        made.end()
        (DEFAULT_ROOT / "pids" / top).rmdir()
