"""A socket that systemd passes: nothing is bound, renamed or unlinked."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.signals import BYPASS_ON, signal_instance
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

PASSES = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="cri")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does between fork and exec. Source: sd_listen_fds(3)."""


@pytest.fixture
def passed(socket_folder: Path) -> Iterator[socket.socket]:
    """The socket of a socket unit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(socket_folder / "unit.sock"))
        listening.listen(64)
        yield listening


def activated(daemons: Daemons, passed: socket.socket, **changes: Any) -> ProxyProcess:
    """A daemon that gets the socket."""
    descriptor = passed.fileno()
    # Above 3, so that the copy is not the original.
    assert descriptor > 3
    wrapper = (sys.executable, "-c", PASSES, str(descriptor))
    return daemons.prepare(wrapper=wrapper, inherited=(descriptor,), **changes)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_serves_on_the_socket_and_leaves_it_there(daemons: Daemons, passed: socket.socket) -> None:
    path = Path(passed.getsockname())
    before = path.stat()
    daemon = activated(daemons, passed)
    with CriClient(path) as client:
        daemon.start()
        client.wait_until_serving(30)
        assert daemon.terminate() == 0
        after = path.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert not daemon.socket.exists()
        daemon.start()
        client.wait_until_serving(30)


def test_the_switch_finds_it(daemons: Daemons, passed: socket.socket) -> None:
    daemon = activated(daemons, passed)
    daemon.start()
    assert signal_instance(passed.getsockname(), BYPASS_ON) == daemon.pid
    daemon.wait_for_state("STATUS=bypass is on")


def test_clients_that_come_between_two_instances_wait_in_the_backlog(
    daemons: Daemons, passed: socket.socket
) -> None:
    daemon = activated(daemons, passed)
    daemon.start()
    daemon.kill()
    with CriClient(Path(passed.getsockname())) as client:
        daemon.spawn()
        client.wait_until_serving(30)


def test_a_runtime_that_is_the_passed_socket_is_refused(daemons: Daemons, passed: socket.socket) -> None:
    daemon = activated(daemons, passed, runtime_endpoint=passed.getsockname())
    daemon.spawn()
    assert daemon.wait() == 2
    assert "forward to itself" in "\n".join(daemon.log)
    assert Path(passed.getsockname()).exists()


def test_what_is_passed_must_be_a_listening_socket(daemons: Daemons, socket_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(socket_folder / "unit.sock"))
        daemon = activated(daemons, silent)
        daemon.spawn()
        assert daemon.wait() == 2
    assert "not a listening Unix stream socket" in "\n".join(daemon.log)


def test_variables_for_another_process_do_not_count(daemons: Daemons, runtime: FakeRuntime) -> None:
    daemons.environment.update(LISTEN_PID="1", LISTEN_FDS="1")
    daemon = daemons.start()
    assert isinstance(daemon.options, ProxyOptions)
    with CriClient(daemon.socket) as client:
        client.wait_until_serving(30)
