"""The daemon's own fixtures, and one daemon for all tests of a module that leave it as it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import cgroup_files, client, daemon, daemons, fifo, installed, loop, runtime
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

PATIENT = """\
[hooks]
budget_s = 60.0
[cgroups]
enabled = false
"""
"""No policy is hurried, however slow the machine is; no cgroups are written."""

__all__ = ["cgroup_files", "client", "daemon", "daemons", "fifo", "installed", "loop", "runtime"]


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="service-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def module_runtime(module_folder: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(module_folder / "runtime.sock") as running:
        yield running


@pytest.fixture(scope="module")
def module_daemon(module_folder: Path, module_runtime: FakeRuntime) -> Iterator[ProxyProcess]:
    options = ProxyOptions(str(module_runtime.socket_path), config=PATIENT, is_forked=True)
    with ProxyProcess(module_folder, options) as running:
        yield running


@pytest.fixture
def shared_runtime(module_runtime: FakeRuntime) -> Iterator[FakeRuntime]:
    """The runtime behind `shared_client`; it behaves normally again after the test."""
    yield module_runtime
    module_runtime.clear()
    module_runtime.release()


@pytest.fixture
def shared_client(module_daemon: ProxyProcess) -> Iterator[CriClient]:
    """A client of the module's daemon."""
    with CriClient(module_daemon.socket) as opened:
        yield opened
