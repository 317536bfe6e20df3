"""Start-up boosts in the files of cgroups, beside burst, normalization and suppress, and through restarts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from policies.startup_boost import StartupBoost
from runtimeproxy.cgroups.paths import cgroup_path
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.views import Resources
from runtimeproxy.ledger import path_locks
from runtimeproxy.ledger.answers import by_parameter, target_of
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.boost_rules import QUIET_FROM_S, QUIET_S, End, NoBoost
from runtimeproxy.ledger.boosts import LOOK_S, OWNER, SAVED, StartupBoosts
from runtimeproxy.node.idle_cpus import IdleCpus
from runtimeproxy.node.snapshot import Input as NodeInput
from runtimeproxy.node.snapshot import InputState, LivePod, Node
from runtimeproxy.pods.checkpoint.codec import RowKind, decode
from runtimeproxy.pods.records import Book, ContainerRecord, Lifecycle
from runtimeproxy.slo.schema import PodStartupBoost
from runtimeproxy.slo.strategies import Strategies
from runtimeproxy.vocabulary import Mode
from tests.ledger.test_leased import LS, QUOTA, burst, first, request, suppress
from tests.ledger.test_leased import Node as LeasedNode

BOX = f"{LS}/web"
NO_BOOST = {
    "container": "web",
    "uid": "u2",
    "name": "web",
    "asked": [0, 1, 1],
    "begun_s": 1,
    "end_s": 1e308,
    "given_us": 1,
    "reason": "",
}
LATER = {**NO_BOOST, "asked": [40_000, 100_000, 120_000], "begun_s": 1e9, "end_s": 1e9}
WALL_S = 1_000_000.0


class Boosted(LeasedNode):
    """A node whose process boosts starts; 8 of its CPUs are idle unless told otherwise."""

    boosts: StartupBoosts

    def __init__(self, folder: Path, version: int) -> None:
        self.policy: LoadedPolicy | None = bind(StartupBoost())
        self.boost = PodStartupBoost(limit_percent=400, max_seconds=60)
        self.live_pods: dict[str, LivePod] = {}
        self.usage_us = 0
        self.is_known = self.is_recovered = True
        (folder / "proc").mkdir()
        self.stat = folder / "proc" / "stat"
        self.set_idle(8)
        super().__init__(folder, 1 if version == 1 else 2)
        self.files.make(BOX)
        self.files.write(LS, self.quota_file, "40000 100000" if version == 2 else "40000")
        self.set_usage(0)

    @property
    def quota_file(self) -> str:
        return "cpu.cfs_quota_us" if self.files.version == 1 else "cpu.max"

    def set_idle(self, cpus: int) -> None:
        """Since the boot: as the kernel shows it for 16 CPUs."""
        lines = [f"cpu  {160 - 10 * cpus} 0 0 {10 * cpus} 0 0 0 0 0 0"]
        self.stat.write_text("\n".join([*lines, *(f"cpu{index} 0 0 0 0" for index in range(16)), "intr 1"]))

    def set_usage(self, usage_us: int) -> None:
        name, text = "cpu.stat", f"usage_usec {usage_us}\nuser_usec 0\nsystem_usec 0"
        if self.files.version == 1:
            name, text = "cpuacct.usage", str(usage_us * 1_000)
        self.files.write(BOX, name, text)

    def node(self) -> Node:
        known = dict.fromkeys(NodeInput, InputState.KNOWN if self.is_known else InputState.UNKNOWN)
        return Node(strategies=Strategies(startup_boost=self.boost), states=known, live_pods=self.live_pods)

    def start(self, owned: dict[str, Owner] | None = None) -> None:
        super().start(owned)
        self.boosts = StartupBoosts(
            self.ledger,
            self.leased,
            self.store,
            self.node,
            lambda: self.policy,
            lambda pod, box: f"{pod.cgroup_parent}/{box.id}",
            self.in_worker,
            lambda: self.is_idle,
            lambda: self.is_recovered,
            IdleCpus(self.stat.parent),
            self.folder / "state",
            "boot",
            lambda: self.now_s,
            lambda: WALL_S + self.now_s,
        )
        self.store.on_change = lambda kind, identity, is_observed: self.boosts.on_container(identity)

    def put(self, state: Lifecycle, identity: str = "web", quota_us: int = 40_000) -> None:
        asked = Resources(cpu_quota_us=quota_us, cpu_period_us=100_000)
        self.store.containers.put(
            ContainerRecord(
                id=identity,
                pod_id="s-u2",
                name="web",
                requested=asked,
                booked=asked,
                state=state,
                created_s=WALL_S + 100.0,
            )
        )

    async def run_web(self) -> None:
        self.put(Lifecycle.CREATED)
        self.files.write(BOX, self.quota_file, "40000 100000" if self.files.version == 2 else "40000")
        self.put(Lifecycle.RUNNING)
        await self.boosts.look()

    async def restart(self, *, is_successor: bool = False, is_saved: bool = True) -> None:
        """kill -9, and a new process, in the order of the daemon's start."""
        if is_saved:
            self.checkpoint()
        self.journal.close()
        boxes = [box for box in self.store.containers if box.name == "web"]
        self.start()
        books = [decode(RowKind.BOOK, identity, body) for identity, body in self.saved.items()]
        self.ledger.books.load([each for each in books if isinstance(each, Book)])
        self.ledger.books.add_noted(self.ledger.read_journal())
        await self.boosts.load()
        for box in boxes:
            self.store.containers.put(box)
        await self.leased.load(is_successor=is_successor)

    async def pass_time(self, time_s: float, used_cpus: float = 1.0) -> None:
        """In steps of a second."""
        for _ in range(int(time_s)):
            self.usage_us += int(used_cpus * 1_000_000)
            self.set_usage(self.usage_us)
            await super().pass_time(1.0)
            await self.boosts.look()


