"""Managed cgroup values: written again when systemd or others reset them.

The original content of each file is remembered too, so that `restore` can undo all writes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from threading import Lock, RLock
from typing import Final, NamedTuple, Protocol

from runtimeproxy.cgroups.parameters import PARAMETERS, check_value
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path
from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.pods.records import CgroupRecord, ManagedValue, PodRecord
from runtimeproxy.units import (
    UNLIMITED,
    cpu_shares_from_weight,
    cpu_weight_from_shares,
    format_cpu_list,
    parse_cpu_list,
)

logger = logging.getLogger(__name__)

MOST_UNCLAIMED: Final = 256
"""Bound on remembered cgroups without a recorded pod: their pods may be about to start. The oldest are
forgotten first. More than the pods of a node. Source: the kubelet's default of 110 pods."""

UNCLAIMED_S: Final = 600.0
"""How long such a cgroup is remembered: longer than the start of a pod takes. Source: the kubelet gives the
runtime 2 x 2 minutes for it (pkg/kubelet/cri/remote)."""

_THERE: Final = (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STRIPES: Final = 16
"""Number of cgroups that can be written at once; a write of memory limits may take long."""

Value = int | str
Values = Mapping[str, Value]
_Path = tuple[str, ...]


class _Writer(Protocol):
    def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]: ...


class _Managed(NamedTuple):
    values: Mapping[str, ManagedValue]
    since_s: float
    once: frozenset[str] = frozenset()
    """Values of hook servers that the next `reapply` writes again; see `write`."""


