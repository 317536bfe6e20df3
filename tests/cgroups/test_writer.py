import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeproxy.cgroups import writer as writer_module
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome
from runtimeproxy.fields.formats import Value
from tests.cgroups.trees import POD, V2_FILES, fill, make_v1, make_v2, outcomes
from tests.lab.procfs import open_below

BATCH: dict[str, Value] = {
    "cpu.shares": 512,
    "cpu.cfs_quota_us": 50_000,
    "memory.limit_in_bytes": 1 << 30,
}


def text(*parts: str | Path) -> str:
    return Path(*parts).read_text().strip()


def test_pod_values_on_version_1(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v1(tmp_path, POD))
    results = writer.write(POD, BATCH)
    assert outcomes(results) == dict.fromkeys(BATCH, "written")
    assert text(tmp_path, "cpu", POD[1:], "cpu.shares") == "512"
    assert text(tmp_path, "cpu", POD[1:], "cpu.cfs_quota_us") == "50000"
    assert text(tmp_path, "memory", POD[1:], "memory.limit_in_bytes") == str(1 << 30)
    assert {result.name: result.old for result in results} == {
        "cpu.shares": 1024,
        "cpu.cfs_quota_us": -1,
        "memory.limit_in_bytes": -1,
    }


def test_pod_values_on_version_2(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v2(tmp_path, POD))
    assert outcomes(writer.write(POD, BATCH)) == dict.fromkeys(BATCH, "written")
    assert text(tmp_path, POD[1:], "cpu.weight") == "20"
    assert text(tmp_path, POD[1:], "cpu.max") == "50000"
    assert text(tmp_path, POD[1:], "memory.max") == str(1 << 30)


def test_the_slice_of_a_pod_is_found_from_its_bare_name(tmp_path: Path) -> None:
    folder = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"
    writer = CgroupWriter(make_v2(tmp_path, folder))
    writer.write("kubepods-besteffort-pod1.slice", {"cpu.shares": 2})
    assert text(tmp_path, folder, "cpu.weight") == "1"


@pytest.mark.parametrize(
    ("content", "value", "expected"),
    [
        pytest.param("10000 100000", -1, "max", id="V181"),
        pytest.param("max 100000", 200_000, "200000", id="V182"),
    ],
)
def test_cpu_max_gets_the_quota_only_so_that_the_kernel_keeps_the_period(
    tmp_path: Path, content: str, value: int, expected: str
) -> None:
    make_v2(tmp_path, POD)
    (tmp_path / POD[1:] / "cpu.max").write_text(content + "\n")
    CgroupWriter(tmp_path).write(POD, {"cpu.cfs_quota_us": value})
    assert text(tmp_path, POD[1:], "cpu.max") == expected


def test_a_period_on_version_2_keeps_the_quota(tmp_path: Path) -> None:
    make_v2(tmp_path, POD)
    (tmp_path / POD[1:] / "cpu.max").write_text("70000 100000\n")
    CgroupWriter(tmp_path).write(POD, {"cpu.cfs_period_us": 50_000})
    assert text(tmp_path, POD[1:], "cpu.max") == "70000 50000"


