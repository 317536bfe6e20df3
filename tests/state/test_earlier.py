"""What an earlier version has saved is read as it was meant, and what is saved now that version can read.

`earlier/` was written by the version of commit dc9fca9; the identifier of the boot is `boot`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.core.eviction_history import EvictionHistory
from runtimeproxy.core.modes import ModeOverrides
from runtimeproxy.hooks.allocator import as_document, from_document
from runtimeproxy.ledger.allocations import allocation_file
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.kernel_settings import KernelSettings
from runtimeproxy.pods.checkpoint.codec import RowKind, decode, encode
from runtimeproxy.qosmanager.profiling.prediction import Models
from runtimeproxy.state.state_file import StateFile

EARLIER = Path(__file__).parent / "earlier"
BOOT = "boot"
SAVED_S = 1_700_000_000.0
ROWS = [json.loads(line) for line in (EARLIER / "records.jsonl").read_text().splitlines()]
"""Kind, identity and body: a BE and an LS pod with their containers and books, under policies and claims."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{RowKind(row[0]).name}-{row[1][-12:]}")
def test_a_row_of_the_checkpoint_is_written_as_it_was(row: list[Any]) -> None:
    kind, identity, body = row
    assert encode(decode(RowKind(kind), identity, body)) == body


def _allocations(folder: Path) -> None:
    file = allocation_file(folder, BOOT)
    found = file.load(from_document)
    assert found is not None, file.unusable
    file.save(as_document(found))


def _modes(folder: Path) -> None:
    async def read_and_save() -> None:
        modes = ModeOverrides(folder)
        with ThreadPoolExecutor(1) as thread:
            await modes.read(thread)
            await modes.save(modes.present, thread)

    asyncio.run(read_and_save())


def _prediction(folder: Path) -> None:
    file = StateFile(folder / "prediction.json", "")
    found = file.load(lambda saved: Models.restored(saved, SAVED_S))
    assert found is not None, file.unusable
    file.save(found.saved())


@pytest.mark.parametrize(
    ("name", "rewrite"),
    [("allocations.json", _allocations), ("modes.json", _modes), ("prediction.json", _prediction)],
)
def test_a_file_is_written_as_it_was(name: str, rewrite: Callable[[Path], None], tmp_path: Path) -> None:
    shutil.copy(EARLIER / name, tmp_path)
    rewrite(tmp_path)
    # Another file, and the same in it.
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / name).read_text()) == json.loads((EARLIER / name).read_text())


async def test_evictions_are_written_as_they_were(tmp_path: Path) -> None:
    before = json.loads((EARLIER / "evictions.json").read_text())
    shutil.copy(EARLIER / "evictions.json", tmp_path)
    with ThreadPoolExecutor(1) as thread:
        history = EvictionHistory(
            tmp_path, BOOT, thread, lambda: before["boot_time_s"], lambda: before["time_s"]
        )
        await history.load()
        assert [each.uid for each in history.evictions] == ["uid-a", "uid-b"]
        await history.save()
    assert json.loads((tmp_path / "evictions.json").read_text()) == before


def test_sysctls_are_given_back(tmp_path: Path) -> None:
    shutil.copy(EARLIER / "sysctls.json", tmp_path)
    file = tmp_path / "sys" / "vm" / "min_free_kbytes"
    file.parent.mkdir(parents=True)
    file.write_text("200\n")
    KernelSettings(tmp_path, BOOT, tmp_path / "sys").apply({})
    assert file.read_text().strip() == "100"


def test_a_line_of_the_journal_is_written_as_it_was(tmp_path: Path) -> None:
    before = (EARLIER / "journal.jsonl").read_text()
    (tmp_path / "journal-1-a.jsonl").write_text(before)
    journal = Journal(tmp_path, BOOT)
    (noted,) = journal.read()
    journal.note(noted)
    (own,) = [each for each in tmp_path.iterdir() if each.name != "journal-1-a.jsonl"]
    assert own.read_text() == before
    journal.close()
