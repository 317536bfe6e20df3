"""SIGTERM: the socket is free at once, held calls finish, the rest is cut, and it is soon over."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import pod, release
from tests.daemon.installed import WAIT_FOR
from tests.daemon.site import IMPORT_FIFO, site_folder
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyProcess

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
LONGEST_STOP_S = 4.0
"""The drain and the start that follows together."""


def begin_held_call(client: CriClient, fifo: Path) -> grpc.Future[api_pb2.StartContainerResponse]:
    """A StartContainer that waits in a policy; the FIFO's other end is open for writing."""
    waiting = pod(client, annotations={WAIT_FOR: str(fifo)}).run().create()
    return client.runtime.StartContainer.future(waiting.start_request, timeout=30)


@BOTH_LOOPS
def test_held_calls_finish_and_a_successor_serves_meanwhile(
    daemons: Daemons, daemon: ProxyProcess, client: CriClient, fifo: Path
) -> None:
    held = begin_held_call(client, fifo)
    with fifo.open("wb"):
        daemon.signal(signal.SIGTERM)
        daemon.wait_for_state("STOPPING=1")
        successor = daemons.successor(daemon)
        successor.start()
        with CriClient(successor.socket) as other:
            other.wait_until_serving(10)
        assert daemon.alive()
        assert not held.done()
    assert held.result(10) is not None
    assert daemon.wait() == 0
    assert successor.socket.is_socket()
    with CriClient(successor.socket) as other:
        other.wait_until_serving(10)


@BOTH_LOOPS
def test_without_calls_it_ends_at_once_and_leaves_no_socket(daemon: ProxyProcess, client: CriClient) -> None:
    client.wait_until_serving(10)
    began_s = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began_s < 2.0
    assert not daemon.socket.exists()


def test_the_socket_of_somebody_else_is_not_unlinked(daemon: ProxyProcess) -> None:
    daemon.socket.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(daemon.socket))
        assert daemon.terminate() == 0
        assert daemon.socket.is_socket()


def test_held_calls_that_do_not_end_are_cut(daemon: ProxyProcess, client: CriClient, fifo: Path) -> None:
    held = begin_held_call(client, fifo)
    with (
        fifo.open("wb"),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf,
    ):
        deaf.connect(str(daemon.socket))
        began_s = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began_s < LONGEST_STOP_S
    error = held.exception(10)
    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_streams_are_cut_as_a_restart_of_the_runtime_would(daemon: ProxyProcess, client: CriClient) -> None:
    events = client.runtime.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=30)
    pod(client).run().create()
    next(events)
    assert daemon.terminate() == 0
    with pytest.raises(grpc.RpcError) as caught:
        for _ in events:
            pass
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_long_passing_calls_are_cut(daemon: ProxyProcess, client: CriClient, runtime: FakeRuntime) -> None:
    runtime.on("ListImages", hang=True)
    passing = client.images.ListImages.future(api_pb2.ListImagesRequest(), timeout=30)
    runtime.recorded.wait("ListImages")
    began_s = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began_s < LONGEST_STOP_S
    error = passing.exception(10)
    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


@BOTH_LOOPS
def test_it_ends_while_its_policies_are_loading(daemons: Daemons, fifo: Path, socket_folder: Path) -> None:
    daemons.environment.update(site_folder(socket_folder / "slow", slow="slow_to_import:Slow"))
    daemons.environment[IMPORT_FIFO] = str(fifo)
    daemon = daemons.prepare()
    daemon.spawn()
    with fifo.open("wb"):
        began_s = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began_s < LONGEST_STOP_S


def test_a_second_sigterm_changes_nothing(daemon: ProxyProcess, client: CriClient, fifo: Path) -> None:
    held = begin_held_call(client, fifo)
    with fifo.open("wb"):
        daemon.signal(signal.SIGTERM)
        daemon.wait_for_state("STOPPING=1")
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGHUP)
    assert held.result(10) is not None
    assert daemon.wait() == 0


def test_release_is_what_ends_the_waiting(client: CriClient, fifo: Path) -> None:
    held = begin_held_call(client, fifo)
    release(fifo)
    assert held.result(10) is not None
