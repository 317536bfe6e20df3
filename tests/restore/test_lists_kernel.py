"""Lists of CPUs go back on this machine's own cgroup version 1, whose kernel refuses what does not fit."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.journal import PATTERN, Journal, read_boot_id
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.offline import ledger_of
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import Book, Level, as_saved
from runtimeproxy.restore.command import is_complete, loosen, restore_cgroups, states
from runtimeproxy.restore.plan import COPIED, Line, NodeState, RestorePlan, Status, kept_book, plan
from tests.lab import cgroup_v1
from tests.lab.programs import missing, need_controllers_of_v1

CPUS = "cpuset.cpus"
OWNER = Claimant("cpu-suppress", ClaimantKind.PLUGIN)
ALL = f"0-{(os.cpu_count() or 1) - 1}"


class Node:
    """A best-effort class with two pods, and what a daemon has done to it."""

    def __init__(self, top: str, state: Path) -> None:
        self.kubepods = f"{top}/kubepods"
        self.qos = f"{self.kubepods}/besteffort"
        self.pods = (f"{self.qos}/pod1", f"{self.qos}/pod2")
        self.boxes = tuple(f"{pod}/box" for pod in self.pods)
        self._state = state
        self._writer = CgroupWriter()
        for cgroup in (self.kubepods, self.qos, *self.pods, *self.boxes):
            folder = cgroup_v1.file("cpuset", cgroup, CPUS).parent
            folder.mkdir(parents=True)
            for name in (CPUS, "cpuset.mems"):
                for each in (folder.parent, folder):
                    (each / name).write_text(cgroup_v1.file("cpuset", "/", name).read_text())

    def read(self, *cgroups: str) -> list[str]:
        return [cgroup_v1.read("cpuset", cgroup, CPUS) for cgroup in cgroups]

    def put(self, cgroup: str, cpus: str) -> None:
        cgroup_v1.file("cpuset", cgroup, CPUS).write_text(cpus)

    def daemon(self, saved: tuple[Book, ...] = ()) -> Ledger:
        """The books of a daemon that has started from a checkpoint."""
        boot_id = read_boot_id()
        ledger = Ledger(self._writer, Journal(self._state, boot_id), boot_id)
        ledger.books.load(saved)
        ledger.measure_weights(Level.POD, {})
        return ledger

    def bound(self, ledger: Ledger, cpus: str) -> None:
        target = CgroupTarget(Level.QOS_CLASS, self.qos, "QoS class BestEffort")
        claims = {CPUS: (Claim(OWNER, Role.AT_MOST, cpus),)}
        ledger.change([Wanted(target, claims, owner=OWNER, binds_descendants=True)])

    def pin(self, ledger: Ledger, box: str, cpus: str) -> None:
        claims = {CPUS: (Claim(Claimant("cpuset"), Role.SET, cpus),)}
        ledger.change([Wanted(CgroupTarget(Level.CONTAINER, box), claims)])

    def plan(self, saved: tuple[Book, ...]) -> RestorePlan:
        books = Saved(books=saved)
        node = NodeState({}, states(ledger_of(books, self._state, self._writer), self._writer))
        return plan(books, node, self._writer)

    def restore(self, saved: tuple[Book, ...]) -> tuple[tuple[Line, ...], tuple[Book, ...]]:
        """Restores; returns the lines, and the books that the checkpoint has then."""
        found = self.plan(saved)
        loosen(self._writer, found.cgroups)
        lines = restore_cgroups(self._writer, found.cgroups)
        failed = [each for each in lines if each.status is not Status.RESTORED]
        left = (
            kept_book(book, {at.field: at.status for at in failed if at.target == book.id}, each.copies)
            for each in found.cgroups
            for book in (each.state.book,)
        )
        for path in self._state.glob(PATTERN):
            # All of it is saved.
            path.unlink()
        return lines, tuple(book for book in left if book is not None)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    need_controllers_of_v1("cpu", "cpuset")
    if os.cpu_count() == 1:
        missing("needs two CPUs")
    top = f"/koord-test-{uuid.uuid4().hex[:12]}"
    try:
        yield Node(top, tmp_path)
    finally:
        cgroup_v1.remove_tree(top)


def books(ledger: Ledger) -> tuple[Book, ...]:
    """What its checkpoint has."""
    return tuple(
        replace(book, entries={name: as_saved(entry) for name, entry in book.entries.items()})
        for book in ledger.books
    )


def test_a_class_its_pods_and_their_containers_get_all_cpus(node: Node) -> None:
    """Again after another start: the first attempt leaves what the second one needs."""
    saved: tuple[Book, ...] = ()
    for _ in range(2):
        daemon = node.daemon(saved)
        node.bound(daemon, "1")
        node.pin(daemon, node.boxes[0], "1")
        cgroups = (node.qos, *node.pods, *node.boxes)
        assert node.read(*cgroups) == ["1"] * 5
        lines, saved = node.restore(books(daemon))
        assert {(line.target, line.new, line.status) for line in lines} == {
            (cgroup, ALL, Status.RESTORED) for cgroup in cgroups
        }
        assert node.read(*cgroups) == [ALL] * 5
        assert node.plan(saved).lines == ()


def test_a_list_goes_on_when_the_parent_has_grown(node: Node) -> None:
    """The pod has no more just now; the container's list is its own again, and does not follow by itself."""
    daemon = node.daemon()
    node.pin(daemon, node.boxes[0], "1")
    node.put(node.pods[0], "1")
    (line,), saved = node.restore(books(daemon))
    assert (line.old, line.new, line.status, line.reason) == ("1", "1", Status.LEFT, COPIED)
    assert (node.read(node.boxes[0]), node.plan(saved).lines) == (["1"], ())
    node.put(node.pods[0], ALL)
    (again,), _ = node.restore(saved)
    assert (again.old, again.new, again.status, again.reason) == ("1", ALL, Status.RESTORED, COPIED)
    assert node.read(node.boxes[0]) == [ALL]


