"""Journals of other processes: whatever lies there, each line counts by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.claimants import parse_claimant
from runtimeproxy.ledger import journal as journal_module
from runtimeproxy.ledger.journal import Journal, Noted
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.pods.records import Book, Entry, Level, Original
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.vocabulary import Role

BOOT = "boot"
POD = "/kubepods/podone"


def line(
    originals: Mapping[str, object] | None = None,
    values: Mapping[str, object] | None = None,
    before: Mapping[str, object] | None = None,
    leases: Mapping[str, object] | None = None,
    level: object = int(Level.POD),
) -> str:
    return json.dumps([BOOT, POD, level, originals or {}, values or {}, before or {}, leases or {}])


GOOD = line({"cpu.max": ["max 100000\n", 7]}, {"cpu.cfs_quota_us": 50_000})
POISONED = {
    "an unknown role": line(leases={"cpu.cfs_quota_us": [["plugin:x", "floor"]]}),
    "a lease that is no pair": line(leases={"cpu.cfs_quota_us": ["plugin:x"]}),
    "half of a surrogate pair": line({"cpu.weight": ["\ud800", 0]}),
    "half of a surrogate pair in a name": line({"\ud800": ["1", 0]}),
    "an infinite inode": line({"cpu.weight": ["1", 0]}).replace("0]", "1e999]"),
    "a level of another version": line(level=9),
    "a value of another kind": line(values={"cpuset.cpus": 1}),
    "nested too deeply": "[" * 100_000,
    "thousands of digits": "9" * 5_000,
    "not a list": "7",
}


def ledger_after(folder: Path, *lines: str) -> tuple[Ledger, Journal]:
    folder.joinpath("journal-1-a.jsonl").write_text("".join(f"{each}\n" for each in lines))
    files = CgroupFiles(folder / "cgroup", version=2)
    files.make(POD)
    journal = Journal(folder, BOOT)
    return Ledger(CgroupWriter(files.root), journal, BOOT), journal


@pytest.mark.parametrize("poisoned", POISONED.values(), ids=POISONED)
def test_a_line_that_cannot_be_used_costs_no_other_one(tmp_path: Path, poisoned: str) -> None:
    ledger, journal = ledger_after(tmp_path, poisoned, GOOD)
    (book,) = ledger.read_journal()
    assert book.originals == {"cpu.max": Original("max 100000\n", 7)}
    assert book.entries.keys() == {"cpu.cfs_quota_us"}
    assert journal.unusable.endswith(": 1 lines of the journal are not usable")


def test_a_parameter_of_a_later_version_costs_no_line(tmp_path: Path) -> None:
    later = line(values={"of.later": 2}, before={"of.later": 1})
    ledger, journal = ledger_after(tmp_path, later, GOOD)
    (book,) = ledger.read_journal()
    assert book.entries["of.later"].resolved == 2
    assert book.originals.keys() == {"cpu.max"}
    assert not journal.unusable


def test_of_a_very_long_journal_the_first_lines_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_BYTES", len(GOOD) + 10)
    ledger, journal = ledger_after(tmp_path, GOOD, line({"cpu.weight": ["1", 0]}), GOOD)
    (book,) = ledger.read_journal()
    assert book.originals.keys() == {"cpu.max"}
    assert "only the first" in journal.unusable
    assert "not usable" not in journal.unusable


@pytest.mark.parametrize(
    ("text", "resolved"),
    [("50000 100000\n", 50_000), ("max 100000\n", -1), ("", "")],
    ids=["held", "done", "cut"],
)
def test_a_claim_that_ended_with_its_process_is_still_to_be_given_back(
    tmp_path: Path, text: str, resolved: object
) -> None:
    """The line stands before the write: what the file holds is ours, and the checkpoint has no value."""
    ledger, _ = ledger_after(
        tmp_path, line({"cpu.max": ["max 100000\n", 7]}, leases={"cpu.cfs_quota_us": []})
    )
    (tmp_path / "cgroup" / POD.lstrip("/") / "cpu.max").write_text(text)
    (book,) = ledger.read_journal()
    entry = book.entries["cpu.cfs_quota_us"]
    assert (entry.claims, entry.resolved) == ((), resolved)


@pytest.mark.parametrize("file", ["cpu.max", "cpu.cfs_quota_us"], ids=["version 2", "version 1"])
def test_an_original_stays_until_a_checkpoint_has_it(tmp_path: Path, file: str) -> None:
    """Files of version 1 are named like parameters; and the book may be saved as it was before the write."""
    journal, quota = Journal(tmp_path, BOOT), "cpu.cfs_quota_us"
    owner = parse_claimant("plugin:startup-boost")
    claimed = Book(POD, Level.POD, {quota: Entry((Claim(owner, Role.ADD, 5_000),))}, boot_id=BOOT)
    original = Original("5000\n", 7)
    written = replace(
        claimed,
        entries={quota: claimed.entries[quota]._replace(resolved=10_000)},
        originals={file: original},
    )
    leases = {quota: claimed.entries[quota].leases}
    journal.note(Noted(POD, Level.POD, {}, {}, {}, leases))
    journal.note(Noted(POD, Level.POD, {file: original}, {}, {}))
    journal.settle(written)
    journal.note_saved(POD, claimed)
    assert [each.originals for each in Journal(tmp_path, BOOT).read()] == [{}, {file: original}]
    journal.note_saved(POD, written)
    assert Journal(tmp_path, BOOT).read() == []
