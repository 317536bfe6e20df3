"""The last audit entries on disk: `audit` has them after a restart, and while no daemon runs.

Used in the event loop's thread; the file is read and written in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.core.audit_lines import documents, entries_of, time_text
from runtimeproxy.errors import described
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.state.state_file import StateFile
from runtimeproxy.vocabulary import Mode

if TYPE_CHECKING:
    from runtimeproxy.core.audit import AuditQueues

logger = logging.getLogger(__name__)

FILE: Final = "audit.json"
"""In the state folder."""
VERSION: Final = 1
SAVE_S: Final = 10.0
"""Between two saves: what a crash may cost."""
MOST_S: Final = 1.0
"""How long the end of the process waits for the disk."""


class SavedEntries(NamedTuple):
    """What the file holds."""

    entries: list[AuditEntry]
    """Oldest first."""
    saved_s: float
    """Since the epoch."""
    has_ended: bool
    """Whether the process that saved them ended in order, or handed over."""
    modes: Mapping[str, Mode]
    """By policy and owner, the mode of the configuration of that process."""


def audit_state_file(state_folder: Path) -> StateFile:
    # Not synced: it is written often, and after a crash of the node the gap is named.
    effect = "audit entries of before the start are not known"
    return StateFile(state_folder / FILE, effect, version=VERSION, is_synced=False)


class AuditHistory:
    """Restores the entries of the process before this one, and saves those of this one.

    Args:
        audit: Has the entries.
        thread: Reads and writes the file; one job at a time.
        modes: By policy and owner, the mode of the configuration; empty until it is known.
        has_file: Whether `audit.file` has what a crash costs here.

    Attributes:
        problem: Why they are not saved; empty if they are.
        modes_before: The modes of the process before this one.
    """

    def __init__(
        self,
        state_folder: Path,
        audit: AuditQueues,
        thread: Executor,
        modes: Callable[[], Mapping[str, Mode]],
        *,
        has_file: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.file = audit_state_file(state_folder)
        self._audit = audit
        self._thread = thread
        self._modes = modes
        self._has_file = has_file
        self._now_s = clock
        self._is_saving = False
        self._saved: int | None = None
        self.problem = ""
        self.modes_before: Mapping[str, Mode] = {}

    async def load(self, *, is_successor: bool) -> None:
        """Takes what the process before this one has saved; names the gap if that did not end in order."""
        run = asyncio.get_running_loop().run_in_executor
        saved = await run(self._thread, self.file.load, saved_entries)
        self._is_saving = True
        if saved is None:
            return
        self.modes_before = saved.modes
        ring = self._audit.ring
        ring.restore(saved.entries)
        # What was told before is not told again.
        for follower in ring.followers.values():
            for entry in saved.entries:
                follower(entry)
        if not saved.has_ended and not is_successor:
            reason = "the process before this one was killed, has crashed, or the node went down"
            reason += "; audit.file has more" if self._has_file else ""
            since, until = time_text(saved.saved_s), time_text(self._now_s())
            self._audit.add_event(AuditKind.GAP, reason, field="audit", old=since, new=until)

    async def run(self) -> None:
        """Saves the entries from time to time where they have changed, until it is cancelled."""
        await self.save(is_first=True)
        while True:
            await asyncio.sleep(SAVE_S)
            await self.save()

    async def save(self, *, is_first: bool = False, has_ended: bool = False) -> None:
        """Puts the entries on disk.

        Args:
            is_first: Also without new entries: the file says from then on that this process has not ended.
            has_ended: Whether this process ends or hands over: it saves no more, until `take_back`.
        """
        if not self._is_saving:
            return
        self._is_saving = not has_ended
        self._audit.flush()
        ring = self._audit.ring
        if ring.taken == self._saved and not (is_first or has_ended):
            return
        self._saved = ring.taken
        modes = self._modes() or self.modes_before
        work = partial(self._save, ring.entries, modes, self._now_s(), has_ended=has_ended)
        saving = asyncio.get_running_loop().run_in_executor(self._thread, work)
        saving.add_done_callback(self._on_saved)
        await asyncio.wait({saving}, timeout=MOST_S)

    def _on_saved(self, saving: asyncio.Future[None]) -> None:
        error = None if saving.cancelled() else saving.exception()
        problem = f"audit entries cannot be saved: {described(error)}" if error is not None else ""
        if problem not in ("", self.problem):
            logger.warning("%s; a restart forgets them", problem)
        self.problem = problem
        if problem:
            self._saved = None

    async def take_back(self) -> None:
        """Goes on with saving: the process that took over has failed."""
        self._is_saving = True
        await self.save(is_first=True)

    def _save(
        self, entries: Sequence[AuditEntry], modes: Mapping[str, Mode], now_s: float, *, has_ended: bool
    ) -> None:
        self.file.save(
            {
                "time": time_text(now_s),
                "has_ended": has_ended,
                "modes": {name: str(mode) for name, mode in modes.items()},
                "entries": list(documents(entries)),
            }
        )


def saved_entries(document: Mapping[str, Any]) -> SavedEntries:
    """What is saved. Pure.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: It cannot be used.
    """
    found = [entry for each in document["entries"] for entry in entries_of(each)]
    saved_s = datetime.fromisoformat(document["time"]).timestamp()
    modes = {name: Mode(mode) for name, mode in document.get("modes", {}).items()}
    return SavedEntries(found, saved_s, bool(document["has_ended"]), modes)
