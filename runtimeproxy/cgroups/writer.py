"""Writes values to cgroups: checked, compared, in safe order; a missing file is a counted skip."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtimeproxy.cgroups.cache import ValueCache
from runtimeproxy.cgroups.files import read_text, write_text
from runtimeproxy.cgroups.formats import FileFormat, Value
from runtimeproxy.cgroups.hierarchy import DEFAULT_ROOT, Hierarchy, detect
from runtimeproxy.cgroups.order import Key, Step, plan
from runtimeproxy.cgroups.parameters import PARAMETERS, check_value
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.cgroups.results import Counts, Outcome, WriteResult, explain, outcome_of


@dataclass(frozen=True, slots=True)
class CgroupValues:
    """The values wanted in one cgroup."""

    cgroup: str
    """As the CRI gives it; see `cgroup_path` for the forms."""
    values: Mapping[str, Value]
    """By version 1 name; -1 means unlimited."""


@dataclass(frozen=True, slots=True)
class _Target:
    """One value on its way to one file."""

    key: Key
    cgroup: str
    given: Value
    value: Value
    folder: Path
    format: FileFormat

    def result(self, outcome: Outcome, old: Value | None = None, error: str = "") -> WriteResult:
        return WriteResult(self.cgroup, self.key.name, self.given, outcome, old, error)

    def failed(self, error: OSError, old: Value | None = None) -> WriteResult:
        return self.result(outcome_of(error), old, explain(error, self.key.name))


@dataclass(slots=True)
class _Batch:
    """What one call of `write_levels` knows so far."""

    results: dict[Key | tuple[str, str], WriteResult] = field(default_factory=dict)
    targets: dict[Key, _Target] = field(default_factory=dict)
    pending: list[dict[Key, Value]] = field(default_factory=list)
    current: dict[Key, Value | None] = field(default_factory=dict)


class CgroupWriter:
    """Reads and writes cgroup values below one mount point; synchronous, for worker threads, thread safe."""

    def __init__(self, root: Path = DEFAULT_ROOT, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the mount point (a plain folder in tests) and the clock of the cache, in seconds."""
        self._root = root
        self._hierarchy = Hierarchy(root)
        self._counts = Counts()
        self._cache = ValueCache(clock)

    @property
    def hierarchy(self) -> Hierarchy:
        """The node's cgroup mounts, detected at first use and until there are any."""
        if not self._hierarchy.mounts:
            self._hierarchy = detect(self._root)
        return self._hierarchy

    def write(
        self, cgroup: str, values: Mapping[str, Value], *, max_age_s: float = 0.0
    ) -> tuple[WriteResult, ...]:
        """Writes values to one cgroup; see `write_levels`."""
        return self.write_levels([[CgroupValues(cgroup, values)]], max_age_s=max_age_s)

    def write_levels(
        self, levels: Sequence[Sequence[CgroupValues]], *, max_age_s: float = 0.0
    ) -> tuple[WriteResult, ...]:
        """Writes values to a tree of cgroups: loosens parents first, tightens children first.

        Args:
            levels: the wanted values, parents' level first.
            max_age_s: a value written or compared no longer ago than this is taken for still there, without
                a look at the file. 0 always looks: right for life-cycle events; loops that set the
                same values again and again use a larger one.

        Returns:
            One result per value; never raises for what the kernel or a value does.
        """
        batch = _Batch()
        for level in levels:
            batch.pending.append({})
            for prepared in self._prepare(level):
                if isinstance(prepared, WriteResult):
                    batch.results[prepared.cgroup, prepared.name] = prepared
                else:
                    self._compare(prepared, batch, max_age_s)
        for step in plan(batch.pending, batch.current):
            result = self._carry_out(step, batch, max_age_s)
            if step.is_final:
                batch.results[step.key] = result
        results = tuple(batch.results.values())
        self._counts.add(results)
        return results

    def read(self, cgroup: str, name: str) -> Value | None:
        """The value in a cgroup's file; None when there is no such file or cgroup, or it holds no such value.

        Raises:
            KeyError: no parameter has that name.
            CgroupPathError: the path leaves the cgroup tree.
            OSError: any other failure of the kernel.
        """
        key = Key(cgroup_path(cgroup), name)
        located = self._locate(name)
        if isinstance(located, str):
            return None
        folder, file_format = located
        try:
            return file_format.decode(read_text(folder, key.path, file_format.file))
        except ValueError:
            return None
        except OSError as error:
            if outcome_of(error) is Outcome.MISSING:
                return None
            raise

    def forget(self, cgroup: str) -> None:
        """Drops what is remembered of a cgroup that is gone."""
        try:
            self._cache.forget(cgroup_path(cgroup))
        except CgroupPathError:
            return

    def counts(self) -> Mapping[tuple[str, Outcome], int]:
        """How often each outcome happened, by parameter (`unknown` for names that do not exist)."""
        return self._counts.snapshot()

    def _prepare(self, level: Sequence[CgroupValues]) -> Iterator[_Target | WriteResult]:
        for wanted in level:
            for name, value in wanted.values.items():
                yield self._target(wanted.cgroup, name, value)

    def _target(self, cgroup: str, name: str, value: Value) -> _Target | WriteResult:
        invalid = check_value(name, value)
        if invalid:
            return WriteResult(cgroup, name, value, Outcome.INVALID, error=invalid)
        try:
            path = cgroup_path(cgroup)
        except CgroupPathError as error:
            return WriteResult(cgroup, name, value, Outcome.REFUSED, error=str(error))
        located = self._locate(name)
        if isinstance(located, str):
            return WriteResult(cgroup, name, value, Outcome.MISSING, error=located)
        folder, file_format = located
        return _Target(Key(path, name), cgroup, value, PARAMETERS[name].canonical(value), folder, file_format)

    def _locate(self, name: str) -> tuple[Path, FileFormat] | str:
        """The folder and file that carry a parameter, or why there are none."""
        parameter = PARAMETERS[name]
        mount = self.hierarchy.mounts.get(parameter.controller)
        if mount is None:
            return f"this node has no cgroup controller {parameter.controller}"
        file_format = parameter.format_for(mount.version)
        if file_format is None:
            return f"cgroup version {mount.version} has no {name}"
        return mount.folder, file_format

    def _compare(self, target: _Target, batch: _Batch, max_age_s: float) -> None:
        """Settles a target that is there already or cannot be read, and leaves all others pending."""
        key = target.key
        if max_age_s > 0 and self._cache.holds(key, target.value, max_age_s):
            batch.results[key] = target.result(Outcome.UNCHANGED, target.value)
            return
        old: Value | None = None
        is_same = False
        try:
            text = read_text(target.folder, key.path, target.format.file)
            old = target.format.decode(text)
            is_same = target.format.matches(target.value, text)
        except OSError as error:
            batch.results[key] = target.failed(error)
            return
        except ValueError:
            # Content that makes no sense is no reason to leave it there: it is overwritten.
            old = None
        if is_same:
            self._cache.remember(key, target.value, max_age_s)
            batch.results[key] = target.result(Outcome.UNCHANGED, old)
            return
        batch.targets[key] = target
        batch.pending[-1][key] = target.value
        batch.current[key] = old

    def _carry_out(self, step: Step, batch: _Batch, max_age_s: float) -> WriteResult:
        target, old = batch.targets[step.key], batch.current[step.key]
        self._cache.drop(step.key)
        place = target.folder, step.key.path, target.format.file
        try:
            if target.format.compose is None:
                text = target.format.encode(step.value)
            else:
                text = target.format.compose(step.value, read_text(*place))
            write_text(*place, text)
        except OSError as error:
            return target.failed(error, old)
        except ValueError as error:
            return target.result(Outcome.FAILED, old, str(error))
        if step.is_final:
            self._cache.remember(step.key, step.value, max_age_s)
        return target.result(Outcome.WRITTEN, old)
