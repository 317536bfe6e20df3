"""Work on long requests, off the loop's thread: one piece at a time for each connection.

A client that sends many long requests keeps one worker thread busy, not all of them, and work for a cancelled
call ends at its next slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from runtimeproxy.core.order import KeyedQueue
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.workers import SWITCH_INTERVAL

ResultT = TypeVar("ResultT")

Check: TypeAlias = Callable[[], None]
"""Raises if the call no longer waits for the work; to be called between slices."""

TURN_S: Final = 0.001
"""Switch interval of the interpreter meanwhile. With 10 µs, as beside policies, the loop shares its own time
with such work, which lasts: other calls take three times as long on a busy node."""

TRIM_BYTES: Final = 1024 * 1024
"""After so much has been read, free memory is given back to the kernel."""

TRIM_AFTER_S: Final = 1.0
"""How long after the last long request; most of the calls are answered by then."""


class StoppedError(RuntimeProxyError):
    """The call no longer waits for the work."""


class LongWork:
    """Worker threads for long requests. Used in the event loop's thread.

    Args:
        give_back: Gives free memory back to the kernel; called in one of the threads.
    """

    def __init__(self, executor: Executor, give_back: Callable[[], None] | None = None) -> None:
        self._executor = executor
        self._give_back = give_back
        self._queue = KeyedQueue()
        self._read_bytes = 0
        self._trim: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        # Connections with work that is not done.
        return len(self._queue)

    async def run(self, connection: object, work: Callable[[Check], ResultT], size_bytes: int = 0) -> ResultT:
        """Runs some work in a thread; returns its result.

        If the caller is cancelled, the work is not begun or ends at its next check. The connection's next
        work begins when the thread is back.

        `work`: the function; it calls its argument between slices. `size_bytes`: about how much memory it
        takes.
        """
        turn = self._queue.enter(connection)
        is_over = False

        def check() -> None:
            if is_over:
                raise StoppedError("the call no longer waits for it")

        try:
            await turn
            future = self._executor.submit(work, check)
        except BaseException:
            self._queue.leave(connection, turn)
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

    def _done(self, connection: object, turn: asyncio.Future[None]) -> None:
        SWITCH_INTERVAL.restore(TURN_S)
        self._queue.leave(connection, turn)
        if self._give_back is not None and self._read_bytes >= TRIM_BYTES:
            if self._trim is not None:
                self._trim.cancel()
            self._trim = asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim_now)

    def _trim_now(self) -> None:
        self._trim = None
        self._read_bytes = 0
        if self._give_back is not None:
            with suppress(RuntimeError):  # the threads are closed
                self._executor.submit(self._give_back)
