"""Sysctls that policies set: each has its original text again when no policy wants it any more.

The original is saved before the first write, with the id of the kernel's boot: after a reboot nothing of
before counts. While a value is wanted it is compared from time to time: one that another program keeps
writing is left to it for a time, as values of cgroups are. When it is wanted no more, what another program
has written stays.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from runtimeproxy.counts import Counts
from runtimeproxy.documents.reading import InputError
from runtimeproxy.errors import described
from runtimeproxy.hooks.fields import SYSCTL_NAME
from runtimeproxy.ledger.foreign import ForeignWriters
from runtimeproxy.ledger.unapplied import UnappliedCause, Withheld
from runtimeproxy.logs import FailureLog
from runtimeproxy.state.state_file import StateFile

logger = logging.getLogger(__name__)

DEFAULT_ROOT: Final = Path("/proc/sys")
"""Source: proc_sys(5)."""
SAVED_FILE: Final = "sysctls.json"
"""In the state folder."""
MOST_WAIT_S: Final = 1.0
"""How long a thread waits for another one's write, which takes microseconds."""
_PATH: Final = ("sysctl",)
"""In place of a cgroup's path, for the foreign writers."""


class SysctlChange(NamedTuple):
    """The outcome of one sysctl."""

    name: str
    old: str
    new: str
    error: str = ""
    """Why it could not be read or written; empty if it was. Without a new value, `name` is the file of
    originals, and nothing was written at all."""


class _Ours(NamedTuple):
    original: str
    written: str


