"""Requests, clients and runtimes that fail."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from tests.daemon.driving import pod
from tests.daemon.failures.scene import Row, Scene
from tests.daemon.scraping import scrape
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.peers.blocking import Http2End
from tests.peers.wire import DATA, END_HEADERS, HEADERS, WINDOW_UPDATE, Frame, wire

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CREATE = "/runtime.v1.RuntimeService/CreateContainer"
CHECK = "/grpc.health.v1.Health/Check"
SOON_SILENT = """
import runtimeproxy.frontends.cri_proxy.front_end as daemon
from dataclasses import replace
made = daemon.connection_options
daemon.connection_options = lambda *words: replace(made(*words), first_call_s=1.0)
"""
"""A client that makes no call has 1 s instead of 60 s."""
LITTLE_FOR_OWN = """
from functools import partial
import runtimeproxy.service.own_servers as servers
servers.Budget = partial(servers.Budget, 1 << 20)
"""
"""All calls of own services have 1 MiB together, which is enough for 64 without a request."""
LITTLE_FOR_RECORDS = """
from functools import partial
import runtimeproxy.core.core as core
core.PodStore = partial(core.PodStore, 100_000)
"""
"""Labels and annotations of all pods have 100,000 bytes together."""
LITTLE_ROOM = """
from functools import partial
daemon.RelayServer = partial(daemon.RelayServer, most_connections=8)
"""
"""There may be 8 connections."""


def unreadable_request(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/runtime.v1.RuntimeService/CreateContainer")
        with pytest.raises(grpc.RpcError):
            call(b"\xff\xff\xff", timeout=CALL_TIMEOUT_S)
    scene.wait_for(daemon, "call_problems_total", method="CreateContainer", cause="unreadable")
    return daemon


def annotations_are_many(scene: Scene) -> ProxyProcess:
    daemon = scene.start(statements=LITTLE_FOR_RECORDS)
    with CriClient(daemon.socket) as client:
        pod(client, "large", {"large": "x" * 30_000}).run()
    found = scene.wait_for(daemon, "records_trimmed")
    assert 0 < found.of("records_bytes") < 4_000
    scene.looked.add("records_bytes")
    return daemon


def request_is_too_large(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[proxy]\nmax_message_bytes = 65536\n")
    with grpc.insecure_channel(f"unix:{daemon.socket}") as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary("/runtime.v1.RuntimeService/CreateContainer")
        with pytest.raises(grpc.RpcError):
            call(bytes(100_000), timeout=CALL_TIMEOUT_S)
    scene.wait_for(daemon, "refusals_total", method="CreateContainer", code="RESOURCE_EXHAUSTED")
    return daemon


def garbage(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(daemon.socket))
        client.sendall(PREFACE + wire(Frame(4, 0, 0, b""), Frame(1, 4, 1, b"\xff" * 9)))
        assert client.recv(65_536)
        scene.wait_for(daemon, "connections_ended_total", cause="protocol_error")
    return daemon


def too_many_connections(scene: Scene) -> ProxyProcess:
    daemon = scene.start(statements=SOON_SILENT + LITTLE_ROOM)
    with ExitStack() as held:
        # At once: those that make no call end soon, and leave room.
        for _ in range(20):
            client = held.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(30)
            client.connect(str(daemon.socket))
        scene.wait_for(daemon, "connections_refused_total", cause="process")
        scene.wait_for(daemon, "connections_ended_total", cause="no_room")
    wait_until(lambda: scrape(daemon).of("connections") == 0, "the end of the connections")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(daemon.socket))
        scene.wait_for(daemon, "connections_ended_total", cause="no_call")
    return daemon


def own_services_are_flooded(scene: Scene) -> ProxyProcess:
    daemon = scene.start(statements=LITTLE_FOR_OWN)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(daemon.socket))
    client = scene.stack.enter_context(Http2End(sock))
    client.send(PREFACE, Frame(4, 0, 0, b""))
    for stream_id in range(1, 200, 2):
        client.send(Frame(HEADERS, END_HEADERS, stream_id, client.encoded(fields_of(CHECK))))
    scene.wait_for(daemon, "own_calls_ended_total", cause="made_room")
    return daemon


def runtime_is_away(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[proxy]\nupstream_wait_s = 0.2\n")
    scene.runtime.kill()
    with CriClient(daemon.socket) as client, pytest.raises(grpc.RpcError):
        client.runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S)
    found = scene.wait_for(daemon, "calls_without_upstream_total")
    assert found.of("upstream_failures_total", upstream="runtime") >= 1
    scene.wait_for_zero(daemon, "runtime_up")
    return daemon


def runtime_comes_back(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[proxy]\nupstream_wait_s = 120.0\n")
    scene.runtime.kill()
    with CriClient(daemon.socket) as client:
        waiting = client.runtime.Version.future(api_pb2.VersionRequest(), timeout=120)
        scene.wait_for_zero(daemon, "runtime_up")
        scene.runtime.start()
        waiting.result(30)
        found = scene.wait_for(daemon, "runtime_up")
    assert found.of("upstream_wait_seconds_sum", upstream="runtime") > 0
    scene.looked.add("upstream_wait_seconds")
    return daemon


def fields_of(path: str) -> tuple[tuple[str, str], ...]:
    """The header fields of a call."""
    return (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )


class Flooding(Http2End):
    """A client that begins requests and ends none, within the windows that it is given."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.window_bytes = 65_535

    def flood(self) -> None:
        """Begins requests of 60 KiB until one is refused."""
        self.send(PREFACE, Frame(4, 0, 0, b""))
        content = (61_440).to_bytes(5, "big") + bytes(60_000)
        for stream_id in range(1, 1400, 2):
            self.send(Frame(HEADERS, END_HEADERS, stream_id, self.encoded(fields_of(CREATE))))
            for start in range(0, len(content), 16_384):
                piece = content[start : start + 16_384]
                self.until(lambda piece=piece: self.window_bytes >= len(piece))  # type: ignore[misc]
                self.window_bytes -= len(piece)
                self.send(Frame(DATA, 0, stream_id, piece))
            if any(each.is_over for each in self.streams.values()):
                return

    def _took(self, each: Frame) -> None:
        super()._took(each)
        if each.type_ == WINDOW_UPDATE and each.stream_id == 0:
            self.window_bytes += int.from_bytes(each.payload, "big")