def test_a_pod_gets_no_more_than_its_class_has_now(node: Node) -> None:
    daemon = node.daemon()
    node.bound(daemon, "1")
    node.put(node.qos, ALL)
    for each in (*node.boxes, *node.pods, node.qos):
        node.put(each, "1")
    # Another program takes CPUs from all pods of the node.
    node.put(node.kubepods, "1")
    lines, saved = node.restore(books(daemon))
    assert is_complete(lines)
    node.put(node.kubepods, ALL)
    lines, _ = node.restore(saved)
    assert {line.status for line in lines} == {Status.RESTORED}
    assert node.read(node.qos, *node.pods, *node.boxes) == [ALL] * 5


def test_a_value_that_stays_is_not_restored(node: Node) -> None:
    """What is below a class that is left alone has no room."""
    daemon = node.daemon()
    node.bound(daemon, "1")
    of_pods = [each for each in node.plan(books(daemon)).cgroups if each.state.book.id != node.qos]
    lines = restore_cgroups(CgroupWriter(), of_pods)
    assert {line.status for line in lines} == {Status.FAILED}
    assert all(line.reason.startswith("EACCES: ") for line in lines)
    assert not is_complete(lines)


def test_an_empty_list_that_the_kernel_does_not_take_is_the_parents(node: Node) -> None:
    writer = CgroupWriter()
    node.put(node.boxes[0], "1")
    # EBUSY: there is a list below.
    (result,) = writer.write(node.pods[0], {CPUS: ""})
    assert (result.error, result.value) == ("", ALL)
    for each in (*node.boxes, *node.pods):
        node.put(each, "1")
    node.put(node.qos, "1")
    (result,) = writer.write(node.qos, {CPUS: ""})
    assert (result.outcome, result.old, result.value) == ("written", "1", ALL)
