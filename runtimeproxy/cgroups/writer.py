"""Reads and writes cgroup values: checked, compared, in safe order; a missing file is skipped.

A value of processes (`cgroups/processes.py`) is read and written as if it were a file of the cgroup.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.cgroups.core_scheduling import FIELD as CORE_GROUP
from runtimeproxy.cgroups.core_scheduling import CoreGroups
from runtimeproxy.cgroups.mounts import DEFAULT_ROOT, Mount, find_mounts
from runtimeproxy.cgroups.order import Key, Step, write_steps
from runtimeproxy.cgroups.pace import rest
from runtimeproxy.cgroups.paths import ROOT_PATH, CgroupPathError, cgroup_path
from runtimeproxy.cgroups.processes import DEFAULT_PROCFS, CgroupAccess, ProcessAccess, ProcessValues
from runtimeproxy.cgroups.resctrl import GROUP_FIELD, MONITOR_FIELD, ResctrlGroups
from runtimeproxy.cgroups.slices import FIELD as SLICE_FIELD
from runtimeproxy.cgroups.slices import Slices
from runtimeproxy.fields import devices
from runtimeproxy.fields.formats import FileFormat, ProcessFormat, Value, weight_v2
from runtimeproxy.fields.tables import PARAMETERS, check_value
from runtimeproxy.units import UNLIMITED, WeightFormula

_SHARES = "cpu.shares"
_WITH_PROCESSES: Final = ("pids", "memory", "cpu")
"""Controllers by whose hierarchy the processes of a cgroup are found, the first that is mounted: on version 1
runtimes put each process into all of them."""
_READ_LIMIT_BYTES = 65_536
"""More than any value file holds: a cgroup file's content is at most some pages."""
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that a FIFO in a strange tree cannot hang the thread.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def _read(file: str, folder: int) -> str:
    descriptor = os.open(file, os.O_RDONLY | _FILE_FLAGS, dir_fd=folder)
    try:
        return os.read(descriptor, _READ_LIMIT_BYTES).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _write(file: str, folder: int, text: str) -> None:
    """Writes `text` and a newline with one system call to a file that exists."""
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | _FILE_FLAGS, dir_fd=folder)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def _write_lines(file: str, folder: int, lines: Iterable[str]) -> dict[str, OSError]:
    """Writes each line with a system call of its own; returns the errors of those that were refused.

    Raises:
        OSError: The file cannot be opened.
    """
    refused: dict[str, OSError] = {}
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | _FILE_FLAGS, dir_fd=folder)
    try:
        for line in lines:
            try:
                os.write(descriptor, f"{line}\n".encode())
            except OSError as error:
                refused[line] = error
    finally:
        os.close(descriptor)
    return refused


def _write_bounded(form: FileFormat, folder: int, text: str) -> None:
    """Writes a file whose value another file bounds. Where both have the same limit, they keep the same.

    Version 1 refuses a memory limit above that of memory and swap together, which runtimes set to the same,
    so that a container does not swap. Source: Linux, mm/memcontrol.c, mem_cgroup_resize_max; containerd,
    WithResources.
    """
    value, before = form.decode(text), form.decode(_read(form.file, folder))
    bound = None
    # Without accounting of swap there is no such file.
    with suppress(FileNotFoundError, ValueError):
        bound = form.decode(_read(form.bounded_by, folder))
    is_above = bound is not None and _is_more(value, bound)
    if is_above:
        _write(form.bounded_by, folder, text)
    _write(form.file, folder, text)
    if bound is not None and bound == before != UNLIMITED and not is_above:
        _write(form.bounded_by, folder, text)


def _is_more(one: Value, other: Value) -> bool:
    # -1 is unlimited.
    return other != UNLIMITED and (one == UNLIMITED or int(one) > int(other))


class FileText(NamedTuple):
    """The content of a file of a cgroup."""

    file: str
    text: str
    """Raw, with the newline."""
    inode: int
    """Of the cgroup's folder."""


def _open_folder(folder: Path, path: tuple[str, ...]) -> int:
    """A descriptor of a cgroup; no part of its path may be a symbolic link."""
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path:
        try:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=folder_fd)
        finally:
            # Not kept in `folder_fd`, even if this fails: another thread may get its number.
            os.close(folder_fd)
        folder_fd = inner
    return folder_fd


