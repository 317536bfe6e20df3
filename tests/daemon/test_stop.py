"""SIGTERM: the socket is free at once, intercepted calls finish, the rest is cut, and it is soon over."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import flowing_events, pod, release
from tests.daemon.installed import WAIT_FOR
from tests.daemon.kubelet import kubelet
from tests.daemon.site import IMPORT_FIFO, site_folder
from tests.daemon.upgrading import Family
from tests.lab.cri_client import CriClient
from tests.lab.deadline import quickest_s, time_s
from tests.lab.proxy_process import ProxyProcess

BOTH_LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
AT_ONCE_S = 2.0
DRAIN_S = 1.0
LONGEST_STOP_S = DRAIN_S + 3.0
"""What the calls have, a second to write what is left, and the end of the process."""


@pytest.fixture
def patient(daemons: Daemons) -> ProxyProcess:
    """A daemon whose calls have longer than any test waits, when it ends."""
    return daemons.start("[proxy]\ndrain_s = 120.0\n")


@pytest.fixture
def patients_client(patient: ProxyProcess) -> Iterator[CriClient]:
    with CriClient(patient.socket) as opened:
        yield opened


def stop_s(daemon: ProxyProcess) -> float:
    """How long its end takes."""
    took_s = time_s(daemon.terminate)
    assert daemon.wait() == 0
    return took_s


def brief(daemons: Daemons) -> ProxyProcess:
    """A daemon whose calls have a second, when it ends."""
    return daemons.start(f"[proxy]\ndrain_s = {DRAIN_S}\n")


def begin_held_call(client: CriClient, fifo: Path) -> grpc.Future[api_pb2.CreateContainerResponse]:
    """A CreateContainer that waits in a policy; the FIFO's other end is open for writing."""
    waiting = pod(client, annotations={WAIT_FOR: str(fifo)}).run()
    return client.runtime.CreateContainer.future(waiting.create_request, timeout=240)


@BOTH_LOOPS
def test_held_calls_finish_and_a_successor_serves_meanwhile(
    daemons: Daemons, patient: ProxyProcess, patients_client: CriClient, fifo: Path
) -> None:
    held = begin_held_call(patients_client, fifo)
    with fifo.open("wb"):
        patient.signal(signal.SIGTERM)
        patient.wait_for_state("STOPPING=1")
        successor = daemons.successor(patient)
        successor.start()
        with CriClient(successor.socket) as other:
            other.wait_until_serving(30)
        assert patient.alive()
        assert not held.done()
    assert held.result(30) is not None
    assert patient.wait() == 0
    assert successor.socket.is_socket()
    with CriClient(successor.socket) as other:
        other.wait_until_serving(30)


@BOTH_LOOPS
def test_without_calls_it_ends_at_once_and_leaves_no_socket(daemons: Daemons) -> None:
    def measured_s() -> float:
        daemon = daemons.start()
        with CriClient(daemon.socket) as client:
            client.wait_until_serving(30)
            took_s = stop_s(daemon)
        assert not daemon.socket.exists()
        return took_s

    assert quickest_s(measured_s, AT_ONCE_S) < AT_ONCE_S


def test_the_socket_of_somebody_else_is_not_unlinked(daemon: ProxyProcess) -> None:
    daemon.socket.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(daemon.socket))
        assert daemon.terminate() == 0
        assert daemon.socket.is_socket()


def test_held_calls_that_do_not_end_are_cut(daemons: Daemons, fifo: Path) -> None:
    def measured_s() -> float:
        daemon = brief(daemons)
        with CriClient(daemon.socket) as client:
            held = begin_held_call(client, fifo)
            with fifo.open("wb"), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
                deaf.connect(str(daemon.socket))
                took_s = stop_s(daemon)
            assert_cut(held)
        return took_s

    assert quickest_s(measured_s, LONGEST_STOP_S) < LONGEST_STOP_S


def assert_cut(call: grpc.Future[Any]) -> None:
    """As a restart of the runtime would cut it."""
    error = call.exception(30)
    assert isinstance(error, grpc.RpcError)
    assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_streams_are_cut_as_a_restart_of_the_runtime_would(daemon: ProxyProcess, client: CriClient) -> None:
    events = flowing_events(client)
    assert daemon.terminate() == 0
    with pytest.raises(grpc.RpcError) as caught:
        for _ in events:
            pass
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_long_passing_calls_are_cut(daemons: Daemons, runtime: FakeRuntime) -> None:
    runtime.on("ListImages", hang=True)

    def measured_s() -> float:
        daemon = brief(daemons)
        runtime.recorded.clear()
        with CriClient(daemon.socket) as client:
            passing = client.images.ListImages.future(api_pb2.ListImagesRequest(), timeout=60)
            runtime.recorded.wait("ListImages")
            took_s = stop_s(daemon)
            assert_cut(passing)
        return took_s

    assert quickest_s(measured_s, LONGEST_STOP_S) < LONGEST_STOP_S


