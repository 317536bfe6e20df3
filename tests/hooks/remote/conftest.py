"""Real hook servers on real sockets."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.hooks.remote.server import HookServer
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server import HookServing, serve
from tests.hooks.remote.servers import PATIENT_S, PROBE_INTERVAL_S, registration


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hooks-") as path:
        yield Path(path)


@pytest.fixture
def serving(folder: Path) -> Iterator[HookServing]:
    """A hook server in this process."""
    made = HookServing(Behaviour())
    server = serve(folder / "hook.sock", made)
    yield made
    made.behave(Behaviour())
    server.stop(None).wait()


@pytest.fixture
async def made() -> AsyncIterator[list[HookServer]]:
    """Servers to be closed after the test."""
    servers: list[HookServer] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def timeout_s() -> float:
    """The servers' timeout; tests in which none answers parametrize it."""
    return PATIENT_S


@pytest.fixture
def ignored(folder: Path, made: list[HookServer], timeout_s: float) -> HookServer:
    """A server whose failures are ignored."""
    made.append(HookServer(registration(folder, timeout_s=timeout_s), probe_interval_s=PROBE_INTERVAL_S))
    return made[-1]


@pytest.fixture
def strict(folder: Path, made: list[HookServer], timeout_s: float) -> HookServer:
    """A server whose failures refuse the call."""
    about = registration(folder, failure_policy=FailurePolicy.FAIL, timeout_s=timeout_s)
    made.append(HookServer(about, probe_interval_s=PROBE_INTERVAL_S))
    return made[-1]
