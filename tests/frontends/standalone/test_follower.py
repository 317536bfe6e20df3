"""What follows from events of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from runtimeproxy.background import BackgroundTasks
from runtimeproxy.frontends.standalone.follower import Follower
from runtimeproxy.ledger.evaluate import Evaluator
from runtimeproxy.pods.inventory import Inventory, RuntimeEvent
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from tests.frontends.cri_proxy.calls.scripted import ScriptedRuntime


class GatedEvaluator:
    """Evaluates when it may."""

    def __init__(self) -> None:
        self.since_s = 0.0
        self.evaluated: list[str] = []
        self.free = asyncio.Event()

    async def evaluate_pod(self, identity: str) -> None:
        self.evaluated.append(identity)
        await self.free.wait()


async def test_events_of_a_pod_that_come_together_are_one_evaluation() -> None:
    runtime, evaluator, tasks = ScriptedRuntime(), GatedEvaluator(), BackgroundTasks(lambda _: None)
    running: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        running.append(tasks.spawn(work))
        return running[-1]

    for pod in ("pod1", "pod2"):
        runtime.pods[pod] = PodRecord(id=pod, state=Lifecycle.RUNNING)
        for number in range(10):
            box = ContainerRecord(id=f"{pod}-{number}", pod_id=pod, state=Lifecycle.RUNNING)
            runtime.containers[box.id] = box
    client = cast("GrpcRuntimeClient", runtime)
    follower = Follower(Inventory(PodStore()), cast("Evaluator", evaluator), client, spawn, 0.0)
    for identity in runtime.containers:
        await follower.take(RuntimeEvent(identity, is_pod=False, is_gone=False))
        # Evaluations begin, and hang.
        await asyncio.sleep(0)
    assert evaluator.evaluated == ["pod1", "pod2"]
    evaluator.free.set()
    await asyncio.gather(*running)
    # Once more for all that has come meanwhile.
    assert sorted(evaluator.evaluated) == ["pod1", "pod1", "pod2", "pod2"]
    await follower.take(RuntimeEvent("pod1-0", is_pod=False, is_gone=False))
    await asyncio.gather(*running)
    assert evaluator.evaluated.count("pod1") == 3
