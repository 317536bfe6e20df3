"""Between group identity and core scheduling: never a cookie and an identity, nor a switch over one of them.

The kernel of these tests is as strict as some are in fact: they hang with both.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from policies.core_sched import CORE_SCHED_SYSCTL, GROUP, GROUP_IDENTITY_SYSCTL
from policies.group_identity import BVT
from runtimeproxy.cgroups.core_scheduling import Command, CoreGroups, Scope
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Resolved, Role
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import SYSCTL, Field, Merged
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.kernel_settings import KernelSettings
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.node.snapshot import FixedNode, Node
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles
from tests.cgroups.cookies import Cookies, Tasks
from tests.ledger.claims import decision_of

PODS = [f"/kubepods/burstable/pod{number}" for number in range(2)]
BOXES = [f"{pod}/box" for pod in PODS]
OFF, IDENTITY, CORE = ("0", "0"), ("1", "0"), ("0", "1")
"""Group identity and core scheduling."""
NAMES = (GROUP_IDENTITY_SYSCTL, CORE_SCHED_SYSCTL)


class Killed(BaseException):
    pass


class Kernel(Cookies):
    """Cookies need one sysctl, identities the other one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.tasks = Tasks(self.files, folder / "proc", self)
        self.folder = folder / "kernel"
        self.folder.mkdir()
        # Calls until the process is killed.
        self.lives = 1_000_000

    def switch(self, values: tuple[str, ...]) -> None:
        for name, value in zip(NAMES, values, strict=True):
            (self.folder / name.removeprefix("kernel.")).write_text(f"{value}\n")

    def switches(self) -> tuple[str, ...]:
        return tuple((self.folder / each.removeprefix("kernel.")).read_text().strip() for each in NAMES)

    def identities(self) -> set[str]:
        return {self.files.read(each, BVT).strip() for each in (*PODS, *BOXES)}

    def __call__(self, command: Command, task: int, scope: Scope) -> int:
        if command is not Command.GET:
            self.lives -= 1
            if self.lives < 0:
                raise Killed
        found = super().__call__(command, task, scope)
        self.check()
        return found

    def check(self) -> None:
        assert self.switches() != ("1", "1")
        if self.cookies:
            assert (self.switches(), self.identities()) == (CORE, {"0"})
        if self.identities() != {"0"}:
            assert self.switches() == IDENTITY


class Switches(KernelSettings):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.folder.parent / "state", "boot", kernel.folder.parent)
        self._kernel = kernel

    def _paths(self, name: str) -> tuple[Path, ...]:
        self._kernel.check()
        return super()._paths(name)


class Policies:
    rule = ConflictRule.EARLIER
    unsettled: frozenset[str] = frozenset()
    hooks = frozenset({Hook.EVALUATE_NODE})
    node = FixedNode()
    policies: tuple[object, ...] = ()
    mode: tuple[str, ...] = CORE

    async def evaluate(self, view: object) -> Decision:
        if isinstance(view, Node):
            wanted = {} if self.mode == OFF else dict(zip(NAMES, self.mode, strict=True))
            fields = {Field(SYSCTL, name): Resolved(value) for name, value in wanted.items()}
            return Decision(hook=Hook.EVALUATE_NODE, merged=Merged(PodView(), fields))
        if self.mode == IDENTITY:
            return decision_of({BVT: (Claim(Claimant("group-identity"), Role.SET, 2),)})
        if self.mode == CORE and isinstance(view, ContainerView):
            claim = Claim(Claimant("core-sched"), Role.SET, f"group:{view.pod.name}")
            return decision_of({GROUP: (claim,)})
        return decision_of({})


class Daemon:
    """One process; the next one finds what it has left in the folder."""

    def __init__(self, kernel: Kernel, executor: ThreadPoolExecutor, policies: Policies) -> None:
        store = PodStore()
        for number, cgroup in enumerate(PODS):
            store.pods.put(PodRecord(id=f"s{number}", name=f"web{number}", cgroup_parent=cgroup))
            running = Lifecycle.RUNNING
            box = ContainerRecord(id=f"box{number}", pod_id=f"s{number}", name="main", state=running)
            store.containers.put(box)
        self.journal = Journal(kernel.folder.parent / "state", "boot")
        writer = CgroupWriter(kernel.files.root, kernel.tasks.procfs, groups=CoreGroups(kernel))
        self.ledger = Ledger(writer, self.journal, "boot")
        self.ledger.books.add_noted(self.ledger.read_journal())
        self.upkeep = Upkeep(
            store,
            self.ledger,
            lambda: policies,  # type: ignore[arg-type,return-value]
            lambda pod, record: f"{pod.cgroup_parent}/box",
            executor,
            lambda: False,
            BY_CALLS,
            Switches(kernel),
        )
        self.evaluate = self.upkeep.evaluator.evaluate_all


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return made(tmp_path)


