"""Core scheduling groups in the books: cookies of all tasks, through restarts, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.cgroups.core_scheduling import FIELD, CoreGroups
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import Applied
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.records import Level
from runtimeproxy.testing import CgroupFiles
from tests.cgroups.cookies import Cookies, Tasks

PODS = "/kubepods/burstable"
WEB, API, BATCH = (f"{PODS}/{name}/box" for name in ("web", "api", "batch"))


class Node:
    """Cgroups with tasks, and the daemon's ledger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kernel = Cookies()
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.tasks = Tasks(self.files, folder / "proc", self.kernel)
        self.journals: list[Journal] = []
        self.start()

    def start(self) -> None:
        """A daemon, after the end of the one before; what was not saved is in the journal."""
        groups = CoreGroups(self.kernel)
        self.writer = CgroupWriter(self.files.root, self.tasks.procfs, groups=groups)
        journal = Journal(self._folder / "state", "boot")
        self.journals.append(journal)
        self.ledger = Ledger(self.writer, journal, "boot")
        self.ledger.books.add_noted(self.ledger.read_journal())

    def want(self, cgroup: str, group: str | None) -> tuple[Applied, ...]:
        claims = {} if group is None else {FIELD: (Claim(Claimant("core-sched"), Role.SET, group),)}
        return self.ledger.change([Wanted(CgroupTarget(Level.CONTAINER, cgroup), claims)])

    def verify(self) -> None:
        self.ledger.verify([Level.CONTAINER], None, frozenset({FIELD}))

    def text(self, cgroup: str) -> str:
        return self.ledger.look(cgroup, (FIELD,))[FIELD].text.strip()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    for cgroup in (WEB, API, BATCH):
        made.tasks.make(cgroup)
    yield made
    for journal in made.journals:
        journal.close()


def test_all_tasks_of_a_group_have_its_cookie(node: Node) -> None:
    below = f"{WEB}/init.scope"
    node.tasks.make(below)
    web = [node.tasks.start(WEB), node.tasks.start(WEB), node.tasks.start(below)]
    web.append(node.tasks.start(WEB, process=web[0]))
    api, batch = node.tasks.start(API), node.tasks.start(BATCH)
    for cgroup, group in ((WEB, "group:web"), (API, "group:web"), (BATCH, "group:")):
        (applied,) = node.want(cgroup, group)
        assert applied.error == ""
    assert len(set(node.kernel.of(*web, api))) == 1
    assert len({0, *node.kernel.of(web[0], batch)}) == 3
    # The runtime starts a program in it, which has not its first process for a parent.
    later = node.tasks.start(WEB)
    node.verify()
    assert node.kernel.of(later) == node.kernel.of(api)
    assert node.ledger.yielded() == ()


def test_another_group_and_none(node: Node) -> None:
    web, api = node.tasks.start(WEB), node.tasks.start(API)
    node.want(WEB, "group:web")
    node.want(API, "group:web")
    node.want(WEB, "pod:u")
    assert len({0, *node.kernel.of(web, api)}) == 3
    node.want(API, None)
    assert node.kernel.of(api) == [0]
    node.want(WEB, None)
    assert node.kernel.of(web) == [0]
    assert node.ledger.books.record(WEB) is None or not node.ledger.books.record(WEB).entries  # type: ignore[union-attr]


def test_a_cookie_that_a_program_has_made_is_not_taken_from_it(node: Node) -> None:
    """When the group goes; while it is wanted it applies to all tasks."""
    web, own = node.tasks.start(WEB), node.tasks.start(WEB)
    node.want(WEB, "group:web")
    node.kernel.cookies[own] = 7
    node.verify()
    assert node.kernel.of(own) == node.kernel.of(web)
    node.kernel.cookies[own] = 7
    node.want(WEB, None)
    assert node.kernel.of(web, own) == [0, 7]


def test_a_kill_keeps_the_cookies(node: Node) -> None:
    tasks = [node.tasks.start(cgroup) for cgroup in (WEB, API, BATCH)]
    for cgroup, group in ((WEB, "group:web"), (API, "group:web"), (BATCH, "group:")):
        node.want(cgroup, group)
    before = node.kernel.of(*tasks)
    node.start()
    assert node.text(BATCH) == "group:"
    node.verify()
    assert node.kernel.of(*tasks) == before
    new = f"{PODS}/web-2/box"
    node.tasks.make(new)
    task = node.tasks.start(new)
    node.start()
    node.want(new, "group:web")
    assert node.kernel.of(task) == node.kernel.of(tasks[0])
    assert (node.kernel.made, node.ledger.yielded()) == (2, ())
    # And the next one gives them back.
    node.start()
    for cgroup in (WEB, API, BATCH, new):
        node.want(cgroup, None)
    assert node.kernel.of(*tasks, task) == [0] * 4


def test_a_kill_while_a_container_moves(node: Node) -> None:
    """Some of its tasks have the cookie of the other group."""
    api = [node.tasks.start(API) for _ in range(3)]
    web = [node.tasks.start(WEB), node.tasks.start(BATCH)]
    node.want(API, "group:a")
    node.want(WEB, "group:b")
    node.want(BATCH, "group:b")
    a, b = node.kernel.of(api[0], web[0])
    node.kernel.cookies[api[1]] = b
    node.start()
    node.verify()
    assert node.kernel.of(*api, *web) == [a, a, a, b, b]


def test_without_the_right_to_trace(node: Node) -> None:
    task = node.tasks.start(WEB)
    node.kernel.refused.add(task)
    (applied,) = node.want(WEB, "group:web")
    assert "EPERM" in applied.error
    node.verify()
    (withheld,) = node.ledger.books.unapplied.values(WEB)
    assert "CAP_SYS_PTRACE" in withheld.reason
    node.kernel.refused.clear()
    node.verify()
    assert node.text(WEB) == "group:web"
    assert node.ledger.yielded() == ()


def test_a_program_that_keeps_its_own_cookie_is_left_to_it_for_a_time(node: Node) -> None:
    task = node.tasks.start(WEB)
    node.want(WEB, "group:web")
    for _ in range(4):
        node.kernel.cookies[task] = 7
        node.verify()
    assert node.kernel.of(task) == [7]
    (yielded,) = node.ledger.yielded()
    assert (yielded.ours, yielded.theirs) == ("group:web", "cookie:7")


def test_all_is_cleared_for_another_mode(node: Node) -> None:
    """Also what no book has."""
    web, own = node.tasks.start(WEB), node.tasks.start(API)
    node.want(WEB, "group:web")
    node.kernel.cookies[own] = 7
    node.ledger.release([WEB], names={FIELD})
    assert node.ledger.clear(["/kubepods"], {FIELD}, 3) == ()
    assert node.kernel.of(web, own) == [0, 0]
    node.kernel.refused.add(own)
    node.kernel.cookies[own] = 7
    assert node.ledger.clear(["/kubepods"], {FIELD}, 3) != (), "what cannot be read is not clear"
