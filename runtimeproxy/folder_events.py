"""Events of the kernel about what happens in a folder."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from inotify_simple import INotify

_LIMITS: Final = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}
"""Source: inotify(7), "ERRORS" of inotify_init(2) and inotify_add_watch(2)."""


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
        """Closes the inotify instance."""
        inotify, self._inotify, self._watch = self._inotify, None, None
        if inotify is not None:
            inotify.close()


async def wait_for_event(
    folders: Iterable[FolderEvents], wake: asyncio.Event, most_s: float, gather_s: float
) -> None:
    """Waits for an event in one of the folders, at most so long, and then for others that follow it.

    Args:
        folders: What is waited for.
        wake: Set by an event; ends the waiting if something else sets it.
        most_s: The longest wait for the first event.
        gather_s: How long others are waited for.
    """
    loop = asyncio.get_running_loop()
    filenos = [events.fileno for events in folders if events.fileno is not None]
    for fileno in filenos:
        loop.add_reader(fileno, wake.set)
    try:
        async with asyncio.timeout(most_s):
            await wake.wait()
    except TimeoutError:
        return
    finally:
        for fileno in filenos:
            loop.remove_reader(fileno)
    await asyncio.sleep(gather_s)


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
