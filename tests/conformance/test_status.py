"""Items 25 to 33: how a call ends, and whose word it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from runtimeproxy.errors import MESSAGE_PREFIX
from runtimeproxy.http2.frames import ErrorCode
from runtimeproxy.testing import CallError, FakeRuntime
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.conftest import CONFIG, ProxyStarter
from tests.conformance.messages import CREATE, EVENTS, RUNTIME, STATUS, asking_create
from tests.conformance.scripts import ENDS, TRAILERS_ONLY
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2Client
from tests.peers.bytes_client import Answer, BytesClient, answer_of
from tests.peers.scripted_server import ScriptedServer
from tests.peers.wire import END_HEADERS, END_STREAM, HEADERS

CODES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
PATHS = [
    pytest.param(STATUS, id="passing"),
    pytest.param(f"{RUNTIME}/StopContainer", id="held"),
    pytest.param(EVENTS, id="stream"),
]
TEXTS = {
    "plain": "container not found",
    "empty": "",
    "UTF-8": "Vorgang fehlgeschlagen: größer, 容器 🚀",
    "percent": "100% %41 %zz",
    "control": "line\nnext\ttab\r\x01\x7f",
    "4 KiB": "0123456789abcdef" * 256,
}
TRAILERS = (
    ("ascii", "value with spaces"),
    ("repeated", "1"),
    ("repeated", "2"),
    ("bytes-bin", b"\x00\xff\xfe,;"),
    ("bytes-bin", b"again"),
)


def ends(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str, error: CallError
) -> Answer:
    """Makes a call that fails so; the answer is the same direct and through the proxy."""
    runtime.on(path.rpartition("/")[2], error=error)
    answer = through.call(path)
    assert answer == direct.call(path)
    return answer


@pytest.mark.conformance(25)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("code", CODES)
def test_code(runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str, code: str) -> None:
    assert ends(runtime, direct, through, path, CallError(code, "text")).code == code


@pytest.mark.conformance(26)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_message(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str, text: str
) -> None:
    assert ends(runtime, direct, through, path, CallError("UNKNOWN", text)).text == text


@pytest.mark.conformance(27, 28)
@pytest.mark.parametrize("path", PATHS)
def test_details_and_trailers(
    runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str
) -> None:
    details = b"\x08\x05\x12\x04text\x1a\x03\x0a\x01\xff"
    error = CallError("NOT_FOUND", "text", details, TRAILERS)

    trailing = ends(runtime, direct, through, path, error).trailing

    assert ("grpc-status-details-bin", details) in trailing
    assert [entry for entry in trailing if entry in TRAILERS] == list(TRAILERS)


@pytest.mark.conformance(31)
@pytest.mark.parametrize("path", PATHS[:2])
def test_ok_with_trailers(runtime: FakeRuntime, direct: BytesClient, through: BytesClient, path: str) -> None:
    runtime.on(path.rpartition("/")[2], trailing_metadata=TRAILERS)

    answer = through.call(path)

    assert answer == direct.call(path)
    assert (answer.code, answer.trailing) == ("OK", TRAILERS)


PASSING_OR_HELD = pytest.mark.parametrize(
    "path", [STATUS, f"{RUNTIME}/StopContainer"], ids=["passing", "held"]
)


@pytest.mark.conformance(29)
@PASSING_OR_HELD
def test_trailers_only(scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str) -> None:
    """One HEADERS frame with END_STREAM stays that, down to the bytes of its block."""
    seen = []
    for socket in (scripted.path, scripted_proxy.socket):
        with Http2Client(socket) as client:
            seen.append(client.call(path, b"", ("script", "trailers only")))

    assert seen[1].wire == seen[0].wire
    assert [(kind, flags) for kind, flags, _ in seen[1].wire] == [(HEADERS, END_HEADERS | END_STREAM)]
    assert seen[1].headers == [TRAILERS_ONLY]


@pytest.mark.conformance(30, 32)
@PASSING_OR_HELD
@pytest.mark.parametrize("script", [*ENDS, *(f"early {name}" for name in ENDS)])
def test_odd_end(scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str, script: str) -> None:
    """Codes that gRPC does not know, HTTP statuses, RST_STREAM, GOAWAY, a lost connection, each before or
    after the server has the message: a gRPC client makes the same of it.
    """
    answers = []
    for socket in (scripted.path, scripted_proxy.socket):
        with BytesClient(socket, [("grpc.enable_retries", 0)]) as client:
            answers.append(client.call(path, b"request", metadata=(("script", script),)))

    assert comparable(answers[1]) == comparable(answers[0])


def comparable(answer: Answer) -> Answer:
    """The text of a connection's end is the client library's own, and depends on where it read just then."""
    is_own = answer.code == "UNAVAILABLE"
    return replace(answer, text="") if is_own else answer


@pytest.mark.conformance(32)
@PASSING_OR_HELD
@pytest.mark.parametrize("code", [1, 2, 7, 8, 11, 14])
def test_reset_keeps_its_code(
    scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str, code: int
) -> None:
    with Http2Client(scripted_proxy.socket) as client:
        assert client.call(path, b"", ("script", f"reset {code}")).reset_code == code
        # The connection goes on.
        assert client.call(path, b"", ("script", "answer")).trailers == {"grpc-status": "0"}


@pytest.mark.conformance(32)
@PASSING_OR_HELD
def test_goaway_keeps_its_code_and_stream(
    scripted: ScriptedServer, scripted_proxy: ProxyProcess, path: str
) -> None:
    with Http2Client(scripted_proxy.socket) as client:
        client.call(path, b"", ("script", "answer"))
        client.message(client.open(path, ("script", "goaway and close")))
        client.until_closed()

    assert client.goaways == [(3, ErrorCode.ENHANCE_YOUR_CALM)]


@pytest.mark.conformance(33)
def test_unreachable_runtime(folder: Path, start_proxy: ProxyStarter) -> None:
    """The proxy speaks for itself with a code that is not NOT_FOUND, which the kubelet takes for success.

    The list wants a mark in the metadata too; the design has the fixed prefix of the message instead.
    """
    daemon = start_proxy(folder / "nobody.sock", CONFIG + "[proxy]\nupstream_wait_s = 0.0\n")
    with BytesClient(daemon.socket) as client:
        for path in (STATUS, f"{RUNTIME}/RemovePodSandbox", EVENTS):
            answer = client.call(path)
            assert answer.code == "UNAVAILABLE"
            assert answer.text.startswith(MESSAGE_PREFIX)


@pytest.mark.conformance(33)
@pytest.mark.parametrize(
    ("wanted", "code"),
    [("NOT_FOUND", "FAILED_PRECONDITION"), ("PERMISSION_DENIED", "PERMISSION_DENIED")],
)
def test_refusal_of_a_policy(
    runtime: FakeRuntime, through: BytesClient, desk: PolicyDesk, wanted: str, code: str
) -> None:
    call = through.start(CREATE, asking_create(desk.annotations).SerializeToString())
    desk.question().answer(refuse="not on this node", code=wanted)

    answer = answer_of(call)
    assert (answer.code, answer.messages) == (code, ())
    assert answer.text.startswith(MESSAGE_PREFIX)
    assert "asking" in answer.text
    assert "not on this node" in answer.text
    assert not runtime.recorded.of("CreateContainer")


@pytest.mark.conformance(33)
def test_error_of_the_runtime_is_not_the_proxys(runtime: FakeRuntime, through: BytesClient) -> None:
    runtime.on("StopContainer", error=CallError("UNAVAILABLE", "shim is gone"))

    assert through.call(f"{RUNTIME}/StopContainer").text == "shim is gone"
