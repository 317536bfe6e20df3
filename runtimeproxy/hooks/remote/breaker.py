"""Skips a hook server that does not answer, and finds out when it does again. Used in the loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

FAILURES_TO_OPEN: Final = 3
PROBE_INTERVAL_S: Final = 0.5
"""Between two probes."""


class Breaker:
    """Counts failures in a row: open means that the server is skipped.

    Attributes:
        is_open: whether the server is skipped.
        opened: when it opened last, by its clock, and why.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self.opened = (0.0, "")
        self.is_open = False

    def failed(self, cause: str) -> bool:
        """Count a failure; returns whether it opened the breaker."""
        self._failures += 1
        if self.is_open or self._failures < FAILURES_TO_OPEN:
            return False
        self.opened = self._clock(), cause
        self.is_open = True
        return True

    def answered(self) -> float | None:
        """Note that the server answered; returns for how long it was skipped if this closed the breaker."""
        self._failures = 0
        if not self.is_open:
            return None
        self.is_open = False
        return max(self._clock() - self.opened[0], 0.0)


class Prober:
    """Asks a server again and again, from `start` to `stop`.

    Args:
        probe: asks once, with a deadline in seconds, and calls back when that is over.
        deadlines_s: each is asked with by itself: with a short one it shows soon that the server is back, a
            long one lets a slow server answer.
    """

    def __init__(
        self, probe: Callable[[float, Callable[[], None]], None], deadlines_s: frozenset[float]
    ) -> None:
        self._probe = probe
        self._deadlines_s = deadlines_s
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether it asks just now."""
        return bool(self._timers)

    def start(self) -> None:
        """Begin, unless it has begun or is closed."""
        if not (self._timers or self._is_closed):
            for deadline_s in self._deadlines_s:
                self._wait(deadline_s)

    def stop(self) -> None:
        """End; what a probe under way finds out still counts."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        """End for good."""
        self._is_closed = True
        self.stop()

    def _wait(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[deadline_s] = loop.call_later(PROBE_INTERVAL_S, self._ask, deadline_s)

    def _ask(self, deadline_s: float) -> None:
        self._probe(deadline_s, partial(self._asked, deadline_s, self._timers[deadline_s]))

    def _asked(self, deadline_s: float, timer: asyncio.TimerHandle) -> None:
        # Another timer, or none, is there if it has been stopped meanwhile.
        if self._timers.get(deadline_s) is timer:
            self._wait(deadline_s)
