"""What makes running pods be evaluated again, and files be compared."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runtimeproxy.cgroups import pace, writer
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome, WriteResult
from runtimeproxy.config.settings import LedgerSettings
from runtimeproxy.fields.tables import OF_PROCESSES
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, parse_claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ClassView, PodView
from runtimeproxy.ledger import evaluate, path_locks
from runtimeproxy.ledger import upkeep as module
from runtimeproxy.ledger.books import Wanted
from runtimeproxy.ledger.foreign import OVERWRITES
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.rates import ChangeRates
from runtimeproxy.ledger.target import CgroupTarget
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.node.snapshot import Input, Node
from runtimeproxy.pods.records import ContainerRecord, Level, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.testing import CgroupFiles
from tests.lab.deadline import wait_until
from tests.ledger.claims import Claims, decision_of

POD = "/kubepods/besteffort/pod1"
BOX = f"{POD}/box"


class Policies:
    """A chain whose answers are data."""

    rule = ConflictRule.EARLIER
    unsettled: frozenset[str] = frozenset()
    hooks = frozenset({Hook.EVALUATE_QOS_CLASS})

    def __init__(self) -> None:
        self.policies: list[Any] = []
        self.claims: dict[type, Claims] = {}
        self.seen: list[Any] = []

    async def evaluate(self, view: Any) -> Decision:
        self.seen.append(view)
        return decision_of(self.claims.get(type(view), {}))


class Scene:
    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.files = CgroupFiles(folder / "cgroup", version=2)
        self.files.make(BOX)
        self.store = PodStore()
        self.store.pods.put(PodRecord(id="s1", name="web", namespace="shop", cgroup_parent=POD))
        box = ContainerRecord(id="box", pod_id="s1", name="main", state=Lifecycle.RUNNING)
        self.store.containers.put(box)
        self.journal = Journal(folder / "state", "boot")
        self.writer = CgroupWriter(self.files.root)
        self.ledger = Ledger(self.writer, self.journal, "boot")
        self.policies = Policies()
        self.is_idle = False
        self.upkeep = Upkeep(
            self.store,
            self.ledger,
            lambda: self.policies,  # type: ignore[arg-type,return-value]
            lambda pod, record: f"{pod.cgroup_parent}/{record.id}",
            executor,
            self._is_idle,
            BY_CALLS,
        )
        self.ticks = 0

    def _is_idle(self) -> bool:
        self.ticks += 1
        return self.is_idle

    def quota(self, cgroup: str = POD) -> str:
        return (self.files.read(cgroup, "cpu.max").split() or [""])[0]  # written to just now

    @property
    def is_requested(self) -> bool:
        return self.upkeep.evaluator._requested.is_set()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with ThreadPoolExecutor(4) as executor:
        made = Scene(tmp_path, executor)
        yield made
        made.journal.close()


def quota(value: int, owner: str = "batch") -> dict[str, tuple[Claim, ...]]:
    return {"cpu.cfs_quota_us": (Claim(parse_claimant(owner), Role.SET, value),)}


async def test_only_inputs_that_a_policy_declares_make_work(scene: Scene) -> None:
    declares = SimpleNamespace(
        inputs=frozenset({Input.POOLS}),
        optional_inputs=frozenset({Input.STRATEGIES}),
        features=frozenset(),
        optional_features=frozenset(),
    )
    scene.policies.policies.append(declares)
    scene.upkeep.on_node_changed(Node(), frozenset({Input.CPUS}))
    assert not scene.is_requested
    scene.upkeep.on_node_changed(Node(), frozenset({Input.CPUS, Input.STRATEGIES}))
    assert scene.is_requested


@pytest.mark.parametrize("name", ["features", "optional_features"])
async def test_features_of_the_kernel_make_work_for_policies_that_use_them(scene: Scene, name: str) -> None:
    nothing: dict[str, frozenset[str]] = dict.fromkeys(
        ("inputs", "optional_inputs", "features", "optional_features"), frozenset()
    )
    scene.policies.policies.append(SimpleNamespace(**nothing | {name: frozenset({"burst"})}))
    scene.upkeep.on_node_changed(Node(), frozenset({Input.CGROUPS}))
    assert scene.is_requested


async def test_other_policies_are_asked_at_once(scene: Scene) -> None:
    scene.upkeep.on_policies(["broken"])
    assert scene.is_requested
    assert scene.ledger.books.not_loaded == {"broken"}
    assert scene.ledger.books.rule is ConflictRule.EARLIER


async def test_what_a_policy_that_cannot_be_loaded_wanted_stays(scene: Scene) -> None:
    scene.policies.claims[PodView] = quota(50_000, "broken")
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.quota() == "50000"
    scene.policies.claims = {}
    scene.upkeep.on_policies(["broken"])
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.quota() == "50000"
    scene.upkeep.on_policies([])
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.quota() == "max"


async def test_values_of_a_hook_server_that_is_gone_are_given_back(scene: Scene) -> None:
    for cgroup, level in ((POD, Level.POD), (BOX, Level.CONTAINER)):
        claims = quota(50_000, "server:a.json")
        scene.ledger.change([Wanted(CgroupTarget(level, cgroup), claims)])
    scene.upkeep.on_servers(["a.json", "b.json"])
    assert (scene.quota(), scene.quota(BOX)) == ("50000", "50000")
    scene.upkeep.on_servers(["b.json"])
    await scene.upkeep.evaluator.evaluate_all()
    assert (scene.quota(), scene.quota(BOX)) == ("max", "max")


async def test_values_of_a_hook_server_are_given_back_beside_calls(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have values of all pods."""
    rests: list[bool] = []
    scene.ledger.change([Wanted(CgroupTarget(Level.POD, POD), quota(50_000, "server:a.json"))])
    monkeypatch.setattr(writer, "rest", lambda: rests.append(pace._WORK.pace is not None))
    scene.upkeep.on_servers([])
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.quota() == "max"
    assert set(rests) == {True}


