"""Items 79 to 85: the socket's file, its place, and the descriptors of the process."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from runtimeproxy.testing import FakeRuntime
from tests.conformance.asking_policy import PolicyDesk
from tests.conformance.conftest import CONFIG, ProxyStarter
from tests.conformance.messages import CREATE, EVENTS, VERSION, asking_create
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.peers.bytes_client import WAIT_S, BytesClient

OWN_ENDPOINT = "--koord-runtimeproxy-endpoint"
CLOSE_ON_EXEC = 0o2000000
"""Flag in /proc/PID/fdinfo. Source: open(2), O_CLOEXEC."""
NOBODY = 65_534


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.conformance(79)
def test_default_mode_and_owner(proxy: ProxyProcess) -> None:
    about = proxy.socket.stat()

    assert mode_of(proxy.socket) == 0o660
    assert (about.st_uid, about.st_gid) == (os.geteuid(), os.getegid())


@pytest.mark.conformance(79)
def test_configured_mode_and_owner(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    """Who is not root can only name itself."""
    uid, gid = (NOBODY, NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    settings = f'[proxy]\nsocket_mode = "0600"\nsocket_owner = "{uid}"\nsocket_group = "{gid}"\n'

    about = start_proxy(runtime.socket_path, CONFIG + settings).socket.stat()

    assert (stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o600, uid, gid)


@pytest.mark.conformance(80)
def test_directories_are_made_with_a_safe_mode(
    runtime: FakeRuntime, folder: Path, start_proxy: ProxyStarter
) -> None:
    """Whatever the umask is, no other user may write to a directory that the daemon has made."""
    path = folder / "made" / "inner" / "proxy.sock"
    daemon = start_proxy.prepare(runtime.socket_path, CONFIG, OWN_ENDPOINT, str(path))
    old = os.umask(0)
    try:
        daemon.start()
    finally:
        os.umask(old)

    assert [mode_of(path.parent), mode_of(path.parent.parent)] == [0o755, 0o755]
    assert mode_of(path) == 0o660


@pytest.mark.conformance(81)
@pytest.mark.parametrize("flag", [OWN_ENDPOINT, "--remote-runtime-service-endpoint"])
def test_path_that_is_too_long(folder: Path, start_proxy: ProxyStarter, flag: str) -> None:
    path = folder / ("x" * 100) / "cri.sock"
    daemon = start_proxy.prepare(folder / "runtime.sock", CONFIG, flag, str(path))
    daemon.spawn()

    assert daemon.wait() == 2
    message = daemon.log[-1]
    assert str(path) in message
    assert f"{len(str(path))} bytes" in message


@pytest.mark.conformance(81)
def test_longest_path(folder: Path, runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    """107 bytes are possible, less what the temporary name is longer by."""
    path = folder / "x".ljust(107 - len(str(folder)) - 1 - len(".new"), "y")

    start_proxy(runtime.socket_path, CONFIG, OWN_ENDPOINT, str(path))

    with BytesClient(path) as client:
        assert client.call(VERSION).code == "OK"


@pytest.mark.conformance(82)
def test_socket_appears_when_it_listens(
    folder: Path, runtime: FakeRuntime, start_proxy: ProxyStarter
) -> None:
    """A client that tries without pause sees no socket or one that accepts, never one that refuses; and the
    kernel knows it by the temporary name to which it was bound."""
    path = folder / "proxy.sock"
    daemon = start_proxy.prepare(runtime.socket_path, CONFIG, OWN_ENDPOINT, str(path))
    daemon.spawn()
    failures: set[int | None] = set()

    def connects() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError as error:
                failures.add(error.errno)
                return False
            assert client.getpeername() == f"{path}.new"
            return True

    wait_until(connects, "the socket is there", WAIT_S)
    assert failures <= {errno.ENOENT}
    assert not Path(f"{path}.new").exists()


@pytest.mark.conformance(83)
def test_socket_is_removed_at_the_end(runtime: FakeRuntime, start_proxy: ProxyStarter) -> None:
    daemon = start_proxy(runtime.socket_path)

    assert daemon.terminate() == 0
    assert not daemon.socket.exists()


@pytest.mark.conformance(83)
def test_successors_socket_is_not_removed(
    runtime: FakeRuntime, folder: Path, start_proxy: ProxyStarter
) -> None:
    """Whoever has put another socket there keeps it."""
    daemon = start_proxy(runtime.socket_path)
    with FakeRuntime(folder / "other.sock") as other:
        other.socket_path.rename(daemon.socket)
        assert daemon.terminate() == 0
        with BytesClient(daemon.socket) as client:
            assert client.call(VERSION).code == "OK"


@pytest.mark.conformance(84)
@pytest.mark.parametrize("scheme", ["", "unix:", "unix://"])
def test_forms_of_an_endpoint(
    runtime: FakeRuntime, folder: Path, start_proxy: ProxyStarter, scheme: str
) -> None:
    own, other = folder / "proxy.sock", runtime.socket_path
    start_proxy(
        Path("/unused"),
        CONFIG,
        *(OWN_ENDPOINT, f"{scheme}{own}"),
        *("--remote-runtime-service-endpoint", f"{scheme}{other}"),
        *("--remote-image-service-endpoint", f"{scheme}{other}"),
    )

    with BytesClient(own) as client:
        assert client.call(VERSION).code == "OK"
        assert client.call("/runtime.v1.ImageService/ListImages").code == "OK"


@pytest.mark.conformance(85)
def test_descriptors_are_closed_at_exec(
    runtime: FakeRuntime, proxy: ProxyProcess, through: BytesClient, desk: PolicyDesk
) -> None:
    """Looked at while a connection, a stream and a policy are at work: only standard input, output and
    error would be inherited by a hook's child process.
    """
    stream = through.start(EVENTS, timeout_s=None)
    create = through.start(CREATE, asking_create(desk.annotations).SerializeToString())
    desk.question()
    assert runtime.events.wait_for_subscribers(1, WAIT_S)

    assert inherited_descriptors(proxy.pid) == {0, 1, 2}
    for call in (stream, create):
        call.cancel()


def inherited_descriptors(pid: int) -> set[int]:
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = entry.read_text()
        except FileNotFoundError:
            continue  # The process has closed it meanwhile.
        lines = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        if not int(lines["flags"], 8) & CLOSE_ON_EXEC:
            found.add(int(entry.name))
    return found
