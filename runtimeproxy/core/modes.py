"""The modes of policies that operators have set. They are on disk, and survive restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, Final

from runtimeproxy.hooks.modes import MOST_OVERRIDES, Override, as_json, from_json, present
from runtimeproxy.state.state_file import StateFile

FILE: Final = "modes.json"
"""In the state folder."""
VERSION: Final = 1


class ModeOverrides:
    """Used in the event loop's thread.

    Attributes:
        present: Those in effect, oldest first.
        ended: Those whose time was over when the file was read; for the audit, which forgets them.
        is_read: Whether the file has been read.
    """

    def __init__(self, state_folder: Path) -> None:
        effect = "modes of policies that were set by command do not count"
        self.file = StateFile(state_folder / FILE, effect, version=VERSION)
        self.present: tuple[Override, ...] = ()
        self.ended: tuple[Override, ...] = ()
        self.is_read = False

    async def read(self, thread: Executor) -> None:
        """Takes what is saved, without modes whose time is over; nothing if the file cannot be used."""
        run = asyncio.get_running_loop().run_in_executor
        saved = await run(thread, partial(self.file.load, _overrides)) or ()
        self.present = present(saved, time.time())
        self.ended = tuple(each for each in saved if each not in self.present)
        self.is_read = True

    async def save(self, overrides: tuple[Override, ...], thread: Executor) -> None:
        """Replaces the modes, on disk first. Raises OSError if they cannot be written; the old ones stay."""
        document = {"overrides": [as_json(each) for each in overrides]}
        await asyncio.get_running_loop().run_in_executor(thread, self.file.save, document)
        self.present = overrides


def _overrides(saved: Mapping[str, Any]) -> tuple[Override, ...]:
    return tuple(map(from_json, saved["overrides"][:MOST_OVERRIDES]))
