"""Requests with far more annotations than a pod can have cost no memory while the runtime is slow."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.lab.deadline import wait_until
from tests.lab.procfs import rss_bytes
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

MIB: Final = 1024 * 1024
METHOD: Final = "/runtime.v1.RuntimeService/RunPodSandbox"
OPTIONS: Final = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class SlowRuntime(grpc.GenericRpcHandler):
    """Answers calls that start pods when the test lets it; others with empty messages."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of any method, which does not look at the message."""
        runs_pod = handler_call_details.method == METHOD

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if not runs_pod:
                return b""
            self.asked.release()
            self.answers.wait(60)
            return api_pb2.RunPodSandboxResponse(pod_sandbox_id=secrets.token_hex(32)).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def slow(socket_folder: Path) -> Iterator[SlowRuntime]:
    made = SlowRuntime()
    options = [("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(80), handlers=[made], options=options)
    server.add_insecure_port(f"unix:{socket_folder}/slow.sock")
    server.start()
    yield made
    made.answers.set()
    server.stop(None).wait()


def run_request(number: int, size_bytes: int) -> bytes:
    config = pod_sandbox_config(annotations={"big": "x" * size_bytes})
    config.metadata.uid = f"uid-{number}"
    return api_pb2.RunPodSandboxRequest(config=config).SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "size_bytes", "compression", "most_bytes"),
    [
        # Once 410 MiB, then 44 to 170: an error of the thread that reads a request had that request until the
        # next garbage collection, often after free memory was given back.
        pytest.param(40, 12_000_000, grpc.Compression.NoCompression, 48 * MIB, id="large"),
        # Once 895 MiB.
        pytest.param(60, 15_000_000, grpc.Compression.Gzip, 48 * MIB, id="compressed"),
    ],
)
def test_what_no_pod_can_have_is_forwarded_and_not_kept(
    socket_folder: Path,
    slow: SlowRuntime,
    calls: int,
    size_bytes: int,
    compression: grpc.Compression,
    most_bytes: int,
) -> None:
    (socket_folder / "p").mkdir()
    options = ProxyOptions(f"{socket_folder}/slow.sock", config="[cgroups]\nenabled = false\n")
    with ProxyProcess(socket_folder / "p", options) as daemon:
        daemon.wait_for_state("STATUS=")
        before_bytes = rss_bytes(daemon.pid)
        channels = [grpc.insecure_channel(f"unix:{daemon.socket}", options=OPTIONS) for _ in range(4)]
        requests = []
        for number in range(calls):
            run: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channels[number % 4].unary_unary(METHOD)
            request = run_request(number, size_bytes)
            requests.append(run.future(request, timeout=120, compression=compression))
            # One after the other: of those that come at once some are refused.
            assert slow.asked.acquire(timeout=60)
        # Free memory is given back a second after the last of them; nothing of it waits for a collection.
        wait_until(lambda: rss_bytes(daemon.pid) - before_bytes < most_bytes, "little memory", 60)
        slow.answers.set()
        assert all(each.result(60) for each in requests)
        for channel in channels:
            channel.close()
        saved = daemon.state_folder / "records.db"
        assert saved.stat().st_size < MIB
