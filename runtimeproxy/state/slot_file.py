"""A small JSON file that is saved while calls wait: of two slots the older one is overwritten.

Nothing is synced or renamed. A rename over a file has ext4 write its blocks first, which takes milliseconds
(Source: Linux fs/ext4/namei.c, ext4_rename, and ext4(5), auto_da_alloc); an overwrite stays in memory. So the
value outlives the end of the process, `kill -9` too, and no loss of power. A write that is cut short leaves
the other slot, which is the value before it.

Behind the slots come changes of the newer one, if its owner saves any: small ones, so that a large value is
not written each time.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from runtimeproxy.documents.files import replace_file
from runtimeproxy.documents.reading import InputError, check_document, parse_json
from runtimeproxy.state.state_file import MAX_BYTES, SavedFile

VALUE: Final = "value"
"""The member of the object that has what was saved."""
CHANGES: Final = "changes"
"""The member that has its changes since, in their order; not there if there are none."""
_CHANGE: Final = "change"
_LEAST_BYTES: Final = 16 * 1024
"""Of a slot."""
_PAGE_BYTES: Final = 4096
_CHECKSUM: Final = b',"checksum":'


class SlotFile(SavedFile):
    """Reads and writes one value, the member `value` of what `load` parses.

    Each slot is a line: an object, and blanks to the slot's end. So is each change, with the serial number of
    the slot that it is one of: those of an older one do not count.
    """

    def __init__(self, path: Path, effect: str, *, boot_id: str) -> None:
        super().__init__(path, effect, boot_id=boot_id)
        self._head = f'{{"boot_id":{json.dumps(boot_id)},"serial":'
        self._serial = 0
        # The file that this has made; one that is there in its place is replaced as a whole.
        self._descriptor = -1
        self._slot_bytes = 0
        # How much of each slot is no blanks.
        self._used_bytes = [0, 0]
        # Where the next change goes, and how large the file is.
        self._changes_end = 0
        self._file_bytes = 0

    def save(self, text: str) -> None:
        """Saves a value.

        `text`: as JSON on one line.

        Raises:
            OSError: It cannot be written; the value before it stays.
        """
        serial = self._serial + 1
        data = self._line(serial, VALUE, text)
        if 2 * (len(data) + 1) > MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.path))
        if not self._overwrite(data, serial % 2):
            self._replace(data, serial % 2)
        self._serial = serial
        self._changes_end = 2 * self._slot_bytes

    def add(self, text: str) -> bool:
        """Saves a change of the value that was saved last.

        `text`: as JSON on one line.

        Returns:
            Whether that was possible; if not, the whole value is to be saved.

        Raises:
            OSError: It cannot be written; the value without it stays.
        """
        data, at = self._line(self._serial, _CHANGE, text) + b"\n", self._changes_end
        # As much as a slot: what changes often is written as a whole about as often as it fills one.
        if not self._is_usable() or at + len(data) > 3 * self._slot_bytes:
            return False
        written = os.pwrite(self._descriptor, data, at)
        self._file_bytes = max(self._file_bytes, at + written)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._changes_end = at + written
        return True

    def _line(self, serial: int, member: str, text: str) -> bytes:
        head = f'{self._head}{serial},"{member}":{text}'.encode()
        return b"%b%b%d}" % (head, _CHECKSUM, crc32(head))

    def close(self) -> None:
        """Closes the file; the next `save` makes another one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _overwrite(self, data: bytes, slot: int) -> bool:
        """Writes a slot; returns whether the file is there, and the slot is large enough."""
        size, before = self._slot_bytes, self._used_bytes[slot]
        if len(data) >= size or not self._is_usable():
            return False
        self._used_bytes[slot] = max(before, len(data))
        written = os.pwrite(self._descriptor, data.ljust(before), slot * size)
        if written < max(before, len(data)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._used_bytes[slot] = len(data)
        return True

    def _is_usable(self) -> bool:
        """Whether the file is as this has left it, and still the one that a restart reads."""
        if self._descriptor < 0:
            return False
        about = os.fstat(self._descriptor)
        try:
            return about.st_size == self._file_bytes and os.path.samestat(about, os.lstat(self.path))
        except OSError:
            return False

    def _replace(self, data: bytes, slot: int) -> None:
        self.close()
        size = max(_LEAST_BYTES, -(-2 * len(data) // _PAGE_BYTES) * _PAGE_BYTES)
        size = max(len(data) + 1, min(size, MAX_BYTES // 2))
        slots = [_slot(b"", size), _slot(b"", size)]
        slots[slot] = _slot(data, size)
        replace_file(self.path, b"".join(slots), is_synced=False)
        self._slot_bytes, self._used_bytes = size, [0, 0]
        self._used_bytes[slot], self._file_bytes = len(data), 2 * size
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def _document(self, data: bytes) -> Any:  # noqa: ANN401 - JSON
        lines = data.splitlines()
        slots = [found for found in map(_object_in, lines[:2]) if found is not None and VALUE in found]
        if not slots:
            raise InputError("no slot has a whole object")
        newest = max(slots, key=lambda each: int(each["serial"]))
        changes = []
        for line in lines[2:]:
            found = _object_in(line)
            if found is None or _CHANGE not in found or found["serial"] != newest["serial"]:
                # Those of a value before, or the rest of them.
                break
            changes.append(found[_CHANGE])
        return {**newest, CHANGES: changes} if changes else newest


def _object_in(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if it is not whole."""
    head, _, checksum = line.rstrip().rpartition(_CHECKSUM)
    if head and checksum == b"%d}" % crc32(head):
        with suppress(InputError, UnicodeDecodeError):
            document = parse_json(line.decode())
            check_document(document)
            if isinstance(document, dict):
                return document
    return None


def _slot(data: bytes, size: int) -> bytes:
    return data.ljust(size - 1) + b"\n"
