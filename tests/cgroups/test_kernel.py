"""The writer on this machine's own cgroup version 1; makes cgroups of its own and removes them."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome
from runtimeproxy.units import parse_cpu_list
from tests.cgroups.trees import outcomes
from tests.lab.programs import missing, need_controllers_of_v1

CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def pod() -> Iterator[str]:
    need_controllers_of_v1(*CONTROLLERS)
    name = f"koord-test-{uuid.uuid4().hex[:12]}"
    folders = [DEFAULT_ROOT / each / name / "pod1" for each in CONTROLLERS]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
        for part in ("", "pod1"):
            for file in ("cpuset.cpus", "cpuset.mems"):
                top = (DEFAULT_ROOT / "cpuset" / file).read_text()
                (DEFAULT_ROOT / "cpuset" / name / part / file).write_text(top)
        yield f"/{name}/pod1"
    finally:
        for folder in folders:
            for each in (*(child for child in folder.glob("*/")), folder, folder.parent):
                with contextlib.suppress(FileNotFoundError):
                    each.rmdir()


def content(controller: str, cgroup: str, file: str) -> str:
    return (DEFAULT_ROOT / controller / cgroup[1:] / file).read_text().strip()


def test_pod_values_reach_the_kernel(pod: str) -> None:
    writer = CgroupWriter()
    values = {"cpu.shares": 512, "cpu.cfs_quota_us": 50_000, "memory.limit_in_bytes": (1 << 26) + 1}
    assert outcomes(writer.write(pod, values)) == dict.fromkeys(values, "written")
    assert content("cpu", pod, "cpu.shares") == "512"
    assert content("cpu", pod, "cpu.cfs_quota_us") == "50000"
    assert content("memory", pod, "memory.limit_in_bytes") == str(1 << 26)
    assert outcomes(writer.write(pod, values)) == dict.fromkeys(values, "unchanged")


def test_a_memory_limit_has_room_below_that_of_memory_and_swap(pod: str) -> None:
    writer = CgroupWriter()
    both = DEFAULT_ROOT / "memory" / pod[1:] / "memory.memsw.limit_in_bytes"
    if not both.exists():
        missing("this kernel does not account swap")

    def write(limit_bytes: int) -> tuple[str, str]:
        (result,) = writer.write(pod, {"memory.limit_in_bytes": limit_bytes})
        assert result.outcome is WriteOutcome.WRITTEN, result
        return content("memory", pod, "memory.limit_in_bytes"), both.read_text().strip()

    unlimited = both.read_text().strip()
    # Of a pod, whose limit of both the kubelet does not set.
    assert write(1 << 26) == (str(1 << 26), unlimited)
    # Of a container that does not swap.
    both.write_text(str(1 << 26))
    assert write(1 << 27) == (str(1 << 27), str(1 << 27))
    assert write(1 << 25) == (str(1 << 25), str(1 << 25))
    # Of one that may.
    both.write_text(str(1 << 26))
    assert write(1 << 24) == (str(1 << 24), str(1 << 26))
    assert write(1 << 28) == (str(1 << 28), str(1 << 28))
    assert write(-1) == (unlimited, unlimited)


def test_unlimited_reaches_the_kernel_and_reads_back(pod: str) -> None:
    writer = CgroupWriter()
    limits = {"cpu.cfs_quota_us": -1, "memory.limit_in_bytes": -1}
    assert outcomes(writer.write(pod, limits)) == dict.fromkeys(limits, "unchanged")
    writer.write(pod, {"cpu.cfs_quota_us": 50_000, "memory.limit_in_bytes": 1 << 26})
    assert outcomes(writer.write(pod, limits)) == dict.fromkeys(limits, "written")
    assert [writer.read(pod, name) for name in limits] == [-1, -1]


def test_a_limit_of_pids_needs_no_order(pod: str) -> None:
    writer, container = CgroupWriter(), f"{pod}/c1"
    (DEFAULT_ROOT / "pids" / container[1:]).mkdir()
    for cgroup, limit, text in ((pod, 10, "10"), (container, 77, "77"), (container, -1, "max")):
        assert outcomes(writer.write(cgroup, {"pids.max": limit})) == {"pids.max": "written"}
        assert content("pids", cgroup, "pids.max") == text
        assert writer.read(cgroup, "pids.max") == limit
    assert outcomes(writer.write(container, {"pids.max": -1})) == {"pids.max": "unchanged"}


HOLD_MEMORY = """
import sys
with open(sys.argv[1], "w") as procs:
    procs.write("0")
