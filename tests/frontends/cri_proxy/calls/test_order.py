"""The order of intercepted calls: which call waits for which."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallSettings
from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from tests.frontends.cri_proxy.calls.scripted import (
    ServerInTable,
    Surroundings,
    TablePolicy,
    policy,
    server,
    waited,
)

Update = api_pb2.UpdateContainerResourcesRequest
Start = api_pb2.StartContainerRequest
PODS = ("a", "b")


@dataclass
class Gate:
    """Lets the hooks of one container through when it is opened."""

    entered: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)
    container: str = "a1"

    def __call__(self, view: ContainerView) -> None:
        if view.id == self.container:
            self.entered.set()
            self.open.wait(30)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)


@pytest.fixture
async def gate(desk: Surroundings) -> AsyncIterator[Gate]:
    for name in PODS:
        desk.store.pods.put(PodRecord(id=name, uid=name))
        for number in (1, 2):
            identity = f"{name}{number}"
            desk.store.containers.put(ContainerRecord(id=identity, pod_id=name, state=Lifecycle.RUNNING))
    found = Gate()
    yield found
    found.open.set()


def shown(found: TablePolicy | ServerInTable) -> list[str]:
    return [view.id for _, view in found.seen]


async def test_decisions_for_one_container_are_made_in_order(desk: Surroundings, gate: Gate) -> None:
    found = policy(container=gate)
    await desk.load(found)
    first = desk.call("UpdateContainerResources", Update(container_id="a1"))
    await gate.reached()
    second = desk.call("StopContainer", api_pb2.StopContainerRequest(container_id="a1"))
    others = [desk.call("UpdateContainerResources", Update(container_id=name)) for name in ("a2", "b1")]
    for other in others:
        await other.reply.done()
    assert [first.reply.is_done, second.reply.is_done] == [False, False]
    gate.open.set()
    await second.reply.done()
    assert len(first.reply.forwarded) == 1
    order = shown(found)
    # Two threads run the policy for the other two.
    assert [order[0], *sorted(order[1:])] == ["a1", "a2", "b1"]


async def test_the_runtimes_answer_is_not_waited_for(desk: Surroundings, gate: Gate) -> None:
    await desk.load(policy(container=None))
    for _ in range(2):
        await desk.call("UpdateContainerResources", Update(container_id="a1")).reply.done()


async def test_the_next_call_of_a_pod_waits_for_its_post_hooks(desk: Surroundings, gate: Gate) -> None:
    await desk.load(policy(on_started=gate))
    first = desk.call("StartContainer", Start(container_id="a1"))
    await first.succeeded(api_pb2.StartContainerResponse())
    await gate.reached()
    same_pod = desk.call("UpdateContainerResources", Update(container_id="a2"))
    other_pod = desk.call("UpdateContainerResources", Update(container_id="b1"))
    assert other_pod.reply.is_done
    await asyncio.sleep(0)
    assert not same_pod.reply.is_done
    gate.open.set()
    await same_pod.reply.done()


async def test_the_next_call_waits_at_most_for_its_budget(gate: Gate, desk: Surroundings) -> None:
    desk.services.settings = CallSettings(budget_s=0.1)
    await desk.load(policy(on_started=gate))
    first = desk.call("StartContainer", Start(container_id="a1"))
    await first.succeeded(api_pb2.StartContainerResponse())
    await gate.reached()
    second = desk.call("UpdateContainerResources", Update(container_id="a2"))
    await second.reply.done()
    assert second.reply.forwarded == [None]


@pytest.mark.parametrize("method", ["StopContainer", "RemoveContainer"])
async def test_stop_and_remove_wait_for_a_short_time_only(
    desk: Surroundings, gate: Gate, method: str
) -> None:
    desk.services.settings = CallSettings(budget_s=60, end_wait_s=0.05)
    await desk.load(policy(container=gate))
    first = desk.call("UpdateContainerResources", Update(container_id="a1"))
    await gate.reached()
    request = getattr(api_pb2, f"{method}Request")(container_id="a1")
    end = desk.call(method, request)
    await end.reply.done()
    assert not first.reply.is_done
    assert end.reply.forwarded == [None]


async def test_a_record_is_there_before_the_next_call(desk: Surroundings, gate: Gate) -> None:
    found = server({Hook.PRE_START_CONTAINER: None})
    await desk.load(found)
    create = desk.call("CreateContainer", api_pb2.CreateContainerRequest(pod_sandbox_id="a"))
    await create.succeeded(api_pb2.CreateContainerResponse(container_id="new"))
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id="new"))
    await start.reply.done()
    assert shown(found) == ["new"]
    assert desk.runtime.asked == []


async def test_sandboxes_of_one_pod_are_decided_in_order(desk: Surroundings, gate: Gate) -> None:
    hold = threading.Event()
    found = policy(pod=lambda view: waited(hold))
    await desk.load(found)
    requests = [api_pb2.RunPodSandboxRequest() for _ in range(2)]
    for number, request in enumerate(requests):
        request.config.metadata.uid = "u"
        request.config.metadata.attempt = number
    calls = [desk.call("RunPodSandbox", request) for request in requests]
    hold.set()
    for call in calls:
        await call.reply.done()
    assert [view.attempt for _, view in found.seen] == [0, 1]
