"""The audit: changes, conflicts, refusals and failures, with policy and reason, and the log of them.

No environment values. The log has one line per pod or container that policies changed, or would have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, overload

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.hooks.carried import BY_CALLS, CarriedFields
from runtimeproxy.hooks.changes import CLEAR, DeviceSpec, MountSpec
from runtimeproxy.hooks.claimants import Owners
from runtimeproxy.hooks.fields import CGROUP, ENV, Field, FieldUpdate, Value, View, pod_of
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import HOOKS_BEFORE, Hook, Mode
from runtimeproxy.hooks.reasons import Reason
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import ClassView, ContainerView, PodView
from runtimeproxy.logs import FailureLog

logger = logging.getLogger("runtimeproxy.audit")

GATHER_S: Final = 0.05
"""How long entries wait for others, to be written together after their calls have been forwarded.

A line takes about as long to format as the policies took to decide. Formatted at once, it would compete with
the runtime and the kubelet for the CPUs just while they work on the call.
"""

DECISIONS_A_TURN: Final = 8
"""Decisions that are handed on in one turn of the loop; each takes some 20 microseconds."""

LINES_A_TURN: Final = 4
"""Lines that are formatted in one turn of the loop; each takes 50 to 80 microseconds."""

_MAX_LENGTH: Final = 256
_MAX_REASON_LENGTH: Final = 1_024
_NO_POD: Final = PodView()

REMEMBERED: Final = 500
"""Entries of hooks; with the texts of common policies they take some hundred KiB. A pod with one container
has ten."""

REMEMBERED_EVENTS: Final = 200
"""Entries without a hook; a change of strategies has at most 51."""


class AuditKind(StrEnum):
    """The kinds of audit entries."""

    CHANGED = "changed"
    WOULD_CHANGE = "would-change"
    """The change, write or effect of a dry-run policy."""
    CONFLICT = "conflict"
    """A field that an earlier policy had set to another value; `old` is that value."""
    REFUSED = "refused"
    """In dry-run: would have refused."""
    FAILED = "failed"
    """The policy raised, timed out, still hangs, or no time or thread was left for it."""
    INVALID = "invalid"
    """The policy returned something that is not a change."""
    LEFT_OUT = "left-out"
    """A field that runtime, kernel or node do not accept, or that a policy could not read. The rest of the
    change counts."""
    PENDING = "pending"
    """A cgroup value that waits for the success of the call, or for the container's cgroup: `changed` or
    `failed` follows."""
    VOID = "void"
    """What a policy wanted to scale, add or bound has no effect, or not the whole."""
    OFF = "off"
    """The policy is off for this pod: an input is not known. Reported once per pod."""
    NOT_APPLIED = "not-applied"
    """A value of what runs that is wanted and not in force; the note has the cause."""
    START = "start"
    STOP = "stop"
    UPGRADE = "upgrade"
    """Another process has taken over, or could not."""
    GAP = "gap"
    """The process before this one did not end in order: what it did last is not remembered."""
    MODE = "mode"
    """The mode of a policy has changed, by a command, its end or the configuration."""
    BYPASS = "bypass"
    STRATEGY = "strategy"
    """A value of a strategy of the node has changed."""


TROUBLE: Final = frozenset({AuditKind.REFUSED, AuditKind.FAILED, AuditKind.INVALID, AuditKind.LEFT_OUT})
"""The kinds that need an operator's attention."""


class AuditEntry(NamedTuple):
    """One line of the audit."""

    time_s: float
    """Of the call's arrival at the chain: seconds since the epoch."""
    hook: str
    """A `Hook`; empty where no policy was asked, as for the start of the daemon."""
    kind: AuditKind
    policy: str
    mode: Mode
    pod_namespace: str
    pod_name: str
    pod_uid: str
    container: str
    """The container's name; empty if it is about a pod."""
    sandbox_id: str = ""
    """Empty before the runtime has given one."""
    container_id: str = ""
    """Empty if it is about a pod, and before the runtime has given one."""
    field: str = ""
    """Such as `resources.cpu_shares` or `env[NAME]`; empty when no single field is meant."""
    old: str = ""
    new: str = ""
    reason: str = ""
    note: str = ""
    """A remark on the new value, such as that it differs from the policy's."""
    target: str = ""
    """The QoS class or the node, if the entry is not about a pod."""
    call: str = ""
    """The method of the CRI; empty outside of calls."""
    trace_id: str = ""
    """Of the client's trace, 32 hexadecimal digits; empty if it does not trace."""


