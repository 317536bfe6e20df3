"""A runtime that reads no message and a client that sends what is hard to read, each a process of its own.

`python -m tests.daemon.hostile runtime SOCKET` serves until standard input ends. `... client SOCKET KIND`
sends calls, and writes a line for each round, until standard input ends.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.builders import container_config, pod_sandbox_config

SERVICE: Final = "/runtime.v1.RuntimeService/"
CALL_TIMEOUT_S: Final = 60.0
KIB: Final = 1024

Round = Callable[["Client"], None]


class Runtime(grpc.GenericRpcHandler):
    """Answers with ids of its own, and otherwise with empty messages."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of any method, which does not look at the message."""
        method = handler_call_details.method.rpartition("/")[2]
        makes_id = method in ("RunPodSandbox", "CreateContainer")

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            return b"\x0a\x40" + secrets.token_hex(32).encode() if makes_id else b""

        return grpc.unary_unary_rpc_method_handler(answer)


class Client:
    """Sends calls as bytes, without waiting for what they do."""

    def __init__(self, socket: str) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.default_authority", "localhost")]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)

    def call(self, method: str, request: bytes) -> bytes:
        """The answer."""
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(SERVICE + method)
        answer: bytes = ask(request, timeout=CALL_TIMEOUT_S)
        return answer


def many_annotations(size_bytes: int) -> dict[str, str]:
    """As many as fit, each of 15 bytes on the wire."""
    return {f"k{number:07}": "v" for number in range(size_bytes // 15)}


def lives(size_bytes: int, container_bytes: int) -> Iterator[Round]:
    """Rounds that each run a pod with that many bytes of annotations from its start to its end."""
    pod = pod_sandbox_config(
        labels={"koordinator.sh/qosClass": "BE"},
        annotations={**many_annotations(size_bytes), "node.koordinator.sh/cpu-normalization-ratio": "1.2"},
    )
    container = container_config(annotations=many_annotations(container_bytes))
    run = api_pb2.RunPodSandboxRequest(config=pod).SerializeToString()
    create = api_pb2.CreateContainerRequest(config=container, sandbox_config=pod).SerializeToString()

    def life(client: Client) -> None:
        pod_id = client.call("RunPodSandbox", run)[2:]
        # An id in front of the rest: the order of fields means nothing.
        container_id = client.call("CreateContainer", b"\x0a\x40" + pod_id + create)[2:]
        of_container, of_pod = b"\x0a\x40" + container_id, b"\x0a\x40" + pod_id
        client.call("StartContainer", of_container)
        update = api_pb2.UpdateContainerResourcesRequest(annotations={"new": "x"})
        update.linux.cpu_shares = 5
        client.call("UpdateContainerResources", of_container + update.SerializeToString())
        client.call("UpdatePodSandboxResources", of_pod)
        client.call("StopContainer", of_container)
        client.call("RemoveContainer", of_container)
        client.call("StopPodSandbox", of_pod)
        client.call("RemovePodSandbox", of_pod)

    return itertools.repeat(life)


KINDS: Final[dict[str, Callable[[], Iterator[Round]]]] = {
    "256 KiB of annotations": lambda: lives(256 * KIB, 256 * KIB),
    "4 MiB of annotations in two parts": lambda: lives(2000 * KIB, 2000 * KIB),
    "14 MiB of annotations": lambda: lives(14_000 * KIB, 0),
}


def _runtime(socket: str) -> None:
    server = grpc.server(
        ThreadPoolExecutor(8), handlers=[Runtime()], options=[("grpc.max_receive_message_length", -1)]
    )
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    print("serving", flush=True)
    sys.stdin.read()
    server.stop(None)


def _client(socket: str, kind: str) -> None:
    is_over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait, daemon=True).start()
    client = Client(socket)
    for each in KINDS[kind]():
        if is_over.is_set():
            return
        each(client)
        print(kind, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "runtime":
        _runtime(sys.argv[2])
    else:
        _client(*sys.argv[2:4])
