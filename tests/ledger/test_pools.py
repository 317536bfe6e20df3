"""The keeper of Katalyst's pools, with the file of the state and a clock that the test sets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final
from unittest.mock import Mock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.katalyst.levels import (
    MEMORY_ENHANCEMENT,
    NUMA_BIND_RESULT,
    QOS_LEVEL,
    LevelRules,
    katalyst_qos,
)
from runtimeproxy.katalyst.pools import PoolPod, PoolSettings, problems
from runtimeproxy.katalyst.transition import PlacedPools
from runtimeproxy.ledger.pools import NodePools, PoolConfiguration, pod_facts, pools_file
from runtimeproxy.node.snapshot import Cpu, InputState, KubeletFacts, Node
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.store import PodStore

CPUS: Final = tuple(Cpu(cpu, cpu % 8 // 2, cpu % 8 // 4, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16))
KUBELET: Final = KubeletFacts("none", memory_manager_policy="None")
TWO_CPUS: Final = Resources(cpu_shares=2048)
RAMP_UP_S: Final = 30.0
DEADLINE_S: Final = 30.0


@pytest.fixture(autouse=True)
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimeproxy.ledger.pools.ROUND_S", 0.0)


@pytest.fixture
def executor() -> Iterator[Executor]:
    """One thread, as the daemon has for this file: what is saved first is there first."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Site:
    """A node on which daemons run one after the other.

    Attributes:
        now_s: The clock.
        written: Uids in the order in which their pods were written.
        unwritable: Uids of pods of which something cannot be written.
    """

    def __init__(self, folder: Path, executor: Executor) -> None:
        self.latest = Node(cpus=CPUS, kubelet=KUBELET)
        self.now_s = 1_000.0
        self.written: list[str] = []
        self.unwritable: set[str] = set()
        self.is_recovered = False
        self.is_rejecting = False
        self.settings = PoolSettings(reserved_count=2, ramp_up_s=RAMP_UP_S)
        self.store = PodStore()
        self._folder = folder
        self._executor = executor
        self._shown = asyncio.Event()

    async def restore(self) -> None:
        """All of the node is known."""

    def place(self, pools: PlacedPools | None, state: InputState) -> None:
        self._shown.set()

    async def write(self, uids: Collection[str]) -> frozenset[str]:
        self.written += uids
        return frozenset(uids) & self.unwritable

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[NodePools]:
        """One process, which is killed at the end: it saves nothing more."""
        pools = NodePools(
            self.store,
            self,
            pools_file(self._folder, "boot"),
            lambda: PoolConfiguration(self.settings, is_rejecting=self.is_rejecting),
            lambda: True,
            lambda: self.is_recovered,
            lambda: False,
            self.write,
            self._executor,
            clock=lambda: self.now_s,
        )
        self.store.on_change = lambda _, identity, __: pools.on_record(identity)
        await pools.load()
        running = asyncio.create_task(pools.run())  # noqa: TID251 - ended below
        try:
            yield pools
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def until(self, pools: NodePools, now_s: float) -> None:
        """Sets the clock, and waits until a whole round has been made at that time."""
        self.now_s = now_s
        # A round that is under way may show its pools once more; each one does when it begins.
        for _ in range(3):
            self._shown.clear()
            pools.look_soon()
            async with asyncio.timeout(DEADLINE_S):
                await self._shown.wait()

    def has_container(self, uid: str, annotations: Mapping[str, str] = MappingProxyType({})) -> None:
        """The record of a pod with one container."""
        pod = PodRecord(id=f"pod-{uid}", uid=uid, annotations=annotations, requested=TWO_CPUS)
        self.store.pods.put(pod)
        record = ContainerRecord(id=f"main-{uid}", pod_id=f"pod-{uid}", name="main", requested=TWO_CPUS)
        self.store.containers.put(record)


async def create(pools: NodePools, uid: str) -> None:
    """The calls that make a pod of one container."""
    pod = PodView(uid=uid, name=uid, namespace="default", resources=TWO_CPUS)
    until_s = asyncio.get_running_loop().time() + DEADLINE_S
    assert pools.admit(pod)
    await pools.commit(uid, until_s)
    pools.end(uid)
    assert pools.create(ContainerView(name="main", pod=pod, requested=TWO_CPUS))
    await pools.commit(uid, until_s)
    pools.end(uid)
    pools.created(uid, "main", f"main-{uid}")


def placed(pools: NodePools, uid: str) -> PoolPod:
    state = pools.state
    assert state is not None
    return state.pods[uid]


@pytest.mark.parametrize("is_recovered", [True, False], ids=["records", "no records yet"])
async def test_a_ramp_up_goes_on_where_the_process_before_was_killed(
    tmp_path: Path, executor: Executor, is_recovered: bool
) -> None:
    """What is left of the 30 s, and not 30 s anew; twice, as the second one saves it, too."""
    site = Site(tmp_path, executor)
    site.is_recovered = True
    async with site.daemon() as pools:
        await create(pools, "web")
        site.has_container("web")
        await site.until(pools, 1_000.0)
        everything = placed(pools, "web").cpus
    site.is_recovered = is_recovered
    for later_s in (12.0, 29.0):
        site.now_s = 1_000.0 + later_s
        async with site.daemon() as pools:
            await site.until(pools, 1_000.0 + later_s)
            web = placed(pools, "web")
            assert (web.ramp_up_since_s, web.is_ramping_up, web.cpus) == (1_000.0, True, everything)
    async with site.daemon() as pools:
        await site.until(pools, 1_029.999)
        assert placed(pools, "web").is_ramping_up
        site.written.clear()
        await site.until(pools, 1_030.0)
        web = placed(pools, "web")
        assert (web.is_ramping_up, web.owner) == (False, "share")
        assert web.cpus < everything
        assert site.written[:1] == ["web"]


