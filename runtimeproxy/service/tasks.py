"""The daemon's background tasks: kept, watched and ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Tasks that nobody waits for.

    Args:
        on_fatal: called with the error of a task without which the daemon cannot go on.
    """

    def __init__(self, on_fatal: Callable[[BaseException], None]) -> None:
        self._on_fatal = on_fatal
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], *, is_vital: bool = False) -> asyncio.Task[None]:
        """Starts a task and keeps it; its error is logged, or is fatal if the task is vital."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, is_vital=is_vital))
        return task

    async def cancel(self, timeout_s: float) -> None:
        """Cancels all but the task that asks, and waits for their ends for a bounded time."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=timeout_s)

    def _ended(self, task: asyncio.Task[None], *, is_vital: bool) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and is_vital:
            self._on_fatal(error)
        elif error is not None:
            logger.error("a background task failed", exc_info=error)
