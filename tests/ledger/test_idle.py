"""Idle cgroups: never beside a weight of another owner, and the weight of before comes back."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest

from runtimeproxy.cgroups import writer as writer_module
from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.pods.records import Level
from runtimeproxy.restore.command import _state
from runtimeproxy.restore.plan import _cgroup_plan
from runtimeproxy.testing import CgroupFiles
from tests.lab.programs import missing, need_controllers_of_v1

POD, HOST = "/kubepods/besteffort/podone", "/host-best-effort/backup"
BOOT = "boot-1"
IDLE, SHARES = "cpu.idle", "cpu.shares"


class Kernel(NamedTuple):
    """What a kernel shows of weights."""

    version: Literal[1, 2]
    weight_file: str
    least: str
    """Of a pod without CPU requests, as the kubelet writes it."""
    of_idle: str
    default: str


KERNELS: Final = (
    pytest.param(Kernel(1, "cpu.shares", "2", "3", "1024"), id="v1"),
    pytest.param(Kernel(2, "cpu.weight", "1", "0", "100"), id="v2-6.1"),
    pytest.param(Kernel(2, "cpu.weight", "1", "1", "100"), id="v2-6.12"),
)
"""Source: Linux kernel/sched/core.c, cpu_shares_read_u64, cpu_weight_read_u64; seen on 6.18 (version 1)."""


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    found: Kernel = request.param
    return found


@pytest.fixture
def files(tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> CgroupFiles:
    """Plain files that refuse a weight while the cgroup is idle, and forget the weight, as the kernel does.

    Source: Linux kernel/sched/fair.c, sched_group_set_shares, sched_group_set_idle.
    """
    made = CgroupFiles(tmp_path / "cgroup", version=kernel.version)
    for cgroup in (POD, HOST):
        made.make(cgroup)
        made.write(cgroup, kernel.weight_file, kernel.least)
    write = writer_module._write

    def as_the_kernel(file: str, folder: int, text: str) -> None:
        is_idle = writer_module._read(IDLE, folder).strip() == "1" if "cpu." in file else False
        if file == kernel.weight_file and is_idle:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if file == IDLE and is_idle != (text == "1"):
            write(kernel.weight_file, folder, kernel.of_idle if text == "1" else kernel.default)
        write(file, folder, text)

    monkeypatch.setattr(writer_module, "_write", as_the_kernel)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "state", BOOT)
    yield made
    made.close()


@pytest.fixture
def ledger(files: CgroupFiles, journal: Journal) -> Ledger:
    return Ledger(CgroupWriter(files.root), journal, BOOT)


def following(files: CgroupFiles, folder: Path) -> Ledger:
    """Of the process after one that was killed."""
    found = Ledger(CgroupWriter(files.root), Journal(folder / "state", BOOT), BOOT)
    found.books.add_noted(found.read_journal())
    return found


def claims(**values: int) -> dict[str, tuple[Claim, ...]]:
    """By owner and parameter, such as `yields_idle=1`; later ones have a higher priority."""
    found: dict[str, tuple[Claim, ...]] = {}
    for priority, (key, value) in enumerate(values.items()):
        owner, _, name = key.rpartition("_")
        parameter = {"idle": IDLE, "shares": SHARES}[name]
        claim = Claim(Claimant(owner), Role.SET, value, priority)
        found[parameter] = (*found.get(parameter, ()), claim)
    return found


def pod(**values: int) -> list[Wanted]:
    return [Wanted(CgroupTarget(Level.POD, POD, "default/web", "u1"), claims(**values))]


def texts(files: CgroupFiles, kernel: Kernel, cgroup: str = POD) -> tuple[str, str]:
    return files.read(cgroup, IDLE), files.read(cgroup, kernel.weight_file)


def test_the_weight_comes_back_with_the_end_of_idle(
    ledger: Ledger, files: CgroupFiles, kernel: Kernel
) -> None:
    ledger.change(pod(yields_idle=1))
    assert texts(files, kernel) == ("1", kernel.of_idle)
    for _ in range(2):
        ledger.verify({Level.POD})
    assert (texts(files, kernel), ledger.books.unapplied.values()) == (("1", kernel.of_idle), ())
    assert not ledger.books.has_leftovers
    ledger.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)
    assert len(ledger.books) == 0


def test_an_owner_of_both_wants_it_idle_whatever_weight_others_want(
    ledger: Ledger, files: CgroupFiles, kernel: Kernel
) -> None:
    weight = {1: "1024", 2: "39"}[kernel.version]
    ledger.change(pod(batch_shares=1024))
    ledger.change(pod(batch_shares=1024, guard_idle=1, guard_shares=2))
    assert texts(files, kernel) == ("1", kernel.of_idle)
    for _ in range(4):
        ledger.verify({Level.POD})
    assert texts(files, kernel) == ("1", kernel.of_idle)
    assert ledger.yielded() == ()
    (lost,) = ledger.books.unapplied.values()
    assert (lost.field, lost.wanted, lost.cause) == (SHARES, "1024", UnappliedCause.CONFLICT)
    ledger.change(pod(batch_shares=1024))
    assert (texts(files, kernel), ledger.books.unapplied.values()) == (("0", weight), ())
    # Without the weight of batch resources that of before comes back.
    ledger.change(pod(batch_shares=1024, guard_idle=1, guard_shares=2))
    ledger.change(pod(guard_idle=1, guard_shares=2))
    assert texts(files, kernel) == ("1", kernel.of_idle)
    ledger.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)
    assert len(ledger.books) == 0


def test_after_a_crash_an_owner_of_both_still_has_it_idle(
    ledger: Ledger, files: CgroupFiles, kernel: Kernel, tmp_path: Path
) -> None:
    ledger.change(pod(batch_shares=1024, guard_idle=1, guard_shares=2))
    following(files, tmp_path).change(pod())
    assert texts(files, kernel) == ("0", kernel.least)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_idle_class_is_idle_again_once_its_weight_is_written(
    files: CgroupFiles, kernel: Kernel, journal: Journal
) -> None:
    """First systemd ends idle and writes the weight, then the kubelet writes it, which has to be taken."""
    best_effort, clock = "/kubepods/besteffort", Clock()
    files.write(best_effort, kernel.weight_file, kernel.least)
    files.write(best_effort, IDLE, "0")
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT, clock)
    target = CgroupTarget(Level.QOS_CLASS, best_effort, "QoS class BestEffort")
    guard = Claimant("cpu-guard", ClaimantKind.PLUGIN)
    idle = {IDLE: (Claim(guard, Role.SET, 1),)}

    def compare() -> str:
        ledger.verify({Level.QOS_CLASS})
        return files.read(best_effort, IDLE)

    ledger.change([Wanted(target, idle, owner=guard)])
    assert texts(files, kernel, best_effort) == ("1", kernel.of_idle)
    for _ in range(5):
        clock.now_s += 60.0
        files.write(best_effort, IDLE, "0")
        files.write(best_effort, kernel.weight_file, kernel.least)
        assert compare() == "0"
        clock.now_s += 0.4
        assert compare() == "0"
        clock.now_s += 0.1
        assert compare() == "1"
        assert compare() == "1"
    assert (ledger.yielded(), ledger.books.unapplied.values()) == ((), ())
    ledger.change([Wanted(target, {IDLE: ()}, owner=guard)])
    assert texts(files, kernel, best_effort) == ("0", kernel.least)
    assert len(ledger.books) == 0


def test_a_weight_of_another_owner_counts_and_it_is_said(
    ledger: Ledger, files: CgroupFiles, kernel: Kernel
) -> None:
    ledger.change(pod(yields_idle=1))
    ledger.change(pod(yields_idle=1, batch_shares=1024))
    weight = {1: "1024", 2: "39"}[kernel.version]
    assert texts(files, kernel) == ("0", weight)
    (lost,) = ledger.books.unapplied.values()
    assert (lost.field, lost.wanted, lost.cause) == (IDLE, "1", UnappliedCause.CONFLICT)
    assert lost.reason == "batch sets cpu.shares, which the kernel refuses while it is 1"
    ledger.verify({Level.POD})
    assert texts(files, kernel) == ("0", weight)
    # Its end makes the pod idle again, and the original of the weight is still that of before.
    ledger.change(pod(yields_idle=1))
    assert texts(files, kernel) == ("1", kernel.of_idle)
    assert ledger.books.unapplied.values() == ()
    ledger.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)


def test_two_owners_of_idle(ledger: Ledger, files: CgroupFiles, kernel: Kernel) -> None:
    """Such as core scheduling's `schedIdle` beside the policy `cpu-idle`."""
    ledger.change(pod(yields_idle=1, core_idle=0))
    assert texts(files, kernel) == ("0", kernel.least)
    (lost,) = ledger.books.unapplied.values()
    assert (lost.field, lost.cause, [str(each) for each in lost.owners]) == (
        IDLE,
        UnappliedCause.CONFLICT,
        ["yields"],
    )
    ledger.change(pod(yields_idle=0, core_idle=1))
    assert texts(files, kernel) == ("1", kernel.of_idle)
    ledger.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)


