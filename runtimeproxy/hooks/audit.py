"""Audit entries: changes, conflicts, refusals and failures, with policy and reason. No environment values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.hooks.changes import CLEAR, DeviceSpec, MountSpec
from runtimeproxy.hooks.fields import CGROUP, ENV, Field, FieldUpdate, Value, View
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.views import PodView
from runtimeproxy.node.facts import FixedNode, Node

_MAX_VALUE_LENGTH: Final = 256


class AuditKind(StrEnum):
    """The kinds of audit entries."""

    CHANGED = "changed"
    WOULD_CHANGE = "would-change"
    """The change, write or post hook of a dry-run policy."""
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
    """A cgroup value of a container that has no cgroup yet: `changed` or `failed` follows its start."""


TROUBLE: Final = frozenset({AuditKind.REFUSED, AuditKind.FAILED, AuditKind.INVALID, AuditKind.LEFT_OUT})
"""The kinds that need an operator's attention."""


class AuditEntry(NamedTuple):
    """One line of the audit."""

    time_s: float
    """Of the call's arrival at the chain: seconds since the epoch."""
    hook: Hook
    kind: AuditKind
    policy: str
    mode: Mode
    pod_namespace: str
    pod_name: str
    pod_uid: str
    container: str
    """The container's name; empty at hooks of pods."""
    sandbox_id: str = ""
    """Empty before the runtime has given one."""
    container_id: str = ""
    """Empty at hooks of pods, and before the runtime has given one."""
    field: str = ""
    """Such as `resources.cpu_shares` or `env[NAME]`; empty when no single field is meant."""
    old: str = ""
    new: str = ""
    reason: str = ""
    note: str = ""
    """A remark on the new value, such as that it differs from the policy's."""


AuditSink: TypeAlias = Callable[[AuditEntry], None]
"""Takes an entry, in the event loop's thread, and never blocks."""


class Subject(NamedTuple):
    """The call that policies run for: shared by all its audit entries."""

    hook: Hook
    view: View
    time_s: float
    node: Node = FixedNode()
    """The node, whose features changes have to suit."""
    rule: ConflictRule = ConflictRule.LATER
    """Whose value counts when two policies set one field."""

    @property
    def is_refusable(self) -> bool:
        """Whether the runtime has not seen the call yet, so that it can still be refused."""
        return self.hook.startswith("pre_")

    @property
    def names(self) -> dict[str, Any]:
        """Pod and container, for log lines."""
        pod = self.view if isinstance(self.view, PodView) else self.view.pod
        names = {"pod": f"{pod.namespace}/{pod.name}", "uid": pod.uid, "sandbox": pod.id}
        if not isinstance(self.view, PodView):
            names |= {"container": self.view.name, "container_id": self.view.id}
        return {key: name for key, name in names.items() if name}

    def entry(
        self,
        kind: AuditKind,
        policy: LoadedPolicy | str,
        reason: str,
        update: FieldUpdate | None = None,
        note: str = "",
    ) -> AuditEntry:
        """Return an entry about this call, and about one field of it if `update` is given.

        Args:
            kind: the kind of entry.
            policy: the policy; its name is enough for one that enforces.
            reason: the reason.
            update: the field with its old and new value.
            note: a remark on the new value.
        """
        is_pod = isinstance(self.view, PodView)
        pod = self.view if isinstance(self.view, PodView) else self.view.pod
        return AuditEntry(
            time_s=self.time_s,
            hook=self.hook,
            kind=kind,
            policy=policy if isinstance(policy, str) else policy.name,
            mode=Mode.ENFORCE if isinstance(policy, str) else policy.mode,
            pod_namespace=pod.namespace,
            pod_name=pod.name,
            pod_uid=pod.uid,
            container="" if is_pod else self.view.name,
            sandbox_id=pod.id,
            container_id="" if is_pod else self.view.id,
            field=str(update.field) if update else "",
            old=shown(update.field, update.old) if update else "",
            new=shown(update.field, update.new) if update else "",
            reason=reason,
            note=note,
        )


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
    text = str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[:_MAX_VALUE_LENGTH] + "..."


class Written(NamedTuple):
    """The result of writing one cgroup value."""

    new: str = ""
    """The value to write; empty where no audit entry needs it."""
    old: str = ""
    """What the file held before; empty if unknown."""
    failed: str = ""
    """The error of the kernel or the writer; empty if there was none."""
    skipped: str = ""
    """Why it was not written although nothing failed, such as a cgroup that is gone; else empty."""
    is_unchanged: bool = False
    """Whether the file held it already."""
    is_pending: bool = False
    """Whether it waits for the container's cgroup."""

    def kind(self) -> AuditKind:
        if self.failed:
            return AuditKind.FAILED
        if self.skipped:
            return AuditKind.LEFT_OUT
        return AuditKind.PENDING if self.is_pending else AuditKind.CHANGED


def with_written(
    entries: Iterable[AuditEntry], owners: Mapping[str, str], written: Mapping[str, Written]
) -> tuple[AuditEntry, ...]:
    """Return a decision's audit after its cgroup values were written.

    Entries of values that the files held already are left out, and so are those of values that another
    policy replaced: the entry about their conflict reports that.

    Args:
        entries: the decision's.
        owners: the owning policy of each field.
        written: by cgroup parameter; entries of others stay as they are.
    """
    updated = []
    for entry in entries:
        name = entry.field.removeprefix(f"{CGROUP}[").removesuffix("]")
        if entry.kind is not AuditKind.CHANGED or name == entry.field or name not in written:
            updated.append(entry)
            continue
        value = written[name]
        if not value.is_unchanged and owners.get(entry.field, entry.policy) == entry.policy:
            reason = value.failed or value.skipped or entry.reason
            updated.append(entry._replace(kind=value.kind(), old=entry.old or value.old, reason=reason))
    return tuple(updated)
