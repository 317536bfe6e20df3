"""Items 12 to 16: messages of any size pass; the proxy bounds only what it holds back."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.testing import FakeRuntime
from tests.conformance.grpc_server import grpc_server
from tests.conformance.messages import CREATE, LIST, UNKNOWN
from tests.conformance.relay_here import RelayHere
from tests.conformance.services import ECHO, BytesServices
from tests.lab.proxy_process import ProxyProcess
from tests.peers.bytes_client import BytesClient

MIB = 1024 * 1024
LARGE_FIELD = b"\xfa\x7c"
"""Key of an unknown field, see `UNKNOWN`."""


def unknown_field(size: int) -> bytes:
    """A message of exactly this size that holds one unknown field."""
    assert size > 2**21
    length = size - len(LARGE_FIELD) - 4
    varint = bytes((length >> shift & 0x7F | (0x80 if shift < 21 else 0)) for shift in (0, 7, 14, 21))
    return LARGE_FIELD + varint + b"x" * length


@pytest.mark.conformance(12, 13, 14)
@pytest.mark.parametrize("size", [16 * MIB - 1, 17 * MIB, 80 * MIB], ids=["16M-1", "17M", "80M"])
def test_large_response(runtime: FakeRuntime, through: BytesClient, size: int) -> None:
    """The sizes are those of the list, nothing is shrunk; 80 MiB is CRI-O's bound."""
    response = b"0123456789abcdef" * (size // 16) + b"!" * (size % 16)
    runtime.on("ListContainerStats", response=response)

    assert through.call(LIST).message == response


@pytest.mark.conformance(15)
@pytest.mark.parametrize("path", [LIST, CREATE], ids=["passing", "held"])
def test_large_request(runtime: FakeRuntime, through: BytesClient, path: str) -> None:
    """16 MiB are exactly the bound of an intercepted call's message."""
    request = unknown_field(16 * MIB)
    method = path.rpartition("/")[2]
    runtime.on(method, response=b"")

    assert through.call(path, request).code == "OK"
    assert runtime.recorded.wait(method)[0].raw == request


@pytest.mark.conformance(15)
def test_passing_request_has_no_bound(runtime: FakeRuntime, through: BytesClient) -> None:
    request = unknown_field(40 * MIB)

    assert through.call(ECHO, request).message == request


@pytest.mark.conformance(16)
def test_response_over_the_clients_bound(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    """The kubelet receives at most 16 MiB; it decides by itself, and its connection goes on."""
    runtime.on("ListContainerStats", response=b"x" * (17 * MIB))
    answers = []
    for socket in (runtime.socket_path, proxy.socket):
        with BytesClient(socket, [("grpc.max_receive_message_length", 16 * MIB)]) as client:
            answers.append([client.call(LIST), client.call(ECHO, b"still there")])

    assert answers[1] == answers[0]
    assert [answer.code for answer in answers[0]] == ["RESOURCE_EXHAUSTED", "OK"]


@pytest.mark.conformance(16)
def test_request_over_the_servers_bound(folder: Path) -> None:
    """A server that ends the call in the middle of its message: the same end through the proxy."""
    bound = [("grpc.max_receive_message_length", MIB)]
    answers = []
    with (
        grpc_server(folder / "bounded.sock", BytesServices(), bound) as bounded,
        RelayHere(folder / "relay.sock", bounded) as relay,
    ):
        for socket in (bounded, relay.socket):
            with BytesClient(socket) as client:
                answers.append([client.call(ECHO, b"x" * size) for size in (MIB, MIB + 1, 8 * MIB, 100)])

    assert answers[1] == answers[0]
    assert [answer.code for answer in answers[0]] == ["OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "OK"]


@pytest.mark.conformance(16, 33)
def test_held_request_over_the_bound(runtime: FakeRuntime, through: BytesClient) -> None:
    """The code is that of containerd and CRI-O; the text says that it is the proxy that refuses."""
    runtime.on("CreateContainer", response=b"")

    answer = through.call(CREATE, unknown_field(16 * MIB + 1))

    assert answer.code == "RESOURCE_EXHAUSTED"
    assert answer.text.startswith("koord-runtime-proxy: ")
    assert not runtime.recorded.of("CreateContainer")
    assert through.call(CREATE, UNKNOWN).code == "OK"
