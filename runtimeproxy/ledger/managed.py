"""Cgroup values that stay: systemd and others reset them, so those of pods are written again.

It also remembers what the files held before, for the day on which the proxy is taken off the node.
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

from runtimeproxy.cgroups import PARAMETERS, CgroupPathError, Outcome, WriteResult, cgroup_path, check_value
from runtimeproxy.pods.records import CgroupRecord, KeptValue, PodRecord
from runtimeproxy.units import (
    UNLIMITED,
    cpu_shares_from_weight,
    cpu_weight_from_shares,
    format_cpu_list,
    parse_cpu_list,
)

logger = logging.getLogger(__name__)

MOST_UNCLAIMED: Final = 256
"""Cgroups that no recorded pod has, but whose pods may be about to start; the oldest are forgotten first.
More than the pods of a node. Source: the kubelet's default of 110 pods."""

UNCLAIMED_S: Final = 600.0
"""How long such a cgroup is remembered. More than the start of a pod takes. Source: the kubelet gives the
runtime 2 x 2 minutes for it (pkg/kubelet/cri/remote)."""

_THERE: Final = (Outcome.WRITTEN, Outcome.UNCHANGED)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STRIPES: Final = 16
"""So many cgroups can be written at once; a write of memory limits may take long."""

Value = int | str
Values = Mapping[str, Value]
_Path = tuple[str, ...]


class _Writer(Protocol):
    def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]: ...


class _Kept(NamedTuple):
    values: Mapping[str, KeptValue]
    since_s: float
    settling: frozenset[str] = frozenset()
    """Values of hook servers that are written again once: see `write`."""