def requests_do_not_end(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(daemon.socket))
    flooding = scene.stack.enter_context(Flooding(sock))
    flooding.flood()
    scene.wait_for(daemon, "refusals_total", method="CreateContainer", code="RESOURCE_EXHAUSTED")
    return daemon


ROWS: Final = {
    "a request cannot be parsed": Row(unreadable_request, lambda s: s.calls.unparsable > 0),
    "labels and annotations of all pods together": Row(
        annotations_are_many, lambda s: s.records.trimmed == 1
    ),
    "a request of an intercepted call is larger": Row(request_is_too_large, lambda s: s.calls.too_large > 0),
    "one connection has more than": Row(requests_do_not_end, lambda s: s.calls.no_memory > 0),
    "a client sends garbage": Row(garbage, lambda s: s.clients.protocol_errors > 0),
    "clients begin calls of the daemon's own services": Row(
        own_services_are_flooded,
        lambda s: s.clients.own_calls_without_room > 0 and "own services" in str(s.problems),
    ),
    "a client opens connections": Row(
        too_many_connections, lambda s: s.clients.refused > 0 and s.clients.silent > 0
    ),
    "it is away": Row(runtime_is_away, lambda s: not s.runtime.answers and s.runtime.refused_calls > 0),
    "it comes back": Row(runtime_comes_back, lambda s: s.runtime.answers),
}
