"""Updates of containers: they stay partial, and policies are shown everything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import (
    ContainerChange,
    ContainerView,
    Hook,
    PodChange,
    PodSelector,
    ResourceChange,
    Resources,
    Scale,
)
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.node.snapshot import FixedNode, Input, InputState, Node
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.updates import has_taken
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import SHARES, record_of, with_container
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy, server

Update = api_pb2.UpdateContainerResourcesRequest


def update(**resources: int | str) -> api_pb2.UpdateContainerResourcesRequest:
    request = Update(container_id=CONTAINER_ID)
    for name, value in resources.items():
        setattr(request.linux, name, value)
    return request


async def test_a_unique_prefix_of_an_id_is_that_id(desk: Surroundings) -> None:
    found = policy(container=None)
    await desk.load(found)
    await with_container(desk)
    call = desk.call("UpdateContainerResources", Update(container_id=CONTAINER_ID[:8]))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert found.seen[-1][1].id == CONTAINER_ID
    assert desk.runtime.asked == []


async def test_an_amount_counts_on_nothing_of_a_container_that_was_found_at_the_runtime(
    desk: Surroundings,
) -> None:
    """Its quota may be that of policies, until the kubelet resizes it."""
    found = policy(container=ContainerChange(resources=ResourceChange(cpu_quota_us=Scale(2.0))))
    await desk.load(found)
    await with_container(desk)
    known = Resources(cpu_quota_us=60_000, cpu_shares=2)
    record = replace(record_of(desk), requested=known, booked=known, recovered=True, owners={})
    desk.store.containers.put(record)
    call = desk.call("UpdateContainerResources", update(cpuset_cpus="0-1"))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert found.seen[-1][1].is_recovered
    assert call.reply.forwarded == [None]
    await desk.idle()
    call = desk.call("UpdateContainerResources", update(cpu_quota=80_000, cpu_shares=2))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert (await call.sent(Update)).linux.cpu_quota == 40_000
    assert not record_of(desk).recovered


@pytest.mark.conformance(99)
async def test_a_partial_update_stays_partial_and_asks_with_everything(desk: Surroundings) -> None:
    found = policy(container=SHARES)
    await desk.load(found)
    await with_container(desk)
    call = desk.call("UpdateContainerResources", update(cpuset_cpus="0-1"))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert call.reply.forwarded == [None]
    view: ContainerView = found.seen[-1][1]
    assert view.updated is not None
    assert (view.updated.cpuset_cpus, view.updated.cpu_shares) == ("0-1", None)
    assert (view.requested.cpu_shares, view.requested.cpuset_cpus) == (2, "0-1")
    assert (view.current.cpu_shares, view.current.cpuset_cpus) == (2048, "0-1")
    record = record_of(desk)
    assert (record.booked.cpu_shares, record.booked.cpuset_cpus) == (2048, "0-1")


async def test_an_update_of_an_owned_field_gets_the_owners_value(desk: Surroundings) -> None:
    await desk.load(policy(container=SHARES))
    await with_container(desk)
    call = desk.call("UpdateContainerResources", update(cpu_shares=512))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    sent = await call.sent(Update)
    assert sent.linux == api_pb2.LinuxContainerResources(cpu_shares=2048)
    record = record_of(desk)
    assert (record.requested.cpu_shares, record.booked.cpu_shares) == (512, 2048)
    assert record.owners["resources.cpu_shares"] == (Claimant("test"),)


async def test_an_update_of_the_kubelets_cpu_manager_carries_the_policys_cpus(desk: Surroundings) -> None:
    """Issue #3129 of Koordinator: there the runtime gets the kubelet's CPUs, until the next round."""
    await desk.load(policy(container=ContainerChange(resources=ResourceChange(cpuset_cpus="2-4"))))
    await with_container(desk)
    for cpus in ("0-15", "9"):
        call = desk.call("UpdateContainerResources", update(cpuset_cpus=cpus))
        await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
        assert (await call.sent(Update)).linux == api_pb2.LinuxContainerResources(cpuset_cpus="2-4")
    assert record_of(desk).requested.cpuset_cpus == "9"


