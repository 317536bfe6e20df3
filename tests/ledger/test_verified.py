"""Values of QoS classes, host applications and sysctls are compared and written again, as those of pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger import upkeep as module
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.foreign import FIRST_YIELD_S, OVERWRITES
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.kernel_settings import KernelSettings, SettingChange
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.pods.records import Level
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles

HOST, CLASS = "/host-latency-sensitive/nginx", "/kubepods/burstable"
CORE = "kernel.sched_core"


def sets(quota_us: int) -> dict[str, tuple[Claim, ...]]:
    return {"cpu.cfs_quota_us": (Claim(Claimant("group-identity"), Role.SET, quota_us),)}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Scene:
    def __init__(self, folder: Path) -> None:
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.files.make("/kubepods")
        self.clock = Clock()
        self.journal = Journal(folder / "state", "boot")
        self.ledger = Ledger(CgroupWriter(self.files.root), self.journal, "boot", clock=self.clock)
        self.sysctl = folder / "sys" / CORE.replace(".", "/")
        self.sysctl.parent.mkdir(parents=True)
        self.sysctl.write_text("1\n")
        self.sysctls = KernelSettings(folder / "state", "boot", folder / "sys", self.clock)

    def claim(self, level: Level, cgroup: str, quota_us: int | None) -> None:
        claims = {} if quota_us is None else sets(quota_us)
        self.ledger.change([Wanted(CgroupTarget(level, cgroup), claims)])

    def overwrite(self, cgroup: str, quota_us: int) -> None:
        (self.files.folder(cgroup) / "cpu.max").write_text(f"{quota_us} 100000\n")

    def quota(self, cgroup: str) -> str:
        return self.files.read(cgroup, "cpu.max").split()[0]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.journal.close()


@pytest.mark.parametrize(("level", "cgroup"), [(Level.NODE, HOST), (Level.QOS_CLASS, CLASS)])
async def test_cgroups_above_pods(scene: Scene, level: Level, cgroup: str) -> None:
    scene.files.make(cgroup)
    scene.claim(level, cgroup, 50_000)
    scene.overwrite(cgroup, 70_000)
    scene.ledger.verify([level], [])
    assert scene.quota(cgroup) == "50000"
    scene.claim(level, cgroup, None)
    assert scene.quota(cgroup) == "max"


async def test_a_host_application_that_starts_later(scene: Scene) -> None:
    scene.claim(Level.NODE, HOST, 50_000)
    scene.files.make(HOST)
    scene.overwrite(HOST, 80_000)
    scene.ledger.verify([Level.NODE], [])
    assert scene.quota(HOST) == "50000"
    scene.claim(Level.NODE, HOST, None)
    assert scene.quota(HOST) == "80000"


async def test_a_sysctl_that_was_reset_is_written_again(scene: Scene) -> None:
    scene.sysctls.apply({CORE: 0})
    for _ in range(OVERWRITES + 1):
        scene.sysctl.write_text("1\n")
        assert scene.sysctls.verify() == (SettingChange(CORE, "1", "0"),)
    assert scene.sysctls.verify() == ()


async def test_a_sysctl_that_had_its_value_already(scene: Scene) -> None:
    scene.sysctls.apply({CORE: 1})
    scene.sysctl.write_text("2\n")
    assert scene.sysctls.verify() == (SettingChange(CORE, "2", "1"),)
    assert scene.sysctls.apply({}) == ()
    assert scene.sysctl.read_text() == "1\n"


async def test_a_sysctl_that_another_program_keeps_writing_is_left_to_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.sysctls.apply({CORE: 0})
    for _ in range(OVERWRITES):
        scene.sysctl.write_text("2\n")
        scene.clock.now_s += 60
        scene.sysctls.verify()
    assert scene.sysctl.read_text() == "2\n"
    assert f"another program keeps writing the sysctl {CORE}: 2, not 0" in caplog.text
    assert scene.sysctls.apply({CORE: 0}) == ()
    scene.clock.now_s += FIRST_YIELD_S
    assert scene.sysctls.verify() == (SettingChange(CORE, "2", "0"),)


async def test_a_sysctl_that_is_wanted_no_more_is_left_alone(scene: Scene) -> None:
    scene.sysctls.apply({CORE: 0})
    scene.sysctls.apply({})
    scene.sysctl.write_text("2\n")
    assert scene.sysctls.verify() == ()
    assert scene.sysctl.read_text() == "2\n"


async def test_the_loop_compares_sysctls(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)
    scene.sysctls.apply({CORE: 0})
    scene.sysctl.write_text("1\n")
    compared = asyncio.Event()
    loop, verify = asyncio.get_running_loop(), scene.sysctls.verify

    def watched(**among: str) -> Any:
        changes = verify(**among)
        if not among:
            loop.call_soon_threadsafe(compared.set)
        return changes

    monkeypatch.setattr(scene.sysctls, "verify", watched)
    with ThreadPoolExecutor(1) as executor:
        upkeep = Upkeep(
            PodStore(),
            scene.ledger,
            lambda: None,  # type: ignore[arg-type,return-value]
            lambda _pod, _container: "",
            executor,
            lambda: False,
            BY_CALLS,
            scene.sysctls,
        )
        upkeep.evaluator.has_evaluated = True
        task = loop.create_task(upkeep.verify())
        async with asyncio.timeout(30):
            await compared.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert scene.sysctl.read_text() == "0\n"