class KeptCgroups:
    """A cgroup writer that remembers what it wrote; safe for all threads.

    Args:
        writer: writes.
        clock: in seconds.
    """

    def __init__(
        self,
        writer: _Writer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._changed: Callable[[str], None] | None = None
        self._clock = clock
        self._lock = Lock()
        self._writing = tuple(RLock() for _ in range(_STRIPES))
        self._kept: dict[_Path, _Kept] = {}

    def tell(self, changed: Callable[[str], None]) -> None:
        """Sets what is told, in any thread, the id of each cgroup of which something else is remembered."""
        self._changed = changed

    def __len__(self) -> int:
        """How many cgroups are remembered."""
        return len(self._kept)

    @property
    def identities(self) -> tuple[str, ...]:
        """The ids of all cgroups that are remembered."""
        with self._lock:
            return tuple(map(_identity, self._kept))

    def record(self, identity: str) -> CgroupRecord | None:
        """What is remembered of a cgroup; None if nothing is."""
        found = self._kept.get(cgroup_path(identity))
        return None if found is None else CgroupRecord(identity, found.values)

    @property
    def now_s(self) -> float:
        """The time by the clock of `take`."""
        return self._clock()

    def take(self, records: Iterable[CgroupRecord], *, outdated_s: float | None = None) -> None:
        """Takes what a checkpoint holds; what has been written in this process counts more.

        Args:
            records: what the checkpoint holds.
            outdated_s: the time from which on another process decided: what was written in this one before
                does not count. None if none did.
        """
        now_s = self._clock()
        for record in records:
            try:
                path = cgroup_path(record.id)
            except CgroupPathError:
                continue
            with self._lock:
                before = self._kept.get(path)
                if before is None or (outdated_s is not None and before.since_s <= outdated_s):
                    taken = _Kept(record.values, now_s)
                else:
                    taken = _Kept(_joined(record.values, before.values), now_s, before.settling)
                self._kept[path] = taken
            if taken.values != record.values:
                self._tell([path])

    def write(self, cgroup: str, values: Values, once: Collection[str] = ()) -> tuple[WriteResult, ...]:
        """Writes values to one cgroup, and remembers those that are there now.

        Args:
            cgroup: the cgroup.
            values: by parameter.
            once: those that are somebody else's business from now on: what the files held before is
                remembered for them, and only in a slice the next `renew` writes them again. That is the start
                of the very sandbox for which they are meant, by which systemd resets the slice.
        """
        try:
            path = cgroup_path(cgroup)
        except CgroupPathError:
            return self._writer.write(cgroup, values)
        with self._written_alone(path):
            results = self._writer.write(cgroup, values)
            there = [result for result in results if result.outcome in _THERE]
            if there:
                self._remember(path, there, frozenset(once))
        return results

    def keeps(self, cgroup: str) -> bool:
        """Whether values were written to this cgroup that are to stay there; costs next to nothing."""
        try:
            kept = self._kept.get(cgroup_path(cgroup))
        except CgroupPathError:
            return False
        if kept is None:
            return False
        return bool(kept.settling) or any(value.kept for value in kept.values.values())

    def renew(self, cgroup: str) -> None:
        """Writes again what has changed in one cgroup, where that is to be expected."""
        path = cgroup_path(cgroup)
        with self._lock:
            found = self._kept.get(path)
            settling = found.settling if found is not None else frozenset()
            if found is not None and settling:
                self._kept[path] = found._replace(settling=frozenset())
        self._write_again(path, cgroup, logging.DEBUG, settling)

    def keep(self, pods: Iterable[PodRecord], container_ids: Collection[str] = ()) -> None:
        """Writes again what has changed in the cgroups of these pods; the others are not touched.

        Args:
            pods: all pods that run.
            container_ids: all containers that are known; the cgroups of others are forgotten.
        """
        live = {path: pod for pod in pods for path in _paths([pod.cgroup_parent])}
        self._forget(live.keys(), container_ids)
        with self._lock:
            claimed = live.keys() & self._kept.keys()
        for path in claimed:
            self._write_again(path, live[path], logging.WARNING)

    def forget_all(self) -> None:
        """Writes no value again: other policies count from now on. What the files held stays known."""
        with self._lock:
            for path, kept in self._kept.items():
                values = {name: replace(value, kept=False) for name, value in kept.values.items()}
                self._kept[path] = _Kept(values, kept.since_s)
            paths = tuple(self._kept)
        self._tell(paths)

    def tidy(self, pod_cgroups: Iterable[str], container_ids: Iterable[str] = ()) -> None:
        """Forgets the cgroups of pods that are gone, if there are many; cheap otherwise."""
        if len(self._kept) > MOST_UNCLAIMED:
            self._forget(_paths(pod_cgroups), frozenset(container_ids))

    def _remember(self, path: _Path, results: Sequence[WriteResult], once: frozenset[str]) -> None:
        with self._lock:
            # What was written last is forgotten last.
            found = self._kept.pop(path, None)
            before = found.values if found is not None else {}
            after = {
                **before,
                **{
                    result.name: after_write(before.get(result.name), result, kept=result.name not in once)
                    for result in results
                },
            }
            there = frozenset(result.name for result in results)
            settling = (found.settling if found is not None else frozenset()) - there
            if path[-1].endswith(".slice"):
                settling |= once & there
            self._kept[path] = _Kept(after, self._clock(), settling)
        if after != before:
            self._tell([path])

    def _forget(self, live: AbstractSet[_Path], container_ids: Collection[str]) -> None:
        with self._lock:
            unclaimed = [path for path in self._kept if not _is_claimed(path, live, container_ids)]
            too_many = max(0, len(unclaimed) - MOST_UNCLAIMED)
            until_s = self._clock() - UNCLAIMED_S
            gone = [
                path
                for number, path in enumerate(unclaimed)
                if number < too_many or self._kept[path].since_s < until_s
            ]
            for path in gone:
                del self._kept[path]
        self._tell(gone)

    def _write_again(
        self, path: _Path, owner: PodRecord | str, log_level: int, once: frozenset[str] = frozenset()
    ) -> None:
        """Until the values that were written are still the wanted ones: a call may change them meanwhile."""
        with self._written_alone(path):
            self._write_until_same(path, owner, log_level, once)

    def _written_alone(self, path: _Path) -> RLock:
        """Held while a cgroup is written and that is remembered: else both may be another thread's."""
        return self._writing[hash(path) % _STRIPES]

    def _write_until_same(
        self, path: _Path, owner: PodRecord | str, log_level: int, once: frozenset[str]
    ) -> None:
        kept = self._kept.get(path)
        while kept is not None:
            values = {name: value.wanted for name, value in kept.values.items() if value.kept or name in once}
            results = self._writer.write(_identity(path), values)
            written = [result for result in results if result.outcome is Outcome.WRITTEN]
            _log(log_level, owner, results)
            with self._lock:
                now = self._kept.get(path)
                is_same = now is kept
                if is_same and written:
                    before = kept.values
                    after = {
                        result.name: after_write(before[result.name], result, kept=before[result.name].kept)
                        for result in written
                    }
                    self._kept[path] = kept._replace(values={**before, **after})
            if is_same and written:
                self._tell([path])
            kept = None if is_same else now

    def _tell(self, paths: Iterable[_Path]) -> None:
        if self._changed is not None:
            for path in paths:
                self._changed(_identity(path))


def after_write(before: KeptValue | None, result: WriteResult, *, kept: bool = True) -> KeptValue:
    """What is remembered of a value after it was written.

    What the file held before the first write is kept, until somebody else puts another value there: then that
    is what the node wants without the proxy.

    Args:
        before: what was remembered.
        result: the outcome of the write: the value is there now.
        kept: whether it is to stay there.
    """
    if before is None:
        return KeptValue(result.value, result.old, kept)
    is_own = result.old is None or result.old in as_read(result.name, before.wanted)
    return KeptValue(result.value, before.original if is_own else result.old, kept)


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


def _joined(saved: Mapping[str, KeptValue], now: Mapping[str, KeptValue]) -> Mapping[str, KeptValue]:
    """What was written in this process counts, but what the files held before is in the checkpoint."""
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
    """Logs what had been changed, and what could not be changed back.

    Args:
        level: of the line about what had been changed.
        owner: the pod, or its cgroup where only that is known.
        results: what became of all values.
    """
    if isinstance(owner, PodRecord):
        name = f"pod {owner.namespace}/{owner.name}, uid {owner.uid}"
        about = {"pod": f"{owner.namespace}/{owner.name}", "uid": owner.uid, "sandbox": owner.id}
    else:
        name, about = f"cgroup {owner}", {}
    changed = [result for result in results if result.outcome is Outcome.WRITTEN]
    if changed:
        texts = ", ".join(f"{result.name} {result.old} -> {result.value}" for result in changed)
        about["cgroup"] = changed[0].cgroup
        logger.log(
            level, "cgroup values of %s had been changed, and are set again: %s", name, texts, extra=about
        )
    for result in results:
        if result.outcome in (Outcome.INVALID, Outcome.REFUSED, Outcome.FAILED):
            fields = {**about, "cgroup": result.cgroup, "field": result.name, "value": result.value}
            text = "a cgroup value of %s had been changed, and cannot be set again: %s: %s"
            logger.warning(text, name, result.name, result.error, extra=fields)
