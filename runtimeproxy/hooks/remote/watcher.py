"""Watches the folder in which hook servers register, by the kernel's events or, without them, by polling."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from runtimeproxy.hooks.remote.registrations import Look, Registration, Registrations


class Inotify(Protocol):
    """What is used of `inotify_simple.INotify`."""

    def add_watch(self, path: Path, mask: int) -> int:
        """Asks for events; the same folder has the same number each time."""

    def rm_watch(self, wd: int) -> None:
        """Ends them."""

    def read(self, timeout: int) -> list[Any]:
        """Takes the events that wait."""

    def fileno(self) -> int:
        """The descriptor that is readable while events wait."""

    def close(self) -> None:
        """Gives it back."""


OpenInotify: TypeAlias = Callable[[], Inotify]


def open_inotify() -> Inotify:
    """Opens an inotify instance.

    Raises:
        OSError: there are too many, or the kernel has none.
    """
    import inotify_simple  # loads ctypes: only where folders are watched, and not in the loop's thread

    try:
        return cast("Inotify", inotify_simple.INotify(nonblocking=True))
    except AttributeError as error:
        raise OSError("the C library has no inotify") from error


class FolderEvents:
    """Becomes readable when something happens in a folder.

    `renew` and `close` are called in one thread at a time.

    Args:
        folder: which; it may come, go and be replaced.
        open_inotify: makes the instance, when it is needed first.
    """

    def __init__(self, folder: Path, open_inotify: OpenInotify = open_inotify) -> None:
        self._folder = folder
        self._open = open_inotify
        self._inotify: Inotify | None = None
        self._watch: int | None = None

    @property
    def fileno(self) -> int | None:
        """The descriptor that becomes readable; None while nothing is watched."""
        return None if self._inotify is None or self._watch is None else self._inotify.fileno()

    def renew(self) -> None:
        """Forgets the events up to now and asks for those to come, of whatever the folder is now.

        Raises:
            FileNotFoundError, NotADirectoryError: there is no such folder just now.
            OSError: the kernel has no inotify, or no more of it for this user.
        """
        inotify = self._inotify = self._inotify or self._open()
        before, self._watch = self._watch, None
        try:
            self._watch = inotify.add_watch(self._folder, _mask())
        finally:
            if before is not None and before != self._watch:
                # The kernel ends the watch of a folder that is deleted by itself.
                with suppress(OSError):
                    inotify.rm_watch(before)
            inotify.read(timeout=0)

    def close(self) -> None:
        """Gives everything back."""
        inotify, self._inotify, self._watch = self._inotify, None, None
        if inotify is not None:
            inotify.close()


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


logger = logging.getLogger(__name__)

GATHER_S: Final = 0.05
"""How long events are gathered, so that many changes do not make many looks."""

OnRegistrations: TypeAlias = Callable[[tuple[Registration, ...]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """How a folder is watched."""

    poll_s: float = 0.5
    """Time between two looks where the kernel tells nothing. Default 0.5 s: changes count within a second."""
    rescan_s: float = 10.0
    """Time between two looks where the kernel tells of changes, for those that it lost. Default 10 s."""
    open_inotify: OpenInotify = open_inotify
    """Makes the inotify instance."""


class _Found(NamedTuple):
    look: Look
    missing_events: str | None
    """Why the kernel tells nothing; empty if only the folder is missing; None if it does tell."""


class RegistrationDirectory:
    """Tells what is registered in a folder, at the start and whenever that changes.

    Args:
        folder: where the files are; it is made with mode 0755 if it is missing at the start.
        default_timeout_s: the time for one call of a server whose file says nothing of it.
        executor: a thread for reading files; it may hang with them.
        on_registrations: gets all registrations, by file name, when there is any change.
        watching: how to watch; None for the defaults.

    Attributes:
        settled: set once all files that are there have been read, and none of them is just being written.
    """

    def __init__(
        self,
        folder: Path,
        default_timeout_s: float,
        executor: Executor,
        on_registrations: OnRegistrations,
        watching: Watching | None = None,
    ) -> None:
        self._folder = folder
        self._default_timeout_s = default_timeout_s
        self._executor = executor
        self._on_registrations = on_registrations
        self._files = Registrations(folder)
        self._watching = watching or Watching()
        self._events = FolderEvents(folder, self._watching.open_inotify)
        self._current: tuple[Registration, ...] = ()
        self._is_polled = False
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()

    def configure(self, default_timeout_s: float) -> None:
        """Takes another default for the time of one call."""
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
                await self._take(found)
                await self._rest(found)
        finally:
            # A thread that still looks uses the events; they are given back after it.
            if job is not None:
                job.add_done_callback(lambda _: self._events.close())

    def _make_folder(self) -> None:
        """In the executor's thread: makes the folder and what is missing above it."""
        try:
            for path in [*reversed(self._folder.parents), self._folder]:
                if not path.exists():
                    path.mkdir()
                    # The service's umask is not for this one: servers of other users register here.
                    path.chmod(0o755)
        except OSError as error:
            logger.warning("%s: cannot be made: %s", self._folder, error.strerror)

    def _find(self) -> _Found:
        """In the executor's thread: a look, with the events renewed before it so that none is missed."""
        missing: str | None = None
        try:
            self._events.renew()
        except (FileNotFoundError, NotADirectoryError):
            missing = ""
        except (OSError, ImportError) as error:
            missing = _told(error)
        return _Found(self._files.look(self._default_timeout_s), missing)

    async def _take(self, found: _Found) -> None:
        for problem in found.look.problems:
            logger.warning("hook server registration: %s", problem)
        self._tell_polling(found.missing_events)
        if found.look.registrations != self._current:
            self._current = found.look.registrations
            await self._on_registrations(self._current)
        if found.look.again_s is None:
            self.settled.set()

    def _tell_polling(self, missing_events: str | None) -> None:
        if missing_events and not self._is_polled:
            self._is_polled = True
            logger.warning(
                "%s: no events from the kernel (%s), so it is looked at each %g s",
                self._folder,
                missing_events,
                self._watching.poll_s,
            )
        elif missing_events is None and self._is_polled:
            self._is_polled = False
            logger.info("%s: the kernel tells of changes now", self._folder)

    async def _rest(self, found: _Found) -> None:
        """Waits until it is time for the next look."""
        needs_polling = found.missing_events is not None or found.look.needs_polling
        rest_s = self._watching.poll_s if needs_polling else self._watching.rescan_s
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
        await asyncio.sleep(GATHER_S)


def _told(error: Exception) -> str:
    """Why there are no events. Source: inotify(7), the errors of its system calls are those of its limits."""
    limits = {errno.EMFILE: "fs.inotify.max_user_instances", errno.ENOSPC: "fs.inotify.max_user_watches"}
    limit = limits.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"{error}; see {limit}" if limit else str(error)
