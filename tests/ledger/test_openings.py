"""Openings: when a bound is lifted, by how much, and that nothing of it outlives the process."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.hooks.algebra import Claim, ClaimOutcome, Role, resolve
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger import path_locks
from runtimeproxy.ledger.openings import (
    AFTER_START_S,
    MINUTE_S,
    MOST_IN_A_MINUTE,
    MOST_OPEN_S,
    MOST_WAIT_S,
    ClassOpenings,
    NotOpened,
    Openings,
    Starts,
    lifted_class,
)
from runtimeproxy.pods.checkpoint.codec import RowKind, decode
from runtimeproxy.pods.records import Book, ContainerRecord, Level, Lifecycle
from tests.ledger.test_leased import BOX, CLASS, POD, Node, first, request, suppress

QUOTA = "cpu.cfs_quota_us"
BE = ("kubepods", "besteffort")
ALWAYS: Callable[[tuple[str, ...]], bool] = lambda _: True  # noqa: E731
SLICE = "kubepods.slice/kubepods-besteffort.slice"


# --- the algebra -----------------------------------------------------------------------------------------


def at_most(value: int, owner: str = "guard") -> Claim:
    return Claim(Claimant(owner), Role.AT_MOST, value)


@pytest.mark.parametrize(
    ("base", "bounds", "opening", "result"),
    [
        (-1, (50_000,), 0, 50_000),
        (-1, (50_000,), 100_000, 150_000),
        (-1, (50_000, 300_000), 200_000, 250_000),
        (80_000, (50_000,), 100_000, 80_000),
        (80_000, (50_000,), 20_000, 70_000),
        (-1, (), 100_000, -1),
        (80_000, (), 100_000, 80_000),
    ],
)
def test_an_opening_lifts_bounds_and_nothing_else(
    base: int, bounds: tuple[int, ...], opening: int, result: int
) -> None:
    found = resolve(QUOTA, base, [at_most(each, str(each)) for each in bounds], opening=opening)
    assert found.value == result


def test_what_is_lifted_is_explained() -> None:
    found = resolve(QUOTA, -1, [at_most(50_000)], opening=100_000)
    assert [(each.outcome, each.reason) for each in found.notes] == [
        (ClaimOutcome.CLAMPED, "50000 + 100000 while pods start = 150000")
    ]
    assert found.used == (at_most(50_000),)
    assert found.is_bounded


# --- the rules -------------------------------------------------------------------------------------------


def test_an_opening_ends_2_s_after_the_start() -> None:
    rules = Openings()
    rules.begin("a", BE, 0.0)
    assert rules.look(0.0, ALWAYS) == {BE: 100_000}
    rules.started("a", 5.0)
    assert rules.next_s(5.0) == 5.0 + AFTER_START_S
    assert rules.look(6.9, ALWAYS) == {BE: 100_000}
    assert rules.look(7.0, ALWAYS) == {}
    assert rules.next_s(7.0) is None


def test_an_opening_ends_after_20_s_whatever_starts() -> None:
    rules = Openings()
    rules.begin("a", BE, 0.0)
    rules.look(0.0, ALWAYS)
    for now_s in (5, 10, 15, 19):
        rules.started("a", float(now_s))
    assert rules.look(MOST_OPEN_S - 0.1, ALWAYS) == {BE: 100_000}
    assert rules.look(MOST_OPEN_S, ALWAYS) == {}


def test_two_pods_at_once_and_the_oldest_first() -> None:
    rules = Openings()
    for uid in "abcd":
        rules.begin(uid, BE, 0.0)
    assert rules.look(0.0, ALWAYS) == {BE: 200_000}
    assert list(rules.open_until_s()) == ["a", "b"]
    assert rules.waiting() == {"c": NotOpened.AT_ONCE, "d": NotOpened.AT_ONCE}
    rules.end("a")
    assert rules.look(1.0, ALWAYS) == {BE: 200_000}
    assert list(rules.open_until_s()) == ["b", "c"]


def test_six_in_a_minute_however_often_a_pod_crashes() -> None:
    rules, opened_s, reasons = Openings(), list[float](), set[NotOpened]()
    for second in range(180):
        now_s, before = float(second), rules.opened
        if second % 4 == 0:
            rules.begin(f"sandbox{second}", BE, now_s)
        elif second % 4 == 1:
            rules.started(f"sandbox{second - 1}", now_s)
        rules.look(now_s, ALWAYS)
        opened_s += [now_s] * (rules.opened - before)
        reasons.update(rules.waiting().values())
    assert len(opened_s) > MOST_IN_A_MINUTE
    for index in range(len(opened_s) - MOST_IN_A_MINUTE):
        assert opened_s[index + MOST_IN_A_MINUTE] - opened_s[index] >= MINUTE_S
    assert reasons == {NotOpened.RATE}


def test_pods_whose_start_fails_again_and_again_leave_others_their_turn() -> None:
    """20 pods try each 10 s; one more begins to start after the first minute."""
    rules, opened_s = Openings(), None
    for second in range(180):
        now_s = float(second)
        for index in range(20):
            if second % 10 == index % 10:
                rules.end(f"failing{index}")
                rules.begin(f"failing{index}", BE, now_s)
        if second == 125:
            rules.begin("new", BE, now_s)
        rules.look(now_s, ALWAYS)
        if opened_s is None and "new" in rules.open_until_s():
            opened_s = now_s
    assert rules.opened > 2 * MOST_IN_A_MINUTE
    assert opened_s is not None
    assert opened_s < 125.0 + MINUTE_S / 2


def test_a_pod_without_its_turn_is_counted() -> None:
    rules = Openings()
    for uid in "abc":
        rules.begin(uid, BE, 0.0)
    rules.look(0.0, ALWAYS)
    rules.started("c", 1.0)
    rules.look(1.0 + AFTER_START_S, ALWAYS)
    assert rules.not_opened == {NotOpened.AT_ONCE: 1}
    assert rules.waiting() == {}


def test_a_pod_that_waits_for_the_rate_is_woken_for_it() -> None:
    rules = Openings()
    for index in range(MOST_IN_A_MINUTE):
        rules.begin(f"p{index}", BE, float(index))
        rules.look(float(index), ALWAYS)
        rules.end(f"p{index}")
    rules.begin("late", BE, 10.0)
    assert rules.look(10.0, ALWAYS) == {}
    assert rules.waiting() == {"late": NotOpened.RATE}
    assert rules.next_s(10.0) == MINUTE_S
    assert rules.look(MINUTE_S, ALWAYS) == {BE: 100_000}


def test_without_a_bound_nothing_is_opened_and_none_of_the_six_is_used() -> None:
    rules = Openings()
    for index in range(20):
        rules.begin(f"p{index}", BE, 0.0)
    assert rules.look(0.0, lambda _: False) == {}
    assert (rules.opened, rules.waiting()) == (0, {})
    assert rules.look(1.0, ALWAYS) == {BE: 200_000}
    assert rules.look(MOST_WAIT_S + MOST_OPEN_S + 1.0, lambda _: False) == {}
    assert rules.next_s(200.0) is None


def test_without_a_bound_nothing_waits_for_a_turn() -> None:
    """Else the time of that turn, which has come, would be due again and again."""
    rules = Openings()
    for number in range(MOST_IN_A_MINUTE):
        rules.begin(str(number), BE, number * 2.0)
        rules.look(number * 2.0, ALWAYS)
        rules.end(str(number))
    rules.begin("late", BE, 12.0)
    rules.look(12.0, ALWAYS)
    assert rules.next_s(12.0) == MINUTE_S
    rules.look(61.0, lambda _: False)
    assert rules.next_s(61.0) == 12.0 + MOST_WAIT_S
    assert not rules.waiting()


@pytest.mark.parametrize(
    ("parent", "starts", "found"),
    [
        ("/kubepods/besteffort/pod1", Starts.BEST_EFFORT, BE),
        ("/kubepods/besteffort/pod1", Starts.OFF, None),
        ("/kubepods/burstable/pod1", Starts.BEST_EFFORT, None),
        ("/kubepods/burstable/pod1", Starts.ALL, BE),
        ("/kubepods/pod1", Starts.ALL, BE),
        ("kubepods-besteffort-pod1.slice", Starts.BEST_EFFORT, tuple(SLICE.split("/"))),
        ("kubepods-pod1.slice", Starts.ALL, tuple(SLICE.split("/"))),
        ("/elsewhere/pod1", Starts.ALL, None),
        ("../../besteffort", Starts.ALL, None),
        ("", Starts.ALL, None),
    ],
)
def test_which_class_a_pod_opens(parent: str, starts: Starts, found: tuple[str, ...] | None) -> None:
    assert lifted_class(parent, starts) == found


# --- with files and processes ----------------------------------------------------------------------------


class Opened(Node):
    """A node whose process has openings."""

    openings: ClassOpenings

    def start(self, owned: object = None) -> None:
        super().start()
        self.openings = ClassOpenings(
            self.ledger,
            self.store,
            self.in_worker,
            lambda: self.is_idle,
            self.leased.ready.is_set,
            self.folder / "state",
            "boot",
            lambda: self.now_s,
        )
        self.store.on_change = lambda kind, identity, is_observed: self.openings.on_container(identity)

    async def restart(self, *, is_successor: bool = False, is_saved: bool = True) -> None:
        """kill -9, and a new process, in the order of the daemon's start."""
        if is_saved:
            self.checkpoint()
        self.journal.close()
        self.start()
        books = [decode(RowKind.BOOK, identity, body) for identity, body in self.saved.items()]
        self.ledger.books.load([each for each in books if isinstance(each, Book)])
        self.ledger.books.add_noted(self.ledger.read_journal())
        await self.openings.load()
        await self.leased.load(is_successor=is_successor)

    def run_container(self, identity: str, pod_id: str = "s-u1") -> None:
        self.store.containers.put(ContainerRecord(id=identity, pod_id=pod_id, state=Lifecycle.RUNNING))


