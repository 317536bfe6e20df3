"""Questions to a runtime on a real socket."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.runtime_client import PARSE_ON_LOOP_BYTES, SERVICES, ClientSettings, GrpcRuntimeClient
from runtimeproxy.testing import CallError, FakeRuntime, preload
from runtimeproxy.testing.builders import container_config, pod_sandbox_config
from tests.peers.aio import Peer, RawServer
from tests.peers.error_codes import Codes


def one_of_each(runtime: FakeRuntime) -> tuple[str, str]:
    config = pod_sandbox_config("web", qos="BE", uid="u1")
    sandbox = runtime.state.run_sandbox(config)
    resources = api_pb2.LinuxContainerResources(cpu_shares=77)
    made = runtime.state.create_container(
        sandbox.id, container_config("main", pod=config, resources=resources), config
    )
    runtime.state.start_container(made.id)
    return sandbox.id, made.id


async def test_lists(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    pod_id, container_id = one_of_each(fake_runtime)
    pods, containers = await client.list_pods(), await client.list_containers()
    assert pods[pod_id].uid == "u1"
    assert pods[pod_id].labels["koordinator.sh/qosClass"] == "BE"
    assert not pods[pod_id].detailed
    assert containers[container_id].pod_id == pod_id
    assert containers[container_id].state is Lifecycle.RUNNING


async def test_filtered_lists(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    pod_id, container_id = one_of_each(fake_runtime)
    preload(fake_runtime.state, 3, 3)
    assert list(await client.list_pods({"io.kubernetes.pod.uid": "u1"})) == [pod_id]
    assert list(await client.list_containers(pod_id)) == [container_id]


async def test_status(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    pod_id, container_id = one_of_each(fake_runtime)
    pod, container = await client.pod(pod_id[:12]), await client.container(container_id[:12])
    assert pod is not None
    assert container is not None
    assert (pod.id, pod.cgroup_parent) == (pod_id, "/kubepods/besteffort/podu1")
    assert (container.id, container.booked.cpu_shares) == (container_id, 77)
    asked = await client.container(container_id, with_pod=True)
    assert asked is not None
    assert asked.pod_id == pod_id


async def test_the_runtime_tells_its_name(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    assert await client.runtime_name()
    fake_runtime.on("Version", error=CallError("UNAVAILABLE"))
    with pytest.raises(RuntimeUnavailableError):
        await client.runtime_name()


async def test_what_the_runtime_does_not_know_is_none(client: GrpcRuntimeClient) -> None:
    assert await client.pod("nothing") is None
    assert await client.container("nothing") is None


async def test_a_runtime_without_resources_in_the_status_is_asked_verbosely(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    _, container_id = one_of_each(fake_runtime)
    plain = api_pb2.ContainerStatusResponse(status=api_pb2.ContainerStatus(id=container_id))
    verbose = api_pb2.ContainerStatusResponse(
        status=plain.status, info={"info": '{"config": {"linux": {"resources": {"cpu_shares": 5}}}}'}
    )
    fake_runtime.on("ContainerStatus", response=verbose)
    fake_runtime.on("ContainerStatus", response=plain, times=1)
    for _ in range(2):
        record = await client.container(container_id)
        assert record is not None
        assert record.booked.cpu_shares == 5
    asked = [call.message.verbose for call in fake_runtime.recorded if call.method == "ContainerStatus"]
    assert asked == [False, True, True]


async def test_a_long_list_is_read_in_a_worker_thread(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    preload(fake_runtime.state, 10, 300)
    containers = await client.list_containers()
    assert len(containers) == 300
    assert PARSE_ON_LOOP_BYTES < 300 * 300


async def test_an_old_runtime_is_asked_with_the_old_service(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    pod_id, _ = one_of_each(fake_runtime)
    fake_runtime.on("ListPodSandbox", error=CallError("UNIMPLEMENTED"), times=1)
    assert list(await client.list_pods()) == [pod_id]
    await client.pod(pod_id)
    paths = [call.path.split("/")[1] for call in fake_runtime.recorded]
    assert paths == ["runtime.v1.RuntimeService", *["runtime.v1alpha2.RuntimeService"] * 2]


async def test_a_runtime_that_comes_back_as_another_version_is_asked_with_its_service(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    pod_id, _ = one_of_each(fake_runtime)
    for _ in range(2):
        fake_runtime.on("ListPodSandbox", error=CallError("UNIMPLEMENTED"), times=1)
        assert list(await client.list_pods()) == [pod_id]
    paths = [call.path.split("/")[1] for call in fake_runtime.recorded]
    assert paths == [SERVICES[0], SERVICES[1], SERVICES[1], SERVICES[0]]


async def test_a_runtime_that_goes_away_while_it_is_asked_keeps_its_service(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    pod_id, _ = one_of_each(fake_runtime)
    fake_runtime.on("ListPodSandbox", error=CallError("UNAVAILABLE"), times=1)
    fake_runtime.on("ListPodSandbox", error=CallError("UNIMPLEMENTED"), times=1)
    with pytest.raises(RuntimeUnavailableError):
        await client.list_pods()
    assert list(await client.list_pods()) == [pod_id]
    paths = [call.path.split("/")[1] for call in fake_runtime.recorded]
    assert paths == [SERVICES[0], SERVICES[1], SERVICES[0]]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "UNKNOWN", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"])
async def test_errors_of_the_runtime(fake_runtime: FakeRuntime, client: GrpcRuntimeClient, code: str) -> None:
    fake_runtime.on("*", error=CallError(code, "no"))
    with pytest.raises(RuntimeUnavailableError, match=code):
        await client.list_pods()
    with pytest.raises(RuntimeUnavailableError, match=code):
        await client.container("c1")


async def test_not_found_for_a_list_is_an_error(fake_runtime: FakeRuntime, client: GrpcRuntimeClient) -> None:
    fake_runtime.on("ListPodSandbox", error=CallError("NOT_FOUND"))
    with pytest.raises(RuntimeUnavailableError):
        await client.list_pods()


async def test_an_answer_that_does_not_parse_is_an_error(
    fake_runtime: FakeRuntime, client: GrpcRuntimeClient
) -> None:
    fake_runtime.on("ListContainers", response=b"\xff\xff\xff")
    with pytest.raises(RuntimeUnavailableError, match="does not parse"):
        await client.list_containers()


async def test_a_runtime_that_is_not_there_is_an_error(
    fake_runtime: FakeRuntime, executor: ThreadPoolExecutor
) -> None:
    client = GrpcRuntimeClient(ClientSettings(f"{fake_runtime.endpoint}.nobody"), executor)
    with pytest.raises(RuntimeUnavailableError, match="UNAVAILABLE"):
        await client.list_pods()
    await client.close()


async def test_a_runtime_that_hangs_is_given_up(
    fake_runtime: FakeRuntime, executor: ThreadPoolExecutor
) -> None:
    client = GrpcRuntimeClient(ClientSettings(fake_runtime.endpoint, status_timeout_s=0.1), executor)
    fake_runtime.on("PodSandboxStatus", hang=True)
    with pytest.raises(RuntimeUnavailableError, match="DEADLINE_EXCEEDED"):
        await client.pod("p1")
    await client.close()


async def test_a_runtime_that_ends_calls_with_any_code_is_an_error(
    socket_folder: Path, executor: ThreadPoolExecutor
) -> None:
    """gRPC's own client ends the process at a GOAWAY with 13, HTTP_1_1_REQUIRED, and with 14."""
    codes, path = Codes(), socket_folder / "runtime.sock"
    async with RawServer(path, *codes.scripts):
        client = GrpcRuntimeClient(ClientSettings(f"unix:{path}"), executor)
        while not codes.all_sent.is_set():
            with pytest.raises(RuntimeUnavailableError):
                await client.version(30)
        await client.close()


async def test_a_question_under_way_fails_when_the_client_is_closed(
    socket_folder: Path, executor: ThreadPoolExecutor
) -> None:
    asked = asyncio.Event()

    async def be_silent(peer: Peer) -> None:
        await peer.request()
        asked.set()
        await peer.frame()

    path = socket_folder / "runtime.sock"
    async with RawServer(path, be_silent):
        client = GrpcRuntimeClient(ClientSettings(f"unix:{path}"), executor)
        question = asyncio.ensure_future(client.version(30))
        await asked.wait()
        await client.close()
        with pytest.raises(RuntimeUnavailableError):
            await question
