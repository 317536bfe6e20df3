"""Settings of the kernel that policies set: each has its original again when no policy wants it any more.

These are sysctls, and the others of `fields/kernel_settings.py`. The original is saved before the first
write, with the id of the kernel's boot: after a reboot nothing of before counts. While a value is wanted it
is compared from time to time: one that another program keeps writing is left to it for a time, as values of
cgroups are. When it is wanted no more, what another program has written stays.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from runtimeproxy.cgroups.resctrl import FOLDER, ResctrlGroups
from runtimeproxy.cgroups.writer import explain
from runtimeproxy.counts import Counts
from runtimeproxy.documents.reading import InputError
from runtimeproxy.errors import described
from runtimeproxy.fields.anolis import only_anolis
from runtimeproxy.fields.kernel_settings import NETWORK, RESCTRL, kernel_setting
from runtimeproxy.fields.network import NETWORK_QOS, OFF
from runtimeproxy.hooks.fields import KERNEL_SETTINGS, SYSCTL, SYSCTL_NAME
from runtimeproxy.ledger.foreign import ForeignWriters
from runtimeproxy.ledger.unapplied import UnappliedCause, Withheld
from runtimeproxy.logs import FailureLog
from runtimeproxy.state.state_file import StateFile

logger = logging.getLogger(__name__)

DEFAULT_ROOT: Final = Path("/proc/sys")
"""Source: proc_sys(5)."""
DEFAULT_SYSFS: Final = Path("/sys")
"""Source: sysfs(5); debugfs is mounted below it."""
SAVED_FILE: Final = "sysctls.json"
"""In the state folder."""
SAVED_SETTINGS: Final = "kernel_settings.json"
"""In the state folder: what is no sysctl. Versions before it read and write the other file alone, and so keep
this one."""
MOST_WAIT_S: Final = 1.0
"""How long a thread waits for another one's write, which takes microseconds."""
DROP_IN: Final = "koord-runtime-proxy.service.d/60-system-config.conf"
"""In the folder `systemd`."""
_SYSCTLS: Final = "sysctls"
_PATH: Final = ("sysctl",)
"""In place of a cgroup's path, for the foreign writers."""


class SettingChange(NamedTuple):
    """The outcome of one setting."""

    name: str
    old: str
    new: str
    error: str = ""
    """Why it could not be read or written; empty if it was. Without a new value, `name` is the file of
    originals, and nothing was written at all."""


class SettingAccess(Protocol):
    """Reads and writes settings that are no files; both raise OSError with a text for people.

    `group` is that of the setting.
    """

    def read(self, expected: str, group: str) -> str | None:
        """Return `expected` if the kernel has it, or what it has instead; None if it has no such setting."""
        ...

    def write(self, value: str, group: str) -> None: ...


class _Ours(NamedTuple):
    original: str
    written: str


