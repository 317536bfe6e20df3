"""The double does what the kernel's documents and source say of resctrl.

Source: Linux, Documentation/filesystems/resctrl.rst; fs/resctrl/.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.deadline import wait_until
from tests.resctrl.double import Double, mounted
from tests.resctrl.schemata import Variant

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def intel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Double]:
    """Two caches with ids 0 and 8, five CLOSIDs, seven RMIDs."""
    variant = Variant(caches=(0, 8), min_cbm_bits=2, mb_closids=5, rmids=7)
    with mounted(tmp_path_factory.mktemp("intel"), variant) as double:
        yield double


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Double]:
    variant = Variant(vendor="amd", cbm_bits=16, padded=True, single_id=True)
    with mounted(tmp_path_factory.mktemp("amd"), variant) as double:
        yield double


@pytest.fixture
def group(intel: Double) -> Iterator[Path]:
    yield from new_group(intel)


@pytest.fixture
def amd_group(amd: Double) -> Iterator[Path]:
    yield from new_group(amd)


def new_group(double: Double) -> Iterator[Path]:
    path = double.root / "own"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """One that does each line of Python that it is given."""
    script = "import os, sys, threading\nfor line in sys.stdin:\n    exec(line)\n"
    command = [sys.executable, "-c", script]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield child
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


FORK = "r = os.fork(); print(r, flush=True) if r else os.execvp('sleep', ['sleep', '60'])"
THREAD = (
    "t = threading.Thread(target=threading.Event().wait, daemon=True); t.start(); "
    "print(t.native_id, flush=True)"
)


def told(process: subprocess.Popen[str], line: str) -> int:
    """The number that a line has printed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def refused(code: int) -> contextlib.AbstractContextManager[object]:
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


def test_a_group_has_the_files_of_the_kernel(intel: Double, group: Path) -> None:
    assert sorted(each.name for each in group.iterdir()) == sorted(
        ["tasks", "cpus", "cpus_list", "schemata", "mode", "size", "mon_groups", "mon_data"]
    )
    monitoring = group / "mon_groups" / "pod"
    monitoring.mkdir()
    assert sorted(each.name for each in monitoring.iterdir()) == ["cpus", "cpus_list", "mon_data", "tasks"]
    events = ["llc_occupancy", "mbm_local_bytes", "mbm_total_bytes"]
    for cache in ("mon_L3_00", "mon_L3_08"):
        assert sorted(each.name for each in (monitoring / "mon_data" / cache).iterdir()) == events
    monitoring.rmdir()
    assert (group / "mode").read_text() == "shareable\n"
    assert (group / "tasks").read_text() == ""
    assert (group / "cpus_list").read_text() == "\n"


INFO = {
    "L3/cbm_mask": "fffff",
    "L3/min_cbm_bits": "2",
    "L3/num_closids": "16",
    "L3/shareable_bits": "0",
    "L3/sparse_masks": "0",
    "L3/bit_usage": "0=" + "S" * 20 + ";8=" + "S" * 20,
    "MB/min_bandwidth": "10",
    "MB/bandwidth_gran": "10",
    "MB/delay_linear": "1",
    "MB/num_closids": "5",
    "MB/thread_throttle_mode": "max",
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes",
    "L3_MON/num_rmids": "7",
    "L3_MON/max_threshold_occupancy": "65536",
    "last_cmd_status": "ok",
}


