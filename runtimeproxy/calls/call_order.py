"""The order of held calls: who waits for whom, and for how long. Used in the event loop's thread only.

Decisions for one container are made in the order of arrival; nobody waits for the runtime's answer. The next
held call of a pod waits for the post hooks of that pod. Calls of different pods share nothing here.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turn:
    """One call's place in the order of decisions of one key."""

    __slots__ = ("_awaited", "_key", "_lanes")

    def __init__(self, lanes: Lanes, key: str) -> None:
        self._lanes = lanes
        self._key = key
        self._awaited: asyncio.Future[None] | None = None

    @property
    def has_come(self) -> bool:
        """Whether all earlier calls of the key have been decided."""
        return self._lanes.first(self._key) is self

    async def come(self, until_s: float) -> bool:
        """Waits for the earlier calls of the key, at most until this time of the loop's clock.

        Returns:
            Whether the turn has come.
        """
        if self.has_come:
            return True
        self._awaited = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(until_s):
                await self._awaited
        except TimeoutError:
            return False
        return True

    def leave(self) -> None:
        """The call has been decided or is over; may be called again."""
        self._lanes.leave(self._key, self)

    def wake(self) -> None:
        """The turn has come."""
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)


class Lanes:
    """Turns by key, and the post hooks that are still running by pod; what is idle takes no memory."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[Turn]] = {}
        self._running: dict[str, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._queues) + len(self._running)

    def take_turn(self, key: str) -> Turn:
        """The next place in the order of a key; to be left when the call is decided."""
        turn = Turn(self, key)
        self._queues.setdefault(key, deque()).append(turn)
        return turn

    def first(self, key: str) -> Turn | None:
        """Whose turn it is; None if the lane is idle."""
        queue = self._queues.get(key)
        return queue[0] if queue else None

    def leave(self, key: str, turn: Turn) -> None:
        """Takes a call out of the order and wakes the one that is next."""
        queue = self._queues.get(key)
        if queue is None or turn not in queue:
            return
        was_first = queue[0] is turn
        queue.remove(turn)
        if not queue:
            del self._queues[key]
        elif was_first:
            queue[0].wake()

    def is_idle(self, turn_key: str, pod_key: str) -> bool:
        """Whether a call with these keys has nobody to wait for."""
        return turn_key not in self._queues and pod_key not in self._running

    def hold_back(self, pod_keys: tuple[str, ...], hooks: asyncio.Future[None]) -> None:
        """Lets the next calls of these keys wait until post hooks are done; an empty key is nobody's."""
        keys = tuple(filter(None, pod_keys))
        for key in keys:
            self._running.setdefault(key, set()).add(hooks)
        hooks.add_done_callback(lambda done: self._finished(keys, done))

    async def hooks_done(self, pod_key: str, until_s: float) -> bool:
        """Waits for the post hooks of a pod, at most until this time of the loop's clock.

        Returns:
            Whether they are done.
        """
        running = self._running.get(pod_key)
        if not running:
            return True
        timeout_s = max(0.0, until_s - asyncio.get_running_loop().time())
        _, late = await asyncio.wait(tuple(running), timeout=timeout_s)
        return not late

    def _finished(self, pod_keys: tuple[str, ...], hooks: asyncio.Future[None]) -> None:
        for key in pod_keys:
            running = self._running.get(key)
            if running is not None:
                running.discard(hooks)
                if not running:
                    del self._running[key]
