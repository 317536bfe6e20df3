"""Start, stop and remove: hooks before and after, cgroup values that wait for the container's cgroup."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    Hook,
    Mode,
    PodChange,
    PodView,
    ResourceChange,
    Scale,
)
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import with_container
from tests.frontends.cri_proxy.calls.scripted import (
    CONTAINER_ID,
    POD_ID,
    HeldForTest,
    Rounds,
    Surroundings,
    policy,
    server,
)

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
    found = policy(container=ContainerChange(cgroup={"memory.use_priority_oom": 1}), on_started=None)
    await desk.load(found)
    await with_settled_container(desk)
    desk.ledger.error = "EINVAL"
    await done(desk, "StartContainer")
    assert desk.ledger.written == [(CGROUP, {"memory.use_priority_oom": 1})]
    assert [hook for hook, _ in found.seen] == ["container", "on_started"]


async def test_values_of_a_container_wait_for_its_start(desk: Surroundings) -> None:
    found = policy(container=ContainerChange(cgroup={"cpu.bvt_warp_ns": -1, "memory.high": 9}))
    hooks = server({Hook.PRE_START_CONTAINER: CgroupChange(cgroup={"cpu.cfs_burst_us": 5})})
    await desk.load(found, hooks)
    await with_settled_container(desk)
    assert not desk.ledger.written
    await done(desk, "StartContainer")
    assert desk.ledger.written == [
        (CGROUP, {"cpu.bvt_warp_ns": -1, "memory.high": 9, "cpu.cfs_burst_us": 5}),
    ]
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert (record.state, record.pending_cgroup) == (Lifecycle.RUNNING, {})


@pytest.mark.parametrize("error", ["", "EBUSY: no"])
async def test_waiting_values_are_audited_when_they_are_written(desk: Surroundings, error: str) -> None:
    found = policy(container=ContainerChange(cgroup={"memory.use_priority_oom": 1, "memory.high": 9}))
    hooks = server({Hook.PRE_START_CONTAINER: CgroupChange(cgroup={"cpu.cfs_burst_us": 5})})
    await desk.load(found, hooks)
    await with_settled_container(desk)
    assert {entry.kind for entry in desk.audit} == {AuditKind.PENDING}
    desk.ledger.error = error
    await done(desk, "StartContainer")
    late = [entry for entry in desk.audit if entry.hook == "post_start_container"]
    assert {entry.field: entry.policy for entry in late} == {
        "cgroup[memory.use_priority_oom]": "test",
        "cgroup[memory.high]": "test",
        "cgroup[cpu.cfs_burst_us]": "server.json",
    }
    assert {entry.kind for entry in late} == {AuditKind.FAILED if error else AuditKind.CHANGED}
    assert {(entry.container_id, entry.sandbox_id) for entry in late} == {(CONTAINER_ID, POD_ID)}
    assert all(entry.reason == error for entry in late if error)


async def test_a_waiting_value_has_its_own_owner_in_the_audit(desk: Surroundings) -> None:
    """Whatever other policy has set the parameter before a start, of a container that runs already."""
    await desk.load(server({Hook.PRE_START_CONTAINER: CgroupChange(cgroup={"memory.use_priority_oom": 0})}))
    known(desk)
    running = desk.store.containers.get(CONTAINER_ID)
    assert running is not None
    owners = {"cgroup[memory.use_priority_oom]": (Claimant("other"),)}
    desk.store.containers.put(replace(running, pending_cgroup={"memory.use_priority_oom": 1}, owners=owners))
    await done(desk, "StartContainer")
    assert [(entry.policy, entry.new) for entry in desk.audit] == [("server.json", "0"), ("other", "1")]


async def test_waiting_values_whose_cgroup_stays_unknown_are_audited(desk: Surroundings) -> None:
    """The pod has no cgroup parent: what is called pending must have an end."""
    await desk.load(policy(container=ContainerChange(cgroup={"memory.use_priority_oom": 1})))
    pod = pod_sandbox_config()
    pod.linux.cgroup_parent = ""
    await desk.run_pod(pod, POD_ID)
    await desk.create(POD_ID, pod, container_config(), CONTAINER_ID)
    await done(desk, "StartContainer")
    assert not desk.ledger.written
    assert [(entry.kind, entry.new) for entry in desk.audit] == [
        (AuditKind.PENDING, "1"),
        (AuditKind.LEFT_OUT, "1"),
    ]
    assert desk.audit[-1].reason == "the cgroup is not known"


async def test_waiting_values_are_written_without_any_hook_at_the_start(desk: Surroundings) -> None:
    await desk.load(policy(container=ContainerChange(cgroup={"memory.use_priority_oom": 1})))
    await with_settled_container(desk)
    await done(desk, "StartContainer")
    assert desk.ledger.written == [(CGROUP, {"memory.use_priority_oom": 1})]


async def test_systemd_scopes_carry_the_runtimes_prefix(desk: Surroundings) -> None:
    await desk.load()
    desk.store.pods.put(PodRecord(id=POD_ID, cgroup_parent="kubepods-podu1.slice"))
    desk.store.containers.put(
        ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, pending_cgroup={"memory.use_priority_oom": 1})
    )
    desk.inventory.runtime_name = "cri-o"
    await done(desk, "StartContainer")
    assert desk.ledger.written[0][0] == f"/kubepods.slice/kubepods-podu1.slice/crio-{CONTAINER_ID}.scope"


async def test_a_failed_start_writes_nothing(desk: Surroundings) -> None:
    found = policy(container=ContainerChange(cgroup={"memory.use_priority_oom": 1}), on_started=None)
    await desk.load(found)
    await with_settled_container(desk)
    call = desk.call("StartContainer", request_for("StartContainer"))
    await call.ended(Outcome.FAILED)
    await desk.idle()
    assert not desk.ledger.written
    record = desk.store.containers.get(CONTAINER_ID)
    assert record is not None
    assert (record.state, record.pending_cgroup) == (Lifecycle.CREATED, {"memory.use_priority_oom": 1})


@pytest.mark.conformance(97, 98)
@pytest.mark.parametrize("method", ["StopContainer", "StopPodSandbox"])
async def test_effects_and_hooks_come_once_per_real_stop(desk: Surroundings, method: str) -> None:
    hook = Hook.POST_STOP_CONTAINER if method == "StopContainer" else Hook.POST_STOP_POD_SANDBOX
    found, hooks = policy(on_stopped=None), server({hook: None})
    await desk.load(found, hooks)
    known(desk)
    failed = desk.call(method, request_for(method))
    await failed.ended(Outcome.FAILED)
    await desk.idle()
    assert found.seen == hooks.seen == []
    assert len(desk.store.containers) == len(desk.store.pods) == 1
    for _ in range(3):
        call = await done(desk, method)
        assert call.reply.forwarded == [None]
    assert [name for name, _ in hooks.seen] == [hook]
    assert [name for name, _ in found.seen] == (["on_stopped"] if method == "StopContainer" else [])


async def test_two_stops_at_one_time_are_one_real_stop(desk: Surroundings) -> None:
    found = policy(on_stopped=None)
    await desk.load(found)
    known(desk)
    calls = [desk.call("StopContainer", request_for("StopContainer")) for _ in range(2)]
    for call in calls:
        await call.succeeded(api_pb2.StopContainerResponse())
    await desk.idle()
    assert len(found.seen) == 1


@pytest.mark.parametrize("method", ["RemoveContainer", "RemovePodSandbox"])
async def test_a_removed_container_is_forgotten_and_its_policies_are_told(
    desk: Surroundings, method: str
) -> None:
    found = policy(on_removed=None)
    await desk.load(found)
    known(desk)
    failed = desk.call(method, request_for(method))
    await failed.ended(Outcome.FAILED)
    await desk.idle()
    assert len(desk.store.containers) == 1
    assert not found.seen
    await done(desk, method)
    await done(desk, method)
    assert len(desk.store.containers) == 0
    ((_, view),) = found.seen
    assert (view.id, view.pod.uid) == (CONTAINER_ID, "u1")


async def test_a_removed_pod_takes_its_containers_along(desk: Surroundings) -> None:
    await desk.load()
    known(desk)
    await done(desk, "RemovePodSandbox")
    assert len(desk.store.containers) == len(desk.store.pods) == 0


@pytest.mark.parametrize("method", ["StopContainer", "RemoveContainer"])
async def test_effects_alone_find_what_nobody_saw(desk: Surroundings, method: str) -> None:
    found = policy(on_stopped=None, on_removed=None)
    await desk.load(found)
    desk.runtime.pods[POD_ID] = PodRecord(id=POD_ID, uid="u1")
    desk.runtime.containers[CONTAINER_ID] = ContainerRecord(
        id=CONTAINER_ID, pod_id=POD_ID, state=Lifecycle.RUNNING
    )
    await done(desk, method)
    assert found.seen[0][1].pod.uid == "u1"
    assert desk.runtime.asked == [f"container {CONTAINER_ID}", f"pod {POD_ID}"]


async def test_effects_are_left_out_in_dry_run(desk: Surroundings) -> None:
    found = policy(on_started=None, on_stopped=None, on_removed=None)
    await desk.load(found, test=PolicySettings(mode=Mode.DRY_RUN))
    known(desk)
    for method in ("StartContainer", "StopContainer", "RemoveContainer"):
        await done(desk, method)
    assert not found.seen
    assert {entry.kind for entry in desk.audit} == {AuditKind.WOULD_CHANGE}


async def test_values_of_a_pod_go_to_the_pods_cgroup(desk: Surroundings) -> None:
    await desk.load(policy(pod=PodChange(cgroup={"cpu.shares": 2})))
    await desk.run_pod(pod_sandbox_config(uid="u1", qos="BE"), POD_ID)
    await desk.idle()
    assert desk.ledger.written == [("/kubepods/besteffort/podu1", {"cpu.shares": 2})]


async def test_a_pods_late_values_keep_what_silent_policies_and_hook_servers_want(desk: Surroundings) -> None:
    """A pod's second sandbox finds the values of the first; a server's are not written again."""

    def fail(_: PodView) -> PodChange:
        raise ValueError("not now")

    scaling = policy("scaling", pod=PodChange(cgroup={"cpu.cfs_quota_us": Scale(1.5)}))
    failing = policy("failing", pod=fail)
    answers = {Hook.PRE_RUN_POD_SANDBOX: PodChange(cgroup={"cpu.shares": 512})}
    await desk.load(scaling, failing, server(answers))
    await desk.run_pod(pod_sandbox_config(), POD_ID)
    await desk.idle()
    early, late = desk.ledger.claimed
    assert late.claims.keys() == {"cpu.cfs_quota_us", "cpu.shares"}
    for wanted in (early, late):
        assert wanted.once == {"cpu.shares"}
        assert wanted.unanswered == {"failing"}


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


async def test_a_pod_that_is_too_small_gets_room_before_its_container(desk: Surroundings) -> None:
    """Cgroup version 1 refuses a child with more than its parent."""
    await desk.load()
    config = pod_sandbox_config(uid="u1")
    config.linux.cgroup_parent = desk.ledger.narrow = "/kubepods/besteffort/podu1"
    await desk.run_pod(config, POD_ID)
    container = container_config()
    container.linux.resources.cpu_quota = 50_000
    await desk.create(POD_ID, config, container, CONTAINER_ID)
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    quotas = [(cgroup, values["cpu.cfs_quota_us"]) for cgroup, values in desk.ledger.rooms]
    assert quotas == [(config.linux.cgroup_parent, 50_000)] * 2


async def test_what_was_decided_before_an_evaluation_is_evaluated_when_it_runs(desk: Surroundings) -> None:
    desk.core.evaluator = found = Rounds(desk.ledger)
    await desk.load()
    config = pod_sandbox_config("web")
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=config))
    found.rounds += 1
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    await desk.idle()
    assert found.pods == [POD_ID]
    await desk.create(POD_ID, config, container_config("main", pod=config), CONTAINER_ID)
    found.rounds += 1
    await done(desk, "StartContainer")
    assert found.pods == [POD_ID] * 2


async def test_what_was_decided_after_the_last_evaluation_is_not_evaluated_again(desk: Surroundings) -> None:
    desk.core.evaluator = found = Rounds(desk.ledger)
    await desk.load()
    await with_settled_container(desk)
    await done(desk, "StartContainer")
    assert found.pods == []


@pytest.mark.parametrize("is_outdated", [True, False])
async def test_an_update_that_was_decided_before_an_evaluation_does_not_undo_it(
    desk: Surroundings, is_outdated: bool
) -> None:
    """Its decision is claimed when the runtime has answered; what the evaluation has claimed follows."""
    cpus = ContainerChange(resources=ResourceChange(cpuset_cpus="0-7"))
    await desk.load(policy(container=cpus))
    await with_settled_container(desk)
    await done(desk, "StartContainer")
    desk.core.evaluator = found = Rounds(desk.ledger)
    request = api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID)
    request.linux.cpu_shares = 512
    call = desk.call("UpdateContainerResources", request)
    await call.reply.done()
    found.rounds += is_outdated
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    await desk.idle()
    assert [each.claims["cpuset.cpus"][0].value for each in desk.ledger.claimed] == ["0-7"]
    assert (found.pods, found.claimed) == (([POD_ID], [1]) if is_outdated else ([], []))
