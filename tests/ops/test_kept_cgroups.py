"""Pod-level cgroup values that are written again, on plain files in place of the kernel's."""

import logging
from pathlib import Path

import pytest

from runtimeproxy.cgroups import CgroupWriter, WriteResult
from runtimeproxy.ops.kept_cgroups import MOST_UNCLAIMED, KeptCgroups, Values
from runtimeproxy.testing import CgroupFiles

ONE, TWO = "/kubepods/besteffort/podone", "/kubepods/besteffort/podtwo"
UNTOUCHED = "100"


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path, version=2)
    made.make(ONE)
    made.make(TWO)
    return made


@pytest.fixture
def kept(files: CgroupFiles) -> KeptCgroups:
    return KeptCgroups(CgroupWriter(files.root))


def reset(files: CgroupFiles, cgroup: str) -> None:
    """What systemd does."""
    (files.folder(cgroup) / "cpu.weight").write_text(f"{UNTOUCHED}\n")


def weight(files: CgroupFiles, cgroup: str) -> str:
    return files.read(cgroup, "cpu.weight").strip()


def test_values_of_pods_that_run_are_written_again(
    kept: KeptCgroups, files: CgroupFiles, caplog: pytest.LogCaptureFixture
) -> None:
    for cgroup in (ONE, TWO):
        kept.write(cgroup, {"cpu.shares": 512})
        reset(files, cgroup)
    with caplog.at_level(logging.WARNING):
        kept.keep([TWO])
    assert (weight(files, ONE), weight(files, TWO)) == (UNTOUCHED, "20")
    assert [record.message for record in caplog.records] == [
        "cgroup values had been changed: cpu.shares 2597 -> 512"
    ]


def test_values_that_are_still_there_make_no_line(
    kept: KeptCgroups, caplog: pytest.LogCaptureFixture
) -> None:
    kept.write(ONE, {"cpu.shares": 512})
    kept.keep([ONE])
    assert caplog.records == []


def test_the_last_value_counts_and_others_stay(kept: KeptCgroups, files: CgroupFiles) -> None:
    kept.write(ONE, {"cpu.shares": 512, "memory.limit_in_bytes": 1 << 20})
    kept.write(ONE, {"cpu.shares": 1024})
    reset(files, ONE)
    kept.keep([ONE])
    assert weight(files, ONE) == "39"
    assert files.read(ONE, "memory.max").strip() == str(1 << 20)


def test_what_could_not_be_written_is_not_kept(kept: KeptCgroups, files: CgroupFiles) -> None:
    kept.write("/kubepods/podlater", {"cpu.shares": 512})
    kept.write("../escape", {"cpu.shares": 512})
    kept.write(ONE, {"no.such.parameter": 1, "cpu.shares": -5})
    assert len(kept) == 0


def test_another_spelling_is_the_same_cgroup(kept: KeptCgroups, files: CgroupFiles) -> None:
    kept.write(ONE.removeprefix("/"), {"cpu.shares": 512})
    reset(files, ONE)
    kept.keep([ONE, "", ".."])
    assert weight(files, ONE) == "20"


def test_after_a_change_of_policies_nothing_is_kept(kept: KeptCgroups, files: CgroupFiles) -> None:
    kept.write(ONE, {"cpu.shares": 512})
    kept.forget_all()
    reset(files, ONE)
    kept.keep([ONE])
    assert weight(files, ONE) == UNTOUCHED


def test_cgroups_of_pods_that_are_gone_are_forgotten(kept: KeptCgroups, files: CgroupFiles) -> None:
    kept.write(ONE, {"cpu.shares": 512})
    for number in range(MOST_UNCLAIMED + 10):
        files.make(f"/kubepods/pod{number}")
        kept.write(f"/kubepods/pod{number}", {"cpu.shares": 512})
        kept.tidy([ONE])
    assert len(kept) == MOST_UNCLAIMED + 1
    reset(files, ONE)
    kept.keep([ONE])
    assert weight(files, ONE) == "20"


def test_a_value_that_changes_while_it_is_written_again_counts(files: CgroupFiles) -> None:
    keeping: list[KeptCgroups] = []

    class Racing(CgroupWriter):
        """A call of the kubelet comes in the middle of the first repetition."""

        writes = 0

        def write(self, cgroup: str, values: Values, *, max_age_s: float = 0.0) -> tuple[WriteResult, ...]:
            self.writes += 1
            results = super().write(cgroup, values, max_age_s=max_age_s)
            if self.writes == 2:
                keeping[0].write(ONE, {"cpu.shares": 1024})
                super().write(cgroup, values)
            return results

    keeping.append(KeptCgroups(Racing(files.root)))
    keeping[0].write(ONE, {"cpu.shares": 512})
    reset(files, ONE)
    keeping[0].keep([ONE])
    assert weight(files, ONE) == "39"