@pytest.mark.parametrize(
    "values",
    [
        {"cpu.shares": 1024, "cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100_000},
        {"cpuset.cpus": "0,1,2,3", "memory.limit_in_bytes": -1},
    ],
)
def test_what_is_there_already_is_not_written(tmp_path: Path, values: dict[str, Value]) -> None:
    make_v1(tmp_path, POD)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert set(outcomes(CgroupWriter(tmp_path).write(POD, values)).values()) == {"unchanged"}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_empty_cpuset_is_written_as_a_line(tmp_path: Path) -> None:
    make_v2(tmp_path, POD)
    file = tmp_path / POD[1:] / "cpuset.cpus"
    file.write_text("0-3\n")
    assert outcomes(CgroupWriter(tmp_path).write(POD, {"cpuset.cpus": ""})) == {"cpuset.cpus": "written"}
    assert file.read_bytes() == b"\n"


def test_missing_files_features_and_cgroups_are_skips(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v1(tmp_path, POD))
    results = writer.write(
        POD, {"cpu.bvt_warp_ns": 2, "net_cls.classid": 1, "memory.pagecache_limit.size": 1}
    )
    gone = writer.write("/kubepods/gone", {"cpu.shares": 2})
    assert {result.outcome for result in (*results, *gone)} == {WriteOutcome.MISSING}
    assert all(result.error for result in (*results, *gone))


def test_no_cgroups_at_all_is_a_skip_and_looked_for_again(tmp_path: Path) -> None:
    writer = CgroupWriter(tmp_path)
    assert outcomes(writer.write(POD, {"cpu.shares": 2})) == {"cpu.shares": "missing"}
    make_v2(tmp_path, POD)
    assert outcomes(writer.write(POD, {"cpu.shares": 2})) == {"cpu.shares": "written"}


def test_invalid_values_are_never_written_and_do_not_stop_others(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v1(tmp_path, POD))
    values: dict[str, Value] = {"cpu.shares": -5, "cpuset.cpus": "0-", "no.such": 1, "cpu.cfs_quota_us": 2000}
    assert outcomes(writer.write(POD, values)) == {
        "cpu.shares": "invalid",
        "cpuset.cpus": "invalid",
        "no.such": "invalid",
        "cpu.cfs_quota_us": "written",
    }


@pytest.mark.parametrize("cgroup", ["/", "", "/kubepods/../..", "/kubepods/\0", "/kubepods/./pod1"])
def test_paths_out_of_the_tree_are_refused(tmp_path: Path, cgroup: str) -> None:
    writer = CgroupWriter(make_v1(tmp_path, POD))
    assert outcomes(writer.write(cgroup, {"cpu.shares": 2})) == {"cpu.shares": "refused"}
    with pytest.raises(CgroupPathError):
        writer.read(cgroup, "cpu.shares")


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    make_v2(root, POD)
    fill(tmp_path / "outside", V2_FILES)
    (root / "kubepods" / "link").symlink_to(tmp_path / "outside")
    (root / POD[1:] / "cpu.weight").unlink()
    (root / POD[1:] / "cpu.weight").symlink_to(tmp_path / "outside" / "cpu.weight")
    writer = CgroupWriter(root)
    results = writer.write("/kubepods/link", {"cpu.shares": 2}) + writer.write(POD, {"cpu.shares": 2})
    assert [result.outcome for result in results] == [WriteOutcome.REFUSED] * 2
    assert text(tmp_path, "outside", "cpu.weight") == "100"


def test_a_batch_opens_each_cgroup_once_and_only_so_many(tmp_path: Path) -> None:
    boxes = [f"{POD}/box{number}" for number in range(100)]
    writer = CgroupWriter(make_v2(tmp_path, POD, *boxes))
    paths = [cgroup_path(each) for each in (POD, *boxes)]
    assert writer.look(paths[0], ["cpu.shares"])
    before = open_below(tmp_path)
    with writer.keeping_open():
        assert writer.look(paths[0], ["cpu.shares"])
        assert open_below(tmp_path) == before + 1
        with writer.keeping_open():
            assert outcomes(writer.write(POD, BATCH)) == dict.fromkeys(BATCH, "written")
        assert open_below(tmp_path) == before + 1
        assert all(writer.look(path, ["cpu.shares"])["cpu.shares"].text == "100\n" for path in paths[1:])
        assert outcomes(writer.write(boxes[0], BATCH)) == dict.fromkeys(BATCH, "written")
        assert before < open_below(tmp_path) < before + 20
    assert open_below(tmp_path) == before


def test_a_batch_finds_no_cgroup_behind_a_link_and_none_that_is_gone(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v2(tmp_path, POD, "/elsewhere"))
    pod = cgroup_path(POD)
    (tmp_path / POD[1:] / "box").symlink_to(tmp_path / "elsewhere")
    with writer.keeping_open():
        assert writer.look(pod, ["cpu.shares"])
        assert writer.look((*pod, "box"), ["cpu.shares"]) == {}
        assert outcomes(writer.write(f"{POD}/box", {"cpu.shares": 2})) == {"cpu.shares": "refused"}
        shutil.rmtree(tmp_path / POD[1:])
        assert writer.look(pod, ["cpu.shares"]) == {}
        assert outcomes(writer.write(POD, {"cpu.shares": 2})) == {"cpu.shares": "missing"}
    assert text(tmp_path, "elsewhere", "cpu.weight") == "100"


def test_a_refusal_of_the_kernel_is_returned_with_its_name(tmp_path: Path) -> None:
    make_v1(tmp_path, POD)
    file = tmp_path / "cpu" / POD[1:] / "cpu.shares"
    file.unlink()
    file.mkdir()
    (result,) = CgroupWriter(tmp_path).write(POD, {"cpu.shares": 2})
    assert result.outcome is WriteOutcome.FAILED
    assert result.error.startswith("EISDIR: ")


def test_a_file_that_hangs_a_reader_does_not_hang_the_writer(tmp_path: Path) -> None:
    make_v1(tmp_path, POD)
    file = tmp_path / "cpu" / POD[1:] / "cpu.shares"
    file.unlink()
    os.mkfifo(file)
    (result,) = CgroupWriter(tmp_path).write(POD, {"cpu.shares": 2})
    assert result.outcome in {WriteOutcome.MISSING, WriteOutcome.FAILED}


def test_content_that_makes_no_sense_is_overwritten(tmp_path: Path) -> None:
    make_v1(tmp_path, POD)
    (tmp_path / "cpu" / POD[1:] / "cpu.shares").write_text("what?\n")
    writer = CgroupWriter(tmp_path)
    assert writer.read(POD, "cpu.shares") is None
    assert outcomes(writer.write(POD, {"cpu.shares": 2})) == {"cpu.shares": "written"}
    assert writer.read(POD, "cpu.shares") == 2


def test_cpu_max_that_makes_no_sense_keeps_no_quota_and_fails(tmp_path: Path) -> None:
    make_v2(tmp_path, POD)
    (tmp_path / POD[1:] / "cpu.max").write_text("what?\n")
    (result,) = CgroupWriter(tmp_path).write(POD, {"cpu.cfs_period_us": 50_000})
    assert result.outcome is WriteOutcome.FAILED


@pytest.mark.parametrize("make", [make_v1, make_v2])
def test_values_are_read_in_one_vocabulary(tmp_path: Path, make: object) -> None:
    writer = CgroupWriter(make_v1(tmp_path, POD) if make is make_v1 else make_v2(tmp_path, POD))
    assert writer.read(POD, "cpu.cfs_quota_us") == -1
    assert writer.read(POD, "cpu.cfs_period_us") == 100_000
    assert writer.read(POD, "memory.limit_in_bytes") == -1
    assert writer.read(POD, "memory.usage_in_bytes") == 8192
    assert writer.read(POD, "cpu.bvt_warp_ns") is None
    assert writer.read(POD, "net_cls.classid") is None
    assert writer.read("/kubepods/gone", "cpu.shares") is None


def test_reading_a_link_raises_what_the_kernel_says(tmp_path: Path) -> None:
    make_v1(tmp_path, POD)
    (tmp_path / "cpu" / "kubepods" / "link").symlink_to("besteffort")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        CgroupWriter(tmp_path).read("/kubepods/link", "cpu.shares")


def test_a_cpuset_moves_through_the_union_from_the_parent_down(tmp_path: Path) -> None:
    container = f"{POD}/c1"
    writer = CgroupWriter(make_v1(tmp_path, container))
    fill(tmp_path / "cpuset" / POD[1:] / "x", {})
    (tmp_path / "cpuset" / POD[1:] / "cpuset.cpus").write_text("0-3\n")
    results = writer.write_levels(
        [[CgroupValues(POD, {"cpuset.cpus": "2-5"})], [CgroupValues(container, {"cpuset.cpus": "4-5"})]]
    )
    assert [(result.cgroup, result.outcome, result.old) for result in results] == [
        (container, WriteOutcome.WRITTEN, "0-3"),
        (POD, WriteOutcome.WRITTEN, "0-3"),
    ]
    assert text(tmp_path, "cpuset", POD[1:], "cpuset.cpus") == "2-5"


def test_a_value_that_somebody_else_changed_is_written_again(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v1(tmp_path, POD))
    writer.write(POD, {"cpu.shares": 512})
    (tmp_path / "cpu" / POD[1:] / "cpu.shares").write_text("2\n")
    assert outcomes(writer.write(POD, {"cpu.shares": 512})) == {"cpu.shares": "written"}


def test_many_threads_write_at_once(tmp_path: Path) -> None:
    pods = [f"/kubepods/pod{number}" for number in range(8)]
    writer = CgroupWriter(make_v2(tmp_path, *pods))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pod: writer.write(pod, BATCH), pods * 5))
    assert all(
        result.outcome in {WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED}
        for each in results
        for result in each
    )
    assert {writer.read(pod, "cpu.cfs_quota_us") for pod in pods} == {50_000}


