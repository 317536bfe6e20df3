"""Books and executor on plain files in place of the kernel's: what is claimed, compared and given back."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups import writer as writer_module
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, parse_claimant
from runtimeproxy.ledger import book_store, path_locks, planner
from runtimeproxy.ledger.book_store import UNCLAIMED_S
from runtimeproxy.ledger.books import ValueChange, Wanted, change_of
from runtimeproxy.ledger.journal import Journal, Noted
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.records import Book, CgroupRecord, Entry, Level, ManagedValue, Original
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.units import cpu_shares_from_weight, cpu_weight_from_shares

Value = int | str

POD, OTHER = "/kubepods/besteffort/podone", "/kubepods/besteffort/podtwo"
BOX = f"{POD}/box"
SLICE, SLICE_PATH = "kubepods-podone.slice", "/kubepods.slice/kubepods-podone.slice"
CLASS = "/kubepods/besteffort"
BOOT = "boot-1"


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> Literal[1, 2]:
    found: Literal[1, 2] = request.param
    return found


@pytest.fixture
def files(tmp_path: Path, version: Literal[1, 2]) -> CgroupFiles:
    made = CgroupFiles(tmp_path / "cgroup", version=version)
    for cgroup in (BOX, OTHER, SLICE_PATH):
        made.make(cgroup)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "state", BOOT)
    yield made
    made.close()


@pytest.fixture
def ledger(files: CgroupFiles, journal: Journal) -> Ledger:
    return Ledger(CgroupWriter(files.root), journal, BOOT)


def texts(files: CgroupFiles) -> dict[str, str]:
    """The content of every file, byte for byte."""
    return {
        str(path.relative_to(files.root)): path.read_text()
        for path in sorted(files.root.rglob("*"))
        if path.is_file()
    }


def sets(owner: str = "batch", priority: int = 0, **values: Value) -> dict[str, tuple[Claim, ...]]:
    """Claims that set values; `cpu_shares` stands for `cpu.shares`."""
    names = {"cpu_shares": "cpu.shares", "quota": "cpu.cfs_quota_us", "period": "cpu.cfs_period_us"}
    names |= {"memory": "memory.limit_in_bytes", "cpus": "cpuset.cpus", "burst": "cpu.cfs_burst_us"}
    names |= {"idle": "cpu.idle"}
    return {
        names[key]: (Claim(parse_claimant(owner), Role.SET, value, priority),)
        for key, value in values.items()
    }


def pod(claims: Mapping[str, tuple[Claim, ...]], cgroup: str = POD, **more: object) -> Wanted:
    return Wanted(CgroupTarget(Level.POD, cgroup, "default/web", "u1"), claims, **more)  # type: ignore[arg-type]


def box(claims: Mapping[str, tuple[Claim, ...]], **more: object) -> Wanted:
    return Wanted(CgroupTarget(Level.CONTAINER, BOX, "default/web/main", "u1"), claims, **more)  # type: ignore[arg-type]


def number(files: CgroupFiles, cgroup: str, name: str) -> Value | None:
    return CgroupWriter(files.root).read(cgroup, name)


def put(files: CgroupFiles, cgroup: str, name: str, value: Value) -> None:
    """What another program does."""
    CgroupWriter(files.root).write(cgroup, {name: value})


def test_a_claim_is_written_and_given_back_byte_for_byte(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    claims = sets(cpu_shares=512, quota=50_000, memory=1 << 20, cpus="0-1", burst=1000)
    results = ledger.change([pod(claims)])
    assert {result.outcome for result in results} == {WriteOutcome.WRITTEN}
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    assert number(files, POD, "cpuset.cpus") == "0-1"
    assert ledger.books.is_managed(POD)
    ledger.change([pod({})])
    assert texts(files) == before
    assert not ledger.books.is_managed(POD)
    assert len(ledger.books) == 0


def test_a_value_that_was_there_already_stays(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpu.cfs_quota_us", 70_000)
    before = texts(files)
    (result,) = ledger.change([pod(sets(quota=70_000))])
    assert result.outcome is WriteOutcome.UNCHANGED
    put(files, POD, "cpu.cfs_quota_us", 80_000)
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 70_000
    ledger.change([pod({})])
    assert texts(files) == before


def test_a_change_names_the_value_that_was_written_before(ledger: Ledger) -> None:
    """Not what the weight of a file of version 2 comes to."""
    ledger.change([pod(sets(cpu_shares=900))])
    (result,) = ledger.change([pod(sets(cpu_shares=716))])
    assert (result.old, result.value) == (900, 716)


def test_a_value_goes_to_the_next_owner(ledger: Ledger, files: CgroupFiles) -> None:
    high, low = sets("high", 10, quota=20_000), sets("low", 1, quota=50_000)
    both = {name: (*high[name], *low[name]) for name in high}
    ledger.change([pod(both)])
    assert number(files, POD, "cpu.cfs_quota_us") == 20_000
    changed = ledger.books.holders(owners={Claimant("high")})
    ledger.books.forget_claims(changed, owners={Claimant("high")})
    assert changed == (POD,)
    ledger.repair(POD)
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    assert ledger.books.holders(owners={Claimant("no-such-policy")}) == ()


def test_amounts_count_on_the_original_of_a_pod(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    before = texts(files)
    scale = {"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    for _ in range(2):
        ledger.change([pod(scale)])
        assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    add = {"cpu.cfs_quota_us": (*scale["cpu.cfs_quota_us"], Claim(Claimant("burst"), Role.ADD, 10_000))}
    ledger.change([pod(add)])
    assert number(files, POD, "cpu.cfs_quota_us") == 60_000
    ledger.change([pod({})])
    assert texts(files) == before


def test_amounts_count_on_the_requests_of_a_container(ledger: Ledger, files: CgroupFiles) -> None:
    scale = {"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    put(files, BOX, "cpu.cfs_quota_us", 100_000)
    before = texts(files)
    requested = {"cpu.cfs_quota_us": 100_000}
    ledger.change([box(scale, requested=requested, booked=requested)])
    assert number(files, BOX, "cpu.cfs_quota_us") == 50_000
    assert ledger.books.resolved(BOX) == {"cpu.cfs_quota_us": 50_000}
    ledger.change([box({}, requested=requested, booked=requested)])
    assert texts(files) == before
    assert ledger.books.resolved(BOX) == {}


def test_an_answer_that_counts_on_other_requests_is_another_one(ledger: Ledger, files: CgroupFiles) -> None:
    """Of two updates that end together, the book may have the earlier one's requests."""
    scale = {"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    wanted = [
        box(scale, requested={"cpu.cfs_quota_us": quota}, booked={"cpu.cfs_quota_us": quota})
        for quota in (100_000, 200_000)
    ]
    put(files, BOX, "cpu.cfs_quota_us", 100_000)
    ledger.change(wanted[:1])
    assert [ledger.books.differs(each) for each in wanted] == [False, True]
    ledger.change(wanted[1:])
    assert [ledger.books.differs(each) for each in wanted] == [True, False]
    assert number(files, BOX, "cpu.cfs_quota_us") == 100_000


def test_a_container_that_was_created_with_a_value(ledger: Ledger, files: CgroupFiles) -> None:
    """The specification holds it, so it rides back on the next update."""
    requested, booked = {"cpu.shares": 2}, {"cpu.shares": 512}
    ledger.books.book(box(sets(cpu_shares=512), requested=requested, booked=booked))
    put(files, BOX, "cpu.shares", 512)
    ledger.repair(BOX)
    assert number(files, BOX, "cpu.shares") in (512, 499, 500, 511)
    ledger.change([box({}, requested=requested, booked=booked)])
    assert number(files, BOX, "cpu.shares") == 2
    assert ledger.books.resolved(BOX) == {"cpu.shares": 2}
    put(files, BOX, "cpu.shares", 512)
    ledger.repair(BOX)
    assert number(files, BOX, "cpu.shares") == 2, "the runtime has applied its specification again"
    ledger.change([box({}, requested=requested, booked=requested)])
    assert ledger.books.resolved(BOX) == {}


def test_values_of_a_container_that_nobody_asked_for_become_neutral(
    ledger: Ledger, files: CgroupFiles
) -> None:
    before = texts(files)
    ledger.change([box(sets(quota=50_000, memory=1 << 20, burst=2000))])
    ledger.change([box({})])
    assert {name: text.split()[:1] for name, text in texts(files).items()} == {
        name: text.split()[:1] for name, text in before.items()
    }