@pytest.fixture(params=[1, 2])
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    made = Opened(tmp_path, request.param)
    await made.openings.load()
    await made.leased.load(is_successor=False)
    await made.leased.look()
    yield made
    for journal in made.journals:
        journal.close()


def quota(node: Opened, cgroup: str = CLASS) -> str:
    name = "cpu.cfs_quota_us" if node.files.version == 1 else "cpu.max"
    return node.read(cgroup, name).strip().replace("max", "-1")


async def test_a_bound_is_lifted_and_falls_back(node: Opened) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.openings.on_starting("u1", POD)
    assert await node.openings.look()
    assert quota(node) == "150000"
    node.run_container("new")
    node.now_s += AFTER_START_S
    assert await node.openings.look()
    assert quota(node) == "50000"
    claims = node.leased.owned("cpu-suppress").claims.values()
    assert [each.value for each in claims] == [50_000]


async def test_a_bound_that_moves_meanwhile_stays_lifted(node: Opened) -> None:
    node.openings.on_starting("u1", POD)
    assert await node.openings.look()
    assert quota(node) == "-1"
    await first(node, "cpu-suppress", suppress(50_000))
    assert await node.openings.look()
    assert quota(node) == "150000"
    await node.leased.set(request("cpu-suppress", 2, [suppress(30_000)]))
    assert quota(node) == "130000"
    await node.leased.set(request("cpu-suppress", 3, ended=[suppress(2000)[0]]))
    assert quota(node) == "-1"
    node.openings.on_not_created("u1")
    assert await node.openings.look()
    assert quota(node) == "-1"
    assert node.ledger.books.record(CLASS) is None


