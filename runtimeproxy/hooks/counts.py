"""Counts of policies' runs, failures and changes. Used in the event loop's thread; others may read them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.counts import Histogram
from runtimeproxy.fields.tables import PARAMETERS, RESOURCE_FIELDS
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.fields import (
    ANNOTATIONS,
    CDI_DEVICES,
    CGROUP,
    CGROUP_PARENT,
    DEVICES,
    ENV,
    KERNEL_SETTINGS,
    LABELS,
    MOUNTS,
    NODE_CGROUP,
    RESOURCES,
    SYSCTL,
    UNIFIED,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from runtimeproxy.hooks.audit import AuditEntry, PolicyRun, Subject
    from runtimeproxy.hooks.policy import Hook, Mode

OTHER: Final = "other"
MAX_LEFT_OUT: Final = 1024
"""Pods and containers with answers that could not be used, of which the last such field is remembered."""

_FAILURES: Final = frozenset({AuditKind.FAILED, AuditKind.INVALID})
_GROUPS: Final = frozenset(
    {UNIFIED, LABELS, ANNOTATIONS, ENV, MOUNTS, DEVICES, CDI_DEVICES, CGROUP_PARENT, SYSCTL, KERNEL_SETTINGS}
)
_RESOURCES: Final = frozenset(f"{RESOURCES}.{name}" for name in RESOURCE_FIELDS)
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
    """The labels of a count of audit entries."""

    kind: AuditKind
    policy: str
    hook: str
    mode: Mode
    field: str
    """See `field_label`."""


class LeftOutFields:
    """The fields of the policies' last answers that could not be used, one of each answer."""

    def __init__(self) -> None:
        # By pod, container and target, then by policy.
        self._entries: dict[tuple[str, ...], dict[str, AuditEntry]] = {}

    def on_decision(self, subject: Subject, runs: Iterable[PolicyRun], entries: Iterable[AuditEntry]) -> None:
        """Takes a decision: it replaces what the same policies answered before for the same subject.

        An update does not repeat the whole answer, so it replaces only another update's.
        """
        left_out = {each.policy: each for each in entries if each.kind is AuditKind.LEFT_OUT}
        if not left_out and not self._entries:
            return
        key = subject.key
        before = self._entries.pop(key, {})
        if not left_out and not before:
            return
        failed = {each.policy for each in entries if each.kind in _FAILURES and not each.field}
        is_whole = subject.is_creation or subject.hook.startswith("evaluate_")
        answered = {run.policy for run in runs} - failed
        kept = {
            policy: entry
            for policy, entry in before.items()
            if policy not in answered or not (is_whole or entry.hook is subject.hook)
        }
        if kept or left_out:
            self._entries[key] = kept | left_out
        while len(self._entries) > MAX_LEFT_OUT:
            del self._entries[next(iter(self._entries))]

    def last(self, policy: str, uids: Container[str]) -> AuditEntry | None:
        """The newest such field of a policy that is about one of these pods, a QoS class or the node."""
        entries = (found[policy] for found in tuple(self._entries.values()) if policy in found)
        present = (each for each in entries if each.target or each.pod_uid in uids)
        return max(present, key=lambda each: each.time_s, default=None)


class UncarriedFields:
    """The kinds of fields of hook servers' answers that the front end does not carry."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, str]] = set()

    def add(self, server: str, hook: str, label: str) -> bool:
        """Returns whether it is new of this server; `label`: see `field_label`."""
        key = server, hook, label
        is_new = key not in self._known
        self._known.add(key)
        return is_new

    def of(self, server: str) -> dict[str, tuple[str, ...]]:
        """Those of one server, by hook."""
        found: dict[str, tuple[str, ...]] = {}
        for name, hook, label in sorted(self._known):
            if name == server:
                found[hook] = (*found.get(hook, ()), label)
        return found

    def keep(self, servers: Container[str]) -> None:
        """Forgets all other servers."""
        self._known = {each for each in self._known if each[0] in servers}


class PolicyCounts:
    """The runs of all policies and hook servers, by their names.

    Attributes:
        durations: how long they took, in seconds, by policy and hook.
        failures: how often they failed, by policy, hook and kind of failure.
        entries: how many audit entries there were.
        left_out: what could not be used of the policies' last answers.
        uncarried: what the front end does not carry of hook servers' answers.
    """

    def __init__(self) -> None:
        self.durations: defaultdict[tuple[str, Hook], Histogram] = defaultdict(Histogram)
        self.failures: Counter[tuple[str, Hook, str]] = Counter()
        self.entries: Counter[EntryKey] = Counter()
        self.left_out = LeftOutFields()
        self.uncarried = UncarriedFields()

    def count_runs(self, hook: Hook, runs: Iterable[PolicyRun]) -> None:
        for name, duration_s, _ in runs:
            self.durations[name, hook].observe(duration_s)

    def count_entry(self, entry: AuditEntry) -> None:
        key = EntryKey(entry.kind, entry.policy, entry.hook, entry.mode, field_label(entry.field))
        self.entries[key] += 1
