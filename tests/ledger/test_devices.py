"""Values by block device in books and files: what is ours, what is another program's, what goes back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups import writer as writer_module
from runtimeproxy.cgroups.paths import ROOT_CGROUP
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from runtimeproxy.fields import devices
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import parse_claimant
from runtimeproxy.ledger.books import Wanted, with_noted
from runtimeproxy.ledger.journal import Journal, Noted
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import Level
from runtimeproxy.restore.command import restore_cgroups, states
from runtimeproxy.restore.plan import NodeState, Status, plan
from tests.cgroups.block_files import FILES_V1, FILES_V2, BlockFiles

POD, CLASS = "/kubepods/besteffort/pod1", "/kubepods/besteffort"
READ, WRITE, IOPS = (f"blkio.throttle.{each}_device" for each in ("read_bps", "write_bps", "write_iops"))
WEIGHT, QOS, MODEL = "blkio.cost.weight", "blkio.cost.qos", "blkio.cost.model"
BOOT = "boot-1"


class Site:
    """A ledger on plain files with the kernel's rules.

    Attributes:
        kernel: The disks, and all that was written.
    """

    def __init__(self, folder: Path, version: Literal[1, 2], kernel: BlockFiles) -> None:
        self.version, self.kernel, self._folder = version, kernel, folder
        self.root = folder / "cgroup"
        self._mount = self.root / "blkio" if version == 1 else self.root
        for cgroup in ("", CLASS, POD):
            of_root = {QOS: "", MODEL: ""} if version == 1 else {"io.cost.qos": "", "io.cost.model": ""}
            files = (FILES_V1 if version == 1 else FILES_V2) if cgroup else of_root
            path = self._mount / cgroup.strip("/")
            path.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (path / name).write_text(f"{text}\n" if text else "")
        if version == 2:
            (self.root / "cgroup.controllers").write_text("cpu io memory\n")
        self.journal = Journal(folder / "state", BOOT)
        self.ledger = Ledger(CgroupWriter(self.root), self.journal, BOOT)

    def path(self, cgroup: str, name: str) -> Path:
        file = self.ledger.books.formats.file_of(name)
        assert file is not None
        return self._mount / cgroup.strip("/") / file

    def text(self, cgroup: str, name: str) -> str:
        return self.path(cgroup, name).read_text()

    def others(self, cgroup: str, name: str, line: str) -> None:
        """What another program writes: a line as on version 1."""
        file = self.path(cgroup, name)
        value = CgroupWriter(self.root).encode(name, line)
        descriptor = os.open(file.parent, os.O_RDONLY)
        try:
            assert not self.kernel(file.name, descriptor, [value or ""])
        finally:
            os.close(descriptor)
        self.kernel.lines.pop()

    def texts(self) -> dict[str, str]:
        return {str(each): each.read_text() for each in sorted(self.root.rglob("*")) if each.is_file()}

    def want(
        self,
        cgroup: str = POD,
        level: Level = Level.POD,
        values: Mapping[str, str] = MappingProxyType({}),
        **more: str,
    ) -> dict[str, WriteOutcome]:
        """Claims values in place of all others of the cgroup; `read`, `write`, `iops`, `weight`, ..."""
        names = {"read": READ, "write": WRITE, "iops": IOPS, "weight": WEIGHT, "qos": QOS, "model": MODEL}
        claims = {
            names[key]: (Claim(parse_claimant("block-io"), Role.SET, value),)
            for key, value in {**values, **more}.items()
        }
        done = self.ledger.change([Wanted(CgroupTarget(level, cgroup), claims)])
        return {each.name: each.outcome for each in done}

    def overwrites(self) -> dict[str, int]:
        return self.ledger.counts.overwrites.read()

    def written(self) -> list[str]:
        """The lines since the last time."""
        lines = [line for _, line in self.kernel.lines]
        self.kernel.lines.clear()
        return lines


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> Literal[1, 2]:
    found: Literal[1, 2] = request.param
    return found


@pytest.fixture
def site(tmp_path: Path, version: Literal[1, 2], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    kernel = BlockFiles("7:0", "8:0", "8:16", "253:16", with_cost=["8:0"])
    monkeypatch.setattr(writer_module, "_write_lines", kernel)
    made = Site(tmp_path, version, kernel)
    yield made
    made.journal.close()


def test_each_device_is_written_in_a_line_of_its_own_and_given_back(site: Site) -> None:
    before = site.texts()
    assert set(site.want(write="8:0 1048576,253:16 1024", iops="8:0 100").values()) == {WriteOutcome.WRITTEN}
    if site.version == 1:
        assert site.written() == ["8:0 1048576", "253:16 1024", "8:0 100"]
        assert site.text(POD, WRITE) == "8:0 1048576\n253:16 1024\n"
    else:
        assert site.written() == ["8:0 wbps=1048576", "253:16 wbps=1024", "8:0 wiops=100"]
        assert "8:0 rbps=max wbps=1048576 riops=max wiops=100\n" in site.text(POD, WRITE)
    site.want()
    assert site.texts() == before
    assert len(site.ledger.books) == 0


def test_lines_of_other_programs_are_no_overwrite_and_stay(site: Site) -> None:
    site.others(POD, WRITE, "8:16 77")
    before = site.texts()
    site.want(write="8:0 5")
    site.others(POD, WRITE, "253:16 66")
    with_theirs = site.text(POD, WRITE)
    site.ledger.repair(POD, is_explained=False)
    assert site.text(POD, WRITE) == with_theirs
    assert not site.overwrites()
    site.want()
    assert "8:16" in site.text(POD, WRITE)
    assert "253:16" in site.text(POD, WRITE)
    site.others(POD, WRITE, "253:16 0")
    assert site.texts() == before


def test_a_device_that_is_not_wanted_any_more_gets_its_own_line_back(site: Site) -> None:
    site.others(POD, WRITE, "8:16 77")
    site.want(write="8:0 5,8:16 6,253:16 7")
    site.written()
    site.want(write="8:0 5")
    reset = "0" if site.version == 1 else "max"
    key = "" if site.version == 1 else "wbps="
    assert site.written() == [f"8:16 {key}77", f"253:16 {key}{reset}"]
    # What is not ours any more is another program's from now on.
    site.others(POD, WRITE, "253:16 9")
    site.ledger.repair(POD, is_explained=False)
    site.want(write="8:0 6")
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 6,8:16 77,253:16 9"


def test_the_original_of_a_device_is_that_of_when_it_became_ours(site: Site) -> None:
    site.want(write="8:0 5")
    site.others(POD, WRITE, "8:16 77")
    site.want(write="8:0 5,8:16 6")
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 5,8:16 6"
    site.want()
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:16 77"


def test_another_number_of_a_device_that_is_ours_changes_no_original(site: Site) -> None:
    """On version 2 both stand in one line."""
    before = site.texts()
    site.want(write="8:0 5")
    site.want(write="8:0 5", iops="8:0 9")
    site.want(iops="8:0 9")
    assert CgroupWriter(site.root).read(POD, WRITE) == ""
    site.want(iops="8:0 9", read="8:0 7")
    site.want()
    assert site.texts() == before


def test_a_device_that_another_program_has_changed_is_repaired_and_then_left(site: Site) -> None:
    site.want(write="8:0 5,8:16 6")
    site.others(POD, WRITE, "8:0 99")
    site.ledger.repair(POD, is_explained=False)
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 5,8:16 6"
    assert site.overwrites() == {WRITE: 1}
    site.others(POD, WRITE, "8:0 98")
    site.want()
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 98"
    # A disk that was unplugged, and is there again, has lost its line: that is no overwrite.
    site.want(write="8:16 6")
    site.others(POD, WRITE, "8:16 0")
    site.ledger.repair(POD, is_explained=False)
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 98,8:16 6"
    assert site.overwrites() == {WRITE: 1}


def test_a_device_that_the_kernel_refuses_stops_no_other(site: Site) -> None:
    before = site.texts()
    assert site.want(write="8:0 5,9:9 6,8:16 7") == {WRITE: WriteOutcome.FAILED}
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 5,8:16 7"
    (missing,) = site.ledger.books.unapplied.values(POD)
    assert missing.cause is UnappliedCause.REFUSED
    assert missing.reason == "9:9: ENODEV: No such device"
    site.kernel.disks.add("9:9")
    site.ledger.repair(POD, is_explained=False)
    assert CgroupWriter(site.root).read(POD, WRITE) == "8:0 5,8:16 7,9:9 6"
    assert not site.ledger.books.unapplied.values(POD)
    assert not site.overwrites()
    site.kernel.disks.remove("9:9")
    site.path(POD, WRITE).write_text(
        "".join(f"{each}\n" for each in site.text(POD, WRITE).splitlines() if not each.startswith("9:9"))
    )
    site.want()
    assert site.texts() == before


def test_a_weight_needs_the_cost_model_of_its_disk(site: Site) -> None:
    before = site.texts()
    assert site.want(weight="8:0 40,8:16 50") == {WEIGHT: WriteOutcome.FAILED}
    assert site.text(POD, WEIGHT) == "default 100\n8:0 40\n"
    (missing,) = site.ledger.books.unapplied.values(POD)
    assert missing.reason.endswith("this disk has no cost model, which blkioQOS of cgroupRoot gives it")
    site.kernel.with_cost.add("8:16")
    site.ledger.repair(POD, is_explained=False)
    assert site.text(POD, WEIGHT) == "default 100\n8:0 40\n8:16 50\n"
    site.want()
    assert site.texts() == before


COST = "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000"


def test_cost_models_are_in_the_root_cgroup(site: Site) -> None:
    done = site.want(ROOT_CGROUP, Level.NODE, qos=f"8:0 {COST},8:16 {COST}", model="8:0 ctrl=auto")
    assert done == {QOS: WriteOutcome.WRITTEN, MODEL: WriteOutcome.UNCHANGED}
    assert site.written() == [f"8:0 {COST}", f"8:16 {COST}"]
    assert site.text("", QOS).startswith("8:0 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000 ")
    site.ledger.verify([Level.NODE])
    assert site.written() == []
    user = "ctrl=user model=linear rbps=1000 wbps=2000"
    site.want(ROOT_CGROUP, Level.NODE, qos=f"8:0 {COST}", model=f"8:0 {user}")
    assert site.written() == ["8:16 enable=0", f"8:0 {user}"]
    site.want(ROOT_CGROUP, Level.NODE)
    assert sorted(site.written()) == ["8:0 ctrl=auto", "8:0 enable=0"]
    # The kernel keeps a line for each disk that once had a model.
    assert site.text("", QOS).count("enable=0") == 2


def test_the_line_that_a_disk_had_goes_back(site: Site) -> None:
    site.others("", QOS, "8:0 enable=1 ctrl=user rpct=90 rlat=5000 wpct=90 wlat=5000")
    site.others("", MODEL, "8:0 ctrl=user rbps=77")
    site.others("", QOS, "8:16 enable=1")
    before = site.texts()
    site.want(
        ROOT_CGROUP, Level.NODE, qos=f"8:0 {COST},8:16 {COST}", model="8:0 ctrl=user model=linear rbps=1"
    )
    assert site.texts() != before
    site.written()
    site.want(ROOT_CGROUP, Level.NODE)
    # A number beside `ctrl=auto` would switch the kernel's own choice off.
    assert "8:16 enable=1 ctrl=auto" in site.written()
    after = site.texts()
    assert after == {path: text if "8:16" not in text else after[path] for path, text in before.items()}


@pytest.mark.parametrize(
    ("cgroup", "level", "values"),
    [
        pytest.param(ROOT_CGROUP, Level.NODE, {"write": "8:0 5"}, id="a limit of the root"),
        pytest.param(POD, Level.POD, {"qos": f"8:0 {COST}"}, id="a cost model of a pod"),
    ],
)
def test_only_files_of_the_root_are_written_there(
    site: Site, cgroup: str, level: Level, values: Mapping[str, str]
) -> None:
    (site.root / "blkio").mkdir(exist_ok=True)
    for folder in (site.root, site.root / "blkio"):
        for name in (*FILES_V1, *FILES_V2):
            (folder / name).write_text("")
    before = site.texts()
    assert set(site.want(cgroup, level, values).values()) == {WriteOutcome.REFUSED}
    assert site.texts() == before
    assert site.written() == []


def test_restore_gives_all_devices_their_lines_back(site: Site) -> None:
    site.others(POD, WRITE, "8:16 77")
    site.others("", QOS, "8:0 enable=0 ctrl=user rpct=90")
    before = site.texts()
    site.want(write="8:0 5,8:16 6", iops="8:0 100", weight="8:0 40")
    site.want(CLASS, Level.QOS_CLASS, write="8:0 9")
    site.kernel.disks.remove("8:0")
    site.kernel.disks.add("8:0")
    site.want(ROOT_CGROUP, Level.NODE, qos=f"8:0 {COST}")
    writer = CgroupWriter(site.root)
    found = plan(Saved(), NodeState({}, states(site.ledger, writer)), writer)
    planned = {(line.target, line.field): line.new for line in found.lines}
    assert planned[POD, WRITE] == "8:0 0,8:16 77"
    assert planned[POD, WEIGHT] == "8:0 0"
    done = restore_cgroups(writer, found.cgroups)
    assert {line.status for line in done} == {Status.RESTORED}
    assert site.texts() == before


@pytest.mark.parametrize("written", range(3))
def test_a_process_that_is_killed_between_two_lines_knows_its_own(site: Site, written: int) -> None:
    """It is killed before the first, between the two, after the last."""
    before = site.texts()
    site.want(write="8:0 5,8:16 6")
    (noted,) = _lines(site)
    book = site.ledger.books.record(POD)
    assert book is not None
    for device in ("8:0", "8:16")[:written]:
        site.others(POD, WRITE, f"{device} {7 if device == '8:0' else 0}")
    present = site.ledger.look(POD, [WRITE])
    after = noted._replace(values={WRITE: "8:0 7,8:16 0"}, before={WRITE: "8:0 5,8:16 6"})
    found = with_noted(book, after, present, site.ledger.books.formats, BOOT)
    site.ledger.books.revise(("kubepods", "besteffort", "pod1"), lambda _: found)
    site.want()
    assert site.texts() == before


def _lines(site: Site) -> list[Noted]:
    other = Journal(site.root.parent / "state", BOOT)
    try:
        return list(other.read())
    finally:
        other.close()


def test_what_is_not_configured_writes_nothing(site: Site) -> None:
    before = site.texts()
    site.want(write="", iops="", weight="")
    assert site.written() == []
    site.want(write="8:0 5", iops="")
    site.want(write="")
    assert site.texts() == before


DISKS = ("7:0", "8:0", "8:16")
_ANSWERS = st.dictionaries(
    st.sampled_from(("read", "write", "iops")),
    st.dictionaries(st.sampled_from(DISKS), st.integers(1, 9), max_size=3),
    max_size=3,
)
_OTHERS = st.tuples(st.sampled_from(("read", "write", "iops")), st.sampled_from(DISKS), st.integers(0, 9))


@pytest.mark.parametrize("version", [1, 2])
@given(steps=st.lists(st.one_of(_ANSWERS, _OTHERS), max_size=12))
@settings(max_examples=40, deadline=None)
def test_whatever_comes_all_devices_have_their_lines_in_the_end(
    version: Literal[1, 2],
    steps: list[dict[str, dict[str, int]] | tuple[str, str, int]],
) -> None:
    """Answers and other programs' writes to devices that are not ours, in any order."""
    names = {"read": READ, "write": WRITE, "iops": IOPS}
    theirs: dict[str, dict[str, int]] = {each: {} for each in names}
    ours: set[tuple[str, str]] = set()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="lines-") as folder:
        kernel = BlockFiles(*DISKS)
        patch.setattr(writer_module, "_write_lines", kernel)
        made = Site(Path(folder), version, kernel)
        for step in steps:
            if isinstance(step, dict):
                texts = {key: ",".join(f"{d} {n}" for d, n in each.items()) for key, each in step.items()}
                made.want(values=texts)
                ours = {(key, disk) for key, each in step.items() for disk in each}
                continue
            key, disk, number = step
            if disk not in {its for _, its in ours}:
                made.others(POD, names[key], f"{disk} {number}")
                theirs[key][disk] = number
        made.want()
        found = {key: CgroupWriter(made.root).read(POD, name) for key, name in names.items()}
        left = {key: {d: str(n) for d, n in each.items() if n} for key, each in theirs.items()}
        assert found == {key: devices.text_of(each) for key, each in left.items()}
        assert len(made.ledger.books) == 0
        made.journal.close()