@pytest.fixture(params=[2, pytest.param(1, marks=pytest.mark.slow)])
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Boosted]:
    made = Boosted(tmp_path, request.param)
    await made.boosts.load()
    await made.leased.load(is_successor=False)
    await made.leased.look()
    yield made
    for journal in made.journals:
        journal.close()


def quotas(node: Boosted) -> tuple[str, str]:
    """Of container and pod."""
    return tuple(node.files.read(each, node.quota_file).split()[0] for each in (BOX, LS))  # type: ignore[return-value]


async def test_a_start_is_boosted_and_the_limit_comes_back_in_time(node: Boosted) -> None:
    await node.run_web()
    assert quotas(node) == ("160000", "160000")
    box = node.store.containers.get("web")
    assert box is not None
    assert (box.requested.cpu_quota_us, box.booked.cpu_quota_us) == (40_000, 40_000)
    await node.pass_time(59.0)
    assert quotas(node) == ("160000", "160000")
    await node.pass_time(1.0)
    assert quotas(node) == ("40000", "40000")
    assert node.boosts.rules.ended[End.TIME] == 1


async def test_the_deadline_is_on_disk_before_the_first_write(node: Boosted) -> None:
    state = node.folder / "state" / SAVED
    state.mkdir(parents=True)
    await node.run_web()
    assert quotas(node) == ("40000", "40000")
    assert "cannot be saved" in node.boosts.problem
    state.rmdir()
    await node.pass_time(1.0)
    assert quotas(node) == ("160000", "160000")
    saved = json.loads(state.read_text())
    assert (saved["boot_id"], saved["boosts"][0]["end_s"]) == ("boot", 160.0)


async def test_the_claim_has_its_arithmetic(node: Boosted) -> None:
    node.set_idle(2)
    await node.run_web()
    (claim,) = node.leased.owned(OWNER).claims.values()
    assert str(claim.owner) == "plugin:startup-boost"
    assert claim.value == 100_000
    assert claim.reason == (
        "CPU quota 40000 x 400 % (default) - 40000 = 120000, of which 100000 are half of the node's idle CPUs"
    )


async def test_quiet_containers_have_their_limit_again(node: Boosted) -> None:
    await node.run_web()
    await node.pass_time(QUIET_FROM_S + QUIET_S - 1, used_cpus=0.3)
    assert quotas(node) == ("160000", "160000")
    await node.pass_time(1.0, used_cpus=0.3)
    assert quotas(node) == ("40000", "40000")
    assert node.boosts.rules.ended[End.QUIET] == 1


async def test_ready_containers_have_their_limit_again_within_a_look(node: Boosted) -> None:
    await node.run_web()
    about = LivePod("u2", "shop", "u2", ready=frozenset({"another"}))
    node.live_pods["u2"] = about
    await node.pass_time(1.0)
    assert quotas(node) == ("160000", "160000")
    node.live_pods["u2"] = about._replace(ready=frozenset({"another", "web"}))
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")
    assert node.boosts.rules.ended[End.READY] == 1