def test_a_host_application(ledger: Ledger, files: CgroupFiles, kernel: Kernel) -> None:
    wanted = Wanted(CgroupTarget(Level.NODE, HOST, "node"), claims(yields_idle=1))
    ledger.change([wanted])
    assert texts(files, kernel, HOST) == ("1", kernel.of_idle)
    ledger.change([wanted._replace(claims={})])
    assert texts(files, kernel, HOST) == ("0", kernel.least)


def test_somebody_elses_end_of_idle_is_repaired(ledger: Ledger, files: CgroupFiles, kernel: Kernel) -> None:
    """Systemd writes 0 and its unit's weight whenever it applies the slice."""
    ledger.change(pod(yields_idle=1))
    files.write(POD, IDLE, "0")
    files.write(POD, kernel.weight_file, kernel.least)
    ledger.verify({Level.POD})
    assert texts(files, kernel) == ("1", kernel.of_idle)
    ledger.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_next_process_knows_the_weight(
    ledger: Ledger, tmp_path: Path, files: CgroupFiles, kernel: Kernel, is_wanted: bool
) -> None:
    """The first one is killed: the journal has the weight, which no file has any more."""
    ledger.change(pod(yields_idle=1))
    second = following(files, tmp_path)
    second.change(pod(**({"yields_idle": 1} if is_wanted else {})))
    assert texts(files, kernel) == (("1", kernel.of_idle) if is_wanted else ("0", kernel.least))
    second.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)


