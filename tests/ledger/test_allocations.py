"""The allocations of a node: when they count, what is saved, who leaves, and when they end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.hooks.allocator import Allocations, SharePools
from runtimeproxy.ledger.allocations import (
    ASK_S,
    FILE,
    IN_FLIGHT_S,
    RETRY_S,
    NodeAllocations,
    allocation_file,
)
from runtimeproxy.node.snapshot import PodCpus
from runtimeproxy.pods.records import Lifecycle, PodRecord
from runtimeproxy.qos import QOS_CLASS_LABEL, QoSClass
from runtimeproxy.slo.names import RESOURCE_STATUS

BOOT = "boot"

LSR = {QOS_CLASS_LABEL: "LSR"}


class Scene:
    """Allocations, the node that is given them, and what runs and has to leave.

    Attributes:
        left: The CPUs that others were asked to leave, each time.
        leaves: Whether they do.
    """

    def __init__(self, folder: Path, executor: ThreadPoolExecutor) -> None:
        self.folder = folder
        self.executor = executor
        self.allocated: Allocations | None = None
        self.left: list[set[int]] = []
        self.saved_when_left: list[object] = []
        self.leaves = True
        self.is_asked = asyncio.Event()
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.now_s = 0.0
        self.allocations = self.restarted()

    def restarted(self) -> NodeAllocations:
        self.allocated = None
        file = allocation_file(self.folder, BOOT)
        self.allocations = NodeAllocations(
            SharePools(), file, self, self._leave, self.executor, lambda: self.now_s
        )
        return self.allocations

    def allocate(self, allocations: Allocations) -> None:
        self.allocated = allocations

    async def _leave(self, cpus: frozenset[int]) -> bool:
        self.left.append(set(cpus))
        self.is_asked.set()
        self.saved_when_left.append(self.saved())
        await self.may_leave.wait()
        return self.leaves

    def saved(self) -> object:
        path = self.folder / FILE
        return sorted(json.loads(path.read_text())["pods"]) if path.exists() else None

    def owners(self) -> set[str]:
        return set(self.allocated or ())

    async def follow(self, *pods: PodRecord) -> None:
        saving = self.allocations.follow(pods)
        if saving is not None:
            await saving


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    with ThreadPoolExecutor(1) as executor:
        yield Scene(tmp_path / "state", executor)


def owning(cpus: str) -> dict[str, str]:
    return {RESOURCE_STATUS: f'{{"cpuset": "{cpus}"}}'} if cpus else {}


def pod(uid: str, cpus: str = "2-3") -> PodView:
    return PodView(uid=uid, labels=LSR, annotations=owning(cpus))


def record(uid: str, cpus: str = "2-3", state: Lifecycle = Lifecycle.RUNNING, name: str = "") -> PodRecord:
    return PodRecord(id=f"sandbox-{name}{uid}", uid=uid, labels=LSR, annotations=owning(cpus), state=state)


async def test_a_pods_cpus_are_saved_and_left_before_its_call_goes_on(scene: Scene) -> None:
    await scene.follow()
    assert scene.allocations.summary == ""
    await scene.allocations.admit(pod("a"))
    assert scene.allocated == {"a": PodCpus(QoSClass.LSR, frozenset({2, 3}))}
    assert scene.left == [{2, 3}]
    assert scene.saved_when_left == [["a"]]
    # Its containers need no more.
    await scene.allocations.create(ContainerView(pod=pod("a")))
    assert scene.left == [{2, 3}]
    assert scene.allocations.summary == "1 pod owns CPUs 2-3"


async def test_from_the_first_moment_no_other_pod_is_given_these_cpus(scene: Scene) -> None:
    await scene.follow()
    scene.may_leave.clear()
    admitting = asyncio.get_running_loop().create_task(scene.allocations.admit(pod("a")))
    await asyncio.sleep(0)
    assert scene.owners() == {"a"}
    scene.may_leave.set()
    await admitting


async def test_what_has_not_left_is_asked_again_with_the_next_container(scene: Scene) -> None:
    await scene.follow()
    scene.leaves = False
    await scene.allocations.admit(pod("a"))
    scene.leaves = True
    await scene.allocations.create(ContainerView(pod=pod("a")))
    assert scene.left == [{2, 3}] * 2


async def test_a_call_whose_time_is_over_goes_on_and_keeps_the_cpus(scene: Scene) -> None:
    await scene.follow()
    scene.may_leave.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await scene.allocations.admit(pod("a"))
    assert scene.owners() == {"a"}
    scene.may_leave.set()
    await scene.allocations.create(ContainerView(pod=pod("a")))
    assert scene.left[-1] == {2, 3}


async def test_pods_that_come_together_share_a_round(scene: Scene) -> None:
    await scene.follow()
    scene.may_leave.clear()
    create = asyncio.get_running_loop().create_task
    tasks = [create(scene.allocations.admit(pod(uid, cpus))) for uid, cpus in (("a", "1"), ("b", "2"))]
    async with asyncio.timeout(30):
        await scene.is_asked.wait()
    tasks += [create(scene.allocations.admit(pod(uid, cpus))) for uid, cpus in (("c", "3"), ("d", "4"))]
    await asyncio.sleep(0)
    scene.may_leave.set()
    await asyncio.gather(*tasks)
    # The first round is for those that had come when it began.
    assert len(scene.left) == 2
    assert scene.left[0] | scene.left[1] == {1, 2, 3, 4}
    assert scene.saved() == ["a", "b", "c", "d"]


async def test_a_failed_call_frees_the_cpus(scene: Scene) -> None:
    await scene.follow()
    await scene.allocations.admit(pod("a"))
    scene.allocations.settle("a")
    scene.allocations.release("a")
    assert scene.owners() == set()
    await scene.follow()
    assert scene.saved() == []


async def test_a_failed_second_sandbox_takes_nothing_from_the_first(scene: Scene) -> None:
    await scene.follow(record("a"))
    await scene.allocations.admit(pod("a"))
    scene.allocations.release("a")
    await scene.follow(record("a"))
    assert scene.owners() == {"a"}


async def test_the_cpus_are_the_pods_until_its_last_sandbox_stops(scene: Scene) -> None:
    await scene.follow()
    await scene.allocations.admit(pod("a"))
    # The record is not there while the call is under way.
    await scene.follow()
    assert scene.owners() == {"a"}
    scene.allocations.settle("a")
    first, second = record("a"), record("a", name="second-")
    await scene.follow(first, second)
    await scene.follow(record("a", state=Lifecycle.STOPPED), second)
    assert scene.owners() == {"a"}
    await scene.follow(record("a", state=Lifecycle.STOPPED))
    assert scene.owners() == set()
    assert scene.saved() == []
    # Nothing has changed: nothing to do.
    assert scene.allocations.follow([record("a", state=Lifecycle.STOPPED)]) is None


async def test_a_call_that_never_ends_holds_no_cpus_for_ever(scene: Scene) -> None:
    await scene.follow()
    await scene.allocations.admit(pod("a"))
    scene.now_s = IN_FLIGHT_S + 1
    await scene.follow()
    assert scene.owners() == set()


async def test_a_restart_knows_the_allocations_before_the_runtimes_lists(scene: Scene) -> None:
    await scene.follow(record("a"))
    restarted = scene.restarted()
    await restarted.load()
    assert scene.owners() == {"a"}
    await restarted.admit(pod("b", "5"))
    assert scene.owners() == {"a", "b"}
    # The process before may have ended before others had left the first.
    assert scene.left == [{2, 3, 5}]
    # The lists have another one that came meanwhile, and not the first.
    await scene.follow(record("c", "6"))
    assert scene.owners() == {"b", "c"}


async def test_after_a_restart_others_leave_without_another_container(scene: Scene) -> None:
    await scene.follow(record("a"))
    await scene.restarted().load()
    assert scene.allocations.occupied == 1
    scene.leaves = False
    await scene.follow(record("a"))
    await scene.follow(record("a"))
    assert (scene.left, scene.allocations.occupied) == ([{2, 3}], 1)
    scene.leaves = True
    scene.now_s += ASK_S
    await scene.follow(record("a"))
    assert (scene.left, scene.allocations.occupied) == ([{2, 3}] * 2, 0)
    scene.now_s += ASK_S
    await scene.follow(record("a"))
    assert scene.left == [{2, 3}] * 2


@pytest.mark.parametrize("text", [None, '{"boot_id": "before", "pods": {}}', "\x00", "{}", "9" * 5000])
async def test_without_saved_allocations_nobody_leaves_before_the_pods_are_known(
    scene: Scene, text: str | None
) -> None:
    if text is not None:
        scene.folder.mkdir()
        (scene.folder / FILE).write_text(text)
    await scene.allocations.load()
    await scene.allocations.admit(pod("b", "5"))
    assert scene.allocated is None
    assert scene.left == []
    await scene.follow(record("a"))
    assert scene.owners() == {"a", "b"}
    assert scene.saved() == ["a", "b"]


async def test_a_full_disk_stops_no_pod(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.folder.parent.mkdir(exist_ok=True)
    scene.folder.write_text("in the way")
    await scene.follow()
    with caplog.at_level(logging.WARNING):
        await scene.allocations.admit(pod("a"))
    assert "allocations cannot be saved" in caplog.text
    assert scene.left == [{2, 3}]
    assert scene.allocations.problem.startswith("allocations cannot be saved: ")
    await scene.follow(record("a"))
    assert len(caplog.records) == 1
    scene.folder.unlink()
    await scene.follow(record("a"))
    assert scene.allocations.problem, "it is not tried every second"
    scene.now_s += RETRY_S
    await scene.follow(record("a"))
    assert scene.allocations.problem == ""
    assert scene.saved() == ["a"]


async def test_a_state_that_is_the_saved_one_again_is_no_problem(scene: Scene) -> None:
    await scene.follow(record("a"))
    scene.folder.rename(scene.folder.with_suffix(".away"))
    scene.folder.write_text("in the way")
    await scene.allocations.admit(pod("b", "3-4"))
    assert scene.allocations.problem
    scene.allocations.release("b")
    scene.now_s += RETRY_S
    await scene.follow(record("a"))
    assert scene.allocations.problem == ""


async def test_cpus_of_two_pods_are_reported(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.follow(record("a"))
    await scene.allocations.admit(pod("b", "3-4"))
    assert "pod uid b: CPUs 3 are also allocated to the pod with uid a" in caplog.text
    assert scene.left == [{4}]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["run", "fail", "create", "stop", "follow", "restart"]),
        st.sampled_from("abc"),
        st.booleans(),
    ),
    max_size=20,
)
CPUS = {"a": "0-1", "b": "1-2", "c": "5"}


@given(EVENTS)
def test_any_order_of_events_leads_to_the_pods_that_are_there(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, str, bool]]
) -> None:
    """CPUs that are a pod's are always the node's, and what was not left is asked for again."""
    folder = tmp_path_factory.mktemp("state")

    async def play() -> None:
        with ThreadPoolExecutor(1) as executor:
            scene = Scene(folder, executor)
            there: dict[str, PodRecord] = {}
            await scene.follow()
            for kind, uid, leaves in events:
                scene.leaves, view, asked = leaves, pod(uid, CPUS[uid]), len(scene.left)
                allocations = scene.allocations
                if kind in ("run", "fail"):
                    await allocations.admit(view)
                    assert uid in scene.owners()
                    allocations.settle(uid)
                    if kind == "run":
                        there[uid] = record(uid, CPUS[uid])
                    else:
                        allocations.release(uid)
                elif kind == "create" and uid in there:
                    await allocations.create(ContainerView(pod=view))
                    assert uid in scene.owners()
                    if not leaves:
                        continue
                    asked = len(scene.left)
                    await allocations.create(ContainerView(pod=view))
                    assert len(scene.left) == asked
                elif kind == "stop":
                    there.pop(uid, None)
                elif kind == "restart":
                    await scene.restarted().load()
                await scene.follow(*there.values())
                assert scene.owners() == set(there)
            await scene.follow(*there.values())
            assert scene.saved() == sorted(there)

    asyncio.run(play())


async def test_a_pod_that_moves_has_the_old_cpus_until_it_has_left_them(scene: Scene) -> None:
    await scene.follow(record("a", "0-1"), record("b", "6"))
    scene.left.clear()
    async with scene.allocations.moving("a", PodCpus(QoSClass.LSR, frozenset({1, 2, 3}))):
        assert scene.left == [{2, 3}]
        both = PodCpus(QoSClass.LSR, frozenset({0, 1, 2, 3}))
        assert scene.allocated is not None
        assert scene.allocated["a"] == both
        # Neither the records of before nor a call of the kubelet end it.
        await scene.follow(record("a", "0-1"), record("b", "6"))
        await scene.allocations.create(ContainerView(pod=pod("a", "1-3")))
        await scene.allocations.admit(pod("c", "5"))
        assert scene.allocated["a"] == both
    assert scene.allocated == {
        "a": PodCpus(QoSClass.LSR, frozenset({1, 2, 3})),
        "b": PodCpus(QoSClass.LSR, frozenset({6})),
        "c": PodCpus(QoSClass.LSR, frozenset({5})),
    }
    await scene.follow(record("a", "1-3"), record("b", "6"), record("c", "5"))
    assert scene.saved() == ["a", "b", "c"]
    assert scene.left == [{2, 3}, {5}]


@pytest.mark.parametrize(("old", "new"), [("0-1", ""), ("", "0-1"), ("", "")])
async def test_a_pod_may_lose_all_its_cpus_or_get_the_first(scene: Scene, old: str, new: str) -> None:
    await scene.follow(record("a", old))
    cpus = PodCpus(QoSClass.LSR, frozenset({0, 1})) if new else None
    async with scene.allocations.moving("a", cpus):
        assert scene.owners() == ({"a"} if old or new else set())
    assert scene.owners() == ({"a"} if new else set())


async def test_pods_move_one_after_the_other_and_a_failure_ends_the_move_of_one(scene: Scene) -> None:
    await scene.follow(record("a", "0"), record("b", "1"))
    order: list[str] = []

    async def move(uid: str, cpu: int) -> None:
        async with scene.allocations.moving(uid, PodCpus(QoSClass.LSR, frozenset({cpu}))):
            order.append(f"{uid} has both")
            await asyncio.sleep(0)
            order.append(f"{uid} has one")
            raise OSError

    await asyncio.gather(move("a", 2), move("b", 0), return_exceptions=True)
    assert order == ["a has both", "a has one", "b has both", "b has one"]
    assert {uid: each.cpus for uid, each in (scene.allocated or {}).items()} == {"a": {2}, "b": {0}}
