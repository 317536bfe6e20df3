"""Resctrl groups in the books and beside them, on a double that behaves as the kernel, with processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups import resctrl
from runtimeproxy.cgroups.resctrl import GROUP_FIELD, MONITOR_FIELD, PREFIX, ResctrlGroups
from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from runtimeproxy.fields.kernel_settings import NO_GROUP
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import Applied
from runtimeproxy.ledger.foreign import OVERWRITES
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.kernel_settings import KernelSettings
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.pods.records import Level
from runtimeproxy.restore.command import restore_kernel_settings
from runtimeproxy.restore.plan import Status
from tests.cgroups.boxes import Box, real_box
from tests.lab.deadline import wait_until
from tests.resctrl.double import Double, mounted
from tests.resctrl.schemata import Variant

BE, LS = "L3:0=7;1=7,MB:0=20;1=20", "L3:0=7ff;1=7ff,MB:0=100;1=100"
CLASSES = {"resctrl.BE": BE, "resctrl.LS": LS}
OWN = "pod-1,L3:0=3;1=3,MB:0=10;1=10"
FORKS = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while not os.path.exists(sys.argv[1]):
    if os.fork() == 0:
        os.execvp("true", ["true"])
    if os.fork():
        os._exit(0)
signal.pause()
"""


class Node:
    """The daemons of a node, one after the other, and one pod."""

    def __init__(self, folder: Path, double: Double, box: Box) -> None:
        self.folder, self.double, self.box = folder, double, box
        self.journals: list[Journal] = []
        self.now_s = 1000.0
        self.start()

    def start(self) -> None:
        """A daemon, after the one before was killed."""
        self.groups = ResctrlGroups(self.double.root, lambda: self.now_s)
        self.settings = KernelSettings(self.folder, "boot", self.folder / "sys", groups=self.groups)
        journal = Journal(self.folder, "boot")
        self.journals.append(journal)
        self.ledger = Ledger(CgroupWriter(resctrl=self.groups), journal, "boot")
        self.ledger.books.add_noted(self.ledger.read_journal())

    def want(self, group: str | None, monitor: str | None = None) -> dict[str, Applied]:
        wanted = {GROUP_FIELD: group, MONITOR_FIELD: monitor}
        claims = {
            name: (Claim(Claimant("resctrl"), Role.SET, value),) for name, value in wanted.items() if value
        }
        found = self.ledger.change([Wanted(CgroupTarget(Level.POD, self.box.cgroup), claims)])
        return {each.name: each for each in found}

    def verify(self) -> None:
        self.now_s += resctrl.TASKS_S
        self.ledger.verify([Level.POD], None, frozenset({GROUP_FIELD, MONITOR_FIELD}))

    def keep(self, groups: set[str], monitors: set[str]) -> None:
        self.now_s += resctrl.YOUNG_S
        self.groups.keep(groups, monitors)

    def tasks(self, group: str, below: str = "") -> set[int]:
        path = f"{PREFIX}{group}" if group else ""
        return self.double.tasks(f"{path}/mon_groups/{PREFIX}{below}" if below else path)

    def schemata(self, group: str) -> str | None:
        return self.groups.read(NO_GROUP, group)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Double]:
    folder = tmp_path_factory.mktemp("node") / "sys/fs/resctrl"
    variant = Variant(cbm_bits=11, l3_closids=4, mb_closids=4, rmids=6, padded=True)
    with mounted(folder, variant) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, double: Double) -> Iterator[Node]:
    with real_box() as box:
        made = Node(tmp_path, double, box)
        yield made
        for journal in made.journals:
            journal.close()
        made.groups.remove_all()
        double.show_counters()
        double.deny({})