async def test_a_repair_keeps_what_is_open(node: Opened) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.openings.on_starting("u1", POD)
    await node.openings.look()
    name = "cpu.cfs_quota_us" if node.files.version == 1 else "cpu.max"
    node.files.write(CLASS, name, "50000 100000" if name == "cpu.max" else "50000")
    node.ledger.verify([Level.QOS_CLASS])
    assert quota(node) == "150000"


@pytest.mark.parametrize("is_saved", [True, False])
async def test_a_restart_drops_what_was_open_and_the_bound_is_as_claimed(
    node: Opened, *, is_saved: bool
) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.openings.on_starting("u1", POD)
    node.openings.on_starting("u2", f"{CLASS}/pod2")
    await node.openings.look()
    assert quota(node) == "250000"
    await node.restart(is_saved=is_saved)
    restored = node.leased.owned("cpu-suppress").claims.values()
    assert [each.value for each in restored] == [50_000]
    assert await node.openings.look()
    assert quota(node) == "50000"
    # The next one finds nothing to give back.
    await node.restart(is_saved=is_saved)
    assert await node.openings.look()
    assert quota(node) == "50000"


async def test_killed_between_the_note_and_the_write(node: Opened) -> None:
    await first(node, "cpu-suppress", suppress(150_000))
    node.openings.file.save({"quota_us": {CLASS: 100_000}})
    await node.restart()
    assert await node.openings.look()
    # The manager renews its claim, which is higher than what was read back.
    assert quota(node) == "50000"
    await first(node, "cpu-suppress", suppress(150_000))
    assert quota(node) == "150000"


