"""A fake runtime, daemons in front of it as processes of their own, and clients of both."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, NriOptions, PodCgroups, RuntimeState
from tests.daemon.site import site_folder
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

PATIENT = {
    "KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S": "60",
    "KOORD_RUNTIMEPROXY_HOOKS_SERVER_TIMEOUT_S": "30",
    "KOORD_RUNTIMEPROXY_HOOKS_LOAD_TIMEOUT_S": "30",
}
"""No hook is hurried, however slow the machine is. These count more than the configuration's file."""
PATIENT_NRI = NriOptions(request_timeout_s=30.0, registration_timeout_s=30.0)
"""A runtime that does not drop a plugin which a busy machine holds up for more than the usual 2 s."""


class Daemons:
    """Makes daemons, each in a folder of its own, and ends them all.

    `environment` is what all of them get; tests may add to it before they start one.
    """

    def __init__(
        self, folder: Path, runtime: Path, environment: dict[str, str], *, is_forked: bool = True
    ) -> None:
        self.environment = environment
        self._is_forked = is_forked
        self._folder = folder
        self._runtime = runtime
        self._numbers = itertools.count(1)
        self._made: list[ProxyProcess] = []

    def prepare(self, config: str = "", **changes: Any) -> ProxyProcess:
        """Makes a daemon that the test starts itself; `changes` are fields of its options."""
        options = ProxyOptions(
            str(self._runtime), config=config, environment=self.environment, is_forked=self._is_forked
        )
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        self._made.append(ProxyProcess(folder, replace(options, **changes)))
        return self._made[-1]

    def start(self, config: str = "", **changes: Any) -> ProxyProcess:
        """Starts a daemon and waits until it is ready."""
        daemon = self.prepare(config, **changes)
        daemon.start()
        return daemon

    def successor(self, daemon: ProxyProcess) -> ProxyProcess:
        """Makes another process with the same files and options, whoever owns the socket now."""
        other = ProxyProcess(daemon.folder, replace(daemon.options), notify_name="notify-2.sock")
        self._made.append(other)
        return other

    def close(self) -> None:
        """Ends all."""
        for daemon in self._made:
            daemon.close()


@pytest.fixture
def loop() -> str:
    """The event loop of the daemons; parametrize it to run a test on both."""
    return "uvloop"


@pytest.fixture
def cgroup_files(socket_folder: Path) -> CgroupFiles:
    """Plain files in place of the node's cgroups."""
    return CgroupFiles(socket_folder / "cgroup", version=2)


@pytest.fixture
def runtime(socket_folder: Path, cgroup_files: CgroupFiles) -> Iterator[FakeRuntime]:
    """The runtime behind the daemons."""
    state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, cgroup_files))
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as running:
        yield running


@pytest.fixture
def installed(socket_folder: Path) -> Mapping[str, str]:
    """The environment in which the tests' policies are installed."""
    return site_folder(socket_folder, waiting="installed:Waiting", seeing="installed:Seeing")


@pytest.fixture
def daemons(
    request: pytest.FixtureRequest,
    socket_folder: Path,
    runtime: FakeRuntime,
    installed: Mapping[str, str],
    loop: str,
) -> Iterator[Daemons]:
    """Starts daemons and ends them after the test.

    They begin with their modules loaded, unless the test's module has `IS_FORKED = False`.
    """
    temporary = socket_folder / "tmp"
    temporary.mkdir()
    environment = {**installed, "KOORD_RUNTIMEPROXY_LOOP": loop, "TMPDIR": str(temporary)}
    environment["KOORD_RUNTIMEPROXY_CGROUPS_ROOT"] = str(socket_folder / "cgroup")
    # An empty folder: the fake runtime's node has every CPU.
    environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(temporary)
    environment.update(PATIENT)
    is_forked = getattr(request.module, "IS_FORKED", True)
    made = Daemons(socket_folder, runtime.socket_path, environment, is_forked=is_forked)
    yield made
    made.close()


@pytest.fixture
def daemon(daemons: Daemons) -> ProxyProcess:
    """A daemon with the default configuration that is ready."""
    return daemons.start()


@pytest.fixture
def client(daemon: ProxyProcess) -> Iterator[CriClient]:
    """A client of `daemon`."""
    with CriClient(daemon.socket) as opened:
        yield opened


@pytest.fixture
def fifo(socket_folder: Path) -> Path:
    """A FIFO that no one has opened."""
    path = socket_folder / "fifo"
    os.mkfifo(path)
    return path