async def test_an_update_leaves_the_oom_score_of_the_creation(desk: Surroundings) -> None:
    """V217: runtimes do not change that of a running container."""
    found = policy(container=SHARES)
    await desk.load(found)
    await with_container(desk)
    before = record_of(desk).requested.oom_score_adj
    assert before not in (None, 20)
    call = desk.call("UpdateContainerResources", update(oom_score_adj=20, cpu_shares=512))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert (await call.sent(Update)).linux.oom_score_adj == 20
    view = found.seen[-1][1]
    record = record_of(desk)
    scores = {view.requested.oom_score_adj, view.current.oom_score_adj}
    assert scores | {record.requested.oom_score_adj, record.booked.oom_score_adj} == {before}


class Fickle:
    """An answer that can be withdrawn, or fail, and its policy."""

    def __init__(self, change: ContainerChange) -> None:
        self.change: ContainerChange | None = change
        self.fails = False

    def __call__(self, _: ContainerView) -> ContainerChange | None:
        if self.fails:
            raise ValueError("not now")
        return self.change


async def test_an_oom_score_that_no_policy_wants_any_more_keeps_its_owner(desk: Surroundings) -> None:
    answer = Fickle(ContainerChange(resources=ResourceChange(oom_score_adj=-500, cpu_shares=2048)))
    await desk.load(policy(container=answer))
    await with_container(desk)
    answer.change = None
    call = desk.call("UpdateContainerResources", update(cpuset_cpus="0"))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    record = record_of(desk)
    assert record.booked.oom_score_adj == -500
    assert record.owners == {"resources.oom_score_adj": (Claimant("test"),)}


async def test_a_field_that_the_kubelet_sends_and_nobody_claims_is_its_own_again(desk: Surroundings) -> None:
    answer = Fickle(SHARES)
    await desk.load(policy(container=answer))
    await with_container(desk)
    answer.change = None
    call = desk.call("UpdateContainerResources", update(cpu_shares=512))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    record = record_of(desk)
    assert record.booked.cpu_shares == 512
    assert "resources.cpu_shares" not in record.owners


SEVERAL = ContainerChange(
    resources=ResourceChange(
        cpu_shares=2048, cpu_quota_us=20_000, cpuset_cpus="3", unified={"memory.high": "1"}
    )
)


@pytest.mark.parametrize("is_loaded", [True, False], ids=["no-answer-any-more", "no-policy-any-more"])
async def test_what_no_policy_wants_any_more_rides_back_on_the_next_update(
    desk: Surroundings, is_loaded: bool
) -> None:
    answer = Fickle(SEVERAL)
    await desk.load(policy(container=answer))
    await with_container(desk)
    answer.change = None
    if not is_loaded:
        await desk.load()
    call = desk.call("UpdateContainerResources", update(memory_limit_in_bytes=1 << 30))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    sent = await call.sent(Update)
    # The kubelet asked for shares of 2 and nothing else; a list of CPUs cannot be taken away.
    assert sent.linux == api_pb2.LinuxContainerResources(
        cpu_shares=2, cpu_quota=-1, memory_limit_in_bytes=1 << 30
    )
    record = record_of(desk)
    assert (record.booked.cpu_shares, record.booked.cpu_quota_us) == (2, -1)
    assert record.owners == {}
    following = desk.call("UpdateContainerResources", update(memory_limit_in_bytes=1 << 30))
    await following.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert following.reply.forwarded == [None]


async def test_what_a_policy_without_an_answer_wanted_still_holds(desk: Surroundings) -> None:
    answer = Fickle(SHARES)
    await desk.load(policy(container=answer))
    await with_container(desk)
    answer.fails = True
    call = desk.call("UpdateContainerResources", update(memory_limit_in_bytes=1 << 30))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert call.reply.forwarded == [None]
    record = record_of(desk)
    assert record.booked.cpu_shares == 2048
    assert record.owners["resources.cpu_shares"] == (Claimant("test"),)


