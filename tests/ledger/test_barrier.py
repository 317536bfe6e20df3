"""Between two CPU modes: values are cleared, that is read back, sysctls are switched, values are written.

The kernel of these tests is as strict as the real one: without the sysctl it refuses identities.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from policies.group_identity import BVT, CORE_SCHED_SYSCTL, GROUP_IDENTITY_SYSCTL
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim, Resolved, Role
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import SYSCTL, Field, Merged
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.policy import Hook, Policy
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.ledger import upkeep as module
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.cpu_mode import OF_MODES
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.kernel_settings import KernelSettings, SettingChange
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.node.snapshot import FixedNode, Node
from runtimeproxy.pods.records import ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles
from tests.ledger.claims import decision_of

CLASS = "/kubepods/burstable"
PODS = [f"{CLASS}/pod{number}" for number in range(2)]
CGROUPS = ["/kubepods", CLASS, *PODS, *(f"{each}/box" for each in PODS)]
SANDBOX = f"{PODS[0]}/sandbox"
"""No policy says anything about it: it has the identity that its pod had when it was created."""
OFF, ON, CORE = ("0", "1"), ("1", "0"), ("0", "1")
"""Group identity and core scheduling. Core scheduling is on before the daemon comes."""
NAMES = (GROUP_IDENTITY_SYSCTL, CORE_SCHED_SYSCTL)


class Killed(BaseException):
    pass


class Kernel(CgroupWriter):
    """Cgroups and sysctls; identities need the sysctl."""

    def __init__(self, files: CgroupFiles, folder: Path) -> None:
        super().__init__(files.root)
        self.files = files
        self.refused: list[str] = []
        self.stuck = ""
        # Steps until the process is killed.
        self.lives = 1_000_000
        self._kernel = folder / "kernel"
        self._kernel.mkdir(parents=True, exist_ok=True)

    def step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Killed

    def switch(self, values: Sequence[str]) -> None:
        for name, value in zip(NAMES, values, strict=True):
            (self._kernel / name.removeprefix("kernel.")).write_text(f"{value}\n")

    def switches(self) -> tuple[str, ...]:
        return tuple((self._kernel / each.removeprefix("kernel.")).read_text().strip() for each in NAMES)

    def identities(self) -> set[str]:
        return {self.files.read(each, BVT).strip() for each in CGROUPS}

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        results: list[WriteResult] = []
        for level in levels:
            for each in level:
                value = each.values.get(BVT)
                self.step()
                if each.cgroup == self.stuck or (self.switches() != ON and value not in (0, None)):
                    self.refused.append(each.cgroup)
                    outcome = WriteOutcome.FAILED
                    results.append(WriteResult(each.cgroup, BVT, value or 0, outcome, error="EINVAL"))
                else:
                    results += super().write_levels([[each]])
                self.step()
        return tuple(results)


class Switches(KernelSettings):
    """The sysctls of this kernel; what is on without them is an error."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        super().__init__(folder / "state", "boot", folder)
        self._of = kernel
        self.read_only = ""

    def apply(
        self, wanted: Mapping[str, int | str], *, releases: Collection[str] | None = None
    ) -> tuple[SettingChange, ...]:
        before = self._of.switches()
        changes = super().apply(wanted, releases=releases)
        if self._of.switches() != before or before != ON:
            assert self._of.identities() == {"0"}
        return changes

    def _set(self, held: dict[str, Any], name: str, value: str, *, is_check: bool = False) -> Any:
        if name == self.read_only:
            return [SettingChange(name, self._read(name) or "", value, "EROFS")]
        self._of.step()
        changes = super()._set(held, name, value, is_check=is_check)
        self._of.step()
        return changes

    def _release(self, held: dict[str, Any], name: str) -> Any:
        self._of.step()
        changes = super()._release(held, name)
        self._of.step()
        return changes


class Waiting(Policy):
    """Does not say what it sets."""

    name = "waiting"


class WaitingForFiles(Waiting):
    """Says that it sets no sysctl."""

    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {"pod": frozenset({"cpu.shares"})}


