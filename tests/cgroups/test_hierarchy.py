from pathlib import Path

from runtimeproxy.cgroups import Mount, detect


def test_unified_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "kubepods").mkdir()
    hierarchy = detect(tmp_path)
    assert hierarchy.version == 2
    assert hierarchy.mounts["memory"] == Mount(2, tmp_path)
    assert "kubepods" not in hierarchy.mounts


def test_version_1_with_joined_controllers(tmp_path: Path) -> None:
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "memory").mkdir()
    hierarchy = detect(tmp_path)
    assert hierarchy.version == 1
    assert hierarchy.mounts["cpu"] == Mount(1, tmp_path / "cpu,cpuacct")
    assert hierarchy.mounts["cpuacct"] == Mount(1, tmp_path / "cpu,cpuacct")


def test_hybrid_whose_version_2_carries_only_hugetlb_counts_as_version_1(tmp_path: Path) -> None:
    for name in ("cpu", "memory", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    hierarchy = detect(tmp_path)
    assert hierarchy.version == 1
    assert hierarchy.mounts["hugetlb"] == Mount(2, tmp_path / "unified")
    assert hierarchy.mounts["cpu"].version == 1


def test_hybrid_takes_each_controller_from_where_it_is(tmp_path: Path) -> None:
    for name in ("cpu", "unified"):
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory\n")
    hierarchy = detect(tmp_path)
    assert (hierarchy.mounts["cpu"].version, hierarchy.mounts["memory"].version) == (1, 2)


def test_nothing_mounted_is_no_error(tmp_path: Path) -> None:
    assert detect(tmp_path / "absent").mounts == {}
    assert detect(tmp_path).version == 1


def test_a_root_that_cannot_be_looked_at_is_no_error(tmp_path: Path) -> None:
    assert detect(tmp_path / ("too-long" * 40)).mounts == {}
