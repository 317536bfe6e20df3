"""The modes of policies that operators have set, on disk: they survive restarts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtimeproxy.hooks.modes import MOST_OVERRIDES, Override, as_json, from_json
from runtimeproxy.state.state_file import StateFile

FILE: Final = "modes.json"
"""In the state folder."""
VERSION: Final = 1


class ModeFile:
    """For one worker thread at a time.

    Args:
        state_folder: Where the file is.
    """

    def __init__(self, state_folder: Path) -> None:
        effect = "modes of policies that were set by command do not count"
        self._file = StateFile(state_folder / FILE, effect, version=VERSION)

    @property
    def unusable(self) -> str:
        """Why the file could not be used; empty if it could."""
        return self._file.unusable

    def load(self) -> tuple[Override, ...]:
        """What is saved; nothing if the file cannot be used."""
        return self._file.load(_overrides) or ()

    def save(self, overrides: tuple[Override, ...]) -> None:
        """Puts them on disk.

        Raises:
            OSError: They cannot be written; the old ones stay.
        """
        self._file.save({"overrides": [as_json(each) for each in overrides]})


def _overrides(saved: Mapping[str, Any]) -> tuple[Override, ...]:
    return tuple(map(from_json, saved["overrides"][:MOST_OVERRIDES]))
