"""One containerd a version, one proxy in front of each, and the endpoint that a test talks to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.programs import CONTAINERD_VERSIONS, ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

OF_MANY_TESTS = """
[state]
resync_interval_s = 86400
[hooks]
budget_s = 60.0
load_timeout_s = 30.0
server_timeout_s = 30.0
"""
"""Of a daemon that runs for many tests.

It does not look for pods that others have made: it would give them its values, and keep these while a test
has them restored. No hook is hurried, however busy the machine is.
"""


@dataclass(frozen=True)
class Endpoint:
    """Where the calls of a test go: to the runtime itself, or through the proxy."""

    socket: Path
    through_proxy: bool


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="e2e-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="session", params=CONTAINERD_VERSIONS)
def containerd_version(request: pytest.FixtureRequest) -> ContainerdVersion:
    version: ContainerdVersion = request.param
    return version


@pytest.fixture(scope="session")
def containerd(containerd_version: ContainerdVersion) -> Iterator[Containerd]:
    with Containerd(containerd_version) as running:
        yield running


@pytest.fixture(scope="session")
def proxy(containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    """The proxy of all tests that do not end it."""
    own = Path(tempfile.mkdtemp(dir=folder))
    with ProxyProcess(own, ProxyOptions(str(containerd.socket), config=OF_MANY_TESTS)) as running:
        yield running


@pytest.fixture(scope="session", params=["direct", "proxy"])
def endpoint(request: pytest.FixtureRequest, containerd: Containerd) -> Endpoint:
    if request.param == "direct":
        return Endpoint(containerd.socket, through_proxy=False)
    proxy: ProxyProcess = request.getfixturevalue("proxy")
    return Endpoint(proxy.socket, through_proxy=True)


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[CriClient]:
    with CriClient(endpoint.socket) as connected:
        yield connected


@pytest.fixture
def direct(containerd: Containerd) -> Iterator[CriClient]:
    """A client of the runtime itself."""
    with CriClient(containerd.socket) as connected:
        yield connected


@pytest.fixture
def through(proxy: ProxyProcess) -> Iterator[CriClient]:
    """A client of the proxy."""
    with CriClient(proxy.socket) as connected:
        yield connected


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The folder of the pods' container logs."""
    return tmp_path