def test_what_the_machine_can(intel: Double, amd: Double) -> None:
    intel.write("tasks", str(os.getpid()))
    found = {
        str(each.relative_to(intel.root / "info")): each
        for each in (intel.root / "info").rglob("*")
        if each.is_file()
    }
    assert {name: file.read_text().strip() for name, file in found.items()} == INFO
    values = {name: amd.read(f"info/{name}").strip() for name in INFO if (amd.root / "info" / name).exists()}
    assert INFO.keys() - values.keys() == {"MB/thread_throttle_mode"}
    assert {
        name: values[name]
        for name in ("L3/min_cbm_bits", "L3/sparse_masks", "MB/min_bandwidth", "MB/bandwidth_gran")
    } == {
        "L3/min_cbm_bits": "0",
        "L3/sparse_masks": "1",
        "MB/min_bandwidth": "0",
        "MB/bandwidth_gran": "1",
    }


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("own", errno.EEXIST),
        ("two\nlines", errno.EINVAL),
        ("own/below", errno.EPERM),
        ("own/mon_groups/mon_groups", errno.EPERM),
        ("mon_data/below", errno.EPERM),
        ("info/below", errno.ENODEV),
        ("info/L3/below", errno.ENODEV),
    ],
)
def test_folders_that_cannot_be_made(intel: Double, group: Path, path: str, code: int) -> None:
    with refused(code):
        (intel.root / path).mkdir()


@pytest.mark.parametrize(
    "path", ["info", "mon_groups", "mon_data", "own/mon_groups", "own/mon_data/mon_L3_00"]
)
def test_folders_that_stay(intel: Double, group: Path, path: str) -> None:
    with refused(errno.EPERM):
        (intel.root / path).rmdir()


def test_files_that_cannot_be_made_or_written(intel: Double, group: Path) -> None:
    with refused(errno.EACCES):
        (group / "other").write_text("")
    with refused(errno.EPERM):
        (group / "tasks").unlink()
    with refused(errno.EACCES):
        (group / "size").write_text("1")
    with refused(errno.E2BIG):
        (group / "tasks").write_text("1" * 5000)
    with refused(errno.EBUSY):
        intel.root.rmdir()


WHOLE = "    L3:0=fffff;8=fffff\n    MB:0=100;8=100\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("L3:0=f\n", "    L3:0=f;8=fffff\n    MB:0=100;8=100\n"),
        ("L3:0=f;8=ff;\n", "    L3:0=f;8=ff\n    MB:0=100;8=100\n"),
        ("L3:8=0xF0\nMB:0=20\n", "    L3:0=fffff;8=f0\n    MB:0=20;8=100\n"),
        ("  MB:0= 15;8=91\n", "    L3:0=fffff;8=fffff\n    MB:0=20;8=100\n"),
    ],
)
def test_schemata(group: Path, written: str, shown: str) -> None:
    file = group / "schemata"
    assert file.read_text() == WHOLE
    file.write_text(written)
    assert file.read_text() == shown


