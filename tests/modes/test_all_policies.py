"""All built-in policies at once on pods of all classes, in each mode on a real containerd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.containerd import Containerd
from tests.lab.containerd_config import PATIENT
from tests.modes.all_policies import faults, without_daemon
from tests.modes.runs import MODES, Mode

pytestmark = pytest.mark.containerd


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    with Containerd("2.2", PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def kubelets(runtime: Containerd, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The texts of the same pods where no daemon runs."""
    return without_daemon(runtime, tmp_path_factory.mktemp("kubelets"), 1)


@pytest.mark.parametrize("mode", MODES)
def test_no_conflict_is_silent_and_all_is_given_back(
    mode: Mode, runtime: Containerd, kubelets: dict[str, str], tmp_path: Path
) -> None:
    assert faults(mode, runtime, kubelets, tmp_path, 1) == []
