"""The keeper of Katalyst's pools, beside records of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.katalyst.levels import QOS_LEVEL, LevelRules, Vocabulary
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.pools import PoolSettings, PoolState, problems
from runtimeproxy.katalyst.transition import PlacedPools
from runtimeproxy.ledger.pools import NodePools, PoolConfiguration, pod_qos, pools_file, saved_state
from runtimeproxy.node.snapshot import Cpu, InputState, KubeletFacts, Node
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.qos import QOS_CLASS_LABEL
from tests.katalyst.pool_doubles import T16


class OfNode:
    """A node of 16 CPUs, whose kubelet's managers are off."""

    def __init__(self) -> None:
        cpus = tuple(Cpu(*each) for each in T16.cpus)
        kubelet = KubeletFacts(cpu_manager_policy="none", memory_manager_policy="None")
        self.latest = Node(cpus=cpus, memory_bytes=T16.memory_bytes, kubelet=kubelet)

    async def restore(self) -> None:
        """All is there."""

    def place(self, pools: PlacedPools | None, state: InputState) -> None:
        """Nothing reads it."""


class AtOnce(Executor):
    """A thread that is quicker than the loop."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Site:
    def __init__(self, folder: Path) -> None:
        async def write(uids: Collection[str]) -> frozenset[str]:
            return frozenset()

        self.store, self.folder, self.write = PodStore(), folder, write
        self.rules = LevelRules()
        self.restart()

    def restart(self) -> None:
        """Another process, which knows what is saved."""
        settings = PoolSettings(enable_reclaim=True, ramp_up_s=0.0)
        self.keeper = NodePools(
            self.store,
            OfNode(),
            pools_file(self.folder, "boot"),
            lambda: PoolConfiguration(settings, self.rules),
            lambda: True,
            lambda: True,
            lambda: False,
            self.write,
            AtOnce(),
        )
        self.store.on_change = lambda _, identity, __: self.keeper.on_record(identity)

    def put(self, uid: str, shares: int) -> None:
        self.store.pods.put(PodRecord(id=uid, uid=uid, name=uid, requested=Resources(cpu_shares=shares)))
        self.put_container(uid, shares)

    def put_container(self, uid: str, shares: int) -> None:
        requested = Resources(cpu_shares=shares)
        self.store.containers.put(
            ContainerRecord(id=f"{uid}-c", pod_id=uid, name="main", requested=requested)
        )

    def follow(self) -> dict[str, int]:
        """Returns the sizes of pools after what the background does."""
        asyncio.run(self.rounds())
        assert self.keeper.state is not None
        return {name: len(cpus) for name, cpus in self.keeper.state.pools.items()}

    async def rounds(self) -> None:
        if self.keeper.state is None:
            await self.keeper.load()
        for _ in range(2):
            await self.keeper._round()

    def saved_pods(self) -> set[str]:
        found = self.saved()
        return set(found.pods) if found is not None else set()

    def saved(self) -> PoolState | None:
        return pools_file(self.folder, "boot").load(lambda saved: saved_state(saved, T16))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_state_is_saved_however_quick_the_thread_is(site: Site) -> None:
    for uid in ("a", "b", "c"):
        site.put(uid, 1024)
        site.follow()
        assert uid in site.saved_pods()
        assert site.keeper.is_saved


def test_a_resize_that_is_refused_changes_no_pool_until_it_is_possible(site: Site) -> None:
    site.put("a", 2048)
    site.put("b", 12 * 1024)
    assert site.follow()["share"] == 14
    site.put_container("a", 6 * 1024)
    assert site.follow()["share"] == 14
    site.store.remove_pod("b")
    assert site.follow()["share"] == 6


def test_a_request_that_another_has_changed_is_that_of_the_record(site: Site) -> None:
    site.put("a", 2048)
    assert site.follow()["share"] == 2
    site.put_container("a", 4096)
    assert site.follow()["share"] == 4
    site.put_container("a", 1024)
    assert site.follow()["share"] == 1


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restart", "same process"])
def test_pods_follow_what_their_annotations_mean_by_now(site: Site, is_restarted: bool) -> None:
    """Class and place are of one level: with another `default_level` both are those of that one."""
    site.put("a", 2048)
    site.store.pods.put(PodRecord(id="b", uid="b", name="b", annotations={QOS_LEVEL: "shared_cores"}))
    site.put_container("b", 2048)
    # What it asked for is not kept: its place stays.
    site.store.pods.put(PodRecord(id="c", uid="c", name="c", trimmed=True))
    site.put_container("c", 1024)

    def owners() -> dict[str, str]:
        site.follow()
        assert site.keeper.state is not None
        assert problems(site.keeper.state) == ()
        return {uid: pod.owner for uid, pod in site.keeper.state.pods.items()}

    assert owners() == {"a": "share", "b": "share", "c": "share"}
    for level, owner in ((QosLevel.RECLAIMED, "reclaim"), (QosLevel.SYSTEM, "system-"), (None, "share")):
        site.rules = LevelRules(default_level=level)
        if is_restarted:
            site.restart()
        assert owners() == {"a": owner, "b": "share", "c": "share"}


async def test_the_creation_of_a_container_waits_for_no_save_of_what_records_tell(site: Site) -> None:
    """Its pod's place is saved since the pod was made; the rest is saved in the next round."""
    pod = PodView(uid="a", name="a", resources=Resources(cpu_shares=2048))
    await site.keeper.load()
    assert site.keeper.admit(pod)
    assert site.keeper.needs_commit("a")
    await site.keeper.commit("a", asyncio.get_running_loop().time() + 60)
    site.keeper.end("a")
    assert site.keeper.create(ContainerView(name="main", pod=pod, requested=Resources(cpu_shares=2048)))
    assert not site.keeper.needs_commit("a")
    saved = site.saved()
    assert saved is not None
    assert not saved.pods["a"].containers
    site.put("a", 2048)
    site.keeper.end("a")
    site.keeper.created("a", "main", "a-c")
    await site.rounds()
    assert site.saved() == site.keeper.state


