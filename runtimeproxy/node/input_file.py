"""Files that other programs write: read whatever lies under their names, with the last good value of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from runtimeproxy.documents.files import Stamp, is_watchable, read_file, stamp_of
from runtimeproxy.documents.reading import InputError, printable
from runtimeproxy.errors import described

GRACE_S: Final = 60.0
"""How long the value of a missing file, or of a missing part, stays valid: a ConfigMap that is
swapped looks like one, and so does an editor that saves."""
SETTLE_S: Final = 0.25
"""How long a file must stay the same before it is read: a shell writes what `kubectl` prints in pieces, of
which each but the last may look complete. A ConfigMap's files are swapped as a whole."""
MOST_SETTLE_S: Final = 5.0
"""Longest time without a read of a file that changes again and again."""

T = TypeVar("T")


class ParsedInput(NamedTuple, Generic[T]):
    """The content of a file."""

    value: T
    source: Any = None
    """The value as JSON can hold it, to be saved; None: not to be saved."""
    problems: tuple[str, ...] = ()
    """About parts of it that cannot be used, and for which the last good ones stand in the value."""
    notes: tuple[str, ...] = ()
    """About parts of it that are not used."""
    later: ParsedInput[T] | None = None
    """Takes its place after `GRACE_S`: without parts that the file has no longer."""
    lost: str = ""
    """Which parts these are, as the beginning of a problem; empty without `later`."""


class _Grace(NamedTuple):
    """The time for which something that is gone stays valid."""

    reason: str
    end_s: float
    """By the monotonic clock."""
    end_time_s: float
    """In seconds since the epoch."""


def _grace(reason: str, now_s: float, present: _Grace | None) -> _Grace:
    """The present grace with this reason; a new one if there is none."""
    if present is not None:
        return present._replace(reason=reason)
    return _Grace(reason, now_s + GRACE_S, time.time() + GRACE_S)