class Policies:
    """A chain with group identity, with core scheduling, or with neither; and with a quota for pods."""

    rule = ConflictRule.EARLIER
    unsettled: frozenset[str] = frozenset()
    hooks = frozenset({Hook.EVALUATE_QOS_CLASS, Hook.EVALUATE_NODE})
    node = FixedNode()
    policies: Sequence[Any] = ()
    mode: tuple[str, ...] = ON
    quota_us = 50_000

    async def evaluate(self, view: object) -> Decision:
        if isinstance(view, Node):
            if self.mode == OFF:
                return decision_of({})
            # What is switched on comes first here: the mode is to bring its own order.
            wanted = dict(sorted(zip(NAMES, self.mode, strict=True), key=lambda each: each[1] == "0"))
            fields = {Field(SYSCTL, name): Resolved(value) for name, value in wanted.items()}
            return Decision(hook=Hook.EVALUATE_NODE, merged=Merged(PodView(), fields))
        value = -1 if isinstance(view, PodView | ContainerView) else 2
        claims = {BVT: (Claim(Claimant("group-identity"), Role.SET, value),)} if self.mode is ON else {}
        if isinstance(view, PodView):
            claims["cpu.cfs_quota_us"] = (Claim(Claimant("batch-resource"), Role.SET, self.quota_us),)
        return decision_of(claims)


class Daemon:
    """One process; the next one finds what it has left in the folder."""

    def __init__(self, folder: Path, executor: ThreadPoolExecutor, policies: Policies) -> None:
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.kernel, self.policies, self.store = Kernel(self.files, folder), policies, PodStore()
        for number, cgroup in enumerate(PODS):
            self.store.pods.put(PodRecord(id=f"s{number}", name=f"web{number}", cgroup_parent=cgroup))
            box = ContainerRecord(
                id=f"box{number}", pod_id=f"s{number}", name="main", state=Lifecycle.RUNNING
            )
            self.store.containers.put(box)
        self.journal = Journal(folder / "state", "boot")
        self.ledger = Ledger(self.kernel, self.journal, "boot")
        self.ledger.books.add_noted(self.ledger.read_journal())
        self.sysctls = Switches(self.kernel, folder)
        self.upkeep = Upkeep(
            self.store,
            self.ledger,
            lambda: policies,  # type: ignore[arg-type,return-value]
            lambda pod, record: f"{pod.cgroup_parent}/box",
            executor,
            lambda: False,
            BY_CALLS,
            self.sysctls,
        )
        self.evaluator = self.upkeep.evaluator

    def texts(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """What is in all files."""
        found = {each: self.files.read(each, BVT).strip() for each in (*CGROUPS, SANDBOX)}
        quotas = {f"{each} quota": self.files.read(each, "cpu.max").split()[0] for each in PODS}
        return found | quotas, self.kernel.switches()

    def end(self) -> None:
        if self.journal._descriptor >= 0:
            os.close(self.journal._descriptor)
            self.journal._descriptor = -1


def make(folder: Path) -> None:
    """The node before the first daemon."""
    files = CgroupFiles(folder / "cgroup", version=2)
    for cgroup in (*CGROUPS, SANDBOX):
        files.make(cgroup)
        (files.folder(cgroup) / BVT).write_text("0\n")
    Kernel(files, folder).switch(OFF)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Daemon]:
    make(tmp_path)
    with ThreadPoolExecutor(2) as executor:
        daemon = Daemon(tmp_path, executor, Policies())
        yield daemon
        daemon.end()


async def test_on_and_off(scene: Daemon) -> None:
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == ON
    assert scene.kernel.identities() == {"-1", "2"}
    scene.policies.mode = OFF
    await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"0"}
    assert scene.kernel.switches() == OFF
    assert scene.kernel.refused == []


async def test_a_value_that_cannot_be_given_back_holds_the_sysctls(
    scene: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.evaluator.evaluate_all()
    scene.policies.mode = OFF
    scene.kernel.stuck = PODS[1]
    await scene.evaluator.evaluate_all()
    await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"0", "-1"}
    assert scene.kernel.switches() == ON
    scene.kernel.stuck = ""
    # The next comparison gives it back, and then the sysctls are.
    monkeypatch.setattr(module, "TICK_S", 0)
    scene.upkeep.evaluator.has_evaluated = True
    verifying = asyncio.get_running_loop().create_task(scene.upkeep.verify())
    async with asyncio.timeout(30):
        await scene.evaluator._requested.wait()
    verifying.cancel()
    await asyncio.gather(verifying, return_exceptions=True)
    assert scene.kernel.identities() == {"0"}
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == OFF


async def test_another_mode(scene: Daemon) -> None:
    await scene.evaluator.evaluate_all()
    (scene.files.folder(SANDBOX) / BVT).write_text("-1\n")
    scene.policies.mode = CORE
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == CORE
    assert scene.kernel.identities() == {"0"}
    assert scene.files.read(SANDBOX, BVT) == "0", "a cgroup inherits, and does not follow"
    assert scene.upkeep.summary == ""
    scene.policies.mode = ON
    await scene.evaluator.evaluate_all()
    assert (scene.kernel.switches(), scene.kernel.identities()) == (ON, {"-1", "2"})
    assert scene.kernel.refused == []


