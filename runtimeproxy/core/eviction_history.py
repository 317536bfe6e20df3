"""Evictions of before, on disk: the bounds on evictions survive restarts, upgrades and reboots.

Used in the event loop's thread; the file is read and written in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtimeproxy.errors import described
from runtimeproxy.state.state_file import StateFile

logger = logging.getLogger(__name__)

FILE: Final = "evictions.json"
"""In the state folder."""
VERSION: Final = 1
MOST_PODS: Final = 4096
"""Evictions that are remembered, the newest."""
MOST_AGE_S: Final = 86_400.0
"""How long they are remembered: the longest bound that can be configured."""
SAVE_S: Final = 1.0
"""How long an eviction waits for the disk: the node is under pressure, and memory has it anyway."""
UNKNOWN_UID: Final = ""
"""In place of the uid: which pods were evicted at that time, and how many, is not known."""

boot_time_s: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""The clock of evictions: it cannot be set, goes on through restarts, and while the node sleeps."""


class Evicted(NamedTuple):
    """A pod that was evicted, whether all of its containers ended or not."""

    at_s: float
    """By the clock of evictions; before a reboot, that is below 0, by what the wall clock says of it."""
    uid: str


class EvictionHistory:
    """The evictions of this process and of those before it.

    Args:
        state_folder: Where the file is.
        boot_id: Of this boot; empty if it is not known.
        thread: Reads and writes the file; one job at a time.
        clock: See `boot_time_s`.
        wall_clock: In seconds since the epoch: it tells how long a reboot took.

    Attributes:
        evictions: Oldest first.
        problem: Why they are not saved; empty if they are.
        is_handed_over: Whether another process goes on with what is saved: this one adds nothing to it.
    """

    def __init__(
        self,
        state_folder: Path,
        boot_id: str,
        thread: Executor,
        clock: Callable[[], float] = boot_time_s,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        effect = "no pod is evicted until the bounds on evictions of before are over"
        self.file = StateFile(state_folder / FILE, effect, version=VERSION)
        self._boot_id = boot_id
        self._thread = thread
        self.now_s = clock
        self._wall_s = wall_clock
        self.evictions: deque[Evicted] = deque(maxlen=MOST_PODS)
        self.problem = ""
        self.is_handed_over = False

    async def load(self) -> None:
        """Takes what the process before this one has saved."""
        self.is_handed_over = False
        run = asyncio.get_running_loop().run_in_executor
        found = await run(self._thread, self.file.load, self._parsed)
        if self.file.unusable:
            self.add(UNKNOWN_UID)
            # A process after this one need not begin to wait anew.
            await self.save()
        elif found is not None:
            # After a failed upgrade this process has some that the file may lack.
            self.evictions = deque(sorted({*found, *self.evictions}), maxlen=MOST_PODS)

    def add(self, uid: str) -> Evicted:
        """Counts an eviction; `save` follows."""
        evicted = Evicted(self.now_s(), uid)
        self.evictions.append(evicted)
        return evicted

    def remove(self, evicted: Evicted) -> None:
        # `save` follows.
        with suppress(ValueError):
            self.evictions.remove(evicted)

    async def save(self) -> None:
        """Puts them on disk; if that is slow it goes on in the background."""
        if self.is_handed_over:
            return
        while self.evictions and self.evictions[0].at_s + MOST_AGE_S < self.now_s():
            self.evictions.popleft()
        saved = {
            "boot_id": self._boot_id,
            # The same moment by both clocks.
            "boot_time_s": self.now_s(),
            "time_s": self._wall_s(),
            "evictions": [list(each) for each in self.evictions],
        }
        saving = asyncio.get_running_loop().run_in_executor(self._thread, self.file.save, saved)
        saving.add_done_callback(self._on_saved)
        await asyncio.wait({saving}, timeout=SAVE_S)

    def _on_saved(self, saving: asyncio.Future[None]) -> None:
        if saving.cancelled():
            return
        error = saving.exception()
        problem = f"evictions cannot be saved: {described(error)}" if error is not None else ""
        if problem not in ("", self.problem):
            logger.warning("%s; the bounds on them count until this process ends", problem)
        self.problem = problem

    def _parsed(self, document: Mapping[str, Any]) -> list[Evicted]:
        return _evictions(document, self._boot_id, self.now_s(), self._wall_s())


def _evictions(document: Mapping[str, Any], boot_id: str, now_s: float, wall_s: float) -> list[Evicted]:
    """Return what is saved, by the present clock. Pure.

    Raises:
        ValueError: it cannot be used; also TypeError, LookupError and AttributeError.
    """
    shift_s = 0.0
    if not boot_id or document["boot_id"] != boot_id:
        # Another boot, whose clock began anew. A wall clock that was set back counts as no time at all.
        passed_s = max(0.0, wall_s - float(document["time_s"]))
        shift_s = now_s - passed_s - float(document["boot_time_s"])
    found = [Evicted(min(float(at_s) + shift_s, now_s), str(uid)) for at_s, uid in document["evictions"]]
    if not all(math.isfinite(each.at_s) for each in found):
        raise ValueError("a time is not a number")
    return found
