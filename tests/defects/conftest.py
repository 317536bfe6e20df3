"""One node and one hook server for all tests that end neither; nodes of a test's own for the others."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.defects.node import PATIENT, Node, Registrations, running
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CriClient

MakeNode: TypeAlias = Callable[..., Node]


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="defects-") as path:
        yield Path(path)


@pytest.fixture(scope="session")
def new_path(session_folder: Path) -> Callable[[], Path]:
    """Names files and folders that are not there yet."""
    numbers = itertools.count(1)
    return lambda: session_folder / str(next(numbers))


@pytest.fixture(scope="session")
def session_node(new_path: Callable[[], Path]) -> Iterator[Node]:
    with running(Node(new_path(), config=PATIENT, log_level="debug")) as made:
        yield made


@pytest.fixture(scope="session")
def session_server(new_path: Callable[[], Path]) -> Iterator[HookServerProcess]:
    with HookServerProcess(new_path(), Behaviour()) as server:
        yield server


@pytest.fixture
def node(session_node: Node) -> Iterator[Node]:
    """The node of all; behaves normally again after the test."""
    session_node.runtime.recorded.clear()
    yield session_node
    session_node.runtime.clear()
    session_node.runtime.release()
    assert session_node.proxy.alive()


@pytest.fixture
def client(node: Node) -> Iterator[CriClient]:
    """A client of the daemon."""
    with CriClient(node.proxy.socket) as opened:
        yield opened


@pytest.fixture
def server(session_server: HookServerProcess) -> Iterator[HookServerProcess]:
    """A hook server that behaves as koordlet at the beginning of each test; not registered."""
    yield session_server
    session_server.behave("koordlet")


@pytest.fixture
def registrations(node: Node) -> Iterator[Registrations]:
    """Registers hook servers with `node` for the time of the test."""
    made = Registrations(node)
    yield made
    made.close()


@pytest.fixture
def new_node(new_path: Callable[[], Path]) -> Iterator[MakeNode]:
    """Makes nodes of the test's own, not started yet, and ends what was started of them."""
    with ExitStack() as stack:

        def make(**options: object) -> Node:
            made = Node(new_path(), **options)
            stack.callback(lambda: print(made.log))
            stack.callback(made.runtime.stop)
            stack.callback(made.proxy.close)
            return made

        yield make


@pytest.fixture
def own_node(new_path: Callable[[], Path]) -> Iterator[Node]:
    """A node of the test's own with the default configuration."""
    with running(Node(new_path())) as made:
        yield made
