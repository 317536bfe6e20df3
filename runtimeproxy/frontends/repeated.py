"""Work that many reports ask for, such as that of each write to a cgroup."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Repeated:
    """Work by key, of which one run at a time is under way; what comes meanwhile leads to one more run."""

    def __init__(self) -> None:
        self._due: set[str] = set()
        self._running: set[str] = set()

    def add(self, key: str) -> bool:
        """Has the work done; returns whether `run` is to be started for it, which has to follow."""
        self._due.add(key)
        is_running = key in self._running
        self._running.add(key)
        return not is_running

    async def run(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            while key in self._due:
                self._due.discard(key)
                await work()
        finally:
            self._due.discard(key)
            self._running.discard(key)
