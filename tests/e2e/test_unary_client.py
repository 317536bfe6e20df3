"""The proxy's own HTTP/2 client before servers in Go: containerd's is grpc-go, as koordlet's is."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import StatusCode
from runtimeproxy.http2.client import AnsweredError, GrpcClient, RpcError, UnreachableError, request_block
from tests.lab.containerd import Containerd
from tests.lab.programs import ContainerdVersion

SERVICE = "/runtime.v1.RuntimeService"
TIMEOUT_S = 30.0


async def call(client: GrpcClient, method: str, request: bytes = b"") -> bytes | RpcError:
    came: asyncio.Future[bytes | RpcError] = asyncio.get_running_loop().create_future()
    client.call(request_block(f"{SERVICE}/{method}"), request, TIMEOUT_S, came.set_result)
    return await came


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_calls_of_a_server_in_go(containerd: Containerd, new_loop: type[asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        client = GrpcClient(str(containerd.socket))
        answers = await asyncio.gather(*(call(client, "Version") for _ in range(300)))
        assert len(set(answers)) == 1
        assert isinstance(answers[0], bytes)
        assert api_pb2.VersionResponse.FromString(answers[0]).runtime_name == "containerd"
        missing = await call(client, "NoSuchMethod")
        assert isinstance(missing, AnsweredError)
        assert missing.code is StatusCode.UNIMPLEMENTED
        # Longer than the windows of a server in Go, which reads it and finds no such container.
        long = api_pb2.ContainerStatusRequest(container_id="x" * 3_000_000).SerializeToString()
        unknown = await call(client, "ContainerStatus", long)
        assert isinstance(unknown, AnsweredError | UnreachableError)
        assert await call(client, "Version") == answers[0]
        client.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_a_server_in_go_that_restarts(containerd_version: ContainerdVersion) -> None:
    async def main() -> None:
        with Containerd(containerd_version) as containerd:
            client = GrpcClient(str(containerd.socket))
            assert isinstance(await call(client, "Version"), bytes)
            await asyncio.to_thread(containerd.restart)
            assert isinstance(await call(client, "Version"), bytes)
            client.close()

    asyncio.run(main())
