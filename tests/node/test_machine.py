"""What sysfs, procfs and the cgroup tree say of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.machine import (
    Processor,
    WithoutFiles,
    guess_cgroup_driver,
    read_cpus,
    read_features,
    read_memory,
    read_processor,
    systemd_version,
)
from runtimeproxy.node.snapshot import Cpu, Feature
from runtimeproxy.testing import CgroupFiles
from tests.node.objects_of import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_cpus(machine: Machine) -> None:
    machine.switch("0-6")
    cpus = read_cpus(machine.sysfs)
    assert cpus is not None
    assert cpus[5] == Cpu(id=5, core=0, socket=1, numa_node=1, l3=1)
    assert [cpu.core for cpu in cpus] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [cpu.socket for cpu in cpus] == [cpu.numa_node for cpu in cpus] == [0] * 4 + [1] * 4
    assert [cpu.id for cpu in cpus if not cpu.is_online] == [7]


def test_cpus_that_are_offline_or_virtual_lack_files(machine: Machine) -> None:
    folder = machine.sysfs / "devices/system/cpu"
    for file in (folder / "cpu7/topology").iterdir():
        file.unlink()
    (folder / "cpu6/topology/physical_package_id").write_text("-1\n")
    for file in (folder / "cpu6/cache/index3").iterdir():
        file.unlink()
    cpus = read_cpus(machine.sysfs)
    assert cpus is not None
    assert cpus[7] == Cpu(id=7, core=0, socket=0, numa_node=1, l3=1)
    assert cpus[6] == Cpu(id=6, core=1, socket=0, numa_node=1, l3=-1)


@pytest.mark.parametrize("text", ["", "zero", "3-1", "0-99999"])
@pytest.mark.parametrize("file", ["present", "online"])
def test_without_lists_of_cpus_none_is_known(machine: Machine, file: str, text: str) -> None:
    (machine.sysfs / "devices/system/cpu" / file).write_text(text)
    cpus = read_cpus(machine.sysfs)
    assert cpus is None or (file, text) == ("online", "")
    assert not any(cpu.is_online for cpu in cpus or ())


def test_memory(machine: Machine) -> None:
    assert read_memory(machine.sysfs, machine.procfs) == {0: 2**20, 1: 2**21}
    (machine.sysfs / "devices/system/node/node0/meminfo").write_text("MemTotal: much\n")
    assert read_memory(machine.sysfs, machine.procfs) == {1: 2**21}


def test_memory_where_the_kernel_knows_no_numa_nodes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       16345292 kB\nMemFree:        11478084 kB\n")
    assert read_memory(tmp_path / "sys", tmp_path) == {0: 16345292 * 1024}


def test_of_empty_folders_nothing_is_known(tmp_path: Path) -> None:
    assert read_cpus(tmp_path) is None
    assert read_memory(tmp_path, tmp_path) == {}
    assert read_processor(tmp_path, tmp_path) == Processor()
    assert guess_cgroup_driver(tmp_path) is None


def test_the_processor(machine: Machine) -> None:
    model = "Intel(R) Xeon(R) Platinum 8269CY CPU @ 2.50GHz"
    read = read_processor(machine.sysfs, machine.procfs)
    assert read == Processor(model=model, has_hyper_threads=True, has_turbo=True)
    (machine.sysfs / "devices/system/cpu/intel_pstate/no_turbo").write_text("1\n")
    (machine.sysfs / "devices/system/cpu/smt/active").write_text("0\n")
    assert read_processor(machine.sysfs, machine.procfs) == Processor(model=model)


def test_turbo_of_other_drivers(machine: Machine) -> None:
    folder = machine.sysfs / "devices/system/cpu"
    (folder / "intel_pstate/no_turbo").unlink()
    (folder / "cpufreq").mkdir()
    (folder / "cpufreq/boost").write_text("1\n")
    assert read_processor(machine.sysfs, machine.procfs).has_turbo


def test_this_machine() -> None:
    cpus = read_cpus(Path("/sys"))
    assert cpus is not None
    assert frozenset(cpu.id for cpu in cpus if cpu.is_online) == NodeReader().facts().online_cpus
    assert sum(read_memory(Path("/sys"), Path("/proc")).values()) > 2**28


def features(machine: Machine) -> frozenset[Feature]:
    facts = NodeReader(machine.sysfs, machine.cgroups).facts()
    return read_features(facts, machine.cgroups, machine.sysfs, machine.procfs, WithoutFiles())


def make_cgroups(machine: Machine, version: Literal[1, 2], *names: str) -> CgroupFiles:
    files = CgroupFiles(machine.cgroups, version)
    files.make("/kubepods.slice")
    for name in names:
        folder = files.folder("/kubepods.slice", name.partition(".")[0])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("0\n")
    if version == 2:
        (files.folder("/kubepods.slice") / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    return files


def test_features_of_version_2(machine: Machine) -> None:
    make_cgroups(machine, 2, "cpu.pressure", "io.max", "io.weight", "memory.oom.group")
    for name in ("io.cost.qos", "io.cost.model"):
        (machine.cgroups / name).write_text("")
    assert features(machine) == {
        Feature.BURST,
        Feature.IDLE,
        Feature.PSI,
        Feature.IO_LIMITS,
        Feature.IO_WEIGHT,
        Feature.IO_COST,
        Feature.MEMORY_PROTECTION,
        Feature.MEMORY_OOM_GROUP,
    }


def test_features_of_version_1_of_an_anolis_kernel(machine: Machine) -> None:
    anolis = ("min", "low", "high", "wmark_ratio", "wmark_scale_factor", "wmark_min_adj", "priority")
    names = [f"memory.{name}" for name in (*anolis, "use_priority_oom", "oom.group")]
    numbers = ("read_bps", "read_iops", "write_bps", "write_iops")
    limits = [f"blkio.throttle.{each}_device" for each in numbers]
    make_cgroups(machine, 1, "cpu.bvt_warp_ns", *names, *limits, "blkio.cost.weight")
    sysctls = machine.procfs / "sys/kernel"
    sysctls.mkdir(parents=True)
    (sysctls / "sched_core").write_text("0\n")
    (sysctls / "sched_group_identity_enabled").write_text("1\n")
    assert features(machine) == {
        Feature.BVT,
        Feature.BURST,
        Feature.IDLE,
        Feature.CORE_SCHED,
        Feature.CORE_SCHED_SYSCTL,
        Feature.GROUP_IDENTITY_SYSCTL,
        Feature.IO_LIMITS,
        Feature.IO_WEIGHT,
        Feature.MEMORY_PROTECTION,
        Feature.MEMORY_WMARK,
        Feature.MEMORY_PRIORITY,
        Feature.MEMORY_OOM_GROUP,
    }


@pytest.mark.parametrize("file", ["sched/features", "sched_features"])
@pytest.mark.parametrize("word", ["CORE_SCHED", "NO_CORE_SCHED"])
def test_core_scheduling_and_resctrl(machine: Machine, file: str, word: str) -> None:
    assert features(machine) == set()
    path = machine.sysfs / "kernel/debug" / file
    path.parent.mkdir(parents=True)
    path.write_text(f"GENTLE_FAIR_SLEEPERS {word} NO_HRTICK\n")
    (machine.procfs / "filesystems").write_text("nodev\tresctrl\n")
    assert features(machine) == {Feature.CORE_SCHED, Feature.CORE_SCHED_FEATURE, Feature.RESCTRL}


def test_core_scheduling_of_a_mainline_kernel(machine: Machine) -> None:
    """No file tells of it."""
    facts = NodeReader(machine.sysfs, machine.cgroups).facts()
    places = machine.cgroups, machine.sysfs, machine.procfs
    assert read_features(facts, *places, WithoutFiles(has_cookies=True)) == {Feature.CORE_SCHED}


def test_slices_of_tasks(machine: Machine) -> None:
    """No file tells of them either."""
    facts = NodeReader(machine.sysfs, machine.cgroups).facts()
    places = machine.cgroups, machine.sysfs, machine.procfs
    assert read_features(facts, *places, WithoutFiles(has_slices=True)) == {Feature.SLICE}


@pytest.mark.parametrize(
    ("version", "systemd", "expected"), [(2, 252, True), (2, 251, False), (2, 0, False), (1, 257, False)]
)
def test_an_idle_class(machine: Machine, version: Literal[1, 2], systemd: int, *, expected: bool) -> None:
    make_cgroups(machine, version, "cpu.idle")
    facts = NodeReader(machine.sysfs, machine.cgroups).facts()
    places = machine.cgroups, machine.sysfs, machine.procfs
    assert (Feature.CLASS_IDLE in read_features(facts, *places, WithoutFiles(systemd=systemd))) is expected


@pytest.mark.parametrize(
    ("first", "libraries", "version"),
    [
        ("systemd", ["x86_64-linux-gnu/systemd/libsystemd-shared-252.so"], 252),
        ("systemd", ["systemd/libsystemd-shared-257.9-1.fc42.so"], 257),
        ("systemd", ["systemd/libsystemd-shared-255.so", "systemd/libsystemd-shared-249.so"], 249),
        ("systemd", ["systemd/libsystemd-shared-x.so", "systemd/libsystemd-core-257.so"], 0),
        ("init", ["systemd/libsystemd-shared-257.so"], 0),
    ],
)
def test_the_version_of_systemd(tmp_path: Path, first: str, libraries: list[str], version: int) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text(f"{first}\n")
    for each in libraries:
        file = tmp_path / "usr/lib" / each
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert systemd_version(tmp_path) == version


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("names", "driver"),
    [
        (["kubepods.slice"], "systemd"),
        (["kubepods"], "cgroupfs"),
        (["kubepods", "kubepods.slice"], None),
        ([], None),
    ],
)
def test_the_cgroup_driver(
    machine: Machine, version: Literal[1, 2], names: list[str], driver: str | None
) -> None:
    files = CgroupFiles(machine.cgroups, version)
    for name in (*names, "system.slice"):
        files.make(f"/{name}")
    assert guess_cgroup_driver(machine.cgroups) == driver