def test_a_class_has_a_group_and_all_tasks_of_a_pod_are_in_it(node: Node) -> None:
    (made, *_) = node.settings.apply(CLASSES)
    assert (made.old, made.new, made.error) == ("none", BE, "")
    assert node.schemata("BE") == BE
    one, nested = node.box.start(), node.box.start("init.scope", "unit")
    applied = node.want("BE", "pod-1")
    assert [each.error for each in applied.values()] == ["", ""]
    assert node.tasks("BE") == node.tasks("BE", "pod-1") == {one, nested}
    # The runtime starts a program in it, which has not its first process for a parent.
    later = node.box.start()
    node.verify()
    assert node.tasks("BE") == node.tasks("BE", "pod-1") == {one, nested, later}
    node.want("LS", "pod-1")
    node.verify()
    assert node.tasks("LS") == node.tasks("LS", "pod-1") == {one, nested, later}
    node.want(None)
    assert node.tasks("LS") == node.tasks("LS", "pod-1") == set()
    node.keep(set(), set())
    assert node.double.groups == set()


def test_tasks_that_fork_are_complete(node: Node, tmp_path: Path) -> None:
    node.settings.apply(CLASSES)
    stop = tmp_path / "stop"
    for _ in range(3):
        node.box.start(program=(sys.executable, "-c", FORKS, str(stop)))
    node.want("BE", "pod-1")

    def is_complete() -> bool:
        node.verify()
        before, tasks, after = set(node.box.pids()), node.tasks("BE"), set(node.box.pids())
        # A task that lives for a moment only may be in neither.
        return bool(before & tasks) and before & after <= tasks

    wait_until(is_complete, "those that live long enough are in the group")
    stop.touch()
    wait_until(lambda: len(node.box.pids()) == 3, "nothing forks any more")
    node.verify()
    # A process that has ended is a task until its parent has waited for it.
    assert set(node.box.pids()) <= node.tasks("BE") & node.tasks("BE", "pod-1")


def test_a_task_in_the_group_of_another_program_is_left_there(node: Node) -> None:
    node.settings.apply(CLASSES)
    mine, theirs, monitored = node.box.start(), node.box.start(), node.box.start()
    (node.double.root / "koordlet-x").mkdir()
    (node.double.root / "mon_groups/cadvisor").mkdir()
    try:
        node.double.write("koordlet-x/tasks", f"{theirs}\n")
        node.double.write("mon_groups/cadvisor/tasks", f"{monitored}\n")
        applied = node.want("BE")[GROUP_FIELD]
        assert applied.outcome is WriteOutcome.FAILED
        assert (
            "in the resctrl group koordlet-x of another program, and is left there (2 of 3" in applied.error
        )
        for _ in range(OVERWRITES + 1):
            node.verify()
        (left,) = node.ledger.books.unapplied.values()
        assert left.cause is UnappliedCause.REFUSED  # the others are not given up for that
        node.want(None)
        node.keep(set(), set())
        assert node.double.tasks("koordlet-x") == {theirs}
        assert node.double.tasks("mon_groups/cadvisor") == {monitored}
        assert mine in node.double.tasks()
    finally:
        (node.double.root / "koordlet-x").rmdir()
        (node.double.root / "mon_groups/cadvisor").rmdir()


def test_a_pod_has_a_group_of_its_own(node: Node) -> None:
    pid = node.box.start()
    assert node.want(OWN)[GROUP_FIELD].error == ""
    assert node.tasks("pod-1") == {pid}
    assert node.schemata("pod-1") == OWN.partition(",")[2]
    # Another program writes its schemata.
    node.double.write(f"{PREFIX}pod-1/schemata", "L3:0=7ff\n")
    node.verify()
    assert node.schemata("pod-1") == OWN.partition(",")[2]
    other = OWN.replace("=3", "=f")
    node.want(other)
    assert node.schemata("pod-1") == other.partition(",")[2]
    node.keep({"pod-1"}, set())
    assert node.double.groups == {f"{PREFIX}pod-1"}
    node.keep(set(), set())
    assert node.double.groups == set()
    assert pid in node.double.tasks()


def test_a_new_group_is_kept_for_a_time(node: Node) -> None:
    node.box.start()
    node.want(OWN)
    node.groups.keep((), ())
    assert node.double.groups == {f"{PREFIX}pod-1"}