async def test_a_bound_that_cannot_be_written_is_tried_again_and_said(
    node: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_locks, "MOST_WAIT_S", 0.01)
    await first(node, "cpu-suppress", suppress(50_000))
    held = partial(node.ledger._settlement.locks.held, [cgroup_path(CLASS)])
    node.openings.on_starting("u1", POD)
    with held():
        assert not await node.openings.look()
        assert not await node.openings.look()
        assert "has not ended" in node.openings.problem
    assert quota(node) == "50000"
    assert await node.openings.look()
    assert (quota(node), node.openings.problem) == ("150000", "")
    node.openings.on_not_created("u1")
    with held():
        assert not await node.openings.look()
        assert "has not ended" in node.openings.problem
    assert quota(node) == "150000"
    # A process that is killed now leaves to the next one what to take off.
    await node.restart()
    assert [each.value for each in node.leased.owned("cpu-suppress").claims.values()] == [50_000]
    assert await node.openings.look()
    assert quota(node) == "50000"


async def test_what_is_noted_follows_once_it_can_be_saved(
    node: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first(node, "cpu-suppress", suppress(150_000))
    node.openings.on_starting("u1", POD)
    await node.openings.look()
    save = node.openings.file.save

    def is_full(members: Mapping[str, Any]) -> None:
        if not members["quota_us"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(members)

    node.openings.on_not_created("u1")
    with monkeypatch.context() as patch:
        patch.setattr(node.openings.file, "save", is_full)
        assert not await node.openings.look()
        assert not await node.openings.look()
        assert "No space left" in node.openings.problem
    assert quota(node) == "150000"
    assert await node.openings.look()
    await node.restart()
    assert [each.value for each in node.leased.owned("cpu-suppress").claims.values()] == [150_000]


@pytest.mark.parametrize("text", ["", "{}", '{"version":1,"boot_id":"boot","quota_us":{"/a":-5}}', "[1"])
async def test_a_file_that_cannot_be_used_costs_nothing_else(node: Opened, text: str) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.openings.file.path.write_text(text)
    await node.restart()
    assert await node.openings.look()
    assert quota(node) == "50000"


async def test_nothing_is_written_while_the_bypass_is_on(node: Opened) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.openings.on_starting("u1", POD)
    node.is_idle = True
    assert not await node.openings.look()
    assert quota(node) == "50000"
    node.openings.on_starting("u3", f"{CLASS}/pod3")
    assert not node.openings.rules.is_followed("u3")


async def test_only_a_start_moves_the_end_and_only_once(node: Opened) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.openings.on_starting("u1", POD)
    await node.openings.look()
    node.run_container("new")
    end_s = node.openings.rules.open_until_s()["u1"]
    node.now_s += 1.0
    # An update of it.
    node.run_container("new")
    assert node.openings.rules.open_until_s()["u1"] == end_s == 100.0 + AFTER_START_S
    box = node.store.containers.get("lsbox")
    assert box is not None
    node.store.containers.put(replace(box, name="other"))
    assert node.openings.rules.open_until_s() == {"u1": end_s}


async def test_what_runs_in_the_class_stays_as_it_is(node: Opened) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    before = quota(node, BOX)
    node.openings.on_starting("u1", POD)
    await node.openings.look()
    assert quota(node, BOX) == before
    assert node.files.read(CLASS, "cpu.idle").strip() == "0"