AuditSink: TypeAlias = Callable[[AuditEntry], None]
"""Takes an entry, in the event loop's thread, and never blocks."""


_FAILURES: Final = frozenset({AuditKind.FAILED, AuditKind.INVALID})


class PolicyRun(NamedTuple):
    """A policy or hook server that has returned."""

    policy: str
    duration_s: float
    ended_s: float
    """By the monotonic clock."""


class DecisionTrace(Protocol):
    """Takes the decisions on a call that is traced; in the event loop's thread."""

    def on_decision(self, subject: Subject, runs: Sequence[PolicyRun], entries: Sequence[AuditEntry]) -> None:
        """Takes one of them with its audit entries, when the call has gone on already."""


class Origin(NamedTuple):
    """The call that a decision is about."""

    call: str = ""
    """The method of the CRI; empty outside of calls."""
    read_trace_id: Callable[[], str] = str
    """Returns the id of the client's trace, 32 hexadecimal digits; empty if it does not trace."""
    trace: DecisionTrace | None = None
    """None if the call is not traced here."""


NO_ORIGIN: Final = Origin()
"""Outside of calls."""


@dataclass(slots=True, eq=False)
class Subject:
    """The call that policies run for: shared by all its audit entries."""

    hook: Hook
    view: View
    time_s: float
    rule: ConflictRule = ConflictRule.LATER
    """Whose value counts when two policies set one field."""
    origin: Origin = NO_ORIGIN
    carried: CarriedFields = BY_CALLS
    """What the front end carries."""
    _about: tuple[str, ...] | None = None

    @property
    def is_refusable(self) -> bool:
        # The runtime has not seen the call yet, so that it can still be refused.
        return self.hook in HOOKS_BEFORE

    @property
    def is_creation(self) -> bool:
        # The pod or container does not exist yet: the only time when a policy can refuse it.
        return self.hook in (Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER)

    @property
    def target(self) -> str:
        """The QoS class or the node, if it is not a pod or container."""
        if isinstance(self.view, PodView | ContainerView):
            return ""
        return f"QoS class {self.view.qos}" if isinstance(self.view, ClassView) else "node"

    @property
    def key(self) -> tuple[str, str, str]:
        """Pod, container, and the QoS class or the node: the same in all calls about one of them."""
        pod = pod_of(self.view)
        if pod is None:
            return "", "", self.target
        return pod.uid or pod.name, self.view.name if isinstance(self.view, ContainerView) else "", ""

    @property
    def names(self) -> dict[str, Any]:
        """Pod and container, for log lines."""
        pod = pod_of(self.view)
        if pod is None:
            return {"target": self.target}
        names = {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "sandbox": pod.id}
        if isinstance(self.view, ContainerView):
            names |= {"container": self.view.name, "container_id": self.view.id}
        return {key: name for key, name in names.items() if name}

    def entry(
        self,
        kind: AuditKind,
        policy: LoadedPolicy | str,
        reason: str | Reason,
        update: FieldUpdate | None = None,
        note: str = "",
    ) -> AuditEntry:
        """Return an entry about this call, and about one field of it if `update` is given.

        `policy`: the policy; its name is enough for one that enforces. `update`: the field with its old and
        new value.
        """
        namespace, pod, uid, container, sandbox_id, container_id, target, trace_id = (
            self._about or self._names()
        )
        return AuditEntry(
            self.time_s,
            self.hook,
            kind,
            policy if isinstance(policy, str) else policy.name,
            Mode.ENFORCE if isinstance(policy, str) else policy.mode,
            namespace,
            pod,
            uid,
            container,
            sandbox_id,
            container_id,
            _short(str(update.field)) if update else "",
            shown(update.field, update.old) if update else "",
            shown(update.field, update.new) if update else "",
            _short(str(reason), _MAX_REASON_LENGTH),
            note,
            target,
            self.origin.call,
            trace_id,
        )

    def _names(self) -> tuple[str, ...]:
        """Return the names for all entries; made once, with the first entry."""
        pod, view = pod_of(self.view) or _NO_POD, self.view
        name, identity = (view.name, view.id) if isinstance(view, ContainerView) else ("", "")
        target = self.target if pod is _NO_POD else ""
        trace_id = self.origin.read_trace_id()
        self._about = (pod.namespace, pod.name, pod.uid, name, pod.id, identity, target, trace_id)
        return self._about


