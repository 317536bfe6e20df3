"""Claims with a lease: what they lead to in the files, and what becomes of them with time and restarts."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from runtimeproxy.cgroups.pace import Pace
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.owners import BUILT_IN, Owner, claim_of, parse_rule
from runtimeproxy.hooks.views import Resources
from runtimeproxy.katalyst.advice import Advisors, PoolClaim
from runtimeproxy.ledger import change_log, leased
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.change_log import ClaimAudit
from runtimeproxy.ledger.claim_places import ClaimPlaces
from runtimeproxy.ledger.foreign import OVERWRITES
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.leased import ClaimsRequest, GivenClaim, LeasedClaims, Refused
from runtimeproxy.ledger.leases import LEASE_S, Answer, Phase
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.pods.checkpoint.codec import RowKind, decode, encode
from runtimeproxy.pods.records import Book, ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.vocabulary import ClaimKey, ClaimLevel, Mode, PoolField, Role
from tests.hooks.asking import until

QUOTA, BURST, CPUS = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpuset.cpus"
CLASS = "/kubepods/besteffort"
POD = f"{CLASS}/pod1"
BOX = f"{POD}/box"
LS = "/kubepods/burstable/pod2"
LS_BOX = f"{LS}/lsbox"
ADVISOR = "katalyst-advisor"

ResultT = TypeVar("ResultT")


def owners(**changes: Any) -> dict[str, Owner]:
    made = {
        name: Owner(name, tuple(map(parse_rule, each.allow)), may_evict=each.may_evict)
        for name, each in BUILT_IN.items()
    }
    made["mine"] = Owner("mine", (parse_rule("memory.low set pod"), parse_rule(f"{QUOTA} scale container")))
    return {name: owner._replace(**changes) for name, owner in made.items()}


class Node:
    """The files of a node, and processes that write them one after the other."""

    def __init__(self, folder: Path, version: Literal[1, 2] = 2) -> None:
        self.folder = folder
        self.files = CgroupFiles(folder / "cgroup", version)
        for cgroup in (BOX, LS_BOX, f"{POD}/sandbox"):
            self.files.make(cgroup)
        self.now_s = 100.0
        self.is_idle = False
        self.pool_problem = ""
        self.saved: dict[str, str] = {}
        self.audit: list[AuditEntry] = []
        self.journals: list[Journal] = []
        self.start()

    def start(self, owned: dict[str, Owner] | None = None) -> None:
        """A new process; what the one before had in memory only is lost."""
        self.store = PodStore()
        for uid, parent, box in (("u1", POD, "box"), ("u2", LS, "lsbox")):
            self.store.pods.put(
                PodRecord(id=f"s-{uid}", uid=uid, name=uid, namespace="shop", cgroup_parent=parent)
            )
            quota = Resources(cpu_quota_us=40_000) if box == "lsbox" else Resources()
            self.store.containers.put(
                ContainerRecord(
                    id=box,
                    pod_id=f"s-{uid}",
                    name="main",
                    state=Lifecycle.RUNNING,
                    requested=quota,
                    booked=quota,
                )
            )
        self.journal = Journal(self.folder / "state", "boot")
        self.journals.append(self.journal)
        self.ledger = Ledger(CgroupWriter(self.files.root), self.journal, "boot", lambda: self.now_s)
        self.ledger.books.is_v1 = self.files.version == 1
        self.reported: list[str] = []
        self.ledger.books.on_change = self.reported.append
        places = ClaimPlaces(
            self.store,
            lambda pod, box: f"{pod.cgroup_parent}/{box.id}",
            lambda name: "",
            lambda pool, field: self.pool_problem,
        )
        self.leased = LeasedClaims(
            self.ledger,
            places,
            self.in_worker,
            lambda: self.is_idle,
            ClaimAudit(self.audit.append, lambda: self.now_s),
            self.folder / "state",
            "boot",
            lambda: self.now_s,
        )
        self.leased.configure(owned or owners())

    async def in_worker(self, work: Callable[[], ResultT]) -> ResultT:
        return await asyncio.to_thread(work)

    def checkpoint(self) -> None:
        """Saves what was reported, as the daemon does."""
        for identity in self.reported:
            book = self.ledger.books.record(identity)
            if book is None:
                self.saved.pop(identity, None)
            else:
                self.saved[identity] = encode(book)
            self.ledger.note_saved(identity, book)
        self.reported.clear()

    async def restart(self, *, is_successor: bool = False, is_saved: bool = True) -> None:
        """kill -9, and a new process."""
        if is_saved:
            self.checkpoint()
        self.journal.close()
        self.start()
        books = [decode(RowKind.BOOK, identity, body) for identity, body in self.saved.items()]
        self.ledger.books.load([each for each in books if isinstance(each, Book)])
        self.ledger.books.add_noted(self.ledger.read_journal())
        await self.leased.load(is_successor=is_successor)

    def read(self, cgroup: str, name: str = "cpu.max") -> str:
        # The kernel leaves the period as it was, and a plain file does not.
        return (
            self.files.read(cgroup, name).split()[0] if name == "cpu.max" else self.files.read(cgroup, name)
        )

    async def pass_time(self, time_s: float) -> None:
        self.now_s += time_s
        await self.leased.look()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.leased.load(is_successor=False)
    await made.leased.look()
    yield made
    for journal in made.journals:
        journal.close()


def suppress(value: int) -> tuple[ClaimKey, Claim]:
    key = ClaimKey(ClaimLevel.QOS_CLASS, "BestEffort", QUOTA, Role.AT_MOST)
    return key, claim_of(Owner("cpu-suppress"), QUOTA, Role.AT_MOST, str(value), None, "the node is busy")


def cpus(
    text: str, level: ClaimLevel = ClaimLevel.QOS_CLASS, target: str = "BestEffort"
) -> tuple[ClaimKey, Claim]:
    key = ClaimKey(level, target, CPUS, Role.AT_MOST)
    return key, claim_of(Owner("cpu-suppress"), CPUS, Role.AT_MOST, text, None, "")


def burst(amount: int, ceiling: int | None = None) -> tuple[ClaimKey, Claim]:
    key = ClaimKey(ClaimLevel.CONTAINER, "lsbox", QUOTA, Role.ADD)
    return key, claim_of(Owner("cpu-burst"), QUOTA, Role.ADD, str(amount), ceiling, "it is throttled")


def share(cpus: int) -> tuple[ClaimKey, Claim]:
    key = ClaimKey(ClaimLevel.POOL, "share", PoolField.REQUIRED_CPUS, Role.SET)
    return key, claim_of(Owner(ADVISOR), key.field, Role.SET, str(cpus), None, "used 2.5 cores")


def request(
    owner: str,
    sequence: int,
    claims: Iterable[tuple[ClaimKey, Claim]] = (),
    ended: Iterable[ClaimKey] = (),
    session: str = "s",
    *,
    is_whole: bool = False,
) -> ClaimsRequest:
    given = [GivenClaim(place, *each) for place, each in enumerate(claims)]
    return ClaimsRequest(owner, session, sequence, is_whole, given, tuple(ended))


async def first(node: Node, owner: str, *claims: tuple[ClaimKey, Claim]) -> leased.ClaimsResponse:
    return await node.leased.set(request(owner, 1, claims, is_whole=True))


async def test_a_bound_of_a_class_is_written_moves_and_ends(node: Node) -> None:
    response = await first(node, "cpu-suppress", suppress(50_000))
    assert response == (Answer.TAKEN, [], [], "")
    assert node.read(CLASS) == "50000"
    await node.leased.set(request("cpu-suppress", 2, [suppress(30_000)]))
    assert node.read(CLASS) == "30000"
    await node.leased.set(request("cpu-suppress", 3, ended=[suppress(2000)[0]]))
    assert node.read(CLASS) == "max"
    assert node.ledger.books.record(CLASS) is None


async def test_a_claim_on_a_pod_whose_cgroup_cannot_be_is_refused_alone(node: Node) -> None:
    bad = PodRecord(id="s-bad", uid="bad", name="bad", namespace="shop", cgroup_parent="/..")
    for is_after_a_restart in (False, True):
        if is_after_a_restart:
            await node.restart()
            await node.leased.look()
        node.store.pods.put(bad)
        answer = await first(node, "mine", low("bad"), low("u1"))
        assert [(each.place, each.reason) for each in answer.refused] == [
            (0, "no pod with the uid bad runs, or its cgroup is not known")
        ]
        assert node.read(POD, "memory.low") == "4096"


async def test_what_moves_is_not_saved_each_time(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.checkpoint()
    body = node.saved[CLASS]
    for number in range(2, 6):
        await node.leased.set(request("cpu-suppress", number, [suppress(number * 10_000)]))
    assert node.reported == []
    book = node.ledger.books.record(CLASS)
    assert book is not None
    assert encode(book) == body
    assert "50000" not in body
    assert not any(path.read_text() for path in (node.folder / "state").glob("journal-*"))


async def test_a_heartbeat_renews_and_writes_nothing(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    for number in range(2, 12):
        await node.pass_time(5.0)
        assert (await node.leased.set(request("cpu-suppress", number))).answer is Answer.TAKEN
    assert node.read(CLASS) == "50000"
    assert node.leased.owners["cpu-suppress"].phase is Phase.LEASED


async def test_a_lapse_holds_bounds_and_releases_what_is_added(node: Node) -> None:
    node.files.apply(LS_BOX, _quota(40_000))
    node.files.apply(LS, _quota(40_000))
    await first(node, "cpu-suppress", suppress(50_000))
    await first(node, "cpu-burst", burst(20_000))
    await node.pass_time(LEASE_S - 0.5)
    assert (node.read(CLASS), node.read(LS_BOX)) == ("50000", "60000")
    await node.pass_time(1.0)
    assert (node.read(CLASS), node.read(LS_BOX), node.read(LS)) == (
        "50000",
        "40000",
        "40000",
    )
    suppressing, bursting = node.leased.owners["cpu-suppress"], node.leased.owners["cpu-burst"]
    assert (suppressing.phase, bursting.phase) == (Phase.HELD, Phase.NONE)
    assert (suppressing.lapses, bursting.lapses) == (1, 1)
    # The session of the bound goes on, that of the burst has to send all.
    assert (await node.leased.set(request("cpu-suppress", 2))).answer is Answer.TAKEN
    assert (await node.leased.set(request("cpu-burst", 2))).answer is Answer.SEND_WHOLE_SET
    await node.pass_time(LEASE_S)
    await node.pass_time(299.0)
    assert node.read(CLASS) == "50000"
    await node.pass_time(1.5)
    assert node.read(CLASS) == "max"
    assert suppressing.phase is Phase.NONE
    assert (await node.leased.set(request("cpu-suppress", 3))).answer is Answer.SEND_WHOLE_SET


async def test_the_end_of_a_session_without_claims_is_no_lapse(node: Node) -> None:
    # As of a plugin that the strategies do not want, when the manager is started again.
    await node.leased.take_over("cpu-burst", "new")
    await node.pass_time(LEASE_S)
    owned = node.leased.owners["cpu-burst"]
    assert (owned.phase, owned.lapses) == (Phase.NONE, 0)


async def test_without_a_hold_a_bound_ends_with_the_lease(node: Node) -> None:
    node.leased.configure(owners(hold_s=0.0))
    await first(node, "cpu-suppress", suppress(50_000))
    await node.pass_time(LEASE_S)
    assert node.read(CLASS) == "max"


async def test_another_session_takes_over_and_goes_on_without_a_jump(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    owned = await node.leased.take_over("cpu-suppress", "new")
    assert owned.claims == dict([suppress(50_000)])
    old = await node.leased.set(request("cpu-suppress", 2, [suppress(10_000)], is_whole=True))
    assert old.answer is Answer.TAKEN_OVER
    assert node.read(CLASS) == "50000"
    new = await node.leased.set(request("cpu-suppress", 1, [suppress(40_000)], session="new"))
    assert (new.answer, node.read(CLASS)) == (Answer.TAKEN, "40000")


async def test_what_is_not_in_the_whole_set_ends(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000), cpus("0-1"))
    await node.leased.set(request("cpu-suppress", 9, [cpus("0-2")], is_whole=True))
    assert (node.read(CLASS), node.read(CLASS, CPUS)) == ("max", "0-2")


async def test_a_pod_gets_the_sum_of_what_its_containers_get(node: Node) -> None:
    node.files.apply(LS_BOX, _quota(40_000))
    node.files.apply(LS, _quota(45_000))
    await first(node, "cpu-burst", burst(20_000, 55_000))
    assert (node.read(LS_BOX), node.read(LS)) == ("55000", "60000")
    await node.leased.set(request("cpu-burst", 2, [burst(5_000, 55_000)]))
    assert (node.read(LS_BOX), node.read(LS)) == ("45000", "50000")
    await node.leased.release("cpu-burst")
    assert (node.read(LS_BOX), node.read(LS)) == ("40000", "45000")


async def test_a_changed_scale_changes_the_sum(node: Node) -> None:
    node.files.apply(LS_BOX, _quota(40_000))
    node.files.apply(LS, _quota(40_000))
    await first(node, "cpu-burst", burst(60_000, 50_000))
    assert (node.read(LS_BOX), node.read(LS)) == ("50000", "50000")
    scale = {QUOTA: (Claim(Claimant("cpu-normalization"), Role.SCALE, 2.0),)}
    target = CgroupTarget(Level.CONTAINER, LS_BOX, "shop/u2/main", "u2")
    asked = {QUOTA: 40_000}
    await asyncio.to_thread(node.ledger.change, [Wanted(target, scale, asked, asked)])
    assert (node.read(LS_BOX), node.read(LS)) == ("50000", "70000")


async def test_policies_that_are_asked_again_keep_what_is_claimed(node: Node) -> None:
    node.files.apply(LS_BOX, _quota(40_000))
    await first(node, "cpu-burst", burst(20_000))
    wanted = Wanted(CgroupTarget(Level.CONTAINER, LS_BOX), {}, {QUOTA: 40_000}, {QUOTA: 40_000})
    assert not node.ledger.books.differs(wanted)
    await asyncio.to_thread(node.ledger.change, [wanted])
    assert node.read(LS_BOX) == "60000"


@pytest.mark.parametrize("is_saved", [True, False])
async def test_a_killed_daemon_goes_on_without_a_jump_and_gives_back(node: Node, is_saved: bool) -> None:
    node.files.apply(LS_BOX, _quota(40_000))
    node.files.apply(LS, _quota(40_000))
    await first(node, "cpu-suppress", suppress(50_000), cpus("0-1"))
    await first(node, "cpu-burst", burst(10_000))
    if is_saved:
        node.checkpoint()
    await node.leased.set(request("cpu-burst", 2, [burst(25_000)]))
    await node.leased.set(request("cpu-suppress", 2, [suppress(20_000)]))
    await node.restart(is_saved=False)
    await node.leased.look()
    await asyncio.to_thread(node.ledger.verify, list(Level))
    assert (node.read(LS_BOX), node.read(LS), node.read(CLASS)) == (
        "65000",
        "65000",
        "20000",
    )
    suppressing, bursting = node.leased.owners["cpu-suppress"], node.leased.owners["cpu-burst"]
    assert (suppressing.phase, bursting.phase) == (Phase.RESTORED, Phase.RESTORED)
    assert {key: claim.value for key, claim in suppressing.claims.items()} == {
        suppress(2000)[0]: 20_000,
        cpus("0")[0]: "0-1",
    }
    assert {key: claim.value for key, claim in bursting.claims.items()} == {burst(0)[0]: 25_000}
    assert (await node.leased.set(request("cpu-burst", 3))).answer is Answer.SEND_WHOLE_SET
    # The manager does not come back.
    await node.pass_time(LEASE_S)
    assert (node.read(LS_BOX), node.read(LS), node.read(CLASS)) == (
        "40000",
        "40000",
        "20000",
    )
    await node.pass_time(300.0)
    assert (node.read(CLASS), node.read(CLASS, CPUS)) == ("max", "")
    assert len(node.ledger.books) == 0


async def crash_loop(node: Node, owner: str, served_s: float) -> float:
    """Kills the daemon until an owner has no claims any more; returns after how long."""
    since_s = node.now_s
    while node.leased.owners[owner].claims:
        assert node.now_s - since_s < 1000
        await node.restart()
        await node.leased.look()
        if node.leased.owners[owner].claims:
            await node.pass_time(served_s)
    return node.now_s - since_s


@pytest.mark.parametrize("served_s", [0.25, 5.0, 20.0])
async def test_a_daemon_that_crashes_again_and_again_holds_no_dead_managers_claims(
    node: Node, served_s: float
) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    await first(node, "cpu-burst", burst(10_000))
    # A bound is held, also for a daemon that does not come to its end in one life, and what is added is not.
    assert await crash_loop(node, "cpu-burst", served_s) <= 2 * (LEASE_S + served_s)
    assert node.read(CLASS) == "50000"
    assert await crash_loop(node, "cpu-suppress", served_s) <= 300.0 + 2 * served_s
    assert node.read(CLASS) == "max"
    assert len(node.ledger.books) == 0
    saved = node.folder / "state" / leased.UNRENEWED
    await node.leased.look()
    assert json.loads(saved.read_text()) == {}


async def test_a_hold_goes_on_after_a_restart(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    await node.pass_time(LEASE_S)
    await node.pass_time(200.0)
    await node.restart()
    await node.pass_time(0.0)
    assert (node.leased.owners["cpu-suppress"].phase, node.read(CLASS)) == (Phase.HELD, "50000")
    await node.pass_time(98.0)
    assert node.read(CLASS) == "50000"
    await node.pass_time(2.0)
    assert node.read(CLASS) == "max"


async def test_a_manager_that_is_back_has_whole_leases_again(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    for _ in range(100):
        # Its request is all that comes in time, each time.
        await node.restart()
        await node.leased.look()
        await node.leased.take_over("cpu-suppress", "s")
        await node.pass_time(5.0)
    await node.restart()
    await node.pass_time(LEASE_S - 1)
    assert node.leased.owners["cpu-suppress"].phase is Phase.RESTORED
    assert node.leased.owners["cpu-suppress"].lapses == 0


async def test_kills_just_after_a_manager_is_back_do_not_count_against_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased, "TICK_S", 3600.0)
    await first(node, "cpu-suppress", suppress(50_000))
    saved = node.folder / "state" / leased.UNRENEWED
    for number in range(20):
        await node.restart()
        # It serves for 2 s without the manager.
        await node.pass_time(2.0)
        assert node.leased.owners["cpu-suppress"].phase is Phase.RESTORED
        assert json.loads(saved.read_text()) == {"cpu-suppress": 3.0}
        running = asyncio.get_running_loop().create_task(node.leased.run())
        if number % 2:
            await node.leased.take_over("cpu-suppress", "s")
        else:
            await node.leased.set(request("cpu-suppress", 1, [suppress(50_000)], is_whole=True))
        await until(lambda: json.loads(saved.read_text()) == {})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert node.leased.owners["cpu-suppress"].lapses == 0


async def test_advice_outlives_a_restart_and_never_its_lease(node: Node) -> None:
    await first(node, ADVISOR, share(3))
    await node.leased.look()
    await node.restart()
    said = PoolClaim("share", PoolField.REQUIRED_CPUS, 3, ADVISOR, "used 2.5 cores")
    assert node.leased.advisors() == Advisors((said,))
    assert node.leased.owners[ADVISOR].phase is Phase.RESTORED
    # However often the daemon is killed: time without a renewal adds up.
    assert await crash_loop(node, ADVISOR, 5.0) <= LEASE_S + 5.0
    assert node.leased.advisors() == Advisors(late=(ADVISOR,))
    await node.restart()
    assert node.leased.advisors() == Advisors()
    await first(node, ADVISOR, share(4))
    assert [each.value for each in node.leased.advisors().claims] == [4]


async def test_an_advisor_is_late_until_it_is_back_or_has_released(node: Node) -> None:
    await first(node, ADVISOR, share(3))
    await node.pass_time(LEASE_S)
    assert node.leased.advisors() == Advisors(late=(ADVISOR,))
    assert node.leased.owners[ADVISOR].lapses == 1
    await first(node, ADVISOR, share(3))
    assert not node.leased.advisors().late
    await node.pass_time(LEASE_S)
    assert node.leased.advisors().late == (ADVISOR,)
    await node.leased.release(ADVISOR)
    assert node.leased.advisors() == Advisors()
    start, ends, again, *_ = node.audit
    about = ("pool share", PoolField.REQUIRED_CPUS)
    assert all((each.target, each.field) == about for each in node.audit)
    assert (start.old, start.new, start.reason) == ("", "3", "used 2.5 cores")
    assert (ends.old, ends.new, ends.reason) == ("3", "", "its lease has ended")
    assert again.new == "3"


async def test_advice_that_moves_makes_few_audit_entries_and_in_dry_run_it_would_change(node: Node) -> None:
    for number in range(30):
        await node.leased.set(request(ADVISOR, number + 1, [share(number + 1)], is_whole=True))
        await node.pass_time(1.0)
    assert [each.new for each in node.audit] == ["1"]
    node.leased.configure(owners(mode=Mode.DRY_RUN))
    await node.leased.sync_all()
    node.audit.clear()
    await node.pass_time(60.0)
    await first(node, ADVISOR, share(9))
    assert node.leased.advisors() == Advisors()
    assert [(each.kind, each.new) for each in node.audit] == [(AuditKind.WOULD_CHANGE, "9")]


async def test_advice_on_a_pool_that_is_away_for_a_moment_stays(node: Node) -> None:
    await first(node, ADVISOR, share(3))
    node.pool_problem = "there is no pool share"
    await node.pass_time(leased.PRUNE_S)
    assert len(node.leased.advisors().claims) == 1
    # A new one is refused.
    found = await node.leased.set(request(ADVISOR, 2, [share(4)]))
    assert [each.reason for each in found.refused] == ["there is no pool share"]
    assert node.leased.advisors() == Advisors()


async def test_a_successor_has_the_advice(node: Node) -> None:
    await first(node, ADVISOR, share(3))
    node.leased.hand_over()
    await node.restart(is_successor=True)
    assert node.leased.owners[ADVISOR].phase is Phase.LEASED
    assert [each.value for each in node.leased.advisors().claims] == [3]


@pytest.mark.parametrize(
    "claims",
    [
        "none",
        {ADVISOR: [["pool", "share", "pool.required_cpus", "set", None, None, ""]]},
        {ADVISOR: [["pool", "share", "pool.required_cpus", "at_most", 3, None, ""]]},
        {ADVISOR: [["qos-class", "BestEffort", QUOTA, "at_most", 3, None, ""]]},
        {"cpu-suppress": [["pool", "share", "pool.required_cpus", "set", 3, None, ""]]},
        {"gone": [["pool", "share", "pool.required_cpus", "set", 3, None, ""]]},
    ],
)
async def test_what_cannot_be_used_of_saved_advice_is_left_out(node: Node, claims: Any) -> None:
    saved = node.folder / "state" / leased.ADVICE
    saved.write_text(json.dumps({"boot_id": "boot", "owners": claims}))
    await node.restart()
    assert node.leased.advisors() == Advisors()
    saved.write_text(json.dumps({"boot_id": "other", "owners": {}}))
    await node.restart()
    assert node.leased.advisors() == Advisors()


@pytest.mark.parametrize("text", ["", "[]", '{"cpu-suppress": "x"}', '{"cpu-suppress": NaN}', None])
async def test_what_cannot_be_read_of_leases_is_reported(
    node: Node, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    saved = node.folder / "state" / leased.UNRENEWED
    if text is None:
        # It can be neither read nor replaced.
        saved.mkdir()
    else:
        saved.write_text(text)
    await node.restart()
    assert "leases and holds of claims begin anew" in caplog.text
    assert ("after a restart leases and holds begin anew" in caplog.text) is (text is None)
    await node.pass_time(LEASE_S - 1)
    assert (node.leased.owners["cpu-suppress"].phase, node.read(CLASS)) == (Phase.RESTORED, "50000")


async def test_a_client_goes_on_after_a_restart_of_the_daemon(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    await node.restart()
    await node.leased.look()
    response = await node.leased.set(request("cpu-suppress", 2, [suppress(45_000)], is_whole=True))
    assert (response.answer, node.read(CLASS)) == (Answer.TAKEN, "45000")
    assert node.leased.owners["cpu-suppress"].phase is Phase.LEASED


async def test_a_successor_has_sessions_and_leases(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    await node.leased.set(request("cpu-suppress", 2, [suppress(40_000)]))
    node.now_s += 6.0
    await asyncio.to_thread(node.leased.hand_over)
    assert (node.folder / "state" / leased.HANDED_OVER).stat().st_mode & 0o777 == 0o600
    await node.restart(is_successor=True)
    assert not (node.folder / "state" / leased.HANDED_OVER).exists()
    await node.leased.look()
    owned = node.leased.owners["cpu-suppress"]
    assert owned.claims[suppress(2000)[0]].reason == "the node is busy"
    assert (await node.leased.set(request("cpu-suppress", 3, [suppress(30_000)]))).answer is Answer.TAKEN
    assert node.read(CLASS) == "30000"


async def test_the_lease_of_a_successor_ends_when_it_would_have_ended(node: Node) -> None:
    await first(node, "cpu-burst", burst(20_000))
    node.now_s += 10.0
    await asyncio.to_thread(node.leased.hand_over)
    await node.restart(is_successor=True)
    await node.pass_time(5.5)
    assert node.leased.owners["cpu-burst"].claims == {}


@pytest.mark.parametrize("text", ["", "[]", '{"boot": "boot"}', json.dumps({"boot": "other", "time_s": 100})])
async def test_what_is_no_file_of_a_predecessor_counts_as_a_restart(node: Node, text: str) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    (node.folder / "state" / leased.HANDED_OVER).write_text(text)
    await node.restart(is_successor=True)
    assert node.leased.owners["cpu-suppress"].phase is Phase.RESTORED


async def test_a_failed_successor_is_taken_back(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    await node.leased.reload()
    owned = node.leased.owners["cpu-suppress"]
    assert (owned.phase, [claim.value for claim in owned.claims.values()]) == (Phase.RESTORED, [50_000])


async def test_a_claim_on_what_is_not_known_is_refused_alone(node: Node) -> None:
    gone = ClaimKey(ClaimLevel.CONTAINER, "gone", QUOTA, Role.ADD)
    response = await first(node, "cpu-burst", (gone, burst(5)[1]), burst(20_000))
    assert [(each.place, each.cause) for each in response.refused] == [(0, leased.UNKNOWN_TARGET)]
    assert node.read(LS_BOX) == "60000"
    owned = node.leased.owners["cpu-burst"]
    assert (owned.refused, list(owned.claims)) == (1, [burst(0)[0]])


async def test_a_refused_value_ends_the_claim_before_it(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    refused = Refused(0, leased.INVALID, "bounds nothing", suppress(2000)[0])
    await node.leased.set(ClaimsRequest("cpu-suppress", "s", 2, refused=[refused]))
    assert node.read(CLASS) == "max"


async def test_bounds_of_claims_and_bytes(node: Node) -> None:
    node.leased.configure(owners(most_claims=1))
    await first(node, "cpu-suppress", suppress(50_000))
    response = await node.leased.set(request("cpu-suppress", 2, [cpus("0")]))
    assert [each.cause for each in response.refused] == [leased.TOO_MANY]
    node.leased.configure(owners(most_bytes=10))
    response = await first(node, "cpu-burst", burst(5_000))
    assert [each.cause for each in response.refused] == [leased.TOO_MANY]


async def test_an_owner_in_dry_run_changes_nothing(node: Node) -> None:
    node.leased.configure(owners(mode=Mode.DRY_RUN))
    response = await first(node, "cpu-suppress", suppress(50_000))
    assert (response.problem, node.read(CLASS)) == ("cpu-suppress is in mode dry-run", "max")
    assert [each.kind for each in node.audit] == [AuditKind.WOULD_CHANGE]
    node.leased.configure(owners())
    await node.leased.sync_all()
    assert node.read(CLASS) == "50000"
    node.leased.configure(owners(mode=Mode.DRY_RUN))
    await node.leased.sync_all()
    assert node.read(CLASS) == "max"


async def test_what_koordlet_writes_is_left_to_it(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    node.leased.unwritten = {QUOTA: "BECPUSuppress"}
    await node.leased.sync_all()
    assert node.read(CLASS) == "max"
    assert "BECPUSuppress" in node.leased.owners["cpu-suppress"].problem
    node.leased.unwritten = {}
    await node.leased.sync_all()
    assert node.read(CLASS) == "50000"


async def test_the_bypass_keeps_claims_until_it_ends(node: Node) -> None:
    node.is_idle = True
    response = await first(node, "cpu-suppress", suppress(50_000))
    assert (response.answer, node.read(CLASS)) == (Answer.TAKEN, "max")
    assert "bypass" in response.problem
    await node.pass_time(1.0)
    node.is_idle = False
    await node.pass_time(1.0)
    assert node.read(CLASS) == "50000"


async def test_another_program_that_keeps_writing_gets_its_way(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    for number in range(OVERWRITES + 1):
        (node.files.folder(CLASS) / "cpu.max").write_text("77000 100000\n")
        await node.leased.set(request("cpu-suppress", 2 + number, [suppress(40_000 + number * 1000)]))
    assert node.read(CLASS) == "77000"
    assert [each.theirs for each in node.ledger.yielded()] == [77_000]


async def test_a_container_that_is_gone_takes_its_claim_along(node: Node) -> None:
    node.files.apply(LS, _quota(40_000))
    await first(node, "cpu-burst", burst(20_000))
    assert node.read(LS) == "60000"
    node.store.containers.remove("lsbox")
    node.files.remove(LS_BOX)
    await node.pass_time(leased.PRUNE_S)
    assert node.leased.owners["cpu-burst"].claims == {}
    assert node.read(LS) == "40000"


async def test_a_bound_of_cpus_covers_lists_below_the_class(node: Node) -> None:
    (node.files.folder(BOX) / CPUS).write_text("0-7\n")
    await first(node, "cpu-suppress", cpus("0-3"))
    # On version 2 a cgroup without a list of its own has its parent's.
    assert [node.read(each, CPUS) for each in (CLASS, POD, BOX, f"{POD}/sandbox")] == ["0-3", "", "0-3", ""]
    await node.leased.set(request("cpu-suppress", 2, [cpus("2")]))
    assert node.read(BOX, CPUS) == "2"
    await node.leased.release("cpu-suppress")
    assert [node.read(each, CPUS) for each in (CLASS, BOX)] == ["", ""]


async def test_on_version_1_every_directory_has_the_bound(tmp_path: Path) -> None:
    node = Node(tmp_path, version=1)
    for cgroup in ("/kubepods", CLASS, POD, BOX, f"{POD}/sandbox", LS, LS_BOX, "/kubepods/burstable"):
        (node.files.folder(cgroup, "cpuset") / CPUS).write_text("0-7\n")
    await node.leased.load(is_successor=False)
    await node.leased.look()
    await first(node, "cpu-suppress", cpus("0-3"))
    below = (CLASS, POD, BOX, f"{POD}/sandbox")
    assert [node.read(each, CPUS) for each in below] == ["0-3"] * 4
    await node.leased.set(request("cpu-suppress", 2, [cpus("2-5")]))
    assert [node.read(each, CPUS) for each in below] == ["2-5"] * 4
    await node.leased.release("cpu-suppress")
    assert [node.read(each, CPUS) for each in below] == ["0-7"] * 4
    assert node.read(LS, CPUS) == "0-7"
    node.journal.close()


async def test_under_a_static_policy_containers_have_their_own_bound(node: Node) -> None:
    for cgroup in (POD, BOX):
        (node.files.folder(cgroup) / CPUS).write_text("0-7\n")
    own = cpus("3", ClaimLevel.CONTAINER, "box")
    await first(node, "cpu-suppress", cpus("0-5"), own)
    assert [node.read(each, CPUS) for each in (CLASS, POD, BOX)] == ["0-5", "0-5", "3"]
    await node.leased.set(request("cpu-suppress", 2, [cpus("0-4")]))
    assert [node.read(each, CPUS) for each in (CLASS, POD, BOX)] == ["0-4", "0-4", "3"]
    await node.leased.set(request("cpu-suppress", 3, ended=[own[0]]))
    assert node.read(CLASS, CPUS) == "0-4"


async def test_the_audit_of_a_value_that_moves_is_bounded(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    for number in range(30):
        await node.leased.set(request("cpu-suppress", 2 + number, [suppress(20_000 + number * 100)]))
        await node.pass_time(1.0)
    assert len(node.audit) == 1
    entry = node.audit[0]
    assert (entry.policy, entry.field, entry.new) == ("plugin:cpu-suppress", f"cgroup[{QUOTA}]", "50000")
    assert (entry.target, entry.reason) == ("QoS class BestEffort", "the node is busy")
    await node.pass_time(1.0)
    await node.leased.set(request("cpu-suppress", 40, [suppress(2000)], is_whole=True))
    await node.pass_time(40.0)
    await node.leased.set(request("cpu-suppress", 41, [suppress(3000)], is_whole=True))
    await node.leased.release("cpu-suppress")
    assert [each.new for each in node.audit] == ["50000", "3000", "-1"]
    monkeypatch.setattr(change_log, "MOST_CLAIM_ENTRIES", 0)
    await first(node, "cpu-burst", burst(20_000))
    assert len(node.audit) == 3
    node.now_s += 60.0
    monkeypatch.undo()
    await node.leased.release("cpu-burst")
    assert "more values" in node.audit[3].reason


def low(uid: str, value: int = 4096) -> tuple[ClaimKey, Claim]:
    claim = claim_of(Owner("mine"), "memory.low", Role.SET, str(value), None, "")
    return ClaimKey(ClaimLevel.POD, uid, "memory.low", Role.SET), claim


def lows(node: Node) -> list[str]:
    return [node.read(pod, "memory.low") for pod in (POD, LS)]


def change_waits(node: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The first change of values waits; returns that it has begun, and what lets it go on."""
    begun, free, change = threading.Event(), threading.Event(), node.ledger.change

    def waits(wanted: Sequence[Wanted]) -> Any:
        if not begun.is_set():
            begun.set()
            assert free.wait(30)
        return change(wanted)

    monkeypatch.setattr(node.ledger, "change", waits)
    return begun, free