@pytest.mark.parametrize(
    ("written", "status"),
    [
        ("L3:0=f", "ok"),
        ("L3:0=f;1=f\n", "ok"),
        ("L2:0=f\n", "Unknown or unsupported resource name 'L2'"),
        ("L3CODE:0=f\n", "Unknown or unsupported resource name 'L3CODE'"),
        ("L3\n", "Missing ':'"),
        ("L3:0=f\n\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("L3:0\n", "Missing '=' or non-numeric domain"),
        ("L3:x=f\n", "Missing '=' or non-numeric domain"),
        ("L3:0=f;0=f\n", "Duplicate domain 0"),
        ("L3:0=xyz\n", "Non-hex character in the mask xyz"),
        ("L3:0=0\n", "Mask out of range"),
        ("L3:0=1fffff\n", "Mask out of range"),
        ("L3:0=33\n", "The mask 33 has non-consecutive 1-bits"),
        ("L3:0=1\n", "Need at least 2 bits in the mask"),
        ("MB:0=9\n", "MB value 9 out of range [10,100]"),
        ("MB:0=101\n", "MB value 101 out of range [10,100]"),
        ("MB:0=ten\n", "Invalid MB value ten"),
        ("L3:0=f\nMB:0=5\n", "MB value 5 out of range [10,100]"),
    ],
)
def test_schemata_that_are_refused(intel: Double, group: Path, written: str, status: str) -> None:
    with refused(errno.EINVAL):
        (group / "schemata").write_text(written)
    if written.endswith("\n"):
        assert intel.status == status
    assert (group / "schemata").read_text() == WHOLE
    (group / "schemata").write_text("MB:0=100\n")
    assert intel.status == "ok"


def test_sizes_follow_the_masks(group: Path) -> None:
    (group / "schemata").write_text("L3:8=ff\n")
    assert (group / "size").read_text() == f"    L3:0={40 << 20};8={16 << 20}\n    MB:0=100;8=100\n"


def test_an_exclusive_group(intel: Double, group: Path) -> None:
    with refused(errno.EINVAL):
        (group / "mode").write_text("exclusive\n")
    assert intel.status == "Schemata overlaps"
    intel.write("schemata", "L3:0=ffff0;8=ffff0\n")
    (group / "schemata").write_text("L3:0=f;8=f\n")
    (group / "mode").write_text("exclusive\n")
    assert intel.read("info/L3/bit_usage") == "0=" + "S" * 16 + "EEEE;8=" + "S" * 16 + "EEEE\n"
    with refused(errno.EINVAL):
        intel.write("schemata", "L3:0=fffff\n")
    assert intel.status == "Overlaps with exclusive group"
    other = intel.root / "other"
    other.mkdir()
    assert (other / "schemata").read_text().splitlines()[0] == "    L3:0=ffff0;8=ffff0"
    other.rmdir()
    (group / "mode").write_text("shareable\n")
    intel.write("schemata", "L3:0=fffff;8=fffff\n")


def test_amd(amd: Double, amd_group: Path) -> None:
    file = amd_group / "schemata"
    assert file.read_text() == "    L3:0=ffff;1=ffff\n    MB:0=2048;1=2048\n"
    file.write_text("L3:0=0;1=5\nMB:1=33\n")
    assert file.read_text() == "    L3:0=0000;1=0005\n    MB:0=2048;1=  33\n"
    with refused(errno.EINVAL):
        file.write_text("MB:0=2049\n")
    with refused(errno.EINVAL):
        (amd_group / "tasks").write_text(f"{os.getpid()},{os.getppid()}")
    assert (amd_group / "tasks").read_text() == ""


def test_code_and_data(tmp_path: Path) -> None:
    with mounted(tmp_path / "cdp", Variant(cdp=True, caches=(0,), l3_closids=4)) as double:
        assert double.read("schemata") == "L3CODE:0=fffff\nL3DATA:0=fffff\n    MB:0=100\n"
        assert double.read("info/L3CODE/num_closids") == "2\n"
        assert not (double.root / "info/L3").exists()
        (double.root / "one").mkdir()
        double.write("one/schemata", "L3DATA:0=f\n")
        assert double.read("one/schemata") == "L3CODE:0=fffff\nL3DATA:0=f\n    MB:0=100\n"
        with refused(errno.ENOSPC):
            (double.root / "two").mkdir()
    assert list((tmp_path / "cdp").iterdir()) == []


def test_machines_that_can_less(tmp_path: Path) -> None:
    with mounted(tmp_path / "mb", Variant(has_l3=False, rmids=0)) as double:
        assert double.read("schemata") == "    MB:0=100;1=100\n"
        assert sorted(each.name for each in double.root.iterdir()) == sorted(
            ["info", "tasks", "cpus", "cpus_list", "schemata", "mode", "size"]
        )
    variant = Variant(has_l3=False, has_mb=False, mon_features=("llc_occupancy",))
    with mounted(tmp_path / "monitoring", variant) as double:
        assert not (double.root / "schemata").exists()
        with refused(errno.EPERM):
            (double.root / "group").mkdir()
        (double.root / "mon_groups" / "pod").mkdir()
        assert double.read("mon_groups/pod/mon_data/mon_L3_00/llc_occupancy") == "0\n"


def test_the_last_closid(intel: Double) -> None:
    names = [intel.root / f"c{number}" for number in range(5)]
    for each in names[:4]:
        each.mkdir()
    with refused(errno.ENOSPC):
        names[4].mkdir()
    assert intel.status == "Out of CLOSIDs"
    assert not names[4].exists()
    names[0].rmdir()
    names[4].mkdir()
    for each in names[1:]:
        each.rmdir()


def test_the_last_rmid(intel: Double, group: Path) -> None:
    pods = [group / "mon_groups" / f"p{number}" for number in range(6)]
    for each in pods[:5]:
        each.mkdir()
    with refused(errno.ENOSPC):
        pods[5].mkdir()
    assert intel.status == "Out of RMIDs"
    with refused(errno.ENOSPC):
        (intel.root / "control").mkdir()
    for each in pods[:5]:
        each.rmdir()


def test_tasks_move(intel: Double, group: Path, process: subprocess.Popen[str]) -> None:
    pid = process.pid
    assert pid in intel.tasks()
    (group / "tasks").write_text(f"{pid}\n")
    assert intel.tasks("own") == {pid}
    assert pid not in intel.tasks()
    other = intel.root / "other"
    other.mkdir()
    (other / "tasks").write_text(str(pid))
    assert intel.tasks("other") == {pid}
    assert intel.tasks("own") == set()
    other.rmdir()
    assert pid in intel.tasks()


def test_children_have_the_group_of_their_parent(
    intel: Double, group: Path, process: subprocess.Popen[str]
) -> None:
    before = told(process, FORK)
    thread_before = told(process, THREAD)
    (group / "tasks").write_text(str(process.pid))
    after = {told(process, FORK), told(process, THREAD)}
    assert intel.tasks("own") == {process.pid, *after}
    assert {before, thread_before} <= intel.tasks()


def test_orphans_keep_their_group(intel: Double, group: Path) -> None:
    script = f"echo $$ > {group}/tasks; (sh -c 'echo $$; exec sleep 60' &)"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        orphan = int(parent.stdout.readline())
        parent.wait()
        assert intel.tasks("own") == {orphan}
        os.kill(orphan, signal.SIGKILL)


def test_a_zombie_is_a_task_until_it_is_waited_for(intel: Double, group: Path) -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    (group / "tasks").write_text(str(child.pid))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert intel.tasks("own") == {child.pid}
    child.communicate()
    assert intel.tasks("own") == set()


def test_tasks_that_are_refused(intel: Double, group: Path, process: subprocess.Popen[str]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with refused(errno.ESRCH):
        (group / "tasks").write_text(f"{process.pid},{gone.pid}")
    assert intel.status == f"No task {gone.pid}\nError while processing task {gone.pid}"
    assert intel.tasks("own") == {process.pid}
    for text in ("x", "-1", "1 2"):
        with refused(errno.EINVAL):
            (group / "tasks").write_text(text)
    (group / "tasks").write_text("")
    (group / "tasks").write_text("\n")


def test_zero_is_the_writer(intel: Double, group: Path) -> None:
    (group / "tasks").write_text("0")
    assert intel.tasks("own") == {os.getpid()}
    intel.write("tasks", "0")
    assert intel.tasks("own") == set()


def test_monitoring_groups_have_tasks_of_their_control_group(
    intel: Double, group: Path, process: subprocess.Popen[str]
) -> None:
    pod = group / "mon_groups" / "pod"
    pod.mkdir()
    with refused(errno.EINVAL):
        (pod / "tasks").write_text(str(process.pid))
    assert intel.status.startswith("Can't move task to different control group")
    (group / "tasks").write_text(str(process.pid))
    (pod / "tasks").write_text(str(process.pid))
    child = told(process, FORK)
    assert intel.tasks("own/mon_groups/pod") == intel.tasks("own") == {process.pid, child}
    (group / "tasks").write_text(str(child))
    assert intel.tasks("own/mon_groups/pod") == {process.pid}
    pod.rmdir()
    assert intel.tasks("own") == {process.pid, child}


def test_monitoring_groups_of_the_default_group(intel: Double, process: subprocess.Popen[str]) -> None:
    pod = intel.root / "mon_groups" / "pod"
    pod.mkdir()
    (pod / "tasks").write_text(str(process.pid))
    assert intel.tasks("mon_groups/pod") == {process.pid}
    assert process.pid in intel.tasks()
    pod.rmdir()
    assert process.pid in intel.tasks()


def test_cpus(intel: Double, group: Path) -> None:
    last = max(os.sched_getaffinity(0))
    whole = intel.read("cpus_list")
    (group / "cpus_list").write_text(str(last))
    assert (group / "cpus").read_text() == f"{1 << last:0{len(intel.read('cpus')) - 1}x}\n"
    assert intel.read("cpus_list") != whole
    with refused(errno.EINVAL):
        intel.write("cpus_list", whole.strip() + ",4000")
    (group / "cpus").write_text("0\n")
    assert intel.read("cpus_list") == whole


def test_counters(intel: Double, group: Path, process: subprocess.Popen[str]) -> None:
    pod = group / "mon_groups" / "pod"
    pod.mkdir()
    total = group / "mon_data" / "mon_L3_08" / "mbm_total_bytes"
    assert total.read_text() == "0\n"
    (group / "tasks").write_text(str(process.pid))
    (pod / "tasks").write_text(str(process.pid))
    wait_until(lambda: int(total.read_text()) > 0, "traffic")
    assert (pod / "mon_data" / "mon_L3_00" / "llc_occupancy").read_text() == f"{1 << 20}\n"
    intel.show_counters(llc_occupancy="Unavailable", mbm_local_bytes="Error")
    assert (pod / "mon_data" / "mon_L3_00" / "llc_occupancy").read_text() == "Unavailable\n"
    intel.show_counters_of({"own/mon_groups/pod/0/mbm_total_bytes": "7"})
    assert (pod / "mon_data" / "mon_L3_00" / "mbm_total_bytes").read_text() == "7\n"
    assert (pod / "mon_data" / "mon_L3_08" / "mbm_total_bytes").read_text() != "7\n"
    intel.show_counters()
    (intel.root / "tasks").write_text(str(process.pid))
    stopped = total.read_text()
    assert total.read_text() == stopped
    pod.rmdir()


def test_what_tests_see_and_change(intel: Double, group: Path) -> None:
    since = len(intel.commands())
    intel.deny({"own/schemata": errno.EIO, "refused": errno.EBUSY})
    with refused(errno.EIO):
        intel.write("own/schemata", "MB:0=10\n")
    with refused(errno.EBUSY):
        (intel.root / "refused").mkdir()
    intel.deny({})
    (group / "schemata").write_text("MB:0=10\n")
    done = [each[1:] for each in intel.commands(since)]
    assert done == [
        ("own/schemata", "MB:0=10\n", errno.EIO),
        ("refused", None, errno.EBUSY),
        ("own/schemata", "MB:0=10\n", 0),
    ]
    assert {each.pid for each in intel.commands(since)} == {os.getpid()}


def test_an_open_file_of_a_group_that_is_gone(intel: Double) -> None:
    path = intel.root / "gone"
    path.mkdir()
    with (path / "tasks").open() as file:
        path.rmdir()
        with refused(errno.ENODEV):
            file.read()
    assert not path.exists()


def test_no_fork_is_missed(intel: Double, group: Path) -> None:
    """Descendants of a task that is moved, ten thousand forks later and on busy processors."""
    forks = "i=0; while [ $i -lt 10000 ]; do (:); i=$((i+1)); done"
    script = f"echo $$ > {group}/tasks; {forks}; (sleep 60 & echo $!)"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        last = int(parent.stdout.readline())
        assert last in intel.tasks("own")
        os.kill(last, signal.SIGKILL)