@pytest.mark.parametrize("state", InputState)
async def test_what_a_policy_wanted_holds_until_its_inputs_are_known_again(
    desk: Surroundings, state: InputState
) -> None:
    """After a restart of the proxy: until then no pod may need the policy."""
    found = policy(container=SHARES)
    await desk.load(found)
    await with_container(desk)
    type(found).optional_inputs = frozenset({Input.POOLS})
    type(found).selector_without = {Input.POOLS: PodSelector(namespaces=frozenset())}
    chain = await desk.load(found)
    chain.node = FixedNode(Node(states={Input.POOLS: state}))
    call = desk.call("UpdateContainerResources", update(memory_limit_in_bytes=1 << 30))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    sent = await call.sent(Update)
    assert sent.linux.cpu_shares == (2 if state is InputState.WITHDRAWN else 0)
    assert ("resources.cpu_shares" in record_of(desk).owners) is (state is not InputState.WITHDRAWN)


async def test_what_a_hook_server_set_still_holds(desk: Surroundings) -> None:
    await desk.load(server({Hook.PRE_CREATE_CONTAINER: SHARES}))
    await with_container(desk)
    await desk.load()
    call = desk.call("UpdateContainerResources", update(memory_limit_in_bytes=1 << 30))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert call.reply.forwarded == [None]
    assert record_of(desk).booked.cpu_shares == 2048


@pytest.mark.parametrize(
    ("requested", "wanted", "expected"),
    [
        pytest.param(1 << 20, 1 << 30, None, id="lower"),
        pytest.param(1 << 30, 1 << 20, 1 << 30, id="higher"),
        pytest.param(0, 1 << 20, -1, id="none"),
    ],
)
async def test_a_memory_limit_is_not_lowered_in_passing(
    desk: Surroundings, requested: int, wanted: int, expected: int | None
) -> None:
    answer = Fickle(ContainerChange(resources=ResourceChange(memory_limit_bytes=wanted)))
    await desk.load(policy(container=answer))
    pod = pod_sandbox_config("web", qos="BE", uid="u1")
    config = container_config(pod=pod)
    config.linux.resources.memory_limit_in_bytes = requested
    await desk.run_pod(pod, POD_ID)
    await desk.create(POD_ID, pod, config, CONTAINER_ID)
    answer.change = None
    call = desk.call("UpdateContainerResources", update(cpu_shares=7))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    sent = await call.sent(Update)
    assert sent.linux.memory_limit_in_bytes == (expected or 0)
    assert ("resources.memory_limit_bytes" in record_of(desk).owners) is (expected is None)


async def test_a_value_of_the_book_that_differs_rides_on_the_next_update(desk: Surroundings) -> None:
    """A strategy has changed what a policy wants, and a file was written meanwhile."""
    answer = Fickle(SHARES)
    await desk.load(policy(container=answer))
    await with_container(desk)
    answer.change = ContainerChange(resources=ResourceChange(cpu_shares=77))
    call = desk.call("UpdateContainerResources", update(cpuset_cpus="0-1"))
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    sent = await call.sent(Update)
    assert sent.linux == api_pb2.LinuxContainerResources(cpuset_cpus="0-1", cpu_shares=77)


@pytest.mark.parametrize("outcome", [Outcome.FAILED])
async def test_a_failed_update_changes_no_record(desk: Surroundings, outcome: Outcome) -> None:
    await desk.load(policy(container=SHARES))
    await with_container(desk)
    before = record_of(desk)
    call = desk.call("UpdateContainerResources", update(cpu_shares=512))
    await call.ended(outcome)
    assert record_of(desk) is before