_MOST_OPEN = 16
"""Cgroups that one thread keeps open: a pod may have more containers than a process descriptors."""


class _Folders:
    """Open descriptors of the cgroups that one batch reads and writes. Used in one thread."""

    def __init__(self) -> None:
        self._found: dict[tuple[Path, tuple[str, ...]], int] = {}

    def open(self, folder: Path, path: tuple[str, ...]) -> int:
        """A descriptor of a cgroup, valid until the next call; raises OSError as `_open_folder`."""
        folder_fd = self._found.get((folder, path))
        if folder_fd is None:
            if len(self._found) >= _MOST_OPEN:
                os.close(self._found.pop(next(iter(self._found))))
            parent = self._found.get((folder, path[:-1]))
            if parent is None:
                folder_fd = _open_folder(folder, path)
            else:
                folder_fd = os.open(path[-1], _FOLDER_FLAGS, dir_fd=parent)
            self._found[folder, path] = folder_fd
        return folder_fd

    def close(self) -> None:
        for descriptor in self._found.values():
            os.close(descriptor)


class _Open(threading.local):
    """The cgroups that this thread keeps open; None outside of `CgroupWriter.keeping_open`."""

    folders: _Folders | None = None


class WriteOutcome(StrEnum):
    """How the write of one value ended."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The file held the value already."""
    MISSING = "missing"
    """The kernel or this cgroup version has no such file, or the cgroup is gone: skipped."""
    INVALID = "invalid"
    """Unknown parameter or a value that no kernel takes: never written."""
    REFUSED = "refused"
    """A path that leaves the cgroup tree."""
    FAILED = "failed"
    """An error of the kernel."""
    PENDING = "pending"
    """It waits for the success of a call, or for the container's cgroup."""


FAILURES: Final = frozenset({WriteOutcome.FAILED, WriteOutcome.INVALID, WriteOutcome.REFUSED})


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of one value."""

    cgroup: str
    """The cgroup as the caller named it."""
    name: str
    value: Value
    """The wanted value, as given; the list that stands for an empty one which the kernel does not take."""
    outcome: WriteOutcome
    old: Value | None = None
    """What the file held before; None when that is not known."""
    error: str = ""
    """Why, unless written or unchanged; begins with the errno's name (`EBUSY`) for an error of the kernel."""
    left: Value | None = None
    """The looser value that the file holds if only the last of two steps failed; else None."""

    @property
    def old_text(self) -> str:
        return "" if self.old is None else str(self.old)


_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENXIO})
_LINKED = frozenset({errno.ELOOP, errno.ENOTDIR})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the file."""
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_NOT_EMPTY = frozenset({errno.ENOSPC, errno.EBUSY})
"""Errors of an empty list where there are processes; EBUSY: on version 1, where a cgroup below has a list."""


class _UnlessExhausted:
    """Goes on after an error of a file, but not after one that every file would have."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, OSError) and error.errno not in _EXHAUSTED


def outcome_of(error: OSError) -> WriteOutcome:
    if error.errno in _GONE:
        return WriteOutcome.MISSING
    return WriteOutcome.REFUSED if error.errno in _LINKED else WriteOutcome.FAILED


def explain(error: OSError, name: str) -> str:
    """The errno's name and a text for people."""
    code = errno.errorcode.get(error.errno or 0, "OSError")
    parameter = PARAMETERS.get(name)
    if parameter is not None and parameter.processes is not None and error.errno in _DENIED:
        # Only the error of an open has a file's name.
        if error.filename is not None:
            return f"{code}: a process of another user, which needs CAP_DAC_OVERRIDE"
        if parameter.capability:
            return f"{code}: such a value needs {parameter.capability}"
    if error.errno == errno.EBUSY and name == "memory.limit_in_bytes":
        return f"{code}: the cgroup uses more memory than the limit, and not enough can be reclaimed"
    if error.errno in _LINKED:
        return f"{code}: a symbolic link or a plain file stands where a cgroup should be"
    return f"{code}: {error.strerror}"


def explain_device(device: str, error: OSError, name: str) -> str:
    """As `explain`, of a line that is about one block device."""
    text = f"{device}: {explain(error, name)}"
    if error.errno == errno.EOPNOTSUPP and name == "blkio.cost.weight":
        return f"{text}: this disk has no cost model, which blkioQOS of cgroupRoot gives it"
    return text


