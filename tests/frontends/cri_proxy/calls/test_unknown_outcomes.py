"""Calls whose end was not seen: one question to the runtime settles the record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallSettings
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import Resources
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy

POD = PodRecord(id=POD_ID, uid="u1", cgroup_parent="/kubepods/podu1")
CONTAINER = ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, name="main", state=Lifecycle.RUNNING)


async def known(desk: Surroundings) -> None:
    await desk.load()
    desk.store.pods.put(POD)
    desk.store.containers.put(CONTAINER)


async def lost(desk: Surroundings, method: str, **fields: object) -> None:
    """The call's stream was reset after the request had gone."""
    call = desk.call(method, getattr(api_pb2, f"{method}Request")(**fields))
    await call.ended(Outcome.UNKNOWN)
    await desk.idle()


@pytest.mark.parametrize("is_there", [True, False])
async def test_run_pod_sandbox(desk: Surroundings, is_there: bool) -> None:
    await desk.load()
    if is_there:
        desk.runtime.pods[POD_ID] = POD
    await lost(desk, "RunPodSandbox", config=pod_sandbox_config(uid="u1", labels={"a": "b"}))
    record = desk.store.pods.get(POD_ID)
    assert (record is not None) is is_there
    if record is not None:
        assert record.labels["a"] == "b"


@pytest.mark.parametrize("is_there", [True, False])
async def test_create_container(desk: Surroundings, is_there: bool) -> None:
    await desk.load()
    if is_there:
        desk.runtime.containers[CONTAINER_ID] = CONTAINER
    await lost(desk, "CreateContainer", pod_sandbox_id=POD_ID, config=container_config("main"))
    record = desk.store.containers.get(CONTAINER_ID)
    assert (record is not None) is is_there
    if record is not None:
        assert record.booked.cpu_shares == 2


@pytest.mark.parametrize("state", list(Lifecycle))
async def test_start_container(desk: Surroundings, state: Lifecycle) -> None:
    found = policy(on_started=None)
    await desk.load(found)
    desk.store.pods.put(POD)
    desk.store.containers.put(replace(CONTAINER, state=Lifecycle.CREATED))
    desk.runtime.containers[CONTAINER_ID] = replace(CONTAINER, state=state)
    await lost(desk, "StartContainer", container_id=CONTAINER_ID)
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert (record.state is Lifecycle.RUNNING) is (state is Lifecycle.RUNNING) is bool(found.seen)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        pytest.param(Resources(cpu_shares=512, cpu_quota_us=-1), 512, id="done"),
        pytest.param(Resources(cpu_shares=2), None, id="not-done"),
        pytest.param(Resources(), None, id="not-told"),
    ],
)
async def test_update_container(desk: Surroundings, reported: Resources, expected: int | None) -> None:
    await known(desk)
    desk.runtime.containers[CONTAINER_ID] = replace(CONTAINER, booked=reported)
    resources = api_pb2.LinuxContainerResources(cpu_shares=512)
    await lost(desk, "UpdateContainerResources", container_id=CONTAINER_ID, linux=resources)
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert record.booked.cpu_shares == record.requested.cpu_shares == expected


async def test_update_of_a_container_that_is_gone(desk: Surroundings) -> None:
    await known(desk)
    await lost(desk, "UpdateContainerResources", container_id=CONTAINER_ID)
    assert len(desk.store.containers) == 0


@pytest.mark.parametrize("is_there", [True, False])
async def test_update_pod(desk: Surroundings, is_there: bool) -> None:
    await known(desk)
    if is_there:
        desk.runtime.pods[POD_ID] = POD
    await lost(desk, "UpdatePodSandboxResources", pod_sandbox_id=POD_ID)
    assert (desk.store.pods.get(POD_ID) is POD) is is_there


@pytest.mark.parametrize("state", [Lifecycle.RUNNING, Lifecycle.STOPPED, None])
async def test_stop(desk: Surroundings, state: Lifecycle | None) -> None:
    await known(desk)
    if state is not None:
        desk.runtime.containers[CONTAINER_ID] = replace(CONTAINER, state=state)
        desk.runtime.pods[POD_ID] = replace(POD, state=state)
    await lost(desk, "StopContainer", container_id=CONTAINER_ID)
    await lost(desk, "StopPodSandbox", pod_sandbox_id=POD_ID)
    container, pod = desk.store.containers.get(CONTAINER_ID), desk.store.pods.get(POD_ID)
    assert container is not None
    assert pod is not None
    expected = Lifecycle.RUNNING if state is Lifecycle.RUNNING else Lifecycle.STOPPED
    assert container.state is pod.state is expected


@pytest.mark.parametrize("is_there", [True, False])
async def test_remove(desk: Surroundings, is_there: bool) -> None:
    await known(desk)
    if is_there:
        desk.runtime.containers[CONTAINER_ID] = CONTAINER
        desk.runtime.pods[POD_ID] = POD
    await lost(desk, "RemoveContainer", container_id=CONTAINER_ID)
    assert len(desk.store.containers) == int(is_there)
    await lost(desk, "RemovePodSandbox", pod_sandbox_id=POD_ID)
    assert len(desk.store.pods) == int(is_there)


@pytest.mark.parametrize("is_there", [True, False])
async def test_restore(desk: Surroundings, is_there: bool) -> None:
    await desk.load()
    if is_there:
        desk.runtime.pods[POD_ID] = POD
    await lost(desk, "RestorePod", config=pod_sandbox_config(uid="u1"))
    assert len(desk.store.pods) == int(is_there)


async def test_a_runtime_that_does_not_answer_leaves_the_record_and_a_comparison_is_asked_for(
    desk: Surroundings,
) -> None:
    await known(desk)
    desk.runtime.is_down = True
    await lost(desk, "RemoveContainer", container_id=CONTAINER_ID)
    assert desk.store.containers.get(CONTAINER_ID) is CONTAINER
    assert desk.unsettled == 1


@pytest.mark.parametrize("answer", [b"\0\0\0\0\1\xff", b"\1\0\0\0\1x", b"\0\0\0\0\5abc", b""])
async def test_an_answer_that_cannot_be_read_is_an_unknown_end(desk: Surroundings, answer: bytes) -> None:
    await desk.load()
    desk.runtime.pods[POD_ID] = POD
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config(uid="u1")))
    call.handler.on_response(Outcome.SUCCEEDED, answer)
    await desk.idle()
    assert desk.store.pods.get(POD_ID) is not None


@pytest.mark.conformance(87)
async def test_a_compressed_answer_is_read(desk: Surroundings) -> None:
    import gzip

    await desk.load()
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    body = gzip.compress(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID).SerializeToString())
    call.handler.on_response(Outcome.SUCCEEDED, b"\1" + frame_message(body)[1:])
    assert desk.store.pods.get(POD_ID) is not None


@pytest.mark.parametrize(
    ("outcome", "unsettled"), [(Outcome.SUCCEEDED, 1), (Outcome.UNKNOWN, 1), (Outcome.FAILED, 0)]
)
async def test_a_call_that_was_forwarded_undecided_is_told_once_it_has_ended(
    outcome: Outcome, unsettled: int
) -> None:
    desk = Surroundings(CallSettings(budget_s=0.01))
    call = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await call.ended(outcome)
    await desk.idle()
    assert call.reply.forwarded == [None]
    assert desk.unsettled == unsettled
    await desk.close()