async def test_values_of_a_hook_server_are_given_back_at_a_rate_and_not_where_they_fail(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [f"/kubepods/besteffort/many{number}" for number in range(30)]
    for pod in pods:
        scene.files.make(pod)
        scene.ledger.change([Wanted(CgroupTarget(Level.POD, pod), quota(50_000, "server:a.json"))])
    write, refused = scene.writer.write_levels, [True]

    def refuses(levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        if not refused[0]:
            return write(levels)
        (each,) = levels[0]
        return tuple(WriteResult(each.cgroup, *pair, WriteOutcome.FAILED) for pair in each.values.items())

    monkeypatch.setattr(scene.writer, "write_levels", refuses)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    changes = scene.upkeep.evaluator.changes
    changes._sleep, changes._now_s, changes.rates = sleep, lambda: 0.0, ChangeRates(pods_per_s=4)
    scene.upkeep.on_servers([])
    assert scene.is_requested
    await scene.upkeep.evaluator.evaluate_all()
    ended = "the end of a hook server's values ended: 11 of 11 pods failed, 19 are left"
    assert scene.upkeep.summary == ended
    assert scene.ledger.books.owners() == {Claimant("a.json", ClaimantKind.SERVER)}
    refused[0], slept[:] = False, []
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.upkeep.summary == ""
    assert slept == [number / 4 for number in range(19)]
    assert sum(scene.quota(pod) == "max" for pod in pods) == 19
    scene.ledger.verify([Level.POD])
    assert {scene.quota(pod) for pod in pods} == {"max"}


async def test_a_change_that_has_ended_is_no_problem_once_nothing_is_left_to_change(scene: Scene) -> None:
    problem = "the end of a hook server's values"

    async def fails(_: int) -> bool:
        return False

    await scene.upkeep.evaluator.changes.make(problem, range(30), fails, of=30)
    assert problem in scene.upkeep.summary
    # Its pods are gone, or the server is there again.
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.upkeep.summary == ""


async def test_what_koordlet_writes_is_observed_only(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    burst = {"cpu.cfs_burst_us": (Claim(Claimant("burst"), Role.SET, 1000),)}
    with caplog.at_level(logging.INFO):
        scene.upkeep.on_servers(["koordlet.json"])
    assert "koordlet is registered" in caplog.text
    assert "CPUBurst: cpu.cfs_burst_us; CgroupReconcile: memory.high, memory.low" in caplog.text
    names = (
        "BlkIOReconcile",
        "CPUBurst",
        "CgroupReconcile",
        "CoreSched",
        "GroupIdentity",
        "OOMScoreAdj",
        "RdtResctrl",
    )
    gates = ", ".join((*names, "TCNetworkQoS"))
    assert scene.upkeep.summary == f"left to koordlet, by its feature gates: {gates}"
    assert scene.is_requested
    assert scene.ledger.change([Wanted(CgroupTarget(Level.POD, POD), burst | quota(50_000))]) != ()
    assert (scene.files.read(POD, "cpu.max.burst"), scene.quota()) == ("0", "50000")
    taken = LedgerSettings(
        pods_per_s=1.0,
        large_change_percent=1.0,
        failed_percent=1.0,
        lower_memory_limits=True,
        take_from_koordlet=("cpu.cfs_burst_us",),
    )
    scene.upkeep.configure(taken)
    assert "its feature gates for them are to be off: CPUBurst: cpu.cfs_burst_us" in caplog.text
    assert "CPUBurst" not in scene.upkeep.summary
    scene.ledger.repair(POD)
    assert scene.files.read(POD, "cpu.max.burst") == "1000"
    assert scene.upkeep.evaluator.changes.rates.lowers_memory


async def test_qos_classes_are_asked_about_with_their_pods(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.policies.claims[ClassView] = quota(90_000)
    rests: list[bool] = []
    monkeypatch.setattr(module, "rest", lambda: rests.append(pace._WORK.pace is not None))
    await scene.upkeep.evaluator.evaluate_all()
    assert set(rests) == {True}, "views of all pods are made beside calls"
    views = {view.qos: len(view.pods) for view in scene.policies.seen if isinstance(view, ClassView)}
    guaranteed, burstable, best_effort = KubeQoSClass
    assert views == {guaranteed: 1, burstable: 0, best_effort: 1}
    assert scene.quota("/kubepods/besteffort") == "90000"
    scene.policies.claims = {}
    await scene.upkeep.evaluator.evaluate_all()
    assert scene.quota("/kubepods/besteffort") == "max"


async def test_files_of_what_runs_are_compared(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)
    gone = "/kubepods/besteffort/gone"
    scene.files.make(gone)
    for cgroup in (POD, gone):
        scene.ledger.change([Wanted(CgroupTarget(Level.POD, cgroup), quota(50_000))])
        (scene.files.folder(cgroup) / "cpu.max").write_text("max 100000\n")
    compared = asyncio.Event()
    loop, verify = asyncio.get_running_loop(), scene.ledger.verify

    def watched(*arguments: Any) -> None:
        verify(*arguments)
        loop.call_soon_threadsafe(compared.set)

    monkeypatch.setattr(scene.ledger, "verify", watched)
    task = loop.create_task(scene.upkeep.verify())
    # Before the first evaluation the books may be older than the files: a process before this one was killed.
    await until(lambda: scene.ticks > 3)
    assert (scene.quota(), compared.is_set()) == ("max", False)
    scene.upkeep.evaluator.has_evaluated = True
    async with asyncio.timeout(30):
        await compared.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (scene.quota(), scene.quota(gone)) == ("50000", "max")


async def test_values_of_processes_are_compared_beside_the_files_of_their_level(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)
    # Nothing but these is due a second time.
    monkeypatch.setattr(module, "PROCESSES_VERIFY_S", 0.001)
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(scene.ledger, "verify", lambda *arguments: seen.append(arguments))
    scene.upkeep.evaluator.has_evaluated = True
    task = asyncio.get_running_loop().create_task(scene.upkeep.verify((Level.POD, Level.CONTAINER)))
    await until(lambda: len(seen) > 6)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    of_processes = [levels for levels, _, *names in seen if names == [OF_PROCESSES]]
    assert of_processes[0] == [Level.QOS_CLASS, Level.NODE], "the others are compared just now"
    assert {Level.POD, Level.CONTAINER} <= set(of_processes[1])


async def test_qos_classes_follow_values_of_pods_that_calls_have_claimed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_S", 0.001)
    monkeypatch.setattr(module, "VERIFY_S", dict.fromkeys(Level, 0.001))
    monkeypatch.setattr(evaluate, "INTERVAL_S", 0.0)
    loop = asyncio.get_running_loop()
    await scene.upkeep.evaluator.evaluate_all()
    scene.upkeep.evaluator.has_evaluated = True
    tasks = [loop.create_task(scene.upkeep.run()), loop.create_task(scene.upkeep.verify())]
    rounds, ticks = scene.upkeep.evaluator.rounds, scene.ticks
    scene.policies.seen.clear()
    await until(lambda: scene.ticks > ticks + 5)
    assert scene.policies.seen == [], "nothing has changed"

    scene.ledger.change([Wanted(CgroupTarget(Level.POD, POD), quota(50_000))])
    await until(lambda: len(scene.policies.seen) >= len(KubeQoSClass))
    ticks = scene.ticks
    await until(lambda: scene.ticks > ticks + 5)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(view) for view in scene.policies.seen} == {ClassView}
    assert len(scene.policies.seen) == len(KubeQoSClass), "asked once"
    assert scene.upkeep.evaluator.rounds == rounds, "pods are not asked about"


async def until(is_done: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, is_done, "what is waited for")


async def test_what_keeps_values_from_pods_is_in_the_status(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scene.upkeep.summary == ""
    scene.ledger.change([Wanted(CgroupTarget(Level.POD, POD), quota(50_000))])
    for _ in range(OVERWRITES):
        (scene.files.folder(POD) / "cpu.max").write_text("70000 100000\n")
        scene.ledger.verify([Level.POD])
    scene.upkeep.evaluator.changes._problems["a change"] = "a change ended"
    monkeypatch.setattr(module, "WORK_S", 0.01)
    may_end = threading.Event()
    with pytest.raises(TimeoutError):
        await scene.upkeep.in_worker(lambda: may_end.wait(30))
    values = "values left to other programs: 1, see the log"
    assert scene.upkeep.summary == f"a change ended; {values}; hanging reads or writes of files: 1"
    may_end.set()


class Hangs:
    """A write to one cgroup that does not end."""

    def __init__(self, scene: Scene, cgroup: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._cgroup, self._write = cgroup, scene.writer.write_levels
        monkeypatch.setattr(scene.writer, "write_levels", self.write_levels)

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        if any(each.cgroup == self._cgroup for level in levels for each in level):
            self.begun.set()
            self.may_end.wait(30)
        return self._write(levels)


async def test_a_write_that_hangs_ends_neither_loop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORK_S", 0.05)
    monkeypatch.setattr(module, "TICK_S", 0.001)
    monkeypatch.setattr(path_locks, "MOST_WAIT_S", 0.01)
    monkeypatch.setattr(evaluate, "INTERVAL_S", 0.01)
    other = "/kubepods/besteffort/pod2"
    scene.files.make(other)
    scene.store.pods.put(PodRecord(id="s2", name="db", namespace="shop", cgroup_parent=other))
    hangs = Hangs(scene, POD, monkeypatch)
    scene.policies.claims[PodView] = quota(50_000)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(scene.upkeep.run()), loop.create_task(scene.upkeep.verify())]
    scene.upkeep.evaluator.request("test")
    await until(lambda: scene.quota(other) == "50000")
    await until(hangs.begun.is_set)
    assert scene.quota() == "max"
    (scene.files.folder(other) / "cpu.max").write_text("max 100000\n")
    await until(lambda: scene.quota(other) == "50000")
    hangs.may_end.set()
    await until(lambda: scene.quota() == "50000")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_more_threads_hang_than_calls_can_spare(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WORK_S", 0.01)
    may_end = threading.Event()
    for _ in range(module.MOST_HUNG + 2):
        with pytest.raises(TimeoutError):
            await scene.upkeep.in_worker(lambda: may_end.wait(30))
    assert len(scene.upkeep._hung) == module.MOST_HUNG
    may_end.set()
    await until(lambda: not scene.upkeep._hung)
    # A thread of a busy machine may take longer to begin.
    monkeypatch.setattr(module, "WORK_S", 30.0)
    assert await scene.upkeep.in_worker(lambda: 1) == 1
    assert scene.is_requested


async def test_records_that_are_those_of_the_runtime(scene: Scene) -> None:
    scene.ledger.change([Wanted(CgroupTarget(Level.POD, POD), quota(50_000))])
    await scene.upkeep.on_compared()
    assert scene.is_requested
    assert scene.ledger.books.record(POD) is not None


async def test_they_are_evaluated_although_a_file_hangs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(work: Callable[[], object]) -> object:
        raise TimeoutError("a file hangs")

    monkeypatch.setattr(scene.upkeep, "in_worker", hangs)
    with pytest.raises(TimeoutError):
        await scene.upkeep.on_compared()
    assert scene.is_requested
