import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.errors import ConfigError
from runtimeproxy.sdnotify import Notifier, listen_sockets, watchdog_interval_s


@pytest.fixture(params=["path", "abstract"])
def service_manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@koord-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(30)
        receiver.bind(address.replace("@", "\0"))
        yield receiver, address


def test_states_arrive_in_systemds_spelling(service_manager: tuple[socket.socket, str]) -> None:
    receiver, address = service_manager
    notifier = Notifier(address)
    assert notifier.has_manager
    sent = [
        notifier.ready("serving 3 pods"),
        notifier.ready(),
        notifier.status("two\nlines"),
        notifier.watchdog(),
        notifier.stopping("draining"),
        notifier.main_pid(7),
    ]
    assert all(sent)
    assert [receiver.recv(4096) for _ in sent] == [
        b"READY=1\nSTATUS=serving 3 pods",
        b"READY=1",
        b"STATUS=two lines",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=draining",
        b"MAINPID=7",
    ]


def test_a_reload_carries_the_time(service_manager: tuple[socket.socket, str]) -> None:
    receiver, address = service_manager
    assert Notifier(address).reloading()
    first, second = receiver.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_service_manager_nothing_is_sent(environ: dict[str, str]) -> None:
    notifier = Notifier(environ.get("NOTIFY_SOCKET"))
    assert not notifier.has_manager
    assert not notifier.ready()


@pytest.mark.parametrize("address", ["/nowhere/notify", "@koord-nobody", "/" + "x" * 200, "/with\0nul"])
def test_a_service_manager_that_is_gone_does_no_harm(address: str) -> None:
    assert not Notifier(address).ready()


def test_a_service_manager_that_does_not_read_does_no_harm(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        results = [Notifier(address).watchdog() for _ in range(2000)]
    assert results[0]
    assert not results[-1]


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "42"}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_the_watchdogs_interval(environ: dict[str, str], interval_s: float | None) -> None:
    assert watchdog_interval_s(environ, pid=42) == interval_s


def passed(kind: socket.SocketKind, path: Path | None) -> int:
    """A file descriptor as systemd would pass it; the receiver owns it."""
    made = socket.socket(socket.AF_UNIX, kind)
    if path:
        made.bind(str(path))
    if path and kind is socket.SOCK_STREAM:
        made.listen()
    return made.detach()


def environ_of(count: object) -> dict[str, str]:
    return {"LISTEN_PID": "42", "LISTEN_FDS": str(count), "LISTEN_FDNAMES": "cri"}


def test_a_passed_socket_is_taken(tmp_path: Path) -> None:
    descriptor = passed(socket.SOCK_STREAM, tmp_path / "s")
    os.set_inheritable(descriptor, True)
    (taken,) = listen_sockets(environ_of(1), first=descriptor, pid=42)
    with taken:
        assert taken.getsockname() == str(tmp_path / "s")
        assert not taken.get_inheritable()
        assert not taken.getblocking()


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_PID": "43", "LISTEN_FDS": "1"}, {"LISTEN_PID": "42", "LISTEN_FDS": "0"}],
    ids=["nothing", "for another process", "none"],
)
def test_nothing_is_passed(environ: dict[str, str]) -> None:
    assert listen_sockets(environ, first=10_000, pid=42) == []


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="LISTEN_FDS"):
        listen_sockets(environ_of("many"), pid=42)


def test_a_descriptor_that_is_not_open_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a socket"):
        listen_sockets(environ_of(1), first=10_000, pid=42)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["datagram", "not listening"])
def test_a_socket_of_another_kind_is_refused(tmp_path: Path, kind: socket.SocketKind) -> None:
    descriptor = passed(kind, tmp_path / "s" if kind is socket.SOCK_DGRAM else None)
    with pytest.raises(ConfigError, match="not a listening Unix stream socket"):
        listen_sockets(environ_of(1), first=descriptor, pid=42)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_those_taken_before_a_bad_one_are_closed(tmp_path: Path) -> None:
    first = os.dup2(source := passed(socket.SOCK_STREAM, tmp_path / "s"), 1000)
    os.close(source)
    with pytest.raises(ConfigError):
        listen_sockets(environ_of(2), first=first, pid=42)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first)


ACCEPT = """
import os
from runtimeproxy.sdnotify import listen_sockets
os.environ["LISTEN_PID"] = str(os.getpid())
(taken,) = listen_sockets(os.environ)
taken.setblocking(True)
taken.accept()[0].sendall(b"cri")
"""


def test_a_process_serves_on_the_socket_that_it_was_given(tmp_path: Path) -> None:
    descriptor = passed(socket.SOCK_STREAM, tmp_path / "s")
    environ = os.environ | environ_of(1)
    # As systemd does it: the socket becomes descriptor 3 of the new program.
    wrapper = [
        sys.executable,
        "-c",
        f"import os,sys; os.dup2({descriptor}, 3); os.execv(sys.executable, sys.argv[1:])",
    ]
    command = [*wrapper, sys.executable, "-c", ACCEPT]
    with subprocess.Popen(
        command, pass_fds=[descriptor, 3] if descriptor == 3 else [descriptor], env=environ
    ):
        os.close(descriptor)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(30)
            client.connect(str(tmp_path / "s"))
            assert client.recv(100) == b"cri"