async def test_a_ramp_up_that_was_over_while_no_process_ran_ends_at_the_start(
    tmp_path: Path, executor: Executor
) -> None:
    site = Site(tmp_path, executor)
    site.is_recovered = True
    async with site.daemon() as pools:
        await create(pools, "web")
        site.has_container("web")
    async with site.daemon() as pools:
        await site.until(pools, 5_000.0)
        assert placed(pools, "web").owner == "share"


OWN: Final = {QOS_LEVEL: "dedicated_cores", MEMORY_ENHANCEMENT: '{"numa_binding":"true"}'}
RECLAIMED: Final = {QOS_LEVEL: "reclaimed_cores"}
BOUND: Final = {QOS_LEVEL: "shared_cores", MEMORY_ENHANCEMENT: '{"numa_binding":"true"}'}
EVENTS: Final = ("pod", "failed pod", "gone", "later", "settings", "unwritable", "unsaved pod", "kill")


@given(events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), min_size=1, max_size=12))
@settings(max_examples=6, derandomize=True)
def test_a_killed_process_loses_nothing_that_a_call_was_told(events: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:
        asyncio.run(follow(Path(folder), executor, events))


@pytest.mark.slow
@given(events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), min_size=20, max_size=60))
@settings(max_examples=30, derandomize=True)
def test_a_killed_process_loses_nothing_that_many_calls_were_told(events: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:
        asyncio.run(follow(Path(folder), executor, events))


async def follow(folder: Path, executor: Executor, events: list[tuple[str, int]]) -> None:
    """Makes events; the process is killed after each `kill`, and then reads what was saved."""
    site = Site(folder, executor)
    site.is_recovered = site.is_rejecting = True
    waiting = [*events, ("kill", 0)]
    made: list[str] = []
    while waiting:
        async with site.daemon() as pools:
            while waiting:
                kind, number = waiting.pop(0)
                if kind == "kill":
                    break
                await one_event(site, pools, kind, number, made)
                check(pools, made)
            told = {uid: placed(pools, uid) for uid in made}
        async with site.daemon() as pools:
            check(pools, made)
            for uid, pod in told.items():
                found = placed(pools, uid)
                assert (found.dedicated, found.numa_ids) == (pod.dedicated, pod.numa_ids)
                # Its end may not be saved yet, and comes again.
                assert pod.ramp_up_since_s is None or found.ramp_up_since_s in (pod.ramp_up_since_s, None)


async def one_event(site: Site, pools: NodePools, kind: str, number: int, made: list[str]) -> None:
    if kind in ("pod", "failed pod", "unsaved pod"):
        uid = f"{len(site.store.pods)}-{len(site.written)}-{site.now_s:g}"
        # For those there is always room, so there is something to save.
        annotations = RECLAIMED if kind == "unsaved pod" else (OWN, {}, RECLAIMED, BOUND)[number]
        pod = PodView(uid=uid, name=uid, namespace="default", resources=TWO_CPUS, annotations=annotations)
        if kind == "unsaved pod":
            # Whatever is being saved is over; then the disk is full.
            await site.until(pools, site.now_s)
            full = Mock(side_effect=OSError(errno.ENOSPC, "full"))
            with patch.multiple(pools.file, save=full, add=full):
                assert await is_placed(pools, pod) is False
        elif await is_placed(pools, pod) and kind == "pod":
            site.has_container(uid, annotations)
            made.append(uid)
        if uid not in made:
            pools.undo(uid)
        pools.end(uid)
        # Long enough for another try.
        site.now_s += 10.0
    elif kind == "gone" and made:
        uid = made.pop(number % len(made))
        site.store.remove_pod(f"pod-{uid}")
    elif kind == "settings":
        site.settings = site.settings._replace(enable_reclaim=bool(number & 1), overlap=bool(number & 2))
    elif kind == "unwritable":
        site.unwritable = set(made[: number % 3])
    await site.until(pools, site.now_s + (20.0 if kind == "later" else 0.01))


async def is_placed(pools: NodePools, pod: PodView) -> bool:
    """The first part of a call: whether it goes on with a place for the pod."""
    if not pools.admit(pod):
        return False
    try:
        await pools.commit(pod.uid, asyncio.get_running_loop().time() + DEADLINE_S)
    except RefusalError:
        return False
    return True


def check(pools: NodePools, made: list[str]) -> None:
    state = pools.state
    assert state is not None
    assert problems(state) == ()
    assert set(made) <= state.pods.keys()


@pytest.mark.parametrize(("text", "nodes"), [("1", {1}), ("0-1", {0, 1}), ("", set()), ("one", set())])
def test_the_schedulers_numa_nodes(text: str, nodes: set[int]) -> None:
    """One that cannot be read is a problem of the pod's, and no reason to refuse it."""
    annotations = {**BOUND, NUMA_BIND_RESULT: text}
    assert pod_facts(PodView(annotations=annotations), LevelRules(), {}).bind_result == nodes
    qos = katalyst_qos(annotations, LevelRules())
    assert qos is not None
    assert [each.place for each in qos.problems] == ([NUMA_BIND_RESULT] if text == "one" else [])
    assert not qos.refusal
