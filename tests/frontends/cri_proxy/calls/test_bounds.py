"""Requests below a bound of a QoS class: what could not be written is changed, and noted."""

from __future__ import annotations

import asyncio

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks import ContainerChange, ResourceChange
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger.books import TREE
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import record_of, with_container
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, HeldForTest, Surroundings, policy

QUOTA, CPUS = "cpu.cfs_quota_us", "cpuset.cpus"
Created = api_pb2.CreateContainerRequest
Linux = api_pb2.LinuxContainerResources
Update = api_pb2.UpdateContainerResourcesRequest


async def create(desk: Surroundings, **resources: int | str) -> HeldForTest:
    pod = pod_sandbox_config("web", qos="BE", uid="u1")
    config = container_config(pod=pod)
    for name, value in resources.items():
        setattr(config.linux.resources, name, value)
    await desk.run_pod(pod, POD_ID)
    return await desk.create(POD_ID, pod, config, CONTAINER_ID)


@pytest.mark.parametrize("answer", [None, ContainerChange(resources=ResourceChange(cpu_quota_us=30_000))])
async def test_a_container_begins_without_a_quota(desk: Surroundings, answer: ContainerChange | None) -> None:
    await desk.load(*([policy(container=answer)] if answer is not None else []))
    desk.ledger.bounds = {QUOTA: -1}
    call = await create(desk, cpu_quota=60_000, cpu_period=100_000)
    assert (await call.sent(Created)).config.linux.resources.cpu_quota == -1
    record = record_of(desk)
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (60_000, -1)
    await asyncio.sleep(0)  # once the response is on its way
    (wanted,) = desk.ledger.booked
    assert wanted.requested[QUOTA] == 60_000
    if answer is None:
        assert record.owners == {"resources.cpu_quota_us": (TREE,)}
        assert wanted.claims == {QUOTA: (Claim(TREE, Role.SET, -1),)}
    else:
        assert record.owners == {"resources.cpu_quota_us": (Claimant("test"),)}
        assert [claim.owner for claim in wanted.claims[QUOTA]] == [Claimant("test")]


async def test_a_container_within_the_bound_begins_as_it_came(desk: Surroundings) -> None:
    await desk.load()
    desk.ledger.bounds = {CPUS: "0"}
    call = await create(desk, cpuset_cpus="0")
    assert call.reply.forwarded == [None]
    assert record_of(desk).owners == {}


async def test_an_update_leaves_no_quota_in_the_runtimes_book(desk: Surroundings) -> None:
    await desk.load()
    call = await create(desk, cpu_quota=60_000, cpu_period=100_000)
    assert call.reply.forwarded == [None]
    desk.ledger.bounds = {QUOTA: -1}
    update = desk.call(
        "UpdateContainerResources", Update(container_id=CONTAINER_ID, linux=Linux(cpu_shares=4))
    )
    await update.succeeded(api_pb2.UpdateContainerResourcesResponse())
    sent = (await update.sent(Update)).linux
    assert sent == Linux(cpu_shares=4, cpu_quota=-1)
    record = record_of(desk)
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (60_000, -1)
    # After its end the kubelet's value goes with the next update.
    desk.ledger.bounds = {}
    update = desk.call(
        "UpdateContainerResources", Update(container_id=CONTAINER_ID, linux=Linux(cpu_shares=8))
    )
    await update.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert (await update.sent(Update)).linux.cpu_quota == 60_000
    assert record_of(desk).owners == {}


async def test_an_update_of_a_policys_quota_is_fitted(desk: Surroundings) -> None:
    await desk.load(policy(container=ContainerChange(resources=ResourceChange(cpu_quota_us=30_000))))
    desk.ledger.bounds = {QUOTA: -1}
    await with_container(desk)
    resized = Linux(cpu_quota=70_000, cpu_period=100_000)
    update = desk.call("UpdateContainerResources", Update(container_id=CONTAINER_ID, linux=resized))
    await update.succeeded(api_pb2.UpdateContainerResourcesResponse())
    assert (await update.sent(Update)).linux.cpu_quota == -1
    record = record_of(desk)
    assert (record.requested.cpu_quota_us, record.booked.cpu_quota_us) == (70_000, -1)
