"""What runs is brought to the network's QoS: addresses are asked for, and pods come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from runtimeproxy.core import network
from runtimeproxy.core.network import NetworkUpkeep
from runtimeproxy.fields.network import CLASS_FIELD, EGRESS_FIELD
from runtimeproxy.ledger.network import NetworkControl, PodNetworkState
from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.records import Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore

WAIT_S = 20.0


class Control(NetworkControl):
    """Keeps what it is told, in place of the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[PodNetworkState, ...]] = []
        self.fails: list[Exception] = []
        self.leaves: list[bool] = []
        self.has_link = True

    @property
    def is_on(self) -> bool:
        return self.has_link

    def sync(self, pods: Iterable[PodNetworkState], *, is_check: bool = False) -> bool:
        self.told.append(tuple(pods))
        if self.fails:
            raise self.fails.pop()
        return self.leaves.pop() if self.leaves else False


@dataclass
class Runtime:
    pods: dict[str, PodRecord] = field(default_factory=dict)
    is_away: bool = False
    asked: list[str] = field(default_factory=list)

    async def pod(self, identity: str) -> PodRecord | None:
        self.asked.append(identity)
        if self.is_away:
            raise RuntimeUnavailableError("away")
        return self.pods.get(identity)


@dataclass
class Scene:
    upkeep: NetworkUpkeep
    control: Control
    runtime: Runtime
    store: PodStore
    books: dict[str, dict[str, int | str]]
    pauses: list[float]
    """How long was waited after each failure."""
    is_idle: bool = False
    looks: bool = True

    def run_pod(self, name: str, *addresses: str, qos: str = "BE") -> PodRecord:
        record = PodRecord(id=name, uid=f"uid-{name}", cgroup_parent=f"/kubepods/{name}")
        self.store.pods.put(record)
        told = replace(record, addresses=addresses or None)
        self.runtime.pods[name] = told
        if qos:
            self.control.write_pod(CLASS_FIELD, name, qos)
        return record

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                if self.looks:
                    self.upkeep.look()
                await asyncio.sleep(0.005)

    def told(self) -> dict[str, tuple[str, ...] | None]:
        """The addresses by pod that were told last."""
        return {each.id: each.addresses for each in self.control.told[-1]} if self.control.told else {}


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(network, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(network, "IDLE_S", 0.005)
    monkeypatch.setattr(network, "GATHER_S", 0.001)
    control, runtime, store = Control(), Runtime(), PodStore()
    with ThreadPoolExecutor(1) as executor:
        books: dict[str, dict[str, int | str]] = {}
        upkeep = NetworkUpkeep(
            control, store, runtime, lambda cgroup: books.get(cgroup, {}), executor, lambda: made.is_idle
        )
        loop, pauses = asyncio.get_running_loop(), list[float]()
        call_later = loop.call_later

        def noted(delay_s: float, *call: Any) -> asyncio.TimerHandle:
            if call == (upkeep._changed.set,):
                pauses.append(delay_s)
                delay_s = 0.001
            return call_later(delay_s, *call)

        monkeypatch.setattr(loop, "call_later", noted)
        made = Scene(upkeep, control, runtime, store, books, pauses)
        task = asyncio.create_task(upkeep.run())  # noqa: TID251 - ended below
        yield made
        task.cancel()
        await asyncio.wait({task})


async def test_addresses_are_asked_for_once(scene: Scene) -> None:
    scene.run_pod("a", "10.0.0.1", "fd00::1")
    await scene.wait_for(lambda: scene.told() == {"a": ("10.0.0.1", "fd00::1")})
    scene.run_pod("b", "10.0.0.2")
    await scene.wait_for(lambda: len(scene.told()) == 2 and None not in scene.told().values())
    assert scene.runtime.asked == ["a", "b"]
    found = scene.store.pods.get("a")
    assert found is not None
    assert found.addresses == ("10.0.0.1", "fd00::1")


async def test_pods_without_a_class_are_not_asked_about(scene: Scene) -> None:
    scene.run_pod("a", "10.0.0.1", qos="")
    scene.run_pod("b", "10.0.0.2")
    await scene.wait_for(lambda: scene.told().get("b") is not None)
    assert scene.runtime.asked == ["b"]


async def test_what_the_process_before_this_one_wanted_is_known(scene: Scene) -> None:
    """The ledger does not write it again."""
    scene.is_idle = True
    scene.books["/kubepods/a"] = {CLASS_FIELD: "LS", EGRESS_FIELD: 8_000_000, "cpu.shares": 2}
    scene.run_pod("a", "10.0.0.1", qos="")
    scene.run_pod("b", "10.0.0.2", qos="")
    scene.control.told.clear()
    scene.upkeep.take_known()
    assert scene.control.read_pod(CLASS_FIELD, "a") == "LS"
    scene.is_idle = False
    await scene.wait_for(lambda: scene.told() == {"a": ("10.0.0.1",), "b": None})
    assert scene.control.read_pod(EGRESS_FIELD, "a") == "8000000"


async def test_a_runtime_that_is_away_is_asked_again(scene: Scene) -> None:
    scene.runtime.is_away = True
    scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: len(scene.runtime.asked) >= 2)
    assert scene.told() == {"a": None}
    scene.runtime.is_away = False
    await scene.wait_for(lambda: scene.told() == {"a": ("10.0.0.1",)})


