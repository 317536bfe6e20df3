"""Nodes with traffic for the tests of this folder, which are slow and run one after the other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.namespaces import NodeNetwork
from tests.network.rules import add_foreign_rules
from tests.network.stand import Stand, need_network_namespaces

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.debian)
            # Rates that are measured at one time would take each other's CPU.
            item.add_marker(pytest.mark.xdist_group("network"))


@pytest.fixture(scope="module")
def network() -> Iterator[NodeNetwork]:
    """A node with rules of other owners."""
    need_network_namespaces()
    with NodeNetwork() as made:
        add_foreign_rules(made.node)
        yield made


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="net-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def stand(network: NodeNetwork, folder: Path) -> Iterator[Stand]:
    """A daemon that has set up its classes."""
    with Stand(folder, network.node, network) as made:
        made.start()
        yield made
