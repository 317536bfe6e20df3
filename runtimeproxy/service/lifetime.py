"""From the start of the process to its end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

from runtimeproxy.counts import Histogram

_LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Lifetime:
    """Made and used in the event loop's thread.

    Attributes:
        owns_process: Whether signals and the garbage collector are the daemon's: in another thread, as in
            tests, they belong to the host program.
        started_s: When the process started, in seconds since the epoch.
        ready: Set when it serves and the policies are loaded.
        stopping: Set when it ends.
        retired: Set while a successor serves.
        changing: Held by start, reload, upgrade and changes of modes: one at a time.
        loop_lag: How much later than asked for the event loop woke up, in seconds; measured every second.
        ended: The reason of the end.
    """

    def __init__(self) -> None:
        self.owns_process = threading.current_thread() is threading.main_thread()
        self.started_s = time.time()
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        self.retired = asyncio.Event()
        self.changing = asyncio.Lock()
        self.loop_lag = Histogram(_LAG_S)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the daemon, once; in the loop's thread.

        Args:
            error: Ends it with this; None for a graceful end.
        """
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