def test_killed_between_idle_and_the_weight(
    ledger: Ledger, tmp_path: Path, files: CgroupFiles, kernel: Kernel
) -> None:
    ledger.change(pod(yields_idle=1))
    files.write(POD, IDLE, "0")
    files.write(POD, kernel.weight_file, kernel.default)
    second = following(files, tmp_path)
    second.change(pod())
    assert texts(files, kernel) == ("0", kernel.least)


def test_restore_gives_both_back(ledger: Ledger, files: CgroupFiles, kernel: Kernel) -> None:
    ledger.change(pod(yields_idle=1))
    (book,) = ledger.books
    writer = CgroupWriter(files.root)
    entries = {name: entry._replace(claims=()) for name, entry in book.entries.items()}
    plan = _cgroup_plan(_state(replace(book, entries=entries), writer), {}, frozenset({IDLE}), writer)
    assert [(each.field, each.new) for each in plan.lines] == [(IDLE, 0), (SHARES, 2)]


# --- the real kernel ---------------------------------------------------------------------------------------


@pytest.fixture
def real_pod() -> Iterator[str]:
    need_controllers_of_v1("cpu")
    name = f"koord-test-{uuid.uuid4().hex[:12]}"
    folder = DEFAULT_ROOT / "cpu" / name / "besteffort" / "pod1"
    folder.mkdir(parents=True)
    try:
        if not (folder / IDLE).exists():
            missing("this kernel has no cpu.idle: Linux has it since 5.15")
        (folder / SHARES).write_text("2")
        yield f"/{name}/besteffort/pod1"
    finally:
        for each in (*folder.glob("*/"), folder, folder.parent, folder.parent.parent):
            with contextlib.suppress(FileNotFoundError):
                each.rmdir()


def test_on_this_kernel(real_pod: str, journal: Journal) -> None:
    folder = DEFAULT_ROOT / "cpu" / real_pod[1:]
    ledger = Ledger(CgroupWriter(), journal, BOOT)
    target = CgroupTarget(Level.POD, real_pod, "default/web", "u1")

    def present() -> tuple[str, str]:
        return (folder / IDLE).read_text().strip(), (folder / SHARES).read_text().strip()

    ledger.change([Wanted(target, claims(yields_idle=1))])
    assert present() == ("1", "3")
    # What the kubelet would do to a pod that it resizes: so only pods without CPU requests are idle.
    with pytest.raises(OSError, match="Invalid argument"):
        (folder / SHARES).write_text("512")
    # What the runtime does to a container in it.
    box = folder / "box"
    box.mkdir()
    (box / SHARES).write_text("512")
    assert (box / SHARES).read_text().strip() == "512"
    ledger.change([Wanted(target, claims(yields_idle=1, batch_shares=700))])
    assert present() == ("0", "700")
    ledger.change([Wanted(target, claims(yields_idle=1))])
    assert present() == ("1", "3")
    ledger.change([Wanted(target, {})])
    assert present() == ("0", "2")
