"""The keeper of Katalyst's pools, beside records of pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.hooks.views import PodView, Resources
from runtimeproxy.katalyst.levels import QOS_LEVEL, LevelRules, QosLevel, Vocabulary
from runtimeproxy.katalyst.pools import PoolSettings
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

        self.store, self.folder = PodStore(), folder
        settings = PoolSettings(enable_reclaim=True, ramp_up_s=0.0)
        self.keeper = NodePools(
            self.store,
            OfNode(),
            pools_file(folder, "boot"),
            lambda: PoolConfiguration(settings),
            lambda: True,
            lambda: True,
            lambda: False,
            write,
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

        async def rounds() -> None:
            if self.keeper.state is None:
                await self.keeper.load()
            for _ in range(2):
                await self.keeper._round()

        asyncio.run(rounds())
        assert self.keeper.state is not None
        return {name: len(cpus) for name, cpus in self.keeper.state.pools.items()}

    def saved_pods(self) -> set[str]:
        found = pools_file(self.folder, "boot").load(lambda saved: saved_state(saved, T16))
        return set(found.pods) if found is not None else set()


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
