"""Values of a pod's cgroup that others write over: systemd resets its slices, the kubelet resizes pods."""

from __future__ import annotations

import threading

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import FailurePolicy, PodChange, PodView
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy, waited

SLICE = "kubepods-besteffort-podu1.slice"
VALUES = PodChange(cgroup={"cpu.shares": 2})


@pytest.mark.parametrize(
    ("parent", "change", "renewed"),
    [
        pytest.param(SLICE, VALUES, [SLICE, SLICE], id="slice"),
        pytest.param("/kubepods/besteffort/podu1", VALUES, [], id="cgroupfs"),
        pytest.param(SLICE, None, [], id="nothing was written"),
    ],
)
async def test_they_are_looked_after_when_a_scope_was_started(
    desk: Surroundings, parent: str, change: PodChange | None, renewed: list[str]
) -> None:
    await desk.load(policy(pod=change))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = parent
    await desk.run_pod(config, POD_ID)
    await desk.idle()
    assert desk.ledger.renewed == renewed[:1]
    await desk.create(POD_ID, config, container_config(), CONTAINER_ID)
    await desk.idle()
    assert desk.ledger.renewed == renewed[:1]
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    await desk.idle()
    assert desk.ledger.renewed == renewed


KUBELET = "/kubepods/burstable/podu1"


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize(
    ("method", "request_message"),
    [
        ("UpdatePodSandboxResources", api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)),
        (
            "UpdateContainerResources",
            api_pb2.UpdateContainerResourcesRequest(
                container_id=CONTAINER_ID, linux=api_pb2.LinuxContainerResources(cpu_shares=5)
            ),
        ),
    ],
)
async def test_they_are_looked_after_when_the_kubelet_has_resized_the_pod(
    desk: Surroundings, method: str, request_message: Message, outcome: Outcome
) -> None:
    """Whatever the runtime answers: the kubelet has written to the cgroup before."""
    await desk.load(policy(pod=VALUES))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = KUBELET
    await desk.run_pod(config, POD_ID)
    await desk.create(POD_ID, config, container_config(), CONTAINER_ID)
    call = desk.call(method, request_message)
    if outcome is Outcome.SUCCEEDED:
        await call.succeeded(api_pb2.UpdatePodSandboxResourcesResponse())
    else:
        await call.ended(outcome)
    await desk.idle()
    assert set(desk.ledger.renewed) == {KUBELET}


async def test_they_are_looked_after_when_the_runtime_lacks_the_method(desk: Surroundings) -> None:
    """It answers as soon as it has the headers, while policies are asked."""
    let_go = threading.Event()
    await desk.load(policy(pod=lambda pod: waited(let_go) if pod.id else VALUES))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = KUBELET
    await desk.run_pod(config, POD_ID)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    request.resources.cpu_shares = 700
    for _ in range(2):
        call = desk.call("UpdatePodSandboxResources", request)
        call.handler.on_cancelled()
        await desk.idle()
    let_go.set()
    assert desk.ledger.renewed == [KUBELET, KUBELET]
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert record.requested.cpu_shares == 700
    assert desk.unsettled == 1, "policies are asked again, once"


async def test_what_the_kubelet_has_written_is_what_its_call_says(desk: Surroundings) -> None:
    await desk.load(policy(pod=VALUES))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = KUBELET
    await desk.run_pod(config, POD_ID)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    request.resources.CopyFrom(api_pb2.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000))
    await desk.call("UpdatePodSandboxResources", request).ended(Outcome.FAILED)
    await desk.idle()
    written = {"cpu.cfs_period_us": 100_000, "cpu.cfs_quota_us": 50_000}
    assert desk.ledger.resizes[0] == (KUBELET, written)


async def test_they_are_looked_after_when_a_policy_refuses_the_call(desk: Surroundings) -> None:
    def fail_later(pod: PodView) -> PodChange:
        if pod.id:
            raise ValueError("no")
        return VALUES

    await desk.load(policy(pod=fail_later), test=PolicySettings(failure_policy=FailurePolicy.FAIL))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = KUBELET
    await desk.run_pod(config, POD_ID)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    request.resources.cpu_shares = 700
    call = desk.call("UpdatePodSandboxResources", request)
    await call.reply.done()
    assert call.reply.refused
    await desk.idle()
    assert desk.ledger.renewed == [KUBELET]
    record = desk.store.pods.get(POD_ID)
    assert record is not None
    assert record.requested.cpu_shares == 700
    assert desk.unsettled == 1, "policies are asked again"


async def test_the_next_call_of_the_pod_waits_for_that_and_the_answer_does_not(desk: Surroundings) -> None:
    await desk.load(policy(pod=lambda pod: None if pod.id else VALUES))
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = KUBELET
    await desk.run_pod(config, POD_ID)
    desk.ledger.lets_renew.clear()
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    await desk.call("UpdatePodSandboxResources", request).ended(Outcome.FAILED)
    following = desk.call("UpdatePodSandboxResources", request)
    other = desk.call("StopContainer", api_pb2.StopContainerRequest(container_id=CONTAINER_ID))
    await other.reply.done()
    assert not following.reply.is_done
    desk.ledger.lets_renew.set()
    await following.reply.done()


async def test_a_pod_that_no_policy_wrote_to_is_left_alone(desk: Surroundings) -> None:
    await desk.load()
    await desk.run_pod(pod_sandbox_config(), POD_ID)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID)
    await desk.call("UpdatePodSandboxResources", request).ended(Outcome.FAILED)
    await desk.idle()
    assert desk.ledger.renewed == []