def made(folder: Path) -> Kernel:
    folder.mkdir(exist_ok=True)
    kernel = Kernel(folder)
    kernel.switch(OFF)
    for cgroup in ("/kubepods", "/kubepods/burstable", *PODS, *BOXES):
        kernel.tasks.make(cgroup)
        (kernel.files.folder(cgroup) / BVT).write_text("0\n")
    for cgroup in (*BOXES, BOXES[0]):
        kernel.tasks.start(cgroup)
    return kernel


def cookies(kernel: Kernel) -> int:
    """How many there are, of three tasks in two groups; -1 if some task has none."""
    found = set(kernel.of(*kernel.processes))
    return len(found) if 0 not in found else -1 if found != {0} else 0


async def test_there_and_back(kernel: Kernel) -> None:
    policies = Policies()
    with ThreadPoolExecutor(2) as executor:
        daemon = Daemon(kernel, executor, policies)
        await daemon.evaluate()
        assert (kernel.switches(), cookies(kernel)) == (CORE, 2)
        # A cookie that no book has.
        kernel.cookies[kernel.tasks.start(PODS[0])] = 7
        policies.mode = IDENTITY
        await daemon.evaluate()
        assert (kernel.switches(), cookies(kernel), kernel.identities()) == (IDENTITY, 0, {"2"})
        policies.mode = CORE
        await daemon.evaluate()
        assert (kernel.switches(), kernel.identities()) == (CORE, {"0"})
        assert len(set(kernel.of(*kernel.processes)) - {0}) == 2
        policies.mode = OFF
        await daemon.evaluate()
        assert (kernel.switches(), cookies(kernel), daemon.upkeep.summary) == (OFF, 0, "")
        daemon.journal.close()


async def test_a_cookie_that_cannot_be_cleared_holds_the_switch(kernel: Kernel) -> None:
    policies = Policies()
    with ThreadPoolExecutor(2) as executor:
        daemon = Daemon(kernel, executor, policies)
        await daemon.evaluate()
        kernel.refused.update(kernel.processes)
        policies.mode = IDENTITY
        await daemon.evaluate()
        assert (kernel.switches(), cookies(kernel), kernel.identities()) == (CORE, 2, {"0"})
        assert "the CPU mode cannot be changed" in daemon.upkeep.summary
        assert "CAP_SYS_PTRACE" in daemon.upkeep.summary
        kernel.refused.clear()
        await daemon.evaluate()
        assert (kernel.switches(), cookies(kernel), kernel.identities()) == (IDENTITY, 0, {"2"})
        daemon.journal.close()


@pytest.mark.parametrize(
    ("before", "after"), [(CORE, IDENTITY), (IDENTITY, CORE), (CORE, OFF), (OFF, CORE), (CORE, CORE)]
)
async def test_a_kill_between_any_two_calls(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    with ThreadPoolExecutor(2) as executor:
        for lives in itertools.count():
            kernel, policies = made(tmp_path / str(lives)), Policies()
            policies.mode = before
            first = Daemon(kernel, executor, policies)
            await first.evaluate()
            policies.mode, kernel.lives = after, lives
            is_killed = True
            with suppress(Killed):
                await first.evaluate()
                is_killed = kernel.lives < 0
            first.journal.close()
            kernel.lives = 1_000_000
            second = Daemon(kernel, executor, policies)
            await second.evaluate()
            assert (kernel.switches(), second.upkeep.summary) == (after, "")
            assert cookies(kernel) == (2 if after is CORE else 0)
            assert kernel.identities() == ({"2"} if after is IDENTITY else {"0"})
            second.journal.close()
            if not is_killed:
                break
