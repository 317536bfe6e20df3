"""Work on long requests, off the loop's thread: one piece at a time for each connection.

A client that sends many long requests keeps one worker thread busy, not all of them, and work for a call that
is given up ends at its next slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.workers import SWITCH_INTERVAL

ResultT = TypeVar("ResultT")

Check: TypeAlias = Callable[[], None]
"""Raises if nobody waits for the work any more; to be called between slices."""

TURN_S: Final = 0.001
"""Longest turn of the interpreter meanwhile. With turns of 10 µs, as beside policies, the loop shares its own
with such work, which lasts: other calls take three times as long on a busy node."""

TRIM_BYTES: Final = 1024 * 1024
"""After that much has been read, free memory is given back to the kernel."""

TRIM_AFTER_S: Final = 1.0
"""How long after the last long request; the calls are answered by then, mostly."""


class StoppedError(RuntimeProxyError):
    """Nobody waits for the work any more."""


class LongWork:
    """Worker threads for long requests. Used in the event loop's thread.

    Args:
        executor: The threads.
        give_back: Gives free memory back to the kernel; called in one of the threads.
    """

    def __init__(self, executor: Executor, give_back: Callable[[], None] | None = None) -> None:
        self._executor = executor
        self._give_back = give_back
        self._queues: dict[object, deque[asyncio.Future[None]]] = {}
        self._read_bytes = 0
        self._trim: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many connections have work that is not done."""
        return len(self._queues)

    async def run(self, connection: object, work: Callable[[Check], ResultT], size_bytes: int = 0) -> ResultT:
        """What the work returns, once a thread has done it.

        If the caller is cancelled, the work is not begun or ends at its next check. The connection's next
        work begins when the thread is back.

        Args:
            connection: Whose work it is.
            work: What to do; it calls what it is given between slices.
            size_bytes: How much memory it takes, about.
        """
        turn = await self._turn(connection)
        is_over = False

        def check() -> None:
            if is_over:
                raise StoppedError("the call does not wait for it any more")

        try:
            future = self._executor.submit(work, check)
        except BaseException:
            self._leave(connection, turn)
            raise
        self._read_bytes += size_bytes
        # A thread that computes keeps the loop waiting a whole turn each time that it wakes up.
        SWITCH_INTERVAL.shorten(TURN_S)
        loop = asyncio.get_running_loop()

        def done(_: Future[ResultT]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._done, connection, turn)

        future.add_done_callback(done)
        try:
            return await asyncio.wrap_future(future)
        finally:
            is_over = True

    async def _turn(self, connection: object) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(connection, deque())
        queue.append(turn)
        if queue[0] is turn:
            turn.set_result(None)
        try:
            await turn
        except BaseException:
            self._leave(connection, turn)
            raise
        return turn

    def _done(self, connection: object, turn: asyncio.Future[None]) -> None:
        SWITCH_INTERVAL.restore(TURN_S)
        self._leave(connection, turn)
        if self._give_back is not None and self._read_bytes >= TRIM_BYTES:
            if self._trim is not None:
                self._trim.cancel()
            self._trim = asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim_now)

    def _leave(self, connection: object, turn: asyncio.Future[None]) -> None:
        queue = self._queues[connection]
        was_first = queue[0] is turn
        queue.remove(turn)
        if not queue:
            del self._queues[connection]
        elif was_first and not queue[0].done():
            queue[0].set_result(None)

    def _trim_now(self) -> None:
        self._trim = None
        self._read_bytes = 0
        if self._give_back is not None:
            with suppress(RuntimeError):  # the threads are closed
                self._executor.submit(self._give_back)