class KernelSettings:
    """The kernel settings of this node that policies have set. Safe for all threads.

    Args:
        root: where the kernel shows sysctls.
        clock: in seconds.
        sysfs: where the kernel shows the others.
        groups: those of resctrl; None for those below `sysfs`.
        network: reads and writes the one of the network, which is no file; None where that is not managed.

    Attributes:
        files: what is saved, of sysctls and of the others.
        writes: how often values were written, and could not be, by setting and whether it was written.
        problems: what could not be written or read at the last attempt, with the reasons.
        unapplied: what is wanted and not so, by name.
    """

    def __init__(
        self,
        state_folder: Path,
        boot_id: str,
        root: Path = DEFAULT_ROOT,
        clock: Callable[[], float] = time.monotonic,
        sysfs: Path = DEFAULT_SYSFS,
        groups: ResctrlGroups | None = None,
        network: SettingAccess | None = None,
    ) -> None:
        effect = "what a process before this one has set is not given back"
        self.files = tuple(
            StateFile(state_folder / name, effect, boot_id=boot_id, is_synced=False)
            for name in (SAVED_FILE, SAVED_SETTINGS)
        )
        self._root = root
        self._sysfs = sysfs
        self.groups = groups or ResctrlGroups(sysfs / FOLDER)
        self._accesses: Mapping[str, SettingAccess | None] = {RESCTRL: self.groups, NETWORK: network}
        self._lock = Lock()
        self._ours: dict[str, _Ours] | None = None
        self._wanted: Mapping[str, int | str] = {}
        self._has_looked_for_left = False
        self._foreign_writers = ForeignWriters(clock)
        self._failures = FailureLog()
        self.writes: Counts[tuple[str, bool]] = Counts()
        self.problems: tuple[str, ...] = ()
        self.unapplied: dict[str, Withheld] = {}

    def apply(
        self, wanted: Mapping[str, int | str], *, releases: Collection[str] | None = None
    ) -> tuple[SettingChange, ...]:
        """Write what policies want, in this order, and give back what they want no more; in a worker thread.

        What was written last is given back first: one may exclude another, as group identity and core
        scheduling do.

        Args:
            wanted: by name, such as `kernel.sched_core`. One that the kernel lacks is left out, and is among
                `unapplied` unless such a kernel does the same anyway.
            releases: the names that are given back if they are not in `wanted`; None for all.
        """
        changes: list[SettingChange] = []
        try:
            with self._alone() as ours:
                for name in _files_first(each for each in reversed(ours) if each not in wanted):
                    if releases is None or name in releases:
                        changes += self._release(ours, name)
                for name in _files_first(wanted):
                    changes += self._set(ours, name, str(wanted[name]))
                if NETWORK_QOS not in wanted and (releases is None or NETWORK_QOS in releases):
                    changes += self._release_left(ours)
                self._wanted = {**{name: each.written for name, each in ours.items()}, **wanted}
                for name in self.unapplied.keys() - self._wanted.keys():
                    del self.unapplied[name]
        except OSError as error:
            changes.append(self._unreadable(error))
        return self._reported(changes)

    def _release_left(self, ours: dict[str, _Ours]) -> list[SettingChange]:
        """Gives back the network, once, if a process whose state is lost has left something of ours there."""
        if self._has_looked_for_left or NETWORK_QOS in ours:
            return []
        self._has_looked_for_left = True
        if (left := self._left()) is None:
            return []
        ours[NETWORK_QOS] = left
        return self._release(ours, NETWORK_QOS)

    def _left(self) -> _Ours | None:
        # A node without the programs, or a daemon without the right, has nothing there.
        with suppress(OSError):
            present = self._read(NETWORK_QOS, OFF)
            if present not in (None, OFF):
                return _Ours(OFF, OFF)
        return None

    def verify(self, *, among: str = "") -> tuple[SettingChange, ...]:
        """Compare what is wanted with the kernel's values, and write it again; in a worker thread.

        `among`: what names begin with; empty for all.
        """
        changes: list[SettingChange] = []
        try:
            with self._alone() as ours:
                for name in _files_first(self._wanted):
                    if name.startswith(among):
                        changes += self._set(ours, name, str(self._wanted[name]), is_check=True)
        except OSError as error:
            changes.append(self._unreadable(error))
        return self._reported(changes)

    def reload(self) -> None:
        # Another process may have written the file meanwhile.
        self._ours, self._wanted = None, {}

    def planned(self) -> tuple[SettingChange, ...]:
        # With the errors of what cannot be read.
        try:
            with self._alone() as ours:
                left = None if NETWORK_QOS in ours else self._left()
                found = ours if left is None else {**ours, NETWORK_QOS: left}
                return self._planned_releases(found, found)
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
                present = self._read(name, str(wanted.get(name, "")))
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

    def _planned_releases(self, ours: Mapping[str, _Ours], names: Iterable[str]) -> tuple[SettingChange, ...]:
        kept = [(name, ours[name]) for name in reversed(list(names)) if name in ours]
        found = [(name, each, self._read(name, each.written)) for name, each in kept]
        return tuple(
            SettingChange(name, present, each.original)
            for name, each, present in found
            if present is not None and _is_given_back(name, each, present)
        )

    def _unreadable(self, error: OSError) -> SettingChange:
        # What was saved is not known: nothing may be written, or our own values would become originals.
        path = next((each.path for each in self.files if each.is_unreadable), self.files[0].path)
        return SettingChange(str(path), "", "", described(error))

    def _set(
        self, ours: dict[str, _Ours], name: str, value: str, *, is_check: bool = False
    ) -> list[SettingChange]:
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
            present = self._read(name, value)
            if present is None:
                setting = kernel_setting(name)
                if setting is not None and value == setting.absent:
                    return None
                why = setting.missing if setting is not None else _no_sysctl(name)
                return Withheld((), UnappliedCause.NO_FILE, why, value)
            if present != value:
                reason = f"it is left to another program, which keeps writing {present}"
                return Withheld((), UnappliedCause.FOREIGN, reason, value)
        return None

    def _written(
        self, ours: dict[str, _Ours], name: str, value: str, *, is_check: bool
    ) -> list[SettingChange]:
        try:
            present = self._read(name, value)
        except OSError as error:
            return [SettingChange(name, "", value, _explained(name, error))]
        if present is None:
            return []
        before = ours.get(name)
        # What another program has written since is no original. What is ours alone has none but its absence.
        original = present if (absent := _absent_of(name)) is None else absent
        mine = _Ours(original if before is None else before.original, value)
        if mine == before and (present == value or self._is_left(name, mine, present, is_check=is_check)):
            return []
        ours[name] = mine
        try:
            if mine != before:
                self._save(ours, name)
            if present != value:
                self._write(name, value)
        except OSError as error:
            if before is None:
                del ours[name]
            else:
                ours[name] = before
            return [SettingChange(name, present, value, _explained(name, error))]
        return [SettingChange(name, present, value)] if present != value else []

    def _is_left(self, name: str, mine: _Ours, present: str, *, is_check: bool) -> bool:
        """Return whether another program's value is left to it; a reset to the original never is."""
        if present == mine.original:
            return False
        writers = self._foreign_writers
        if is_check and not writers.is_yielding(_PATH, name):
            if writers.on_overwrite(_PATH, name, mine.written, present):
                return False
            text = "another program keeps writing the %s %s: %s, not %s, and it is left so for a time"
            logger.warning(text, kind_of(name), name, present, mine.written)
        return writers.is_yielding(_PATH, name)

    def _release(self, ours: dict[str, _Ours], name: str) -> list[SettingChange]:
        mine = ours[name]
        present = ""
        changes: list[SettingChange] = []
        try:
            present = self._read(name, mine.written) or ""
            if _is_given_back(name, mine, present):
                self._write(name, mine.original)
                changes.append(SettingChange(name, present, mine.original))
        except OSError as error:
            return [SettingChange(name, present, mine.original, _explained(name, error))]
        del ours[name]
        self._foreign_writers.forget(_PATH, name)
        with suppress(OSError):  # it is compared with the kernel's value at the next start
            self._save(ours, name)
        return changes

    def _reported(self, changes: list[SettingChange]) -> tuple[SettingChange, ...]:
        problems: list[str] = []
        for change in changes:
            self.writes.add((change.name, not change.error))
            what = kind_of(change.name)
            if change.error:
                text = f"{what} {change.name} cannot be set to {change.new}: {change.error}"
                if not change.new:
                    text = f"sysctls are left as they are: {change.name} cannot be read: {change.error}"
                self._failures.report("sysctl", change.name, text)
                problems.append(text)
            else:
                logger.info("%s %s: %s -> %s", what, change.name, change.old, change.new)
        self.problems = tuple(problems)
        return tuple(changes)

    def _read(self, name: str, expected: str = "") -> str | None:
        # The kernel's value; None if it has no such setting. Raises OSError for all other failures.
        setting = kernel_setting(name)
        if setting is not None and setting.access:
            access = self._accesses[setting.access]
            return None if access is None else access.read(expected or setting.absent, setting.group)
        for path in self._paths(name):
            with suppress(FileNotFoundError):
                text = path.read_text(encoding="ascii", errors="replace")
                return text.rstrip("\n") if setting is None else setting.value_of(text)
        return None

    def _write(self, name: str, value: str) -> None:
        setting = kernel_setting(name)
        if setting is not None and setting.access:
            if (access := self._accesses[setting.access]) is not None:
                access.write(value, setting.group)
            return
        path = next((each for each in self._paths(name) if each.exists()), self._paths(name)[0])
        path.write_text((value if setting is None else setting.written(value)) + "\n", encoding="ascii")

    def _paths(self, name: str) -> tuple[Path, ...]:
        setting = kernel_setting(name)
        if setting is not None:
            return tuple(self._sysfs / each for each in setting.files)
        return (self._root / name.replace(".", "/"),)

    def _load(self) -> dict[str, _Ours]:
        """What is ours. Raises OSError if it cannot be read, which is not the same as nothing."""
        if self._ours is None:
            found: dict[str, _Ours] = {}
            for file, group in zip(self.files, (_SYSCTLS, KERNEL_SETTINGS), strict=True):
                found |= file.load(partial(_parsed, group)) or {}
                if file.is_unreadable:
                    raise OSError(file.unusable)
            self._ours = found
        return self._ours

    def _save(self, ours: Mapping[str, _Ours], changed: str) -> None:
        """Saves all settings of the kind that the changed one is of."""
        is_sysctl = kernel_setting(changed) is None
        file, group = (self.files[0], _SYSCTLS) if is_sysctl else (self.files[1], KERNEL_SETTINGS)
        saved = {
            name: each._asdict() for name, each in ours.items() if (kernel_setting(name) is None) == is_sysctl
        }
        file.save({group: saved})


