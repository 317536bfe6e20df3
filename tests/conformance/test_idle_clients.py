"""Items 76 to 78: clients that only send PINGs, stay idle, or vanish."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from pathlib import Path

import pytest

from runtimeproxy.http2.frames import PREFACE, ErrorCode
from runtimeproxy.testing import FakeRuntime
from tests.conformance.messages import EXEC, RUNTIME, VERSION
from tests.conformance.relay_here import RelayHere
from tests.conformance.scripts import SCRIPTS
from tests.lab.deadline import wait_until
from tests.peers.blocking import Http2Client
from tests.peers.bytes_client import WAIT_S
from tests.peers.scripted_server import ScriptedServer
from tests.peers.wire import ping

DAY_S = 86_400.0


@pytest.mark.conformance(76)
def test_pings_are_the_runtimes(folder: Path) -> None:
    """Every PING reaches the runtime and is answered by it; a client that sends too many gets a GOAWAY of the
    runtime, after as many of them as on a direct connection.
    """
    with ScriptedServer(folder / "runtime.sock", SCRIPTS) as server:
        server.ping_limit = 50
        with RelayHere(folder / "relay.sock", server.path) as relay:
            counts = [pings_until_goaway(path) for path in (server.path, relay.socket)]

    assert counts == [(50, ErrorCode.ENHANCE_YOUR_CALM)] * 2
    assert server.connections[1].pings == server.connections[0].pings


def pings_until_goaway(path: Path) -> tuple[int, int]:
    """How many PINGs the server answers before it has had enough, and the code that it gives."""
    with Http2Client(path) as client:
        client.call(VERSION, b"", ("script", "answer"))
        # The server says why, and closes without a look at what still comes.
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                client.send(ping(number.to_bytes(8, "big")))
                client.until(partial(lambda count: len(client.ping_acks) == count, number + 1))
        client.until_closed()
        return len(client.ping_acks), client.goaways[0][1]


@pytest.mark.conformance(77)
def test_connection_after_an_idle_day(folder: Path, runtime: FakeRuntime) -> None:
    """The day is not waited for: the clock of the relay's loop is put forward, and every timer that is
    due by then fires. The client is a raw one, for gRPC's own closes idle connections by itself.
    """
    with (
        RelayHere(folder / "relay.sock", runtime.socket_path) as relay,
        Http2Client(relay.socket) as client,
    ):
        assert client.call(VERSION).trailers["grpc-status"] == "0"
        relay.travel(DAY_S)
        assert client.call(VERSION).trailers["grpc-status"] == "0"
        assert client.call(f"{RUNTIME}/StopContainer").trailers["grpc-status"] == "0"


@pytest.mark.conformance(78)
def test_half_open_client(folder: Path, runtime: FakeRuntime) -> None:
    """A client that has closed its sending side, or its whole socket, or its process, is cleaned up with
    its calls; one that never makes a call is after a minute, for which the clock is put forward.
    """
    runtime.on("ExecSync", hang=True)
    with RelayHere(folder / "relay.sock", runtime.socket_path) as relay:
        with Http2Client(relay.socket) as client:
            client.message(client.open(EXEC))
            call = runtime.recorded.wait("ExecSync")[0]
            client.sock.shutdown(socket.SHUT_WR)
            assert call.ended.wait(WAIT_S)
            wait_until(lambda: relay.connection_count == 0, "the connection is gone")

        with (
            socket.socket(socket.AF_UNIX) as silent,
            socket.socket(socket.AF_UNIX) as slow,
            Http2Client(relay.socket) as calling,
            Http2Client(relay.socket) as polite,
        ):
            for sock, begin in ((silent, b""), (slow, PREFACE[:5])):
                sock.connect(str(relay.socket))
                sock.sendall(begin)
            polite.until(lambda: polite.settings_acks)
            calling.call(VERSION)
            wait_until(lambda: relay.connection_count == 4, "all are connected")
            # Not to the last second: real ones pass on a busy machine, too.
            relay.travel(45)
            assert relay.connection_count == 4
            relay.travel(16)
            # An HTTP/2 client gets a GOAWAY: no call was processed.
            polite.until_closed()
            assert polite.goaways[-1] == (0, ErrorCode.NO_ERROR)
            relay.travel(2)
            wait_until(lambda: relay.connection_count == 1, "only the one that has called is left")
            assert calling.call(VERSION).trailers["grpc-status"] == "0"
