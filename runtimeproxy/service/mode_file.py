"""The modes of policies that operators have set, on disk: they survive restarts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runtimeproxy.errors import described
from runtimeproxy.hooks.modes import MOST_OVERRIDES, Override, as_json, from_json
from runtimeproxy.node.documents import InputError
from runtimeproxy.node.input_file import read_file, replace_file

logger = logging.getLogger(__name__)

FILE: Final = "modes.json"
"""In the state folder."""
VERSION: Final = 1
MOST_BYTES: Final = 1024 * 1024


class ModeFile:
    """For one worker thread at a time.

    Args:
        state_folder: Where the file is.
    """

    def __init__(self, state_folder: Path) -> None:
        self._path = state_folder / FILE

    def load(self) -> tuple[Override, ...]:
        """What is saved; nothing if the file cannot be used, which is logged."""
        try:
            return _parsed(json.loads(read_file(self._path, MOST_BYTES)[0]))
        except FileNotFoundError:
            return ()
        except (InputError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            text = "%s is not usable: modes of policies that were set by command do not count: %s"
            logger.warning(text, self._path, described(error))
            return ()

    def save(self, overrides: tuple[Override, ...]) -> None:
        """Puts them on disk.

        Raises:
            OSError: They cannot be written; the old ones stay.
        """
        saved = {"version": VERSION, "overrides": [as_json(each) for each in overrides]}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(saved, separators=(",", ":")).encode())


def _parsed(saved: Mapping[str, Any]) -> tuple[Override, ...]:
    if saved["version"] != VERSION:
        raise ValueError(f"version {saved['version']} is not {VERSION}")
    return tuple(map(from_json, saved["overrides"][:MOST_OVERRIDES]))
