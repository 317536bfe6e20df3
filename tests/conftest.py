"""Settings of all tests, and which of them are slow."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast an example is says something of the machine's load, and nothing of what is tested.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("any-machine")

# gRPC reads it when it is loaded. Else it writes a line to standard error for each server that ends.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# A script's background job ignores SIGINT, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TESTS = Path(__file__).parent
_NEED_MORE_THAN_PYTHON = ("containerd", "debian", "golang")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `make test-slow`, and keeps those that share this machine's cgroups on one worker.

    First of all: pytest-xdist reads the groups in the same hook.
    """
    for item in items:
        if item.path.is_relative_to(_TESTS / "e2e"):
            item.add_marker(pytest.mark.containerd)
        if any(map(item.get_closest_marker, _NEED_MORE_THAN_PYTHON)) or _second_event_loop(item):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("containerd"):
            item.add_marker(pytest.mark.xdist_group("containerd"))


def _second_event_loop(item: pytest.Item) -> bool:
    """Whether the test runs in asyncio's own loop and another time in uvloop."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "asyncio" in callspec.id.split("-")


@pytest.fixture(autouse=True)
def usual_turns() -> Iterator[None]:
    """A policy that hangs changes the switch interval; the next test begins with the usual one."""
    usual_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual_s)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="relay-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
