"""Follows the runtime's events; a runtime without them has its lists read instead.

Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from runtimeproxy.pods.inventory import RuntimeUnavailableError

if TYPE_CHECKING:
    from runtimeproxy.pods.inventory import RuntimeEvent
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
"""Pause after a stream that has ended; it doubles."""
LONGEST_PAUSE_S: Final = 60.0
"""A runtime without events is asked again all the same: it may be replaced by another version."""
LONG_S: Final = 10.0
"""A stream that has lasted so long was a good one."""
MOST_WAITING: Final = 1000
"""Events that wait to be taken; more, and the lists are read instead."""


class RuntimeEvents:
    """Takes the events of the runtime, in order.

    Args:
        take: Takes one; an error costs this event only.
        compare_soon: Has the lists read: events may have been missed.

    Attributes:
        is_followed: Whether the runtime sends events now.
    """

    def __init__(
        self,
        client: GrpcRuntimeClient,
        take: Callable[[RuntimeEvent], Awaitable[None]],
        compare_soon: Callable[[], None],
    ) -> None:
        self._client = client
        self._take = take
        self._compare_soon = compare_soon
        self.is_followed = False
        self.taken = 0

    async def run(self) -> None:
        """Follows the events until it is cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            try:
                await self._follow()
            except RuntimeUnavailableError as error:
                logger.debug("no events of the runtime", extra={"cause": str(error)})
            if loop.time() - began_s >= LONG_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _follow(self) -> None:
        waiting: asyncio.Queue[RuntimeEvent] = asyncio.Queue(MOST_WAITING)
        is_missed = False

        def on_event(event: RuntimeEvent) -> None:
            nonlocal is_missed
            self.is_followed = True
            try:
                waiting.put_nowait(event)
            except asyncio.QueueFull:
                is_missed = True

        stream = asyncio.ensure_future(self._client.follow_events(on_event))
        try:
            while True:
                getting = asyncio.ensure_future(waiting.get())
                await asyncio.wait({stream, getting}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    await stream
                    return
                await self._take_one(getting.result())
                if is_missed and waiting.empty():
                    is_missed = False
                    self._compare_soon()
        finally:
            stream.cancel()
            if self.is_followed:
                self.is_followed = False
                self._compare_soon()

    async def _take_one(self, event: RuntimeEvent) -> None:
        self.taken += 1
        try:
            await self._take(event)
        except RuntimeUnavailableError:
            self._compare_soon()
        except Exception:  # a bug costs this event, not the next one
            logger.exception("an event of the runtime could not be taken")
            self._compare_soon()
