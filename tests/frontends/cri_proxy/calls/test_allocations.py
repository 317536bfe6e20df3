"""Calls of pods with CPUs of their own: they wait until others have left these, and never fail for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.ledger.allocations import NodeAllocations
from runtimeproxy.slo.names import RESOURCE_STATUS
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, PATIENT, POD_ID, Surroundings, create

OWN = {RESOURCE_STATUS: '{"cpuset": "0-3"}'}


@dataclass
class Allocations:
    """Keeps what calls say, and lets them wait or fails."""

    events: list[str] = field(default_factory=list)
    error: Exception | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def admit(self, pod: PodView) -> None:
        await self._take(f"admit {pod.uid}")

    async def create(self, container: ContainerView) -> None:
        await self._take(f"create {container.pod.uid} {container.pod.annotations[RESOURCE_STATUS]}")

    async def _take(self, event: str) -> None:
        self.events.append(event)
        self.asked.set()
        if self.error is not None:
            raise self.error
        await self.left.wait()

    def settle(self, uid: str) -> None:
        self.events.append(f"settle {uid}")

    def release(self, uid: str) -> None:
        self.events.append(f"release {uid}")


@pytest.fixture
async def allocations(desk: Surroundings) -> Allocations:
    made = Allocations()
    desk.core.allocations = cast("NodeAllocations", made)
    await desk.load()
    return made


def run_request(padding: int = 0, **annotations: str) -> api_pb2.RunPodSandboxRequest:
    found = {**OWN, **annotations, **({"padding": "x" * padding} if padding else {})}
    return api_pb2.RunPodSandboxRequest(config=pod_sandbox_config("own", uid="u", annotations=found))


@pytest.mark.parametrize("padding", [0, 100_000], ids=["short", "long"])
async def test_a_call_waits_until_others_have_left(
    desk: Surroundings, allocations: Allocations, padding: int
) -> None:
    call = desk.call("RunPodSandbox", run_request(padding))
    async with asyncio.timeout(30):
        await allocations.asked.wait()
    assert not call.reply.is_done
    allocations.left.set()
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    assert allocations.events == ["admit u", "settle u"]
    assert desk.store.pods.get(POD_ID) is not None


async def test_a_pods_containers_have_the_cpus_that_it_began_with(
    desk: Surroundings, allocations: Allocations
) -> None:
    allocations.left.set()
    call = desk.call("RunPodSandbox", run_request())
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    request = create()
    request.sandbox_config.CopyFrom(
        pod_sandbox_config("own", uid="u", annotations={RESOURCE_STATUS: "other"})
    )
    request.pod_sandbox_id = POD_ID
    await desk.call("CreateContainer", request).succeeded(
        api_pb2.CreateContainerResponse(container_id=CONTAINER_ID)
    )
    assert allocations.events[2:] == [f"create u {OWN[RESOURCE_STATUS]}"]


async def test_a_pod_that_is_not_made_is_released(desk: Surroundings, allocations: Allocations) -> None:
    allocations.left.set()
    call = desk.call("RunPodSandbox", run_request())
    await call.ended(Outcome.FAILED)
    assert allocations.events == ["admit u", "settle u", "release u"]


async def test_others_that_stay_cost_the_calls_time_and_no_more(allocations: Allocations) -> None:
    desk = Surroundings(replace(PATIENT, budget_s=0.01))
    try:
        desk.core.allocations = cast("NodeAllocations", allocations)
        await desk.load()
        call = desk.call("RunPodSandbox", run_request())
        await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
        assert desk.failures.causes == ["other pods have not left its CPUs in time"]
    finally:
        await desk.close()


async def test_an_error_stops_no_pod(desk: Surroundings, allocations: Allocations) -> None:
    allocations.error = RecursionError("bug")
    call = desk.call("RunPodSandbox", run_request())
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    assert desk.failures.causes == ["RecursionError"]
    assert desk.core.problems.internal_errors == 1


async def test_calls_of_other_pods_do_not_even_start_a_task(
    desk: Surroundings, allocations: Allocations
) -> None:
    config = pod_sandbox_config("web", uid="w")
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=config))
    assert call.reply.forwarded == [None]
    assert desk.tasks == 0
    assert allocations.events == []