class WatchedFile(Generic[T]):
    """A file, watched in one thread at a time.

    `parse` makes a value of the content and the last good value, or raises InputError. `settle_s` is 0
    for files that are replaced as a whole.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        parse: Callable[[bytes, T | None], ParsedInput[T]],
        *,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.path = path
        self.value: T | None = None
        """The last good value; None if there is none, or the file was withdrawn."""
        self.source: Any = None
        """The value as JSON can hold it."""
        self.problems: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        """Both of the present content, with the path."""
        self.is_missing = True
        self.is_watchable = True
        """Whether each change of the file is an event in its folder."""
        self._max_bytes = max_bytes
        self._parse = parse
        self._settle_s = settle_s
        self._stamp: Stamp | None = None
        self._changed: tuple[Stamp | None, float, float] | None = None
        """The stamp of a new content that is not read yet, since when it is the same, and since when the file
        has changed."""
        self._is_changing = False
        """Whether it is read although it has not stayed the same."""
        self._missing: _Grace | None = None
        self._later: ParsedInput[T] | None = None
        self._losing: _Grace | None = None
        """Until `_later` takes effect; None without it."""
        self.wait_s: float | None = None
        """Time after which another read is due even without an event; None: none."""

    @property
    def withdrawal(self) -> str:
        """Missing content, and the time when it is withdrawn, with the path; empty: there is none."""
        grace = self._missing or self._losing
        if grace is None:
            return ""
        end = datetime.fromtimestamp(grace.end_time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{printable(self.path)}: {grace.reason}; what was there before is withdrawn at {end}"

    @property
    def stamp(self) -> Stamp | None:
        # With problems or notes it is to be read again, so that they are told again.
        return None if self.problems or self.notes else self._stamp

    @property
    def is_unknown(self) -> bool:
        return self.value is None and bool(self.problems)

    def restore(self, parsed: ParsedInput[T], stamp: Stamp | None) -> None:
        """Sets the last good value of a former process; a file with the same stamp is not read again."""
        self.value, self.source, self._stamp = parsed.value, parsed.source, stamp
        self.is_missing = False

    def forget_stamp(self) -> None:
        # Something else that its value depends on has changed: it is read again.
        self._stamp = None

    def look(self, now_s: float, *, is_first: bool = False) -> bool:
        """Reads the file if it has changed; returns whether its value has. The first look never waits."""
        self.wait_s = None
        stamp = stamp_of(self.path)
        if stamp is not None and stamp == self._stamp:
            self._changed = self._missing = None
            self.is_missing = False
            if is_first:
                self.is_watchable = is_watchable(self.path) or _is_swapped(self.path)
            return self._pass_on(now_s)
        if stamp is not None and not is_first and not self._has_settled(stamp, now_s):
            self.is_missing = False
            return False
        is_changing, self._changed, self._is_changing = self._is_changing, None, False
        try:
            data, stamp = read_file(self.path, self._max_bytes)
        except FileNotFoundError:
            return self._miss(now_s)
        except InputError as error:
            # Not known to be the same the next time.
            self._fail(error, None)
            self.is_watchable = False
            return False
        self.is_watchable = is_watchable(self.path) or _is_swapped(self.path)
        if is_changing:
            # Its next change may come within the tick of the file's times, and have the same stamp.
            stamp, self.wait_s = None, self._settle_s
        try:
            parsed = self._parse(data, self.value)
        except InputError as error:
            self._fail(error, stamp)
            return False
        except Exception as error:  # noqa: BLE001 - a text that the code cannot bear must not end the watch
            self._fail(InputError(f"internal error: {described(error)}"), stamp)
            return False
        self._stamp, self.is_missing, self._missing = stamp, False, None
        if parsed.later is not None:
            self._losing = _grace(parsed.lost, now_s, self._losing)
        has_changed = self._take(parsed)
        return self._pass_on(now_s) or has_changed

    def _take(self, parsed: ParsedInput[T]) -> bool:
        has_changed = parsed.value != self.value
        self.value, self.source, self._later = parsed.value, parsed.source, parsed.later
        self.problems, self.notes = self._with_path(parsed.problems), self._with_path(parsed.notes)
        if parsed.later is None:
            self._losing = None
        return has_changed

    def _pass_on(self, now_s: float) -> bool:
        """Takes `_later` once the grace is over; returns whether the value has changed."""
        if self._later is None or self._losing is None:
            return False
        left_s = self._losing.end_s - now_s
        if left_s > 0:
            self.wait_s = min(left_s, left_s if self.wait_s is None else self.wait_s)
            return False
        return self._take(self._later)

    def _has_settled(self, stamp: Stamp, now_s: float) -> bool:
        if self._settle_s == 0 or _is_swapped(self.path):
            return True
        if self._changed is None:
            self._changed = stamp, now_s, now_s
        elif self._changed[0] != stamp:
            self._changed = stamp, now_s, self._changed[2]
        _, same_since_s, changed_since_s = self._changed
        left_s = min(same_since_s + self._settle_s, changed_since_s + MOST_SETTLE_S) - now_s
        if left_s > 0:
            self.wait_s = left_s
            return False
        self._is_changing = now_s < same_since_s + self._settle_s
        return True

    def _miss(self, now_s: float) -> bool:
        self.is_missing, self._stamp, self.problems, self.notes = True, None, (), ()
        self.is_watchable = True
        if self.value is None:
            return False
        self._missing = _grace("is gone", now_s, self._missing)
        left_s = self._missing.end_s - now_s
        if left_s > 0:
            self.wait_s = left_s
            return False
        self.value = self.source = self._missing = self._later = self._losing = None
        return True

    def _fail(self, error: InputError, stamp: Stamp | None) -> None:
        kept = "" if self.value is None else "; what was there before stays"
        self._stamp, self.problems, self.notes = stamp, self._with_path((f"{error}{kept}",)), ()
        self.is_missing = False
        self._missing = self._later = self._losing = None

    def _with_path(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{printable(self.path)}: {text}" for text in texts)


def _is_swapped(path: Path) -> bool:
    # A file of a mounted ConfigMap. Source: Kubernetes pkg/volume/util/atomic_writer.go.
    try:
        return str(path.readlink()).startswith("..data/")
    except OSError:
        return False
