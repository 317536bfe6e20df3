"""Slices of a pod's tasks in the books: all but those that chose themselves, restarts, the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.slices import FIELD, MARK_NS, KernelCalls, Scheduling, Slices, is_supported
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.fields import PROCESSES_VERIFY_S
from runtimeproxy.ledger.foreign import OVERWRITES
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import Level
from runtimeproxy.restore.command import restore_cgroups, states
from runtimeproxy.restore.plan import NodeState, Status, plan
from runtimeproxy.testing import CgroupFiles
from tests.cgroups.boxes import real_box
from tests.cgroups.cookies import Tasks
from tests.cgroups.slicing import FIFO, SlicingKernel

POD = "/kubepods/burstable/podweb"
BOX, OTHER = f"{POD}/web", f"{POD}/web/worker"
GUARD = Claimant("cpu-guard", ClaimantKind.PLUGIN)
OURS_NS = 1_000_000 + MARK_NS


class Node:
    """A pod with tasks, and the daemon's ledger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kernel = SlicingKernel()
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.tasks = Tasks(self.files, folder / "proc", self.kernel)
        self.journals: list[Journal] = []
        self.now_s = 1_000.0
        self.start()
        for cgroup in (POD, BOX, OTHER):
            self.tasks.make(cgroup)

    def start(self) -> None:
        """A daemon, after the end of the one before, of which only the journal is left."""
        slices = Slices(self.kernel, self.kernel.default, lambda: self.now_s)
        self.writer = CgroupWriter(self.files.root, self.tasks.procfs, {FIELD: slices})
        journal = Journal(self._folder / "state", "boot")
        self.journals.append(journal)
        self.ledger = Ledger(self.writer, journal, "boot", lambda: self.now_s)
        self.ledger.books.add_noted(self.ledger.read_journal())
        self.ledger.restore_leased({})

    def want(self, slice_us: int | None) -> None:
        claims = {FIELD: () if slice_us is None else (Claim(GUARD, Role.SET, slice_us),)}
        target = CgroupTarget(Level.POD, POD, "shop/web", "u1")
        self.ledger.change([Wanted(target, claims, owner=GUARD)])

    def compare(self) -> None:
        self.now_s += PROCESSES_VERIFY_S
        self.ledger.verify([Level.POD], [POD], frozenset({FIELD}))

    @property
    def causes(self) -> list[tuple[UnappliedCause, str]]:
        return [(each.cause, each.reason) for each in self.ledger.books.unapplied.values()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for journal in made.journals:
        journal.close()


def test_all_tasks_of_a_pod_get_it_and_give_it_back(node: Node) -> None:
    tasks = [node.tasks.start(BOX), node.tasks.start(OTHER)]
    tasks.append(node.tasks.start(BOX, process=tasks[0]))
    node.want(1_000)
    assert node.kernel.slices(*tasks) == [OURS_NS] * 3
    child = node.tasks.start(BOX, parent=tasks[0])
    assert node.kernel.slices(child) == [OURS_NS]
    node.want(None)
    assert node.kernel.slices(*tasks, child) == [0] * 4
    assert (len(node.ledger.books), node.causes) == (0, [])


def test_what_comes_later_gets_it_and_is_no_foreign_writer(node: Node) -> None:
    """The runtime's exec probes are no children of the container."""
    first = node.tasks.start(BOX)
    node.want(1_000)
    for _ in range(OVERWRITES + 2):
        later = node.tasks.start(BOX)
        node.compare()
        assert node.kernel.slices(first, later) == [OURS_NS, OURS_NS]
    writes = node.kernel.writes
    node.compare()
    assert node.kernel.writes == writes
    assert (node.ledger.yielded(), node.causes) == ((), [])


def test_what_tasks_have_chosen_for_themselves_stays(node: Node) -> None:
    task, own, fifo = (node.tasks.start(BOX) for _ in range(3))
    chosen = {own: Scheduling(slice_ns=500_000), fifo: Scheduling(FIFO, priority=5)}
    node.kernel.tasks.update(chosen)
    node.want(1_000)
    for _ in range(OVERWRITES + 1):
        node.compare()
    assert node.kernel.slices(task) == [OURS_NS]
    assert {each: node.kernel.tasks[each] for each in chosen} == chosen
    assert (node.ledger.yielded(), node.causes) == ((), [])
    # One that chooses later keeps that, too.
    chosen[task] = node.kernel.tasks[task] = Scheduling(slice_ns=3_000_000)
    node.want(None)
    assert {each: node.kernel.tasks[each] for each in chosen} == chosen
    assert len(node.ledger.books) == 0


def test_a_pod_of_real_time_tasks_alone_waits_for_nothing(node: Node) -> None:
    node.kernel.tasks[node.tasks.start(BOX)] = Scheduling(FIFO, priority=5)
    node.want(1_000)
    node.compare()
    assert (node.kernel.writes, node.causes) == (0, [])


@pytest.mark.parametrize("has_newcomer", [False, True])
def test_a_daemon_that_was_killed_gives_it_back(node: Node, *, has_newcomer: bool) -> None:
    task, own = node.tasks.start(BOX), node.tasks.start(BOX)
    node.kernel.tasks[own] = Scheduling(slice_ns=1_000_000)
    node.want(1_000)
    if has_newcomer:
        node.tasks.start(BOX)
    node.start()
    node.want(None)
    assert node.kernel.slices(task, own) == [0, 1_000_000]
    assert len(node.ledger.books) == 0


def test_restore_gives_it_back(node: Node) -> None:
    task, own = node.tasks.start(BOX), node.tasks.start(BOX)
    node.kernel.tasks[own] = Scheduling(slice_ns=1_000_000)
    node.want(1_000)
    node.start()
    found = plan(Saved(), NodeState({}, states(node.ledger, node.writer)), node.writer)
    (line,) = restore_cgroups(node.writer, found.cgroups)
    assert (line.field, line.new, line.status) == (FIELD, 0, Status.RESTORED)
    assert node.kernel.slices(task, own) == [0, 1_000_000]


def test_a_missing_right_is_named(node: Node) -> None:
    task, other = node.tasks.start(BOX), node.tasks.start(BOX)
    node.kernel.refused.add(other)
    node.want(1_000)
    reason = "EPERM: such a value needs CAP_SYS_NICE (1 of 2 processes)"
    assert node.causes == [(UnappliedCause.REFUSED, reason)]
    node.kernel.refused.clear()
    node.compare()
    assert (node.kernel.slices(task, other), node.causes) == ([OURS_NS, OURS_NS], [])


def test_a_kernel_without_slices_has_a_reason(node: Node) -> None:
    node.kernel.default_ns = 0
    node.tasks.start(BOX)
    node.want(1_000)
    ((cause, reason),) = node.causes
    assert cause is UnappliedCause.REFUSED
    assert "no slices" in reason


@pytest.mark.skipif(not is_supported(), reason="slices of tasks need Linux 6.12")
def test_processes_of_this_machine(tmp_path: Path) -> None:
    calls = KernelCalls()
    with real_box() as box:
        pids = [box.start(), box.start("below")]
        was = [calls.read(pid) for pid in pids]
        journal = Journal(tmp_path, "boot")
        ledger = Ledger(CgroupWriter(), journal, "boot")
        target = CgroupTarget(Level.POD, box.cgroup, "shop/web", "u1")
        ledger.change([Wanted(target, {FIELD: (Claim(GUARD, Role.SET, 1_000),)}, owner=GUARD)])
        assert [calls.read(pid) for pid in pids] == [each._replace(slice_ns=OURS_NS) for each in was]
        ledger.change([Wanted(target, {FIELD: ()}, owner=GUARD)])
        assert [calls.read(pid) for pid in pids] == was
        assert (len(ledger.books), ledger.books.unapplied.values()) == (0, ())
        journal.close()
