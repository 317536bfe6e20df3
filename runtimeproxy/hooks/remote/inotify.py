"""The kernel's events of one folder: only that something happened counts, not what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast


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
