"""Pod-level cgroup values that are written again, on plain files in place of the kernel's."""

import logging
import os
import threading
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.ledger import managed as ledger
from runtimeproxy.ledger.managed import (
    UNCLAIMED_S,
    ManagedCgroups,
    Values,
    after_write,
    as_read,
)
from runtimeproxy.pods.records import CgroupRecord, ManagedValue, PodRecord
from runtimeproxy.testing import CgroupFiles

ONE, TWO = "/kubepods/besteffort/podone", "/kubepods/besteffort/podtwo"
SLICE, SLICE_PATH = "kubepods-podone.slice", "/kubepods.slice/kubepods-podone.slice"
UNTOUCHED, PAGE_BYTES = "100", os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path, version=2)
    made.make(ONE)
    made.make(TWO)
    return made


@pytest.fixture
def managed(files: CgroupFiles) -> ManagedCgroups:
    return ManagedCgroups(CgroupWriter(files.root))


def pods(*cgroups: str) -> list[PodRecord]:
    """Pods that live in these cgroups."""
    return [
        PodRecord(id="s1", name="web", namespace="default", uid="u1", cgroup_parent=cgroup)
        for cgroup in cgroups
    ]


def reset(files: CgroupFiles, cgroup: str) -> None:
    """What systemd does."""
    (files.folder(cgroup) / "cpu.weight").write_text(f"{UNTOUCHED}\n")


def weight(files: CgroupFiles, cgroup: str) -> str:
    return files.read(cgroup, "cpu.weight").strip()


def test_values_of_pods_that_run_are_written_again(
    managed: ManagedCgroups, files: CgroupFiles, caplog: pytest.LogCaptureFixture
) -> None:
    for cgroup in (ONE, TWO):
        managed.write(cgroup, {"cpu.shares": 512})
        reset(files, cgroup)
    with caplog.at_level(logging.WARNING):
        managed.reapply_all(pods(TWO))
    assert (weight(files, ONE), weight(files, TWO)) == (UNTOUCHED, "20")
    assert [record.message for record in caplog.records] == [
        "cgroup values of pod default/web, uid u1 had been changed, and are set again: cpu.shares 2597 -> 512"
    ]


def test_values_of_one_cgroup_are_renewed(
    managed: ManagedCgroups, files: CgroupFiles, caplog: pytest.LogCaptureFixture
) -> None:
    assert not managed.is_managed(ONE)
    managed.write(ONE, {"cpu.shares": 512})
    assert managed.is_managed(ONE)
    assert not managed.is_managed(TWO)
    reset(files, ONE)
    with caplog.at_level(logging.INFO):
        managed.reapply(ONE)
        managed.reapply(TWO)
    assert (weight(files, ONE), weight(files, TWO)) == ("20", UNTOUCHED)
    assert caplog.records == []
    managed.release_all()
    assert not managed.is_managed(ONE)


def test_values_that_are_still_there_make_no_line(
    managed: ManagedCgroups, caplog: pytest.LogCaptureFixture
) -> None:
    managed.write(ONE, {"cpu.shares": 512})
    managed.reapply_all(pods(ONE))
    assert caplog.records == []


