"""The journal: what a file held, and what is to be written to it, on disk before that is written.

The checkpoint follows some milliseconds later, and a process that is killed in between would not know its
own values. A line is one write to a file that is never synced: it survives the end of the process, and a
reboot ends all that it is about.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from runtimeproxy.documents.reading import InputError, check_document, json_value, printable
from runtimeproxy.errors import UNLIKE_OURS
from runtimeproxy.fields.tables import saved_value
from runtimeproxy.hooks.algebra import Role
from runtimeproxy.pods.records import Book, Level, Original
from runtimeproxy.state.state_file import MAX_BYTES

logger = logging.getLogger(__name__)

PATTERN: Final = "journal-*.jsonl"
"""Names of the files in the state folder: one of each process, for two write around an upgrade."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
"""Source: random(4)."""

Value = int | str


def read_boot_id(path: Path = BOOT_ID) -> str:
    """The id of this boot of the kernel; empty if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return ""


class Noted(NamedTuple):
    """One line: what is about to be written to one cgroup."""

    cgroup: str
    level: Level
    originals: Mapping[str, Original]
    """By file; those that are new."""
    values: Mapping[str, Value]
    """By parameter."""
    before: Mapping[str, Value]
    """The values of the same parameters that were written last."""
    leases: Mapping[str, tuple[tuple[str, str], ...]] = {}
    """By parameter, owner and role of each claim with a lease, whose values are in the files only."""


class Journal:
    """The files of one state folder. Safe for all threads.

    Args:
        folder: The state folder; made if it is missing.
        boot_id: Of this boot: lines of another one do not count.

    Attributes:
        problem: Why values are neither in the journal nor in the checkpoint; empty if all are in one of them.
        unusable: Of the journals of other processes, what could not be read; empty for nothing.
    """

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._lock = Lock()
        self._path: Path | None = None
        self._descriptor = -1
        self._size = 0
        self._is_cut = False
        # What the checkpoint lacks: by cgroup, the files whose original and the parameters whose value it is.
        self._unsaved: dict[str, dict[str, object]] = {}
        self._left: list[Path] = []
        self.problem = ""
        self.unusable = ""

    def note(self, noted: Noted) -> None:
        """Appends a line. On a full disk the values are written all the same; `problem` says so."""
        fields: list[object] = [
            self._boot_id,
            noted.cgroup,
            int(noted.level),
            {file: list(original) for file, original in noted.originals.items()},
            dict(noted.values),
            dict(noted.before),
        ]
        if noted.leases:
            fields.append(dict(noted.leases))
        line = json.dumps(fields, separators=(",", ":"))
        data = f"{line}\n".encode()
        with self._lock:
            self._note_unsaved(noted)
            try:
                if self._descriptor < 0:
                    self._open()
                self._append(data)
                self.problem = ""
            except OSError as error:
                if not self.problem:
                    logger.warning("the journal cannot be written: %s: %s", self._folder, error.strerror)
                self.problem = f"the journal cannot be written: {error.strerror}"

    def read(self) -> list[Noted]:
        """The lines of all processes but this one, oldest file first.

        The files of processes that have ended are removed when the checkpoint has all of it.
        """
        found: list[tuple[int, Path]] = []
        for path in self._folder.glob(PATTERN):
            with suppress(OSError):
                found.append((path.stat().st_mtime_ns, path))
        lines: list[Noted] = []
        with self._lock:
            for _, path in sorted(found):
                if path == self._path:
                    continue
                text, is_left, is_whole = _text_of(path)
                bad = 0
                for line in text.splitlines(keepends=True):
                    try:
                        noted = self._parsed(line)
                    except (*UNLIKE_OURS, InputError):
                        # The last one of a process that was killed may be cut.
                        bad += line.endswith("\n")
                    else:
                        lines += [noted] if noted is not None else []
                reasons = [] if is_whole else [f"only the first {MAX_BYTES} bytes of the journal are read"]
                reasons += [f"{bad} lines of the journal are not usable"] if bad else []
                if reasons:
                    self.unusable = f"{printable(path)}: {'; '.join(reasons)}"
                    logger.warning("%s", self.unusable)
                if is_left and path not in self._left:
                    self._left.append(path)
            for noted in lines:
                self._note_unsaved(noted)
        return lines

    def settle(self, book: Book) -> None:
        """A batch is over: what was noted of its cgroup is to be saved as its book has it.

        A value that could not be written, and one that was given back, need not be.
        """
        with self._lock:
            unsaved = self._unsaved.get(book.id)
            if unsaved is not None:
                known: dict[str, object] = {_ORIGINAL + file: it for file, it in book.originals.items()}
                for name, entry in book.entries.items():
                    if entry.resolved is not None:
                        known[name] = entry.resolved
                    known[_LEASES + name] = entry.leases
                self._unsaved[book.id] = {key: known[key] for key in unsaved if key in known}
                if not self._unsaved[book.id]:
                    del self._unsaved[book.id]

    def note_saved(self, cgroup: str, book: Book | None) -> None:
        with self._lock:
            unsaved = self._unsaved.get(cgroup)
            if unsaved is not None:
                left = (
                    {}
                    if book is None
                    else {key: it for key, it in unsaved.items() if not _has(book, key, it)}
                )
                if left:
                    self._unsaved[cgroup] = left
                else:
                    del self._unsaved[cgroup]
            if not self._unsaved:
                self._empty()
                # The checkpoint has all that the journal lacks.
                self.problem = ""

    def close(self) -> None:
        with self._lock:
            if self._descriptor < 0 or self._path is None:
                return
            if not self._unsaved:
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor, self._path = -1, None

    def _note_unsaved(self, noted: Noted) -> None:
        unsaved = self._unsaved.setdefault(noted.cgroup, {})
        unsaved.update((_ORIGINAL + file, original) for file, original in noted.originals.items())
        unsaved.update(noted.values)
        unsaved.update((_LEASES + name, leases) for name, leases in noted.leases.items())

    def _append(self, data: bytes) -> None:
        if self._is_cut:
            data = b"\n" + data
        written = os.write(self._descriptor, data)
        self._size += written
        # A full disk takes a part: the next line must not be lost with it.
        self._is_cut = written < len(data)
        if self._is_cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / PATTERN.replace("*", f"{os.getpid()}-{os.urandom(4).hex()}")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        # Tells the file of a process that has ended from others.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path, self._size = path, 0

    def _empty(self) -> None:
        for path in self._left:
            with suppress(OSError):
                path.unlink()
        self._left.clear()
        if self._size:
            # An old line would tell a later process of values that are given back by then.
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                self._size, self._is_cut = 0, False

    def _parsed(self, line: str) -> Noted | None:
        """A line of this boot; None for one of another boot. Raises InputError, or one of `UNLIKE_OURS`."""
        fields = json_value(line)
        check_document(fields)
        boot_id, cgroup, level, originals, values, before, *more = fields
        if boot_id != self._boot_id:
            return None
        found = {str(file): _original(each) for file, each in originals.items()}
        leases = {
            str(name): tuple((str(owner), Role(role)) for owner, role in each)
            for name, each in (more[0] if more else {}).items()
        }
        return Noted(str(cgroup), Level(level), found, _values(values), _values(before), leases)


def _original(value: Any) -> Original:  # noqa: ANN401 - from JSON
    text, inode = value
    return Original(None if text is None else str(text), int(inode))


def _values(value: Mapping[str, Any]) -> dict[str, Value]:
    return {name: saved_value(name, each) for name, each in value.items()}


_LEASES: Final = "leases of "
"""Begins the key of what is noted about claims with a lease; no parameter's name has a space."""
_ORIGINAL: Final = "original of "
"""Begins the key of an original: files are named like parameters, all of version 1 and some of version 2."""


def _has(book: Book, key: str, noted: object) -> bool:
    if key.startswith(_ORIGINAL):
        return book.originals.get(key.removeprefix(_ORIGINAL)) == noted
    entry = book.entries.get(key.removeprefix(_LEASES))
    if key.startswith(_LEASES):
        return (() if entry is None else entry.leases) == noted
    # What a claim with a lease moves is in no checkpoint, and needs to be in none.
    return entry is not None and (entry.resolved == noted or bool(entry.leases))


def _text_of(path: Path) -> tuple[str, bool, bool]:
    """The content of a file, whether its process has ended, and whether that is all of it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "", False, True
    try:
        is_left = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            is_left = False
        data = bytearray()
        while len(data) <= MAX_BYTES and (part := os.read(descriptor, 1 << 20)):
            data += part
        return data[:MAX_BYTES].decode("utf-8", "replace"), is_left, len(data) <= MAX_BYTES
    except OSError:
        return "", False, True
    finally:
        os.close(descriptor)