@pytest.fixture
def populated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CgroupWriter:
    """A pod on version 2 with processes below it: its list and those of its containers cannot become empty.

    A plain file takes everything; what the kernel refuses is seen in the Debian node of tests/node.
    """
    plain = writer_module._write

    def write(file: str, folder: int, content: str) -> None:
        if file.startswith("cpuset.") and not content:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(file, folder, content)

    monkeypatch.setattr(writer_module, "_write", write)
    root = make_v2(tmp_path, POD)
    fill(tmp_path / POD[1:], {"cpuset.cpus": "0"})
    # The parent's own list may grow later.
    fill((tmp_path / POD[1:]).parent, {"cpuset.cpus": "0-1", "cpuset.cpus.effective": "0-1"})
    fill(tmp_path, {"cpuset.cpus.effective": "0-3"})
    return CgroupWriter(root)


@pytest.mark.parametrize("raw", [{}, {"cpuset.cpus": "\n"}], ids=["cleared", "given back"])
def test_an_empty_list_that_the_kernel_does_not_take_is_the_nodes(
    populated: CgroupWriter, tmp_path: Path, raw: dict[str, str]
) -> None:
    wanted = [[CgroupValues(POD, {"cpuset.cpus": ""}, raw=raw)]]
    (first,) = populated.write_levels(wanted)
    assert (first.outcome, first.old, first.value) == (WriteOutcome.WRITTEN, "0", "0-3")
    assert text(tmp_path, POD[1:], "cpuset.cpus") == "0-3"
    (again,) = populated.write_levels(wanted)
    assert (again.outcome, again.value) == (WriteOutcome.UNCHANGED, "0-3")


def test_an_empty_list_that_the_kernel_takes_stays_empty(tmp_path: Path) -> None:
    writer = CgroupWriter(make_v2(tmp_path, POD))
    fill(tmp_path / POD[1:], {"cpuset.cpus": "0"})
    (result,) = writer.write(POD, {"cpuset.cpus": ""})
    assert (result.outcome, result.value) == (WriteOutcome.WRITTEN, "")
    assert text(tmp_path, POD[1:], "cpuset.cpus") == ""


def test_a_nodes_list_that_cannot_be_read_fails_one_value(populated: CgroupWriter, tmp_path: Path) -> None:
    tmp_path.joinpath("cpuset.cpus.effective").unlink()
    results = populated.write(POD, {"cpuset.cpus": "", "cpu.shares": 512})
    assert outcomes(results) == {"cpuset.cpus": "failed", "cpu.shares": "written"}
    assert any(each.error.startswith("ENOSPC: ") for each in results)