def test_after_a_kill_all_is_adopted(node: Node) -> None:
    node.settings.apply(CLASSES)
    pid = node.box.start()
    node.want(OWN, "pod-1")
    seen = len(node.double.commands())
    node.start()
    assert node.settings.apply(CLASSES) == ()
    node.want(OWN, "pod-1")
    node.verify()
    node.keep({"BE", "LS", "pod-1"}, {"pod-1"})
    assert node.double.commands(seen) == []
    assert node.tasks("pod-1", "pod-1") == {pid}


def test_without_state_groups_of_before_are_adopted_or_removed(node: Node) -> None:
    node.settings.apply(CLASSES)
    for file in node.folder.glob("*.json"):
        file.unlink()
    node.start()
    assert node.settings.apply({"resctrl.BE": BE}) == ()
    node.keep({"BE"}, set())
    assert node.double.groups == {f"{PREFIX}BE"}
    (given_back,) = node.settings.apply({})
    assert given_back.new == "none"
    assert node.double.groups == set()


def test_no_closid_is_left(node: Node) -> None:
    (node.double.root / "theirs").mkdir()
    try:
        node.settings.apply(CLASSES)
        node.box.start()
        text = (
            "ENOSPC: no CLOSID (num_closids) of 4 is left: beside the root group these have one: "
            f"{PREFIX}BE, {PREFIX}LS, theirs"
        )
        assert node.want(OWN)[GROUP_FIELD].error == f"{text} (1 of 1 processes)"
        (failed,) = node.settings.apply({**CLASSES, "resctrl.LSR": LS})
        assert failed.error == text
        assert node.settings.unapplied["resctrl.LSR"].reason == text
        assert node.want("LSR")[GROUP_FIELD].error.startswith("EINVAL: the group LSR is not there: no CLOSID")
    finally:
        (node.double.root / "theirs").rmdir()
    node.settings.apply({**CLASSES, "resctrl.LSR": LS})
    node.verify()
    assert len(node.tasks("LSR")) == 1
    assert node.settings.unapplied == {}


def test_without_an_rmid_the_pod_is_in_its_group_all_the_same(node: Node) -> None:
    node.settings.apply(CLASSES)
    pid = node.box.start()
    taken = [node.double.root / f"mon_groups/m{each}" for each in range(3)]
    for each in taken:
        each.mkdir()
    applied = node.want("BE", "pod-1")
    assert applied[GROUP_FIELD].error == ""
    assert node.tasks("BE") == {pid}
    assert applied[MONITOR_FIELD].error == (
        "ENOSPC: no RMID (num_rmids) of 6 is left: beside the root group these have one: "
        f"{PREFIX}BE, {PREFIX}LS, mon_groups/m0, mon_groups/m1, mon_groups/m2 (1 of 1 processes)"
    )
    for each in taken:
        each.rmdir()
    node.verify()
    assert node.tasks("BE", "pod-1") == {pid}


THREADS = (
    "import threading, time\nfor _ in range(40):\n threading.Thread(target=time.sleep, args=(600,)).start()"
)


@pytest.mark.parametrize("is_monitor", [False, True])
def test_a_refusal_costs_as_much_for_many_tasks_as_for_one(node: Node, *, is_monitor: bool) -> None:
    """Any pod's author may start thousands, and each asked the kernel again every ten seconds."""
    pid = node.box.start("main", program=(sys.executable, "-c", THREADS))
    wait_until(lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) > 40, "threads", 60.0)
    taken = [node.double.root / ("mon_groups" if is_monitor else "") / f"m{each}" for each in range(5)]
    taken = taken if is_monitor else taken[:3]
    for each in taken:
        each.mkdir()
    try:
        begun, begun_s = len(node.double.commands()), time.monotonic()
        node.want(None, "pod-1") if is_monitor else node.want(OWN)
        took_s = time.monotonic() - begun_s
        asked = [each for each in node.double.commands()[begun:] if PREFIX in each.path and each.code]
        # One in each second that it takes, and not one for each of the tasks.
        assert 1 <= len(asked) <= 3 + took_s
    finally:
        for each in taken:
            each.rmdir()
    node.verify()
    wait_until(
        lambda: len(node.tasks("" if is_monitor else "pod-1", "pod-1" if is_monitor else "")) > 40, "all", 60
    )