@BOTH_LOOPS
def test_it_ends_while_its_policies_are_loading(daemons: Daemons, fifo: Path, socket_folder: Path) -> None:
    daemons.environment.update(site_folder(socket_folder / "slow", slow="slow_to_import:Slow"))
    daemons.environment[IMPORT_FIFO] = str(fifo)

    def measured_s() -> float:
        daemon = daemons.prepare()
        daemon.spawn()
        with fifo.open("wb"):
            return stop_s(daemon)

    assert quickest_s(measured_s, LONGEST_STOP_S) < LONGEST_STOP_S


def test_a_second_sigterm_changes_nothing(
    patient: ProxyProcess, patients_client: CriClient, fifo: Path
) -> None:
    held = begin_held_call(patients_client, fifo)
    with fifo.open("wb"):
        patient.signal(signal.SIGTERM)
        patient.wait_for_state("STOPPING=1")
        patient.signal(signal.SIGTERM)
        patient.signal(signal.SIGHUP)
    assert held.result(30) is not None
    assert patient.wait() == 0


def test_release_is_what_ends_the_waiting(client: CriClient, fifo: Path) -> None:
    held = begin_held_call(client, fifo)
    release(fifo)
    assert held.result(30) is not None


def about_kubelets(daemon: ProxyProcess) -> list[dict[str, Any]]:
    return [record for record in daemon.log_records if "a kubelet still uses" in record["message"]]


@BOTH_LOOPS
def test_a_kubelet_that_still_uses_the_socket_is_told(
    daemons: Daemons, runtime: FakeRuntime, tmp_path: Path
) -> None:
    daemon = daemons.start()
    with kubelet(tmp_path, f"--container-runtime-endpoint=unix://{daemon.socket}") as pid:
        assert daemon.terminate() == 0
    (record,) = about_kubelets(daemon)
    assert record["level"] == "warning"
    assert record["place"] == f"the running kubelet (process {pid})"
    assert f"set --container-runtime-endpoint=unix://{runtime.socket_path} and restart" in record["message"]


def test_a_kubelet_of_the_runtime_is_no_concern(
    daemons: Daemons, runtime: FakeRuntime, tmp_path: Path
) -> None:
    daemon = daemons.start()
    with kubelet(tmp_path, "--container-runtime-endpoint", f"unix://{runtime.socket_path}"):
        assert daemon.terminate() == 0
    assert about_kubelets(daemon) == []


def test_an_upgrade_leaves_the_kubelet_its_runtime(daemons: Daemons, tmp_path: Path) -> None:
    daemon = daemons.start()
    flags = ("--container-runtime-endpoint", f"unix://{daemon.socket}")
    with kubelet(tmp_path, *flags), Family(daemon) as family:
        successor = family.upgrade()
        assert daemon.wait() == 0
        assert about_kubelets(daemon) == []
        family.signal(signal.SIGTERM)
        family.wait_until_ended(successor)
        assert len(about_kubelets(daemon)) == 1


BLIND = """\
import runpy, sys
import runtimeproxy.kubelet_endpoints

def fails(address):
    raise OSError(24, "Too many open files")

runtimeproxy.kubelet_endpoints.kubelet_settings = fails
sys.argv = sys.argv[3:]
runpy.run_module("runtimeproxy", run_name="__main__", alter_sys=False)
"""
OTHER_FILES = """\
import runpy, sys
sys.modules["runtimeproxy.kubelet_endpoints"] = None
sys.argv = sys.argv[3:]
runpy.run_module("runtimeproxy", run_name="__main__", alter_sys=False)
"""


@pytest.mark.parametrize("program", [BLIND, OTHER_FILES])
def test_a_search_for_kubelets_that_fails_does_not_fail_the_stop(daemons: Daemons, program: str) -> None:
    daemon = daemons.start(wrapper=(sys.executable, "-c", program))
    assert daemon.terminate() == 0
    *_, unknown, stopped = (record["message"] for record in daemon.log_records)
    assert unknown == f"stopped; whether a kubelet still uses {daemon.socket} is not known"
    assert stopped == "stopped"