async def test_pressure_of_another_pod_ends_it(node: Boosted) -> None:
    await node.run_web()
    node.boosts.is_pressed = lambda uid: uid == "u2"
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")


@pytest.mark.parametrize("cause", ["strategy", "policy", "resize"])
async def test_what_is_withdrawn_ends(node: Boosted, cause: str) -> None:
    await node.run_web()
    if cause == "strategy":
        node.boost = PodStartupBoost()
    elif cause == "policy":
        node.policy = None
    else:
        node.put(Lifecycle.RUNNING, quota_us=50_000)
    await node.boosts.look()
    assert node.boosts.rules.ended[End.WITHDRAWN] == 1
    assert node.leased.owned(OWNER).claims == {}


async def test_beside_normalization_burst_and_suppress(node: Boosted) -> None:
    """(40000 / 1.25) + 120000 of the boost + 8000 of burst, and the class above bounded: the container has
    what the algebra gives, and nothing of it is lost when the others end."""
    record = node.store.pods.get("s-u2")
    box = ContainerRecord(id="web", pod_id="s-u2", name="web")
    assert record is not None
    asked = by_parameter(Resources(cpu_quota_us=40_000, cpu_period_us=100_000))
    scale = {QUOTA: (Claim(Claimant("cpu-normalization"), Role.SCALE, 1.25),)}
    await node.run_web()
    node.ledger.change([Wanted(target_of(record, box, BOX), scale, asked, asked)])
    assert quotas(node)[0] == "152000"
    key, claim = burst(8_000)
    await first(node, "cpu-burst", (key._replace(target="web"), claim))
    assert quotas(node)[0] == "160000"
    key, bound = suppress(90_000)
    await first(node, "cpu-suppress", (key._replace(target="Burstable"), bound))
    above = node.files.read("/kubepods/burstable", node.quota_file).split()[0]
    assert above == "90000"
    # Below a bound quotas are unlimited; the bound limits them.
    assert quotas(node)[0].replace("max", "-1") == "-1"
    await node.leased.set(request("cpu-suppress", 2, ended=[key._replace(target="Burstable")]))
    assert quotas(node)[0] == "160000"
    await node.pass_time(60.0)
    assert quotas(node)[0] in ("40000", "32000")
    await node.leased.set(request("cpu-burst", 2, ended=[burst(1)[0]._replace(target="web")]))
    assert quotas(node)[0] == "32000"


@pytest.mark.parametrize("is_saved", [True, False])
async def test_a_boost_goes_on_after_a_kill_and_ends_when_it_should(node: Boosted, *, is_saved: bool) -> None:
    await node.run_web()
    await node.pass_time(20.0)
    await node.restart(is_saved=is_saved)
    await node.boosts.look()
    assert quotas(node) == ("160000", "160000")
    assert node.leased.owned(OWNER).phase == "leased"
    await node.pass_time(39.0)
    assert quotas(node) == ("160000", "160000")
    await node.pass_time(1.0)
    assert quotas(node) == ("40000", "40000")
    # It has had its boost.
    node.put(Lifecycle.RUNNING)
    await node.restart(is_saved=is_saved)
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")


@pytest.mark.parametrize("time_s", [20.0, 300.0])
async def test_without_the_checkpoint_limits_come_back_all_the_same(node: Boosted, time_s: float) -> None:
    """It is lost while no process runs: containers and pods are found at the runtime."""
    await node.run_web()
    node.checkpoint()
    node.saved.clear()
    node.now_s += time_s
    node.is_recovered = False
    box = node.store.containers.get("web")
    assert box is not None
    node.store.containers.remove("web")
    await node.restart(is_saved=False)
    await node.boosts.look()
    assert quotas(node) == ("160000", "160000")
    assert node.boosts._pause_s() == LOOK_S
    node.store.containers.put(replace(box, recovered=True))
    node.is_recovered = True
    await node.boosts.look()
    assert quotas(node) == (("160000", "160000") if time_s == 20.0 else ("40000", "40000"))
    await node.pass_time(40.0)
    assert quotas(node) == ("40000", "40000")


async def test_killed_after_the_end_of_a_boost_is_saved_and_before_it_is_written(node: Boosted) -> None:
    await node.run_web()
    node.boosts.rules.end(node.now_s, ready={"web"})
    node.boosts.file.save(node.boosts.rules.as_document(node.now_s))
    await node.restart()
    assert quotas(node) == ("160000", "160000")
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")


