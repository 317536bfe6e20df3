"""Files that look like cgroups."""

from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.testing.cgroups import v1_values, v2_values

Resources = api_pb2.LinuxContainerResources

POD = "/kubepods/burstable/podu"


@pytest.mark.parametrize(
    ("resources", "v1", "v2"),
    [
        pytest.param(Resources(), {}, {}, id="nothing set"),
        pytest.param(Resources(cpu_shares=1024), {"cpu.shares": "1024"}, {"cpu.weight": "39"}, id="shares"),
        pytest.param(
            Resources(cpu_quota=50000, cpu_period=100000),
            {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
            {"cpu.max": "50000 100000"},
            id="quota",
        ),
        pytest.param(
            Resources(cpu_quota=-1),
            {"cpu.cfs_quota_us": "-1"},
            {"cpu.max": "max 100000"},
            id="no quota",
        ),
        pytest.param(
            Resources(cpuset_cpus="0-3,8", cpuset_mems="0"),
            {"cpuset.cpus": "0-3,8", "cpuset.mems": "0"},
            {"cpuset.cpus": "0-3,8", "cpuset.mems": "0"},
            id="cpuset",
        ),
        pytest.param(
            Resources(memory_limit_in_bytes=1000, memory_swap_limit_in_bytes=1500),
            {"memory.limit_in_bytes": "1000", "memory.memsw.limit_in_bytes": "1500"},
            {"memory.max": "1000", "memory.swap.max": "500"},
            id="memory and swap",
        ),
        pytest.param(
            Resources(memory_limit_in_bytes=-1, memory_swap_limit_in_bytes=-1),
            {"memory.limit_in_bytes": "-1", "memory.memsw.limit_in_bytes": "-1"},
            {"memory.max": "max", "memory.swap.max": "max"},
            id="no limits",
        ),
        *(
            pytest.param(
                Resources(cpu_shares=shares),
                {"cpu.shares": str(shares)},
                {"cpu.weight": weight},
                id=f"{shares} shares",
            )
            for shares, weight in [(2, "1"), (262144, "10000"), (300000, "10000")]
        ),
        pytest.param(
            Resources(cpu_shares=1024, unified={"cpu.weight": "7", "memory.high": "5"}),
            {"cpu.shares": "1024"},
            {"cpu.weight": "7", "memory.high": "5"},
            id="unified wins",
        ),
    ],
)
def test_values(resources: Resources, v1: dict[str, str], v2: dict[str, str]) -> None:
    assert v1_values(resources) == v1
    assert v2_values(resources) == v2


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path, 1)
    files.make(POD)
    files.apply(POD, Resources(cpu_shares=2, memory_limit_in_bytes=4096, cpuset_cpus="1"))
    assert (tmp_path / "cpu/kubepods/burstable/podu/cpu.shares").read_text() == "2\n"
    assert files.read(POD, "memory.limit_in_bytes") == "4096"
    assert files.read(POD, "cpuset.cpus") == "1"


def test_version_2_has_one_tree(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path, 2)
    files.make(POD)
    files.apply(POD, Resources(cpu_quota=20000, cpu_period=50000))
    assert (tmp_path / "kubepods/burstable/podu/cpu.max").read_text() == "20000 50000\n"


@pytest.mark.parametrize(
    ("version", "name", "value"),
    [(1, "cpu.shares", "1024"), (1, "cpu.cfs_quota_us", "-1"), (2, "cpu.max", "max 100000")],
)
def test_new_cgroups_have_the_kernels_values(tmp_path: Path, version: int, name: str, value: str) -> None:
    files = CgroupFiles(tmp_path, 1 if version == 1 else 2)
    files.make(POD)
    assert files.read("/kubepods", name) == value
    assert files.read(POD, name) == value


def test_making_a_cgroup_again_keeps_its_values(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path)
    files.make(POD)
    files.apply(POD, Resources(cpu_shares=2))
    files.make(f"{POD}/c1")
    assert files.read(POD, "cpu.weight") == "1"


@pytest.mark.parametrize("version", [1, 2])
def test_removing_is_silent_about_what_is_not_there(tmp_path: Path, version: int) -> None:
    files = CgroupFiles(tmp_path, 1 if version == 1 else 2)
    files.make(POD)
    files.remove(POD)
    files.remove(POD)
    assert not files.folder(POD).exists()
    assert files.folder("/kubepods/burstable").is_dir()


def test_a_pods_cgroup_of_the_kubelet_is_left_alone(tmp_path: Path) -> None:
    files = CgroupFiles(tmp_path)
    files.make(POD)
    files.make_pod(POD)
    files.drop_pod(POD)
    assert files.folder(POD).is_dir()
