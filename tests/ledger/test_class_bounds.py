"""An `at_most` of a QoS class over its descendants: from claims to fitted values, without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from runtimeproxy.cgroups.writer import CgroupWriter, FileText
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger.books import Plan, Value, Wanted, plan_values, with_claims
from runtimeproxy.ledger.fitting import fitted
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.records import Book, Level
from runtimeproxy.testing import CgroupFiles

CLASS = ("kubepods", "besteffort")
POD = (*CLASS, "pod1")
BOX, NEW = (*POD, "box"), (*POD, "new")
LEVELS = {CLASS: Level.QOS_CLASS, POD: Level.POD, BOX: Level.CONTAINER, NEW: Level.CONTAINER}
QUOTA, CPUS = "cpu.cfs_quota_us", "cpuset.cpus"


def planned(
    files: CgroupWriter, path: tuple[str, ...], name: str, claims: tuple[Claim, ...], text: str
) -> Plan:
    """One cgroup with these claims, and this text in its file; without a file it is about to be created."""
    level, cgroup = LEVELS[path], "/" + "/".join(path)
    book = with_claims(Book(cgroup, level), Wanted(CgroupTarget(level, cgroup), {name: claims}))
    file = files.file_of(name)
    present = {name: FileText(file, text, 1)} if text and file is not None else {}
    return plan_values(book, present, files)


def most(value: Value) -> tuple[Claim, ...]:
    return (Claim(Claimant("cpu-suppress"), Role.AT_MOST, value),)


def sets(value: Value) -> tuple[Claim, ...]:
    return (Claim(Claimant("batch-resource"), Role.SET, value),)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("name", "claims", "expected"),
    [
        pytest.param(
            QUOTA,
            {CLASS: most(90_000), POD: sets(50_000), BOX: sets(30_000), NEW: sets(20_000)},
            {CLASS: 90_000, POD: -1, BOX: -1, NEW: -1},
            id="finite-ones-below-become-unlimited",
        ),
        pytest.param(
            QUOTA,
            {CLASS: most(90_000), BOX: sets(-1)},
            {CLASS: 90_000, BOX: -1},
            id="it-makes-unlimited-finite",
        ),
        pytest.param(
            QUOTA,
            {CLASS: (*most(140_000), *sets(100_000)), POD: sets(200_000), BOX: sets(30_000)},
            {CLASS: 100_000, POD: -1, BOX: -1},
            id="one-that-lowers-nothing-bounds-too",
        ),
        pytest.param(
            CPUS,
            {CLASS: (*most("0-3"), *sets("0-1")), POD: sets("1-5"), BOX: sets("1")},
            {CLASS: "0-1", POD: "1", BOX: "1"},
            id="a-list-that-lowers-nothing-bounds-too",
        ),
        pytest.param(
            CPUS,
            {CLASS: most("0-3"), POD: sets("2-5"), BOX: sets("3"), NEW: sets("4-5")},
            {CLASS: "0-3", POD: "0-3", BOX: "3", NEW: "0-3"},
            id="lists-are-within-it",
        ),
        pytest.param(
            CPUS,
            {CLASS: (*most("0-3"), *sets("2-7")), POD: sets("0-3")},
            {CLASS: "2-3", POD: "2-3"},
            id="a-set-and-a-bound",
        ),
    ],
)
def test_an_at_most_of_a_class(
    tmp_path: Path,
    version: Literal[1, 2],
    name: str,
    claims: Mapping[tuple[str, ...], tuple[Claim, ...]],
    expected: Mapping[tuple[str, ...], Value],
) -> None:
    files = CgroupWriter(CgroupFiles(tmp_path, version=version).root)
    text = {QUOTA: "-1" if version == 1 else "max 100000", CPUS: "0-7"}[name]
    plans = [planned(files, path, name, each, "" if path == NEW else text) for path, each in claims.items()]
    changes = fitted(plans, files)
    values = {each.path: changes.get(each.path, {}).get(name, each.values[name]) for each in plans}
    assert values == expected
