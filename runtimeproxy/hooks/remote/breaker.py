"""Skips a hook server that does not answer, and finds out when it does again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

FAILURES_TO_OPEN: Final = 3
PROBE_INTERVAL_S: Final = 0.5
"""Between two probes."""


class Breaker:
    """Counts failures in a row: open means that the server is skipped. May be used in any thread.

    Attributes:
        is_open: whether the server is skipped; may be read without a lock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_s = 0.0
        self._cause = ""
        self.is_open = False

    @property
    def opened(self) -> tuple[float, str]:
        """When it opened last, by its clock, and why."""
        with self._lock:
            return self._opened_s, self._cause

    def failed(self, cause: str) -> bool:
        """Count a failure; returns whether it opened the breaker."""
        with self._lock:
            self._failures += 1
            if self.is_open or self._failures < FAILURES_TO_OPEN:
                return False
            self._opened_s, self._cause = self._clock(), cause
            self.is_open = True
            return True

    def answered(self) -> float | None:
        """Note that the server answered; returns for how long it was skipped if this closed the breaker."""
        with self._lock:
            self._failures = 0
            if not self.is_open:
                return None
            self.is_open = False
            return max(self._clock() - self._opened_s, 0.0)


class Prober:
    """Asks a server again and again, in the background, from `start` to `stop`.

    Args:
        name: of the threads.
        probe: asks once, with a deadline in seconds; must not raise.
        deadlines_s: each in a thread of its own: with a short one it shows soon that the server is back, a
            long one lets a slow server answer.
    """

    def __init__(self, name: str, probe: Callable[[float], None], deadlines_s: frozenset[float]) -> None:
        self._name = name
        self._probe = probe
        self._deadlines_s = deadlines_s
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin, unless it has begun or is closed."""
        with self._lock:
            if self._ended is not None or self._is_closed:
                return
            self._ended = ended = threading.Event()
        for deadline_s in self._deadlines_s:
            threading.Thread(target=self._run, args=(deadline_s, ended), name=self._name, daemon=True).start()

    def stop(self) -> None:
        """End; a probe under way is not waited for."""
        with self._lock:
            ended, self._ended = self._ended, None
        if ended is not None:
            ended.set()

    def close(self) -> None:
        """End for good."""
        with self._lock:
            self._is_closed = True
        self.stop()

    def _run(self, deadline_s: float, ended: threading.Event) -> None:
        while not ended.wait(PROBE_INTERVAL_S):
            self._probe(deadline_s)
