"""Watches the folder in which hook servers register, by inotify or, without it, by polling."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from runtimeproxy.hooks.remote.registrations import GRACE_S, Look, Registration, Registrations

if TYPE_CHECKING:
    from inotify_simple import INotify

logger = logging.getLogger(__name__)

OnRegistrations: TypeAlias = Callable[[tuple[Registration, ...]], Awaitable[None]]


def open_inotify() -> INotify:
    """Opens an inotify instance.

    Raises:
        OSError: There are too many, or the kernel has none.
    """
    import inotify_simple  # loads ctypes: only where folders are watched, and not in the loop's thread

    try:
        return inotify_simple.INotify(nonblocking=True)
    except AttributeError as error:
        raise OSError("the C library has no inotify") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
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


class FolderEvents:
    """Becomes readable when something happens in a folder.

    `renew` and `close` are called in one thread at a time.

    Args:
        folder: May come, go and be replaced.
        open_inotify: Opens the inotify instance at the first `renew`.
    """

    def __init__(self, folder: Path, open_inotify: Callable[[], INotify] = open_inotify) -> None:
        self._folder = folder
        self._open = open_inotify
        self._inotify: INotify | None = None
        self._watch: int | None = None

    @property
    def fileno(self) -> int | None:
        """The descriptor that becomes readable; None while nothing is watched."""
        if self._inotify is None or self._watch is None:
            return None
        fileno: int = self._inotify.fileno()
        return fileno

    def renew(self) -> None:
        """Discards the events up to now and watches the folder that is there now.

        Raises:
            FileNotFoundError, NotADirectoryError: There is no such folder just now.
            OSError: The kernel has no inotify, or no more of it for this user.
        """
        inotify = self._inotify = self._inotify or self._open()
        before, self._watch = self._watch, None
        try:
            self._watch = inotify.add_watch(self._folder, _mask())
        finally:
            if before is not None and before != self._watch:
                # The kernel itself ends the watch of a deleted folder.
                with suppress(OSError):
                    inotify.rm_watch(before)
            inotify.read(timeout=0)

    def close(self) -> None:
        """Closes the inotify instance."""
        inotify, self._inotify, self._watch = self._inotify, None, None
        if inotify is not None:
            inotify.close()


class _Found(NamedTuple):
    look: Look
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
    """

    def __init__(
        self,
        folder: Path,
        default_timeout_s: float,
        executor: Executor,
        on_registrations: OnRegistrations,
        settings: WatchSettings | None = None,
    ) -> None:
        self._folder = folder
        self._default_timeout_s = default_timeout_s
        self._executor = executor
        self._on_registrations = on_registrations
        self._settings = settings or WatchSettings()
        self._files = Registrations(folder, grace_s=self._settings.grace_s)
        self._events = FolderEvents(folder, self._settings.open_inotify)
        self._current: tuple[Registration, ...] = ()
        self._is_polled = False
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()

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
        no_events: str | None = None
        try:
            self._events.renew()
        except (FileNotFoundError, NotADirectoryError):
            no_events = ""
        except (OSError, ImportError) as error:
            no_events = str(error)
            # Source: inotify(7), "ERRORS" of inotify_init(2) and inotify_add_watch(2).
            limits = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}
            if isinstance(error, OSError) and error.errno in limits:
                no_events += f"; see fs.inotify.{limits[error.errno]}"
        return _Found(self._files.look(self._default_timeout_s), no_events)

    async def _report(self, found: _Found) -> None:
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
        fileno = self._events.fileno
        loop = asyncio.get_running_loop()
        if fileno is not None:
            loop.add_reader(fileno, self._wake.set)
        try:
            async with asyncio.timeout(rest_s):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            if fileno is not None:
                loop.remove_reader(fileno)
        await asyncio.sleep(self._settings.gather_s)


def _mask() -> int:
    from inotify_simple import flags

    return int(
        flags.ONLYDIR
        | flags.CREATE
        | flags.CLOSE_WRITE
        | flags.MODIFY
        | flags.ATTRIB
        | flags.DELETE
        | flags.MOVED_FROM
        | flags.MOVED_TO
        | flags.DELETE_SELF
        | flags.MOVE_SELF
    )
