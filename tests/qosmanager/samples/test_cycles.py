"""Cycles per instruction: the arithmetic, the turns, and what a kernel may answer."""

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.samples.cycles import (
    TURN_PASSES,
    CycleCounters,
    cycles_per_instruction,
    open_event,
    perf_event_folder,
)
from tests.lab.procfs import open_below


def counts(cycles: int, instructions: int, enabled: int = 100, running: int = 100) -> bytes:
    return struct.pack("=QQQQQ", 2, enabled, running, cycles, instructions)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ([counts(3_000_000, 2_000_000)], 1.5),
        ([counts(3_000_000, 2_000_000), counts(1_000_000, 2_000_000)], 1.0),
        # The second CPU counted for half of the time: it counts twice.
        ([counts(3_000_000, 2_000_000), counts(1_000_000, 1_000_000, 100, 50)], 1.25),
        ([counts(3_000_000, 2_000_000), counts(0, 0, 100, 0)], 1.5),
        ([counts(3_000_000, 2_000_000), b""], 1.5),
        ([counts(30, 20)], None),
        ([], None),
    ],
)
def test_ratio(read: list[bytes], expected: float | None) -> None:
    assert cycles_per_instruction(read) == expected


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ({}, None),
        ({"cpu": Mount(1, Path("/cpu"))}, None),
        ({"cpu": Mount(2, Path("/all"))}, Path("/all")),
        ({"cpu": Mount(1, Path("/cpu")), "perf_event": Mount(1, Path("/perf"))}, Path("/perf")),
    ],
)
def test_hierarchy(mounts: dict[str, Mount], expected: Path | None) -> None:
    assert perf_event_folder(mounts) == expected


class Kernel:
    """Opens files in place of events; each cgroup's ratio is in the name of its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.opened: list[tuple[str, int, int]] = []
        self.errors: dict[int, int] = {}
        """By CPU."""

    def open(self, event: int, cgroup: int, cpu: int, group: int) -> int:
        if cpu in self.errors:
            raise OSError(self.errors[cpu], "")
        name = Path(f"/proc/self/fd/{cgroup}").readlink().name
        self.opened.append((name, cpu, event))
        file = self._folder / f"{name}.{cpu}"
        file.write_bytes(counts(int(name) * 1_000_000, 1_000_000))
        return os.open(file, os.O_RDONLY)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    for name in ("1", "2", "3"):
        (tmp_path / "cgroup" / name).mkdir(parents=True)
    before = open_below(tmp_path)
    yield Kernel(tmp_path)
    assert open_below(tmp_path) == before


def test_cgroups_take_turns(kernel: Kernel, tmp_path: Path) -> None:
    counters = CycleCounters(tmp_path / "cgroup", 2, most_descriptors=8, open_event=kernel.open)
    cgroups = ["/1", "/2", "/3", "/gone"]
    turns = [[result for _ in range(TURN_PASSES) for result in counters.step(cgroups)] for _ in range(4)]
    assert turns == [[], [("/1", 1.0), ("/2", 2.0)], [("/3", 3.0)], [("/1", 1.0), ("/2", 2.0)]]
    assert kernel.opened[:4] == [("1", 0, 0), ("1", 0, 1), ("1", 1, 0), ("1", 1, 1)]
    assert counters.step([]) == []
    assert counters.problem == ""


def test_an_offline_cpu_is_left_out(kernel: Kernel, tmp_path: Path) -> None:
    kernel.errors[1] = errno.ENODEV
    counters = CycleCounters(tmp_path / "cgroup", 3, open_event=kernel.open)
    assert [result for _ in range(TURN_PASSES + 1) for result in counters.step(["/2"])] == [("/2", 2.0)]
    counters.close()


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOENT, errno.ENOSYS, errno.EINVAL])
def test_what_a_kernel_refuses_is_said_and_not_tried_again(
    kernel: Kernel, tmp_path: Path, error: int
) -> None:
    kernel.errors[1] = error
    counters = CycleCounters(tmp_path / "cgroup", 2, open_event=kernel.open)
    assert [counters.step(["/1", "/2"]) for _ in range(2 * TURN_PASSES)] == [[]] * 2 * TURN_PASSES
    assert counters.problem
    assert len(kernel.opened) == 2


def test_too_many_open_files_cost_a_turn(kernel: Kernel, tmp_path: Path) -> None:
    kernel.errors[1] = errno.EMFILE
    counters = CycleCounters(tmp_path / "cgroup", 2, open_event=kernel.open)
    counters.step(["/1"])
    assert counters.problem == ""
    kernel.errors.clear()
    assert [result for _ in range(2 * TURN_PASSES) for result in counters.step(["/1"])] == [("/1", 1.0)]
    counters.close()


def test_without_a_hierarchy_it_says_so() -> None:
    assert CycleCounters(None, 2).problem


def test_the_call_reaches_this_kernel(tmp_path: Path) -> None:
    """A folder that is no cgroup: whatever the machine can count, the kernel refuses it with an errno."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=r"\w") as raised:
            open_event(0, folder, 0, -1)
    finally:
        os.close(folder)
    assert raised.value.errno in {
        errno.EBADF,
        errno.EINVAL,
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
    }
