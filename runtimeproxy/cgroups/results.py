"""What became of the values that were to be written."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from runtimeproxy.cgroups.formats import Value
from runtimeproxy.cgroups.parameters import PARAMETERS


class Outcome(StrEnum):
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
    """The kernel said no."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of one value."""

    cgroup: str
    """The cgroup as the caller named it."""
    name: str
    value: Value
    """The wanted value, as given."""
    outcome: Outcome
    old: Value | None = None
    """What the file held before; None when that is not known."""
    error: str = ""
    """Why, unless written or unchanged; begins with the errno's name (`EBUSY`) when the kernel said no."""


class Counts:
    """How often each outcome happened per parameter, safe for all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[tuple[str, Outcome]] = Counter()

    def add(self, results: Iterable[WriteResult]) -> None:
        """Counts results."""
        with self._lock:
            self._counts.update(
                (result.name if result.name in PARAMETERS else "unknown", result.outcome)
                for result in results
            )

    def snapshot(self) -> Mapping[tuple[str, Outcome], int]:
        """By parameter (`unknown` for names that do not exist) and outcome."""
        with self._lock:
            return dict(self._counts)


_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENXIO})
_LINKED = frozenset({errno.ELOOP, errno.ENOTDIR})


def outcome_of(error: OSError) -> Outcome:
    """The outcome that an error of the kernel stands for."""
    if error.errno in _GONE:
        return Outcome.MISSING
    return Outcome.REFUSED if error.errno in _LINKED else Outcome.FAILED


def explain(error: OSError, name: str) -> str:
    """The errno's name and a text for people."""
    code = errno.errorcode.get(error.errno or 0, "OSError")
    if error.errno == errno.EBUSY and name == "memory.limit_in_bytes":
        return f"{code}: the cgroup uses more memory than the limit, and not enough can be reclaimed"
    if error.errno in _LINKED:
        return f"{code}: a symbolic link or a plain file stands where a cgroup should be"
    return f"{code}: {error.strerror}"
