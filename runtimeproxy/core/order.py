"""The order of events that wait for a decision, as intercepted calls. Used in the event loop's thread only.

Decisions for one container are made in the order of arrival, and do not wait for the runtime's answers. The
next event of a pod waits for the post hooks of that pod. Events of different pods never wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque


class KeyedQueue:
    """First in, first out, for each key by itself; a key without entries takes no memory."""

    def __init__(self) -> None:
        self._queues: dict[object, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, key: object) -> bool:
        return key in self._queues

    def enter(self, key: object) -> asyncio.Future[None]:
        """Appends an entry, which is done once it is the first of its key; to be given to `leave`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque((turn,))
            turn.set_result(None)
        else:
            queue.append(turn)
        return turn

    def leave(self, key: object, turn: asyncio.Future[None]) -> None:
        """Removes an entry, wherever it is in the queue; the second time nothing happens."""
        queue = self._queues.get(key)
        if queue is None or turn not in queue:
            return
        was_first = queue[0] is turn
        queue.remove(turn)
        if not queue:
            del self._queues[key]
        elif was_first and not queue[0].done():  # a wait that has timed out is done, too
            queue[0].set_result(None)


class EventOrder(KeyedQueue):
    """The queues of events, and the post hooks that still run, by pod."""

    def __init__(self) -> None:
        super().__init__()
        self._post_hooks: dict[str, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._queues) + len(self._post_hooks)

    def is_idle(self, turn_key: str, pod_key: str) -> bool:
        return turn_key not in self._queues and pod_key not in self._post_hooks

    def block(self, pod_keys: tuple[str, ...], post_hooks: asyncio.Future[None]) -> None:
        """Makes the next events of a pod wait for post hooks; an empty key stands for no pod."""
        keys = tuple(filter(None, pod_keys))
        for key in keys:
            self._post_hooks.setdefault(key, set()).add(post_hooks)

        def unblock(done: asyncio.Future[None]) -> None:
            for key in keys:
                running = self._post_hooks[key]
                running.discard(done)
                if not running:
                    del self._post_hooks[key]

        post_hooks.add_done_callback(unblock)

    async def wait_for_post_hooks(self, pod_key: str, until_s: float) -> bool:
        """Waits at most until this time of the loop's clock; returns whether they are done."""
        running = self._post_hooks.get(pod_key)
        if not running:
            return True
        timeout_s = max(0.0, until_s - asyncio.get_running_loop().time())
        _, late = await asyncio.wait(tuple(running), timeout=timeout_s)
        return not late