async def test_an_update_of_an_unknown_container_looks_it_up(desk: Surroundings) -> None:
    found = policy(container=None)
    await desk.load(found)
    desk.runtime.pods[POD_ID] = PodRecord(id=POD_ID, labels={"koordinator.sh/qosClass": "LSR"})
    desk.runtime.containers[CONTAINER_ID] = ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID)
    call = desk.call("UpdateContainerResources", update(cpu_shares=512))
    await call.reply.done()
    assert found.seen[0][1].pod.qos == "LSR"
    assert desk.runtime.asked == [f"container {CONTAINER_ID}", f"pod {POD_ID}"]


async def test_a_container_that_the_runtime_does_not_know_either_is_its_business(desk: Surroundings) -> None:
    found = policy(container=SHARES)
    await desk.load(found)
    call = desk.call("UpdateContainerResources", update(cpu_shares=512))
    await call.reply.done()
    assert call.reply.forwarded == [None]
    assert not found.seen


async def test_values_of_a_running_container_are_written_after_the_update(desk: Surroundings) -> None:
    await desk.load(policy(container=ContainerChange(cgroup={"cpu.cfs_burst_us": 1000})))
    await with_container(desk)
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    await desk.idle()
    desk.ledger.written.clear()
    call = desk.call("UpdateContainerResources", update(cpu_quota=5000))
    await call.reply.done()
    cgroup = f"/kubepods/besteffort/podu1/{CONTAINER_ID}"
    quotas = [("/kubepods/besteffort/podu1", 5000), (cgroup, 5000)]
    assert desk.ledger.quotas == quotas, "the bursts are lowered before the quotas, the kubelet's too"
    assert desk.ledger.written == []
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    await desk.idle()
    assert desk.ledger.written == [(cgroup, {"cpu.cfs_burst_us": 1000})]


@pytest.mark.parametrize("answer", ["fails", "is-silent", "is-not-loaded"])
async def test_bursts_are_lowered_whatever_policies_say(desk: Surroundings, answer: str) -> None:
    """A burst that a policy has given stays while it has no answer; the kernel would refuse the resize."""
    found = Fickle(ContainerChange(cgroup={"cpu.cfs_burst_us": 1000}))
    await desk.load(policy(container=found))
    await with_container(desk)
    start = desk.call("StartContainer", api_pb2.StartContainerRequest(container_id=CONTAINER_ID))
    await start.succeeded(api_pb2.StartContainerResponse())
    await desk.idle()
    found.fails, found.change = answer == "fails", None
    if answer == "is-not-loaded":
        await desk.load()
    call = desk.call("UpdateContainerResources", update(cpu_quota=5000))
    await call.reply.done()
    assert call.reply.forwarded == [None]
    cgroup = f"/kubepods/besteffort/podu1/{CONTAINER_ID}"
    assert desk.ledger.quotas == [("/kubepods/besteffort/podu1", 5000), (cgroup, 5000)]


async def test_what_the_pod_asks_for_after_a_resize_is_noted(desk: Surroundings) -> None:
    await desk.load(policy(pod=PodChange(cgroup={"cpu.bvt_warp_ns": -1})))
    await with_container(desk)
    await desk.idle()
    for request, noted in ((update(cpuset_cpus="0-1"), 0), (update(cpu_quota=5000), 1)):
        call = desk.call("UpdateContainerResources", request)
        await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
        assert len(desk.ledger.noted) == noted
    cgroup, values = desk.ledger.noted[0]
    assert (cgroup, values["cpu.cfs_quota_us"]) == ("/kubepods/besteffort/podu1", 5000)


QUOTA_CAP = ContainerChange(resources=ResourceChange(cpu_quota_us=20_000))