async def test_an_end_that_cannot_be_written_is_tried_again_with_the_next_look(
    node: Boosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_locks, "MOST_WAIT_S", 0.01)
    await node.run_web()
    await node.pass_time(59.0)
    with node.ledger._settlement.locks.held([cgroup_path(BOX)]):
        await node.pass_time(1.0)
    assert node.boosts.rules.ended[End.TIME] == 1
    assert quotas(node) == ("160000", "160000")
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")


async def test_a_boost_ends_in_its_time_although_files_hang(
    node: Boosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.run_web()

    def hangs(cgroups: object) -> tuple[dict[str, int], float | None]:
        raise TimeoutError("a read has not ended")

    monkeypatch.setattr(node.boosts, "_read", hangs)
    await node.pass_time(59.0)
    assert quotas(node) == ("160000", "160000")
    await node.pass_time(1.0)
    assert quotas(node) == ("40000", "40000")


async def test_a_boost_that_is_refused_says_why(node: Boosted) -> None:
    node.leased._places._cgroup_of = lambda pod, box: ""
    await node.run_web()
    assert node.boosts.problem == "the cgroup of container web is not known"
    await node.pass_time(60.0)
    assert not node.boosts.problem


async def test_idle_cpus_of_long_ago_are_not_given(node: Boosted) -> None:
    """The node has been idle for days, and is busy when the daemon starts."""
    cpus = node.stat.read_text().partition("\n")[2]
    node.stat.write_text(f"cpu  0 0 0 1000000000 0 0 0 0 0 0\n{cpus}")
    await node.run_web()
    assert [each.waits for each in node.boosts.rules.active.values()] == [NoBoost.UNKNOWN_IDLE]
    node.stat.write_text(f"cpu  1600 0 0 1000000000 0 0 0 0 0 0\n{cpus}")
    await node.pass_time(1.0)
    assert [each.waits for each in node.boosts.rules.active.values()] == [NoBoost.NO_ROOM]
    node.stat.write_text(f"cpu  1600 0 0 1000001600 0 0 0 0 0 0\n{cpus}")
    await node.pass_time(1.0)
    assert quotas(node) == ("160000", "160000")


async def test_a_boost_whose_time_passed_while_no_process_ran(node: Boosted) -> None:
    await node.run_web()
    node.now_s += 300.0
    await node.restart()
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")
    assert node.boosts.rules.active == {}


async def test_what_started_while_no_process_ran_is_boosted_for_the_rest_of_its_time(node: Boosted) -> None:
    node.files.write(BOX, node.quota_file, "40000 100000" if node.files.version == 2 else "40000")
    # Created 20 s ago, first seen running.
    node.now_s += 20.0
    node.put(Lifecycle.RUNNING)
    await node.boosts.look()
    assert quotas(node) == ("160000", "160000")
    assert node.boosts.rules.next_s() == 160.0


async def test_what_has_run_for_long_is_not_boosted(node: Boosted) -> None:
    node.now_s += 60.0
    node.put(Lifecycle.RUNNING)
    await node.boosts.look()
    assert node.boosts.rules.active == {}


async def test_nothing_begins_during_the_bypass_and_the_lease_ends(node: Boosted) -> None:
    await node.run_web()
    node.is_idle = True
    node.put(Lifecycle.CREATED, "other")
    node.put(Lifecycle.RUNNING, "other")
    assert list(node.boosts.rules.active) == ["web"]
    await node.pass_time(1.0)
    assert quotas(node) == ("160000", "160000")
    node.is_idle = False
    await node.pass_time(100.0)
    assert quotas(node) == ("40000", "40000")


async def test_a_keeper_that_stops_leaves_no_boost_behind(node: Boosted) -> None:
    await node.run_web()
    await node.pass_time(10.0)
    # Only the leases are looked after from now on.
    await LeasedNode.pass_time(node, 15.0)
    assert quotas(node) == ("40000", "40000")
    # It goes on, and says all that it claims again.
    await node.boosts.look()
    await node.boosts.look()
    assert quotas(node) == ("160000", "160000")


async def test_in_dry_run_nothing_is_written(node: Boosted) -> None:
    owner = node.leased.owned(OWNER).owner
    node.leased.configure({**_owners(node), OWNER: owner._replace(mode=Mode.DRY_RUN)})
    node.policy = bind(StartupBoost(), PolicySettings(mode=Mode.DRY_RUN))
    await node.run_web()
    assert quotas(node) == ("40000", "40000")
    assert len(node.leased.owned(OWNER).claims) == 1
    assert node.boosts.problem == "startup-boost is in mode dry-run"
    await node.pass_time(60.0)
    # Nothing that could be applied is left.
    assert not node.boosts.problem


def _owners(node: Boosted) -> dict[str, Owner]:
    return {name: owned.owner for name, owned in node.leased.owners.items()}


async def test_without_limit_or_room_the_reason_is_known(node: Boosted) -> None:
    node.put(Lifecycle.CREATED, quota_us=-1)
    node.put(Lifecycle.RUNNING, quota_us=-1)
    assert node.boosts.rules.active == {}
    node.store.containers.remove("web")
    node.set_idle(0)
    await node.run_web()
    assert quotas(node) == ("40000", "40000")
    assert [each.waits for each in node.boosts.rules.active.values()] == [NoBoost.NO_ROOM]
    (shown,) = node.leased.unapplied()
    assert (shown.field, shown.wanted, shown.cause, shown.since_s) == (
        QUOTA,
        "+120000",
        "turn",
        WALL_S + 100.0,
    )
    assert "half of the node's idle CPUs" in shown.reason
    node.stat.unlink()
    await node.pass_time(1.0)
    assert [each.waits for each in node.boosts.rules.active.values()] == [NoBoost.UNKNOWN_IDLE]


async def test_the_log_says_why_one_never_had_its_boost(
    node: Boosted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.set_idle(0)
    await node.run_web()
    await node.pass_time(60.0)
    assert "web had no start-up boost until this ended: time; all start-up boosts have half" in caplog.text
    assert "has ended" not in caplog.text


async def test_a_hundred_pods_after_a_reboot_share_half_of_what_is_idle(node: Boosted) -> None:
    for index in range(100):
        identity = f"box{index}"
        node.files.make(f"{LS}/{identity}")
        node.put(Lifecycle.CREATED, identity)
        box = node.store.containers.get(identity)
        assert box is not None
        node.store.containers.put(replace(box, name=identity, state=Lifecycle.RUNNING))
    await node.boosts.look()
    given = [each.given_us for each in node.boosts.rules.active.values() if each.given_us]
    assert sum(given) == 400_000
    assert given == [120_000, 120_000, 120_000, 40_000]
    assert len(node.leased.owned(OWNER).claims) == 4


async def test_a_container_that_is_gone_leaves_nothing(node: Boosted) -> None:
    await node.run_web()
    node.store.containers.remove("web")
    await node.boosts.look()
    assert node.boosts.rules.active == {}
    assert node.files.read(LS, node.quota_file).split()[0] == "40000"
    assert node.leased.owned(OWNER).claims == {}


async def test_what_starts_before_strategies_are_known_is_boosted_for_the_rest_of_its_time(
    node: Boosted,
) -> None:
    node.is_known = False
    await node.run_web()
    assert quotas(node) == ("40000", "40000")
    await node.pass_time(20.0)
    node.is_known = True
    node.boosts.look_soon()
    await node.boosts.look()
    assert quotas(node) == ("160000", "160000")
    assert node.boosts.rules.next_s() == 160.0
    # Nothing is withdrawn by a process that does not know them yet.
    node.is_known = False
    await node.restart()
    await node.boosts.look()
    assert quotas(node) == ("160000", "160000")
    await node.pass_time(40.0)
    assert quotas(node) == ("40000", "40000")


async def test_what_never_becomes_known_is_forgotten(node: Boosted) -> None:
    node.is_known = False
    await node.run_web()
    node.now_s += 600.0
    await node.boosts.look()
    node.is_known = True
    await node.boosts.look()
    assert node.boosts.rules.active == {}


@pytest.mark.parametrize(
    "text",
    [
        "[1",
        '{"version":1,"boot_id":"boot","boosts":[],"given":[["u2"]]}',
        '{"version":1,"boot_id":"boot","boosts":[{"container":"web"}],"given":[]}',
        json.dumps({"version": 1, "boot_id": "boot", "boosts": [NO_BOOST], "given": []}),
        json.dumps({"version": 1, "boot_id": "boot", "boosts": [LATER], "given": []}),
        '{"version":1,"boot_id":"boot","boosts":[],"given":[["u2","web",1e9,"web"]]}',
    ],
)
async def test_a_file_that_cannot_be_used_leaves_no_boost_behind(node: Boosted, text: str) -> None:
    """The container has the boost of this process, or none: that of the process before ends."""
    await node.run_web()
    await node.pass_time(20.0)
    node.boosts.file.path.write_text(text)
    # While it runs nothing reads it.
    await node.pass_time(1.0)
    assert quotas(node) == ("160000", "160000")
    node.boosts.file.path.write_text(text)
    await node.restart()
    assert "not usable" in node.boosts.file.unusable
    await node.boosts.look()
    # The rest of its time, by its creation.
    assert quotas(node) == ("160000", "160000")
    await node.pass_time(39.0)
    assert quotas(node) == ("40000", "40000")
    node.boosts.file.path.write_text(text)
    await node.restart()
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")
    assert node.leased.owned(OWNER).claims == {}


async def test_a_boost_that_a_lost_file_had_ends_with_the_first_look(node: Boosted) -> None:
    await node.run_web()
    node.now_s += 300.0
    node.boosts.file.path.write_text("[")
    await node.restart()
    assert quotas(node) == ("160000", "160000")
    await node.boosts.look()
    assert quotas(node) == ("40000", "40000")


async def test_the_pod_has_what_all_its_containers_add(node: Boosted) -> None:
    """An init container, then two containers, of which one has no limit."""
    record = node.store.pods.get("s-u2")
    assert record is not None
    node.files.write(LS, node.quota_file, "90000 100000" if node.files.version == 2 else "90000")

    async def start(name: str, quota_us: int) -> None:
        node.files.make(f"{LS}/{name}")
        text = f"{quota_us} 100000" if node.files.version == 2 else str(quota_us)
        node.files.write(f"{LS}/{name}", node.quota_file, text.replace("-1 ", "max "))
        node.put(Lifecycle.CREATED, name, quota_us)
        box = node.store.containers.get(name)
        assert box is not None
        node.store.containers.put(replace(box, name=name))
        node.store.containers.put(replace(box, name=name, state=Lifecycle.RUNNING))
        await node.boosts.look()

    def pod_quota() -> str:
        return node.files.read(LS, node.quota_file).split()[0]

    await start("init", 20_000)
    assert pod_quota() == "150000"
    box = node.store.containers.get("init")
    assert box is not None
    node.store.containers.put(replace(box, state=Lifecycle.STOPPED))
    await node.boosts.look()
    assert pod_quota() == "90000"
    await start("sidecar", 20_000)
    await start("main", 40_000)
    await start("free", -1)
    assert pod_quota() == "270000"
    assert node.files.read(f"{LS}/free", node.quota_file).split()[0] in ("-1", "max")
    about = LivePod("u2", "shop", "u2", ready=frozenset({"sidecar"}))
    node.live_pods["u2"] = about
    await node.boosts.look()
    assert pod_quota() == "210000"
    # A pod-level limit that goes on to be the kubelet's.
    node.live_pods["u2"] = about._replace(ready=frozenset({"sidecar", "main"}))
    await node.boosts.look()
    assert pod_quota() == "90000"


async def test_a_fourth_start_in_ten_minutes_says_why_it_has_no_boost(node: Boosted) -> None:
    for number in range(4):
        identity = f"box{number}"
        node.files.make(f"{LS}/{identity}")
        node.put(Lifecycle.CREATED, identity)
        node.put(Lifecycle.RUNNING, identity)
        await node.boosts.look()
        shown = [each.reason for each in node.leased.unapplied()]
        assert shown == (["it has had 3 boosts in 600 s"] if number == 3 else [])
        if number < 3:
            node.store.containers.remove(identity)
            await node.boosts.look()
            await node.pass_time(5.0)
    assert node.boosts.rules.given == 3
    await node.pass_time(60.0)
    assert node.boosts.rules.denied[NoBoost.OFTEN] == 1


async def test_no_boost_begins_while_another_pod_waits_for_cpus(node: Boosted) -> None:
    node.boosts.is_pressed = lambda uid: uid == "u2"
    await node.run_web()
    assert quotas(node) == ("40000", "40000")
    assert [each.waits for each in node.boosts.rules.active.values()] == [NoBoost.PRESSURE]
    node.boosts.is_pressed = lambda uid: False
    await node.pass_time(1.0)
    assert quotas(node) == ("160000", "160000")


async def test_while_the_bypass_is_on_a_boost_that_is_over_is_looked_at_once_a_second(node: Boosted) -> None:
    await node.run_web()
    node.now_s += 59.5
    assert node.boosts._pause_s() == pytest.approx(0.5)
    node.now_s += 1.0
    node.is_idle = True
    await node.boosts.look()
    assert node.boosts._pause_s() == LOOK_S
