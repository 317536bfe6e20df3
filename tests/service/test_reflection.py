"""Reflection on the kubelet's socket: clients need no proto file."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.service.api.loading import READ_SERVICE
from runtimeproxy.service.local_services import V1, V1ALPHA, json_name, reflected_services
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CriClient

SERVICES = {"runtime.v1.RuntimeService", "runtime.v1.ImageService", "grpc.health.v1.Health"}


@pytest.fixture
def database(client: CriClient) -> ProtoReflectionDescriptorDatabase:
    return ProtoReflectionDescriptorDatabase(client.channel)


def ask(
    client: CriClient, service: str, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    call = client.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    answer: reflection_pb2.ServerReflectionResponse = next(call(iter([request]), timeout=30))
    return answer


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_services_are_listed(database: ProtoReflectionDescriptorDatabase) -> None:
    assert set(database.get_services()) >= SERVICES


def test_the_cri_is_described_completely(shared_client: CriClient) -> None:
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(shared_client.channel))
    service = pool.FindServiceByName("runtime.v1.RuntimeService")
    own = api_pb2.DESCRIPTOR.services_by_name["RuntimeService"]
    assert [method.name for method in service.methods] == [method.name for method in own.methods]
    message = pool.FindMessageTypeByName("runtime.v1.LinuxContainerResources")
    assert message.fields_by_name["cpu_shares"].number == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [("id", "id"), ("cpu_shares", "cpuShares"), ("memory_limit_in_bytes", "memoryLimitInBytes")],
)
def test_json_names(name: str, expected: str) -> None:
    assert json_name(name) == expected


def test_fields_have_their_json_names(shared_client: CriClient) -> None:
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="runtime.v1.VersionResponse")
    files = ask(shared_client, V1, asked).file_descriptor_response.file_descriptor_proto
    fields = [
        field
        for data in files
        for message in FileDescriptorProto.FromString(data).message_type
        for field in message.field
    ]
    assert fields
    assert all(field.json_name == json_name(field.name) for field in fields)


def test_both_names_of_the_service_answer_and_no_other(shared_client: CriClient) -> None:
    for service in (V1, V1ALPHA):
        listed = ask(shared_client, service, reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {each.name for each in listed.list_services_response.service}
        assert names == set(reflected_services((READ_SERVICE,)))
        symbol = reflection_pb2.ServerReflectionRequest(file_containing_symbol="runtime.v1.ImageService")
        assert ask(shared_client, service, symbol).file_descriptor_response.file_descriptor_proto
        unknown = reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Symbol")
        assert (
            ask(shared_client, service, unknown).error_response.error_code
            == grpc.StatusCode.NOT_FOUND.value[0]
        )
    with pytest.raises(grpc.RpcError) as caught:
        shared_client.raw("/grpc.reflection.v9.ServerReflection/Other")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture
def reflecting(socket_folder: Path) -> Iterator[FakeRuntime]:
    """A runtime that reflects one service only."""
    handler = grpc.method_handlers_generic_handler(
        V1ALPHA,
        {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                reflection.ReflectionServicer(["runtime.v1.ImageService"]).ServerReflectionInfo,
                request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
                response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
            )
        },
    )
    with FakeRuntime(socket_folder / "reflecting.sock", handlers=[handler]) as running:
        yield running


def test_it_can_be_left_to_the_runtime(daemons: Daemons, reflecting: FakeRuntime) -> None:
    config = "[proxy]\nown_services = false\n"
    daemon = daemons.start(config, runtime_endpoint=str(reflecting.socket_path))
    with CriClient(daemon.socket) as client:
        database = ProtoReflectionDescriptorDatabase(client.channel)
        assert list(database.get_services()) == ["runtime.v1.ImageService"]