async def test_a_cgroup_that_cannot_be_cleared_holds_the_switch_and_nothing_else(
    scene: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.evaluator.evaluate_all()
    scene.policies.mode, scene.policies.quota_us, scene.kernel.stuck = CORE, 60_000, f"{PODS[1]}/box"
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == ON
    assert "values of 1 cgroups cannot be given back, such as those of " + PODS[1] in scene.upkeep.summary
    assert "the CPU mode cannot be changed" in caplog.text
    quotas = [scene.files.read(each, "cpu.max").split()[0] for each in PODS]
    assert quotas == ["60000"] * 2
    # A call that was decided before.
    claims = {BVT: (Claim(Claimant("group-identity"), Role.SET, -1),)}
    scene.ledger.change([Wanted(CgroupTarget(Level.POD, PODS[0]), claims)])
    scene.ledger.start(Wanted(CgroupTarget(Level.CONTAINER, f"{PODS[0]}/new"), claims))
    assert scene.files.read(PODS[0], BVT) == "0"
    scene.kernel.stuck = ""
    monkeypatch.setattr(module, "TICK_S", 0)
    scene.evaluator._requested.clear()
    scene.upkeep.evaluator.has_evaluated = True
    verifying = asyncio.get_running_loop().create_task(scene.upkeep.verify())
    async with asyncio.timeout(30):
        await scene.evaluator._requested.wait()
    verifying.cancel()
    await asyncio.gather(verifying, return_exceptions=True)
    await scene.evaluator.evaluate_all()
    assert (scene.kernel.switches(), scene.upkeep.summary) == (CORE, "")


async def test_a_file_that_hangs_holds_the_switch(scene: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.evaluator.evaluate_all()
    scene.policies.mode = CORE
    monkeypatch.setattr(module, "WORK_S", 0.05)
    may_end, write = threading.Event(), scene.kernel.write_levels

    def hangs(levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        if levels[0][0].cgroup == PODS[1]:
            may_end.wait(30)
        return write(levels)

    monkeypatch.setattr(scene.kernel, "write_levels", hangs)
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == ON
    assert "cannot be given back" in scene.upkeep.summary
    scene.evaluator._requested.clear()
    may_end.set()
    async with asyncio.timeout(30):
        await scene.evaluator._requested.wait()
    scene.evaluator._requested.clear()
    monkeypatch.setattr(module, "WORK_S", 30)
    await scene.evaluator.evaluate_all()
    assert (scene.kernel.switches(), scene.kernel.identities()) == (CORE, {"0"})


async def test_what_the_kernel_keeps_holds_the_switch(scene: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that no book has is read from the file: here that of a sandbox."""
    await scene.evaluator.evaluate_all()
    (scene.files.folder(SANDBOX) / BVT).write_text("-1\n")
    scene.policies.mode, scene.kernel.stuck = CORE, SANDBOX
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == ON
    assert f"1 cgroups are not neutral: {BVT} of {SANDBOX} is -1 (EINVAL)" in scene.upkeep.summary
    scene.kernel.stuck = ""
    assert scene.upkeep._barrier is not None
    assert not scene.upkeep._barrier.is_due(is_long=False)
    assert scene.upkeep._barrier.is_due(is_long=True)
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == CORE


async def test_a_sysctl_that_cannot_be_written_holds_the_values(scene: Daemon) -> None:
    """Those of a mode that is not in force; the kernel would refuse them."""
    scene.sysctls.read_only = GROUP_IDENTITY_SYSCTL
    await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"0"}
    assert f"the CPU mode cannot be changed: {GROUP_IDENTITY_SYSCTL}" in scene.upkeep.summary
    assert scene.kernel.refused == []
    assert scene.files.read(PODS[0], "cpu.max").startswith("50000")
    scene.sysctls.read_only = ""
    await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"-1", "2"}


async def test_values_of_other_policies_stay_without_a_mode(scene: Daemon) -> None:
    scene.policies.mode = OFF
    scene.kernel.switch(ON)  # by an administrator
    await scene.evaluator.evaluate_all()
    scene.ledger.change(
        [Wanted(CgroupTarget(Level.POD, PODS[0]), {BVT: (Claim(Claimant("mine"), Role.SET, 1),)})]
    )
    assert scene.files.read(PODS[0], BVT) == "1"


async def test_what_a_successor_that_has_ended_did_is_known(scene: Daemon, tmp_path: Path) -> None:
    """It gives the first daemon's mode back, or switches to another one, and is killed."""
    await scene.evaluator.evaluate_all()
    for mode in (OFF, CORE):
        with ThreadPoolExecutor(1) as executor:
            policies = Policies()
            policies.mode = mode
            successor = Daemon(tmp_path, executor, policies)
            successor.ledger.books.load(scene.ledger.books)
            await successor.evaluator.evaluate_all()
            assert scene.kernel.switches() == mode
            scene.ledger.books.load(successor.ledger.books)
            successor.end()
        scene.upkeep.on_taken_back()
        scene.ledger.release(CGROUPS, names={BVT})
        await scene.evaluator.evaluate_all()
        assert (scene.kernel.switches(), scene.kernel.identities()) == (ON, {"-1", "2"})
    KernelSettings(tmp_path / "state", "boot", tmp_path).apply({})  # as `restore` does
    assert scene.kernel.switches() == OFF


async def test_a_mode_without_sysctls_is_taken_once(
    scene: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel that has identities, and nothing that switches them on."""
    for path in scene.sysctls._root.joinpath("kernel").iterdir():
        path.unlink()
    monkeypatch.setattr(scene.kernel, "switches", lambda: ON)
    apply, closed = scene.sysctls.apply, list[frozenset[str]]()

    def look(wanted: Mapping[str, int | str], **more: Any) -> tuple[SettingChange, ...]:
        closed.append(scene.ledger.books.blocked)
        return apply(wanted, **more)

    monkeypatch.setattr(scene.sysctls, "apply", look)
    with caplog.at_level(logging.INFO):
        await scene.evaluator.evaluate_all()
        closed.clear()
        await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"-1", "2"}
    assert caplog.text.count("the CPU mode is group identity now") == 1
    assert set(closed) == {OF_MODES - {BVT}}, "a container that is created meanwhile keeps its identity"


async def test_while_a_policy_has_no_answer_the_mode_stays(scene: Daemon) -> None:
    await scene.evaluator.evaluate_all()
    scene.policies.mode = OFF
    scene.ledger.books.not_loaded = frozenset({"group-identity"})
    await scene.evaluator.evaluate_all()
    assert (scene.kernel.switches(), scene.kernel.identities()) == (ON, {"-1", "2"})
    scene.ledger.books.not_loaded = frozenset()
    await scene.evaluator.evaluate_all()
    assert (scene.kernel.switches(), scene.kernel.identities()) == (OFF, {"0"})


async def test_a_policy_that_sets_no_sysctl_holds_none(scene: Daemon) -> None:
    """Such as one that waits for an input that never comes."""
    await scene.evaluator.evaluate_all()
    scene.policies.mode = OFF
    for policy, is_held in ((Waiting(), True), (WaitingForFiles(), False)):
        scene.policies.policies = [bind(policy)]
        scene.policies.unsettled = frozenset({"waiting"})
        await scene.evaluator.evaluate_all()
        assert scene.kernel.switches() == (ON if is_held else OFF)


@pytest.mark.parametrize(("before", "after"), [(ON, CORE), (ON, OFF), (OFF, ON)])
async def test_a_kill_between_any_two_steps(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    ends = []
    with ThreadPoolExecutor(2) as executor:
        for lives in itertools.count():
            folder = tmp_path / str(lives)
            make(folder)
            policies = Policies()
            policies.mode = before
            first = Daemon(folder, executor, policies)
            await first.evaluator.evaluate_all()
            (first.files.folder(SANDBOX) / BVT).write_text(first.files.read(PODS[0], BVT))
            policies.mode, policies.quota_us, first.kernel.lives = after, 60_000, lives
            is_killed = True
            with suppress(Killed):
                await first.evaluator.evaluate_all()
                is_killed = False
            first.end()
            second = Daemon(folder, executor, policies)
            await second.evaluator.evaluate_all()
            ends.append(second.texts())
            assert (second.upkeep.summary, second.kernel.refused) == ("", [])
            second.end()
            if not is_killed:
                break
    assert len(ends) > 10
    assert all(end == ends[-1] for end in ends)
    identities = {value for cgroup, value in ends[-1][0].items() if cgroup in CGROUPS}
    assert (identities, ends[-1][1]) == ({"-1", "2"} if after is ON else {"0"}, after)
