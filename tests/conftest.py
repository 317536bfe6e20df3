"""Settings of all tests, and which of them are slow."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key  # a copy: that of a test's time is captured
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
# Below `nohup` SIGHUP is ignored in the same way.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_TESTS = Path(__file__).parent
_NEED_MORE_THAN_PYTHON = ("containerd", "debian", "golang")
_START_PROCESSES = ("conformance", "daemon", "defects", "demo", "fields", "restore", "service", "test_cli.py")
"""Folders and modules with few tests that take long."""
_AFTER_THE_TIMEOUT_S = 30.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Has each worker begin with modules of its own, and find those of the others compiled.

    To rewrite all assertions takes each worker three times as long as all else of the collection.
    What is made now stays, so no search for garbage; see `pytest_collection_finish`.
    """
    gc.disable()
    worker: dict[str, object] | None = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    modules = [
        ".".join(path.relative_to(_TESTS.parent).with_suffix("").parts)
        for path in sorted(_TESTS.rglob("test_*.py"))
    ]
    number = int(str(worker["workerid"]).removeprefix("gw"))
    first = len(modules) * number // int(str(worker["workercount"]))
    for module in (*modules[first:], *modules[:first]):
        # Skipped or broken ones are imported again by pytest, which says so.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(module)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `make test-slow`, and keeps those that share this machine's cgroups on one worker.

    First of all: pytest-xdist reads the groups in the same hook. Long modules go first, lest one worker goes
    on with the last of them while the others have nothing left.
    """
    items.sort(key=lambda item: item.path.relative_to(_TESTS).parts[0] not in _START_PROCESSES)
    for item in items:
        if item.path.is_relative_to(_TESTS / "e2e"):
            item.add_marker(pytest.mark.containerd)
        if any(map(item.get_closest_marker, _NEED_MORE_THAN_PYTHON)) or _second_event_loop(item):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("containerd") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("containerd"))


def pytest_collection_finish() -> None:
    """Keeps the tests themselves, a million objects, out of each search for garbage."""
    gc.freeze()
    gc.enable()


def _second_event_loop(item: pytest.Item) -> bool:
    """Whether the test runs in asyncio's own loop and another time in uvloop."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "asyncio" in callspec.id.split("-")


def _limit(item: pytest.Item) -> None:
    """Ends the process, with the stacks of its threads, when a test or its end outlasts the timeout.

    That of pytest-timeout raises an error in the main thread: uvloop drops it, and fixtures that end after
    it have none.
    """
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(
        timeout_s + _AFTER_THE_TIMEOUT_S, exit=True, file=item.config.stash[fault_handler_stderr_fd_key]
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    _limit(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    # Anew: pytest cancels it when a test fails.
    _limit(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the process should a thread that a test has left keep it; xdist ends those of its workers."""
    if hasattr(session.config, "workerinput"):  # may wait for minutes until the other workers have done
        return
    faulthandler.dump_traceback_later(2 * _AFTER_THE_TIMEOUT_S, exit=True, file=2)


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
