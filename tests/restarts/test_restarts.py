"""A few restarts of each kind under load; `python -m tests.restarts` makes many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.programs import containerd_program
from tests.restarts import table, versions
from tests.restarts.load import C_CORE, clients
from tests.restarts.managed import ManagedKind, restarted_beside_manager
from tests.restarts.proxy_restarts import restarted
from tests.restarts.runtime_restarts import SeenBeyond, runtime_restarted
from tests.restarts.stands import Stand, stand
from tests.restarts.supervisors import Kind
from tests.restarts.verdicts import (
    managed_faults,
    proxy_faults,
    runtime_delays,
    runtime_faults,
    versions_faults,
)

pytestmark = pytest.mark.slow

RESTARTS = 5
RUNTIME_RESTARTS = 3
MANAGED_RESTARTS = 3
TRIES = 3
VERSION_CHANGES = 2


@pytest.fixture
def fake() -> Iterator[Stand]:
    with stand("fake") as running:
        # On a busy machine policies may be loaded after the default time, and calls then go on without them.
        patient = {
            "KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S": "60",
            "KOORD_RUNTIMEPROXY_HOOKS_LOAD_TIMEOUT_S": "50",
        }
        yield replace(running, environment={**running.environment, **patient})


@pytest.fixture
def containerd() -> Iterator[Stand]:
    containerd_program("2.2")
    with stand("containerd") as running:
        yield running


@pytest.mark.parametrize("kind", Kind)
def test_restarts_of_the_proxy(kind: Kind, fake: Stand) -> None:
    report = restarted(fake, kind, RESTARTS, clients())
    print("\n".join(table.proxy_lines(report)))

    assert proxy_faults(report) == []


@pytest.mark.parametrize("kind", ManagedKind)
def test_restarts_beside_the_manager(kind: ManagedKind, fake: Stand) -> None:
    report = restarted_beside_manager(fake, kind, MANAGED_RESTARTS, [C_CORE])
    print("\n".join(table.managed_lines(report)))

    assert managed_faults(report) == []


@pytest.mark.parametrize("kind", versions.KINDS)
def test_restarts_that_change_the_version(kind: Kind, fake: Stand) -> None:
    this = Path(sys.prefix)
    other = Path(os.environ.get(versions.VARIABLE, this))
    report = versions.restarted_as_other(fake, kind, VERSION_CHANGES, [C_CORE], other, this)
    print("\n".join(table.versions_lines(report)))

    assert versions_faults(report) == []


def runtime_restarted_in_time(stand: Stand) -> Sequence[SeenBeyond]:
    """Restarts the runtime; again where nothing but times is wrong: the machine may have been busy."""
    seen: Sequence[SeenBeyond] = ()
    for number in range(TRIES):
        folder = stand.folder / f"try-{number}"
        folder.mkdir()
        seen = runtime_restarted(replace(stand, folder=folder), RUNTIME_RESTARTS, clients())
        if runtime_faults(seen) != runtime_delays(seen) or not runtime_delays(seen):
            break
    return seen


def test_restarts_of_the_runtime(fake: Stand) -> None:
    seen = runtime_restarted_in_time(fake)
    print("\n".join(table.runtime_lines(seen)))

    assert runtime_faults(seen) == []


@pytest.mark.containerd
@pytest.mark.golang
def test_restarts_of_containerd(containerd: Stand) -> None:
    seen = runtime_restarted_in_time(containerd)
    print("\n".join(table.runtime_lines(seen)))

    assert runtime_faults(seen) == []
