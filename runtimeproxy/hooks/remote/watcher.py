"""Watches the folder in which hook servers register, by inotify or, without it, by polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from runtimeproxy.folder_events import FolderWatch, WatchSettings
from runtimeproxy.hooks.remote.registrations import GRACE_S, FolderReading, Registration, Registrations

logger = logging.getLogger(__name__)

OnRegistrations: TypeAlias = Callable[[tuple[Registration, ...]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderWatchSettings(WatchSettings):
    """How the folder is watched: without events changes take effect within a second."""

    poll_s: float = 0.5
    grace_s: float = GRACE_S
    """See `GRACE_S`."""


class _Found(NamedTuple):
    look: FolderReading
    no_events: str | None
    """Why there are no events; empty if only the folder is missing; None if there are."""


class RegistrationWatcher:
    """Reports the registrations of a folder, at the start and whenever they change.

    Args:
        folder: Has the files; made with mode 0755 if it is missing at the start.
        default_timeout_s: The time for one call of a server whose file has none.
        executor: A thread for reading files; it may hang with them.
        on_registrations: Gets all registrations, by file name, after each change.
        settings: None for the defaults.

    Attributes:
        settled: Set once all present files have been read, and none of them is just being written.
        problems: How many problems of files were found since the start.
        present_problems: Those of the folder and its files now.
    """

    def __init__(
        self,
        folder: Path,
        default_timeout_s: float,
        executor: Executor,
        on_registrations: OnRegistrations,
        settings: FolderWatchSettings | None = None,
    ) -> None:
        self._folder = folder
        self._default_timeout_s = default_timeout_s
        self._executor = executor
        self._on_registrations = on_registrations
        self._settings = settings or FolderWatchSettings()
        self._files = Registrations(folder, grace_s=self._settings.grace_s)
        self._watch = FolderWatch(folder, [folder], self._settings)
        self._current: tuple[Registration, ...] = ()
        self.settled = asyncio.Event()
        self.problems = 0
        self.present_problems: tuple[str, ...] = ()

    def configure(self, default_timeout_s: float) -> None:
        self._default_timeout_s = default_timeout_s
        self._watch.wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._make_folder)
        job: Future[_Found] | None = None
        try:
            while True:
                self._watch.wake.clear()
                job = self._executor.submit(self._find)
                found = await asyncio.wrap_future(job)
                await self._report(found)
                needs_polling = found.no_events is not None or found.look.needs_polling
                await self._watch.wait(needs_polling=needs_polling, most_s=found.look.again_s)
        finally:
            self._watch.close_after(job)

    def _make_folder(self) -> None:
        # In the executor's thread.
        try:
            for path in [*reversed(self._folder.parents), self._folder]:
                if not path.exists():
                    path.mkdir()
                    # Whatever the service's umask is: servers of other users register here.
                    path.chmod(0o755)
        except OSError as error:
            logger.warning("%s: cannot be created: %s", self._folder, error.strerror)

    def _find(self) -> _Found:
        """In the executor's thread: a look, after the watch is renewed so that no event is missed."""
        no_events = self._watch.renew()
        return _Found(self._files.look(self._default_timeout_s), no_events)

    async def _report(self, found: _Found) -> None:
        self.problems += len(found.look.problems)
        self.present_problems = found.look.present
        for problem in found.look.problems:
            logger.warning("hook server registration: %s", problem)
        self._watch.report(found.no_events)
        if found.look.registrations != self._current:
            self._current = found.look.registrations
            await self._on_registrations(self._current)
        if found.look.again_s is None:
            self.settled.set()
