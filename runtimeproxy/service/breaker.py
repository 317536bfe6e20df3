"""The daemon's own breaker: when its code keeps failing, calls pass unheld."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

MOST_FAILURES: Final = 10
"""Errors in the proxy's own code within the window that open the breaker."""
WINDOW_S: Final = 60.0
COOL_DOWN_S: Final = 300.0
"""How long calls pass unheld before the breaker tries again."""


class PassBreaker:
    """Decides whether new calls are held; an operator's word counts more than the breaker's.

    Args:
        failures: returns how many errors there have been in the proxy's own code since the start.
        clock: a monotonic time in seconds.
    """

    def __init__(self, failures: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._open_until_s = 0.0
        self.forced = False
        """Whether an operator wants all calls to pass."""

    @property
    def is_open(self) -> bool:
        """Whether the breaker itself lets all calls pass."""
        return self._clock() < self._open_until_s

    def passes(self) -> bool:
        """Whether new calls pass unheld; looks at the failures since it was last asked."""
        now, total = self._clock(), self._failures()
        while self._seen and self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        before = self._seen[0][1] if self._seen else total
        self._seen.append((now, total))
        if not self.is_open and total - before >= MOST_FAILURES:
            self._open_until_s = now + COOL_DOWN_S
            self._seen.clear()
            logger.error(
                "the proxy keeps failing: all calls pass unheld for %d s",
                COOL_DOWN_S,
                extra={"failures": total - before},
            )
        return self.forced or self.is_open
