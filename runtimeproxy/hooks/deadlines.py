"""One timer for all calls under way, so that a call that comes back in time costs none of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Set
from typing import Final, Protocol

logger = logging.getLogger(__name__)

_SLACK_S: Final = 0.001
_BEAT_S: Final = 0.25
"""Longest time between two looks while there are calls: after a pause in between the next one is late."""
_PAUSE_S: Final = 0.1
"""How late the timer has to be before the process counts as paused: by SIGSTOP, with its virtual machine, or
for want of a CPU."""


class Watched(Protocol):
    """Something that may take too long."""

    def look(self, now_s: float) -> float | None:
        """Act if the time is up; return how long to wait until looking again, None when there is no need."""

    def postpone(self, paused_s: float) -> None:
        """Let all its times end so much later: nothing could run meanwhile."""


class Watch:
    """Looks at each call when it may be overdue. Used in one event loop's thread."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = math.inf
        self._armed_s = self._armed_cpu_s = 0.0

    @property
    def watched(self) -> int:
        """How many calls are under way."""
        return len(self._watched)

    @property
    def calls(self) -> Set[Watched]:
        """The calls under way: a live set."""
        return self._watched

    def add(self, call: Watched, now_s: float, wait_s: float) -> None:
        """Look at a call in `wait_s` seconds at the latest."""
        self._watched.add(call)
        self._arm(now_s, wait_s)

    def discard(self, call: Watched) -> None:
        """Stop looking at a call; the timer is left to run out."""
        self._watched.discard(call)

    def _arm(self, now_s: float, wait_s: float) -> None:
        wait_s = min(wait_s, _BEAT_S)
        if now_s + wait_s >= self._next_s - _SLACK_S:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._next_s = now_s + wait_s
        self._armed_s, self._armed_cpu_s = now_s, time.process_time()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _paused_s(self) -> float:
        """How long nothing of this process ran since the timer was due; what it computed is no pause."""
        now_s = time.monotonic()
        idle_s = now_s - self._armed_s - (time.process_time() - self._armed_cpu_s)
        paused_s = min(now_s - self._next_s, idle_s)
        return paused_s if paused_s >= _PAUSE_S else 0.0

    def _look(self) -> None:
        paused_s = self._paused_s()
        self._timer, self._next_s = None, math.inf
        if paused_s:
            for call in self._watched:
                call.postpone(paused_s)
        for call in tuple(self._watched):
            now_s = time.monotonic()
            try:
                wait_s = call.look(now_s)
            except Exception:  # a bug in one call must not leave the others unwatched
                logger.exception("a call that is overdue cannot be concluded")
                continue
            if wait_s is not None:
                self._arm(now_s, wait_s)
