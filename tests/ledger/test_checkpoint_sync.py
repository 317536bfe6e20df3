"""Two processes and one checkpoint, as around an upgrade; here both in one process, with a store each."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, parse_claimant, texts_of
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger import checkpoint
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.checkpoint import CheckpointSync
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.checkpoint import file as file_module
from runtimeproxy.pods.checkpoint.codec import RowChange, RowKind
from runtimeproxy.pods.checkpoint.file import FILE_NAME, CheckpointFile
from runtimeproxy.pods.inventory import Inventory
from runtimeproxy.pods.records import (
    Book,
    CgroupRecord,
    ContainerRecord,
    Entry,
    Level,
    Lifecycle,
    ManagedValue,
    Original,
    PodRecord,
)
from runtimeproxy.pods.recovery import Recovery
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles
from tests.lab.deadline import wait_until
from tests.ledger.claims import set_values

ONE = "/kubepods/pod1"
BOOT = "this-boot"
OWNED = ContainerRecord(id="box", pod_id="pod", owners={"resources.cpu_shares": (Claimant("batch"),)})


@dataclass
class Side:
    """One process."""

    store: PodStore
    cgroups: Ledger
    sync: CheckpointSync


@pytest.fixture
def files(tmp_path: Path) -> CgroupFiles:
    made = CgroupFiles(tmp_path / "cgroup", version=2)
    made.make(ONE)
    return made


@asynccontextmanager
async def side(tmp_path: Path, files: CgroupFiles) -> AsyncIterator[Side]:
    journal = Journal(tmp_path / "state", BOOT)
    store, cgroups = PodStore(), Ledger(CgroupWriter(files.root), journal, BOOT)
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as thread:
        client = GrpcRuntimeClient(ClientSettings(f"unix:{tmp_path}/nobody"), executor)
        made = Side(
            store,
            cgroups,
            CheckpointSync(tmp_path / "state", Recovery(Inventory(store), client).inventory, cgroups, thread),
        )
        await made.sync.load()
        yield made
        await made.sync.close()
        journal.close()


def value_of(one: Side, name: str) -> int | str | None:
    """What the book wants, if there is one."""
    return one.cgroups.books.resolved(ONE).get(name)


async def settled(one: Side) -> None:
    """Waits for what other threads have noted, then for the disk."""
    await asyncio.sleep(0)
    assert await one.sync.flush()


async def test_everything_comes_back(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as first:
        first.store.pods.put(PodRecord(id="pod"))
        first.store.containers.put(OWNED)
        await asyncio.to_thread(set_values, first.cgroups, ONE, {"memory.limit_in_bytes": 4096})
    async with side(tmp_path, files) as second:
        assert list(second.store.pods) == [PodRecord(id="pod")]
        assert list(second.store.containers) == [OWNED]
        found = second.cgroups.books.record(ONE)
        assert found is not None
        assert found.entries["memory.limit_in_bytes"].resolved == 4096
        (original,) = found.originals.items()
        assert original == ("memory.max", Original("max\n", files.folder(ONE).stat().st_ino))
        await asyncio.to_thread(set_values, second.cgroups, ONE, {"memory.limit_in_bytes": 8192})
    assert list((tmp_path / "state").glob("journal-*")) == []


async def test_what_is_loaded_late_is_told(
    tmp_path: Path, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with side(tmp_path, files) as first:
        await asyncio.to_thread(set_values, first.cgroups, ONE, {"cpu.shares": 512})
    monkeypatch.setattr(checkpoint, "LOAD_WAIT_S", 0.0)
    loaded = asyncio.Event()
    async with side(tmp_path, files) as second:
        second.sync.on_loaded = loaded.set
        assert value_of(second, "cpu.shares") is None
        async with asyncio.timeout(30):
            await loaded.wait()
        assert value_of(second, "cpu.shares") == 512


@pytest.mark.usefixtures("quick")
async def test_what_could_not_be_read_at_the_start_is_told(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as first:
        await asyncio.to_thread(set_values, first.cgroups, ONE, {"cpu.shares": 512})
    found: list[int | str | None] = []
    # SQLite's lock file keeps others from reading.
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME, isolation_level=None)) as blocking:
        blocking.execute("PRAGMA journal_mode = DELETE")
        blocking.execute("BEGIN EXCLUSIVE")
        async with side(tmp_path, files) as second:
            second.sync.on_loaded = lambda: found.append(value_of(second, "cpu.shares"))
            assert value_of(second, "cpu.shares") is None
            blocking.execute("ROLLBACK")
            second.store.pods.put(PodRecord(id="pod"))
            await settled(second)
            assert found == [512]


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
        old.sync.writer._is_standby = lambda: True
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
        await asyncio.to_thread(set_values, old.cgroups, ONE, {"cpu.shares": 512})
        await settled(old)
        theirs = replace(
            OWNED, requested=Resources(cpu_shares=200), owners={"resources.cpu_shares": (Claimant("theirs"),)}
        )
        saved = [replace(theirs, id=identity) for identity in ("box", "recovered", "new")]
        async with side(tmp_path, files) as new:
            for record in saved:
                new.store.containers.put(record)
            await asyncio.to_thread(set_values, new.cgroups, ONE, {"cpu.shares": 1024})
            await settled(new)
        during = replace(OWNED, id="during")
        old.store.containers.put(during)
        await old.sync.take_back()
        assert {each.id: each for each in old.store.containers} == {
            each.id: each for each in (*saved, during)
        }
        assert value_of(old, "cpu.shares") == 1024
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
        set_values(first.cgroups, ONE, {"memory.limit_in_bytes": 4096})
        first.cgroups.prune([])
        await settled(first)
    async with side(tmp_path, files) as second:
        assert second.cgroups.books.identities == (ONE,)
        assert second.sync.writer.problem == ""


def leave_0_1(folder: Path, *pods: PodRecord, values: dict[str, ManagedValue]) -> None:
    """Leaves the checkpoint of version 0.1."""
    with closing(CheckpointFile(folder)) as file:
        file.write(
            [
                *(RowChange(RowKind.POD, pod.id, pod) for pod in pods),
                RowChange(RowKind.CGROUP, ONE, CgroupRecord(ONE, values)),
            ]
        )
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        connection.execute("DROP TABLE books")


async def test_what_version_0_1_wrote_is_taken_over(tmp_path: Path, files: CgroupFiles) -> None:
    """Values of hook servers are observed only; the pod's owners tell them from those of policies."""
    owners = {
        "cgroup[cpu.shares]": (Claimant("koordlet.json", ClaimantKind.SERVER),),
        "cgroup[memory.limit_in_bytes]": (Claimant("batch-resource"),),
    }
    values = {
        "memory.limit_in_bytes": ManagedValue(4096, -1),
        "cpu.shares": ManagedValue(512, 2597),
        "cpu.cfs_quota_us": ManagedValue(50_000, -1, reapply=False),
    }
    (files.folder(ONE) / "memory.max").write_text("4096\n")
    (files.folder(ONE) / "cpu.weight").write_text("20\n")
    (files.folder(ONE) / "cpu.max").write_text("50000 100000\n")
    leave_0_1(tmp_path / "state", PodRecord(id="pod", cgroup_parent=ONE, owners=owners), values=values)
    async with side(tmp_path, files) as first:
        found = first.cgroups.books.record(ONE)
        assert found is not None
        assert found.originals == {
            "memory.max": Original("max"),
            "cpu.weight": Original("100"),
            "cpu.max": Original("max"),
        }
        assert {name: (texts_of(entry.owners), entry.is_once) for name, entry in found.entries.items()} == {
            "memory.limit_in_bytes": ("batch-resource", False),
            "cpu.shares": ("server:koordlet.json", True),
            "cpu.cfs_quota_us": ("", False),
        }
        await asyncio.to_thread(set_values, first.cgroups, ONE, {"memory.limit_in_bytes": 8192})
        assert files.read(ONE, "cpu.max").split()[0] == "max", "of a policy that is no longer there"
        await settled(first)
    async with side(tmp_path, files) as second:
        found = second.cgroups.books.record(ONE)
        assert found is not None
        assert found.originals["memory.max"] == Original("max")
        second.cgroups.books.forget_claims(
            second.cgroups.books.identities,
            owners={parse_claimant("batch"), parse_claimant("server:koordlet.json")},
        )
        await asyncio.to_thread(second.cgroups.repair, ONE)
        assert (files.read(ONE, "memory.max"), files.read(ONE, "cpu.weight")) == ("max", "100")
    with closing(CheckpointFile(tmp_path / "state", read_only=True)) as file:
        saved = file.load()
        assert (saved.cgroups, saved.books) == ((), ())


