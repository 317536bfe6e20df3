"""What policies have done since the start. Used in the event loop's thread; other threads may read it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.counts import Histogram
from runtimeproxy.fields.tables import CRI_FIELDS, PARAMETERS
from runtimeproxy.hooks.fields import (
    ANNOTATIONS,
    CGROUP,
    CGROUP_PARENT,
    DEVICES,
    ENV,
    LABELS,
    MOUNTS,
    NODE_CGROUP,
    RESOURCES,
    SYSCTL,
    UNIFIED,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtimeproxy.hooks.audit import AuditEntry, AuditKind, PolicyRun
    from runtimeproxy.hooks.policy import Hook, Mode

OTHER: Final = "other"

_GROUPS: Final = frozenset({UNIFIED, LABELS, ANNOTATIONS, ENV, MOUNTS, DEVICES, CGROUP_PARENT, SYSCTL})
_RESOURCES: Final = frozenset(f"{RESOURCES}.{name}" for name in CRI_FIELDS)
_KEYED: Final = re.compile(r"([\w.]+)\[(.*)\]", re.DOTALL)


def field_label(field: str) -> str:
    """Returns a field of an audit entry without keys that pods choose; `other` for a name that is not known.

    A cgroup parameter is named, of a label, an annotation, a variable and the like only the kind is.
    """
    if field in _RESOURCES or field in _GROUPS or not field:
        return field
    match = _KEYED.fullmatch(field)
    if match is None:
        return OTHER
    group, key = match.groups()
    if group == NODE_CGROUP:
        group, key = CGROUP, key.rpartition("/")[2]
    if group == CGROUP:
        return key if key in PARAMETERS else OTHER
    return group if group in _GROUPS else OTHER


class EntryKey(NamedTuple):
    """What audit entries are counted by."""

    kind: AuditKind
    policy: str
    hook: Hook
    mode: Mode
    field: str
    """See `field_label`."""


class PolicyCounts:
    """The runs of all policies and hook servers, by their names.

    Attributes:
        durations: how long they took, in seconds, by policy and hook.
        failures: how often they failed, by policy, hook and kind of failure.
        entries: how many audit entries there were.
    """

    def __init__(self) -> None:
        self.durations: defaultdict[tuple[str, Hook], Histogram] = defaultdict(Histogram)
        self.failures: Counter[tuple[str, Hook, str]] = Counter()
        self.entries: Counter[EntryKey] = Counter()

    def count_runs(self, hook: Hook, runs: Iterable[PolicyRun]) -> None:
        for name, duration_s, _ in runs:
            self.durations[name, hook].observe(duration_s)

    def count_entry(self, entry: AuditEntry) -> None:
        key = EntryKey(entry.kind, entry.policy, entry.hook, entry.mode, field_label(entry.field))
        self.entries[key] += 1