@dataclass(frozen=True, slots=True)
class CgroupValues:
    """The values wanted in one cgroup."""

    cgroup: str
    """As the CRI gives it; see `cgroup_path` for the forms."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """By version 1 name; -1 means unlimited."""
    present: Mapping[str, FileText] = field(default_factory=dict)
    """What `CgroupWriter.look` has read just now: these files are not read again."""
    raw: Mapping[str, str] = field(default_factory=dict)
    """The text to write for a value, byte for byte, in place of the value's own form."""
    replaces: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Of a value of processes: those with one of these are written to, and others keep theirs; without it all
    that have another value are."""
    weights: WeightFormula | None = None
    """How the other cgroups beside this one got their cpu.weight; None if that is not known."""


class _Location(NamedTuple):
    """The file that carries a parameter."""

    folder: Path
    """The controller's mount."""
    version: int
    format: FileFormat
    processes: ProcessValues
    is_of_root: bool = False

    def place(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The path of a cgroup's folder below the mount: empty for the root, for the files of the root alone.

        Raises:
            OSError: The cgroup is the root and the file is another one, or the other way round.
        """
        if (path == ROOT_PATH) is not self.is_of_root:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return () if self.is_of_root else path

    def read(self, folder_fd: int) -> str:
        """The content of the file in an open cgroup, or the values of its processes.

        Raises:
            OSError: The kernel's error.
        """
        if isinstance(self.format, ProcessFormat):
            return self.processes.text(self.format, folder_fd, self.version)
        return _read(self.format.file, folder_fd)


@dataclass(slots=True)
class _Batch:
    """The state of one call of `write_levels`."""

    folders: _Folders
    results: dict[Key | tuple[str, str], WriteResult] = field(default_factory=dict)
    wanted: dict[Key, tuple[CgroupValues, _Location]] = field(default_factory=dict)
    pending: list[dict[Key, Value]] = field(default_factory=list)
    current: dict[Key, Value | None] = field(default_factory=dict)

    def result(
        self, key: Key, outcome: WriteOutcome, error: str = "", value: Value | None = None
    ) -> WriteResult:
        """The result of one value; with a value, of another one than the wanted one."""
        wanted, _ = self.wanted[key]
        given = wanted.values[key.name] if value is None else value
        return WriteResult(wanted.cgroup, key.name, given, outcome, self.current.get(key), error)

    def failed(self, key: Key, error: OSError) -> WriteResult:
        return self.result(key, outcome_of(error), explain(error, key.name))

    def compare(self, key: Key) -> None:
        """Adds the result of a value that is there already or cannot be read; all others become pending."""
        wanted, file = self.wanted[key]
        present, raw, value = wanted.present.get(key.name), wanted.raw.get(key.name), _canonical(key, wanted)
        old, is_same = None, False
        try:
            text = present.text if present is not None else ""
            if present is None:
                text = file.read(self.folders.open(file.folder, file.place(key.path)))
            if raw is not None:
                is_same = text.rstrip("\n") == raw.rstrip("\n")
            old = file.format.decode(text)
            if raw is None:
                is_same = file.format.matches(value, text)
        except OSError as error:
            self.results[key] = self.failed(key, error)
            return
        except ValueError:
            # Content that cannot be parsed is overwritten.
            old = None
        self.current[key] = old
        if is_same:
            self.results[key] = self.result(key, WriteOutcome.UNCHANGED)
        else:
            self.pending[-1][key] = value

    def carry_out(self, step: Step) -> WriteResult:
        key, (wanted, found) = step.key, self.wanted[step.key]
        file, raw, text = found.format.file, wanted.raw.get(step.key.name), None
        try:
            folder = self.folders.open(found.folder, found.place(key.path))
            if isinstance(found.format, ProcessFormat):
                return self._to_processes(step, found.format, folder)
            if found.format.lines is not None:
                return self._write_lines(key, step.value, found.format, folder)
            if raw is not None and step.is_final:
                text = raw.rstrip("\n")
            elif found.format.compose is None:
                text = found.format.encode(step.value)
            else:
                text = found.format.compose(step.value, _read(file, folder))
            if found.format.bounded_by:
                _write_bounded(found.format, folder, text)
            else:
                _write(file, folder, text)
        except OSError as error:
            if error.errno in _NOT_EMPTY and text == "" and PARAMETERS[key.name].is_list:
                return self._inherit(key, error)
            return self.failed(key, error)
        except ValueError as error:
            return self.result(key, WriteOutcome.FAILED, str(error))
        return self.result(key, WriteOutcome.WRITTEN)

    def _write_lines(self, key: Key, value: Value, form: FileFormat, folder: int) -> WriteResult:
        """Writes the lines of block devices; that of one which cannot be written stops no other."""
        assert form.lines is not None  # noqa: S101 - for the type checker
        refused = _write_lines(form.file, folder, form.lines(value, _read(form.file, folder)))
        if not refused:
            return self.result(key, WriteOutcome.WRITTEN)
        texts = (explain_device(line.partition(" ")[0], error, key.name) for line, error in refused.items())
        held, reset = devices.by_device(form.decode(_read(form.file, folder))), PARAMETERS[key.name].reset
        left = {device: held.get(device, reset) for device in devices.by_device(value)}
        result = self.result(key, WriteOutcome.FAILED, "; ".join(texts))
        return replace(result, left=devices.text_of(left))

    def _to_processes(self, step: Step, form: ProcessFormat, folder: int) -> WriteResult:
        """Writes a value of processes; raises OSError where these cannot be found."""
        key, (wanted, found) = step.key, self.wanted[step.key]
        replaces = wanted.replaces.get(key.name)

        def is_due(present: str) -> bool:
            try:
                if form.matches(step.value, present):
                    return False
                return replaces is None or any(form.matches(each, present) for each in replaces)
            except ValueError:
                return replaces is None

        text = form.encode(step.value)
        done = found.processes.write(form, folder, found.version, key.path[-1], text, is_due)
        if not (done.problem or done.refused):
            return self.result(key, WriteOutcome.WRITTEN if done.written else WriteOutcome.UNCHANGED)
        error = done.problem
        if done.refused:
            first, total = next(iter(done.refused.values())), len(done.refused) + done.had
            error = f"{explain(first, key.name)} ({len(done.refused)} of {total} processes)"
        is_any = replaces is None and (done.written or done.had)
        return replace(self.result(key, WriteOutcome.FAILED, error), left=step.value if is_any else None)

    def _inherit(self, key: Key, refused: OSError) -> WriteResult:
        """Gives a cgroup in place of an empty list what stands for it: all that its parent has.

        Version 2 has an empty list in a new cgroup, and takes one back only while no process is in it or
        below. A list may have more than the parent's, effective is what both have. That of the whole node
        stays true when the parent's grows; a copy of the parent's would not.
        Version 1 takes an empty list only while nothing below has another one, too, and none with more than
        the parent's: a copy of that is all there is.
        Source: Linux, kernel/cgroup/cpuset.c, validate_change and update_cpumask.
        """
        _, (folder, version, form, *_) = self.wanted[key]
        file = form.file
        path, source = (key.path[:-1], file) if version == 1 else ((), f"{file}.effective")
        try:
            text = _read(source, self.folders.open(folder, path))
        except OSError as error:
            return self.failed(key, refused if error.errno == errno.ENOENT else error)
        try:
            value = form.decode(text)
            if value == self.current[key]:
                return self.result(key, WriteOutcome.UNCHANGED, value=value)
            _write(file, self.folders.open(folder, key.path), form.encode(value))
        except OSError as error:
            return self.failed(key, error)
        return self.result(key, WriteOutcome.WRITTEN, value=value)


def _canonical(key: Key, wanted: CgroupValues) -> Value:
    return PARAMETERS[key.name].canonical(wanted.values[key.name])


class CgroupWriter:
    """Reads and writes cgroup values below one mount point; synchronous, for worker threads, thread safe.

    Args:
        root: Where cgroups are mounted.
        procfs: Where procfs is.
        accesses: Of values of processes that are no file of procfs, by the `file` of their formats.
        groups: Those of tasks that share cores.
        resctrl: Those of tasks with a part of the cache.
        of_cgroups: Has the values that are no file of a cgroup, nor of its processes.

    Attributes:
        groups: See there; who knows what was written sets `CoreGroups.booked`.
    """

    def __init__(
        self,
        root: Path = DEFAULT_ROOT,
        procfs: Path = DEFAULT_PROCFS,
        accesses: Mapping[str, ProcessAccess] | None = None,
        groups: CoreGroups | None = None,
        resctrl: ResctrlGroups | None = None,
        of_cgroups: CgroupAccess | None = None,
    ) -> None:
        self._root = root
        self.groups = groups or CoreGroups()
        resctrl = resctrl or ResctrlGroups()
        known: dict[str, ProcessAccess] = {
            CORE_GROUP: self.groups,
            GROUP_FIELD: resctrl.members,
            MONITOR_FIELD: resctrl.monitors,
            SLICE_FIELD: Slices(),
        }
        self._processes = ProcessValues(procfs, {**known, **(accesses or {})}, of_cgroups)
        self._mounts: dict[str, Mount] = {}
        self._located: dict[str, _Location | str] = {}
        self._open = _Open()

    @property
    def mounts(self) -> dict[str, Mount]:
        """The node's cgroup mounts by controller, read at the first use and until there are any.

        They do not change while a node runs pods.
        """
        if not self._mounts:
            self._mounts = find_mounts(self._root)
        return self._mounts

    def write(self, cgroup: str, values: Mapping[str, Value]) -> tuple[WriteResult, ...]:
        return self.write_levels([[CgroupValues(cgroup, values)]])

    @contextmanager
    def keeping_open(self) -> Iterator[_Folders]:
        """Keeps each cgroup that this thread reads or writes open, for a batch of reads and writes.

        A path of four parts costs five system calls to open and as many to close. A cgroup that is removed
        and made again meanwhile is taken for missing.
        """
        if self._open.folders is not None:
            yield self._open.folders
            return
        self._open.folders = folders = _Folders()
        try:
            yield folders
        finally:
            self._open.folders = None
            folders.close()

    def look(self, path: tuple[str, ...], names: Iterable[str]) -> dict[str, FileText]:
        """The contents of the files of one cgroup; those that cannot be read are left out.

        `path`: the cgroup's, from `cgroup_path`.

        Raises:
            OSError: this process, or the node, has no descriptor or memory left to read any file.
        """
        rest()
        files: dict[Path, dict[str, _Location]] = {}
        for name in names:
            located = self._locate(name) if name in PARAMETERS else ""
            if not isinstance(located, str) and located.is_of_root is (path == ROOT_PATH):
                files.setdefault(located.folder, {})[name] = located
        found: dict[str, FileText] = {}
        for folder, wanted in files.items():
            with _UnlessExhausted(), self.keeping_open() as folders:
                folder_fd = folders.open(folder, () if path == ROOT_PATH else path)
                inode = os.fstat(folder_fd).st_ino
                read: dict[str, FileText] = {}
                for name, location in wanted.items():
                    file = location.format.file
                    with _UnlessExhausted():
                        # cpu.max carries two parameters.
                        if file not in read:
                            read[file] = FileText(file, location.read(folder_fd), inode)
                        found[name] = read[file]
        return found

    def children(self, path: tuple[str, ...], name: str) -> tuple[str, ...]:
        """The names of the cgroups below one, by the controller that carries a parameter.

        Raises:
            OSError: as `look`.
        """
        located = self._locate(name)
        if isinstance(located, str):
            return ()
        with _UnlessExhausted(), self.keeping_open() as folders:
            folder_fd = folders.open(located.folder, path)
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
            try:
                with os.scandir(descriptor) as found:
                    return tuple(each.name for each in found if each.is_dir(follow_symlinks=False))
            finally:
                os.close(descriptor)
        return ()

    def decode(self, name: str, text: str) -> Value | None:
        """The value of a parameter in a file's content; None for other content."""
        located = self._locate(name)
        if isinstance(located, str):
            return None
        try:
            return located.format.decode(text)
        except ValueError:
            return None

    def encode(self, name: str, value: Value) -> str | None:
        """The text of a value in its file; None where there is no such file."""
        located = self._locate(name)
        if isinstance(located, str) or check_value(name, value):
            return None
        return located.format.encode(PARAMETERS[name].canonical(value))

    def file_of(self, name: str) -> str | None:
        """The name of the file that carries a parameter; None where there is none."""
        located = self._locate(name) if name in PARAMETERS else ""
        return None if isinstance(located, str) else located.format.file

    def parts(self, name: str, text: str) -> tuple[str, ...]:
        """A file's content; of a value of processes each one that one of them has, none without any."""
        located = self._locate(name) if name in PARAMETERS else ""
        is_of_processes = not isinstance(located, str) and isinstance(located.format, ProcessFormat)
        return tuple(text.split()) if is_of_processes else (text,)

    def matches(self, name: str, value: Value, text: str) -> bool:
        """Whether a file with this content holds a value."""
        located = self._locate(name)
        if isinstance(located, str) or check_value(name, value):
            return False
        try:
            return located.format.matches(PARAMETERS[name].canonical(value), text)
        except ValueError:
            return False

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        """Writes values to a tree of cgroups: loosens parents first, tightens children first.

        Args:
            levels: the wanted values, parents' level first.

        Returns:
            One result per value; never raises for an error of the kernel or a bad value.
        """
        with self.keeping_open() as folders:
            batch = _Batch(folders)
            for level in levels:
                batch.pending.append({})
                for wanted in level:
                    for name in wanted.values:
                        found = self._file(wanted, name)
                        if isinstance(found, WriteResult):
                            batch.results[wanted.cgroup, name] = found
                        else:
                            key = Key(cgroup_path(wanted.cgroup), name)
                            batch.wanted[key] = wanted, found
                            batch.compare(key)
            loosened: dict[Key, Value] = {}
            for step in write_steps(batch.pending, batch.current):
                rest()
                result = batch.carry_out(step)
                if step.is_final:
                    if result.outcome is WriteOutcome.FAILED and step.key in loosened:
                        result = replace(result, left=loosened[step.key])
                    batch.results[step.key] = result
                elif result.outcome is WriteOutcome.WRITTEN:
                    loosened[step.key] = step.value
        return tuple(batch.results.values())

    def read(self, cgroup: str, name: str) -> Value | None:
        """The value in a cgroup's file; None without such a file or cgroup, or for other content.

        Raises:
            KeyError: no parameter has that name.
            CgroupPathError: the path leaves the cgroup tree.
            OSError: any other failure of the kernel.
        """
        key = Key(cgroup_path(cgroup), name)
        located = self._locate(name)
        if isinstance(located, str):
            return None
        try:
            with self.keeping_open() as folders:
                folder = folders.open(located.folder, located.place(key.path))
                return located.format.decode(located.read(folder))
        except ValueError:
            return None
        except OSError as error:
            if outcome_of(error) is WriteOutcome.MISSING:
                return None
            raise

    def _file(self, wanted: CgroupValues, name: str) -> _Location | WriteResult:
        value = wanted.values[name]
        if invalid := check_value(name, value):
            return WriteResult(wanted.cgroup, name, value, WriteOutcome.INVALID, error=invalid)
        try:
            path = cgroup_path(wanted.cgroup)
        except CgroupPathError as error:
            return WriteResult(wanted.cgroup, name, value, WriteOutcome.REFUSED, error=str(error))
        if PARAMETERS[name].is_of_root is not (path == ROOT_PATH):
            which = "only the root cgroup has" if path != ROOT_PATH else "the root cgroup gets nothing of"
            return WriteResult(wanted.cgroup, name, value, WriteOutcome.REFUSED, error=f"{which} {name}")
        located = self._locate(name)
        if isinstance(located, str):
            return WriteResult(wanted.cgroup, name, value, WriteOutcome.MISSING, error=located)
        if wanted.weights is not None and located.format is PARAMETERS[_SHARES].v2:
            return located._replace(format=weight_v2(located.format.file, wanted.weights))
        return located

    def _locate(self, name: str) -> _Location | str:
        """The folder and file that carry a parameter, or why there are none."""
        located = self._located.get(name)
        if located is None:
            located = self._find(name)
            # Without any mount they are looked for again.
            if self._mounts:
                self._located[name] = located
        return located

    def _find(self, name: str) -> _Location | str:
        parameter = PARAMETERS[name]
        mount = next((self.mounts[each] for each in parameter.controllers if each in self.mounts), None)
        if parameter.processes is not None:
            mount = next((self.mounts[each] for each in _WITH_PROCESSES if each in self.mounts), None)
            if mount is None:
                return "this node has no cgroup controller by which processes are found"
        if mount is None:
            return f"this node has no cgroup controller {parameter.controllers[0]}"
        file_format = parameter.format_for(mount.version)
        if file_format is None:
            return f"cgroup version {mount.version} has no {name}"
        return _Location(mount.folder, mount.version, file_format, self._processes, parameter.is_of_root)