async def test_what_version_0_1_wrote_before_a_reboot_does_not_count(
    tmp_path: Path, files: CgroupFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_0_1(tmp_path / "state", values={"memory.limit_in_bytes": ManagedValue(4096, -1)})
    monkeypatch.setattr(file_module, "boot_time_s", lambda: time.time() + 10)
    async with side(tmp_path, files) as first:
        assert first.cgroups.books.record(ONE) is None


async def test_books_of_before_a_reboot_do_not_count(tmp_path: Path, files: CgroupFiles) -> None:
    book = Book(ONE, Level.POD, {"memory.limit_in_bytes": Entry((), 4096)}, {}, "another-boot")
    with closing(CheckpointFile(tmp_path / "state")) as file:
        file.write([RowChange(RowKind.BOOK, ONE, book)])
    async with side(tmp_path, files) as first:
        assert first.cgroups.books.record(ONE) is None
        await settled(first)
    with closing(CheckpointFile(tmp_path / "state", read_only=True)) as file:
        assert file.load().books == ()


async def test_a_value_that_the_checkpoint_lacks_comes_from_the_journal(
    tmp_path: Path, files: CgroupFiles
) -> None:
    """Its process was killed in between."""
    journal = Journal(tmp_path / "state", BOOT)
    killed = Ledger(CgroupWriter(files.root), journal, BOOT)
    set_values(killed, ONE, {"memory.limit_in_bytes": 4096})
    os.close(journal._descriptor)
    async with side(tmp_path, files) as first:
        assert value_of(first, "memory.limit_in_bytes") == 4096
        await settled(first)
        assert list((tmp_path / "state").glob("journal-*")) == []
        await asyncio.to_thread(first.cgroups.repair, ONE)
        assert files.read(ONE, "memory.max") == "4096"
        await asyncio.to_thread(first.cgroups.change, [Wanted(CgroupTarget(Level.POD, ONE), {})])
        assert files.read(ONE, "memory.max") == "max", "no policy wants it any more"


async def test_whether_a_value_stays_survives_a_restart(tmp_path: Path, files: CgroupFiles) -> None:
    async with side(tmp_path, files) as first:
        await asyncio.to_thread(set_values, first.cgroups, ONE, {"cpu.shares": 512}, {"cpu.shares"})
    async with side(tmp_path, files) as second:
        assert not second.cgroups.books.is_managed(ONE)
        found = second.cgroups.books.record(ONE)
        assert found is not None
        assert found.entries["cpu.shares"].resolved == 512
