"""Sysctls are set before the values that need them, and given back after these: here group identity's.

The kernel of these tests is as strict as the real one: without the sysctl it refuses identities.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policies.group_identity import BVT, CORE_SCHED_SYSCTL, GROUP_IDENTITY_SYSCTL
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import SYSCTL, Field, Merged, MergedField
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.ledger import upkeep as module
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.sysctls import SysctlChange, Sysctls
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.node.snapshot import FixedNode, Node
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles
from tests.ledger.claims import decision_of

CLASS = "/kubepods/burstable"
PODS = [f"{CLASS}/pod{number}" for number in range(3)]
CGROUPS = ["/kubepods", CLASS, *PODS, *(f"{each}/box" for each in PODS)]
OFF, ON = ("0", "1"), ("1", "0")
"""Group identity and core scheduling."""


class Kernel(CgroupWriter):
    """Cgroups and sysctls; identities need the sysctl."""

    def __init__(self, files: CgroupFiles, folder: Path) -> None:
        super().__init__(files.root)
        self.files = files
        self.refused: list[str] = []
        self.stuck = ""
        self._kernel = folder / "kernel"
        self._kernel.mkdir(parents=True)
        for name, value in zip((GROUP_IDENTITY_SYSCTL, CORE_SCHED_SYSCTL), OFF, strict=True):
            (self._kernel / name.removeprefix("kernel.")).write_text(f"{value}\n")

    def switches(self) -> tuple[str, ...]:
        names = (GROUP_IDENTITY_SYSCTL, CORE_SCHED_SYSCTL)
        return tuple((self._kernel / each.removeprefix("kernel.")).read_text().strip() for each in names)

    def identities(self) -> set[str]:
        return {self.files.read(each, BVT).strip() for each in CGROUPS}

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        results: list[WriteResult] = []
        for level in levels:
            for each in level:
                value = each.values.get(BVT)
                if each.cgroup == self.stuck or (self.switches() != ON and value not in (0, None)):
                    self.refused.append(each.cgroup)
                    outcome = WriteOutcome.FAILED
                    results.append(WriteResult(each.cgroup, BVT, value or 0, outcome, error="EINVAL"))
                else:
                    results += super().write_levels([[each]])
        return tuple(results)


class Switches(Sysctls):
    """The sysctls of this kernel; what is on without them is an error."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        super().__init__(folder / "state", "boot", folder)
        self._of = kernel

    def apply(
        self, wanted: Mapping[str, int | str], *, releases: Collection[str] | None = None
    ) -> tuple[SysctlChange, ...]:
        changes = super().apply(wanted, releases=releases)
        if self._of.switches() != ON:
            assert self._of.identities() == {"0"}
        return changes


class Policies:
    """A chain with group identity, or without."""

    rule = ConflictRule.EARLIER
    unsettled: frozenset[str] = frozenset()
    hooks = frozenset({Hook.EVALUATE_QOS_CLASS, Hook.EVALUATE_NODE})
    node = FixedNode()
    policies: Sequence[Any] = ()
    is_on = True

    async def evaluate(self, view: object) -> Decision:
        if not self.is_on:
            return decision_of({})
        if isinstance(view, Node):
            wanted = {CORE_SCHED_SYSCTL: 0, GROUP_IDENTITY_SYSCTL: 1}
            fields = {Field(SYSCTL, name): MergedField(value, None, "", ()) for name, value in wanted.items()}
            return Decision(hook=Hook.EVALUATE_NODE, merged=Merged(PodView(), fields))
        value = -1 if isinstance(view, PodView | ContainerView) else 2
        return decision_of({BVT: (Claim("group-identity", Role.SET, value),)})


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    files = CgroupFiles(tmp_path / "cgroup", version=2)
    for cgroup in CGROUPS:
        files.make(cgroup)
        (files.folder(cgroup) / BVT).write_text("0\n")
    kernel, policies, store = Kernel(files, tmp_path), Policies(), PodStore()
    for number, cgroup in enumerate(PODS):
        store.pods.put(PodRecord(id=f"s{number}", name=f"web{number}", cgroup_parent=cgroup))
        box = ContainerRecord(id=f"box{number}", pod_id=f"s{number}", name="main", state=Lifecycle.RUNNING)
        store.containers.put(box)
    journal = Journal(tmp_path / "state", "boot")
    ledger = Ledger(kernel, journal, "boot")
    with ThreadPoolExecutor(2) as executor:
        upkeep = Upkeep(
            store,
            ledger,
            lambda: policies,  # type: ignore[arg-type,return-value]
            lambda pod, record: f"{pod.cgroup_parent}/box",
            executor,
            lambda: False,
            Switches(kernel, tmp_path),
        )
        yield SimpleNamespace(kernel=kernel, policies=policies, upkeep=upkeep, evaluator=upkeep.evaluator)
    journal.close()


async def test_on_and_off(scene: SimpleNamespace) -> None:
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == ON
    assert scene.kernel.identities() == {"-1", "2"}
    scene.policies.is_on = False
    await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"0"}
    assert scene.kernel.switches() == OFF
    assert scene.kernel.refused == []


async def test_a_value_that_cannot_be_given_back_holds_the_sysctls(
    scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.evaluator.evaluate_all()
    scene.policies.is_on = False
    scene.kernel.stuck = PODS[1]
    await scene.evaluator.evaluate_all()
    await scene.evaluator.evaluate_all()
    assert scene.kernel.identities() == {"0", "-1"}
    assert scene.kernel.switches() == ON
    scene.kernel.stuck = ""
    # The next comparison gives it back, and then the sysctls are.
    monkeypatch.setattr(module, "TICK_S", 0)
    verifying = asyncio.get_running_loop().create_task(scene.upkeep.verify())
    async with asyncio.timeout(30):
        await scene.evaluator._requested.wait()
    verifying.cancel()
    await asyncio.gather(verifying, return_exceptions=True)
    assert scene.kernel.identities() == {"0"}
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == OFF


async def test_a_change_that_did_not_come_to_the_end_holds_the_sysctls(scene: SimpleNamespace) -> None:
    await scene.evaluator.evaluate_all()
    scene.policies.is_on = False
    scene.evaluator.request("something else")
    await scene.evaluator.evaluate_all()
    assert "-1" in scene.kernel.identities()
    assert scene.kernel.switches() == ON
    scene.evaluator._requested.clear()
    await scene.evaluator.evaluate_all()
    assert scene.kernel.switches() == OFF
