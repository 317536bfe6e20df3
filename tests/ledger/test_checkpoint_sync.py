"""Two processes and one checkpoint, as around an upgrade; here both in one process, with a store each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger import checkpoint
from runtimeproxy.ledger.checkpoint import CheckpointSync
from runtimeproxy.ledger.managed import ManagedCgroups
from runtimeproxy.pods.records import CgroupRecord, ContainerRecord, Lifecycle, ManagedValue, PodRecord
from runtimeproxy.pods.recovery import Recovery
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles
from tests.lab.deadline import wait_until

ONE = "/kubepods/pod1"
OWNED = ContainerRecord(id="box", pod_id="pod", owners={"resources.cpu_shares": "batch"})


@dataclass
class Side:
    """One process."""

    store: PodStore
    cgroups: ManagedCgroups
    sync: CheckpointSync


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path / "cgroup", version=2)
    made.make(ONE)
    return made


@asynccontextmanager
async def side(tmp_path: Path, files: CgroupFiles) -> AsyncIterator[Side]:
    store, cgroups = PodStore(), ManagedCgroups(CgroupWriter(files.root))
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as thread:
        client = GrpcRuntimeClient(ClientSettings(f"unix:{tmp_path}/nobody"), executor)
        made = Side(
            store,
            cgroups,
            CheckpointSync(tmp_path / "state", store, cgroups, Recovery(store, client), thread),
        )
        await made.sync.load()
        yield made
        await made.sync.close()


async def settled(one: Side) -> None:
    """Waits for what other threads have noted, then for the disk."""
    await asyncio.sleep(0)
    assert await one.sync.flush()


async def test_everything_comes_back(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as first:
        first.store.pods.put(PodRecord(id="pod"))
        first.store.containers.put(OWNED)
        await asyncio.to_thread(first.cgroups.write, ONE, {"memory.limit_in_bytes": 4096})
    async with side(tmp_path, files) as second:
        assert list(second.store.pods) == [PodRecord(id="pod")]
        assert list(second.store.containers) == [OWNED]
        expected = CgroupRecord(ONE, {"memory.limit_in_bytes": ManagedValue(4096, -1)})
        assert second.cgroups.record(ONE) == expected


async def test_a_successor_takes_what_its_predecessor_saved_last(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as old, side(tmp_path, files) as new:
        old.store.containers.put(OWNED)
        old.store.containers.put(replace(OWNED, id="both"))
        with new.store.listing() as since:
            new.store.containers.fill(replace(OWNED, owners={}, recovered=True), since)
        mine = replace(OWNED, id="both", name="mine")
        new.store.containers.put(mine)
        await settled(old)
        await settled(new)
        await new.sync.merge()
        assert list(new.store.containers) == [OWNED, mine]
    async with side(tmp_path, files) as third:
        found = {container.id: container for container in third.store.containers}
        assert found == {"box": OWNED, "both": mine}


async def test_a_successor_notices_by_itself(
    tmp_path: Path, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "FOLLOW_INTERVAL_S", 0.02)
    async with side(tmp_path, files) as old, side(tmp_path, files) as new:
        following = asyncio.get_running_loop().create_task(new.sync.follow())
        old.store.containers.put(OWNED)
        await settled(old)
        await asyncio.to_thread(wait_until, lambda: len(new.store.containers) == 1, "the other's record")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_predecessor_no_longer_writes_what_the_runtime_says(
    tmp_path: Path, files: CgroupFiles
) -> None:
    async with side(tmp_path, files) as old, side(tmp_path, files) as new:
        old.store.containers.put(OWNED)
        await settled(old)
        await new.sync.merge()
        old.sync._is_standby = lambda: True
        newer = replace(OWNED, name="newer")
        new.store.containers.put(newer)
        await settled(new)
        with old.store.listing() as since:
            assert old.store.containers.fill(replace(OWNED, state=Lifecycle.RUNNING), since)
        await settled(old)
    async with side(tmp_path, files) as third:
        assert list(third.store.containers) == [newer]


async def test_a_process_that_decides_again_takes_what_its_successor_saved(
    tmp_path: Path, files: CgroupFiles
) -> None:
    async with side(tmp_path, files) as old:
        old.store.containers.put(OWNED)
        shares = Resources(cpu_shares=100)
        recovered = replace(OWNED, id="recovered", requested=shares, booked=shares, owners={}, recovered=True)
        with old.store.listing() as since:
            old.store.containers.fill(recovered, since)
        await asyncio.to_thread(old.cgroups.write, ONE, {"cpu.shares": 512})
        await settled(old)
        theirs = replace(
            OWNED, requested=Resources(cpu_shares=200), owners={"resources.cpu_shares": "theirs"}
        )
        saved = [replace(theirs, id=identity) for identity in ("box", "recovered", "new")]
        async with side(tmp_path, files) as new:
            for record in saved:
                new.store.containers.put(record)
            await asyncio.to_thread(new.cgroups.write, ONE, {"cpu.shares": 1024})
            await settled(new)
        during = replace(OWNED, id="during")
        old.store.containers.put(during)
        await old.sync.take_back()
        assert {each.id: each for each in old.store.containers} == {
            each.id: each for each in (*saved, during)
        }
        assert old.cgroups.record(ONE) == CgroupRecord(ONE, {"cpu.shares": ManagedValue(1024, 2597)})
        old.store.containers.put(replace(saved[0], state=Lifecycle.RUNNING))
        await settled(old)
    async with side(tmp_path, files) as third:
        found = {container.id: container.owners for container in third.store.containers}
        assert found == {record.id: record.owners for record in (*saved, during)}


async def test_what_the_successor_has_removed_does_not_come_back(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as old, side(tmp_path, files) as new:
        old.store.containers.put(OWNED)
        await settled(old)
        new.store.containers.remove("box")
        await new.sync.merge()
        assert list(new.store.containers) == []
    async with side(tmp_path, files) as third:
        assert list(third.store.containers) == []


async def test_a_row_that_is_gone_with_its_cgroup(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as first:
        first.cgroups.write(ONE, {"memory.limit_in_bytes": 4096})
        first.cgroups.prune([])
        await settled(first)
    async with side(tmp_path, files) as second:
        assert second.cgroups.identities == (ONE,)
        assert second.sync.problem == ""


async def test_of_an_old_checkpoint_the_values_of_hook_servers_are_not_kept(
    tmp_path: Path, files: CgroupFiles
) -> None:
    """Version 0.1 kept them like those of policies; the pod's owners tell them apart."""
    owners = {"cgroup[cpu.shares]": "koordlet.json", "cgroup[memory.limit_in_bytes]": "batch-resource"}
    async with side(tmp_path, files) as first:
        first.store.pods.put(PodRecord(id="pod", cgroup_parent=ONE, owners=owners))
        values = {"memory.limit_in_bytes": 4096, "cpu.shares": 512}
        await asyncio.to_thread(first.cgroups.write, ONE, values)
    async with side(tmp_path, files) as second:
        expected = {
            "memory.limit_in_bytes": ManagedValue(4096, -1),
            "cpu.shares": ManagedValue(512, 2597, reapply=False),
        }
        assert second.cgroups.record(ONE) == CgroupRecord(ONE, expected)


async def test_whether_a_value_stays_survives_a_restart(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as first:
        await asyncio.to_thread(first.cgroups.write, ONE, {"cpu.shares": 512}, {"cpu.shares"})
    async with side(tmp_path, files) as second:
        assert not second.cgroups.is_managed(ONE)
        expected = {"cpu.shares": ManagedValue(512, 2597, reapply=False)}
        assert second.cgroups.record(ONE) == CgroupRecord(ONE, expected)
