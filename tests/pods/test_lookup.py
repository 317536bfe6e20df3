"""Look-ups of single records at a runtime on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import ContainerRecord, PodRecord
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import FakeRuntime, preload
from runtimeproxy.testing.builders import container_config, pod_sandbox_config

RecordT = TypeVar("RecordT", PodRecord, ContainerRecord)


async def test_a_look_up_finds_a_container_and_its_pod(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 1)
    (container_id,), (pod_id,) = fake_runtime.state.containers, fake_runtime.state.sandboxes
    store = PodStore()
    lookups = Lookups(store, client, timeout_s=10)
    found = await lookups.container(container_id[:10])
    assert found is not None
    assert (found.id, found.pod_id) == (container_id, pod_id)
    assert (await lookups.pod(pod_id[:10])) is store.pods.get(pod_id)
    assert await lookups.container("nothing") is None


async def test_a_look_up_is_bounded(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    fake_runtime.on("ContainerStatus", hang=True)
    assert await Lookups(PodStore(), client, timeout_s=0.1).container("c1") is None


async def test_look_ups_by_name(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    config = pod_sandbox_config("web", uid="u1", attempt=1)
    sandbox = fake_runtime.state.run_sandbox(config)
    made = fake_runtime.state.create_container(sandbox.id, container_config("main", attempt=2), config)
    lookups = Lookups(PodStore(), client, timeout_s=10)
    pod, container = await lookups.pod_named("u1", 1), await lookups.container_named(sandbox.id, "main", 2)
    assert pod is not None
    assert container is not None
    assert (pod.id, container.id) == (sandbox.id, made.id)
    assert await lookups.pod_named("u1", 0) is None
    assert await lookups.container_named(sandbox.id, "main", 0) is None


async def during(
    fake_runtime: FakeRuntime, method: str, looking: Awaitable[RecordT | None], happens: Callable[[], object]
) -> RecordT:
    """What a look-up finds if something happens after the runtime has answered, and before that is read."""
    fake_runtime.on(method, hang=True, after=True, times=1)
    task = asyncio.ensure_future(looking)
    await asyncio.to_thread(fake_runtime.recorded.wait, method)
    happens()
    fake_runtime.release(method)
    found = await task
    assert found is not None
    return found


def take(store: PodStore, saved: Saved) -> None:
    """A checkpoint is read."""
    with store.listing() as since:
        store.load(saved, since)


async def test_an_event_during_a_look_up_wins(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    preload(fake_runtime.state, 1, 1)
    (container_id,) = fake_runtime.state.containers
    store = PodStore()
    looking = Lookups(store, client, timeout_s=10).container(container_id)
    seen = ContainerRecord(id=container_id, name="from-the-call")
    found = await during(fake_runtime, "ContainerStatus", looking, lambda: store.containers.put(seen))
    assert found.name == "from-the-call"


async def test_a_checkpoint_that_is_read_during_a_look_up_counts(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 1)
    (container_id,) = fake_runtime.state.containers
    store = PodStore()
    looking = Lookups(store, client, timeout_s=10).container(container_id)
    saved = ContainerRecord(id=container_id, owners={"resources.cpu_shares": (Claimant("mine"),)})
    reading = partial(take, store, Saved(containers=(saved,)))
    found = await during(fake_runtime, "ContainerStatus", looking, reading)
    assert found.owners == saved.owners


async def test_a_container_of_unknown_pod_gets_it_by_the_kubelets_label(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    status = api_pb2.ContainerStatus(id="c1", labels={"io.kubernetes.pod.uid": "u1"})
    fake_runtime.on("ContainerStatus", response=api_pb2.ContainerStatusResponse(status=status))
    store = PodStore()
    store.pods.put(PodRecord(id="p1", uid="u1"))
    found = await Lookups(store, client, timeout_s=10).container("c1")
    assert found is not None
    assert found.pod_id == "p1"


async def test_a_checkpoint_that_is_read_during_a_look_up_of_a_pod_counts(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 0)
    (pod_id,) = fake_runtime.state.sandboxes
    store = PodStore()
    looking = Lookups(store, client, timeout_s=10).pod(pod_id)
    saved = PodRecord(id=pod_id, annotation_changes={"a": "b"})
    reading = partial(take, store, Saved(pods=(saved,)))
    found = await during(fake_runtime, "PodSandboxStatus", looking, reading)
    assert found.annotation_changes == saved.annotation_changes
