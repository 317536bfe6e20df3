from pathlib import Path

from runtimeproxy.cgroups.mounts import Mount, find_mounts


def test_unified_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "kubepods").mkdir()
    mounts = find_mounts(tmp_path)
    assert mounts["memory"] == Mount(2, tmp_path)
    assert "kubepods" not in mounts


def test_version_1_with_joined_controllers(tmp_path: Path) -> None:
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "memory").mkdir()
    mounts = find_mounts(tmp_path)
    assert mounts["cpu"] == Mount(1, tmp_path / "cpu,cpuacct")
    assert mounts["cpuacct"] == Mount(1, tmp_path / "cpu,cpuacct")


def test_hybrid_whose_version_2_carries_only_hugetlb_leaves_the_others(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    mounts = find_mounts(tmp_path)
    assert mounts["hugetlb"] == Mount(2, tmp_path / "unified")
    assert mounts["cpu"].version == 1


def test_hybrid_takes_each_controller_from_where_it_is(tmp_path: Path) -> None:
    for name in ("cpu", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory\n")
    mounts = find_mounts(tmp_path)
    assert (mounts["cpu"].version, mounts["memory"].version) == (1, 2)


def test_nothing_mounted_is_no_error(tmp_path: Path) -> None:
    assert find_mounts(tmp_path / "absent") == {}


def test_a_root_that_cannot_be_looked_at_is_no_error(tmp_path: Path) -> None:
    assert find_mounts(tmp_path / ("too-long" * 40)) == {}
