"""Other programs that write values which the ledger has written, too: when to give way, and for how long.

Three overwrites within five minutes are a foreign writer: the field is left to it for ten minutes, then
written again, and left for twice as long each time that it goes on, up to a day. A field that is back at
its booked or original value, or at the systemd unit's, was reset and not overwritten: the caller tells these
apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

OVERWRITES: Final = 3
WINDOW_S: Final = 300.0
FIRST_YIELD_S: Final = 600.0
MAX_YIELD_S: Final = 86_400.0

Value: TypeAlias = int | str
Path: TypeAlias = tuple[str, ...]


class Contest(NamedTuple):
    """The history of the foreign writer of one field."""

    overwrites_s: tuple[float, ...] = ()
    """When its last overwrites were found, since the field was last left to it."""
    yield_s: float = 0.0
    """How long the field was last left to it; 0 if it never was."""
    until_s: float = 0.0
    """Until when it is left to it."""
    is_resuming: bool = False
    """Whether the field is left to it and was not written since: what it holds is no new overwrite."""


class Yielded(NamedTuple):
    """A field that is left to another program."""

    path: Path
    """Of the cgroup."""
    name: str
    """The parameter."""
    ours: Value
    """The value that the ledger has resolved."""
    theirs: Value
    """The value that the other program has written."""
    left_s: float
    """How much longer it is left to that program."""


def overwritten(contest: Contest, now_s: float) -> Contest:
    """Return the contest after an overwrite; it is to be repaired unless `is_yielding`."""
    if is_yielding(contest, now_s):
        return contest
    if contest.is_resuming:
        return contest._replace(is_resuming=False)
    recent = (*(each for each in contest.overwrites_s if now_s - each < WINDOW_S), now_s)
    # Quiet for as long as it was left to itself: the next writer is another story.
    is_over = now_s - contest.until_s >= max(contest.yield_s, WINDOW_S)
    yield_s = 0.0 if is_over else contest.yield_s
    if len(recent) < OVERWRITES:
        return contest._replace(overwrites_s=recent)
    yield_s = min(2 * yield_s, MAX_YIELD_S) if yield_s else FIRST_YIELD_S
    return Contest((), yield_s, now_s + yield_s, is_resuming=True)


def is_yielding(contest: Contest, now_s: float) -> bool:
    return now_s < contest.until_s


class ForeignWriters:
    """The contests of all fields. Safe for all threads, if each field is used by one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._contests: dict[tuple[Path, str], tuple[Contest, Value, Value]] = {}

    def __len__(self) -> int:
        return len(self._contests)

    def is_yielding(self, path: Path, name: str) -> bool:
        """Whether a field is left to another program: it is not to be written."""
        found = self._contests.get((path, name))
        return found is not None and is_yielding(found[0], self._clock())

    def on_overwrite(self, path: Path, name: str, ours: Value, theirs: Value) -> bool:
        """Counts an overwrite that was found.

        `ours`: the resolved value. `theirs`: what the file holds.

        Returns:
            Whether the ledger should write its value again.
        """
        now_s = self._clock()
        found = self._contests.get((path, name))
        contest = overwritten(Contest() if found is None else found[0], now_s)
        self._contests[path, name] = contest, ours, theirs
        return not is_yielding(contest, now_s)

    def forget(self, path: Path, name: str | None = None) -> None:
        # A field has no claims any more, or the cgroup is gone.
        for key in [each for each in list(self._contests) if each[0] == path and name in (None, each[1])]:
            self._contests.pop(key, None)

    def yielded(self) -> tuple[Yielded, ...]:
        """The fields that are left to others now, with both values."""
        now_s = self._clock()
        return tuple(
            Yielded(path, name, ours, theirs, contest.until_s - now_s)
            for (path, name), (contest, ours, theirs) in list(self._contests.items())
            if is_yielding(contest, now_s)
        )
