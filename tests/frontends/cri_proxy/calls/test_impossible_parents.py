"""Updates of pods whose cgroup parent cannot be: the values of policies reach the runtime all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.hooks import ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.ledger.journal import Journal
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.testing import CgroupFiles
from tests.frontends.cri_proxy.calls.one_container import record_of, with_container
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, policy
from tests.ledger.test_evaluate import IMPOSSIBLE

VALUES = {"cpu.cfs_burst_us": 1000}
TEST = policy(
    pod=PodChange(cgroup=VALUES),
    container=ContainerChange(resources=ResourceChange(cpu_shares=2048), cgroup=VALUES),
)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Surroundings]:
    """With a ledger of its own, as the daemon has it, and a container that runs."""
    made = Surroundings()
    await made.load()
    await with_container(made)
    await made.idle()
    files, journal = CgroupFiles(tmp_path / "cgroup", version=2), Journal(tmp_path / "state", "boot")
    made.core.ledger = Ledger(CgroupWriter(files.root), journal, "boot")
    made.store.containers.put(replace(record_of(made), state=Lifecycle.RUNNING))
    await made.load(TEST)
    yield made
    await made.close()
    journal.close()


def move(desk: Surroundings, parent: str) -> None:
    """The pod is in this cgroup by its record."""
    pod = desk.store.pods.get(POD_ID)
    assert pod is not None
    desk.store.pods.put(replace(pod, cgroup_parent=parent))


@pytest.mark.parametrize("parent", IMPOSSIBLE)
async def test_an_update_of_a_container(desk: Surroundings, parent: str) -> None:
    """Its quota may fall below the burst of its pod, which is lowered before: `before_update`."""
    move(desk, parent)
    linux = api_pb2.LinuxContainerResources(cpu_quota=50_000, cpu_period=100_000)
    request = api_pb2.UpdateContainerResourcesRequest(container_id=CONTAINER_ID, linux=linux)
    call = desk.call("UpdateContainerResources", request)
    sent = await call.sent(api_pb2.UpdateContainerResourcesRequest)
    assert sent.linux.cpu_shares == 2048
    await call.succeeded(api_pb2.UpdateContainerResourcesResponse())
    await desk.idle()
    assert (desk.core.problems.internal_errors, desk.failures.causes) == (0, [])
    assert {each.field: each.kind for each in desk.audit} == {
        "resources.cpu_shares": AuditKind.CHANGED,
        "cgroup[cpu.cfs_burst_us]": AuditKind.PENDING,
    }


@pytest.mark.parametrize("parent", IMPOSSIBLE)
async def test_an_update_of_a_pod(desk: Surroundings, parent: str) -> None:
    """The kubelet may have written to its cgroup before the call: `on_resized`."""
    move(desk, parent)
    resources = api_pb2.LinuxContainerResources(cpu_shares=512)
    request = api_pb2.UpdatePodSandboxResourcesRequest(pod_sandbox_id=POD_ID, resources=resources)
    call = desk.call("UpdatePodSandboxResources", request)
    await call.succeeded(api_pb2.UpdatePodSandboxResourcesResponse())
    await desk.idle()
    assert (desk.core.problems.internal_errors, desk.failures.causes) == (0, [])
    # What says so is the attempt to write the value, whose reason is about this pod.
    assert [each.kind for each in desk.audit] == [AuditKind.PENDING, AuditKind.FAILED]
    assert repr(parent)[:20] in desk.audit[-1].reason
