"""Start, stop and remove: hooks before and after, cgroup values that wait for the container's cgroup."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks import CgroupChange, ContainerChange
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.interception import Outcome
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.calls.one_container import with_container
from tests.calls.scripted import CONTAINER_ID, POD_ID, HeldForTest, Surroundings, policy, policy_of

CGROUP = f"/kubepods/besteffort/podu1/{CONTAINER_ID}"


def request_for(method: str) -> Message:
    kind: type[Message] = getattr(api_pb2, f"{method}Request")
    if method.endswith("PodSandbox"):
        return kind(pod_sandbox_id=POD_ID)
    return kind(container_id=CONTAINER_ID)


async def done(desk: Surroundings, method: str) -> HeldForTest:
    """The call, with success and its post hooks."""
    call = desk.call(method, request_for(method))
    await call.succeeded(getattr(api_pb2, f"{method}Response")())
    await desk.idle()
    return call


async def with_settled_container(desk: Surroundings) -> None:
    await with_container(desk)
    await desk.idle()


def known(desk: Surroundings) -> None:
    """The same without any call."""
    desk.store.pods.put(PodRecord(id=POD_ID, uid="u1", cgroup_parent="/kubepods/besteffort/podu1"))
    desk.store.containers.put(ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, state=Lifecycle.RUNNING))


async def test_a_value_that_cannot_be_written_keeps_nobody_from_being_asked(desk: Surroundings) -> None:
    found = policy(pre_create_container=ContainerChange(cgroup={"cpu.idle": 1}), post_start_container=None)
    await desk.load(found)
    await with_settled_container(desk)
    desk.writer.error = "EINVAL"
    await done(desk, "StartContainer")
    assert desk.writer.written == [(CGROUP, {"cpu.idle": 1})]
    assert [hook for hook, _ in found.seen] == ["pre_create_container", "post_start_container"]


async def test_values_of_a_container_wait_for_its_start(desk: Surroundings) -> None:
    found = policy(
        pre_create_container=ContainerChange(cgroup={"cpu.bvt_warp_ns": -1}),
        post_create_container=CgroupChange(cgroup={"cpu.idle": 1}),
        pre_start_container=CgroupChange(cgroup={"cpu.cfs_burst_us": 5}),
        post_start_container=CgroupChange(cgroup={"memory.high": 9}),
    )
    await desk.load(found)
    await with_settled_container(desk)
    assert not desk.writer.written
    await done(desk, "StartContainer")
    assert desk.writer.written == [
        (CGROUP, {"cpu.bvt_warp_ns": -1, "cpu.idle": 1, "cpu.cfs_burst_us": 5}),
        (CGROUP, {"memory.high": 9}),
    ]
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert (record.state, record.pending_cgroup) == (Lifecycle.RUNNING, {})


@pytest.mark.parametrize("error", ["", "EBUSY: no"])
async def test_waiting_values_are_audited_when_they_are_written(desk: Surroundings, error: str) -> None:
    found = policy(
        pre_create_container=ContainerChange(cgroup={"cpu.idle": 1}),
        post_create_container=CgroupChange(cgroup={"memory.high": 9}),
        pre_start_container=CgroupChange(cgroup={"cpu.cfs_burst_us": 5}),
    )
    await desk.load(found)
    await with_settled_container(desk)
    assert {entry.kind for entry in desk.audit} == {AuditKind.PENDING}
    desk.writer.error = error
    await done(desk, "StartContainer")
    late = [entry for entry in desk.audit if entry.hook == "post_start_container"]
    assert [entry.field for entry in late] == [
        "cgroup[cpu.idle]",
        "cgroup[memory.high]",
        "cgroup[cpu.cfs_burst_us]",
    ]
    assert {entry.kind for entry in late} == {AuditKind.FAILED if error else AuditKind.CHANGED}
    assert {(entry.policy, entry.container_id, entry.sandbox_id) for entry in late} == {
        ("test", CONTAINER_ID, POD_ID)
    }
    assert all(entry.reason == error for entry in late if error)


async def test_a_waiting_value_has_its_own_owner_in_the_audit(desk: Surroundings) -> None:
    """Whatever other policy has set the parameter before a start, of a container that runs already."""
    await desk.load(policy(pre_start_container=CgroupChange(cgroup={"cpu.idle": 0})))
    known(desk)
    running = desk.store.containers.get(CONTAINER_ID)
    assert running is not None
    owners = {"cgroup[cpu.idle]": "other"}
    desk.store.containers.put(replace(running, pending_cgroup={"cpu.idle": 1}, owners=owners))
    await done(desk, "StartContainer")
    assert [(entry.policy, entry.new) for entry in desk.audit] == [("test", "0"), ("other", "1")]


async def test_waiting_values_whose_cgroup_stays_unknown_are_audited(desk: Surroundings) -> None:
    """The pod has no cgroup parent: what is called pending must have an end."""
    await desk.load(policy(pre_create_container=ContainerChange(cgroup={"cpu.idle": 1})))
    pod = pod_sandbox_config()
    pod.linux.cgroup_parent = ""
    await desk.run_pod(pod, POD_ID)
    await desk.create(POD_ID, pod, container_config(), CONTAINER_ID)
    await done(desk, "StartContainer")
    assert not desk.writer.written
    assert [(entry.kind, entry.new) for entry in desk.audit] == [
        (AuditKind.PENDING, "1"),
        (AuditKind.LEFT_OUT, "1"),
    ]
    assert desk.audit[-1].reason == "the cgroup is not known"


async def test_waiting_values_are_written_without_any_hook_at_the_start(desk: Surroundings) -> None:
    await desk.load(policy(pre_create_container=ContainerChange(cgroup={"cpu.idle": 1})))
    await with_settled_container(desk)
    await done(desk, "StartContainer")
    assert desk.writer.written == [(CGROUP, {"cpu.idle": 1})]


async def test_systemd_scopes_carry_the_runtimes_prefix(desk: Surroundings) -> None:
    await desk.load(policy(post_start_container=CgroupChange(cgroup={"cpu.idle": 1})))
    desk.store.pods.put(PodRecord(id=POD_ID, cgroup_parent="kubepods-podu1.slice"))
    desk.store.containers.put(ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID))
    desk.services.runtime_name = "cri-o"
    await done(desk, "StartContainer")
    assert desk.writer.written[0][0] == f"/kubepods.slice/kubepods-podu1.slice/crio-{CONTAINER_ID}.scope"


async def test_a_failed_start_writes_nothing(desk: Surroundings) -> None:
    await desk.load(
        policy(pre_create_container=ContainerChange(cgroup={"cpu.idle": 1}), post_start_container=None)
    )
    await with_settled_container(desk)
    call = desk.call("StartContainer", request_for("StartContainer"))
    await call.ended(Outcome.FAILED)
    await desk.idle()
    assert not desk.writer.written
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert (record.state, record.pending_cgroup) == (Lifecycle.CREATED, {"cpu.idle": 1})


@pytest.mark.conformance(97, 98)
@pytest.mark.parametrize("method", ["StopContainer", "StopPodSandbox"])
async def test_hooks_run_once_per_real_stop(desk: Surroundings, method: str) -> None:
    hook = "stop_container" if method == "StopContainer" else "stop_pod_sandbox"
    found = policy_of({f"pre_{hook}": None, f"post_{hook}": None})
    await desk.load(found)
    known(desk)
    failed = desk.call(method, request_for(method))
    await failed.ended(Outcome.FAILED)
    await desk.idle()
    assert [name for name, _ in found.seen] == [f"pre_{hook}"]
    assert len(desk.store.containers) == len(desk.store.pods) == 1
    for _ in range(3):
        call = await done(desk, method)
        assert call.reply.forwarded == [None]
    assert [name for name, _ in found.seen] == [f"pre_{hook}", f"pre_{hook}", f"post_{hook}"]


async def test_two_stops_at_one_time_are_one_real_stop(desk: Surroundings) -> None:
    found = policy(post_stop_container=None)
    await desk.load(found)
    known(desk)
    calls = [desk.call("StopContainer", request_for("StopContainer")) for _ in range(2)]
    for call in calls:
        await call.succeeded(api_pb2.StopContainerResponse())
    await desk.idle()
    assert len(found.seen) == 1


async def test_a_removed_container_is_forgotten_after_its_hooks(desk: Surroundings) -> None:
    found = policy(pre_remove_container=None, post_remove_container=None)
    await desk.load(found)
    known(desk)
    failed = desk.call("RemoveContainer", request_for("RemoveContainer"))
    await failed.ended(Outcome.FAILED)
    assert len(desk.store.containers) == 1
    await done(desk, "RemoveContainer")
    await done(desk, "RemoveContainer")
    assert len(desk.store.containers) == 0
    names = [name for name, _ in found.seen]
    assert names == ["pre_remove_container", "pre_remove_container", "post_remove_container"]
    assert found.seen[-1][1].id == CONTAINER_ID
    assert found.seen[-1][1].pod.uid == "u1"


async def test_a_removed_pod_takes_its_containers_along(desk: Surroundings) -> None:
    found = policy(pre_remove_pod_sandbox=None, post_remove_pod_sandbox=None)
    await desk.load(found)
    known(desk)
    await done(desk, "RemovePodSandbox")
    assert len(desk.store.containers) == len(desk.store.pods) == 0
    assert [view.id for _, view in found.seen] == [POD_ID, POD_ID]


async def test_post_hooks_alone_find_what_nobody_saw(desk: Surroundings) -> None:
    found = policy(post_stop_container=None)
    await desk.load(found)
    desk.runtime.pods[POD_ID] = PodRecord(id=POD_ID, uid="u1")
    desk.runtime.containers[CONTAINER_ID] = ContainerRecord(
        id=CONTAINER_ID, pod_id=POD_ID, state=Lifecycle.RUNNING
    )
    await done(desk, "StopContainer")
    assert found.seen[0][1].pod.uid == "u1"


async def test_the_post_hook_of_a_pod_writes_to_the_pods_cgroup(desk: Surroundings) -> None:
    await desk.load(policy(post_run_pod_sandbox=CgroupChange(cgroup={"cpu.shares": 2})))
    await desk.run_pod(pod_sandbox_config(uid="u1", qos="BE"), POD_ID)
    await desk.idle()
    assert desk.writer.written == [("/kubepods/besteffort/podu1", {"cpu.shares": 2})]


async def test_a_thousand_life_cycles_leave_nothing_behind(desk: Surroundings) -> None:
    await desk.load()
    pod = pod_sandbox_config("web", uid="u1")
    config = container_config(pod=pod)
    for number in range(1000):
        pod_id, container_id = f"p{number}", f"c{number}"
        await desk.run_pod(pod, pod_id)
        await desk.create(pod_id, pod, config, container_id)
        remove = desk.call("RemoveContainer", api_pb2.RemoveContainerRequest(container_id=container_id))
        await remove.succeeded(api_pb2.RemoveContainerResponse())
        gone = desk.call("RemovePodSandbox", api_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod_id))
        await gone.succeeded(api_pb2.RemovePodSandboxResponse())
    assert len(desk.store.pods) == len(desk.store.containers) == desk.tasks == desk.waiting_keys == 0
