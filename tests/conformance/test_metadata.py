"""Items 34 to 41: request and response metadata, and the headers that belong to a hop."""

from __future__ import annotations

import pytest

from runtimeproxy.testing import FakeRuntime
from tests.conformance.messages import RUNTIME, STATUS
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Fields, Http2Client, Stream, request_fields
from tests.peers.bytes_client import BytesClient, Metadata
from tests.peers.scripted_server import RESPONSE, ScriptedServer
from tests.peers.wire import CONTINUATION, END_HEADERS, END_STREAM, HEADERS, PADDED, PRIORITY_FLAG, Frame

PATHS = pytest.mark.parametrize("path", [STATUS, f"{RUNTIME}/StopContainer"], ids=["passing", "held"])
TRACE: Metadata = (
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
    ("baggage", "userId=alice,serverNode=DF%2028;meta=1"),
)
KINDS: dict[str, Metadata] = {
    "ascii": (("x-request-id", "a b ~!"), ("empty", "")),
    "binary": (("token-bin", bytes(range(256))), ("empty-bin", b"")),
    "repeated": (("k", "1"), ("other", "x"), ("k", "2"), ("k-bin", b"\x00"), ("k-bin", b"\x01")),
    "trace": TRACE,
    "many": tuple((f"key-{number}", "v" * number) for number in range(100)),
}
HOP: Fields = (
    ("grpc-timeout", "119999999u"),
    ("grpc-encoding", "identity"),
    ("grpc-accept-encoding", "gzip"),
)


@pytest.mark.conformance(34, 35, 36, 37)
@PATHS
@pytest.mark.parametrize("metadata", KINDS.values(), ids=KINDS.keys())
def test_request_metadata(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str, metadata: Metadata
) -> None:
    """A gRPC server sees the same entries in the same order."""
    for client in (direct, through):
        assert client.call(path, metadata=metadata).code == "OK"

    [without, with_proxy] = runtime.recorded.of(path.rpartition("/")[2])
    assert with_proxy.metadata == without.metadata
    assert set(metadata) <= set(with_proxy.metadata)


@pytest.mark.conformance(34, 36, 38, 40, 41)
@PATHS
def test_request_headers_are_the_same_bytes(
    scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str
) -> None:
    """Nothing is added, dropped, doubled or put in another order: the header blocks are equal, also those
    that use what earlier ones have put into the table. So the user agent is the client's own (item 40),
    and `grpc-timeout` is what it sent (item 42).
    """
    seen: list[list[Stream]] = []
    for socket in (scripted.path, scripted_proxy.socket):
        with Http2Client(socket) as client:
            for number in range(3):
                client.call(path, b"", ("script", "answer"), ("number", str(number % 2)), *HOP)
            seen.append([scripted.request() for _ in range(3)])

    direct, through = seen
    assert [each.blocks for each in through] == [each.blocks for each in direct]
    fields = request_fields(path, ("script", "answer"), ("number", "0"), *HOP)
    assert through[0].headers == [fields]
    assert [name for name, _ in through[0].headers[0]].count("te") == 1


@pytest.mark.conformance(38)
@PATHS
def test_odd_frames_of_headers(scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str) -> None:
    """Padding, priority and continuation frames, as other clients than gRPC's send them."""
    seen = []
    for socket in (scripted.path, scripted_proxy.socket):
        with Http2Client(socket) as client:
            block = client.encoded(request_fields(path, ("script", "answer")))
            padded = b"\x03" + b"\x00\x00\x00\x00\x10" + block[:5] + bytes(3)
            client.send(
                Frame(HEADERS, PADDED | PRIORITY_FLAG, 1, padded),
                Frame(CONTINUATION, 0, 1, block[5:6]),
                Frame(CONTINUATION, END_HEADERS, 1, block[6:]),
            )
            client.message(1, b"request")
            client.answer(1)
            seen.append(scripted.request())

    assert seen[1].wire == seen[0].wire
    assert seen[1].headers == [request_fields(path, ("script", "answer"))]


@pytest.mark.conformance(40)
def test_user_agent_of_the_client(runtime: FakeRuntime, proxy: ProxyProcess) -> None:
    with BytesClient(proxy.socket, [("grpc.primary_user_agent", "kubelet/v1.36")]) as client:
        client.call(STATUS)

    agent = dict(runtime.recorded.wait("Status")[0].metadata)["user-agent"]
    assert str(agent).startswith("kubelet/v1.36 grpc-python/")


@pytest.mark.conformance(41)
@pytest.mark.parametrize("authority", ["localhost", "node%2Fcri.sock", "example:1"])
def test_authority(scripted: ScriptedServer, scripted_proxy: ProxyProcess, authority: str) -> None:
    """The list wants `localhost` sent upstream. The design holds: the client's bytes are handed on, so it
    is `localhost` when the kubelet says so, and whatever another client says to the runtime directly.
    """
    with BytesClient(scripted_proxy.socket, [("grpc.default_authority", authority)]) as client:
        client.call(STATUS, metadata=(("script", "trailers only"),))

    assert dict(scripted.request().headers[0])[":authority"] == authority


@pytest.mark.conformance(39)
@PATHS
def test_response_headers_come_before_the_message(
    runtime: FakeRuntime, through: BytesClient, path: str
) -> None:
    """The runtime sends headers and then nothing until it is released."""
    method = path.rpartition("/")[2]
    headers: Metadata = (("early", "yes"), ("early-bin", b"\x00"))
    runtime.on(method, initial_metadata=headers, hang=True)

    call = through.start(path)

    assert tuple(call.initial_metadata()) == headers
    assert not call.done()
    runtime.release(method)
    assert len(list(call)) == 1


@pytest.mark.conformance(39)
@PATHS
def test_response_headers_before_the_request_message(
    scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str
) -> None:
    """A server may send them as soon as it knows the call; the message still follows."""
    with Http2Client(scripted_proxy.socket) as client:
        stream_id = client.open(path, ("script", "early headers"))
        client.until(lambda: client.stream(stream_id).headers)
        client.message(stream_id, b"request")

        assert client.stream(stream_id).headers == [(*RESPONSE, ("early", "yes"))]
        assert bytes(scripted.request().data).endswith(b"request")
        assert not client.stream(stream_id).is_over


@pytest.mark.conformance(34, 38)
def test_response_headers_are_the_same_bytes(scripted: ScriptedServer, scripted_proxy: ProxyProcess) -> None:
    """Every frame of the answer, padded ones too, is as the runtime sent it."""
    seen = []
    for socket in (scripted.path, scripted_proxy.socket):
        with Http2Client(socket) as client:
            seen.append(
                [client.call(STATUS, b"", ("script", script)).wire for script in ("padded", "answer")]
            )

    assert seen[1] == seen[0]
    assert sum(flags & PADDED and 1 for _, flags, _ in seen[1][0]) == len(seen[1][0]) - 2
    assert seen[1][0][-1][1] == END_HEADERS | END_STREAM