def test_nothing_is_kept_of_pods_that_are_gone(node: Node) -> None:
    for number in range(3):
        node.groups.write(OWN.partition(",")[2], f"pod-{number}")
        with pytest.raises(OSError, match="does not take"):
            node.groups.write("L3:0=5;1=5", f"pod-x{number}")
        node.keep(set(), set())
    node.groups.write(BE, "BE")
    node.keep({"BE"}, set())
    kept = {name: each for name, each in vars(node.groups).items() if isinstance(each, dict) and each}
    assert kept == {"_resources": {"BE": frozenset({"L3", "MB"})}}


def test_groups_of_others_that_come_and_go(node: Node) -> None:
    """A list of tasks that was open when its group went is no error of all other pods."""
    pid = node.box.start()
    node.settings.apply(CLASSES)
    theirs = node.double.root / "theirs"
    theirs.mkdir()
    descriptor = os.open(theirs / "tasks", os.O_RDONLY)
    try:
        theirs.rmdir()
        with pytest.raises(OSError, match="No such device"):
            os.read(descriptor, 100)
        assert resctrl._numbers(Path(f"/proc/self/fd/{descriptor}")) == []
    finally:
        os.close(descriptor)
    node.want("BE")
    assert node.tasks("BE") == {pid}


def test_schemata_that_the_kernel_refuses(node: Node) -> None:
    (failed,) = node.settings.apply({"resctrl.BE": "L3:0=5;1=7"})
    assert failed.error.startswith("EINVAL: the kernel does not take L3:0=5;1=7: ")
    assert "non-consecutive" in failed.error
    # A group without these would be one without a limit.
    assert node.double.groups == set()


def test_another_program_that_keeps_writing(node: Node) -> None:
    node.settings.apply(CLASSES)
    for _ in range(OVERWRITES):
        assert node.schemata("BE") == BE
        node.double.write(f"{PREFIX}BE/schemata", "MB:0=50\n")
        node.settings.verify(among="resctrl.")
    assert node.schemata("BE") == BE.replace("MB:0=20", "MB:0=50")
    assert node.settings.unapplied["resctrl.BE"].cause is UnappliedCause.FOREIGN


def test_a_group_that_another_program_removes_is_made_again(node: Node) -> None:
    node.settings.apply(CLASSES)
    pid = node.box.start()
    node.want("BE")
    (node.double.root / f"{PREFIX}BE").rmdir()
    node.settings.verify(among="resctrl.")
    node.verify()
    assert node.tasks("BE") == {pid}


def test_counters_are_read_and_what_is_away_is_said(node: Node) -> None:
    node.settings.apply(CLASSES)
    node.box.start()
    node.want("BE", "pod-1")
    node.double.show_counters(mbm_total_bytes="Unavailable", mbm_local_bytes="Error")
    (found,) = node.groups.counters()
    assert (found.uid, found.group, len(found.counters)) == ("1", "BE", 6)
    assert [(each.value, each.problem) for each in found.counters if each.name == "mbm_total_bytes"] == [
        (None, "Unavailable"),
        (None, "Unavailable"),
    ]
    assert {each.problem for each in found.counters if each.name == "mbm_local_bytes"} == {"Error"}
    assert all(each.value is not None for each in found.counters if each.name == "llc_occupancy")


def test_restore_removes_our_groups_alone(node: Node) -> None:
    (node.double.root / "BE").mkdir()
    try:
        node.settings.apply(CLASSES)
        pid = node.box.start()
        node.want(OWN, "pod-1")
        planned = restore_kernel_settings(node.settings, dry_run=True)
        assert {each.field for each in planned} == {"resctrl.BE", "resctrl.LS", "pod-1"}
        assert {each.status for each in planned} == {Status.PLANNED}
        done = restore_kernel_settings(node.settings, dry_run=False)
        assert {each.status for each in done} == {Status.RESTORED}
        assert node.double.groups == {"BE"}
        assert pid in node.double.tasks()
    finally:
        (node.double.root / "BE").rmdir()
