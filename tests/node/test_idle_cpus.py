"""Idle CPUs from /proc/stat."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.node.idle_cpus import LEAST_S, CpuTimes, IdleCpus, cpu_times, idle_cpus

STAT = """cpu  10 1 9 70 10 0 0 0 5 0
cpu0 5 1 4 35 5 0 0 0 5 0
cpu1 5 0 5 35 5 0 0 0 0 0
intr 114930548 113199788 3 0
ctxt 1990473
cpufreq 1
"""


def test_the_kernels_file() -> None:
    assert cpu_times(STAT) == CpuTimes(idle=80, total=100, cpus=2)


@pytest.mark.parametrize("text", ["", "cpu\n", "intr 1\n", "cpu a b c d e f\n", "cpu0 1 2 3 4 5 6"])
def test_another_file(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        cpu_times(text)


@pytest.mark.parametrize(
    ("before", "now", "idle"),
    [
        (None, CpuTimes(75, 100, 8), 6.0),
        (None, CpuTimes(36_000, 48_000, 8), 6.0),
        # Of a boot that was longer ago it is not known what is idle now.
        (None, CpuTimes(36_001, 48_001, 8), None),
        (CpuTimes(75, 100, 8), CpuTimes(75, 200, 8), 0.0),
        (CpuTimes(75, 100, 8), CpuTimes(175, 200, 8), 8.0),
        (CpuTimes(75, 100, 8), CpuTimes(75, 100, 8), None),
        # A CPU that goes offline takes its idle time along.
        (CpuTimes(75, 100, 8), CpuTimes(70, 120, 7), 0.0),
    ],
)
def test_between_two_reads(before: CpuTimes | None, now: CpuTimes, idle: float | None) -> None:
    assert idle_cpus(before, now) == idle


def test_reads_over_time(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    reader = IdleCpus(tmp_path)
    assert reader.read(0.0) is None
    assert "stat cannot be used" in reader.problem
    stat.write_text(STAT)
    assert reader.read(1.0) == pytest.approx(1.6)
    assert not reader.problem
    stat.write_text(STAT.replace("cpu  10 1 9 70 10", "cpu  110 1 9 70 10"))
    # Too soon, then a fully busy time, then none at all.
    assert reader.read(1.0 + LEAST_S / 2) == pytest.approx(1.6)
    assert reader.read(1.0 + LEAST_S) == 0.0
    assert reader.read(1.0 + 2 * LEAST_S) == 0.0
    stat.unlink()
    assert reader.read(9.0) is None
