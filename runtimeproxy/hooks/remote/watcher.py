"""Watches the folder in which hook servers register, by inotify or, without it, by polling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from runtimeproxy.folder_events import FolderEvents, open_inotify, wait_for_event
from runtimeproxy.hooks.remote.registrations import GRACE_S, FolderReading, Registration, Registrations

if TYPE_CHECKING:
    from inotify_simple import INotify

logger = logging.getLogger(__name__)

OnRegistrations: TypeAlias = Callable[[tuple[Registration, ...]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderWatchSettings:
    """How a folder is watched."""

    poll_s: float = 0.5
    """Time between two looks without inotify. Default 0.5 s: changes take effect within a second."""
    rescan_s: float = 10.0
    """Time between two looks with inotify, for changes whose events were lost. Default 10 s."""
    gather_s: float = 0.05
    """How long events are gathered, so that many changes do not make many looks."""
    grace_s: float = GRACE_S
    """See `GRACE_S`."""
    open_inotify: Callable[[], INotify] = open_inotify
    """Opens the inotify instance."""


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
        self._events = FolderEvents(folder, self._settings.open_inotify)
        self._current: tuple[Registration, ...] = ()
        self._is_polled = False
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()
        self.problems = 0
        self.present_problems: tuple[str, ...] = ()

    def configure(self, default_timeout_s: float) -> None:
        """Replaces the default for the time of one call."""
        self._default_timeout_s = default_timeout_s
        self._wake.set()

    async def run(self) -> None:
        """Watches until it is cancelled."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._make_folder)
        job: Future[_Found] | None = None
        try:
            while True:
                self._wake.clear()
                job = self._executor.submit(self._find)
                found = await asyncio.wrap_future(job)
                await self._report(found)
                await self._rest(found)
        finally:
            # A thread may still use the events, so they are closed after it.
            if job is not None:
                job.add_done_callback(lambda _: self._events.close())

    def _make_folder(self) -> None:
        """In the executor's thread: makes the folder and its missing parents."""
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
        no_events = self._events.try_renew()
        return _Found(self._files.look(self._default_timeout_s), no_events)

    async def _report(self, found: _Found) -> None:
        self.problems += len(found.look.problems)
        self.present_problems = found.look.present
        for problem in found.look.problems:
            logger.warning("hook server registration: %s", problem)
        if found.no_events and not self._is_polled:
            self._is_polled = True
            text = "%s: no events from the kernel (%s), it is polled every %g s"
            logger.warning(text, self._folder, found.no_events, self._settings.poll_s)
        elif found.no_events is None and self._is_polled:
            self._is_polled = False
            logger.info("%s: the kernel reports changes now", self._folder)
        if found.look.registrations != self._current:
            self._current = found.look.registrations
            await self._on_registrations(self._current)
        if found.look.again_s is None:
            self.settled.set()

    async def _rest(self, found: _Found) -> None:
        """Waits until it is time for the next look."""
        needs_polling = found.no_events is not None or found.look.needs_polling
        rest_s = self._settings.poll_s if needs_polling else self._settings.rescan_s
        if found.look.again_s is not None:
            rest_s = min(rest_s, found.look.again_s)
        await wait_for_event([self._events], self._wake, rest_s, self._settings.gather_s)