def test_the_last_value_counts_and_others_stay(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.write(ONE, {"cpu.shares": 512, "memory.limit_in_bytes": 1 << 20})
    managed.write(ONE, {"cpu.shares": 1024})
    reset(files, ONE)
    managed.reapply_all(pods(ONE))
    assert weight(files, ONE) == "39"
    assert files.read(ONE, "memory.max").strip() == str(1 << 20)


def test_what_could_not_be_written_is_not_kept(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.write("/kubepods/podlater", {"cpu.shares": 512})
    managed.write("../escape", {"cpu.shares": 512})
    managed.write(ONE, {"no.such.parameter": 1, "cpu.shares": -5})
    assert len(managed) == 0


def test_another_spelling_is_the_same_cgroup(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.write(ONE.removeprefix("/"), {"cpu.shares": 512})
    reset(files, ONE)
    managed.reapply_all(pods(ONE, "", ".."))
    assert weight(files, ONE) == "20"


def test_after_a_change_of_policies_nothing_is_kept(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.write(ONE, {"cpu.shares": 512})
    managed.release_all()
    reset(files, ONE)
    managed.reapply_all(pods(ONE))
    assert weight(files, ONE) == UNTOUCHED


def test_cgroups_of_pods_that_are_gone_are_forgotten(
    managed: ManagedCgroups, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed.write(ONE, {"cpu.shares": 512})
    monkeypatch.setattr(ledger, "MOST_UNCLAIMED", 20)
    for number in range(30):
        files.make(f"/kubepods/pod{number}")
        managed.write(f"/kubepods/pod{number}", {"cpu.shares": 512})
        managed.prune([ONE])
    assert len(managed) == 21
    reset(files, ONE)
    managed.reapply_all(pods(ONE))
    assert weight(files, ONE) == "20"


def test_a_cgroup_that_no_pod_claims_is_forgotten_after_a_time(files: CgroupFiles) -> None:
    now_s = [0.0]
    managed = ManagedCgroups(CgroupWriter(files.root), clock=lambda: now_s[0])
    told: list[str] = []
    managed.on_change = told.append
    for cgroup in (ONE, f"{ONE}/box1", f"{ONE}/cri-containerd-box2.scope", TWO):
        files.make(cgroup)
        managed.write(cgroup, {"cpu.shares": 512})
    now_s[0] = UNCLAIMED_S
    managed.reapply_all(pods(ONE), {"box2"})
    assert len(managed) == 4
    told.clear()
    now_s[0] += 1
    managed.reapply_all(pods(ONE), {"box2"})
    assert managed.identities == (ONE, f"{ONE}/cri-containerd-box2.scope")
    assert told == [f"{ONE}/box1", TWO]


def test_what_a_file_held_is_remembered(managed: ManagedCgroups, files: CgroupFiles) -> None:
    told: list[str] = []
    managed.on_change = told.append
    managed.write(ONE, {"cpu.shares": 512, "memory.limit_in_bytes": 5000})
    managed.write(ONE, {"cpu.shares": 1024, "memory.limit_in_bytes": 9000})
    assert managed.record(ONE) == CgroupRecord(
        ONE, {"cpu.shares": ManagedValue(1024, 2597), "memory.limit_in_bytes": ManagedValue(9000, -1)}
    )
    managed.write(ONE, {"cpu.shares": 1024})
    assert told == [ONE, ONE]
    assert managed.record(TWO) is None


def test_a_value_that_somebody_else_puts_there_is_the_original(
    managed: ManagedCgroups, files: CgroupFiles
) -> None:
    managed.write(ONE, {"memory.limit_in_bytes": 4096})
    (files.folder(ONE) / "memory.max").write_text("8192\n")
    managed.reapply_all(pods(ONE))
    found = managed.record(ONE)
    assert found is not None
    assert found.values == {"memory.limit_in_bytes": ManagedValue(4096, 8192)}
    (files.folder(ONE) / "memory.max").write_text("16384\n")
    managed.write(ONE, {"memory.limit_in_bytes": 4096})
    found = managed.record(ONE)
    assert found is not None
    assert found.values == {"memory.limit_in_bytes": ManagedValue(4096, 16384)}


@pytest.mark.parametrize(
    ("before", "old", "original"),
    [
        pytest.param(None, 1024, 1024, id="first-write"),
        pytest.param(None, None, None, id="first-write-over-nonsense"),
        pytest.param(ManagedValue(512, 1024), 512, 1024, id="own-value"),
        pytest.param(ManagedValue(512, 1024), 500, 1024, id="own-value-read-from-a-weight"),
        pytest.param(ManagedValue(512, 1024), None, 1024, id="nonsense"),
        pytest.param(ManagedValue(512, 1024), 2048, 2048, id="somebody-elses"),
        pytest.param(ManagedValue(512, None), 2048, 2048, id="somebody-elses-after-nonsense"),
    ],
)
def test_after_write(before: ManagedValue | None, old: int | None, original: int | None) -> None:
    result = WriteResult(ONE, "cpu.shares", 256, WriteOutcome.WRITTEN, old)
    assert after_write(before, result) == ManagedValue(256, original)


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        pytest.param("memory.limit_in_bytes", PAGE_BYTES + 904, PAGE_BYTES, id="whole-pages"),
        pytest.param("memory.limit_in_bytes", "max", -1, id="a-word"),
        pytest.param("cpuset.cpus", "3,1-2", "1-3", id="a-list"),
        pytest.param("cpu.cfs_quota_us", -1, -1, id="itself"),
        pytest.param("cpu.shares", -5, -5, id="no-value-at-all"),
        pytest.param("unknown", 1, 1, id="no-parameter"),
    ],
)
def test_as_read(name: str, value: int | str, form: int | str) -> None:
    assert form in as_read(name, value)


def test_values_of_a_checkpoint_are_kept(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.load(
        [
            CgroupRecord(ONE, {"cpu.shares": ManagedValue(512, 1024)}),
            CgroupRecord(TWO, {"cpu.shares": ManagedValue(512, 1024, reapply=False)}),
            CgroupRecord("/../x", {}),
        ]
    )
    managed.reapply_all(pods(ONE, TWO))
    assert (weight(files, ONE), weight(files, TWO)) == ("20", UNTOUCHED)


def test_what_is_written_before_the_checkpoint_is_read_counts(
    managed: ManagedCgroups, files: CgroupFiles
) -> None:
    (files.folder(ONE) / "cpu.weight").write_text("20\n")
    managed.write(ONE, {"cpu.shares": 1024})
    managed.load([CgroupRecord(ONE, {"cpu.shares": ManagedValue(512, 2), "cpu.idle": ManagedValue(1, 0)})])
    found = managed.record(ONE)
    assert found is not None
    assert found.values == {"cpu.shares": ManagedValue(1024, 2), "cpu.idle": ManagedValue(1, 0)}


def test_after_a_change_of_policies_the_originals_stay_known(
    managed: ManagedCgroups, files: CgroupFiles
) -> None:
    managed.write(ONE, {"cpu.shares": 512})
    managed.release_all()
    found = managed.record(ONE)
    assert found is not None
    assert found.values == {"cpu.shares": ManagedValue(512, 2597, reapply=False)}


def test_a_value_that_changes_while_it_is_written_again_counts(files: CgroupFiles) -> None:
    managed_cgroups: list[ManagedCgroups] = []

    class Racing(CgroupWriter):
        """A call of the kubelet comes in the middle of the first repetition."""

        writes = 0

        def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]:
            self.writes += 1
            results = super().write(cgroup, values)
            if self.writes == 2:
                managed_cgroups[0].write(ONE, {"cpu.shares": 1024})
                super().write(cgroup, values)
            return results

    managed_cgroups.append(ManagedCgroups(Racing(files.root)))
    managed_cgroups[0].write(ONE, {"cpu.shares": 512})
    reset(files, ONE)
    managed_cgroups[0].reapply_all(pods(ONE))
    assert weight(files, ONE) == "39"


def test_another_process_counts_from_when_on_it_decided(files: CgroupFiles) -> None:
    now = [1.0]
    managed = ManagedCgroups(CgroupWriter(files.root), lambda: now[0])
    for cgroup, now[0] in ((ONE, 1.0), (TWO, 3.0)):
        managed.write(cgroup, {"cpu.shares": 512})
    theirs = {"cpu.shares": ManagedValue(1024, 2597)}
    managed.load([CgroupRecord(ONE, theirs), CgroupRecord(TWO, theirs)], outdated_s=2.0)
    assert managed.record(ONE) == CgroupRecord(ONE, theirs)
    assert managed.record(TWO) == CgroupRecord(TWO, {"cpu.shares": ManagedValue(512, 2597)})


def test_two_threads_on_one_cgroup_do_not_take_each_others_value_for_the_nodes(files: CgroupFiles) -> None:
    written, go_on = threading.Event(), threading.Event()

    class Slow(CgroupWriter):
        """Stops between the second write and what is remembered of it."""

        writes = 0

        def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]:
            results = super().write(cgroup, values)
            self.writes += 1
            if self.writes == 2:
                written.set()
                go_on.wait(30)
            return results

    managed = ManagedCgroups(Slow(files.root))
    managed.write(ONE, {"cpu.shares": 512})
    calling = threading.Thread(target=managed.write, args=(ONE, {"cpu.shares": 1024}))
    calling.start()
    assert written.wait(30)
    renewing = threading.Thread(target=managed.reapply, args=(ONE,))
    renewing.start()
    renewing.join(0.2)
    go_on.set()
    calling.join(30)
    renewing.join(30)
    found = managed.record(ONE)
    assert found is not None
    assert found.values["cpu.shares"] == ManagedValue(1024, 2597)
    assert weight(files, ONE) == "39"


def test_what_a_hook_server_answered_is_written_once(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.write(ONE, {"cpu.shares": 512, "memory.limit_in_bytes": 4096}, {"cpu.shares"})
    (files.folder(ONE) / "cpu.weight").write_text("77\n")
    (files.folder(ONE) / "memory.max").write_text("8192\n")
    for _ in range(2):
        managed.reapply(ONE)
        managed.reapply_all(pods(ONE))
    assert weight(files, ONE) == "77", "the server has written it itself since"
    assert files.read(ONE, "memory.max") == "4096", "a policy's value stays"
    found = managed.record(ONE)
    assert found is not None
    assert found.values == {
        "cpu.shares": ManagedValue(512, 2597, reapply=False),
        "memory.limit_in_bytes": ManagedValue(4096, 8192),
    }


def test_it_survives_the_start_of_its_own_sandbox(managed: ManagedCgroups, files: CgroupFiles) -> None:
    """systemd resets a slice when the sandbox's scope starts in it."""
    files.make(SLICE_PATH)
    managed.write(SLICE, {"cpu.shares": 512}, {"cpu.shares"})
    assert managed.is_managed(SLICE)
    reset(files, SLICE_PATH)
    managed.reapply(SLICE)
    assert weight(files, SLICE_PATH) == "20"
    assert not managed.is_managed(SLICE)
    reset(files, SLICE_PATH)
    managed.reapply(SLICE)
    assert weight(files, SLICE_PATH) == UNTOUCHED


def test_it_survives_that_also_when_a_checkpoint_is_taken_meanwhile(
    managed: ManagedCgroups, files: CgroupFiles
) -> None:
    """That of the process whose calls were still under way."""
    files.make(SLICE_PATH)
    managed.write(SLICE, {"cpu.shares": 512}, {"cpu.shares"})
    managed.load([CgroupRecord(SLICE_PATH, {"cpu.shares": ManagedValue(256, 2597)})])
    reset(files, SLICE_PATH)
    managed.reapply(SLICE)
    assert weight(files, SLICE_PATH) == "20"


def test_who_wrote_last_decides_whether_a_value_stays(managed: ManagedCgroups, files: CgroupFiles) -> None:
    managed.write(ONE, {"cpu.shares": 512}, {"cpu.shares"})
    managed.write(ONE, {"cpu.shares": 1024})
    reset(files, ONE)
    managed.reapply_all(pods(ONE))
    assert weight(files, ONE) == "39"
    managed.write(ONE, {"cpu.shares": 512}, {"cpu.shares"})
    managed.reapply(ONE)
    reset(files, ONE)
    managed.reapply_all(pods(ONE))
    assert weight(files, ONE) == UNTOUCHED


def test_a_value_that_cannot_be_set_again_has_its_own_line_each_time(
    files: CgroupFiles, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(CgroupWriter):
        """A kernel that takes nothing any more after the first value."""

        writes = 0

        def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]:
            self.writes += 1
            if self.writes == 1:
                return super().write(cgroup, values)
            error = "EBUSY: in use"
            return tuple(
                WriteResult(cgroup, name, value, WriteOutcome.FAILED, 5, error)
                for name, value in values.items()
            )

    managed = ManagedCgroups(Refusing(files.root))
    managed.write(ONE, {"cpu.shares": 512})
    for _ in range(2):
        managed.reapply_all(pods(ONE))
    text = (
        "a cgroup value of pod default/web, uid u1 had been changed, and cannot be set again: "
        "cpu.shares: EBUSY: in use"
    )
    assert [record.getMessage() for record in caplog.records] == [text, text]
    assert {(vars(each)["sandbox"], vars(each)["field"]) for each in caplog.records} == {("s1", "cpu.shares")}