class AuditNote(NamedTuple):
    """What an entry about a decision is made of; see `Subject.entry`."""

    kind: AuditKind
    policy: LoadedPolicy | str
    reason: str | Reason
    update: FieldUpdate | None = None
    note: str = ""
    field: str = ""
    """In place of the update's."""
    new: str = ""


class _Entries(Sequence[AuditEntry]):
    """Entries that are made when they are read: the call has gone on by then."""

    __slots__ = ()

    def _made(self) -> tuple[AuditEntry, ...]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._made())

    @overload
    def __getitem__(self, index: int) -> AuditEntry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[AuditEntry]: ...

    def __getitem__(self, index: int | slice) -> AuditEntry | Sequence[AuditEntry]:
        return self._made()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._made() == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(slots=True, eq=False)
class DecisionAudit(_Entries):
    """The entries about one decision."""

    _subject: Subject
    _notes: Sequence[AuditNote]
    _entries: tuple[AuditEntry, ...] | None = None

    def __len__(self) -> int:
        return len(self._notes)

    @property
    def reasons(self) -> list[tuple[str, str | Reason]]:
        """The reasons with the names of their policies."""
        return [
            (each.policy if isinstance(each.policy, str) else each.policy.name, each.reason)
            for each in self._notes
        ]

    def _made(self) -> tuple[AuditEntry, ...]:
        if self._entries is None:
            self._entries = tuple(self._entry(each) for each in self._notes)
        return self._entries

    def _entry(self, note: AuditNote) -> AuditEntry:
        entry = self._subject.entry(note.kind, note.policy, note.reason, note.update, note.note)
        return entry._replace(field=note.field, new=note.new) if note.field else entry


def shown(field: Field, value: Value) -> str:
    """Return a value for people: empty for none, only `<set>` for environment variables, long ones cut."""
    if value is None or value is CLEAR:
        return ""
    if field.group == ENV:
        return "<set>"
    if isinstance(value, MountSpec):
        return f"{value.host_path}:{value.container_path}:{'ro' if value.readonly else 'rw'}"
    if isinstance(value, DeviceSpec):
        return f"{value.host_path}:{value.container_path}:{value.permissions}"
    return _short(str(value))


def _short(text: str, length: int = _MAX_LENGTH) -> str:
    # A hook server may answer with names and values of 4 MiB, which a reason may quote.
    return text if len(text) <= length else text[:length] + "..."


_KINDS: Final = {
    WriteOutcome.WRITTEN: AuditKind.CHANGED,
    WriteOutcome.MISSING: AuditKind.LEFT_OUT,
    WriteOutcome.PENDING: AuditKind.PENDING,
}


def kind_of_write(result: WriteResult) -> AuditKind:
    return _KINDS.get(result.outcome, AuditKind.FAILED)


