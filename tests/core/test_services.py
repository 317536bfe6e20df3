"""The services of the core, used by a front end of some lines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import CgroupChange, ContainerChange, ResourceChange, Resources
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger.books import TREE
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from tests.core.deciding import Message, RefusedError, create_container, on_start
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy

POD = PodRecord(id=POD_ID, uid="u1", cgroup_parent="/kubepods/podu1", state=Lifecycle.RUNNING)
CGROUP = f"/kubepods/podu1/{CONTAINER_ID}"
OOM = {"memory.use_priority_oom": 1}


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    made = Surroundings()
    made.store.pods.put(POD)
    yield made
    await made.close()


def draft() -> Message:
    asked = Resources(cpu_quota_us=60_000)
    return Message(ContainerRecord(id="", pod_id=POD_ID, name="main", requested=asked, booked=asked))


async def test_a_decision_is_carried_recorded_and_written_at_the_start(
    around: Surroundings,
) -> None:
    change = ContainerChange(resources=ResourceChange(cpu_shares=512), cgroup=OOM)
    found = policy(container=change, on_started=None)
    await around.load(found)
    around.ledger.bounds = {"cpu.cfs_quota_us": 20_000}
    sent = []

    async def send(message: Message) -> str:
        sent.append(message.record.booked)
        return CONTAINER_ID

    message = draft()
    message.record = await create_container(around.core, POD, message, send)
    assert [(each.cpu_shares, each.cpu_quota_us) for each in sent] == [(512, 20_000)]
    owners = message.record.owners
    assert owners["resources.cpu_shares"] == (Claimant("test"),)
    assert owners["resources.cpu_quota_us"] == (TREE,)
    assert [each.target.cgroup for each in around.ledger.booked] == [CGROUP]
    assert around.ledger.written == []
    on_start(around.core, message.record)
    assert around.waiting_keys, "the pod's next events wait"
    await around.idle()
    assert around.ledger.written == [(CGROUP, OOM)]
    assert [method for method, _ in found.seen] == ["container", "on_started"]
    assert not around.waiting_keys


async def test_what_policies_refuse_is_not_made(around: Surroundings) -> None:
    def refuse(_: object) -> CgroupChange | None:
        raise RefusalError("not on this node")

    await around.load(policy(container=refuse))

    async def send(message: Message) -> str:
        raise AssertionError

    with pytest.raises(RefusedError, match="not on this node"):
        await create_container(around.core, POD, draft(), send)
    assert not around.waiting_keys