def test_what_another_program_has_written_is_never_an_original(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    ledger.change([pod(sets(memory=4096))])
    put(files, POD, "memory.limit_in_bytes", 8192)
    ledger.verify({Level.POD})
    assert number(files, POD, "memory.limit_in_bytes") == 4096
    put(files, POD, "memory.limit_in_bytes", 16384)
    ledger.change([pod(sets(memory=12288))])
    ledger.change([pod({})])
    assert texts(files) == before


def test_what_another_program_has_written_stays_when_a_value_is_given_back(
    ledger: Ledger, files: CgroupFiles
) -> None:
    ledger.change([pod(sets(memory=4096))])
    put(files, POD, "memory.limit_in_bytes", 8192)
    (result,) = ledger.change([pod({})])
    assert (result.outcome, result.error) == (
        WriteOutcome.MISSING,
        "another program has changed it since",
    )
    assert number(files, POD, "memory.limit_in_bytes") == 8192
    assert len(ledger.books) == 0


def test_a_resize_by_the_kubelet_is_the_new_original(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([pod(sets(memory=4096, cpu_shares=512))])
    put(files, POD, "memory.limit_in_bytes", 8192)
    after = texts(files)
    ledger.on_resized(POD)
    assert number(files, POD, "memory.limit_in_bytes") == 4096
    ledger.change([pod({})])
    put(files, POD, "cpu.shares", 512)
    assert texts(files) == after
    ledger.on_resized(POD)


@pytest.mark.parametrize("name", ["memory.min", "memory.low", "memory.high"])
@pytest.mark.parametrize("is_written_later", [True, False])
def test_the_kubelets_memory_qos_of_a_pod_is_the_new_original(
    ledger: Ledger, files: CgroupFiles, name: str, *, is_written_later: bool
) -> None:
    """Up to Kubernetes 1.36 the kubelet writes before the call for a resize, from 1.37 on after it."""
    if files.version == 1:
        pytest.skip("only kernels of Anolis have these files in version 1, and no kubelet writes them")
    put(files, POD, name, 4096)
    ledger.change([pod({name: (Claim(Claimant("memory-qos"), Role.SET, 12288),)})])
    if not is_written_later:
        put(files, POD, name, 8192)
    ledger.on_resized(POD, {name: 8192} if is_written_later else {})
    if is_written_later:
        put(files, POD, name, 8192)
    ledger.verify({Level.POD})
    assert number(files, POD, name) == 12288
    ledger.change([pod({})])
    assert number(files, POD, name) == 8192


@pytest.mark.parametrize("loses", [True, False])
def test_a_resize_by_the_kubelet_counts_although_our_value_is_back(
    ledger: Ledger, files: CgroupFiles, *, loses: bool
) -> None:
    """Our write may come between the kubelet's and our look: the call says what the kubelet has written."""
    put(files, POD, "cpu.cfs_quota_us", 200_000)
    scale = {"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    ledger.change([pod(scale)])
    if not loses:
        put(files, POD, "cpu.cfs_quota_us", 50_000)
    written = {"cpu.cfs_quota_us": 50_000, "cpu.cfs_period_us": 100_000, "cpu.shares": 512}
    for _ in range(2):
        ledger.on_resized(POD, written)
        assert number(files, POD, "cpu.cfs_quota_us") == 25_000
    ledger.change([pod({})])
    for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
        assert number(files, POD, name) == written[name]


def test_a_file_without_a_value_is_no_original(ledger: Ledger, files: CgroupFiles) -> None:
    """A plain file is empty for a moment while another program writes it."""
    put(files, POD, "cpu.cfs_quota_us", 200_000)
    before = texts(files)
    ledger.change([pod(sets(quota=50_000))])
    for path in files.root.rglob("podone/cpu.*"):
        if path.name in ("cpu.max", "cpu.cfs_quota_us"):
            path.write_text("")
    ledger.on_resized(POD)
    ledger.change([pod({})])
    assert texts(files) == before


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened: EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("level", [Level.POD, Level.CONTAINER])
def test_without_descriptors_nothing_is_given_up(ledger: Ledger, files: CgroupFiles, level: Level) -> None:
    before = texts(files)
    wanted, cgroup = (pod, POD) if level is Level.POD else (box, BOX)
    ledger.change([wanted(sets(quota=50_000, burst=1000))])
    with no_descriptors():
        results = ledger.change([wanted({})])
        ledger.on_resized(POD)
        ledger.before_update(POD, 500)
        ledger.measure_weights(Level.POD, {OTHER: 1024})
    assert {result.outcome for result in results} == {WriteOutcome.FAILED}
    assert all("EMFILE" in result.error for result in results)
    assert number(files, cgroup, "cpu.cfs_quota_us") == 50_000
    ledger.verify({level})
    assert texts(files) == before
    assert len(ledger.books) == 0


def test_a_burst_stays_lowered_until_the_kubelet_has_written_the_quota(
    files: CgroupFiles, journal: Journal
) -> None:
    clock = Clock()
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT, clock)
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    ledger.change([pod(sets(burst=100_000))])
    ledger.before_update(POD, 50_000)
    ledger.on_resized(POD)
    ledger.change([pod(sets(burst=90_000))])
    assert number(files, POD, "cpu.cfs_burst_us") == 50_000
    clock.now_s += planner.LOWERED_S
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_burst_us") == 90_000
    for quota in (50_000, 100_000):
        ledger.before_update(POD, quota)
        ledger.repair(POD)
        assert number(files, POD, "cpu.cfs_burst_us") == min(quota, 90_000)


@pytest.mark.parametrize("looks", [True, False])
def test_a_pod_that_the_kubelet_lowers_after_its_containers(
    ledger: Ledger, files: CgroupFiles, *, looks: bool
) -> None:
    """Kubelets before 1.33 make no call for the pod itself."""
    put(files, POD, "cpu.cfs_quota_us", 200_000)
    scale = {"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    ledger.change([pod(scale)])
    ledger.books.note_requests(POD, {"cpu.cfs_quota_us": 50_000})
    put(files, POD, "cpu.cfs_quota_us", 50_000)
    if looks:
        ledger.verify([Level.POD])
    else:
        ledger.repair(POD)
    assert number(files, POD, "cpu.cfs_quota_us") == 25_000
    # Another program's value is repaired.
    put(files, POD, "cpu.cfs_quota_us", 70_000)
    ledger.repair(POD)
    assert number(files, POD, "cpu.cfs_quota_us") == 25_000
    ledger.change([pod({})])
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    assert ledger.yielded() == ()


@pytest.mark.parametrize("looks", [True, False])
def test_a_pod_that_the_kubelet_raises_before_its_containers(
    ledger: Ledger, files: CgroupFiles, *, looks: bool
) -> None:
    """Before the containers' calls nothing tells its value from that of another program."""
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    scale = {"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)}
    ledger.change([pod(scale)])
    put(files, POD, "cpu.cfs_quota_us", 240_000)
    if looks:
        ledger.verify([Level.POD])
    else:
        ledger.repair(POD)
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    ledger.books.note_requests(POD, {"cpu.cfs_quota_us": 240_000})
    ledger.repair(POD)
    assert number(files, POD, "cpu.cfs_quota_us") == 120_000
    ledger.change([pod({})])
    assert number(files, POD, "cpu.cfs_quota_us") == 240_000


def test_a_resize_that_a_call_tells_counts_more_than_an_earlier_one(
    ledger: Ledger, files: CgroupFiles
) -> None:
    """The first one was repaired before its call, and the containers' calls of the second one follow."""
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    ledger.change([pod({"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)})])
    put(files, POD, "cpu.cfs_quota_us", 240_000)
    ledger.verify([Level.POD])
    ledger.on_resized(POD, {"cpu.cfs_quota_us": 240_000})
    ledger.books.note_requests(POD, {"cpu.cfs_quota_us": 240_000})
    put(files, POD, "cpu.cfs_quota_us", 300_000)
    ledger.on_resized(POD, {"cpu.cfs_quota_us": 300_000})
    assert number(files, POD, "cpu.cfs_quota_us") == 150_000


def test_a_kill_before_the_kubelet_lowers_the_pod(
    ledger: Ledger, files: CgroupFiles, journal: Journal
) -> None:
    put(files, POD, "cpu.cfs_quota_us", 200_000)
    saved: dict[str, Book | None] = {}
    ledger.books.on_change = lambda identity: saved.update({identity: ledger.books.record(identity)})
    ledger.change([pod({"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)})])
    ledger.books.note_requests(POD, {"cpu.cfs_quota_us": 50_000})
    again = Ledger(CgroupWriter(files.root), journal, BOOT)
    again.books.load(book for book in saved.values() if book is not None)
    put(files, POD, "cpu.cfs_quota_us", 50_000)
    again.verify([Level.POD])
    assert number(files, POD, "cpu.cfs_quota_us") == 25_000


def test_a_container_whose_values_are_given_back_while_it_starts(
    files: CgroupFiles, journal: Journal
) -> None:
    class Forgets(dict[Any, Any]):
        """Another thread drops the book after the first time that it was found."""

        def get(self, key: object, default: object = None) -> object:
            found = super().get(key, default)
            made.books._known = {}
            return found

    made = Ledger(CgroupWriter(files.root), journal, BOOT)
    made.books.book(box(sets(quota=50_000)))
    made.books._known = Forgets(made.books._known)
    made.start(box(sets(burst=1000)))
    assert number(files, BOX, "cpu.cfs_burst_us") == 1000


@pytest.mark.parametrize("is_resized", [False, True])
def test_a_burst_that_was_lowered_for_a_resize_is_no_original(
    ledger: Ledger, files: CgroupFiles, *, is_resized: bool
) -> None:
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    ledger.change([pod(sets(burst=100_000))])
    ledger.before_update(POD, 50_000)
    if is_resized:
        put(files, POD, "cpu.cfs_quota_us", 50_000)
        ledger.on_resized(POD)
    ledger.change([pod({})])
    assert number(files, POD, "cpu.cfs_burst_us") == 0
    assert number(files, POD, "cpu.cfs_quota_us") == (50_000 if is_resized else 100_000)


def test_a_journal_keeps_nothing_for_a_value_that_was_given_back(journal: Journal, tmp_path: Path) -> None:
    journal.note(Noted(POD, Level.POD, {}, {"cpu.shares": 512}, {}))
    (file,) = (tmp_path / "state").glob("journal-*")
    assert file.read_text()
    journal.settle(Book(POD, Level.POD))
    journal.note_saved("/another", None)
    assert file.read_text() == ""


def test_another_cgroup_of_the_same_name_has_its_own_original(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([pod(sets(memory=4096))])
    for folder in files.root.rglob("podone"):
        # Kept, or the new folder might get its inode.
        folder.rename(folder.with_name("old"))
    files.make(POD)
    put(files, POD, "memory.limit_in_bytes", 1 << 20)
    before = {name: text for name, text in texts(files).items() if "old" not in name}
    ledger.repair(POD)
    assert number(files, POD, "memory.limit_in_bytes") == 4096
    ledger.change([pod({})])
    assert {name: text for name, text in texts(files).items() if "old" not in name} == before


def test_after_a_reboot_nothing_of_before_counts(ledger: Ledger, files: CgroupFiles, tmp_path: Path) -> None:
    ledger.change([pod(sets(memory=4096))])
    book = ledger.books.record(POD)
    assert book is not None
    assert book.boot_id == BOOT
    put(files, POD, "memory.limit_in_bytes", 1 << 20)
    before = texts(files)
    later = Ledger(CgroupWriter(files.root), Journal(tmp_path / "later", "boot-2"), "boot-2")
    later.books.load([book])
    assert len(later.books) == 0
    assert Journal(tmp_path / "state", "boot-2").read() == []
    later.change([pod(sets(memory=4096))])
    later.change([pod({})])
    assert texts(files) == before


def test_a_reset_is_repaired(ledger: Ledger, files: CgroupFiles, caplog: pytest.LogCaptureFixture) -> None:
    ledger.change([pod(sets(cpu_shares=512))])
    put(files, POD, "cpu.shares", 1024)
    with caplog.at_level(logging.WARNING):
        ledger.verify({Level.CONTAINER})
        assert caplog.records == []
        ledger.verify({Level.POD}, [OTHER])
        assert caplog.records == []
        ledger.verify({Level.POD}, [POD])
    assert "cgroup values of pod default/web: had been changed, and are set again" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        ledger.verify({Level.POD})
    assert caplog.records == []
    put(files, POD, "cpu.shares", 1024)
    with caplog.at_level(logging.INFO):
        ledger.repair(POD)
    assert caplog.records == []


def test_what_a_hook_server_answered_for_a_pod_is_written_once(ledger: Ledger, files: CgroupFiles) -> None:
    claims = {**sets("server:koordlet", cpu_shares=512), **sets(memory=4096)}
    ledger.change([pod(claims, once=frozenset({"cpu.shares"}))])
    put(files, POD, "cpu.shares", 770)
    put(files, POD, "memory.limit_in_bytes", 8192)
    for _ in range(2):
        ledger.repair(POD)
        ledger.verify({Level.POD})
    assert number(files, POD, "cpu.shares") != 512, "the server has written it itself since"
    assert number(files, POD, "memory.limit_in_bytes") == 4096, "a policy's value stays"
    ledger.change([pod({})])
    book = ledger.books.record(POD)
    assert book is not None
    assert book.entries.keys() == {"cpu.shares"}, "it stays until the server is gone"
    ledger.books.forget_claims(ledger.books.identities, owners={Claimant("koordlet", ClaimantKind.SERVER)})
    ledger.repair(POD)
    assert len(ledger.books) == 0


def test_it_survives_the_start_of_its_own_sandbox(ledger: Ledger, files: CgroupFiles) -> None:
    """systemd resets a slice when the sandbox's scope starts in it."""
    claims = sets("server:koordlet", quota=50_000)
    ledger.change([pod(claims, SLICE, once=frozenset(claims))])
    assert ledger.books.is_managed(SLICE)
    for expected in (50_000, -1):
        put(files, SLICE_PATH, "cpu.cfs_quota_us", -1)
        ledger.repair(SLICE)
        assert number(files, SLICE_PATH, "cpu.cfs_quota_us") == expected
        assert not ledger.books.is_managed(SLICE)


def test_what_cannot_be_written_stops_nothing_else(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    claims = {**sets(cpu_shares=-5, memory=4096), "no.such.parameter": (Claim(Claimant("x"), Role.SET, 1),)}
    wanted = [
        pod({"cpu.shares": (Claim(Claimant("x"), Role.SET, 5),)}, "../escape"),
        pod(claims),
        pod(sets(memory=1), "/gone"),
    ]
    results = {(result.cgroup, result.name): result.outcome for result in ledger.change(wanted)}
    assert results == {
        ("../escape", "cpu.shares"): WriteOutcome.REFUSED,
        (POD, "cpu.shares"): WriteOutcome.INVALID,
        (POD, "no.such.parameter"): WriteOutcome.INVALID,
        (POD, "memory.limit_in_bytes"): WriteOutcome.WRITTEN,
        ("/gone", "memory.limit_in_bytes"): WriteOutcome.MISSING,
    }
    ledger.change([pod({}), pod({}, "/gone")])
    assert texts(files) == before
    assert len(ledger.books) == 0


def test_a_kernel_that_takes_a_value_only_later(files: CgroupFiles, journal: Journal) -> None:
    class Busy(CgroupWriter):
        """Refuses the next batch."""

        is_busy = False

        def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
            if not self.is_busy:
                return super().write_levels(levels)
            return tuple(
                WriteResult(each.cgroup, name, value, WriteOutcome.FAILED, error="EBUSY: no")
                for level in levels
                for each in level
                for name, value in each.values.items()
            )

    before = texts(files)
    writer = Busy(files.root)
    ledger = Ledger(writer, journal, BOOT)
    ledger.change([pod(sets(memory=8192))])
    writer.is_busy = True
    (result,) = ledger.change([pod(sets(memory=4096))])
    assert result.outcome is WriteOutcome.FAILED
    (result,) = ledger.change([pod({})])
    assert result.outcome is WriteOutcome.FAILED
    writer.is_busy = False
    ledger.verify({Level.POD})
    assert texts(files) == before
    assert len(ledger.books) == 0


def test_pods_and_containers_are_one_batch(files: CgroupFiles, journal: Journal) -> None:
    """No child above its parent, on the way up and down."""
    order: list[str] = []

    class Watched(CgroupWriter):
        def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
            order.extend(each.cgroup for level in levels for each in level)
            return super().write_levels(levels)

    ledger = Ledger(Watched(files.root), journal, BOOT)
    ledger.change([box(sets(quota=50_000)), pod(sets(quota=60_000))])
    assert order == [POD, BOX]


def test_a_memory_limit_falls_to_the_usage_and_some_more(ledger: Ledger, files: CgroupFiles) -> None:
    usage = "memory.usage_in_bytes" if files.version == 1 else "memory.current"
    page = os.sysconf("SC_PAGE_SIZE")
    (files.folder(POD, "memory") / usage).write_text(f"{page * 10}\n")
    before = texts(files)
    ledger.change([pod(sets(memory=page * 5))])
    assert number(files, POD, "memory.limit_in_bytes") == page * 11
    (files.folder(POD, "memory") / usage).write_text(f"{page * 2}\n")
    ledger.verify({Level.POD})
    assert number(files, POD, "memory.limit_in_bytes") == page * 5
    ledger.change([pod({})])
    (files.folder(POD, "memory") / usage).write_text(f"{page * 10}\n")
    assert texts(files) == before
    ledger.change([pod(sets(memory=page * 100))])
    assert number(files, POD, "memory.limit_in_bytes") == page * 100


def test_a_limit_that_follows_the_usage_down_was_changed_by_no_other_program(
    ledger: Ledger, files: CgroupFiles, caplog: pytest.LogCaptureFixture
) -> None:
    usage = files.folder(POD, "memory") / (
        "memory.usage_in_bytes" if files.version == 1 else "memory.current"
    )
    usage.write_text(f"{100 << 20}\n")
    ledger.change([pod(sets(memory=50 << 20))])
    with caplog.at_level(logging.INFO):
        for used in (90 << 20, 80 << 20, 10 << 20):
            usage.write_text(f"{used}\n")
            ledger.verify({Level.POD})
    assert number(files, POD, "memory.limit_in_bytes") == 50 << 20
    (record,) = caplog.records
    text = f"could be written only now: memory.limit_in_bytes {88 << 20} -> {50 << 20} (batch)"
    assert text in record.getMessage(), "the steps on the way are no news"
    put(files, POD, "memory.limit_in_bytes", 60 << 20)
    ledger.verify({Level.POD})
    assert "had been changed, and are set again: memory.limit_in_bytes 62914560 -> 52428800" in caplog.text


def test_a_value_that_could_be_written_only_later_was_changed_by_no_other_program(
    files: CgroupFiles, journal: Journal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Steps(files.root, monkeypatch)
    ledger = Ledger(writer, journal, BOOT)
    writer.refused = "50000"
    ledger.change([pod(sets(quota=50_000))])
    writer.refused = None
    with caplog.at_level(logging.INFO):
        ledger.verify({Level.POD})
    assert "could be written only now: cpu.cfs_quota_us -1 -> 50000 (batch)" in caplog.text
    assert "had been changed" not in caplog.text


class Steps(CgroupWriter):
    """A kernel that refuses one text, or a process that is killed when it writes it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root)
        self.refused: str | None = None
        self.fatal: str | None = None
        write = writer_module._write
        monkeypatch.setattr(writer_module, "_write", partial(self._write, write))

    def _write(self, write: Callable[[str, int, str], None], file: str, folder: int, text: str) -> None:
        if text.split()[:1] == [self.fatal]:
            raise Killed
        if text.split()[:1] == [self.refused]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if file == "cpu.max" and len(text.split()) == 1:
            # The kernel keeps the period.
            text = f"{text} {writer_module._read(file, folder).split()[1]}"
        write(file, folder, text)


TWO_STEPS = pytest.mark.parametrize(
    ("first", "second", "between"),
    [
        pytest.param({"cpus": "0-1"}, {"cpus": "2-3"}, ("cpuset.cpus", "0-3"), id="list"),
        pytest.param(
            {"quota": 50_000, "period": 100_000},
            {"quota": 20_000, "period": 50_000},
            ("cpu.cfs_quota_us", -1),
            id="quota",
        ),
    ],
)


@TWO_STEPS
def test_of_two_steps_the_second_is_made_up_for(
    files: CgroupFiles,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, Any],
    second: dict[str, Any],
    between: tuple[str, Value],
) -> None:
    """What the first has written is ours: no other program's, and given back."""
    writer = Steps(files.root, monkeypatch)
    for name, claims in sets(**second).items():
        put(files, POD, name, claims[0].value)  # type: ignore[arg-type]
    before = texts(files)
    ledger = Ledger(writer, journal, BOOT)
    ledger.change([pod(sets(**first))])
    writer.refused = str(next(iter(second.values())))
    results = ledger.change([pod({})])
    assert WriteOutcome.FAILED in {result.outcome for result in results}
    assert number(files, POD, between[0]) == between[1]
    assert ledger.books.has_leftovers
    writer.refused = None
    ledger.verify({Level.POD})
    assert texts(files) == before
    assert len(ledger.books) == 0


@TWO_STEPS
def test_a_step_that_fails_is_no_overwrite_of_another_program(
    files: CgroupFiles,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, Any],
    second: dict[str, Any],
    between: tuple[str, Value],
) -> None:
    writer = Steps(files.root, monkeypatch)
    ledger = Ledger(writer, journal, BOOT)
    ledger.change([pod(sets(**first))])
    writer.refused = str(next(iter(second.values())))
    ledger.change([pod(sets(**second))])
    for _ in range(5):
        ledger.verify({Level.POD})
    assert number(files, POD, between[0]) == between[1]
    assert ledger.yielded() == ()
    writer.refused = None
    ledger.verify({Level.POD})
    assert {name: number(files, POD, name) for name in sets(**second)} == {
        name: claims[0].value for name, claims in sets(**second).items()
    }


@TWO_STEPS
def test_a_kill_between_two_steps_of_giving_back(
    files: CgroupFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: dict[str, Any],
    second: dict[str, Any],
    between: tuple[str, Value],
) -> None:
    for name, claims in sets(**second).items():
        put(files, POD, name, claims[0].value)  # type: ignore[arg-type]
    before = texts(files)
    journal = Journal(tmp_path / "state", BOOT)
    writer = Steps(files.root, monkeypatch)
    ledger = Ledger(writer, journal, BOOT)
    ledger.change([pod(sets(**first))])
    writer.fatal = str(next(iter(second.values())))
    with pytest.raises(Killed):
        ledger.change([pod({})])
    writer.fatal = None
    assert number(files, POD, between[0]) == between[1]
    os.close(journal._descriptor)
    again = Ledger(writer, Journal(tmp_path / "state", BOOT), BOOT)
    again.books.add_noted(again.read_journal())
    again.change([pod({})])
    assert texts(files) == before


def test_the_burst_is_lowered_before_an_update_lowers_the_quota(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([box(sets(burst=60_000, quota=100_000))])
    ledger.before_update(BOX, 200_000)
    assert number(files, BOX, "cpu.cfs_burst_us") == 60_000
    ledger.before_update(BOX, -1)
    assert number(files, BOX, "cpu.cfs_burst_us") == 60_000
    ledger.before_update(BOX, 50_000)
    assert number(files, BOX, "cpu.cfs_burst_us") == 50_000


def test_parameters_of_another_agent_are_observed_only(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    ledger.books.observed = frozenset({"cpu.cfs_burst_us"})
    assert ledger.change([pod(sets(burst=1000))]) == ()
    assert texts(files) == before
    ledger.books.observed = frozenset()
    ledger.repair(POD)
    assert number(files, POD, "cpu.cfs_burst_us") == 1000


def test_what_the_kubelet_writes_to_qos_classes_is_never_ours(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    target = CgroupTarget(Level.QOS_CLASS, CLASS)
    assert ledger.change([Wanted(target, sets(cpu_shares=2))]) == ()
    ledger.change([Wanted(target, sets(quota=50_000))])
    assert number(files, CLASS, "cpu.cfs_quota_us") == 50_000
    ledger.change([Wanted(target, {})])
    assert texts(files) == before


@pytest.mark.parametrize("reapply", [True, False], ids=["in-force", "of-a-former-policy"])
def test_what_version_0_1_wrote_is_taken_over(ledger: Ledger, files: CgroupFiles, *, reapply: bool) -> None:
    """Its values never become an original."""
    before = texts(files)
    put(files, POD, "cpu.cfs_quota_us", 50_000)
    put(files, POD, "memory.limit_in_bytes", 4096)
    values = {
        "cpu.cfs_quota_us": ManagedValue(50_000, -1, reapply),
        "memory.limit_in_bytes": ManagedValue(4096, -1, reapply),
    }
    ledger.books.take_over(
        [(CgroupRecord(POD, values), {"cpu.cfs_quota_us": Claimant("batch")}), (CgroupRecord("/..", {}), {})]
    )
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    ledger.change([pod(sets(quota=20_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 20_000
    ledger.change([pod({})])
    assert len(ledger.books) == 0
    assert [number(files, POD, name) for name in values] == [-1, -1]
    if files.version == 2:
        assert {name: text.split()[:1] for name, text in texts(files).items()} == {
            name: text.split()[:1] for name, text in before.items()
        }


def test_an_original_that_version_0_1_did_not_know(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpu.cfs_quota_us", 50_000)
    ledger.books.take_over([(CgroupRecord(POD, {"cpu.cfs_quota_us": ManagedValue(50_000, None)}), {})])
    ledger.change([pod(sets(quota=40_000))])
    (result,) = ledger.change([pod({})])
    assert result.error == "its original value is not known"
    assert number(files, POD, "cpu.cfs_quota_us") == 40_000


def test_an_unknown_original_of_a_pod_is_computed_again(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpu.cfs_quota_us", 50_000)
    ledger.books.take_over([(CgroupRecord(POD, {"cpu.cfs_quota_us": ManagedValue(50_000, None)}), {})])
    requested = {"cpu.cfs_quota_us": 90_000}
    ledger.change([pod({}, requested=requested)])
    assert number(files, POD, "cpu.cfs_quota_us") == 90_000


def test_values_of_a_checkpoint_are_kept(ledger: Ledger, files: CgroupFiles) -> None:
    entry = Entry((Claim(Claimant("batch"), Role.SET, 50_000),), 50_000)
    ledger.books.load(
        [
            Book(POD, Level.POD, {"cpu.cfs_quota_us": entry}, {}, BOOT),
            Book("/../x", Level.POD, {}, {}, BOOT),
        ]
    )
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000


def test_what_is_written_before_the_checkpoint_is_read_counts(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    ledger.change([pod(sets(quota=50_000))])
    first = ledger.books.record(POD)
    assert first is not None
    (original,) = first.originals.values()
    later = Ledger(CgroupWriter(files.root), ledger._journal, BOOT)
    later.change([pod(sets(quota=60_000))])
    later.books.load([first])
    found = later.books.record(POD)
    assert found is not None
    assert found.entries["cpu.cfs_quota_us"].resolved == 60_000
    assert tuple(found.originals.values()) == (original,)
    later.change([pod({})])
    assert texts(files) == before


def test_another_process_counts_from_when_on_it_decided(files: CgroupFiles, journal: Journal) -> None:
    now = [1.0]
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT, lambda: now[0])
    for cgroup, now[0] in ((POD, 1.0), (OTHER, 3.0)):
        ledger.change([pod(sets(quota=50_000), cgroup)])
    theirs = {"cpu.cfs_quota_us": Entry((Claim(Claimant("theirs"), Role.SET, 9000),), 9000)}
    originals = {"cpu.max": Original("max 100000\n", 0)}
    ledger.books.load(
        [Book(each, Level.POD, theirs, originals, BOOT) for each in (POD, OTHER)], outdated_s=2.0
    )
    found = [ledger.books.resolved(cgroup)["cpu.cfs_quota_us"] for cgroup in (POD, OTHER)]
    assert found == [9000, 50_000]


def test_two_threads_on_one_cgroup_do_not_take_each_others_value_for_the_original(
    files: CgroupFiles, journal: Journal
) -> None:
    before = texts(files)
    written, go_on = threading.Event(), threading.Event()

    class Slow(CgroupWriter):
        """Stops after the first write, before the book knows of it."""

        def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
            results = super().write_levels(levels)
            if not written.is_set():
                written.set()
                go_on.wait(30)
            return results

    ledger = Ledger(Slow(files.root), journal, BOOT)
    calling = threading.Thread(target=ledger.change, args=([pod(sets(quota=50_000))],))
    calling.start()
    assert written.wait(30)
    renewing = threading.Thread(target=ledger.repair, args=(POD,))
    renewing.start()
    ledger.books.book(pod(sets(quota=60_000)))
    go_on.set()
    calling.join(30)
    renewing.join(30)
    assert number(files, POD, "cpu.cfs_quota_us") == 60_000
    ledger.change([pod({})])
    assert texts(files) == before


def test_a_write_that_hangs_holds_up_its_own_pod_only(
    files: CgroupFiles, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_locks, "MOST_WAIT_S", 0.01)
    hangs, go_on = threading.Event(), threading.Event()

    class Hanging(CgroupWriter):
        def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
            if any(each.cgroup == POD for level in levels for each in level):
                hangs.set()
                go_on.wait(30)
            return super().write_levels(levels)

    others = [f"/kubepods/besteffort/pod{number}" for number in range(50)]
    for other in others:
        files.make(other)
    ledger = Ledger(Hanging(files.root), journal, BOOT)
    writing = threading.Thread(target=ledger.change, args=([pod(sets(quota=50_000))],))
    writing.start()
    try:
        assert hangs.wait(30)
        results = [ledger.change([pod(sets(quota=20_000), other)]) for other in others]
        assert {each.outcome for (each,) in results} == {WriteOutcome.WRITTEN}
        (result,) = ledger.change([pod(sets(quota=60_000))])
        assert (result.outcome, result.error) == (
            WriteOutcome.FAILED,
            f"another write to {POD} has not ended",
        )
        ledger.verify({Level.POD})
    finally:
        go_on.set()
        writing.join(30)
    assert number(files, POD, "cpu.cfs_quota_us") == 60_000, "as it was claimed meanwhile"


def test_cgroups_of_pods_that_are_gone_are_forgotten(
    ledger: Ledger, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.change([pod(sets(quota=50_000))])
    monkeypatch.setattr(book_store, "MOST_UNCLAIMED", 20)
    ledger._prune_at = 20
    for count in range(45):
        files.make(f"/kubepods/pod{count}")
        ledger.change([pod(sets(quota=50_000), f"/kubepods/pod{count}")])
        ledger.prune([POD])
    assert len(ledger.books) <= 41
    assert ledger.books.record(POD) is not None


def test_a_cgroup_that_no_pod_claims_is_forgotten_after_a_time(files: CgroupFiles, journal: Journal) -> None:
    now_s = [0.0]
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT, clock=lambda: now_s[0])
    told: list[str] = []
    for cgroup in (POD, f"{POD}/box1", f"{POD}/cri-containerd-box2.scope", OTHER):
        ledger.books.book(pod(sets(quota=50_000), cgroup))
    ledger.books.book(Wanted(CgroupTarget(Level.QOS_CLASS, CLASS), sets(quota=50_000)))
    ledger.books.on_change = told.append
    now_s[0] = UNCLAIMED_S
    ledger.forget_gone([POD, "..", ""], {"box2"})
    assert len(ledger.books) == 5
    now_s[0] += 1
    ledger.forget_gone([POD], {"box2"})
    assert ledger.books.identities == (POD, f"{POD}/cri-containerd-box2.scope", CLASS)
    assert told == [f"{POD}/box1", OTHER]


# --- kills --------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


class Mortal(CgroupWriter):
    """Is killed before or after a write."""

    lives = 1_000_000

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        self._step()
        results = super().write_levels(levels)
        self._step()
        return results

    def _step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Killed


Story = Sequence[Mapping[str, tuple[Claim, ...]]]
STORY: Story = (
    sets(quota=50_000, memory=1 << 20),
    sets(quota=60_000, cpu_shares=512),
    {"cpu.cfs_quota_us": (Claim(Claimant("n"), Role.SCALE, 2.0),)},
    sets(quota=70_000),
)


def tell(ledger: Ledger, story: Story) -> None:
    for claims in story:
        ledger.change([pod(claims)])


@pytest.mark.parametrize("is_saved", [False, True], ids=["journal-only", "checkpoint"])
@pytest.mark.parametrize("lives", range(2 * len(STORY)))
def test_a_kill_at_any_point_leaves_the_original_known(
    files: CgroupFiles, tmp_path: Path, lives: int, *, is_saved: bool
) -> None:
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    before = texts(files)
    journal = Journal(tmp_path / "state", BOOT)
    writer = Mortal(files.root)
    ledger, saved = Ledger(writer, journal, BOOT), dict[str, Book | None]()
    if is_saved:
        # What the checkpoint has: all but the step in which the process is killed.
        ledger.books.on_change = lambda identity: saved.update({identity: ledger.books.record(identity)})
    writer.lives = lives
    with pytest.raises(Killed):
        tell(ledger, STORY)
    os.close(journal._descriptor)
    again = Ledger(CgroupWriter(files.root), Journal(tmp_path / "state", BOOT), BOOT)
    again.books.load(book for book in saved.values() if book is not None)
    again.books.add_noted(again.read_journal())
    again.change([pod({})])
    assert texts(files) == before


def test_a_killed_process_leaves_the_original_of_a_container(
    files: CgroupFiles, journal: Journal, tmp_path: Path
) -> None:
    """The journal does not say what was requested."""
    requested: dict[str, Value] = {"cpu.shares": 2, "cpu.cfs_quota_us": 80_000}
    for name, value in requested.items():
        put(files, BOX, name, value)
    before = texts(files)
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT)
    ledger.change([box(sets(cpu_shares=512, quota=50_000), requested=requested, booked=requested)])
    os.close(journal._descriptor)
    journal._descriptor = -1
    again = Ledger(CgroupWriter(files.root), Journal(tmp_path / "state", BOOT), BOOT)
    again.books.add_noted(again.read_journal())
    again.change([box({})])
    assert texts(files) == before


def test_a_journal_is_removed_once_the_checkpoint_has_it(
    ledger: Ledger, journal: Journal, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    ledger.change([pod(sets(quota=50_000))])
    (path,) = folder.iterdir()
    (line,) = path.read_text().splitlines()
    assert json.loads(line)[:3] == [BOOT, POD, int(Level.POD)]
    other = Journal(folder, BOOT)
    assert [noted.values for noted in other.read()] == [{"cpu.cfs_quota_us": 50_000}]
    other.note_saved(POD, ledger.books.record(POD))
    assert path.exists(), "its process lives"
    os.close(journal._descriptor)
    journal._descriptor = -1
    last = Journal(folder, BOOT)
    (noted,) = last.read()
    last.note_saved(POD, Book(POD, boot_id=BOOT))
    assert path.exists(), "the checkpoint has another book"
    last.note_saved(POD, ledger.books.record(POD))
    assert not path.exists()
    assert noted.cgroup == POD


def test_a_journal_that_cannot_be_written_stops_no_value(
    files: CgroupFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    journal = Journal(tmp_path / "file", BOOT)
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT)
    for quota in (50_000, 60_000):
        ledger.change([pod(sets(quota=quota))])
    assert number(files, POD, "cpu.cfs_quota_us") == 60_000
    assert "cannot be written" in journal.problem
    assert len(caplog.records) == 1
    journal.note_saved(POD, ledger.books.record(POD))
    assert journal.problem == "", "the checkpoint has it"


def test_a_disk_that_takes_a_part_of_a_line(
    ledger: Ledger, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    ledger.change([pod(sets(quota=50_000))])
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, data: write(file, data[:30] if b"512" in data else data))
        journal.note(Noted(POD, Level.POD, {}, {"cpu.shares": 512}, {}))
    assert "No space left" in journal.problem
    journal.note(Noted(OTHER, Level.POD, {"cpu.max": Original("max 100000", 7)}, {"cpu.cfs_quota_us": 1}, {}))
    assert not journal.problem
    assert [each.cgroup for each in Journal(tmp_path / "state", BOOT).read()] == [POD, OTHER]


def test_a_killed_process_does_not_bring_back_what_it_had_given_back(
    ledger: Ledger, files: CgroupFiles, journal: Journal, tmp_path: Path
) -> None:
    """The kubelet resizes the pod before the next process: its quota is the original then."""
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    ledger.books.on_change = lambda identity: ledger.note_saved(identity, ledger.books.record(identity))
    for claims in (sets(quota=50_000), {}):
        ledger.change([pod(claims)])
    put(files, POD, "cpu.cfs_quota_us", 200_000)
    again = Ledger(CgroupWriter(files.root), Journal(tmp_path / "state", BOOT), BOOT)
    again.books.add_noted(again.read_journal())
    again.change([pod({"cpu.cfs_quota_us": (Claim(Claimant("normalization"), Role.SCALE, 2.0),)})])
    assert number(files, POD, "cpu.cfs_quota_us") == 100_000
    again.change([pod({})])
    assert number(files, POD, "cpu.cfs_quota_us") == 200_000


def test_a_burst_that_the_kernel_has_divided_is_given_back(ledger: Ledger, files: CgroupFiles) -> None:
    before = texts(files)
    ledger.change([pod(sets(burst=50_000))])
    put(files, POD, "cpu.cfs_burst_us", 50)
    ledger.change([pod({})])
    assert texts(files) == before


def test_a_journal_is_emptied(ledger: Ledger, journal: Journal, tmp_path: Path) -> None:
    ledger.change([pod(sets(quota=50_000))])
    (path,) = (tmp_path / "state").iterdir()
    journal.note_saved(POD, ledger.books.record(POD))
    assert path.read_text() == ""
    ledger.change([pod(sets(quota=60_000))])
    assert len(path.read_text().splitlines()) == 1
    journal.note_saved(POD, ledger.books.record(POD))
    journal.close()
    assert not path.exists()


class Refuses(CgroupWriter):
    """A kernel that refuses all values."""

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        return tuple(
            WriteResult(each.cgroup, name, value, WriteOutcome.FAILED, error="EBUSY: no")
            for level in levels
            for each in level
            for name, value in each.values.items()
        )


def journals(folder: Path) -> str:
    """What all journals hold."""
    return "".join(path.read_text() for path in folder.glob("state/journal-*"))


def saving(ledger: Ledger) -> Ledger:
    """The checkpoint gets all changes at once."""
    ledger.books.on_change = lambda identity: ledger.note_saved(identity, ledger.books.record(identity))
    return ledger


def test_a_value_that_is_refused_for_ever_does_not_fill_the_log(
    files: CgroupFiles, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(Refuses(files.root), journal, BOOT)
    ledger.change([pod(sets(quota=50_000))])
    for _ in range(5):
        ledger.verify({Level.POD})
    assert [record.getMessage() for record in caplog.records] == [
        f"{POD}: cpu.cfs_quota_us cannot be set: EBUSY: no"
    ]


def test_what_is_left_alone_is_forgotten_with_its_pod(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([pod(sets(quota=50_000))])
    put(files, POD, "cpu.cfs_quota_us", 80_000)
    ledger.change([pod({})])
    assert len(ledger.books) == 0
    ledger.forget_gone([POD])
    assert [each.cgroup for each in ledger.failures.left] == [POD]
    ledger.forget_gone([OTHER])
    assert ledger.failures.left == ()


def test_what_is_closed_while_it_is_claimed_is_not_claimed_any_more(
    ledger: Ledger, files: CgroupFiles
) -> None:
    class Closing:
        """Another thread comes first."""

        def __enter__(self) -> None:
            lock.acquire()
            ledger.books.blocked = frozenset({"cpu.shares"})

        def __exit__(self, *_: object) -> None:
            lock.release()

    lock, ledger.books._lock = ledger.books._lock, Closing()  # type: ignore[assignment]
    ledger.change([pod(sets(cpu_shares=512))])
    assert ledger.books.holders(names={"cpu.shares"}) == ()
    ledger.books.book(pod(sets(quota=50_000)))
    ledger.start(pod(sets(cpu_shares=512)))
    assert ledger.books.holders(names={"cpu.shares"}) == ()


def test_a_value_that_is_refused_for_ever_does_not_fill_the_disk(
    files: CgroupFiles, journal: Journal, tmp_path: Path
) -> None:
    ledger = saving(Ledger(Refuses(files.root), journal, BOOT))
    ledger.change([pod(sets(quota=50_000))])
    ledger.verify({Level.POD})
    assert journals(tmp_path) == ""


def test_a_limit_that_the_usage_keeps_up_does_not_fill_the_disk(
    ledger: Ledger, files: CgroupFiles, tmp_path: Path
) -> None:
    usage = "memory.usage_in_bytes" if files.version == 1 else "memory.current"
    (files.folder(POD, "memory") / usage).write_text(f"{100 << 20}\n")
    saving(ledger).change([pod(sets(memory=50 << 20))])
    assert number(files, POD, "memory.limit_in_bytes") == 110 << 20
    assert journals(tmp_path) == ""


def test_a_resize_is_in_the_checkpoint_although_the_value_stays(
    ledger: Ledger, files: CgroupFiles, tmp_path: Path
) -> None:
    saving(ledger)
    put(files, POD, "cpu.cfs_quota_us", 100_000)
    ledger.change([pod(sets(quota=50_000))])
    put(files, POD, "cpu.cfs_quota_us", 200_000)
    ledger.on_resized(POD)
    assert journals(tmp_path) == ""


def test_a_journal_of_a_value_that_was_not_written_is_removed(
    ledger: Ledger, files: CgroupFiles, journal: Journal, tmp_path: Path
) -> None:
    """The process was killed before it wrote the second value."""
    ledger.change([pod(sets(quota=50_000))])
    journal.note(Noted(POD, Level.POD, {}, {"cpu.cfs_quota_us": 60_000}, {"cpu.cfs_quota_us": 50_000}))
    os.close(journal._descriptor)
    journal._descriptor = -1
    again = saving(Ledger(CgroupWriter(files.root), Journal(tmp_path / "state", BOOT), BOOT))
    again.books.add_noted(again.read_journal())
    assert not list((tmp_path / "state").iterdir())
    assert again.books.resolved(POD) == {"cpu.cfs_quota_us": 50_000}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[1,2,3,4,5,6]", '["boot-1","/a",2,{"f":[1]},{},{}]', "\x00"]
)
def test_a_line_that_was_cut(tmp_path: Path, text: str) -> None:
    good = json.dumps([BOOT, POD, 2, {"cpu.max": ["max\n", 5]}, {"cpu.shares": 5}, {}])
    (tmp_path / "journal-1-ab.jsonl").write_text(f"{good}\n{text}")
    (tmp_path / "journal-2-ab.jsonl").symlink_to("journal-1-ab.jsonl")
    (noted,) = Journal(tmp_path, BOOT).read()
    assert noted.originals == {"cpu.max": Original("max\n", 5)}


# --- any story ----------------------------------------------------------------------------------------------

_NAMES = {
    "cpu.cfs_quota_us": st.sampled_from([-1, 1000, 50_000, 200_000]),
    "cpu.cfs_period_us": st.sampled_from([50_000, 100_000]),
    "cpu.shares": st.sampled_from([2, 512, 1024]),
    "memory.limit_in_bytes": st.sampled_from([-1, 4096, 1 << 20]),
    "cpuset.cpus": st.sampled_from(["0", "0-1", "3,5"]),
    "cpu.cfs_burst_us": st.sampled_from([0, 1000]),
}


@st.composite
def _answers(draw: Callable[[st.SearchStrategy[object]], object]) -> dict[str, tuple[Claim, ...]]:
    names = draw(st.sets(st.sampled_from(sorted(_NAMES))))
    answer: dict[str, tuple[Claim, ...]] = {}
    for name in sorted(names):  # type: ignore[call-overload]
        value = draw(_NAMES[name])
        claims = [Claim(Claimant("a"), Role.SET, value)]  # type: ignore[arg-type]
        if name == "cpu.cfs_quota_us" and draw(st.booleans()):
            claims.append(Claim(Claimant("b"), Role.SCALE, 1.5))
        if name == "cpu.cfs_quota_us" and draw(st.booleans()):
            claims = [Claim(Claimant("b"), Role.ADD, 5000), Claim(Claimant("c"), Role.AT_MOST, 100_000)]
        answer[name] = tuple(claims)
    return answer


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(_answers(), max_size=4), is_container=st.booleans(), version=st.sampled_from([1, 2]))
def test_claims_that_come_and_go_leave_no_trace(
    tmp_path_factory: pytest.TempPathFactory,
    answers: Sequence[Mapping[str, tuple[Claim, ...]]],
    is_container: bool,
    version: Literal[1, 2],
) -> None:
    folder = tmp_path_factory.mktemp("story")
    files = CgroupFiles(folder / "cgroup", version=version)
    files.make(BOX)
    requested: dict[str, Value] = {"cpu.cfs_quota_us": 80_000, "cpu.shares": 204, "cpuset.cpus": "0-3"}
    for cgroup in (POD, BOX):
        for name, value in requested.items():
            put(files, cgroup, name, value)
    before = texts(files)
    journal = Journal(folder / "state", BOOT)
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT)
    wanted = box if is_container else pod
    for answer in (*answers, {}):
        ledger.change([wanted(answer, requested=requested, booked=requested)])
        ledger.verify(set(Level))
    assert texts(files) == before
    assert len(ledger.books) == 0
    journal.close()


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "change"),
    [
        pytest.param("cpu.cfs_quota_us", 50_000, 50_000, ValueChange.NONE, id="ours"),
        pytest.param("cpu.cfs_quota_us", 50_000, -1, ValueChange.RESET, id="neutral"),
        pytest.param("cpu.cfs_quota_us", 50_000, 70_500, ValueChange.RESET, id="original"),
        pytest.param(
            "cpu.cfs_quota_us", 50_000, 71_000, ValueChange.RESET, id="as-systemd-rounds-the-original"
        ),
        pytest.param("cpu.cfs_quota_us", 50_500, 51_000, ValueChange.RESET, id="as-systemd-rounds-ours"),
        pytest.param("cpu.cfs_quota_us", 50_000, 60_000, ValueChange.FOREIGN, id="foreign"),
        pytest.param("cpu.cfs_burst_us", 50_000, 50, ValueChange.RESET, id="the-kernel-divides-bursts"),
        pytest.param("cpu.cfs_burst_us", 50_000, 60, ValueChange.FOREIGN, id="foreign-burst"),
    ],
)
def test_who_has_changed_a_value(
    files: CgroupFiles, name: str, ours: int, theirs: int, change: ValueChange
) -> None:
    writer = CgroupWriter(files.root)
    put(files, POD, "cpu.cfs_quota_us", 70_500)
    original = writer.look(("kubepods", "besteffort", "podone"), ["cpu.cfs_quota_us"])["cpu.cfs_quota_us"]
    entry = Entry((Claim(Claimant("batch"), Role.SET, ours),), ours)
    book = Book(POD, Level.POD, {name: entry}, {original.file: Original(original.text, original.inode)})
    put(files, POD, name, theirs)
    found = writer.look(("kubepods", "besteffort", "podone"), [name])[name]
    assert change_of(Level.POD, name, entry, book, found, writer) is change


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contested(files: CgroupFiles, journal: Journal, clock: Clock) -> Ledger:
    """A ledger whose quota of the pod another program has overwritten three times."""
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT, clock)
    ledger.change([pod(sets(quota=50_000, cpu_shares=512))])
    for _ in range(3):
        put(files, POD, "cpu.cfs_quota_us", 30_000)
        ledger.verify({Level.POD})
        clock.now_s += 10
    return ledger


def test_a_value_is_left_to_a_program_that_keeps_writing_it(
    contested: Ledger, files: CgroupFiles, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    assert number(files, POD, "cpu.cfs_quota_us") == 30_000
    (yielded,) = contested.yielded()
    assert (yielded.name, yielded.ours, yielded.theirs) == ("cpu.cfs_quota_us", 50_000, 30_000)
    (line,) = [each.message for each in caplog.get_records("setup") if "another program" in each.message]
    assert "default/web: cpu.cfs_quota_us is 30000, not 50000, and is left so for 600 s" in line
    contested.repair(POD)
    contested.change([pod(sets(quota=40_000, cpu_shares=256))])
    assert number(files, POD, "cpu.cfs_quota_us") == 30_000
    assert number(files, POD, "cpu.shares") in (256, cpu_shares_from_weight(cpu_weight_from_shares(256)))
    clock.now_s += 600
    contested.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 40_000
    assert contested.yielded() == ()


def test_a_reset_is_repaired_while_a_value_is_left_to_another_program(
    contested: Ledger, files: CgroupFiles
) -> None:
    put(files, POD, "cpu.cfs_quota_us", -1)
    contested.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000


def test_resets_are_repaired_for_ever_and_do_not_fill_the_log(
    ledger: Ledger, files: CgroupFiles, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.change([pod(sets(quota=50_000))])
    for _ in range(10):
        put(files, POD, "cpu.cfs_quota_us", -1)
        ledger.verify({Level.POD})
        assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    assert len(caplog.records) == 1


def test_an_overwrite_after_a_call_does_not_count(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([pod(sets(quota=50_000))])
    for _ in range(10):
        put(files, POD, "cpu.cfs_quota_us", 30_000)
        ledger.repair(POD)
        assert number(files, POD, "cpu.cfs_quota_us") == 50_000


def test_a_value_that_nobody_claims_any_more_is_no_contest(contested: Ledger, files: CgroupFiles) -> None:
    contested.change([pod({})])
    assert number(files, POD, "cpu.cfs_quota_us") == 30_000
    assert contested.yielded() == ()
    contested.change([pod(sets(quota=50_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000


# --- values that have to fit to others -------------------------------------------------------------------


def test_a_pod_gets_the_quota_that_its_container_needs_and_gives_it_back(
    ledger: Ledger, files: CgroupFiles
) -> None:
    put(files, POD, "cpu.cfs_quota_us", 20_000)
    before = texts(files)
    ledger.change([pod({}), box(sets(quota=50_000))])
    assert number(files, BOX, "cpu.cfs_quota_us") == 50_000
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    ledger.change([pod({}), box(sets(quota=60_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 60_000
    ledger.change([pod({}), box({})])
    assert texts(files) == before
    assert len(ledger.books) == 0


def test_a_pod_that_nobody_named_fits_too(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpu.cfs_quota_us", 20_000)
    before = texts(files)
    ledger.change([box(sets(quota=50_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    put(files, POD, "cpu.cfs_quota_us", 20_000)
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    ledger.change([box({})])
    ledger.repair(POD)
    assert texts(files) == before


def test_a_claimed_quota_of_a_pod_rises_to_that_of_its_container(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([pod(sets(quota=20_000)), box(sets(quota=50_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    ledger.change([pod(sets(quota=20_000)), box(sets(quota=10_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 20_000


def test_containers_of_a_bounded_pod_have_no_quota(ledger: Ledger, files: CgroupFiles) -> None:
    bound = {"cpu.cfs_quota_us": (Claim(Claimant("suppress"), Role.AT_MOST, 500),)}
    ledger.change([pod(bound), box(sets(quota=50_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 1_000
    assert number(files, BOX, "cpu.cfs_quota_us") == -1
    ledger.change([pod({}), box(sets(quota=50_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == -1
    assert number(files, BOX, "cpu.cfs_quota_us") == 50_000


def test_a_burst_is_at_most_the_quota_and_follows_it(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, BOX, "cpu.cfs_quota_us", 50_000)
    before = texts(files)
    ledger.change([box(sets(burst=900_000))])
    assert number(files, BOX, "cpu.cfs_burst_us") == 50_000
    ledger.change([box(sets(burst=900_000, quota=30_000), requested={"cpu.cfs_quota_us": 50_000})])
    assert number(files, BOX, "cpu.cfs_burst_us") == 30_000
    assert number(files, BOX, "cpu.cfs_quota_us") == 30_000
    ledger.change([box({}, requested={"cpu.cfs_quota_us": 50_000})])
    assert texts(files) == before


def test_a_burst_of_others_is_lowered_with_the_quota_and_given_back(
    ledger: Ledger, files: CgroupFiles
) -> None:
    put(files, POD, "cpu.cfs_quota_us", 90_000)
    put(files, POD, "cpu.cfs_burst_us", 80_000)
    before = texts(files)
    ledger.change([pod(sets(quota=30_000))])
    assert number(files, POD, "cpu.cfs_burst_us") == 30_000
    ledger.change([pod({})])
    assert texts(files) == before


@pytest.mark.parametrize("version", [2])
def test_memory_low_is_at_least_min(files: CgroupFiles, journal: Journal) -> None:
    ledger = Ledger(CgroupWriter(files.root), journal, BOOT)
    claims = {name: (Claim(Claimant("m"), Role.SET, value),) for name, value in MEMORY.items()}
    ledger.change([pod(claims)])
    assert {name: number(files, POD, name) for name in MEMORY} == {**MEMORY, "memory.low": 1 << 20}


MEMORY: Mapping[str, Value] = {"memory.min": 1 << 20, "memory.low": 4_096, "memory.high": 1 << 21}


def test_quotas_of_units_are_rounded_as_systemd_rounds_them(ledger: Ledger, files: CgroupFiles) -> None:
    ledger.change([Wanted(CgroupTarget(Level.POD, SLICE), sets(quota=83_334))])
    assert number(files, SLICE_PATH, "cpu.cfs_quota_us") == 84_000


class DividesBursts(CgroupWriter):
    """A kernel that divides the burst by 1,000 whenever the quota is written."""

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        results = super().write_levels(levels)
        for each in results:
            if each.name == "cpu.cfs_quota_us" and each.outcome is WriteOutcome.WRITTEN:
                burst_us = self.read(each.cgroup, "cpu.cfs_burst_us")
                super().write_levels(
                    [[CgroupValues(each.cgroup, {"cpu.cfs_burst_us": int(burst_us or 0) // 1000})]]
                )
        return results


def test_a_burst_that_the_kernel_has_divided_is_written_again(files: CgroupFiles, journal: Journal) -> None:
    ledger = Ledger(DividesBursts(files.root), journal, BOOT)
    ledger.change([pod(sets(quota=50_000, burst=40_000))])
    assert number(files, POD, "cpu.cfs_burst_us") == 40_000
    ledger.change([pod(sets(quota=60_000, burst=40_000))])
    assert number(files, POD, "cpu.cfs_burst_us") == 40_000


def test_weights_are_written_as_the_kubelet_writes_them(
    ledger: Ledger, files: CgroupFiles, version: Literal[1, 2]
) -> None:
    def weight() -> str:
        name = "cpu.weight" if version == 2 else "cpu.shares"
        return next(text.strip() for path, text in texts(files).items() if path.endswith(f"podone/{name}"))

    def kubelet_writes(text: str) -> None:
        for path in files.root.rglob("podtwo/cpu.weight"):
            path.write_text(f"{text}\n")

    kubelet_writes("100")
    ledger.measure_weights(Level.POD, {OTHER: 1024, "/no/such": 2, "../bad": 1024})
    ledger.change([pod(sets(cpu_shares=2000))])
    assert weight() == ("170" if version == 2 else "2000")
    kubelet_writes("39")
    ledger.measure_weights(Level.CONTAINER, {OTHER: 1024})
    ledger.change([pod(sets(cpu_shares=512))])
    assert weight() == ("59" if version == 2 else "512")
    ledger.measure_weights(Level.POD, {OTHER: 1024, POD: 1024})
    ledger.change([pod(sets(cpu_shares=1024))])
    assert weight() == ("39" if version == 2 else "1024")


def test_a_container_whose_request_is_not_known_gets_its_quota_back_from_below_a_bounded_pod(
    ledger: Ledger, files: CgroupFiles
) -> None:
    put(files, BOX, "cpu.cfs_quota_us", 50_000)
    before = texts(files)
    bound = {"cpu.cfs_quota_us": (Claim(Claimant("suppress"), Role.AT_MOST, 90_000),)}
    ledger.change([pod(bound), box(sets(burst=10_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 90_000
    assert number(files, BOX, "cpu.cfs_quota_us") == -1
    ledger.change([pod({}), box({})])
    assert texts(files) == before


def test_a_list_is_given_back_beside_a_value_of_the_pod(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpuset.cpus", "0-1")
    put(files, BOX, "cpuset.cpus", "0-1")
    ledger.change([pod(sets(burst=1000)), box(sets(cpus="1"))])
    assert number(files, BOX, "cpuset.cpus") == "1"
    ledger.change([pod(sets(burst=1000)), box({})])
    assert number(files, BOX, "cpuset.cpus") == ("0-1" if files.version == 1 else "")


def test_a_look_at_the_pod_alone_keeps_what_its_container_needs(ledger: Ledger, files: CgroupFiles) -> None:
    put(files, POD, "cpu.cfs_quota_us", 20_000)
    before = texts(files)
    ledger.change([box(sets(quota=50_000))])
    for _ in range(2):
        ledger.verify({Level.POD})
        ledger.repair(POD)
        assert number(files, POD, "cpu.cfs_quota_us") == 50_000
    ledger.change([box({})])
    ledger.verify({Level.POD})
    assert texts(files) == before


def test_on_version_1_a_pod_rises_to_the_quota_that_the_kubelet_gave_its_container(
    ledger: Ledger, files: CgroupFiles, version: Literal[1, 2]
) -> None:
    put(files, BOX, "cpu.cfs_quota_us", 60_000)
    ledger.change([pod(sets(quota=20_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == (60_000 if version == 1 else 20_000)
    assert number(files, BOX, "cpu.cfs_quota_us") == 60_000
    put(files, BOX, "cpu.cfs_quota_us", 10_000)
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 20_000


def test_a_pod_makes_room_for_a_container_that_is_created(
    ledger: Ledger, files: CgroupFiles, version: Literal[1, 2]
) -> None:
    """Issue #2047 of Koordinator: the pod's quota was lowered before its containers were there."""
    put(files, POD, "cpu.cfs_quota_us", 60_000)
    before = texts(files)
    ledger.change([pod(sets(quota=20_000))])
    ledger.make_room(POD, {"cpu.cfs_quota_us": 60_000, "cpu.shares": 2})
    assert number(files, POD, "cpu.cfs_quota_us") == (60_000 if version == 1 else 20_000)
    ledger.change([pod({})])
    ledger.make_room(POD, {"cpu.cfs_quota_us": 90_000})
    ledger.make_room("/no/such", {"cpu.cfs_quota_us": 90_000})
    assert texts(files) == before


def test_a_pod_keeps_room_for_what_the_runtime_knows_of_its_containers(
    ledger: Ledger, files: CgroupFiles, version: Literal[1, 2]
) -> None:
    ledger.books.updated_by_others = True
    put(files, POD, "cpu.cfs_quota_us", 60_000)
    put(files, BOX, "cpu.cfs_quota_us", 30_000)
    of_box = sets(quota=10_000, period=50_000)
    booked = {"cpu.cfs_quota_us": 30_000, "cpu.cfs_period_us": 50_000}
    ledger.change([box(of_box, booked=booked), pod(sets(quota=20_000))])
    assert number(files, BOX, "cpu.cfs_quota_us") == 10_000
    assert number(files, POD, "cpu.cfs_quota_us") == (60_000 if version == 1 else 20_000)
    ledger.change([box(of_box, booked=booked | {"cpu.cfs_quota_us": 10_000})])
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 20_000


def test_a_pod_keeps_room_for_containers_that_start_as_the_kubelet_asks(
    ledger: Ledger, files: CgroupFiles, version: Literal[1, 2]
) -> None:
    put(files, POD, "cpu.cfs_quota_us", 60_000)
    before = texts(files)
    ledger.books.starts_as_requested = True
    ledger.change([pod(sets(quota=20_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == (60_000 if version == 1 else 20_000)
    ledger.change([pod(sets(quota=90_000))])
    assert number(files, POD, "cpu.cfs_quota_us") == 90_000
    ledger.verify({Level.POD})
    assert number(files, POD, "cpu.cfs_quota_us") == 90_000
    ledger.change([pod({})])
    assert texts(files) == before
