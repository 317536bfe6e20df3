"""Values of processes from claim to giving back, on real processes in cgroups of this machine's version 1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter, WriteOutcome
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger import foreign
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.records import Level
from runtimeproxy.restore.command import restore_cgroups, states
from runtimeproxy.restore.plan import NodeState, Status, plan
from tests.cgroups.boxes import CAP_SYS_RESOURCE, SCORE, Box, has_right, real_box, score_of

ASKED, OURS = 100, 300
BOOT = "boot"


class Container:
    """A container, and a ledger that gives it scores."""

    def __init__(self, box: Box, state: Path) -> None:
        self.box, self._state, self.now_s = box, state, 1_000.0
        self.journal = Journal(state, BOOT)
        self.ledger = self.new_ledger()

    def new_ledger(self) -> Ledger:
        return Ledger(CgroupWriter(), self.journal, BOOT, lambda: self.now_s)

    def claim(self, score: int | None, booked: int | None = ASKED) -> None:
        """Wants a score for the container, or none any more."""
        claims = {} if score is None else {SCORE: (Claim(Claimant("oom-score"), Role.SET, score),)}
        target = CgroupTarget(Level.CONTAINER, self.box.cgroup, "shop/web/main", "u1")
        asked = {SCORE: ASKED}
        self.ledger.change([Wanted(target, claims, asked, {} if booked is None else {SCORE: booked})])

    def compare(self, after_s: float = 10.0) -> None:
        self.now_s += after_s
        self.ledger.verify(list(Level), [self.box.cgroup], frozenset({SCORE}))

    def start(self, score: int = ASKED) -> int:
        return self.box.start(score=score)

    @property
    def causes(self) -> list[tuple[UnappliedCause, str]]:
        return [(each.cause, each.reason) for each in self.ledger.books.unapplied.values()]

    def kill(self) -> None:
        """The daemon is killed: another one has the journal alone."""
        os.close(self.journal._descriptor)
        self.journal._descriptor = -1
        self.journal = Journal(self._state, BOOT)
        self.ledger = self.new_ledger()
        self.ledger.books.add_noted(self.ledger.read_journal())


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    with real_box() as box:
        made = Container(box, tmp_path / "state")
        yield made
        made.journal.close()


def test_running_processes_get_a_score_and_the_kubelets_back(container: Container) -> None:
    pids = [container.start(), container.start()]
    container.claim(OURS)
    assert [score_of(pid) for pid in pids] == [OURS, OURS]
    container.claim(OURS + 50)
    assert [score_of(pid) for pid in pids] == [OURS + 50] * 2
    container.claim(None)
    assert [score_of(pid) for pid in pids] == [ASKED, ASKED]
    assert len(container.ledger.books) == 0
    assert container.causes == []


def test_processes_that_have_changed_themselves_keep_that(container: Container) -> None:
    mine, other = container.start(), container.start()
    container.claim(OURS)
    Path(f"/proc/{other}/oom_score_adj").write_text("700")
    container.claim(None)
    assert (score_of(mine), score_of(other)) == (ASKED, 700)
    assert len(container.ledger.books) == 0


def test_what_the_runtime_starts_in_a_running_container_is_no_foreign_writer(container: Container) -> None:
    """An exec probe every 10 s has the score of the container's creation."""
    first = container.start()
    container.claim(OURS)
    for _ in range(foreign.OVERWRITES + 2):
        probe = container.start()
        container.compare()
        assert (score_of(first), score_of(probe)) == (OURS, OURS)
    assert container.ledger.yielded() == ()
    assert container.causes == []


@pytest.mark.parametrize("own", [0, 700])
def test_a_program_that_keeps_changing_it_is_left_alone(container: Container, own: int) -> None:
    """As PostgreSQL does with 0, the neutral value, for each of its children."""
    first, other = container.start(), container.start()
    container.claim(OURS)
    for _ in range(foreign.OVERWRITES):
        Path(f"/proc/{other}/oom_score_adj").write_text(str(own))
        container.compare()
    assert (score_of(first), score_of(other)) == (OURS, own)
    ((cause, reason),) = container.causes
    assert cause is UnappliedCause.FOREIGN
    assert f"{min(own, OURS)} {max(own, OURS)}" in reason
    container.compare(foreign.FIRST_YIELD_S)
    assert score_of(other) == OURS


