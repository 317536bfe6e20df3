"""The connection to a hook server, and which failures are the server's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest

from cri_api.koordinator.v1alpha1.api_pb2 import ContainerResourceHookRequest, ContainerResourceHookResponse
from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote.client import (
    AnsweredError,
    HookClient,
    HookServerError,
    LateError,
    UnreachableError,
    failure_of,
)
from runtimeproxy.hooks.remote.exchanges import EXCHANGES, NO_SUCH_METHOD
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server import HookServing

PATH = EXCHANGES[Hook.PRE_CREATE_CONTAINER].method

OWN = [code for code in StatusCode if code not in (0, 1, 4, 14)]
CASES: dict[str, tuple[StatusCode, str, type[HookServerError]]] = {
    **{code.name: (code, "text", AnsweredError) for code in OWN},
    "no connection": (StatusCode.UNAVAILABLE, "failed to connect", UnreachableError),
    "a reset": (StatusCode.CANCELLED, "RST_STREAM", UnreachableError),
    "a stream that vanished": (StatusCode.UNKNOWN, "Stream removed", UnreachableError),
    "a stream that was reset": (
        StatusCode.INTERNAL,
        "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))",
        UnreachableError,
    ),
    "an answer without a status": (StatusCode.UNKNOWN, "No status received", UnreachableError),
    "no answer": (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", LateError),
}


@pytest.mark.parametrize(("code", "text", "kind"), CASES.values(), ids=CASES)
def test_whose_failure_it_is(code: StatusCode, text: str, kind: type[HookServerError]) -> None:
    error = failure_of(code, text, 2.0)
    assert type(error) is kind
    assert error.code is code


@pytest.fixture
def odd_socket() -> Iterator[Path]:
    """A server on a path that would mean something else in a URI."""
    with tempfile.TemporaryDirectory(prefix="hooks-", dir="/tmp") as folder:
        path = Path(folder) / "a b%2Fc?d#\u00e4.sock"
        server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers(HookServing(Behaviour()).handlers())
        server.add_insecure_port(f"unix:{quote(str(path))}")
        server.start()
        yield path
        server.stop(None).wait()


def test_any_path_of_a_socket(odd_socket: Path) -> None:
    client = HookClient(str(odd_socket))
    assert client.call(PATH, b"", 10.0) == b""
    with pytest.raises(AnsweredError) as caught:
        client.call(NO_SUCH_METHOD, b"", 10.0)
    assert caught.value.code is StatusCode.UNIMPLEMENTED
    client.close()


def test_messages_of_any_size(odd_socket: Path) -> None:
    request = ContainerResourceHookRequest(container_envs={"A": "x" * (8 << 20)})
    client = HookClient(str(odd_socket))
    answer = ContainerResourceHookResponse.FromString(client.call(PATH, request.SerializeToString(), 30.0))
    assert answer.container_envs == request.container_envs
    client.close()
