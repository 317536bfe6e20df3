"""The signals that a daemon handles and that would end it before its handlers are there.

They are blocked from the first instruction on, so that they wait; a successor inherits that from the process
that starts it. This module imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

WAITING: Final = frozenset((signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 1))
"""Reload, bypass on and off, upgrade. SIGTERM and SIGINT end a start at once."""


def block() -> None:
    """Lets them wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)


def unblock() -> None:
    """Delivers those that wait, and those to come at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITING)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Lets them wait in this thread, and in processes that it starts within the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