class Sysctls:
    """The sysctls of this node that policies have set. Safe for all threads.

    Args:
        root: where the kernel shows sysctls.
        clock: in seconds.

    Attributes:
        writes: how often values were written, and could not be, by sysctl and whether it was written.
        problems: what could not be written or read at the last attempt, with the reasons.
        unapplied: what is wanted and not so, by name.
    """

    def __init__(
        self,
        state_folder: Path,
        boot_id: str,
        root: Path = DEFAULT_ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        effect = "what a process before this one has set is not given back"
        self.file = StateFile(state_folder / SAVED_FILE, effect, boot_id=boot_id, is_synced=False)
        self._root = root
        self._lock = Lock()
        self._ours: dict[str, _Ours] | None = None
        self._wanted: Mapping[str, int | str] = {}
        self._foreign_writers = ForeignWriters(clock)
        self._failures = FailureLog()
        self.writes: Counts[tuple[str, bool]] = Counts()
        self.problems: tuple[str, ...] = ()
        self.unapplied: dict[str, Withheld] = {}

    def apply(
        self, wanted: Mapping[str, int | str], *, releases: Collection[str] | None = None
    ) -> tuple[SysctlChange, ...]:
        """Write what policies want, in this order, and give back what they want no more; in a worker thread.

        What was written last is given back first: one may exclude another, as group identity and core
        scheduling do.

        Args:
            wanted: by name, such as `kernel.sched_core`. One that the kernel lacks is left out.
            releases: the names that are given back if they are not in `wanted`; None for all.
        """
        changes: list[SysctlChange] = []
        try:
            with self._alone() as ours:
                for name in [each for each in reversed(ours) if each not in wanted]:
                    if releases is None or name in releases:
                        changes += self._release(ours, name)
                for name, value in wanted.items():
                    changes += self._set(ours, name, str(value))
                self._wanted = {**{name: each.written for name, each in ours.items()}, **wanted}
                for name in self.unapplied.keys() - self._wanted.keys():
                    del self.unapplied[name]
        except OSError as error:
            changes.append(self._unreadable(error))
        return self._reported(changes)

    def verify(self) -> tuple[SysctlChange, ...]:
        """Compare what is wanted with the kernel's values, and write it again; in a worker thread."""
        changes: list[SysctlChange] = []
        try:
            with self._alone() as ours:
                for name, value in self._wanted.items():
                    changes += self._set(ours, name, str(value), is_check=True)
        except OSError as error:
            changes.append(self._unreadable(error))
        return self._reported(changes)

    def reload(self) -> None:
        # Another process may have written the file meanwhile.
        self._ours, self._wanted = None, {}

    def planned(self) -> tuple[SysctlChange, ...]:
        # With the errors of what cannot be read.
        try:
            with self._alone() as ours:
                return self._planned_releases(ours, ours)
        except OSError as error:
            return (self._unreadable(error),)

    def written(self) -> dict[str, str]:
        """Return what this node's daemons have written since its boot and not given back, by name.

        Raises:
            OSError: it cannot be read just now.
        """
        with self._alone() as ours:
            return {name: each.written for name, each in ours.items()}

    def differs(self, wanted: Mapping[str, int | str], among: Collection[str]) -> str:
        """Return the first of these sysctls that the kernel has otherwise than is wanted; empty for none.

        `wanted`: by name. What was written and is not in it is wanted back as it was.

        Raises:
            OSError: one cannot be read just now.
        """
        with self._alone() as ours:
            for name in among:
                present = self._read(name)
                if name in wanted:
                    is_other = present not in (None, str(wanted[name]))
                else:
                    is_other = bool(self._planned_releases(ours, (name,)))
                if is_other:
                    return f"{name} is {present}"
        return ""

    @contextmanager
    def _alone(self) -> Iterator[dict[str, _Ours]]:
        """Gives what is ours to one thread at a time.

        Raises:
            OSError: it cannot be read, or another thread's write hangs.
        """
        if not self._lock.acquire(timeout=MOST_WAIT_S):
            raise TimeoutError("another write has not ended")
        try:
            yield self._load()
        finally:
            self._lock.release()

    def _planned_releases(self, ours: Mapping[str, _Ours], names: Iterable[str]) -> tuple[SysctlChange, ...]:
        found = [(name, ours[name], self._read(name)) for name in reversed(list(names)) if name in ours]
        return tuple(
            SysctlChange(name, present, each.original)
            for name, each, present in found
            if present == each.written and present != each.original
        )

    def _unreadable(self, error: OSError) -> SysctlChange:
        # What was saved is not known: nothing may be written, or our own values would become originals.
        return SysctlChange(str(self.file.path), "", "", described(error))

    def _set(
        self, ours: dict[str, _Ours], name: str, value: str, *, is_check: bool = False
    ) -> list[SysctlChange]:
        changes = self._written(ours, name, value, is_check=is_check)
        error = next((each.error for each in changes if each.error), "")
        if error:
            self.unapplied[name] = Withheld((), UnappliedCause.REFUSED, error, value)
        elif not changes and (why := self._left_as(name, value)) is not None:
            self.unapplied[name] = why
        else:
            self.unapplied.pop(name, None)
        return changes

    def _left_as(self, name: str, value: str) -> Withheld | None:
        """Why a value that was not to be written is not the kernel's; None if it is."""
        with suppress(OSError):
            present = self._read(name)
            if present is None:
                return Withheld((), UnappliedCause.NO_FILE, "the kernel has no such sysctl", value)
            if present != value:
                reason = f"it is left to another program, which keeps writing {present}"
                return Withheld((), UnappliedCause.FOREIGN, reason, value)
        return None

    def _written(
        self, ours: dict[str, _Ours], name: str, value: str, *, is_check: bool
    ) -> list[SysctlChange]:
        try:
            present = self._read(name)
        except OSError as error:
            return [SysctlChange(name, "", value, described(error))]
        if present is None:
            return []
        before = ours.get(name)
        # What another program has written since is no original.
        mine = _Ours(present if before is None else before.original, value)
        if mine == before and (present == value or self._is_left(name, mine, present, is_check=is_check)):
            return []
        ours[name] = mine
        try:
            if mine != before:
                self._save(ours)
            if present != value:
                self._path(name).write_text(value + "\n", encoding="ascii")
        except OSError as error:
            if before is None:
                del ours[name]
            else:
                ours[name] = before
            return [SysctlChange(name, present, value, described(error))]
        return [SysctlChange(name, present, value)] if present != value else []

    def _is_left(self, name: str, mine: _Ours, present: str, *, is_check: bool) -> bool:
        """Return whether another program's value is left to it; a reset to the original never is."""
        if present == mine.original:
            return False
        writers = self._foreign_writers
        if is_check and not writers.is_yielding(_PATH, name):
            if writers.on_overwrite(_PATH, name, mine.written, present):
                return False
            text = "another program keeps writing the sysctl %s: %s, not %s, and it is left so for a time"
            logger.warning(text, name, present, mine.written)
        return writers.is_yielding(_PATH, name)

    def _release(self, ours: dict[str, _Ours], name: str) -> list[SysctlChange]:
        mine = ours[name]
        present = ""
        changes: list[SysctlChange] = []
        try:
            present = self._read(name) or ""
            if present == mine.written and present != mine.original:
                self._path(name).write_text(mine.original + "\n", encoding="ascii")
                changes.append(SysctlChange(name, present, mine.original))
        except OSError as error:
            return [SysctlChange(name, present, mine.original, described(error))]
        del ours[name]
        self._foreign_writers.forget(_PATH, name)
        with suppress(OSError):  # it is compared with the kernel's value at the next start
            self._save(ours)
        return changes

    def _reported(self, changes: list[SysctlChange]) -> tuple[SysctlChange, ...]:
        problems: list[str] = []
        for change in changes:
            self.writes.add((change.name, not change.error))
            if change.error:
                text = f"sysctl {change.name} cannot be set to {change.new}: {change.error}"
                if not change.new:
                    text = f"sysctls are left as they are: {change.name} cannot be read: {change.error}"
                self._failures.report("sysctl", change.name, text)
                problems.append(text)
            else:
                logger.info("sysctl %s: %s -> %s", change.name, change.old, change.new)
        self.problems = tuple(problems)
        return tuple(changes)

    def _path(self, name: str) -> Path:
        return self._root / name.replace(".", "/")

    def _read(self, name: str) -> str | None:
        # The kernel's value; None if it has no such sysctl. Raises OSError for all other failures.
        try:
            return self._path(name).read_text(encoding="ascii", errors="replace").rstrip("\n")
        except FileNotFoundError:
            return None

    def _load(self) -> dict[str, _Ours]:
        """What is ours. Raises OSError if it cannot be read, which is not the same as nothing."""
        if self._ours is None:
            ours = self.file.load(_parsed)
            if self.file.is_unreadable:
                raise OSError(self.file.unusable)
            self._ours = ours or {}
        return self._ours

    def _save(self, ours: Mapping[str, _Ours]) -> None:
        self.file.save({"sysctls": {name: each._asdict() for name, each in ours.items()}})


def _parsed(saved: Mapping[str, Any]) -> dict[str, _Ours]:
    for name in saved["sysctls"]:
        if not SYSCTL_NAME.fullmatch(name):
            raise InputError(f"{name!r} is not the name of a sysctl")
    return {
        str(name): _Ours(str(each["original"]), str(each["written"]))
        for name, each in saved["sysctls"].items()
    }
