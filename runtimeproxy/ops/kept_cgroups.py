"""Pod-level cgroup values that stay: systemd and others reset them, so they are written again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Final, Protocol

from runtimeproxy.cgroups import CgroupPathError, Outcome, WriteResult, cgroup_path

logger = logging.getLogger(__name__)

MOST_UNCLAIMED: Final = 256
"""Cgroups that no recorded pod has, but whose pods may be about to start; the oldest are forgotten first.
More than the pods of a node. Source: the kubelet's default of 110 pods."""

_THERE: Final = (Outcome.WRITTEN, Outcome.UNCHANGED)

Values = Mapping[str, int | str]
_Path = tuple[str, ...]


class _Writer(Protocol):
    def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]: ...


class KeptCgroups:
    """A cgroup writer that remembers what it wrote; safe for all threads.

    Args:
        writer: writes.
    """

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._lock = Lock()
        self._kept: dict[_Path, tuple[str, dict[str, int | str]]] = {}

    def __len__(self) -> int:
        """How many cgroups are remembered."""
        return len(self._kept)

    def write(self, cgroup: str, values: Values) -> tuple[WriteResult, ...]:
        """Writes values to one cgroup, and remembers those that are there now."""
        results = self._writer.write(cgroup, values)
        there = {result.name: values[result.name] for result in results if result.outcome in _THERE}
        if there:
            path = cgroup_path(cgroup)
            with self._lock:
                # What was written last is forgotten last.
                _, before = self._kept.pop(path, ("", {}))
                self._kept[path] = cgroup, {**before, **there}
        return results

    def keep(self, pod_cgroups: Iterable[str]) -> None:
        """Writes again what has changed in the cgroups of these pods; the others are not touched.

        Args:
            pod_cgroups: the cgroup parents of all pods that run.
        """
        live = _paths(pod_cgroups)
        self._forget(live)
        for path in live & self._kept.keys():
            self._write_again(path)

    def forget_all(self) -> None:
        """Forgets all values: other policies count from now on."""
        with self._lock:
            self._kept.clear()

    def tidy(self, pod_cgroups: Iterable[str]) -> None:
        """Forgets the cgroups of pods that are gone, if there are many; cheap otherwise."""
        if len(self._kept) > MOST_UNCLAIMED:
            self._forget(_paths(pod_cgroups))

    def _forget(self, live: set[_Path]) -> None:
        with self._lock:
            unclaimed = [path for path in self._kept if path not in live]
            for path in unclaimed[: max(0, len(unclaimed) - MOST_UNCLAIMED)]:
                del self._kept[path]

    def _write_again(self, path: _Path) -> None:
        """Until the values that were written are still the wanted ones: a call may change them meanwhile."""
        kept = self._kept.get(path)
        while kept is not None:
            cgroup, values = kept
            _log(
                [result for result in self._writer.write(cgroup, values) if result.outcome is Outcome.WRITTEN]
            )
            now = self._kept.get(path)
            kept = now if now is not kept else None


def _paths(cgroups: Iterable[str]) -> set[_Path]:
    paths: set[_Path] = set()
    for cgroup in cgroups:
        try:
            paths.add(cgroup_path(cgroup))
        except CgroupPathError:
            continue
    return paths


def _log(results: list[WriteResult]) -> None:
    if results:
        changes = ", ".join(f"{result.name} {result.old} -> {result.value}" for result in results)
        logger.warning("cgroup values had been changed: %s", changes, extra={"cgroup": results[0].cgroup})
