"""Long work rests between short pieces; work that a call waits for does not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from runtimeproxy.cgroups.pace import LONGEST_REST_S, PIECE_S, SHARE, rest, with_rests
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter
from runtimeproxy.testing import CgroupFiles


class Thread:
    """The clock of a thread, and its rests.

    Attributes:
        now_s: How long it has worked.
        step_s: How long it works between two looks at the clock.
        slept_s: Its rests.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s
        self.slept_s: list[float] = []

    def clock(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_a_piece_is_followed_by_a_rest_that_leaves_the_share() -> None:
    thread = Thread()

    def work() -> str:
        for piece_s in (PIECE_S / 4, PIECE_S / 2, PIECE_S / 2):
            thread.now_s += piece_s
            rest()
        return "done"

    assert with_rests(work, thread.clock, thread.slept_s.append) == "done"
    assert thread.slept_s == pytest.approx([1.25 * PIECE_S * (1 / SHARE - 1)])


def test_the_rest_after_a_long_piece_is_bounded() -> None:
    thread = Thread()

    def work() -> None:
        thread.now_s += 60.0
        rest()

    with_rests(work, thread.clock, thread.slept_s.append)
    assert thread.slept_s == [LONGEST_REST_S]


def test_other_work_of_the_same_thread_has_no_rests() -> None:
    thread = Thread(PIECE_S)

    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_rests(fails, thread.clock, thread.slept_s.append)
    rest()
    assert thread.slept_s == []


def test_a_batch_rests_between_its_files(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path / "cgroup", version=2)
    cgroups = [f"/kubepods/pod{number}" for number in range(5)]
    for cgroup in cgroups:
        files.make(cgroup)
    writer = CgroupWriter(files.root)
    values = [CgroupValues(cgroup, {"cpu.cfs_burst_us": 1_000, "memory.min": 4_096}) for cgroup in cgroups]
    thread = Thread(PIECE_S)
    with_rests(lambda: writer.write_levels([values]), thread.clock, thread.slept_s.append)
    assert len(thread.slept_s) == 10
    assert [files.read(cgroup, "memory.min") for cgroup in cgroups] == ["4096"] * 5
    thread.slept_s.clear()
    look = partial(writer.look, ("kubepods", "pod0"), ("memory.min",))
    with_rests(look, thread.clock, thread.slept_s.append)
    assert len(thread.slept_s) == 1
