"""The writer on this machine's own files of block I/O, version 1, and what a limit does to direct I/O."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from tests.lab.block_io import LoopDevice, write_rate
from tests.lab.programs import missing, need_controllers_of_v1, need_loop_devices

READ, WRITE, IOPS = (f"blkio.throttle.{each}_device" for each in ("read_bps", "write_bps", "write_iops"))
LIMIT_BPS = 2 << 20
"""A third of what a slow disk of a busy machine does."""
TRIES = 5


@pytest.fixture
def pod() -> Iterator[str]:
    need_controllers_of_v1("blkio")
    name = f"koord-test-{uuid.uuid4().hex[:12]}"
    folder = DEFAULT_ROOT / "blkio" / name
    (folder / "box").mkdir(parents=True)
    if not (folder / WRITE).exists():
        missing("this kernel has no limits of block I/O")
    try:
        yield f"/{name}"
    finally:
        for each in (folder / "box", folder):
            with contextlib.suppress(FileNotFoundError):
                each.rmdir()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[LoopDevice]:
    need_loop_devices()
    with LoopDevice(tmp_path, 64 << 20) as made:
        yield made


def unlimited(device: LoopDevice, procs: Path) -> float:
    """The best rate of a few tries: others may use the disk or the CPUs for a while."""
    rates: list[float] = []
    while not rates or (rates[-1] <= 2 * LIMIT_BPS and len(rates) < 2 * TRIES):
        rates.append(write_rate(device.path, procs, 3 * LIMIT_BPS))
    return max(rates)


def text(cgroup: str, name: str) -> str:
    return (DEFAULT_ROOT / "blkio" / cgroup[1:] / name).read_text()


def test_lines_of_devices_reach_the_kernel_and_go(pod: str, device: LoopDevice) -> None:
    writer, number = CgroupWriter(), device.number
    (result,) = writer.write(pod, {WRITE: f"{number} {LIMIT_BPS}"})
    assert result.outcome is WriteOutcome.WRITTEN
    assert text(pod, WRITE) == f"{number} {LIMIT_BPS}\n"
    (result,) = writer.write(pod, {WRITE: f"{number} {LIMIT_BPS}"})
    assert result.outcome is WriteOutcome.UNCHANGED
    (result,) = writer.write(pod, {WRITE: f"{number} 0"})
    assert result.outcome is WriteOutcome.WRITTEN
    assert text(pod, WRITE) == ""
    (result,) = writer.write(pod, {IOPS: f"{number} {2**32 - 2}"})
    assert result.outcome is WriteOutcome.WRITTEN
    assert text(pod, IOPS) == f"{number} {2**32 - 2}\n"


def test_a_device_that_the_kernel_does_not_have_stops_no_other(pod: str, device: LoopDevice) -> None:
    (result,) = CgroupWriter().write(pod, {READ: f"4095:9 5,{device.number} 7"})
    assert result.outcome is WriteOutcome.FAILED
    assert result.error == "4095:9: ENODEV: No such device"
    assert text(pod, READ) == f"{device.number} 7\n"


def test_the_rate_of_direct_writes_follows_the_limit(pod: str, device: LoopDevice) -> None:
    writer, procs = CgroupWriter(), DEFAULT_ROOT / "blkio" / pod[1:] / "cgroup.procs"
    writer.write(pod, {WRITE: f"{device.number} {LIMIT_BPS}"})
    rates: list[float] = []
    # A busy machine may give the process no CPU for a while; the limit holds all the same.
    while not rates or (rates[-1] < 0.8 * LIMIT_BPS and len(rates) < TRIES):
        rates.append(write_rate(device.path, procs, 2 * LIMIT_BPS))
        assert rates[-1] < 1.2 * LIMIT_BPS
    assert rates[-1] > 0.8 * LIMIT_BPS, rates
    writer.write(pod, {WRITE: f"{device.number} 0"})
    assert unlimited(device, procs) > 2 * LIMIT_BPS


def test_a_limit_does_not_apply_below_the_cgroup(pod: str, device: LoopDevice) -> None:
    """Why `block-io` gives containers the limits of their pod and class on version 1."""
    CgroupWriter().write(pod, {WRITE: f"{device.number} {LIMIT_BPS}"})
    procs = DEFAULT_ROOT / "blkio" / pod[1:] / "box" / "cgroup.procs"
    assert unlimited(device, procs) > 2 * LIMIT_BPS