def test_a_container_that_was_made_with_the_score(container: Container) -> None:
    """The runtime gives it to what it starts later, too, as long as the container runs."""
    first = container.start(OURS)
    container.claim(OURS, booked=OURS)
    container.compare()
    container.claim(None, booked=OURS)
    assert score_of(first) == ASKED
    later = container.start(OURS)
    container.compare()
    assert (score_of(first), score_of(later)) == (ASKED, ASKED)
    assert not container.ledger.books.has_leftovers


def test_a_daemon_that_was_killed_gives_it_back(container: Container) -> None:
    pid, other = container.start(), container.start()
    container.claim(OURS)
    Path(f"/proc/{other}/oom_score_adj").write_text("700")
    container.kill()
    container.claim(None)
    assert (score_of(pid), score_of(other)) == (ASKED, 700)


def test_restore_gives_it_back(container: Container) -> None:
    pid, other = container.start(), container.start()
    container.claim(OURS)
    Path(f"/proc/{other}/oom_score_adj").write_text("700")
    writer = CgroupWriter()
    node = NodeState({}, states(container.ledger, writer))
    (line,) = restore_cgroups(writer, plan(Saved(), node, writer).cgroups)
    assert (line.field, line.new, line.status) == (SCORE, ASKED, Status.RESTORED)
    assert (score_of(pid), score_of(other)) == (ASKED, 700)
    (line,) = plan(Saved(), NodeState({}, states(container.ledger, writer)), writer).lines
    assert (line.status, line.reason) == (Status.LEFT, "another program has changed it since")


@pytest.mark.skipif(has_right(CAP_SYS_RESOURCE), reason="this process may lower every score")
def test_what_the_kernel_refuses_has_a_line_with_the_missing_right(container: Container) -> None:
    pid = container.start()
    container.claim(-500)
    refused = "EACCES: such a value needs CAP_SYS_RESOURCE (1 of 1 processes)"
    assert container.causes == [(UnappliedCause.REFUSED, refused)]
    container.compare()
    assert container.causes == [(UnappliedCause.REFUSED, refused)]
    container.claim(OURS)
    assert (score_of(pid), container.causes) == (OURS, [])
    container.claim(None)
    assert score_of(pid) == ASKED


def test_a_container_without_processes_waits_for_nothing(container: Container) -> None:
    container.claim(OURS)
    container.compare()
    assert container.causes == []
    pid = container.start()
    container.compare()
    assert score_of(pid) == OURS


def test_processes_that_cannot_be_seen_are_said(tmp_path: Path) -> None:
    """On plain files: the daemon has a PID namespace of its own."""
    folder = tmp_path / "cgroup/kubepods/pod1/box"
    folder.mkdir(parents=True)
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpu memory pids\n")
    for name, text in (("cgroup.procs", "0\n"), ("cpu.weight", "100\n")):
        (folder / name).write_text(text)
    ledger = Ledger(CgroupWriter(tmp_path / "cgroup"), Journal(tmp_path / "state", BOOT), BOOT)
    target = CgroupTarget(Level.CONTAINER, "/kubepods/pod1/box", "shop/web/main", "u1")
    scores = {SCORE: (Claim(Claimant("oom-score"), Role.SET, OURS),)}
    (result,) = ledger.change([Wanted(target, scores)])
    assert result.outcome is WriteOutcome.FAILED
    for cause in (UnappliedCause.REFUSED, UnappliedCause.UNREADABLE):
        (found,) = ledger.books.unapplied.values()
        assert found.cause is cause
        assert "(hostPID)" in found.reason
        ledger.verify(list(Level))
