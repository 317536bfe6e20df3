"""The core as a whole: where its parts fail, or are late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.background import BackgroundTasks, ThreadPools
from runtimeproxy.config.settings import CgroupsSettings, Settings, StateSettings
from runtimeproxy.core.core import Core
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.modes import Override, with_override
from runtimeproxy.hooks.owners import Owner, claim_of
from runtimeproxy.hooks.remote.servers import HookServers
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.leases import Phase
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.checkpoint.file import CheckpointError, CheckpointFile
from runtimeproxy.pods.records import ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.vocabulary import Mode, Role
from tests.lab.deadline import wait_until

POD = "/kubepods/besteffort/pod1"
WAIT_S = 30.0
PENDING = {"memory.use_priority_oom": 1}


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path / "cgroup", version=2)
    made.make(POD)
    return made


class Cores:
    """Processes one after the other, each with a core."""

    def __init__(self, folder: Path, root: Path) -> None:
        state, cgroups = StateSettings(dir=str(folder)), CgroupsSettings(root=str(root))
        self.settings = replace(Settings(), state=state, cgroups=cgroups)
        self.threads = ThreadPools(4)
        self.errors: list[BaseException] = []
        self.tasks = BackgroundTasks(self.errors.append)
        self.client = GrpcRuntimeClient(ClientSettings(f"unix:{folder}/nobody"), self.threads.background)
        self.made: list[Core] = []

    def start(self) -> Core:
        hooks, thread = self.settings.hooks, self.threads.make("hook-servers")
        servers = HookServers(Path(hooks.server_config_dir), hooks.server_timeout_s, thread)
        core = Core(
            self.settings, self.threads, self.tasks.spawn, lambda: False, self.client, servers, BY_CALLS
        )
        core.store.pods.put(PodRecord(id="s1", uid="u1", cgroup_parent=POD, state=Lifecycle.RUNNING))
        self.made.append(core)
        return core

    async def end(self) -> None:
        await self.tasks.cancel(WAIT_S)
        for core in self.made:
            await core.close()
        await self.client.close()
        self.threads.shutdown()


@pytest.fixture
async def cores(tmp_path: Path, files: CgroupFiles) -> AsyncIterator[Cores]:
    made = Cores(tmp_path / "state", files.root)
    yield made
    await made.end()


async def test_claims_of_a_checkpoint_that_is_read_late_get_an_owner(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, mine = cores.start(), Owner("mine")
    await first.state.load(is_successor=False)
    claims = {"memory.low": (claim_of(mine, "memory.low", Role.SET, "4096", None, ""),)}
    await asyncio.to_thread(
        first.ledger.change, [Wanted(CgroupTarget(Level.POD, POD), claims, owner=mine.claimant)]
    )
    await first.close()

    def fails(self: CheckpointFile) -> Saved:
        raise CheckpointError("it cannot be read now")

    second = cores.start()
    monkeypatch.setattr(second.leased, "_is_idle", lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "load", fails)
        await second.state.load(is_successor=False)
    await second.leased.look()
    assert "mine" not in second.leased.owners
    assert await second.state.checkpoint.flush()
    await second.leased.look()
    owned = second.leased.owners["mine"]
    assert (owned.phase, [claim.value for claim in owned.claims.values()]) == (Phase.RESTORED, [4096])


async def test_what_runs_is_compared_after_a_failed_upgrade_although_state_cannot_be_read(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, done = cores.start(), list[str]()

    async def fails() -> None:
        raise OSError("no state")

    monkeypatch.setattr(core.state, "take_back", fails)
    monkeypatch.setattr(core.upkeep, "on_taken_back", lambda: done.append("upkeep"))
    monkeypatch.setattr(core.inventory, "confirm_all", lambda: done.append("inventory"))
    with pytest.raises(OSError, match="no state"):
        await core.take_back_state()
    assert done == ["upkeep", "inventory"]


async def test_a_file_that_hangs_ends_neither_the_comparison_nor_values_that_wait(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, boxes = cores.start(), ["box0", "box1"]
    for box in boxes:
        pending = ContainerRecord(id=box, pod_id="s1", state=Lifecycle.RUNNING, pending_cgroup=PENDING)
        core.store.containers.put(pending)
    monkeypatch.setattr("runtimeproxy.core.events.WORK_S", 0.05)
    free, started = threading.Event(), list[str]()

    def start(wanted: Wanted) -> tuple[()]:
        if not started:
            assert free.wait(WAIT_S)
        started.append(wanted.target.cgroup)
        return ()

    monkeypatch.setattr(core.ledger, "start", start)
    async with asyncio.timeout(WAIT_S / 2):
        await core.inventory.complete()
    assert [each.id for each in core.store.containers if each.pending_cgroup] == ["box1"]
    free.set()
    await core.inventory.complete()
    await asyncio.to_thread(wait_until, lambda: len(started) == len(boxes), "both values")
    assert not any(each.pending_cgroup for each in core.store.containers)


async def test_a_mode_that_is_set_while_another_one_ends_stays(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = cores.start().policies
    over, new = Override("cpuset", Mode.OFF, until_s=1.0), Override("cpuset", Mode.DRY_RUN)
    await policies.change_modes(lambda present: (over,))
    saves, free, save = asyncio.Event(), asyncio.Event(), policies.modes.save

    async def waits(overrides: tuple[Override, ...], thread: Executor) -> None:
        saves.set()
        await free.wait()
        await save(overrides, thread)

    monkeypatch.setattr(policies.modes, "save", waits)
    monkeypatch.setattr("runtimeproxy.core.policies.ENDING_S", 0.01)
    running = cores.tasks.spawn(policies.run())
    async with asyncio.timeout(WAIT_S):
        await saves.wait()
        setting = asyncio.get_running_loop().create_task(
            policies.change_modes(lambda present: with_override(present, new))
        )
        free.set()
        await setting
    assert policies.modes.present == (new,)
    assert not running.done()


async def test_an_error_while_policies_are_loaded_again_ends_nothing(
    cores: Cores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policies = cores.start().policies
    loads = asyncio.Queue[None]()

    async def fails(settings: Settings) -> None:
        await loads.put(None)
        raise OSError("no node")

    monkeypatch.setattr(policies, "load", fails)
    cores.tasks.spawn(policies.run())
    async with asyncio.timeout(WAIT_S):
        for _ in range(2):
            policies.loader.on_late()
            await loads.get()
    assert "no node" in caplog.text
