"""Reads `audit.file` and its rotations, in the order of time and within bounds, whatever they hold."""

from __future__ import annotations

import errno
import heapq
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from runtimeproxy.core.audit_lines import entries_of, time_text
from runtimeproxy.documents.reading import InputError, parse_object, printable
from runtimeproxy.errors import described
from runtimeproxy.hooks.audit import AuditEntry

MOST_FILES: Final = 200
MOST_LINE_BYTES: Final = 4 << 20
"""A decision has some KiB."""
WINDOW: Final = 1_000
"""Lines that are put in order: a call that took long is written behind later ones."""
WINDOW_BYTES: Final = 8 << 20

_ROTATED: Final = r"[.-](?P<number>\d[\dT_.-]*?)(?P<suffix>\.(?:gz|xz|bz2|zst))?"
"""What logrotate or the daemon append to the name."""
_TIME: Final = b'{"time":"'
_TIME_LENGTH: Final = len("2026-11-20T10:00:00.000+00:00")
_BROKEN: Final = (InputError, ValueError, TypeError, LookupError, AttributeError)


class _Opened(NamedTuple):
    """A file with its lines."""

    path: Path
    lines: BinaryIO
    first_time: str
    """Of its first line that has one; empty for none."""


class AuditFiles:
    """Reads one file and its rotations.

    Attributes:
        read: The files that were opened, the oldest first.
        oldest: The time of the first entry that they hold, as text; empty for none.
        notes: What could not be read, a sentence each; complete once all entries are read.
        problem: Why none of them can be read; empty if one can.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.read: list[Path] = []
        self.oldest = ""
        self.notes: list[str] = []
        self.problem = ""
        self._files = ExitStack()
        opened = list(self._open())
        # A name says which file is newer only among those of one program that rotates.
        opened.sort(key=lambda each: each.first_time or "~")
        self._opened = opened
        self.read = [each.path for each in opened]
        self.oldest = next((each.first_time for each in opened if each.first_time), "")
        if not opened:
            self.problem = "; ".join(self.notes) or f"{printable(path)}: {os.strerror(errno.ENOENT)}"

    def close(self) -> None:
        self._files.close()

    def entries(self, since_s: float | None, until_s: float | None) -> Iterator[AuditEntry]:
        """The entries of this time, in the order of time; those of one decision follow each other."""
        since = "" if since_s is None else time_text(since_s)
        until = "~" if until_s is None else time_text(until_s)
        window: list[tuple[str, int, int, dict[str, Any]]] = []
        held_bytes = 0
        for number, (line, document) in enumerate(self._documents(since, until)):
            heapq.heappush(window, (document["time"], number, len(line), document))
            held_bytes += len(line)
            while len(window) > WINDOW or held_bytes > WINDOW_BYTES:
                _, _, size, found = heapq.heappop(window)
                held_bytes -= size
                yield from entries_of(found)
        while window:
            yield from entries_of(heapq.heappop(window)[-1])

    def _documents(self, since: str, until: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
        for each in self._opened:
            damaged, first = 0, 0
            for number, line in enumerate(self._lines(each), start=1):
                # All lines of this program begin so: most need not be parsed.
                time = line[len(_TIME) :][:_TIME_LENGTH] if line.startswith(_TIME) else b""
                if time and not since <= time.decode("ascii", "replace") <= until:
                    continue
                try:
                    document = parse_object(line)
                    entries_of(document)
                    # Texts of one form are compared.
                    is_wanted = since <= document["time"] <= until
                except _BROKEN:
                    damaged, first = damaged + 1, first or number
                    continue
                if is_wanted:
                    yield line, document
            if damaged:
                lines = "1 line is" if damaged == 1 else f"{damaged} lines are"
                self.notes.append(
                    f"{printable(each.path)}: {lines} damaged and left out, the first is line {first}"
                )

    def _lines(self, opened: _Opened) -> Iterator[bytes]:
        """The lines; of one that is too long its beginning."""
        try:
            while line := opened.lines.readline(MOST_LINE_BYTES):
                yield line
                while line and not line.endswith(b"\n"):
                    line = opened.lines.readline(MOST_LINE_BYTES)
        except Exception as error:  # noqa: BLE001 - each decompressor has errors of its own
            self.notes.append(f"{printable(opened.path)}: damaged, what follows is left out: {_why(error)}")

    def _open(self) -> Iterator[_Opened]:
        """Opens all files; the newest first, for a rotation meanwhile must leave none out."""
        known: set[tuple[int, int]] = set()
        candidates = self._candidates()
        if len(candidates) > MOST_FILES:
            self.notes.append(f"{len(candidates) - MOST_FILES} older rotations are left out")
        for path in candidates[:MOST_FILES]:
            try:
                opened = self._open_one(path, known)
            except FileNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001 - each decompressor has errors of its own
                self.notes.append(f"{printable(path)}: cannot be read: {_why(error)}")
                continue
            if opened is not None:
                yield opened

    def _open_one(self, path: Path, known: set[tuple[int, int]]) -> _Opened | None:
        # A FIFO must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        file = self._files.enter_context(os.fdopen(descriptor, "rb"))
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if (about.st_dev, about.st_ino) in known:
            return None
        known.add((about.st_dev, about.st_ino))
        lines = _decompressed(path.suffix, file)
        first_time = _first_time(lines)
        lines.seek(0)
        return _Opened(path, lines, first_time)

    def _candidates(self) -> list[Path]:
        """The file and its rotations, the newest first as far as their names say it."""
        pattern = re.compile(re.escape(self._path.name) + _ROTATED)
        try:
            names = [each.name for each in self._path.parent.iterdir()]
        except OSError:
            names = []
        found = [match for name in names if (match := pattern.fullmatch(name))]
        counted = sorted((each for each in found if len(each["number"]) < 8), key=_number)
        dated = sorted((each for each in found if len(each["number"]) >= 8), key=_number, reverse=True)
        return [self._path, *(self._path.with_name(each[0]) for each in (*counted, *dated))]


def _number(match: re.Match[str]) -> tuple[int, str]:
    digits = re.sub(r"\D", "", match["number"])
    return int(digits), match[0]


def _first_time(lines: BinaryIO) -> str:
    # Of a damaged beginning some lines are passed over.
    for _ in range(10):
        line = lines.readline(MOST_LINE_BYTES)
        if line.startswith(_TIME):
            return line[len(_TIME) :][:_TIME_LENGTH].decode("ascii", "replace")
    return ""


def _decompressed(suffix: str, file: BinaryIO) -> BinaryIO:
    if suffix == ".gz":
        import gzip

        return cast("BinaryIO", gzip.GzipFile(fileobj=file))
    if suffix == ".xz":
        import lzma

        return cast("BinaryIO", lzma.LZMAFile(file))
    if suffix == ".bz2":
        import bz2

        return cast("BinaryIO", bz2.BZ2File(file))
    if suffix == ".zst":
        raise ValueError("zstd is not supported; zstdcat shows it")
    return file


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, ValueError) else described(error)