async def test_a_request_is_carried_out_although_its_client_goes_away(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased, "PODS_IN_A_JOB", 1)
    before = lows(node)
    begun, free = change_waits(node, monkeypatch)
    call = asyncio.get_running_loop().create_task(first(node, "mine", low("u1"), low("u2")))
    assert await asyncio.to_thread(begun.wait, 30)
    call.cancel()
    await asyncio.wait({call})
    free.set()
    assert (await node.leased.set(request("mine", 2))).answer is Answer.TAKEN
    assert lows(node) == ["4096", "4096"]

    begun, free = change_waits(node, monkeypatch)
    release = asyncio.get_running_loop().create_task(node.leased.release("mine"))
    assert await asyncio.to_thread(begun.wait, 30)
    release.cancel()
    await asyncio.wait({release})
    free.set()
    await node.leased.release("mine")
    assert lows(node) == before
    assert len(node.ledger.books) == 0


async def test_a_request_whose_client_goes_away_while_claims_are_taken(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "rest_s", lambda self: 0.001)
    call = asyncio.get_running_loop().create_task(first(node, "mine", low("u1"), low("u2")))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    await node.leased.set(request("mine", 2))
    assert lows(node) == ["4096", "4096"]


async def test_an_error_costs_one_owner_one_attempt(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As of a read without a free descriptor.
    def fails(wanted: Sequence[Wanted]) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(node.ledger, "change", fails)
        response = await first(node, "mine", low("u1"))
        assert "Too many open files" in response.problem
        await first(node, "cpu-suppress", suppress(50_000))
        await node.pass_time(0.5)
    assert "claims of mine: could not be written" in caplog.text
    await node.pass_time(0.5)
    assert (node.read(POD, "memory.low"), node.read(CLASS)) == ("4096", "50000")
    assert node.leased.owners["mine"].problem == ""


async def test_a_thread_that_hung_brings_no_claims_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lows(node)
    begun, free = change_waits(node, monkeypatch)
    hung: list[asyncio.Future[Any]] = []

    async def hangs_once(work: Callable[[], Any]) -> Any:
        run = asyncio.get_running_loop().run_in_executor(None, work)
        if hung:
            return await run
        hung.append(run)
        assert await asyncio.to_thread(begun.wait, 30)
        raise TimeoutError("a file hangs")

    monkeypatch.setattr(node.leased, "_in_worker", hangs_once)
    response = await first(node, "mine", low("u1"), low("u2"))
    assert "a file hangs" in response.problem
    await node.leased.look()
    assert lows(node) == ["4096", "4096"]
    await node.leased.release("mine")
    free.set()
    await hung[0]
    # What it was at is in the books again, and ends; the others it leaves alone.
    assert lows(node) == ["4096", before[1]]
    await node.leased.look()
    assert lows(node) == before
    assert len(node.ledger.books) == 0


async def restart_with_a_late_checkpoint(node: Node) -> None:
    """As `Node.restart`, with a disk that answers when all else is read."""
    node.checkpoint()
    node.journal.close()
    node.start()
    await node.leased.load(is_successor=False)
    await node.leased.look()


async def read_checkpoint(node: Node) -> None:
    books = [decode(RowKind.BOOK, identity, body) for identity, body in node.saved.items()]
    node.ledger.books.load([each for each in books if isinstance(each, Book)])
    node.ledger.books.add_noted(node.ledger.read_journal())
    node.leased.on_books_loaded()
    await node.leased.look()


async def test_claims_of_a_checkpoint_that_is_read_late_end_with_their_lease(node: Node) -> None:
    await first(node, "cpu-suppress", suppress(50_000))
    await first(node, "mine", low("u1"))
    await restart_with_a_late_checkpoint(node)
    assert not node.leased.owners["mine"].claims
    await node.pass_time(1.0)
    await read_checkpoint(node)
    suppressing, mine = node.leased.owners["cpu-suppress"], node.leased.owners["mine"]
    assert (suppressing.phase, [claim.value for claim in suppressing.claims.values()]) == (
        Phase.RESTORED,
        [50_000],
    )
    assert (mine.phase, node.read(POD, "memory.low")) == (Phase.RESTORED, "4096")
    await node.pass_time(LEASE_S)
    assert (node.read(CLASS), node.read(POD, "memory.low")) == ("50000", "0")
    await node.pass_time(300.0)
    assert node.read(CLASS) == "max"
    assert len(node.ledger.books) == 0


async def test_claims_of_a_checkpoint_that_is_read_late_end_where_a_session_lacks_them(node: Node) -> None:
    await first(node, "mine", low("u1"), low("u2"))
    await restart_with_a_late_checkpoint(node)
    await first(node, "mine", low("u2", 8192))
    await read_checkpoint(node)
    assert lows(node) == ["0", "8192"]
    assert list(node.leased.owners["mine"].claims) == [low("u2")[0]]


async def test_a_failed_successor_is_taken_back_although_files_hang(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await first(node, "cpu-suppress", suppress(50_000))

    async def hangs(work: Callable[[], Any]) -> Any:
        raise TimeoutError("a file hangs")

    with monkeypatch.context() as patch:
        patch.setattr(node.leased, "_in_worker", hangs)
        await node.leased.reload()
        await node.leased.look()
        assert not node.leased.ready.is_set()
    assert caplog.text.count("a file hangs") == 1
    await node.leased.look()
    assert node.leased.ready.is_set()
    owned = node.leased.owners["cpu-suppress"]
    assert (owned.phase, [claim.value for claim in owned.claims.values()]) == (Phase.RESTORED, [50_000])


def _quota(value: int) -> Any:
    from cri_api.runtime.v1 import api_pb2

    return api_pb2.LinuxContainerResources(cpu_quota=value, cpu_period=100_000)


async def test_what_waits_is_known_while_its_lease_holds(node: Node) -> None:
    told = list[bool]()
    node.leased.on_waiting = lambda: told.append(node.leased.is_pressed("u9"))
    waits = ClaimsRequest("cpu-guard", "s", 1, is_whole=True, waiting_pods=frozenset({"u1"}))
    assert (await node.leased.set(waits)).answer is Answer.TAKEN
    assert told == [True]
    # A pod is no reason to end its own boost.
    assert [node.leased.is_pressed(uid) for uid in ("u1", "u2")] == [False, True]
    await node.leased.set(waits._replace(sequence=2, is_whole=False))
    assert told == [True]
    await node.leased.set(waits._replace(sequence=3, waiting_pods=frozenset({"u1", "u2"})))
    assert node.leased.is_pressed("u1")
    node.now_s += LEASE_S
    assert not node.leased.is_pressed("u1")
    await node.leased.set(waits._replace(sequence=4, is_whole=True))
    assert node.leased.is_pressed("u2")
    await node.leased.release("cpu-guard")
    assert not node.leased.is_pressed("u2")


async def test_what_waits_in_dry_run_ends_no_boost(node: Node) -> None:
    node.leased.configure(owners(mode=Mode.DRY_RUN))
    await node.leased.set(ClaimsRequest("cpu-guard", "s", 1, is_whole=True, waiting_pods=frozenset({"u1"})))
    assert not node.leased.is_pressed("u2")


@pytest.mark.parametrize(
    ("qos", "parent", "is_reset", "reason"),
    [
        ("BestEffort", "/kubepods.slice/kubepods-besteffort.slice", True, ""),
        ("BestEffort", "/kubepods.slice/kubepods-besteffort.slice", False, "systemd 252"),
        ("BestEffort", "/kubepods/besteffort", True, "cgroupfs"),
        ("Burstable", "/kubepods.slice/kubepods-besteffort.slice", True, "others have weights"),
    ],
)
def test_which_classes_may_be_idle(qos: str, parent: str, *, is_reset: bool, reason: str) -> None:
    store = PodStore()
    store.pods.put(
        PodRecord(id="s", uid="u", name="u", namespace="shop", cgroup_parent=f"{parent}/podu")
        if parent.startswith("/kubepods/")
        else PodRecord(
            id="s",
            uid="u",
            name="u",
            namespace="shop",
            cgroup_parent=f"{parent}/kubepods-besteffort-podu.slice",
        )
    )
    places = ClaimPlaces(store, lambda *_: "", lambda _: "", is_class_reset=lambda: is_reset)
    found = places.find(ClaimKey(ClaimLevel.QOS_CLASS, qos, "cpu.idle", Role.SET))
    if reason:
        assert isinstance(found, str)
        assert reason in found
    else:
        assert not isinstance(found, str)
        assert found.target.cgroup == parent


async def test_the_guard_makes_besteffort_pods_idle_and_no_others(node: Node) -> None:
    def idle(uid: str) -> tuple[ClaimKey, Claim]:
        claim = claim_of(Owner("cpu-guard"), "cpu.idle", Role.SET, "1", None, "")
        return ClaimKey(ClaimLevel.POD, uid, "cpu.idle", Role.SET), claim

    answer = await first(node, "cpu-guard", idle("u1"), idle("u2"))
    assert [(each.place, each.reason) for each in answer.refused] == [
        (1, "cpu.idle is for pods that are BestEffort in Kubernetes: others have weights")
    ]
    assert (node.read(POD, "cpu.idle"), node.read(LS, "cpu.idle")) == ("1", "0")
    await node.leased.set(request("cpu-guard", 2, ended=[idle("u1")[0]]))
    assert node.read(POD, "cpu.idle") == "0"
