"""A node's inputs under watch: real folders with the kernel's events, and without them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio

from runtimeproxy.cgroups import pace
from runtimeproxy.documents import reading
from runtimeproxy.node import sources as node_sources
from runtimeproxy.node.inputs import InputPlaces, InputsReading, NodeInputs
from runtimeproxy.node.snapshot import Input, InputState, Node, PodCpus
from runtimeproxy.node.sources import InputWatchSettings, NodeSources
from runtimeproxy.qos import QoSClass
from tests.inotify_doubles import Deaf, Exhausted
from tests.node.objects_of import (
    BURST,
    NODE_NAME,
    Machine,
    MountedConfigMap,
    config_map,
    node_object,
    write,
)

DEADLINE_S = 30.0
"""Far more than the second that it takes, because machines are busy."""
QUICK = InputWatchSettings(poll_s=0.01, rescan_s=0.01, gather_s=0.001, least_s=0.0)
EVENTS_ONLY = replace(QUICK, poll_s=3600, rescan_s=3600)
"""A change without an event is not noticed."""
WATCHING = {
    "inotify": EVENTS_ONLY,
    "exhausted": replace(QUICK, open_inotify=Exhausted()),
    "lost events": replace(QUICK, open_inotify=Deaf),
}


class Watched:
    """Folders under watch, and every snapshot that was made of them."""

    def __init__(self, root: Path, settings: InputWatchSettings) -> None:
        self.machine = Machine(root)
        self.objects = root / "node.d"
        self.kubelet = root / "kubelet"
        self.objects.mkdir()
        self.kubelet.mkdir()
        self.places = InputPlaces(
            sysfs=self.machine.sysfs,
            procfs=self.machine.procfs,
            cgroup_root=self.machine.cgroups,
            kubelet_dir=self.kubelet,
            objects_dir=self.objects,
            state_dir=root / "state",
            node_name=NODE_NAME,
        )
        self.settings = settings
        self.changes: list[frozenset[Input]] = []
        self.times_s: list[float] = []
        self._changed = asyncio.Condition()
        self._wakers: set[asyncio.Task[None]] = set()
        self.start()

    def start(self) -> None:
        self._executor = ThreadPoolExecutor(1)
        self.sources = NodeSources(self.places, self._executor, self.settings)
        self.sources.allocate({})
        self.sources.on_change = self._on_change
        self._task = asyncio.get_running_loop().create_task(self.sources.run())

    async def until(self, condition: Callable[[Node], bool]) -> Node:
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: condition(self.sources.snapshot()))
        return self.sources.snapshot()

    async def settle(self) -> Node:
        async with asyncio.timeout(DEADLINE_S):
            await self.sources.settled.wait()
        return self.sources.snapshot()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._executor.shutdown()

    def _on_change(self, node: Node, inputs: frozenset[Input]) -> None:
        assert node is self.sources.snapshot()
        self.changes.append(inputs)
        self.times_s.append(asyncio.get_running_loop().time())

        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._wakers.add(task)
        task.add_done_callback(self._wakers.discard)


@pytest.fixture
def settings() -> InputWatchSettings:
    return EVENTS_ONLY


@pytest_asyncio.fixture
async def watched(tmp_path: Path, settings: InputWatchSettings) -> AsyncIterator[Watched]:
    made = Watched(tmp_path, settings)
    try:
        yield made
    finally:
        await made.stop()


def has_burst(percent: int) -> Callable[[Node], bool]:
    return lambda node: node.strategies.cpu_burst.cpu_burst_percent == percent


def has_static(cpu: int) -> Callable[[Node], bool]:
    wanted = {("u", "c"): frozenset({cpu})}
    return lambda node: node.kubelet is not None and node.kubelet.static_cpus == wanted


def burst(percent: int) -> str:
    return json.dumps({"clusterStrategy": {"cpuBurstPercent": percent}})


@pytest.mark.parametrize("settings", WATCHING.values(), ids=WATCHING)
async def test_every_way_in_which_files_change(watched: Watched) -> None:
    await watched.settle()
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    await watched.until(has_burst(200))
    (watched.objects / "cm.yaml").write_text(json.dumps(config_map(cpu_burst_config=burst(300))))
    await watched.until(has_burst(300))
    with (watched.objects / "cm.yaml").open("w") as file:
        text = json.dumps(config_map(cpu_burst_config=burst(400)))
        for start in range(0, len(text), 10):
            file.write(text[start : start + 10])
            file.flush()
            await asyncio.sleep(0)
    await watched.until(has_burst(400))
    write(watched.objects / "node.yaml", node_object())
    node = await watched.until(lambda node: node.labels == {"pool": "a"})
    assert node.state_of(Input.STRATEGIES) is InputState.KNOWN


@pytest.mark.parametrize("settings", WATCHING.values(), ids=WATCHING)
async def test_a_config_map_that_is_swapped(watched: Watched) -> None:
    mounted = MountedConfigMap(watched.objects)
    await watched.settle()
    for percent in (200, 300, 400):
        mounted.publish(cpu_burst_config=burst(percent))
        await watched.until(has_burst(percent))
    assert watched.sources.snapshot().state_of(Input.STRATEGIES) is InputState.KNOWN


async def test_the_kubelets_files(watched: Watched) -> None:
    await watched.settle()
    state = watched.kubelet / "cpu_manager_state"
    for cpu in (2, 3):
        new = watched.kubelet / ".cpu_manager_state123"
        new.write_text(json.dumps({"policyName": "static", "entries": {"u": {"c": str(cpu)}}}))
        new.replace(state)
        await watched.until(has_static(cpu))
    assert watched.changes[2:] == [frozenset({Input.KUBELET})] * 2


@pytest.mark.parametrize("settings", [QUICK])
async def test_a_folder_that_comes_later_is_found_by_polling(watched: Watched) -> None:
    watched.objects.rmdir()
    await watched.settle()
    watched.objects.mkdir()
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    await watched.until(has_burst(200))


async def test_snapshots_keep_their_distance(tmp_path: Path) -> None:
    least_s = 0.5
    watched = Watched(tmp_path, replace(EVENTS_ONLY, least_s=least_s))
    try:
        await watched.settle()
        mounted = MountedConfigMap(watched.objects)
        for percent in (200, 300, 400):
            mounted.publish(cpu_burst_config=burst(percent))
            await watched.until(has_burst(percent))
        gaps_s = [after - before for before, after in pairwise(watched.times_s[1:])]
        assert min(gaps_s) >= least_s - 0.01
    finally:
        await watched.stop()


async def test_what_was_known_before_counts_at_the_start(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    path = watched.objects / "cm.yaml"
    await watched.settle()
    write(path, config_map(cpu_burst_config=BURST))
    await watched.until(has_burst(200))
    await watched.stop()
    path.write_text("a: [")
    watched.start()
    await watched.sources.restore()
    assert has_burst(200)(watched.sources.snapshot())
    node = await watched.settle()
    assert has_burst(200)(node)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"node: {path}: line 2 column 1: while parsing a flow node")
    assert warnings[0].endswith("; what was there before stays")
    assert watched.sources.summary == "node: cgroups unknown, 1 problem"


async def test_problems_that_come_and_go_fill_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    sources = NodeSources(
        InputPlaces(tmp_path, tmp_path, tmp_path), ThreadPoolExecutor(1), clock=lambda: now_s
    )
    look = InputsReading(Node(), frozenset(), (), (), wait_s=None, needs_polling=False)
    for number in range(1000):
        sources._publish(look._replace(problems=(f"a.yaml: {number}",)))
        sources._publish(look)
    assert len(caplog.records) == node_sources.MOST_LINES + 1
    assert "the others are logged later" in caplog.messages[-1]
    sources._publish(look._replace(problems=("b.yaml: stays",)))
    now_s = 60.0
    sources._publish(look._replace(problems=("b.yaml: stays",)))
    assert caplog.messages[-1] == "node: b.yaml: stays"


async def test_a_fifo_keeps_nothing_waiting(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    await watched.settle()
    await watched.stop()
    fifo = watched.objects / "hangs.yaml"
    os.mkfifo(fifo)
    watched.start()
    node = await watched.settle()
    assert node.cpus is not None
    assert [f"{fifo}: is not a regular file" in record.getMessage() for record in caplog.records] == [True]


async def test_a_file_system_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_sources, "FIRST_READ_S", 0.01)
    goes_on = threading.Event()
    executor = ThreadPoolExecutor(1)
    executor.submit(goes_on.wait)
    sources = NodeSources(InputPlaces(sysfs=tmp_path, procfs=tmp_path, cgroup_root=tmp_path), executor)
    task = asyncio.get_running_loop().create_task(sources.run())
    try:
        await sources.read()
        assert not sources.settled.is_set()
        assert "cannot be read in time" in caplog.text
    finally:
        goes_on.set()
        task.cancel()
        await asyncio.wait([task])
        executor.shutdown()


async def test_facts_and_allocations_are_those_of_the_moment(watched: Watched) -> None:
    before = await watched.settle()
    assert watched.sources.fresh_until_s > time.monotonic()
    assert watched.sources.latest is before
    allocations = {"u": PodCpus(QoSClass.LSR, frozenset({1}))}
    watched.sources.allocate(allocations)
    after = watched.sources.latest
    assert after.allocations == allocations
    assert (after.cpus, after.generations) == (before.cpus, before.generations)
    assert watched.sources.snapshot() is after
    assert after.facts.online_cpus == frozenset(range(8))


async def test_computed_pools_follow_pods_at_once(watched: Watched) -> None:
    await watched.stop()
    watched.places = watched.places._replace(pools="computed")
    watched.start()
    await watched.settle()
    sources = watched.sources
    assert sources.latest.pools is not None
    assert {each.cpus for each in sources.latest.pools.ls} == {frozenset(range(4)), frozenset(range(4, 8))}
    watched.changes.clear()
    sources.allocate({"u": PodCpus(QoSClass.LSR, frozenset(range(5)))})
    # No file is read for it.
    node = sources.latest
    assert node.pools is not None
    assert [each.cpus for each in node.pools.ls] == [frozenset({5, 6, 7})]
    assert [sum(len(each.cpus) for each in node.pools.be)] == [8]
    assert watched.changes == [{Input.POOLS}]
    generation = node.generations[Input.POOLS]
    # The same CPUs of another pod are no change of the pools.
    sources.allocate({"v": PodCpus(QoSClass.LSR, frozenset(range(5)))})
    assert sources.latest.pools is node.pools
    # Neither is a look at other inputs.
    write(watched.objects / "node.yaml", node_object())
    node = await watched.until(lambda node: node.labels == {"pool": "a"})
    assert all(Input.POOLS not in each for each in watched.changes[1:])
    assert node.generations[Input.POOLS] == generation
    assert node.state_of(Input.POOLS) is InputState.KNOWN
    (watched.kubelet / "cpu_manager_state").write_text('{"policyName":"static","entries":{"w":{"c":"7"}}}')
    node = await watched.until(lambda node: node.generations[Input.POOLS] > generation)
    assert node.pools is not None
    assert [each.cpus for each in node.pools.ls] == [frozenset({5, 6})]


async def test_computed_pools_are_unknown_before_the_pods_are(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    places = InputPlaces(
        sysfs=machine.sysfs, procfs=machine.procfs, cgroup_root=machine.cgroups, pools="computed"
    )
    with ThreadPoolExecutor(1) as executor:
        sources = NodeSources(places, executor)
        await sources.restore()
        assert sources.latest.state_of(Input.POOLS) is InputState.UNKNOWN
        sources.allocate({})
        assert sources.latest.state_of(Input.POOLS) is InputState.KNOWN


async def test_the_status_names_what_is_unknown(tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    sources = NodeSources(InputPlaces(sysfs=tmp_path, procfs=tmp_path, cgroup_root=tmp_path), executor)
    assert sources.summary == ""
    await sources.restore()
    assert sources.summary.startswith("node: cpus, memory, cgroups, ")
    task = asyncio.get_running_loop().create_task(sources.run())
    await sources.read()
    assert sources.summary == "node: cpus, memory, cgroups unknown"
    task.cancel()
    await asyncio.wait([task])
    executor.shutdown()


async def test_without_events_that_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernel = Exhausted()
    watched = Watched(tmp_path, replace(QUICK, open_inotify=kernel))
    try:
        await watched.settle()
        write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
        await watched.until(has_burst(200))
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == 1
        assert "no events from the kernel" in warnings[0]
        assert "max_user_instances" in warnings[0]
    finally:
        await watched.stop()


async def test_no_error_ends_the_watch(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.settle()

    def fail(*_: object) -> None:
        raise RecursionError("bug")

    with monkeypatch.context() as patched:
        for name in ("restore", "look"):
            patched.setattr(NodeInputs, name, fail)
        await NodeSources(watched.places, ThreadPoolExecutor(1)).restore()
        looked = asyncio.Event()
        handler = logging.Handler()
        monkeypatch.setattr(handler, "handle", lambda _: looked.set())
        logging.getLogger(node_sources.__name__).addHandler(handler)
        write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
        async with asyncio.timeout(DEADLINE_S):
            await looked.wait()
        logging.getLogger(node_sources.__name__).removeHandler(handler)
    assert "node: internal error: RecursionError: bug; what was there before stays" in caplog.text
    write(watched.objects / "node.yaml", node_object())
    await watched.until(lambda node: node.labels == {"pool": "a"})


async def test_looks_leave_the_cpu_to_calls_after_the_first(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of megabytes take a second of a CPU, and may change all the time."""
    rests: list[bool] = []
    monkeypatch.setattr(reading, "rest", lambda: rests.append(pace._WORK.pace is not None))
    await watched.settle()
    await watched.stop()
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=BURST))
    watched.start()
    await watched.until(has_burst(200))
    assert set(rests) == {False}
    rests.clear()
    write(watched.objects / "cm.yaml", config_map(cpu_burst_config=burst(300)))
    await watched.until(has_burst(300))
    assert set(rests) == {True}


async def test_nothing_is_read_in_the_loops_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: set[int] = set()
    read_text = Path.read_text

    def record(path: Path, *args: str | None, **options: str | None) -> str:
        readers.add(threading.get_ident())
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", record)
    machine = Machine(tmp_path)
    places = InputPlaces(sysfs=machine.sysfs, procfs=machine.procfs, cgroup_root=machine.cgroups)
    ages_s = itertools.count(0, 10)
    with ThreadPoolExecutor(1) as executor:
        sources = NodeSources(places, executor, settings=QUICK, clock=lambda: float(next(ages_s)))
        nodes: list[Node] = []
        sources.on_change = lambda node, _: nodes.append(node)
        task = asyncio.get_running_loop().create_task(sources.run())
        await sources.read()
        task.cancel()
        await asyncio.wait([task])
    assert nodes[-1].cpus is not None
    assert nodes[-1].facts.online_cpus == frozenset(range(8))
    assert readers
    assert threading.get_ident() not in readers
