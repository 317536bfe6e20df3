"""One fake runtime and one daemon in front of it for all tests that end neither; clients of both."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtimeproxy.testing import FakeRuntime
from tests.conformance.asking_policy import PolicyDesk, site_folder
from tests.conformance.scripts import EARLY_SCRIPTS, SCRIPTS
from tests.conformance.services import BytesServices
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.peers.bytes_client import WAIT_S, BytesClient
from tests.peers.scripted_server import ScriptedServer

CONFIG = """
[hooks]
load_timeout_s = 30.0
budget_s = 60.0
[cgroups]
enabled = false
"""
"""Long time limits for policies, however slow the machine is; no cgroups are written."""


class ProxyStarter:
    """Makes daemons, each in a folder of its own, and ends them all."""

    def __init__(self, new_folder: Callable[[], Path], environment: dict[str, str]) -> None:
        self._new_folder = new_folder
        self._environment = environment
        self._made: list[ProxyProcess] = []

    def __call__(self, runtime: Path, config: str = CONFIG, *arguments: str) -> ProxyProcess:
        """Starts a daemon in front of a runtime and waits until it is ready."""
        daemon = self.prepare(runtime, config, *arguments)
        try:
            daemon.start()
        except BaseException:
            print("\n".join(daemon.log))
            raise
        return daemon

    def prepare(self, runtime: Path, config: str = CONFIG, *arguments: str) -> ProxyProcess:
        """Makes a daemon that the test starts itself."""
        options = ProxyOptions(
            str(runtime), config=config, environment=self._environment, arguments=arguments, is_forked=True
        )
        self._made.append(ProxyProcess(self._new_folder(), options))
        return self._made[-1]

    def close(self) -> None:
        """Ends all."""
        for daemon in self._made:
            daemon.close()


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="conf-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def new_folder(session_folder: Path) -> Callable[[], Path]:
    """Makes folders with paths short enough for sockets."""
    numbers = itertools.count()

    def make() -> Path:
        folder = session_folder / str(next(numbers))
        folder.mkdir()
        return folder

    return make


@pytest.fixture
def folder(new_folder: Callable[[], Path]) -> Path:
    """A folder of the test's own."""
    return new_folder()


@pytest.fixture(scope="session")
def policies(session_folder: Path) -> dict[str, str]:
    """The environment in which the daemon has the policy that asks the test."""
    return {"PYTHONPATH": str(site_folder(session_folder))}


@pytest.fixture(scope="session")
def session_runtime(new_folder: Callable[[], Path]) -> Iterator[FakeRuntime]:
    with FakeRuntime(new_folder() / "runtime.sock", handlers=[BytesServices()]) as running:
        yield running


@pytest.fixture(scope="session")
def proxy(
    session_runtime: FakeRuntime, new_folder: Callable[[], Path], policies: dict[str, str]
) -> Iterator[ProxyProcess]:
    """The daemon of all tests that do not end it."""
    options = ProxyOptions(
        str(session_runtime.socket_path), config=CONFIG, environment=policies, is_forked=True
    )
    with ProxyProcess(new_folder(), options) as running:
        yield running


@pytest.fixture
def runtime(session_runtime: FakeRuntime) -> Iterator[FakeRuntime]:
    """The runtime behind `proxy`; behaves normally again after the test, and has no event subscribers."""
    session_runtime.recorded.clear()
    yield session_runtime
    session_runtime.clear()
    session_runtime.release()
    session_runtime.events.end()
    assert session_runtime.events.wait_for_subscribers(0, WAIT_S)
    session_runtime.recorded.clear()


@pytest.fixture
def direct(runtime: FakeRuntime) -> Iterator[BytesClient]:
    """A client of the runtime itself."""
    with BytesClient(runtime.socket_path) as client:
        yield client


@pytest.fixture
def through(proxy: ProxyProcess, runtime: FakeRuntime) -> Iterator[BytesClient]:
    """A client of the daemon."""
    with BytesClient(proxy.socket) as client:
        yield client


@pytest.fixture
def proxy_client(proxy: ProxyProcess, runtime: FakeRuntime) -> Iterator[CriClient]:
    """A client of the daemon that speaks messages of the CRI."""
    with CriClient(proxy.socket) as client:
        yield client


@pytest.fixture
def start_proxy(new_folder: Callable[[], Path], policies: dict[str, str]) -> Iterator[ProxyStarter]:
    """Starts daemons of the test's own and ends them after it."""
    starter = ProxyStarter(new_folder, policies)
    yield starter
    starter.close()


@pytest.fixture(scope="session")
def session_scripted(new_folder: Callable[[], Path]) -> Iterator[ScriptedServer]:
    with ScriptedServer(new_folder() / "scripted.sock", SCRIPTS, EARLY_SCRIPTS) as server:
        yield server


@pytest.fixture
def scripted(session_scripted: ScriptedServer) -> ScriptedServer:
    """The server behind `scripted_proxy`."""
    while not session_scripted.requests.empty():
        session_scripted.requests.get()
    return session_scripted


@pytest.fixture(scope="session")
def scripted_proxy(
    session_scripted: ScriptedServer, new_folder: Callable[[], Path]
) -> Iterator[ProxyProcess]:
    """The daemon in front of the scripted server."""
    options = ProxyOptions(str(session_scripted.path), config=CONFIG, is_forked=True)
    with ProxyProcess(new_folder(), options) as running:
        yield running


@pytest.fixture
def desk(folder: Path) -> Iterator[PolicyDesk]:
    """Where the test answers for the policy `asking`."""
    with PolicyDesk(folder / "desk.sock") as open_desk:
        yield open_desk
