"""What follows from events of the runtime, and from what the cgroup tree tells."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from runtimeproxy.background import BackgroundTasks
from runtimeproxy.fields.resources import Resources
from runtimeproxy.frontends.cgroup_tree import CgroupTree, ContainerCgroup
from runtimeproxy.frontends.standalone import follower as follower_module
from runtimeproxy.frontends.standalone.follower import Follower
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.pods.inventory import Inventory, RuntimeEvent
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from tests.frontends.cri_proxy.calls.scripted import ScriptedRuntime
from tests.hooks.asking import until

PARENT = "/kubepods/besteffort/pod1"
POD = PodRecord(id="pod1", uid="uid1", cgroup_parent=PARENT, state=Lifecycle.RUNNING)
BOX = ContainerRecord(id="box1", pod_id="pod1", state=Lifecycle.CREATED)
SANDBOX_CGROUP = ContainerCgroup("pod1", "uid1", f"{PARENT}/pod1")
BOX_CGROUP = ContainerCgroup("box1", "uid1", f"{PARENT}/box1")


class GatedUpkeep:
    """Evaluates when it may; an `Evaluator` of itself."""

    def __init__(self) -> None:
        self.since_s = 0.0
        self.evaluated: list[str] = []
        self.repaired: list[tuple[str, bool]] = []
        self.resized: list[tuple[str, dict[str, int | str]]] = []
        self.own: set[str] = set()
        self.free = asyncio.Event()

    @property
    def evaluator(self) -> GatedUpkeep:
        return self

    async def evaluate_pod(self, identity: str) -> None:
        self.evaluated.append(identity)
        await self.free.wait()

    async def repair(self, cgroup: str, *, is_explained: bool = True) -> None:
        self.repaired.append((cgroup, is_explained))

    async def on_resized(self, cgroup: str, written: Mapping[str, int | str]) -> None:
        self.resized.append((cgroup, dict(written)))

    async def is_in_force(self, cgroup: str, name: str = "") -> bool:
        return cgroup in self.own


class ScriptedTree:
    """A `CgroupTree` that is told what it sees."""

    sees_processes = True
    is_followed = True


class ComparedInventory(Inventory):
    """Notes that lists are asked for."""

    def __init__(self) -> None:
        super().__init__(PodStore())
        self.compared = 0

    def compare_soon(self) -> None:
        self.compared += 1


class Followed:
    """A follower with all around it."""

    def __init__(self) -> None:
        self.runtime, self.upkeep = ScriptedRuntime(), GatedUpkeep()
        self.tree, self.inventory = ScriptedTree(), ComparedInventory()
        self.store = self.inventory.store
        self._running: list[asyncio.Task[None]] = []
        self._tasks = BackgroundTasks(lambda _: None)
        client = cast("GrpcRuntimeClient", self.runtime)
        self.follower = Follower(self.inventory, cast("Upkeep", self.upkeep), client, self._spawn, 0.0)
        self.follower.tree = cast("CgroupTree", self.tree)
        self.upkeep.free.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._running.append(self._tasks.spawn(work))
        return self._running[-1]

    async def end(self) -> None:
        """Waits until nothing is left to do."""
        async with asyncio.timeout(30):
            while any(not task.done() for task in self._running):
                await asyncio.gather(*self._running)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PAUSE_S", "REMOVALS_S", "WRITES_S", "SECOND_CHECK_S"):
        monkeypatch.setattr(follower_module, name, 0.0)


@pytest.fixture
async def followed() -> Followed:
    return Followed()


async def test_events_of_a_pod_that_come_together_are_one_evaluation(followed: Followed) -> None:
    runtime, upkeep, follower = followed.runtime, followed.upkeep, followed.follower
    upkeep.free.clear()
    for pod in ("pod1", "pod2"):
        runtime.pods[pod] = PodRecord(id=pod, state=Lifecycle.RUNNING)
        for number in range(10):
            box = ContainerRecord(id=f"{pod}-{number}", pod_id=pod, state=Lifecycle.RUNNING)
            runtime.containers[box.id] = box
    for identity in runtime.containers:
        await follower.take(RuntimeEvent(identity, is_pod=False, is_gone=False))
        # Evaluations begin, and hang.
        await asyncio.sleep(0)
    assert upkeep.evaluated == ["pod1", "pod2"]
    upkeep.free.set()
    await followed.end()
    # Once more for all that has come meanwhile.
    assert sorted(upkeep.evaluated) == ["pod1", "pod1", "pod2", "pod2"]
    await follower.take(RuntimeEvent("pod1-0", is_pod=False, is_gone=False))
    await followed.end()
    assert upkeep.evaluated.count("pod1") == 3


async def test_a_new_pod_is_evaluated_once_the_runtime_knows_it(followed: Followed) -> None:
    followed.follower.on_made(SANDBOX_CGROUP)
    await until(lambda: followed.runtime.asked.count("pod pod1") > 2)
    # Nothing is removed that was never there.
    assert (followed.upkeep.evaluated, followed.store.event) == ([], 0)
    followed.runtime.pods["pod1"] = POD
    await followed.end()
    assert followed.upkeep.evaluated == ["pod1"]
    assert followed.store.pods.get("pod1") is not None
    assert followed.inventory.compared == 0


async def test_a_container_is_evaluated_once_its_program_runs(followed: Followed) -> None:
    followed.store.pods.put(POD)
    followed.runtime.containers["box1"] = BOX
    followed.follower.on_made(BOX_CGROUP)
    await followed.end()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.state is Lifecycle.CREATED
    followed.upkeep.evaluated.clear()
    asked = list(followed.runtime.asked)
    followed.follower.on_started(BOX_CGROUP)
    await followed.end()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.state is Lifecycle.RUNNING
    assert followed.upkeep.evaluated == ["pod1"]
    # systemd sets the pod's slice again when a scope starts in it.
    assert (PARENT, True) in followed.upkeep.repaired
    # The details were there already.
    assert followed.runtime.asked == asked
    # The runtime itself may say so only later.
    await followed.follower.take(RuntimeEvent("box1", is_pod=False, is_gone=False))
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.state is Lifecycle.RUNNING


async def test_a_program_that_runs_before_the_runtime_has_answered(followed: Followed) -> None:
    followed.store.pods.put(POD)
    followed.runtime.containers["box1"] = BOX
    followed.runtime.answers.clear()
    followed.follower.on_made(BOX_CGROUP)
    followed.follower.on_started(BOX_CGROUP)
    followed.runtime.answers.set()
    await followed.end()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert (known.state, followed.upkeep.evaluated) == (Lifecycle.RUNNING, ["pod1"])


async def test_programs_that_run_before_the_first_list(followed: Followed) -> None:
    followed.follower.on_started(BOX_CGROUP)
    followed.store.containers.put(BOX)
    await followed.inventory.complete()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.state is Lifecycle.RUNNING


async def test_where_processes_are_not_visible_the_runtime_is_asked(followed: Followed) -> None:
    followed.tree.sees_processes = False
    followed.store.pods.put(POD)
    followed.runtime.containers["box1"] = BOX
    followed.follower.on_made(BOX_CGROUP)
    await until(lambda: followed.runtime.asked.count("container box1") > 2)
    followed.runtime.containers["box1"] = replace(BOX, state=Lifecycle.RUNNING)
    await followed.end()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.state is Lifecycle.RUNNING


async def test_a_cgroup_that_goes_before_the_runtime_knows_it(followed: Followed) -> None:
    followed.follower.on_made(BOX_CGROUP)
    await until(lambda: "container box1" in followed.runtime.asked)
    followed.follower.on_removed(BOX_CGROUP)
    await followed.end()
    assert followed.inventory.compared == 2
    assert followed.store.containers.get("box1") is None


async def test_a_container_whose_cgroup_is_gone_has_stopped(followed: Followed) -> None:
    followed.store.containers.put(replace(BOX, state=Lifecycle.RUNNING))
    followed.follower.on_removed(BOX_CGROUP)
    followed.follower.on_removed(SANDBOX_CGROUP)
    await followed.end()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.state is Lifecycle.STOPPED
    # One list for both: of a runtime without events nothing else tells what is removed.
    assert followed.inventory.compared == 1


async def test_a_runtime_that_is_away_when_a_container_comes(followed: Followed) -> None:
    followed.runtime.is_down = True
    followed.follower.on_made(BOX_CGROUP)
    await followed.end()
    assert followed.inventory.compared == 1


async def test_an_update_of_the_kubelet(followed: Followed) -> None:
    quota = Resources(cpu_quota_us=50_000)
    running = replace(BOX, state=Lifecycle.RUNNING, requested=quota, booked=quota)
    followed.store.pods.put(POD)
    followed.store.containers.put(running)
    larger = Resources(cpu_quota_us=80_000)
    followed.runtime.containers["box1"] = replace(running, requested=larger, booked=larger)
    followed.follower.on_written(BOX_CGROUP.cgroup, BOX_CGROUP)
    # More files of the same update.
    followed.follower.on_written(BOX_CGROUP.cgroup, BOX_CGROUP)
    await followed.end()
    known = followed.store.containers.get("box1")
    assert known is not None
    assert known.requested.cpu_quota_us == 80_000
    assert followed.upkeep.evaluated == ["pod1"]
    assert followed.upkeep.repaired == [(BOX_CGROUP.cgroup, True)] * 2


async def test_a_write_that_no_update_explains(followed: Followed) -> None:
    running = replace(BOX, state=Lifecycle.RUNNING)
    followed.store.pods.put(POD)
    followed.store.containers.put(running)
    followed.runtime.containers["box1"] = running
    followed.follower.on_written(BOX_CGROUP.cgroup, BOX_CGROUP)
    followed.follower.on_written(PARENT, None)
    await followed.end()
    assert not followed.upkeep.evaluated
    assert sorted(followed.upkeep.repaired) == [(PARENT, False), (BOX_CGROUP.cgroup, False)]


async def test_own_writes_lead_to_nothing(followed: Followed) -> None:
    followed.upkeep.own = {BOX_CGROUP.cgroup}
    followed.follower.on_written(BOX_CGROUP.cgroup, BOX_CGROUP)
    await followed.end()
    assert (followed.upkeep.repaired, followed.runtime.asked) == ([], [])


async def test_the_pod_of_a_resized_container_is_resized(followed: Followed) -> None:
    def sized(identity: str, quota_us: int) -> ContainerRecord:
        found = Resources(cpu_quota_us=quota_us)
        return replace(BOX, id=identity, state=Lifecycle.RUNNING, requested=found, booked=found)

    quotas = Resources(cpu_quota_us=150_000)
    followed.runtime.pods["pod1"] = replace(POD, requested=quotas, booked=quotas)
    for identity, quota_us in (("box1", 50_000), ("box2", 100_000)):
        followed.runtime.containers[identity] = sized(identity, quota_us)
        await followed.follower.take(RuntimeEvent(identity, is_pod=False, is_gone=False))

    def quota_of_pod() -> int | None:
        pod = followed.store.pods.get("pod1")
        assert pod is not None
        return pod.requested.cpu_quota_us

    assert quota_of_pod() == 150_000, "one container after the other is no resize"
    followed.runtime.containers["box2"] = sized("box2", 300_000)
    followed.follower.on_written("/kubepods/besteffort/pod1/box2", BOX_CGROUP._replace(id="box2"))
    await followed.end()
    assert quota_of_pod() == 350_000
    assert followed.upkeep.resized == [("/kubepods/besteffort/pod1", {"cpu.cfs_quota_us": 350_000})]
