"""Events of the kernel about what happens in a folder."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from concurrent.futures import Future

    from inotify_simple import INotify

logger = logging.getLogger(__name__)

_LIMITS: Final = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}
"""Source: inotify(7), "ERRORS" of inotify_init(2) and inotify_add_watch(2)."""


def open_inotify() -> INotify:
    """Opens an inotify instance. Raises OSError if there are too many, or the kernel has none."""
    import inotify_simple  # loads ctypes: only where folders are watched, and not in the loop's thread

    try:
        return inotify_simple.INotify(nonblocking=True)
    except AttributeError as error:
        raise OSError("the C library has no inotify") from error


class FolderEvents:
    """Becomes readable when something happens in a folder.

    `renew` and `close` are called in one thread at a time.

    Args:
        folder: May come, go and be replaced.
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

    def try_renew(self) -> str | None:
        """Renews the watch.

        Returns:
            Why there are no events: an empty text if only the folder is missing; None if there are events.
        """
        try:
            self.renew()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ImportError) as error:
            limit = _LIMITS.get(error.errno) if isinstance(error, OSError) and error.errno else None
            return f"{error}; see fs.inotify.{limit}" if limit else str(error)
        return None

    def close(self) -> None:
        inotify, self._inotify, self._watch = self._inotify, None, None
        if inotify is not None:
            inotify.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How folders are watched."""

    poll_s: float = 1.0
    """Time between two looks without events."""
    rescan_s: float = 10.0
    """Time between two looks with events, for changes that have none (sysfs) or whose events were lost."""
    gather_s: float = 0.05
    """How long events are gathered, so that many changes do not make many looks."""
    open_inotify: Callable[[], INotify] = open_inotify
    """Opens an inotify instance."""


class FolderWatch:
    """Waits for changes of folders, by events or by polling; but for `renew` in the event loop's thread.

    Args:
        name: Begins the lines of the log.
        folders: Come and go.

    Attributes:
        wake: Ends the waiting; set by events, and whenever something else has changed.
        polling_reason: Why the kernel reports no changes, and files are polled; empty if it does.
    """

    def __init__(self, name: object, folders: Iterable[Path], settings: WatchSettings) -> None:
        self.wake = asyncio.Event()
        self.polling_reason = ""
        self._name = name
        self._settings = settings
        self._events = [FolderEvents(folder, settings.open_inotify) for folder in folders]

    def renew(self) -> str | None:
        """Renews the watches, in a worker thread before it looks: so no event is missed; see `try_renew`."""
        reasons = [reason for events in self._events if (reason := events.try_renew()) is not None]
        return next(filter(None, reasons), "") if reasons else None

    def report(self, no_events: str | None) -> None:
        """Logs if what `renew` returned is another state than before."""
        if no_events and not self.polling_reason:
            text = "%s: no events from the kernel (%s), files are polled every %g s"
            logger.warning(text, self._name, no_events, self._settings.poll_s)
        elif not no_events and self.polling_reason:
            logger.info("%s: the kernel reports changes of files now", self._name)
        self.polling_reason = no_events or ""

    async def wait(self, *, needs_polling: bool, most_s: float | None) -> None:
        """Waits for the first event, until the next look is due, and then for others that follow it.

        Args:
            needs_polling: Whether changes may come without an event.
            most_s: When a look is due even without one; None for no such time.
        """
        rest_s = self._settings.poll_s if needs_polling else self._settings.rescan_s
        loop = asyncio.get_running_loop()
        filenos = [events.fileno for events in self._events if events.fileno is not None]
        for fileno in filenos:
            loop.add_reader(fileno, self.wake.set)
        try:
            async with asyncio.timeout(rest_s if most_s is None else min(rest_s, most_s)):
                await self.wake.wait()
        except TimeoutError:
            return
        finally:
            for fileno in filenos:
                loop.remove_reader(fileno)
        await asyncio.sleep(self._settings.gather_s)

    def close_after(self, job: Future[Any] | None) -> None:
        # A thread that has not ended its job may still use them.
        if job is not None:
            job.add_done_callback(lambda _: self._close())

    def _close(self) -> None:
        for events in self._events:
            events.close()


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