async def test_an_update_is_decided_with_those_that_are_under_way(desk: Surroundings) -> None:
    def capped(view: ContainerView) -> ContainerChange | None:
        return None if is_lifted else QUOTA_CAP

    is_lifted = False
    found = policy(container=capped)
    await desk.load(found)
    await with_container(desk)
    is_lifted = True
    first = desk.call("UpdateContainerResources", update(cpu_quota=50_000))
    await first.reply.done()
    is_lifted = False
    second = desk.call("UpdateContainerResources", update(memory_limit_in_bytes=1 << 30))
    sent = await second.sent(Update)
    assert found.seen[-1][1].current.cpu_quota_us == 50_000
    assert (sent.linux.cpu_quota, sent.linux.memory_limit_in_bytes) == (20_000, 1 << 30)
    for call in (first, second):
        await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert record_of(desk).booked.cpu_quota_us == 20_000
    assert desk.core.pending_updates == {}


async def test_two_updates_under_way_are_both_recorded(desk: Surroundings) -> None:
    """Also of a container whose pod has values that have to be written again."""
    await desk.load(policy(pod=PodChange(cgroup={"cpu.bvt_warp_ns": -1})))
    await with_container(desk)
    await desk.idle()
    calls = [
        desk.call("UpdateContainerResources", update(cpu_quota=50_000)),
        desk.call("UpdateContainerResources", update(cpu_shares=512)),
    ]
    await asyncio.sleep(0)  # their records are prepared
    for call in calls:
        await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    applied = record_of(desk).booked
    assert (applied.cpu_quota_us, applied.cpu_shares) == (50_000, 512)
    await desk.idle()
    assert desk.ledger.renewed


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_an_update_that_has_ended_is_under_way_no_more(desk: Surroundings, end: str) -> None:
    await desk.load(policy(container=SHARES))
    await with_container(desk)
    call = desk.call("UpdateContainerResources", update(cpu_quota=50_000))
    await call.reply.done()
    assert CONTAINER_ID in desk.core.pending_updates
    if end == "failed":
        await call.ended(Outcome.FAILED)
    else:
        call.handler.on_cancelled()
    assert desk.core.pending_updates == {}


async def test_annotations_of_an_update_are_shown_from_then_on(desk: Surroundings) -> None:
    change = ContainerChange(annotations={"hook": "1"})
    found = policy(container=change)
    await desk.load(found)
    await with_container(desk)
    request = update(cpu_shares=512)
    request.annotations["kubelet"] = "1"
    for _ in range(2):
        call = desk.call("UpdateContainerResources", request)
        await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert found.seen[-1][1].annotations.items() >= {("hook", "1"), ("kubelet", "1")}


@pytest.mark.parametrize(
    ("wanted", "reported", "expected"),
    [
        pytest.param({"cpu_shares": 2000}, {"cpu_shares": 2000}, True, id="the same"),
        pytest.param({"cpu_shares": 2000}, {"cpu_shares": 1998}, True, id="one weight"),
        pytest.param({"cpu_shares": 2000}, {"cpu_shares": 100}, False, id="another"),
        pytest.param({"cpuset_cpus": "0,1,2"}, {"cpuset_cpus": "0-2"}, True, id="a list in short"),
        pytest.param({"memory_limit_bytes": 10_000}, {"memory_limit_bytes": 8192}, True, id="whole pages"),
        pytest.param({"cpu_shares": 2, "cpu_quota_us": 5000}, {"cpu_shares": 2}, True, id="half reported"),
        pytest.param({"cpu_shares": 2}, {"cpu_quota_us": 5000}, False, id="nothing of it reported"),
        pytest.param({}, {"cpu_quota_us": 5000}, False, id="nothing wanted"),
        pytest.param({"unified": {"a": "1"}}, {"unified": {"a": "1", "b": "2"}}, True, id="unified"),
        pytest.param({"unified": {"a": "1"}}, {"unified": {"a": "2"}}, False, id="another in unified"),
    ],
)
def test_whether_an_update_was_taken(wanted: Any, reported: Any, expected: bool) -> None:
    assert has_taken(Resources(**wanted), Resources(**reported)) is expected
