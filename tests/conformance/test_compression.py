"""Items 86 to 88: compressed messages."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.messages import (
    BATCH_SHARES,
    CREATE,
    RUNTIME,
    STATUS,
    asking_create,
    batch_create,
    plain_create,
)
from tests.conformance.services import ECHO
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client, Stream
from tests.peers.bytes_client import BytesClient, answer_of

CREATED = api_pb2.CreateContainerResponse(container_id="c" * 64).SerializeToString()
BIG = b"a line of a long list\n" * 10_000
RAW_CODES: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.conformance(86)
@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_request(through: BytesClient, algorithm: grpc.Compression) -> None:
    assert through.call(ECHO, BIG, compression=algorithm).message == BIG


@pytest.mark.conformance(86)
@pytest.mark.parametrize("encoding", RAW_CODES)
@pytest.mark.parametrize("make", [plain_create, batch_create], ids=["unchanged", "changed"])
def test_compressed_held_request(
    runtime: FakeRuntime,
    proxy: ProxyProcess,
    encoding: str,
    make: Callable[[], api_pb2.CreateContainerRequest],
) -> None:
    """What a policy changes goes on in a form that the runtime understands, with the header that it has."""
    runtime.on("CreateContainer", response=CREATED)
    request = make().SerializeToString()
    with Http2Client(proxy.socket) as client:
        stream_id = client.open(CREATE, ("grpc-encoding", encoding))
        client.message(stream_id, RAW_CODES[encoding](request), compressed=True)
        assert bytes(client.answer(stream_id).data[5:]) == CREATED

    got = runtime.recorded.wait("CreateContainer")[0]
    if make is plain_create:
        assert got.raw == request
    else:
        assert got.message.config.linux.resources.cpu_shares == BATCH_SHARES


@pytest.mark.conformance(86)
def test_held_request_that_is_larger_than_it_looks(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    """The bound of a held message counts for what it is decompressed, too."""
    bomb = gzip.compress(b"\xfa\x7c\x80\x80\x80\x10" + bytes(32 * 1024 * 1024))
    with Http2Client(proxy.socket) as client:
        stream_id = client.open(CREATE, ("grpc-encoding", "gzip"))
        client.large_message(stream_id, bomb, compressed=True)
        answer = client.answer(stream_id)

    assert answer.trailers["grpc-status"] == "8"
    assert answer.trailers["grpc-message"].startswith("koord-runtime-proxy: ")
    assert not runtime.recorded.of("CreateContainer")


@pytest.mark.conformance(87)
@pytest.mark.parametrize("path", [STATUS, CREATE], ids=["passing", "held"])
def test_compressed_response(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str
) -> None:
    runtime.on(path.rpartition("/")[2], response=BIG, gzip=True)

    answer = through.call(path)

    assert answer == direct.call(path)
    assert answer.message == BIG


@pytest.mark.conformance(87)
def test_compressed_response_is_understood(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk
) -> None:
    """The proxy reads the container's id from it and knows the container from then on."""
    runtime.on("CreateContainer", gzip=True)
    pod = asking_create(desk.annotations).sandbox_config
    run = api_pb2.RunPodSandboxRequest(config=pod).SerializeToString()
    sandbox = api_pb2.RunPodSandboxResponse.FromString(
        through.call(f"{RUNTIME}/RunPodSandbox", run).message
    ).pod_sandbox_id
    request = asking_create(desk.annotations, sandbox_id=sandbox)
    request.sandbox_config.CopyFrom(pod)
    call = through.start(CREATE, request.SerializeToString())
    desk.question().answer(resources={"cpu_shares": 77})
    made = api_pb2.CreateContainerResponse.FromString(answer_of(call).message).container_id
    runtime.recorded.clear()

    start = api_pb2.StartContainerRequest(container_id=made).SerializeToString()
    assert through.call(f"{RUNTIME}/StartContainer", start).code == "OK"
    # No look-up at the runtime: the record is there.
    assert not runtime.recorded.of("ContainerStatus")


@pytest.mark.conformance(88)
@pytest.mark.parametrize("path", [STATUS, CREATE], ids=["passing", "held"])
@pytest.mark.parametrize("encoding", ["zz-unknown", "identity", "gzip"])
def test_unknown_or_wrong_encoding(
    runtime: FakeRuntime, proxy: ProxyProcess, path: str, encoding: str
) -> None:
    """A compressed message of unknown encoding, or against its header, or that is not compressed."""
    answers = []
    for socket in (runtime.socket_path, proxy.socket):
        with Http2Client(socket) as client:
            stream_id = client.open(path, ("grpc-encoding", encoding))
            client.message(stream_id, b"\x01\x02\x03", compressed=True)
            answers.append(outcome(client.answer(stream_id)))

    assert answers[1] == answers[0]
    assert answers[0]["grpc-status"] != "0"


def outcome(stream: Stream) -> dict[str, str]:
    """Status and headers of an answer."""
    return {name: value for block in stream.headers for name, value in block}