def _parsed(group: str, saved: Mapping[str, Any]) -> dict[str, _Ours]:
    for name in saved[group]:
        if group == _SYSCTLS and (not SYSCTL_NAME.fullmatch(name) or kernel_setting(name) is not None):
            raise InputError(f"{name!r} is not the name of a sysctl")
        if group != _SYSCTLS and kernel_setting(name) is None:
            raise InputError(f"{name!r} is not the name of a kernel setting")
    return {
        str(name): _Ours(
            # Of what is ours alone nothing else is ever given back, whatever the file says.
            str(each["original"]) if (absent := _absent_of(name)) is None else absent,
            str(each["written"]),
        )
        for name, each in saved[group].items()
    }


def _absent_of(name: str) -> str | None:
    """What stands for nothing of ours, of a setting that is ours alone; None for all others."""
    setting = kernel_setting(name)
    return setting.absent if setting is not None and setting.access else None


def _is_given_back(name: str, mine: _Ours, present: str) -> bool:
    """Whether a release changes it: what others have written stays, but for objects that are ours alone."""
    return present != mine.original and (present == mine.written or _absent_of(name) is not None)


def _files_first(names: Iterable[str]) -> list[str]:
    """The names in their order, those last that programs read and write: one may hang for seconds."""
    found = [(name, kernel_setting(name)) for name in names]
    return [
        name
        for is_late in (False, True)
        for name, setting in found
        if is_late is (setting is not None and setting.access == NETWORK)
    ]


def kind_of(name: str) -> str:
    """Return the kind of a setting for people."""
    return "sysctl" if kernel_setting(name) is None else "kernel setting"


def field_of(name: str) -> str:
    """Return a setting as a field of a change, such as `sysctl[kernel.sched_core]`."""
    return f"{SYSCTL if kernel_setting(name) is None else KERNEL_SETTINGS}[{name}]"


def _no_sysctl(name: str) -> str:
    why = only_anolis(name)
    return f"the kernel has no such sysctl: {why}" if why else "the kernel has no such sysctl"


def _explained(name: str, error: OSError) -> str:
    """The text of an error, with what a service of systemd may lack."""
    setting = kernel_setting(name)
    if setting is not None and setting.access:
        return explain(error, "") if setting.access == RESCTRL else error.strerror or str(error)
    text = described(error)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{text}; the systemd unit may write it with a drop-in only, {DROP_IN} for one"
    return text