used = b"x" * (8 << 20)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_limit_below_the_use_is_reported(pod: str) -> None:
    folder = DEFAULT_ROOT / "memory" / pod[1:]
    (folder / "memory.swappiness").write_text("0")
    writer = CgroupWriter()
    command = [sys.executable, "-c", HOLD_MEMORY, str(folder / "cgroup.procs")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (result,) = writer.write(pod, {"memory.limit_in_bytes": PAGE_BYTES})
        holder.kill()
    assert result.outcome is WriteOutcome.FAILED
    assert result.error.startswith("EBUSY: ")


def test_quota_goes_down_and_up_a_tree_that_the_kernel_checks(pod: str) -> None:
    writer = CgroupWriter()
    container = f"{pod}/c1"
    (DEFAULT_ROOT / "cpu" / container[1:]).mkdir()

    def both(quota_us: int) -> list[list[CgroupValues]]:
        return [[CgroupValues(cgroup, {"cpu.cfs_quota_us": quota_us})] for cgroup in (pod, container)]

    for quota_us in (50_000, 20_000, 80_000, -1, 30_000):
        assert {result.outcome for result in writer.write_levels(both(quota_us))} == {WriteOutcome.WRITTEN}
    (refused,) = writer.write(container, {"cpu.cfs_quota_us": 40_000})
    assert refused.error.startswith("EINVAL: ")


def test_burst_stays_within_the_quota_that_the_kernel_checks(pod: str) -> None:
    writer = CgroupWriter()
    if writer.read(pod, "cpu.cfs_burst_us") is None:
        missing("this kernel has no cpu.cfs_burst_us: Linux has it since 5.14")
    for value_us in (50_000, 20_000, 80_000):
        values = {"cpu.cfs_burst_us": value_us, "cpu.cfs_quota_us": value_us}
        assert outcomes(writer.write(pod, values)) == dict.fromkeys(values, "written")


def test_weight_is_set_while_the_group_is_not_idle(pod: str) -> None:
    writer = CgroupWriter()
    if writer.read(pod, "cpu.idle") is None:
        missing("this kernel has no cpu.idle: Linux has it since 5.15")
    assert outcomes(writer.write(pod, {"cpu.idle": 1, "cpu.shares": 512}))["cpu.idle"] == "written"
    results = writer.write(pod, {"cpu.shares": 2000, "cpu.idle": 0})
    assert outcomes(results) == {"cpu.shares": "written", "cpu.idle": "written"}


def test_a_cpuset_is_tightened_from_the_children_up(pod: str) -> None:
    if (os.cpu_count() or 1) < 2:
        missing("needs two CPUs")
    writer = CgroupWriter()
    container = f"{pod}/c1"
    folder: Path = DEFAULT_ROOT / "cpuset" / container[1:]
    folder.mkdir()
    (folder / "cpuset.cpus").write_text("0-1")
    (folder / "cpuset.mems").write_text(content("cpuset", pod, "cpuset.mems"))
    for cpus in ("0", "1", "0-1"):
        levels = [[CgroupValues(cgroup, {"cpuset.cpus": cpus})] for cgroup in (pod, container)]
        assert {result.outcome for result in writer.write_levels(levels)} == {WriteOutcome.WRITTEN}
    assert content("cpuset", container, "cpuset.cpus") == "0-1"


SPELLINGS = [
    *(
        ",0",
        "0,",
        " 0",
        "0,,0",
        "0\n",
        ",",
        "",
        " , ",
        "00",
        "0\t0",
        "0\x0b",
        "0-0",
        "0-0:1/1",
        "0-0:0/1",
        "0-0:1/5",
    ),
    *("all", "ALL", "aLl:1/1", "N", "0-N", "all,0", "N,N"),
    *(
        "n",
        "0x",
        "-0",
        "0-",
        "1-0",
        "0 - 0",
        "+0",
        "0x0",
        "0;0",
        "0:1/2",
        "N:1/1",
        "0-0:2/1",
        "0-0:1/0",
        "allx",
    ),
    *("0-0:1", "0-0:/1", "0.0", "zero", "9999", "0-9999"),
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_lists_are_read_as_the_kernel_reads_them(pod: str, text: str) -> None:
    file = DEFAULT_ROOT / "cpuset" / pod[1:] / "cpuset.cpus"
    last = max(parse_cpu_list(Path("/sys/devices/system/cpu/possible").read_text()))
    try:
        expected = parse_cpu_list(text, last)
    except ValueError:
        expected = None
    try:
        file.write_bytes(text.encode() or b"\n")
    except OSError:
        assert expected is None
    else:
        assert expected == parse_cpu_list(file.read_text())


def test_missing_kernel_features_are_skips(pod: str) -> None:
    writer = CgroupWriter()
    values = {"cpu.bvt_warp_ns": 2, "memory.wmark_ratio": 95}
    assert set(outcomes(writer.write(pod, values)).values()) <= {"missing", "written"}
    assert outcomes(writer.write("/koord-test-gone", {"cpu.shares": 2})) == {"cpu.shares": "missing"}
