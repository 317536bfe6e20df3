"""Remembers values that were just written, so that a loop need not read every file again."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from runtimeproxy.cgroups.formats import Value
from runtimeproxy.cgroups.order import Key

_LIMIT = 8_192
"""Remembered values: some 2,000 cgroups with a handful each, more than any node runs."""


class ValueCache:
    """Values by cgroup and parameter with the time they were seen; bounded, safe for all threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Takes a clock in seconds that never goes back."""
        self._clock = clock
        self._lock = Lock()
        self._entries: dict[Key, tuple[Value, float]] = {}

    def holds(self, key: Key, value: Value, max_age_s: float) -> bool:
        """Whether this value was seen no longer ago than `max_age_s`."""
        with self._lock:
            entry = self._entries.get(key)
        return entry is not None and entry[0] == value and self._clock() - entry[1] <= max_age_s

    def remember(self, key: Key, value: Value, max_age_s: float) -> None:
        """Keeps a value that was seen now; nothing is kept for callers that never ask for it (0 s)."""
        if max_age_s <= 0:
            return
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = value, self._clock()
            if len(self._entries) > _LIMIT:
                del self._entries[next(iter(self._entries))]

    def drop(self, key: Key) -> None:
        """Forgets one value: it is about to change."""
        with self._lock:
            self._entries.pop(key, None)

    def forget(self, path: tuple[str, ...]) -> None:
        """Forgets a cgroup and all below it."""
        with self._lock:
            for key in [key for key in self._entries if key.path[: len(path)] == path]:
                del self._entries[key]