@dataclass(slots=True, eq=False)
class WrittenAudit(_Entries):
    """A decision's audit after its cgroup values were written.

    Entries of values that the files held already are left out, and so are those of values that another
    policy replaced: the entry about their conflict reports that.

    Attributes:
        decided: The entries before.
        owners: Of the decision.
        written: By cgroup parameter; entries of others stay as they are.
    """

    decided: Sequence[AuditEntry]
    owners: Owners
    written: Mapping[str, WriteResult]
    _entries: tuple[AuditEntry, ...] | None = None

    @property
    def reasons(self) -> Sequence[tuple[str, str | Reason]]:
        """As those of the decision's audit; empty if it has none."""
        return self.decided.reasons if isinstance(self.decided, DecisionAudit) else ()

    def _made(self) -> tuple[AuditEntry, ...]:
        if self._entries is None:
            self._entries = tuple(self._updated())
        return self._entries

    def _updated(self) -> Iterator[AuditEntry]:
        by_field = {str(Field(CGROUP, name)): value for name, value in self.written.items()}
        owners = self.owners
        for entry in self.decided:
            value = by_field.get(entry.field) if entry.kind is AuditKind.CHANGED else None
            if value is None:
                yield entry
            elif value.outcome is not WriteOutcome.UNCHANGED and (
                entry.field not in owners or any(each.name == entry.policy for each in owners[entry.field])
            ):
                old, reason = entry.old or value.old_text, value.error or entry.reason
                yield entry._replace(kind=kind_of_write(value), old=old, reason=reason)


class AuditQueue:
    """An audit sink that hands the entries of a moment to its readers, once their calls have gone on.

    Args:
        readers: Called with one entry after the other in the event loop's thread; they must not block.
        gather_s: How long the first entry waits for others, in seconds.
    """

    def __init__(self, readers: Iterable[AuditSink], gather_s: float = GATHER_S) -> None:
        self._readers = tuple(readers)
        self._gather_s = gather_s
        self._entries: deque[AuditEntry] = deque()
        self._failures = FailureLog()

    def __call__(self, entry: AuditEntry) -> None:
        """Takes an entry; never blocks."""
        if not self._entries:
            asyncio.get_running_loop().call_later(self._gather_s, self._hand_on)
        self._entries.append(entry)

    def flush(self) -> None:
        while self._entries:
            self._hand_on_decision()

    def _hand_on(self) -> None:
        """Hands the gathered entries on, those of some decisions in each turn of the loop."""
        for _ in range(DECISIONS_A_TURN):
            if not self._entries:
                return
            self._hand_on_decision()
        if self._entries:
            asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on_decision(self) -> None:
        # The entries of one decision have one time.
        time_s = self._entries[0].time_s
        while self._entries and self._entries[0].time_s == time_s:
            entry = self._entries.popleft()
            for reader in self._readers:
                try:
                    reader(entry)
                except Exception as error:  # noqa: BLE001 - the others get it
                    self._failures.report("audit", type(error).__name__, f"a reader raised {error!r}")


class AuditRing:
    """The last audit entries, for those who look at a running daemon. Used in the event loop's thread.

    Attributes:
        decisions: The newest ones of hooks, in the order in which they came.
        events: The newest ones without a hook: pods that come and go do not push them out.
        taken: How many have come.
        last_failures: By policy, its last entry of a failure.
        followers: Called with each new entry; they must not raise.
    """

    def __init__(self) -> None:
        self.decisions: deque[AuditEntry] = deque(maxlen=REMEMBERED)
        self.events: deque[AuditEntry] = deque(maxlen=REMEMBERED_EVENTS)
        self.taken = 0
        self.last_failures: dict[str, AuditEntry] = {}
        self.followers: dict[object, Callable[[AuditEntry], None]] = {}

    @property
    def entries(self) -> list[AuditEntry]:
        """All of them, in the order of their times."""
        return sorted((*self.decisions, *self.events), key=lambda each: each.time_s)

    @property
    def complete_from_s(self) -> float | None:
        """From when on it has all entries, in seconds since the epoch; None without any."""
        full = [each[0].time_s for each in (self.decisions, self.events) if len(each) == each.maxlen]
        return max(full, default=min((each.time_s for each in self.entries), default=None))

    def restore(self, entries: Iterable[AuditEntry]) -> None:
        """Puts entries of an earlier process before those of this one."""
        own = self.entries
        self.decisions.clear()
        self.events.clear()
        for entry in (*entries, *own):
            self._keep(entry)

    def _keep(self, entry: AuditEntry) -> None:
        (self.decisions if entry.hook else self.events).append(entry)

    def __call__(self, entry: AuditEntry) -> None:
        self._keep(entry)
        self.taken += 1
        if entry.kind in _FAILURES:
            self.last_failures[entry.policy] = entry
        for follower in tuple(self.followers.values()) if self.followers else ():
            follower(entry)


