"""Resctrl: groups of tasks with a part of the last-level cache and of the memory bandwidth, as folders.

The kernel makes a group's files with `mkdir`, and gives its tasks back to the root group with `rmdir`. A
task is in one group: its number stands in the file `tasks` of that one. What it forks is in the same group.
Monitoring groups are folders below a group's `mon_groups`, with a part of its tasks and their counters.
Groups of ours begin with a prefix; those of others, and the tasks in them, are never touched.
Source: Linux Documentation/filesystems/resctrl.rst (arch/x86/resctrl.rst before 6.9); fs/resctrl/rdtgroup.c.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Final, NamedTuple

from runtimeproxy.fields.kernel_settings import NO_GROUP

GROUP_FIELD: Final = "resctrl_group"
"""The field of the group of a pod's tasks, and the name by which its format finds `GroupAccess`."""
MONITOR_FIELD: Final = "resctrl_monitor"
"""The field of the monitoring group of a pod's tasks."""
DEFAULT_FOLDER: Final = Path("/sys/fs/resctrl")
FOLDER: Final = "fs/resctrl"
"""Below sysfs."""
PREFIX: Final = "koord-runtime-proxy-"
"""Begins the folders of our groups. Koordlet's are LSR, LS, BE and koordlet-UID; CRI-RDT classes have the
names of the runtime's configuration."""
FOREIGN: Final = "foreign:"
"""Before the name of a group of another program, in place of one of ours: its tasks are left there."""
TASKS_S: Final = 1.0
"""How long the lists of tasks that were read for comparisons apply. Before each write they are read again."""
YOUNG_S: Final = 10.0
"""How long a new group is kept although no pod that runs has it: the pod may not be known yet. Source:
Koordinator pkg/koordlet/runtimehooks/hooks/resctrl, which waits as long."""
MOST_NAMED: Final = 16
"""Groups in the text of an error."""

SCHEMATA: Final = "schemata"
LLC_OCCUPANCY: Final = "llc_occupancy"
_TASKS: Final = "tasks"
_MON_GROUPS: Final = "mon_groups"
_MON_DATA: Final = "mon_data"
_OWN_FOLDERS: Final = frozenset({"info", _MON_GROUPS, _MON_DATA})
"""Of the root group: no groups."""
_RESOURCE: Final = re.compile(r"L3(?:CODE|DATA)?|MB")
_CACHE: Final = "mon_L3_"
_COUNTERS: Final = (LLC_OCCUPANCY, "mbm_total_bytes", "mbm_local_bytes")
_POD: Final = "pod-"
"""Begins the names of groups of one pod, before its uid."""
_AWAY: Final = frozenset({errno.ENOENT, errno.ENODEV})
_MOST_TEXT: Final = 200
_MOST_NAME: Final = 160


class CounterValue(NamedTuple):
    """One counter of a monitoring group, for the part of the machine behind one cache."""

    cache: int
    """The id of the last-level cache."""
    name: str
    """`llc_occupancy`: bytes now; `mbm_total_bytes`, `mbm_local_bytes`: bytes since the group was made."""
    value: int | None
    """None: the kernel does not say."""
    problem: str = ""
    """Why there is no value."""


class GroupCounters(NamedTuple):
    """The counters of a pod's monitoring group."""

    pod: str
    """The pod's name in our folders: `pod-UID`."""
    group: str
    """The group that its tasks are in, such as `BE`; `none` for the root group."""
    counters: tuple[CounterValue, ...]

    @property
    def uid(self) -> str:
        return self.pod.removeprefix(_POD)


def parse_schemata(text: str) -> dict[str, dict[int, int]]:
    """Return the lines of a schemata file by resource and by the id of its domain.

    `L3:0=7ff;1=7ff` are masks in hexadecimal, `MB:0= 20` is a number. Other resources, and what is no such
    line, are left out.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        resource, _, values = line.strip().partition(":")
        if not _RESOURCE.fullmatch(resource):
            continue
        with suppress(ValueError):
            pairs = (each.split("=", 1) for each in values.split(";") if each.strip())
            base = 10 if resource == "MB" else 16
            found[resource] = {int(domain): int(value.strip(), base) for domain, value in pairs}
    return found


def schemata_text(lines: Mapping[str, Mapping[int, int]]) -> str:
    """Return schemata as one word: lines by resource, domains by number, `L3:0=3f;1=3f,MB:0=20;1=20`."""
    return ",".join(
        f"{resource}:"
        + ";".join(f"{domain}={number(resource, value)}" for domain, value in sorted(its.items()))
        for resource, its in sorted(lines.items())
        if its
    )


def number(resource: str, value: int) -> str:
    """Return a value as the kernel writes it: a mask in hexadecimal, a bandwidth in decimal."""
    return str(value) if resource == "MB" else f"{value:x}"


class _Tasks(NamedTuple):
    """The tasks that are in some group, at one moment, by their numbers."""

    groups: dict[int, str]
    """The value of a group of ours, or `FOREIGN` and the name of another."""
    monitors: dict[int, str]
    """`FOREIGN` and the name of another program's monitoring group."""
    read_s: float


