"""A small JSON file in the state folder: read within bounds, replaced as a whole.

Nothing that such a file holds keeps the process from starting: what cannot be used is left out, and said.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from runtimeproxy.documents.files import read_file, replace_file
from runtimeproxy.documents.reading import InputError, check_document, parse_json, printable, shortened
from runtimeproxy.errors import described

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 1024 * 1024
"""Many times what a node has: a larger file is neither read nor written."""

ResultT = TypeVar("ResultT")


class SavedFile:
    """Reads one object. Used in one worker thread at a time.

    Args:
        effect: What follows if the file cannot be used, for `unusable`.
        version: What its member `version` says; None: it has none.
        boot_id: What its member `boot_id` says if it is of this boot, and counts at all; None: it has none.

    Attributes:
        unusable: Why the file could not be used when it was read last; empty if it could.
        is_unreadable: Whether that is because it could not be read at all: what it holds may count later.
    """

    def __init__(
        self, path: Path, effect: str, *, version: int | None = None, boot_id: str | None = None
    ) -> None:
        self.path = path
        self.unusable = ""
        self.is_unreadable = False
        self._effect = effect
        self._version = version
        self._boot_id = boot_id

    def load(self, parse: Callable[[Any], ResultT]) -> ResultT | None:
        """What is saved; None if there is nothing that counts. What cannot be used is logged.

        Args:
            parse: Makes it of the object; raises anything if that is not possible.
        """
        self.unusable, self.is_unreadable = "", False
        try:
            data = read_file(self.path, MAX_BYTES)[0]
        except FileNotFoundError:
            return None
        except InputError as error:
            self.is_unreadable = True
            self._report(str(error))
            return None
        try:
            document = self._document(data)
            if self._version is not None and document["version"] != self._version:
                version = shortened(repr(document["version"]))
                raise InputError(f"version {version} is not {self._version}")  # noqa: TRY301
            if self._boot_id is not None and document["boot_id"] != self._boot_id:
                return None
            return parse(document)
        except Exception as error:  # noqa: BLE001 - whatever the file holds, the process starts
            self._report(str(error) if isinstance(error, InputError) else described(error))
            return None

    def _document(self, data: bytes) -> Any:  # noqa: ANN401 - JSON
        """The object in a file. Raises anything if there is none."""
        document = parse_json(data.decode())
        check_document(document)
        return document

    def _report(self, reason: str) -> None:
        self.unusable = f"{printable(self.path)} is not usable: {self._effect}: {shortened(reason)}"
        logger.warning("%s", self.unusable)


class StateFile(SavedFile):
    """Reads and writes one object.

    `is_synced`: as in `replace_file`; all else as in `SavedFile`.
    """

    def __init__(
        self,
        path: Path,
        effect: str,
        *,
        version: int | None = None,
        boot_id: str | None = None,
        is_synced: bool = True,
    ) -> None:
        super().__init__(path, effect, version=version, boot_id=boot_id)
        self._is_synced = is_synced

    def save(self, members: Mapping[str, Any]) -> None:
        """Replaces the file.

        Args:
            members: Of the object, beside `version` and `boot_id`.

        Raises:
            OSError: It cannot be written; the old one stays.
        """
        head = {"version": self._version, "boot_id": self._boot_id}
        present = {name: value for name, value in head.items() if value is not None}
        data = json.dumps({**present, **members}, separators=(",", ":")).encode()
        if len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.path))
        replace_file(self.path, data, is_synced=self._is_synced)