async def test_a_pod_that_has_no_address_yet_is_asked_about_again(scene: Scene) -> None:
    record = scene.run_pod("a")
    await scene.wait_for(lambda: len(scene.runtime.asked) >= 2)
    scene.runtime.pods["a"] = replace(record, addresses=(), is_host_network=True)
    await scene.wait_for(lambda: scene.told() == {"a": ()})
    assert scene.control.told[-1][0].is_host_network


async def test_pods_that_end_are_told(scene: Scene) -> None:
    record = scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: "a" in scene.told())
    scene.store.pods.put(replace(record, state=Lifecycle.STOPPED))
    await scene.wait_for(lambda: scene.told() == {})


async def test_a_pod_that_ends_before_the_next_look_is_told(scene: Scene) -> None:
    scene.looks = False
    record = scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: scene.told() == {"a": ("10.0.0.1",)})
    scene.store.pods.put(replace(record, state=Lifecycle.STOPPED))
    scene.looks = True
    await scene.wait_for(lambda: scene.told() == {})


async def test_nothing_is_done_while_another_process_decides(scene: Scene) -> None:
    await scene.wait_for(lambda: bool(scene.control.told))
    scene.is_idle = True
    scene.control.told.clear()
    scene.run_pod("a", "10.0.0.1")
    for _ in range(20):
        scene.upkeep.look()
        await asyncio.sleep(0)
    assert scene.runtime.asked == []
    scene.is_idle = False
    await scene.wait_for(lambda: scene.told() == {"a": ("10.0.0.1",)})


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TimeoutError(110, "hangs")])
async def test_an_error_costs_one_change(scene: Scene, error: Exception) -> None:
    scene.control.fails = [error]
    await scene.wait_for(lambda: not scene.control.fails)
    scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: scene.told() == {"a": ("10.0.0.1",)})


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TimeoutError(110, "hangs")])
async def test_a_change_that_an_error_has_cost_is_made_again(scene: Scene, error: Exception) -> None:
    scene.run_pod("a", "10.0.0.1")
    before = len(scene.control.told)
    scene.control.fails = [error] * 4  # more than there are other reasons for a change
    await scene.wait_for(lambda: len(scene.control.told) > before + 4)


async def test_what_has_failed_is_tried_again(scene: Scene) -> None:
    scene.control.has_failed = True
    scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: len(scene.control.told) >= 4)


@pytest.mark.parametrize("is_bug", [False, True])
async def test_what_fails_for_long_is_tried_ever_more_rarely(scene: Scene, is_bug: bool) -> None:
    """A bug has a traceback in the log each time."""
    scene.control.has_failed = not is_bug
    scene.control.fails = [RuntimeError("a bug") for _ in range(100)] if is_bug else []
    pauses = scene.pauses
    await scene.wait_for(lambda: len(pauses) >= 5)
    assert all(after >= 2 * before for before, after in pairwise(pauses[1:5]))


async def test_what_is_left_to_do_follows_at_once(scene: Scene) -> None:
    scene.control.leaves = [True]
    scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: not scene.control.leaves and len(scene.control.told) >= 2)


async def test_without_a_link_nothing_is_asked(scene: Scene) -> None:
    scene.control.has_link = False
    scene.run_pod("a", "10.0.0.1")
    await scene.wait_for(lambda: scene.told() == {"a": None})
    assert scene.runtime.asked == []
