"""Long work in short pieces with rests between them, so that calls beside it get the interpreter and a CPU.

A thread that works without a rest wants the interpreter back 50 us after the event loop took it from there,
again and again until the work is done: a call beside it takes as long as the work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

ResultT = TypeVar("ResultT")

PIECE_S: Final = 0.001
"""How long a piece is at least: a rest costs two switches of threads, about 50 us."""
SHARE: Final = 0.3
"""The share of the time in which it works. More slows the calls beside it; with less, values of 20 pods take
longer than 3 s on a slow machine."""
LONGEST_REST_S: Final = 0.005
"""Bounds the rest after a piece that was held up, by a file that hangs or for want of a CPU."""


class Pace:
    """When work rests, and for how long. Used in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._now_s = clock
        self._since_s = clock()

    def rest_s(self) -> float:
        """How long to rest now; 0.0 as long as the piece is a short one."""
        worked_s = self._now_s() - self._since_s
        return min(worked_s * (1 / SHARE - 1), LONGEST_REST_S) if worked_s >= PIECE_S else 0.0

    def resume(self) -> None:
        self._since_s = self._now_s()


class _Work(threading.local):
    """The work of a thread that rests; None for work that a call waits for."""

    pace: Pace | None = None
    sleep: Callable[[float], None] = staticmethod(time.sleep)


_WORK: Final = _Work()


def with_rests(
    work: Callable[[], ResultT],
    clock: Callable[[], float] = time.thread_time,
    sleep: Callable[[float], None] = time.sleep,
) -> ResultT:
    """Does something in this thread that rests wherever it calls `rest`.

    `clock`: the time that this thread has worked, in seconds. `sleep`: waits for so many seconds.
    """
    _WORK.pace, _WORK.sleep = Pace(clock), sleep
    try:
        return work()
    finally:
        _WORK.pace = None


def rest() -> None:
    """Between two pieces: rests if this thread's work is to, and the piece was long enough."""
    pace = _WORK.pace
    if pace is not None and (rest_s := pace.rest_s()):
        _WORK.sleep(rest_s)
        pace.resume()
