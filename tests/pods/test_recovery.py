"""Recovery against a runtime on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.checkpoint.codec import Saved
from runtimeproxy.pods.inventory import Inventory, RunningPods
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.recovery import Recovery, RecoverySettings
from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from runtimeproxy.testing import CallError, FakeRuntime, RuntimeState, preload
from runtimeproxy.testing.builders import pod_sandbox_config

QUICK = RecoverySettings(second_look_s=0.02)


@asynccontextmanager
async def running(recovery: Recovery) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(recovery.run())
    try:
        async with asyncio.timeout(30):
            await recovery.inventory.recovered.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_everything_comes_back_with_its_details(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 5, 20)
    store = PodStore()
    async with running(Recovery(Inventory(store), client)):
        assert len(store.pods) == 5
        assert len(store.containers) == 20
    for container in store.containers:
        kept = fake_runtime.state.containers[container.id]
        pod = store.pods.get(container.pod_id)
        assert pod is not None
        assert pod.cgroup_parent == kept.sandbox_config.linux.cgroup_parent
        assert container.booked.cpu_shares == kept.resources.cpu_shares
        assert container.detailed


async def test_what_has_stopped_costs_no_status_call(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 3)
    for sandbox_id in tuple(fake_runtime.state.sandboxes):
        fake_runtime.state.stop_sandbox(sandbox_id)
    store = PodStore()
    async with running(Recovery(Inventory(store), client)):
        assert {container.state for container in store.containers} == {Lifecycle.STOPPED}
    assert {call.method for call in fake_runtime.recorded} == {"ListPodSandbox", "ListContainers"}


async def test_a_runtime_that_comes_late_is_waited_for(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 1)
    fake_runtime.on("ListPodSandbox", error=CallError("UNAVAILABLE"), times=2)
    store = PodStore()
    async with running(Recovery(Inventory(store), client)):
        assert len(store.containers) == 1


async def test_a_runtime_that_goes_behind_its_lists_is_waited_for(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 2, 6)
    for method in ("PodSandboxStatus", "ContainerStatus"):
        fake_runtime.on(method, error=CallError("UNAVAILABLE"), times=1)
    store = PodStore()
    async with running(Recovery(Inventory(store), client)):
        assert all(record.detailed for record in (*store.pods, *store.containers))


async def test_a_runtime_that_goes_while_saved_records_are_compared_is_waited_for(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    store, container_id = saved_store(fake_runtime.state, 2)
    recovery = Recovery(Inventory(store), client)
    recovery.confirm([container_id])
    fake_runtime.on("ContainerStatus", error=CallError("UNAVAILABLE"), times=1)
    async with running(recovery), asyncio.timeout(30):
        await asyncio.to_thread(fake_runtime.recorded.wait, "ContainerStatus", 2)


async def test_an_error_after_an_inventory_costs_neither_the_next_one_nor_others(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient, caplog: pytest.LogCaptureFixture
) -> None:
    preload(fake_runtime.state, 1, 1)
    inventory, seen = Inventory(PodStore()), asyncio.Queue[int]()

    async def hangs() -> None:
        raise TimeoutError("a file hangs")

    async def counts() -> None:
        await seen.put(len(inventory.store.containers))

    inventory.on_complete += [hangs, counts]
    recovery = Recovery(inventory, client, RecoverySettings(interval_s=3600))
    async with running(recovery), asyncio.timeout(30):
        assert await seen.get() == 1
        preload(fake_runtime.state, 1, 1)
        recovery.compare_soon()
        assert await seen.get() == 2
    assert caplog.text.count("a file hangs") == 1


async def test_a_bug_costs_one_comparison(
    fake_runtime: FakeRuntime,
    client: GrpcRuntimeClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    preload(fake_runtime.state, 1, 1)
    inventory, lists = Inventory(PodStore()), [RuntimeError("a bug")]
    synchronize = inventory.synchronize

    def fails_once(found: RunningPods) -> None:
        if lists:
            raise lists.pop()
        synchronize(found)

    monkeypatch.setattr(inventory, "synchronize", fails_once)
    async with running(Recovery(inventory, client)):
        assert len(inventory.store.containers) == 1
    assert "cannot be compared with the runtime: RuntimeError: a bug" in caplog.text


async def test_a_comparison_drops_what_is_gone_and_adds_what_is_new(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 2, 2)
    store, changed = PodStore(), list[str]()
    recovery = Recovery(Inventory(store), client)
    await recovery.compare()
    store.on_change = lambda kind, identity, is_event: changed.append(identity) if is_event else None
    gone, stays = tuple(fake_runtime.state.sandboxes)
    fake_runtime.state.remove_sandbox(gone)
    new = fake_runtime.state.run_sandbox(pod_sandbox_config("new"))
    await recovery.compare()
    assert {pod.id for pod in store.pods} == {stays, new.id}
    assert gone in changed
    assert len(changed) == 2
    assert len(store.containers) == 1


async def test_a_comparison_asks_no_details_twice(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 2)
    recovery = Recovery(Inventory(PodStore()), client)
    await recovery.compare()
    await recovery.compare()
    methods = [call.method for call in fake_runtime.recorded]
    assert methods.count("ContainerStatus") == 2
    assert methods.count("PodSandboxStatus") == 1


async def test_a_comparison_on_demand_does_not_wait_for_the_interval(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    told = asyncio.Event()
    preload(fake_runtime.state, 1, 1)
    store = PodStore()
    recovery = Recovery(Inventory(store), client, RecoverySettings(interval_s=3600))
    async with running(recovery):
        store.on_change = lambda kind, identity, is_event: told.set()
        fake_runtime.state.remove_container(next(iter(fake_runtime.state.containers)))
        recovery.compare_soon()
        async with asyncio.timeout(30):
            await told.wait()


def saved_store(state: RuntimeState, shares: int) -> tuple[PodStore, str]:
    """A store that a checkpoint has filled with the one container that there is, with these shares."""
    preload(state, 1, 1)
    (container,) = state.containers.values()
    record = ContainerRecord(
        id=container.id,
        pod_id=container.sandbox_id,
        name="main",
        requested=Resources(cpu_shares=7),
        booked=Resources(cpu_shares=shares),
        owners={"resources.cpu_shares": (Claimant("policy"),)},
        state=Lifecycle.RUNNING,
    )
    store = PodStore()
    with store.listing() as since:
        pod = PodRecord(id=container.sandbox_id, namespace="default", name="web", uid="uid-1")
        store.load(Saved((pod,), (record,)), since)
    return store, container.id


async def test_saved_records_need_no_status_call_to_be_recovered(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    fake_runtime.on("ContainerStatus", hang=True)
    store, container_id = saved_store(fake_runtime.state, 2)
    recovery = Recovery(Inventory(store), client)
    recovery.confirm([container_id])
    async with running(recovery):
        record = store.containers.get(container_id)
    assert record is not None
    assert record.owners


async def test_what_changed_meanwhile_is_found_in_the_background(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store, container_id = saved_store(fake_runtime.state, 5000)
    (kept,) = fake_runtime.state.containers.values()
    recovery, found = Recovery(Inventory(store), client, QUICK), asyncio.Event()
    store.on_change = lambda kind, identity, seen: found.set()
    recovery.confirm([container_id, "gone"])
    async with running(recovery), asyncio.timeout(30):
        await found.wait()
    record = store.containers.get(container_id)
    assert record is not None
    shares = kept.resources.cpu_shares
    assert record.requested.cpu_shares == record.booked.cpu_shares == shares
    assert record.owners == {}
    (line,) = [each for each in caplog.records if "while the proxy was away" in each.message]
    change = f"resources.cpu_shares 5000 -> {shares}"
    assert line.message == f"default/web/main: changed while the proxy was away: {change}"
    assert {name: vars(line)[name] for name in ("pod", "uid", "sandbox", "container", "container_id")} == {
        "pod": "default/web",
        "uid": "uid-1",
        "sandbox": kept.sandbox_id,
        "container": "main",
        "container_id": container_id,
    }
    assert vars(line)["changes"] == [{"field": "resources.cpu_shares", "from": "5000", "to": str(shares)}]


async def test_a_call_during_the_question_has_it_asked_again(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    store, container_id = saved_store(fake_runtime.state, 5000)
    fake_runtime.on("ContainerStatus", hang=True, times=1)
    recovery = Recovery(Inventory(store), client, replace(QUICK, interval_s=3600))
    recovery.confirm([container_id])
    async with running(recovery):
        await asyncio.to_thread(fake_runtime.recorded.wait, "ContainerStatus")
        known = store.containers.get(container_id)
        assert known is not None
        store.containers.put(replace(known, annotations={"a": "b"}))
        found = asyncio.Event()
        store.on_change = lambda kind, identity, seen: found.set()
        recovery.compare_soon()
        fake_runtime.release("ContainerStatus")
        async with asyncio.timeout(30):
            await found.wait()
    record = store.containers.get(container_id)
    assert record is not None
    assert (record.owners, record.annotations) == ({}, {"a": "b"})


async def test_a_removal_during_the_list_is_not_undone(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 1)
    (container_id,) = fake_runtime.state.containers
    fake_runtime.on("ListContainers", hang=True, after=True, times=1)
    store = PodStore()
    comparing = asyncio.get_running_loop().create_task(Recovery(Inventory(store), client).compare())
    await asyncio.to_thread(fake_runtime.recorded.wait, "ListContainers")
    store.containers.remove(container_id)
    fake_runtime.release("ListContainers")
    await comparing
    assert len(store.containers) == 0


async def test_a_start_that_nobody_saw_shows_in_the_list(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 1)
    (container_id,) = fake_runtime.state.containers
    store = PodStore()
    store.containers.put(ContainerRecord(id=container_id, owners={"a": (Claimant("b"),)}))
    await Recovery(Inventory(store), client).compare()
    record = store.containers.get(container_id)
    assert record is not None
    assert (record.state, record.owners) == (Lifecycle.RUNNING, {"a": (Claimant("b"),)})


async def test_a_checkpoint_that_is_read_while_details_are_asked_for_counts(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 1, 1)
    (pod_id,), (container_id,) = fake_runtime.state.sandboxes, fake_runtime.state.containers
    saved = Saved(
        (PodRecord(id=pod_id, annotation_changes={"a": "b"}),),
        (
            ContainerRecord(
                id=container_id, pod_id=pod_id, owners={"resources.cpu_shares": (Claimant("mine"),)}
            ),
        ),
    )
    store = PodStore()
    for method in ("PodSandboxStatus", "ContainerStatus"):
        fake_runtime.on(method, hang=True, after=True, times=1)
    comparing = asyncio.get_running_loop().create_task(Recovery(Inventory(store), client).compare())
    for method, taken in (
        ("PodSandboxStatus", Saved(pods=saved.pods)),
        ("ContainerStatus", Saved(containers=saved.containers)),
    ):
        await asyncio.to_thread(fake_runtime.recorded.wait, method)
        with store.listing() as since:
            store.load(taken, since)
        fake_runtime.release(method)
    await comparing
    pod, container = store.pods.get(pod_id), store.containers.get(container_id)
    assert pod is not None
    assert container is not None
    assert pod.annotation_changes == {"a": "b"}
    assert container.owners == {"resources.cpu_shares": (Claimant("mine"),)}


@pytest.mark.parametrize("method", ["ContainerStatus", "PodSandboxStatus"])
async def test_an_error_about_one_record_costs_no_other(
    method: str, fake_runtime: FakeRuntime, client: GrpcRuntimeClient, caplog: pytest.LogCaptureFixture
) -> None:
    state = fake_runtime.state
    preload(state, 3, 3)
    ids = set(state.containers if method == "ContainerStatus" else state.sandboxes)
    fake_runtime.on(method, error=CallError("UNKNOWN", "its metadata are broken"), times=1)
    store = PodStore()
    inventory = Inventory(store)
    recovery = Recovery(inventory, client)
    async with running(recovery):
        lacking = [each for each in (*store.pods, *store.containers) if not each.detailed]
        assert len(lacking) == 1
        assert lacking[0].id in ids
        ((pod, container, reason),) = inventory.refused()
        assert (container or pod) is lacking[0]
        assert "its metadata are broken" in reason
        # Each list asks for it again.
        await recovery.compare()
        assert not list(inventory.refused())
        assert all(each.detailed for each in (*store.pods, *store.containers))
    (line,) = [each for each in caplog.records if "its metadata are broken" in each.message]
    assert vars(line)["pod"].startswith("default/")


async def test_a_defect_that_one_record_shows_is_told_and_costs_no_other(
    fake_runtime: FakeRuntime,
    client: GrpcRuntimeClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    preload(fake_runtime.state, 1, 3)
    bad, *_ = fake_runtime.state.containers
    ask = client.container

    async def container(identity: str, *, with_pod: bool = False) -> ContainerRecord | None:
        if identity == bad:
            raise KeyError("defect")
        return await ask(identity, with_pod=with_pod)

    monkeypatch.setattr(client, "container", container)
    store = PodStore()
    async with running(Recovery(Inventory(store), client)):
        assert {record.id for record in store.containers if not record.detailed} == {bad}
    (line,) = [each for each in caplog.records if "cannot be compared" in each.message]
    assert vars(line)["container_id"] == bad
    assert vars(line)["pod"].startswith("default/")
    assert vars(line)["uid"]
    assert "KeyError: 'defect'" in caplog.text