class _Monitored(NamedTuple):
    """The tasks in our monitoring groups, of which there may be hundreds: each list walks all tasks."""

    pods: dict[int, str]
    read_s: float


class _Refusal(NamedTuple):
    """That the kernel has not made a group, or not taken its schemata."""

    number: int
    text: str
    at_s: float


class ResctrlGroups:
    """The groups of this node; synchronous, for worker threads, thread safe.

    A group's name is that of its folder without the prefix: a class such as `BE`, or `pod-UID`.

    Args:
        folder: Where resctrl is mounted, or would be.
        clock: In seconds.

    Attributes:
        members: Reads and writes the group of tasks: `NAME`, with a comma and schemata if it is `pod-UID`.
        monitors: Reads and writes the monitoring group of tasks, `pod-UID`.
    """

    def __init__(self, folder: Path = DEFAULT_FOLDER, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._now_s = clock
        self._lock = RLock()
        self._tasks: _Tasks | None = None
        self._monitored: _Monitored | None = None
        self._made_s: dict[Path, float] = {}
        # By group, the resources of its schemata that are ours.
        self._resources: dict[str, frozenset[str]] = {}
        # By the folder that is not there for it.
        self._refused: dict[Path, _Refusal] = {}
        self.members = GroupAccess(self)
        self.monitors = MonitorAccess(self)

    @property
    def is_mounted(self) -> bool:
        return (self.folder / SCHEMATA).exists()

    # --- groups ------------------------------------------------------------------------------------------

    def read(self, expected: str, group: str) -> str | None:
        """Return the schemata of a group as one word, `none` without it; None where nothing is mounted.

        Args:
            expected: Schemata whose resources alone are asked for; `none` for all.
            group: Its name.

        Raises:
            OSError: The kernel's error.
        """
        if not self.is_mounted:
            return None
        try:
            found = parse_schemata((self._path(group) / SCHEMATA).read_text("ascii", "replace"))
        except OSError as error:
            if error.errno not in _AWAY:
                raise
            return NO_GROUP
        resources = _resources("" if expected == NO_GROUP else expected) or self._resources.get(group)
        return schemata_text(
            {name: each for name, each in found.items() if not resources or name in resources}
        )

    def write(self, schemata: str, group: str) -> None:
        """Gives a group these schemata, and makes it if it is not there; `none` removes it.

        Raises:
            OSError: The kernel's error; ENOSPC with the names of those that have the CLOSIDs.
        """
        path = self._path(group)
        with self._lock:
            if schemata == NO_GROUP:
                self._remove(path)
                return
            with self._noting_refusal(path):
                self._set(group, schemata)

    def ensure(self, schemata: str, group: str) -> None:
        """Give a group these schemata if it has others; raises OSError as `write`.

        Each task of a pod asks for its pod's group: a refusal applies to the others, too, for `TASKS_S`.
        """
        with self._lock:
            if self.read(schemata, group) != schemata:
                self._check_not_refused(self._path(group))
                self.write(schemata, group)

    def _check_not_refused(self, path: Path) -> None:
        refusal = self._refused.get(path)
        if refusal is not None and self._now_s() - refusal.at_s < TASKS_S:
            raise OSError(refusal.number, refusal.text)

    @contextmanager
    def _noting_refusal(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = error.strerror or str(error)
            self._refused[path] = _Refusal(error.errno or errno.EIO, text, self._now_s())
            raise
        self._refused.pop(path, None)

    def _set(self, group: str, schemata: str) -> None:
        path = self._path(group)
        is_new = not path.is_dir()
        if is_new:
            self._make(path)
        try:
            wanted, present = schemata.replace(",", "\n"), self.read(schemata, group)
            if present != schemata:
                _write(path / SCHEMATA, wanted)
        except OSError as error:
            status = self._last_status()
            if is_new:
                self._remove(path)
            if error.errno == errno.EINVAL:
                raise OSError(errno.EINVAL, f"the kernel does not take {schemata}{status}") from None
            raise
        self._resources[group] = _resources(schemata)

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(mode=0o755)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise OSError(errno.ENOSPC, self._who_has_all(path)) from None
        self._made_s[path] = self._now_s()
        self._tasks = None

    def _who_has_all(self, path: Path) -> str:
        """Why no group can be made. Each group has a CLOSID and an RMID, each monitoring group an RMID."""
        groups, monitors = self._group_folders(), [each for _, each in self._monitoring_groups()]
        is_closid = path.parent == self.folder and "RMID" not in self._last_status()
        if is_closid:
            names, most, what = groups, self._least_closids(), "CLOSID (num_closids)"
        else:
            names, most = [*groups, *monitors], _text(self.folder / "info/L3_MON/num_rmids")
            what = "RMID (num_rmids)"
        named = ", ".join(_shown(str(each.relative_to(self.folder))) for each in names[:MOST_NAMED]) or "none"
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        of = f" of {most}" if most else ""
        return f"no {what}{of} is left: beside the root group these have one: {named}{more}"

    def _least_closids(self) -> str:
        found = [_text(each) for each in sorted(self.folder.glob("info/*/num_closids"))]
        return str(min(int(each) for each in found)) if found and all(map(str.isdecimal, found)) else ""

    def _last_status(self) -> str:
        # The kernel says in words why it refused the last command.
        text = _text(self.folder / "info/last_cmd_status")
        return f": {text}" if text and text != "ok" else ""

    def _remove(self, path: Path) -> None:
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in _AWAY:
                raise
        self._made_s.pop(path, None)
        self._tasks = self._monitored = None

    def why_missing(self, group: str) -> str:
        """Return why a group is not there, for people."""
        refusal = self._refused.get(self._path(group))
        return f"the group {group} is not there" + (f": {refusal.text}" if refusal is not None else "")

    def keep(self, groups: Collection[str], monitors: Collection[str]) -> None:
        """Removes our groups but these, and monitoring groups without a task; new ones stay for a time.

        Args:
            groups: By name.
            monitors: The pods that have a monitoring group, as `pod-UID`.

        Raises:
            OSError: One of them cannot be removed; the others are.
        """
        failed: OSError | None = None
        with self._lock:
            now_s = self._now_s()
            for path in list(self._unused(groups, monitors)):
                if now_s - self._made_s.get(path, -YOUNG_S) < YOUNG_S:
                    continue
                try:
                    self._remove(path)
                except OSError as error:
                    failed = error
            self._forget_pods({*groups, *monitors})
        if failed is not None:
            raise failed

    def _forget_pods(self, kept: Collection[str]) -> None:
        """Forgets what is noted of groups of other pods than these, and the age of old groups."""
        now_s = self._now_s()
        self._made_s = {path: made_s for path, made_s in self._made_s.items() if now_s - made_s < YOUNG_S}
        for path in [each for each in self._refused if _is_of_other_pod(_own_name(each.name), kept)]:
            del self._refused[path]
        for group in [each for each in self._resources if _is_of_other_pod(each, kept)]:
            del self._resources[group]

    def _unused(self, groups: Collection[str], monitors: Collection[str]) -> Iterator[Path]:
        for group, path in self._monitoring_groups():
            name = _own_name(path.name)
            is_kept = name in monitors and _own_name(group) in (*groups, "") and _text(path / _TASKS)
            if name and not is_kept:
                yield path
        for path in self._group_folders():
            name = _own_name(path.name)
            if name and name not in groups:
                yield path

    def all_groups(self) -> tuple[tuple[str, str, bool], ...]:
        """Return name of the folder and schemata of each group, and whether it is ours; not the root."""
        return tuple(
            (each.name, _schemata(each), bool(_own_name(each.name))) for each in self._group_folders()
        )

    def own(self) -> tuple[str, ...]:
        """Return the names of our groups that are there."""
        return tuple(filter(None, (_own_name(each.name) for each in self._group_folders())))

    def own_monitors(self) -> tuple[str, ...]:
        """Return the pods that have a monitoring group of ours, as `pod-UID`."""
        return tuple(filter(None, (_own_name(each.name) for _, each in self._monitoring_groups())))

    def remove_all(self) -> None:
        """Removes all of our groups, whose tasks go back to the root group; raises OSError as `keep`."""
        self._made_s.clear()
        self.keep((), ())

    def counters(self) -> tuple[GroupCounters, ...]:
        """Return the counters of all of our monitoring groups."""
        found: list[GroupCounters] = []
        for group, path in self._monitoring_groups():
            if name := _own_name(path.name):
                values = [
                    _counter(each / counter, int(each.name.removeprefix(_CACHE)))
                    for each in sorted(_folders(path / _MON_DATA))
                    if each.name.startswith(_CACHE) and each.name.removeprefix(_CACHE).isdecimal()
                    for counter in _COUNTERS
                ]
                found.append(GroupCounters(name, _own_name(group) or NO_GROUP, tuple(values)))
        return tuple(found)

    def _path(self, group: str) -> Path:
        return self.folder / f"{PREFIX}{group}"

    def _group_folders(self) -> list[Path]:
        return [each for each in _folders(self.folder) if each.name not in _OWN_FOLDERS]

    def _monitoring_groups(self) -> Iterator[tuple[str, Path]]:
        """The folders of monitoring groups, with the name of each one's group; empty for the root."""
        for folder in (self.folder, *self._group_folders()):
            group = "" if folder == self.folder else folder.name
            yield from ((group, each) for each in _folders(folder / _MON_GROUPS))

    # --- tasks -------------------------------------------------------------------------------------------

    def tasks(self) -> _Tasks:
        """Return the tasks of all groups but the root's; raises OSError as the kernel."""
        with self._lock:
            now_s = self._now_s()
            if self._tasks is None or now_s - self._tasks.read_s >= TASKS_S:
                self._tasks = self._read_tasks(now_s)
            return self._tasks

    def forget_tasks(self) -> None:
        self._tasks = None

    def _read_tasks(self, now_s: float) -> _Tasks:
        groups: dict[int, str] = {}
        monitors: dict[int, str] = {}
        for folder in self._group_folders():
            own = _own_name(folder.name)
            name = self._value_of(own) if own else f"{FOREIGN}{_shown(folder.name)}"
            groups.update(dict.fromkeys(_numbers(folder / _TASKS), name))
        for group, folder in self._monitoring_groups():
            if _own_name(folder.name):
                continue
            members = dict.fromkeys(_numbers(folder / _TASKS), f"{FOREIGN}{_shown(folder.name)}")
            monitors.update(members)
            if not group:
                # A move to another group would take them out of it.
                groups.update(members)
        return _Tasks(groups, monitors, now_s)

    def monitored(self) -> dict[int, str]:
        """Return the pods in whose monitoring group tasks are, up to a second old; raises OSError.

        A task that has come to one since is written there once more, which changes nothing.
        """
        with self._lock:
            now_s = self._now_s()
            if self._monitored is None or now_s - self._monitored.read_s >= TASKS_S:
                pods = {
                    pid: name
                    for _, folder in self._monitoring_groups()
                    if (name := _own_name(folder.name))
                    for pid in _numbers(folder / _TASKS)
                }
                self._monitored = _Monitored(pods, now_s)
            return self._monitored.pods

    def _value_of(self, group: str) -> str:
        """The value of the field for tasks of a group: that of a pod is for this pod alone."""
        if not group.startswith(_POD):
            return group
        with suppress(OSError):
            return f"{group},{self.read(NO_GROUP, group)}"
        return group

    def move(self, pid: int, group: str) -> None:
        """Puts a task into a group, `none` for the root group; raises OSError as the kernel."""
        path = self.folder if group == NO_GROUP else self._path(group)
        _add_task(path, pid, self.why_missing(group))

    def monitor(self, pid: int, pod: str) -> None:
        """Puts a task into the monitoring group of a pod, `none` for none; raises OSError as the kernel."""
        group = self.tasks().groups.get(pid, NO_GROUP).partition(",")[0]
        folder = self.folder if group == NO_GROUP else self._path(group)
        if pod == NO_GROUP:
            _add_task(folder, pid, self.why_missing(group))
            return
        path = folder / _MON_GROUPS / f"{PREFIX}{pod}"
        with self._lock:
            if not path.is_dir():
                self._check_not_refused(path)
                with self._noting_refusal(path):
                    self._make_monitor(path)
        _add_task(path, pid, f"the monitoring group of {pod} is not there")

    def _make_monitor(self, path: Path) -> None:
        self._remove_left(path)
        try:
            self._make(path)
        except FileNotFoundError:
            text = "the kernel or the processor has no monitoring of the last-level cache"
            raise OSError(errno.EOPNOTSUPP, text) from None

    def _remove_left(self, path: Path) -> None:
        """Removes the monitoring groups that a pod has left empty in other groups: they hold RMIDs."""
        for _, each in self._monitoring_groups():
            if each.name == path.name and not _text(each / _TASKS):
                self._remove(each)


class GroupAccess:
    """The group of tasks, as a value of processes; see `cgroups/processes.py:ProcessAccess`."""

    def __init__(self, groups: ResctrlGroups) -> None:
        self._groups = groups

    def refresh(self) -> None:
        self._groups.forget_tasks()

    def read(self, pid: int, folder: int) -> str:
        del folder
        return self._groups.tasks().groups.get(pid, NO_GROUP)

    def write(self, pid: int, folder: int, text: str) -> None:
        del folder
        tasks = self._groups.tasks().groups
        _check_own(tasks.get(pid, NO_GROUP))
        group, _, schemata = text.partition(",")
        if schemata:
            self._groups.ensure(schemata, group)
        self._groups.move(pid, group)
        tasks[pid] = text
        # The kernel takes it out of the monitoring group.
        self._groups.monitored().pop(pid, None)


class MonitorAccess:
    """The monitoring group of tasks, as a value of processes."""

    def __init__(self, groups: ResctrlGroups) -> None:
        self._groups = groups

    def refresh(self) -> None:
        self._groups.forget_tasks()

    def read(self, pid: int, folder: int) -> str:
        del folder
        foreign = self._groups.tasks().monitors.get(pid)
        return foreign or self._groups.monitored().get(pid, NO_GROUP)

    def write(self, pid: int, folder: int, text: str) -> None:
        del folder
        tasks = self._groups.tasks()
        _check_own(tasks.monitors.get(pid, NO_GROUP))
        _check_own(tasks.groups.get(pid, NO_GROUP))
        self._groups.monitor(pid, text)
        self._groups.monitored()[pid] = text


def _check_own(group: str) -> None:
    if group.startswith(FOREIGN):
        name = group.removeprefix(FOREIGN)
        raise OSError(errno.EBUSY, f"it is in the resctrl group {name} of another program, and is left there")


def _is_of_other_pod(group: str, pods: Collection[str]) -> bool:
    return group.startswith(_POD) and group not in pods


def _resources(schemata: str) -> frozenset[str]:
    return frozenset(each.partition(":")[0] for each in schemata.split(",") if each)


def _schemata(path: Path) -> str:
    with suppress(OSError):
        return schemata_text(parse_schemata((path / SCHEMATA).read_text("ascii", "replace")))
    return ""


def _own_name(folder: str) -> str:
    """The name of a group by its folder; empty if it is not ours."""
    return folder.removeprefix(PREFIX) if folder.startswith(PREFIX) else ""


def _shown(name: str) -> str:
    # It stands among words.
    return re.sub(r"[^\w.:/-]", "?", name)[:_MOST_NAME]


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as found:
            return sorted(Path(each.path) for each in found if each.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _numbers(path: Path) -> list[int]:
    try:
        return [int(each) for each in path.read_text(encoding="ascii").split()]
    except OSError as error:
        if error.errno not in _AWAY:
            raise
        # The group is being removed: ENODEV if its file was open before.
        return []


def _text(path: Path) -> str:
    with suppress(OSError):
        return " ".join(path.read_text(encoding="utf-8", errors="replace").split())[:_MOST_TEXT]
    return ""


def _counter(path: Path, cache: int) -> CounterValue:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return CounterValue(cache, path.name, None, "the kernel or the processor has no such counter")
    except OSError as error:
        return CounterValue(cache, path.name, None, error.strerror or str(error))
    if text.isdecimal():
        return CounterValue(cache, path.name, int(text))
    # `Unavailable` or `Error`. Source: Linux fs/resctrl/ctrlmondata.c, rdtgroup_mondata_show.
    return CounterValue(cache, path.name, None, _shown(text) or "empty")


def _write(path: Path, text: str) -> None:
    """Writes all lines with one system call: the kernel takes all or none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def _add_task(path: Path, pid: int, missing: str) -> None:
    try:
        descriptor = os.open(path / _TASKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        # Of the task itself the kernel says ESRCH.
        raise OSError(errno.EINVAL, missing) from None
    try:
        os.write(descriptor, f"{pid}\n".encode())
    finally:
        os.close(descriptor)
