"""The command that asks for an upgrade, with an instance that does what the test says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.frontends.cri_proxy.handover.upgrade import (
    TAKEN_OVER,
    UpgradeFailedError,
    note,
    request_upgrade,
)
from runtimeproxy.listener import listen, lock_path
from runtimeproxy.signals import UPGRADE

OWN_PID = os.getpid()
OTHER_PID = 4_194_305
"""More than any process has. Source: Linux, include/linux/threads.h, PID_MAX_LIMIT."""


class Instance:
    """An instance in this process: what its lock says after the signal is the test's choice."""

    def __init__(self, path: str) -> None:
        self.listener = listen(path)
        self.answer = ""
        self._before = signal.signal(UPGRADE, lambda *_: self._react())

    def _react(self) -> None:
        Path(lock_path(self.listener.address)).write_text(self.answer)

    def close(self) -> None:
        signal.signal(UPGRADE, self._before)
        self.listener.release()


@pytest.fixture
def instance(socket_folder: Path) -> Iterator[Instance]:
    made = Instance(str(socket_folder / "s"))
    yield made
    made.close()


def test_the_successor_says_that_it_took_over(instance: Instance) -> None:
    instance.answer = f"{OTHER_PID}\n{note(TAKEN_OVER)}\n"
    assert request_upgrade(instance.listener.address, 30.0) == (OWN_PID, OTHER_PID)


@pytest.mark.parametrize(
    ("before", "answer", "reason"),
    [
        pytest.param("", f"{OWN_PID}\n1 upgrade failed: why\n", "upgrade failed: why; process", id="failed"),
        pytest.param("", f"{OTHER_PID}\n", f"process {OTHER_PID} was started anew", id="started-anew"),
        pytest.param(
            "1 upgrade failed: why",
            f"{OTHER_PID}\n",
            f"process {OTHER_PID} was started anew",
            id="started-anew-after-a-failure",
        ),
        pytest.param(
            "1 upgrade failed: why", f"{OWN_PID}\n", f"process {OWN_PID} was asked to end", id="asked-to-end"
        ),
    ],
)
def test_what_is_no_upgrade(instance: Instance, before: str, answer: str, reason: str) -> None:
    instance.listener.note(before)
    instance.answer = answer
    with pytest.raises(UpgradeFailedError, match=reason):
        request_upgrade(instance.listener.address, 30.0)
