"""Watchers: bounded queues between the daemon and clients. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from runtimeproxy.errors import RuntimeProxyError

MOST_QUEUED: Final = 1_000
SLOW_S: Final = 30.0
"""How long a watcher may leave its queue alone once it is full."""

ItemT = TypeVar("ItemT")


class SlowWatcherError(RuntimeProxyError):
    """The client does not read what it watches."""


class WatchEndedError(RuntimeProxyError):
    """The daemon ends, or another process serves now."""


class Watcher(Generic[ItemT]):
    """One client's queue.

    Args:
        restarts: Whether a full queue is replaced by a new snapshot; if not, the watcher is cut off.
        most: Bound on the queue.
        clock: Monotonic, in seconds.

    Attributes:
        needs_snapshot: Whether the client has to be sent everything anew.
    """

    def __init__(
        self, *, restarts: bool, most: int = MOST_QUEUED, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._restarts = restarts
        self._most = most
        self._clock = clock
        self._queue: deque[ItemT] = deque()
        self._wake = asyncio.Event()
        self._full_since_s: float | None = None
        self._error: RuntimeProxyError | None = None
        self.needs_snapshot = restarts

    def put(self, item: ItemT) -> None:
        """Adds an item; what is added to a full queue is in the next snapshot."""
        if self._error is not None:
            return
        if self.needs_snapshot:
            if self._full_since_s is not None and self._clock() - self._full_since_s > SLOW_S:
                self.end(SlowWatcherError(f"the responses were not read for {SLOW_S:g} s; call again"))
            return
        if len(self._queue) < self._most:
            self._queue.append(item)
        elif self._restarts:
            self._queue.clear()
            self.needs_snapshot, self._full_since_s = True, self._clock()
        else:
            self.end(SlowWatcherError(f"{self._most} entries were not read in time; call again"))
        self._wake.set()

    def end(self, error: RuntimeProxyError) -> None:
        """Ends the watch: nothing is kept for it any more."""
        self._error = error
        self._queue.clear()
        self._wake.set()

    async def wait(self) -> None:
        """Waits until there is something to send.

        Raises:
            SlowWatcherError: It was cut off.
            WatchEndedError: The daemon ends.
        """
        while not self._queue and not self.needs_snapshot and self._error is None:
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            raise self._error

    def take_snapshot(self) -> None:
        # What is added from now on is no part of the snapshot that is sent now.
        self.needs_snapshot, self._full_since_s = False, None

    def take(self) -> list[ItemT]:
        items = list(self._queue)
        self._queue.clear()
        return items


class Watchers(Generic[ItemT]):
    """All watchers of one kind.

    Args:
        on_first: Called when there is a watcher, after there was none.
        on_last: Called when there is none any more.
    """

    def __init__(self, on_first: Callable[[], None], on_last: Callable[[], None]) -> None:
        self._on_first = on_first
        self._on_last = on_last
        self._watchers: dict[Watcher[ItemT], None] = {}
        self._ended: RuntimeProxyError | None = None

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, watcher: Watcher[ItemT]) -> None:
        if self._ended is not None:
            watcher.end(self._ended)
        self._watchers[watcher] = None
        if len(self._watchers) == 1:
            self._on_first()

    def remove(self, watcher: Watcher[ItemT]) -> None:
        del self._watchers[watcher]
        if not self._watchers:
            self._on_last()

    def put(self, item: ItemT) -> None:
        for watcher in self._watchers:
            watcher.put(item)

    def end(self, error: RuntimeProxyError) -> None:
        """Ends all, and all that come later."""
        self._ended = error
        for watcher in self._watchers:
            watcher.end(error)
