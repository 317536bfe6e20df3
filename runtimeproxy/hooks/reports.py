"""Counters of the chain, and failures logged once per cause and interval."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from runtimeproxy.hooks.evaluation import Outcome, OutcomeKind
from runtimeproxy.hooks.policy import Hook

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 60.0
_MAX_CAUSES: Final = 1_000


@dataclass(slots=True)
class ChainStats:
    """Counters since the chain was made; changed in the event loop's thread only."""

    calls: Counter[Hook] = field(default_factory=Counter)
    """Decisions asked for, by hook."""
    outcomes: Counter[tuple[str, OutcomeKind]] = field(default_factory=Counter)
    """Policies' turns, by policy name and how they ended."""
    duration_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Sum of the time spent in turns that came back in time, by policy name."""
    conflicts: int = 0
    refused: int = 0
    """Calls that were refused."""
    exhausted: int = 0
    """Calls that found no worker thread."""
    cancelled: int = 0
    unwritten: int = 0
    """Calls whose `finish` did not run to its end."""

    def count(self, outcome: Outcome, duration_s: float) -> None:
        """Count one policy's turn."""
        name = outcome.policy.name
        self.outcomes[name, outcome.kind] += 1
        self.duration_s[name] += duration_s


class FailureLog:
    """Logs each cause at most once per interval, with the number of repetitions since."""

    def __init__(
        self, interval_s: float = REPORT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._last: dict[tuple[str, str], float] = {}
        self._silent: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        """How many causes are remembered."""
        return len(self._last)

    def report(self, source: str, cause: str, text: str) -> None:
        """Log a failure.

        Args:
            source: who failed, such as a policy's name.
            cause: the same for failures that need no second line.
            text: what happened; holds nothing secret.
        """
        key = (source, cause)
        now_s = self._clock()
        if key in self._last and now_s - self._last[key] < self._interval_s:
            self._silent[key] += 1
            return
        if len(self._last) >= _MAX_CAUSES:
            self._last.clear()
            self._silent.clear()
        self._last[key] = now_s
        repeated = self._silent.pop(key, 0)
        suffix = f" ({repeated} more times since the last report)" if repeated else ""
        logger.warning("%s: %s%s", source, text, suffix)
