"""Clients of the fake runtime."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import FakeRuntime, RuntimeState
from runtimeproxy.testing.builders import (
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.testing.servicer_client import Client

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.default_authority", "localhost"))
SERVICER_POD = pod_sandbox_config("web", uid="u", qos="LS")


@pytest.fixture
def channel(fake_runtime: FakeRuntime) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(fake_runtime.endpoint, options=OPTIONS) as channel:
        yield channel


@pytest.fixture
def runtime(channel: grpc.Channel) -> api_pb2_grpc.RuntimeServiceStub:
    return api_pb2_grpc.RuntimeServiceStub(channel)


@pytest.fixture
def images(channel: grpc.Channel) -> api_pb2_grpc.ImageServiceStub:
    return api_pb2_grpc.ImageServiceStub(channel)


@pytest.fixture
def client(socket_folder: Path) -> Iterator[Client]:
    """A client of a runtime whose clock stands still."""
    state = RuntimeState(clock_ns=lambda: 1_000_000_000)
    with (
        FakeRuntime(socket_folder / "servicers.sock", state=state) as runtime,
        grpc.insecure_channel(runtime.endpoint, options=OPTIONS) as channel,
    ):
        yield Client(runtime, channel)


@pytest.fixture
def sandbox_id(client: Client) -> str:
    return str(client.ok(api_pb2.RunPodSandboxRequest(config=SERVICER_POD)).pod_sandbox_id)


@pytest.fixture
def container_id(client: Client, sandbox_id: str) -> str:
    """A running container."""
    config = container_config(
        "app",
        pod=SERVICER_POD,
        envs={"A": "b"},
        resources=api_pb2.LinuxContainerResources(
            cpu_shares=512, memory_limit_in_bytes=2**30, cpuset_cpus="0-1", unified={"m": "1"}
        ),
    )
    made = client.ok(create_container_request(sandbox_id, config, SERVICER_POD)).container_id
    client.ok(api_pb2.StartContainerRequest(container_id=made))
    return str(made)
