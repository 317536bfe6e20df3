"""All registration files of a folder: what is registered now, and what is wrong; for a worker thread.

Nothing bad counts before it has lasted for `GRACE_S`, for files are written in place: until then an empty or
half-written file is not reported, and a file that is away for a moment stays registered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.hooks.remote import registration_file
from runtimeproxy.hooks.remote.registration import Parsed, Registration, parse
from runtimeproxy.hooks.remote.registration_file import Stamp, UnreadableFileError

GRACE_S: Final = 0.3
"""How long a bad file may be one that is just being written, and a missing one just being replaced."""


_NOTHING: Final = Parsed(None, ())


class Look(NamedTuple):
    """What one look at the folder found."""

    registrations: tuple[Registration, ...]
    """What is registered, by file name."""
    problems: tuple[str, ...]
    """What has not been told before, with the path."""
    again_s: float | None
    """In how many seconds something may count that does not yet; None for nothing."""
    needs_polling: bool
    """Whether a file may change without an event in the folder: what is reached by a link, has another name
    elsewhere, or cannot be read."""


@dataclass(slots=True)
class _File:
    """What is known of one name."""

    stamp: Stamp | None = None
    content: int | str | None = None
    """Stands for the content, or is the reason why there is none."""
    since_s: float = 0.0
    """When this content was seen first."""
    parsed: Parsed = _NOTHING
    good: Registration | None = None
    """The last good one."""
    told: int | str | None = None
    """The content whose problems have been told."""
    missing_since_s: float | None = None
    is_watchable: bool = True

    def saw(self, content: int | str, parsed: Parsed, now_s: float) -> None:
        """Takes what the file says now."""
        if content != self.content:
            self.content, self.since_s = content, now_s
        self.parsed = parsed
        self.good = parsed.registration or self.good
        if not parsed.problems:
            self.told = None

    def wait_s(self, now_s: float) -> float | None:
        """In how many seconds the present state counts; None when it does already."""
        since_s = self.missing_since_s
        if since_s is None:
            if self.parsed.registration is not None or self.told == self.content:
                return None
            since_s = self.since_s
        wait_s = since_s + GRACE_S - now_s
        return wait_s if wait_s > 0 else None

    def untold(self, now_s: float) -> tuple[str, ...]:
        """The problems that are to be told now; they are told once per content."""
        if self.missing_since_s is not None or self.told == self.content or self.wait_s(now_s) is not None:
            return ()
        self.told = self.content
        if self.parsed.registration is not None:
            return self.parsed.problems
        kept = "; the last good registration of this name stays" if self.good is not None else ""
        return tuple(f"{problem}{kept}" for problem in self.parsed.problems)


class Registrations:
    """The registration files of one folder. Used by one thread at a time.

    Args:
        folder: where the files are.
        clock: seconds that only grow.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._default_timeout_s: float | None = None
        self._folder_problem = ""

    def look(self, default_timeout_s: float) -> Look:
        """Reads what is new or has changed, and returns what counts now; never raises for what it finds.

        Args:
            default_timeout_s: the time for one call of a server whose file says nothing of it.
        """
        if default_timeout_s != self._default_timeout_s:
            self._default_timeout_s = default_timeout_s
            for file in self._files.values():
                file.stamp = None
        now_s = self._clock()
        problems = list(self._visit(now_s))
        for name, file in self._files.items():
            problems += (f"{_shown(self._folder / name)}: {text}" for text in file.untold(now_s))
        waits_s = [wait_s for file in self._files.values() if (wait_s := file.wait_s(now_s)) is not None]
        good = (file.good for _, file in sorted(self._files.items()))
        return Look(
            registrations=tuple(registration for registration in good if registration is not None),
            problems=tuple(problems),
            again_s=min(waits_s, default=None),
            needs_polling=self._is_linked() or not all(file.is_watchable for file in self._files.values()),
        )

    def _is_linked(self) -> bool:
        """Whether a link leads to the folder: it may come to lead to another without an event in either."""
        return Path(os.path.realpath(self._folder)) != self._folder

    def _visit(self, now_s: float) -> Iterator[str]:
        """Looks at every file; yields what is wrong with the folder, if that is new."""
        problem = ""
        names: list[str] = []
        try:
            names = registration_file.names_in(self._folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            problem = f"{error.strerror}; hook servers can register once there is such a folder"
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; hook servers stay as they are"
            names = list(self._files)
        for name in names:
            self._visit_file(name, now_s)
        self._miss(self._files.keys() - names, now_s)
        if problem and problem != self._folder_problem:
            yield f"{_shown(self._folder)}: {problem}"
        self._folder_problem = problem

    def _visit_file(self, name: str, now_s: float) -> None:
        path = self._folder / name
        file = self._files.setdefault(name, _File())
        stamp = registration_file.stamp_of(path)
        if stamp is None or stamp != file.stamp:
            self._read(path, file, now_s)
        else:
            file.missing_since_s = None

    def _read(self, path: Path, file: _File, now_s: float) -> None:
        try:
            data, stamp = registration_file.read(path)
        except FileNotFoundError:
            self._miss({path.name}, now_s)
            return
        except UnreadableFileError as error:
            file.stamp, file.is_watchable = None, False
            file.saw(str(error), Parsed(None, (str(error),)), now_s)
        else:
            file.stamp, file.is_watchable = stamp, registration_file.is_watchable(path)
            file.saw(hash(data), parse(_shown(path.name), data, self._timeout_s), now_s)
        file.missing_since_s = None

    @property
    def _timeout_s(self) -> float:
        return self._default_timeout_s or 0.0

    def _miss(self, names: set[str], now_s: float) -> None:
        """Forgets files that are no longer there, after a time; at once those that have another name now."""
        for name in names:
            file = self._files[name]
            file.missing_since_s = now_s if file.missing_since_s is None else file.missing_since_s
        there = {
            file.good.endpoint
            for file in self._files.values()
            if file.good is not None and file.missing_since_s is None
        }
        for name in names:
            file = self._files[name]
            if file.good is None or file.good.endpoint in there or file.wait_s(now_s) is None:
                del self._files[name]


def _shown(path: Path | str) -> str:
    """A path for logs: what is no UTF-8 in it is escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode()