BOTH = (Vocabulary.KATALYST, Vocabulary.KOORDINATOR)
TURNED = BOTH[::-1]


@pytest.mark.parametrize(
    ("label", "level", "rules", "expected"),
    [
        ("", "", LevelRules(), "shared_cores"),
        ("LS", "", LevelRules(), "shared_cores"),
        ("BE", "", LevelRules(), "reclaimed_cores"),
        ("SYSTEM", "", LevelRules(), "system_cores"),
        ("LSE", "", LevelRules(), "shared_cores"),
        ("LSR", "", LevelRules(), "shared_cores"),
        ("BE", "", LevelRules(default_level=QosLevel.SHARED), "reclaimed_cores"),
        ("", "", LevelRules(default_level=QosLevel.RECLAIMED), "reclaimed_cores"),
        ("LS", "", LevelRules(default_level=QosLevel.RECLAIMED), "shared_cores"),
        ("BE", "shared_cores", LevelRules(order=BOTH), "shared_cores"),
        ("BE", "shared_cores", LevelRules(order=TURNED), "reclaimed_cores"),
        ("LS", "reclaimed_cores", LevelRules(order=TURNED), "shared_cores"),
        ("", "reclaimed_cores", LevelRules(order=TURNED), "reclaimed_cores"),
    ],
)
def test_one_class_decides(label: str, level: str, rules: LevelRules, expected: str) -> None:
    labels, annotations = {QOS_CLASS_LABEL: label} if label else {}, {QOS_LEVEL: level} if level else {}
    qos = pod_qos(PodView(labels=labels, annotations=annotations), rules)
    assert qos.level == expected
    assert qos.pool == {"shared_cores": "share", "reclaimed_cores": "reclaim", "system_cores": ""}[expected]
