"""Pytest fixtures. Pytest loads this through the ``pytest11`` entry point, so nothing heavy here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runtimeproxy.testing.server import FakeRuntime


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, which pytest's ``tmp_path`` may not be."""
    folder = Path(tempfile.mkdtemp(prefix="cri-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fake_runtime(socket_folder: Path) -> Iterator[FakeRuntime]:
    """An empty fake runtime that serves for the time of the test."""
    from runtimeproxy.testing.server import FakeRuntime

    with FakeRuntime(socket_folder / "runtime.sock") as runtime:
        yield runtime