class AuditLog:
    """An audit sink that logs the entries of each decision as one line, from the next turn of the loop on."""

    def __init__(self) -> None:
        self._decisions: dict[tuple[object, ...], list[AuditEntry]] = {}

    def __call__(self, entry: AuditEntry) -> None:
        """Takes an entry; never blocks."""
        if not self._decisions:
            asyncio.get_running_loop().call_soon(self._write)
        # Each failed field gets a line of its own, because its reason differs.
        field = entry.field if entry.kind is AuditKind.FAILED else ""
        key = (*entry[:3], entry.pod_uid, entry.pod_name, entry.container, entry.target, field)
        self._decisions.setdefault(key, []).append(entry)

    def flush(self) -> None:
        while self._decisions:
            with suppress(Exception):  # a handler that raises must not keep the daemon from ending
                self._log_next()

    def _write(self) -> None:
        # Some lines in each turn of the loop.
        try:
            for _ in range(min(len(self._decisions), LINES_A_TURN)):
                self._log_next()
        finally:
            # Also when a handler raises: the loop logs that, and the other lines follow.
            if self._decisions:
                asyncio.get_running_loop().call_soon(self._write)

    def _log_next(self) -> None:
        entries = self._decisions.pop(next(iter(self._decisions)))
        if logger.isEnabledFor(_level(entries[0])):
            _log_line(entries)


def _log_line(entries: list[AuditEntry]) -> None:
    first = entries[0]
    pod = f"{first.pod_namespace}/{first.pod_name}"
    name = first.target or (f"{pod}/{first.container}" if first.container else pod)
    fields = {
        "hook": str(first.hook),
        "kind": str(first.kind),
        "pod": "" if first.target else pod,
        "container": first.container,
        "uid": first.pod_uid,
        "sandbox": first.sandbox_id,
        "container_id": first.container_id,
        "changes": [_change(entry) for entry in entries],
    }
    if first.target:
        fields["target"] = first.target
    text = f"{name} {first.kind}: {', '.join(_text(entry) for entry in entries)}"
    record = logger.makeRecord(logger.name, _level(first), __file__, 0, text, (), None, extra=fields)
    # The time of the call, not of the writing.
    record.created = first.time_s
    record.msecs = first.time_s % 1 * 1000
    logger.handle(record)


def _level(entry: AuditEntry) -> int:
    return logging.WARNING if entry.kind in TROUBLE else logging.INFO


def _change(entry: AuditEntry) -> dict[str, str]:
    reason = f"{entry.reason}; {entry.note}" if entry.note else entry.reason
    return {
        "field": entry.field,
        "from": entry.old,
        "to": entry.new,
        "policy": entry.policy,
        "reason": reason,
    }


def _text(entry: AuditEntry) -> str:
    """Return an entry for people; the reasons of changes are in the line's fields only."""
    if not entry.field:
        return f"{entry.policy}: {entry.reason}"
    note = f"; {entry.note}" if entry.note else ""
    reason = f": {entry.reason}" if entry.kind in TROUBLE else ""
    values = entry.new if entry.kind is AuditKind.LEFT_OUT else f"{entry.old or '-'} -> {entry.new or '-'}"
    return f"{entry.field} {values} ({entry.policy}{reason}{note})"
