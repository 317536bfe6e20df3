"""The checkpoint's file, which makes way for a new one if it is unusable. Used in one worker thread only."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from runtimeproxy.pods.checkpoint_rows import Change, Saved

if TYPE_CHECKING:
    from pathlib import Path

    from runtimeproxy.pods.checkpoint import CheckpointFile

logger = logging.getLogger(__name__)


class CheckpointDisk:
    """The file as the worker thread sees it: SQLite is loaded with its first use.

    Args:
        folder: The state folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: CheckpointFile | None = None

    def load(self) -> Saved:
        """Everything in the file; nothing if it had to make way for a new one."""
        from runtimeproxy.pods.checkpoint import UnusableFileError

        try:
            return self._file().load()
        except UnusableFileError as error:
            self._renew(error)
            return self._file().load()

    def write(self, changes: Iterable[Change]) -> bool:
        """Writes changes; returns True if everything has to be written instead, for the file is a new one."""
        from runtimeproxy.pods.checkpoint import UnusableFileError

        file = self._file()
        if file.was_lost():
            logger.warning("%s was removed or replaced: all records are saved again", file.path)
            return True
        try:
            file.write(changes)
        except UnusableFileError as error:
            self._renew(error)
            return True
        return False

    def rewrite(self, changes: Iterable[Change]) -> bool:
        """Writes changes in place of all that is in the file; returns False."""
        from runtimeproxy.pods.checkpoint import UnusableFileError

        try:
            self._file().rewrite(changes)
        except UnusableFileError as error:
            self._renew(error)
            self._file().rewrite(changes)
        return False

    def changed_by_others(self) -> bool:
        """Whether another process has written since the last call."""
        return self._file().changed_by_others()

    def close(self) -> None:
        """Closes the file, if it is open."""
        if self._opened is not None:
            self._opened.close()

    def _file(self) -> CheckpointFile:
        if self._opened is None:
            from runtimeproxy.pods.checkpoint import CheckpointFile

            self._opened = CheckpointFile(self._folder)
        return self._opened

    def _renew(self, error: Exception) -> None:
        aside = self._file().set_aside()
        logger.warning("the records are rebuilt from the runtime: %s; it is kept as %s", error, aside)