class ManagedCgroups:
    """A cgroup writer that remembers the values that it wrote; safe for all threads.

    Args:
        writer: Writes to the files.
        clock: In seconds.

    Attributes:
        now_s: The clock.
        on_change: Called in any thread with the id of each cgroup whose record has changed.
    """

    def __init__(self, writer: _Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._lock = Lock()
        # Held while a cgroup is written and its record is changed: otherwise a thread could take the value
        # that another one has just written for the node's own.
        self._write_locks = tuple(RLock() for _ in range(_STRIPES))
        self._managed: dict[_Path, _Managed] = {}
        self.now_s = clock
        self.on_change: Callable[[str], None] | None = None

    def __len__(self) -> int:
        """Number of remembered cgroups."""
        return len(self._managed)

    @property
    def identities(self) -> tuple[str, ...]:
        """The ids of all remembered cgroups."""
        with self._lock:
            return tuple(map(_identity, self._managed))

    def record(self, identity: str) -> CgroupRecord | None:
        """The record of a cgroup; None if no values were written to it."""
        found = self._managed.get(cgroup_path(identity))
        return None if found is None else CgroupRecord(identity, found.values)

    def load(self, records: Iterable[CgroupRecord], *, outdated_s: float | None = None) -> None:
        """Adds the records of a checkpoint; values written by this process take precedence.

        Args:
            records: Cgroups of the checkpoint.
            outdated_s: Time from which on another process decided: values that this process wrote before it
                do not take precedence. None if there was no other process.
        """
        now_s = self.now_s()
        for record in records:
            try:
                path = cgroup_path(record.id)
            except CgroupPathError:
                continue
            with self._lock:
                before = self._managed.get(path)
                if before is None or (outdated_s is not None and before.since_s <= outdated_s):
                    loaded = _Managed(record.values, now_s)
                else:
                    loaded = _Managed(_joined(record.values, before.values), now_s, before.once)
                self._managed[path] = loaded
            if loaded.values != record.values:
                self._report_changes([path])

    def write(self, cgroup: str, values: Values, once: Collection[str] = ()) -> tuple[WriteResult, ...]:
        """Writes values to one cgroup, and remembers those that the files hold now.

        Args:
            cgroup: The cgroup.
            values: By parameter.
            once: Values that are not reapplied later, because a hook server owns them: only their original
                is remembered. In a slice the next `reapply` writes them once more: systemd resets the slice
                when it starts the sandbox that the values are meant for.
        """
        try:
            path = cgroup_path(cgroup)
        except CgroupPathError:
            return self._writer.write(cgroup, values)
        with self._write_lock(path):
            results = self._writer.write(cgroup, values)
            there = [result for result in results if result.outcome in _THERE]
            if there:
                self._remember(path, there, frozenset(once))
        return results

    def is_managed(self, cgroup: str) -> bool:
        """Whether `reapply` would write to this cgroup; takes no lock, for the event loop's thread."""
        try:
            managed = self._managed.get(cgroup_path(cgroup))
        except CgroupPathError:
            return False
        if managed is None:
            return False
        return bool(managed.once) or any(value.reapply for value in managed.values.values())

    def reapply(self, cgroup: str) -> None:
        """Writes the changed values of one cgroup again after an event that is known to reset them."""
        path = cgroup_path(cgroup)
        once: frozenset[str] = frozenset()
        with self._lock:
            found = self._managed.get(path)
            if found is not None and found.once:
                once = found.once
                self._managed[path] = found._replace(once=frozenset())
        self._reapply(path, cgroup, logging.DEBUG, once)

    def reapply_all(self, pods: Iterable[PodRecord], container_ids: Collection[str] = ()) -> None:
        """Writes changed values of these pods' cgroups again.

        Args:
            pods: All running pods.
            container_ids: All known containers; the cgroups of others are forgotten.
        """
        live = {path: pod for pod in pods for path in _paths([pod.cgroup_parent])}
        self._forget(live.keys(), container_ids)
        with self._lock:
            claimed = live.keys() & self._managed.keys()
        for path in claimed:
            self._reapply(path, live[path], logging.WARNING)

    def release_all(self) -> None:
        """Ends the reapplying of all values, because other policies are in use now; originals stay known."""
        with self._lock:
            for path, managed in self._managed.items():
                values = {name: replace(value, reapply=False) for name, value in managed.values.items()}
                self._managed[path] = _Managed(values, managed.since_s)
            paths = tuple(self._managed)
        self._report_changes(paths)

    def prune(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        """Forgets the cgroups of pods that are gone if there are many; cheap otherwise."""
        if len(self._managed) > MOST_UNCLAIMED:
            self._forget(_paths(pod_cgroups), frozenset(container_ids))

    def _remember(self, path: _Path, results: Sequence[WriteResult], once: frozenset[str]) -> None:
        with self._lock:
            # Taken out, so that the cgroup goes to the end: the one that was written last is forgotten last.
            found = self._managed.pop(path, None) or _Managed({}, 0.0)
            after = {**found.values}
            for result in results:
                name = result.name
                after[name] = after_write(after.get(name), result, reapply=name not in once)
            names = frozenset(result.name for result in results)
            settling = found.once - names
            if path[-1].endswith(".slice"):
                settling |= once & names
            self._managed[path] = _Managed(after, self.now_s(), settling)
        if after != found.values:
            self._report_changes([path])

    def _forget(self, live: AbstractSet[_Path], container_ids: Collection[str]) -> None:
        with self._lock:
            unclaimed = [path for path in self._managed if not _is_claimed(path, live, container_ids)]
            too_many = max(0, len(unclaimed) - MOST_UNCLAIMED)
            until_s = self.now_s() - UNCLAIMED_S
            gone = [
                path
                for number, path in enumerate(unclaimed)
                if number < too_many or self._managed[path].since_s < until_s
            ]
            for path in gone:
                del self._managed[path]
        self._report_changes(gone)

    def _reapply(
        self, path: _Path, owner: PodRecord | str, log_level: int, once: frozenset[str] = frozenset()
    ) -> None:
        with self._write_lock(path):
            managed = self._managed.get(path)
            # Until the written values are still the wanted ones: a call may change them meanwhile.
            while managed is not None:
                before = managed.values
                wanted = {name: each.wanted for name, each in before.items() if each.reapply or name in once}
                results = self._writer.write(_identity(path), wanted)
                _log(log_level, owner, results)
                after = {
                    result.name: after_write(before[result.name], result, reapply=before[result.name].reapply)
                    for result in results
                    if result.outcome is WriteOutcome.WRITTEN
                }
                with self._lock:
                    now = self._managed.get(path)
                    if now is managed and after:
                        self._managed[path] = managed._replace(values={**before, **after})
                if now is managed and after:
                    self._report_changes([path])
                managed = None if now is managed else now

    def _write_lock(self, path: _Path) -> RLock:
        return self._write_locks[hash(path) % _STRIPES]

    def _report_changes(self, paths: Iterable[_Path]) -> None:
        if self.on_change is not None:
            for path in paths:
                self.on_change(_identity(path))


def after_write(before: ManagedValue | None, result: WriteResult, *, reapply: bool = True) -> ManagedValue:
    """The record of a value after a write.

    The original is the content before the first write. When the file holds a foreign value before a later
    write, that one becomes the original: it is the value of the node without the proxy.

    Args:
        before: The record before the write.
        result: Outcome of the write: the file holds the value now.
        reapply: Whether to write the value again when it has changed.
    """
    if before is None:
        return ManagedValue(result.value, result.old, reapply)
    is_own = result.old is None or result.old in as_read(result.name, before.wanted)
    return ManagedValue(result.value, before.original if is_own else result.old, reapply)


def as_read(name: str, value: Value) -> tuple[Value, ...]:
    """The forms in which a written value may be read back: the kernel rounds, and weights are not shares."""
    if check_value(name, value):
        return (value,)
    plain = PARAMETERS[name].canonical(value)
    if PARAMETERS[name].is_list:
        return plain, format_cpu_list(parse_cpu_list(str(plain)))
    if name == "cpu.shares":
        return plain, cpu_shares_from_weight(cpu_weight_from_shares(int(plain)))
    if name.startswith("memory.") and plain != UNLIMITED:
        return plain, int(plain) - int(plain) % _PAGE_BYTES
    return (plain,)


def _joined(saved: Mapping[str, ManagedValue], now: Mapping[str, ManagedValue]) -> Mapping[str, ManagedValue]:
    """Merges two records: values written by this process, original contents from the checkpoint."""
    mended = {
        name: replace(value, original=saved[name].original)
        for name, value in now.items()
        if name in saved and (value.original is None or value.original in as_read(name, saved[name].wanted))
    }
    return {**saved, **now, **mended}


def _is_claimed(path: _Path, live: AbstractSet[_Path], container_ids: Collection[str]) -> bool:
    """Whether a cgroup is a pod's, or that of a container in one; names of scopes end with its id."""
    if path in live:
        return True
    return path[:-1] in live and path[-1].removesuffix(".scope").rpartition("-")[2] in container_ids


def _identity(path: _Path) -> str:
    return "/" + "/".join(path)


def _paths(cgroups: Iterable[str]) -> set[_Path]:
    paths: set[_Path] = set()
    for cgroup in cgroups:
        try:
            paths.add(cgroup_path(cgroup))
        except CgroupPathError:
            continue
    return paths


def _log(level: int, owner: PodRecord | str, results: Sequence[WriteResult]) -> None:
    """Logs the values that had been reset, and those that could not be written again.

    Args:
        level: of the line about the values that had been reset.
        owner: the pod, or its cgroup where only that is known.
        results: of writing all values.
    """
    if isinstance(owner, PodRecord):
        name = f"pod {owner.namespace}/{owner.name}, uid {owner.uid}"
        about = {"pod": f"{owner.namespace}/{owner.name}", "uid": owner.uid, "sandbox": owner.id}
    else:
        name, about = f"cgroup {owner}", {}
    changed = [result for result in results if result.outcome is WriteOutcome.WRITTEN]
    if changed:
        texts = ", ".join(f"{result.name} {result.old} -> {result.value}" for result in changed)
        about["cgroup"] = changed[0].cgroup
        logger.log(
            level, "cgroup values of %s had been changed, and are set again: %s", name, texts, extra=about
        )
    for result in results:
        if result.outcome in (WriteOutcome.INVALID, WriteOutcome.REFUSED, WriteOutcome.FAILED):
            fields = {**about, "cgroup": result.cgroup, "field": result.name, "value": result.value}
            text = "a cgroup value of %s had been changed, and cannot be set again: %s: %s"
            logger.warning(text, name, result.name, result.error, extra=fields)
