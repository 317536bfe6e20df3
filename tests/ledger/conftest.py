"""A checkpoint that does not wait long."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtimeproxy.ledger import checkpoint
from runtimeproxy.pods.checkpoint import file


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the waits for a locked file and between attempts."""
    monkeypatch.setattr(file, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(checkpoint, "FIRST_PAUSE_S", 0.05)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool
