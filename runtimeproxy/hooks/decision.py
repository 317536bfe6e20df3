"""From the policies of one call to its decision: runs one policy after the other, and sums up.

All functions are pure but for the policies that they call: they know no threads and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Final, NamedTuple

from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, Subject
from runtimeproxy.hooks.changes import CgroupChange, PodChange
from runtimeproxy.hooks.fields import (
    CGROUP,
    Field,
    FieldUpdate,
    Merged,
    Value,
    View,
    change_from,
    is_same,
    merge,
)
from runtimeproxy.hooks.loaded import HookMethod, LoadedPolicy
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.validation import HOOKS_WITHOUT_ANSWER, Usable, problem_of, usable
from runtimeproxy.hooks.views import ContainerView

HANGS: Final = "still hangs from an earlier call"

_MAX_TEXT_LENGTH: Final = 512


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused call."""

    code: StatusCode
    text: str
    """Begins with the policy's name; the proxy's own prefix goes in front of it."""
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of all policies for one call."""

    hook: Hook
    merged: Merged
    """The changes of the enforcing policies."""
    change: CgroupChange | None = None
    """The merged change; None when the call goes on as it came. Always None when refused.

    A PodChange before RunPodSandbox and UpdatePodSandboxResources, a ContainerChange before CreateContainer
    and UpdateContainerResources, else a plain CgroupChange.
    """
    owners: Mapping[str, str] = field(default_factory=dict)
    """The owning policy of each field that a policy has set, by names such as `resources.cpu_shares`.

    Also fields whose value was there already: the policy runs again when the kubelet changes them.
    """
    written_once: frozenset[str] = frozenset()
    """The parameters of `change.cgroup` that are not written again after foreign changes."""
    refusal: Refusal | None = None
    audit: tuple[AuditEntry, ...] = ()
    """The entries for the audit sink."""
    unwritten: str = ""
    """Why the decision was not applied to the end; empty when it was, or when there was nothing to apply."""

    @property
    def view(self) -> View:
        """As given, with the changes of all enforcing policies."""
        return self.merged.view

    @property
    def pod_change(self) -> PodChange | None:
        """The change as one of a pod's message; None when there is none."""
        return self.change if isinstance(self.change, PodChange) else None


class FailureKind(StrEnum):
    """How a policy failed."""

    FAILED = "failed"
    INVALID = "invalid"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    """Still hangs from an earlier call, or no time or thread was left."""


class Failure(NamedTuple):
    """A policy's failure, for the audit and the log."""

    policy: LoadedPolicy
    kind: FailureKind
    reason: str
    cause: str = ""
    """The same for failures that need no second log line."""


class Progress(NamedTuple):
    """The state of one call between two policies. Replaced, never changed: a hung thread cannot spoil it."""

    enforced: Merged
    """The changes of the enforcing policies."""
    dry_run: Merged | None = None
    """With those of the dry-run policies; None if there are no dry-run policies."""
    entries: tuple[AuditEntry, ...] = ()
    refusal: Refusal | None = None


def run_policy(
    policy: LoadedPolicy, subject: Subject, progress: Progress, response: HookMethod | None = None
) -> tuple[Progress, Failure | None]:
    """Run one policy's hook, check its change and merge it. Never raises, whatever the policy does.

    Args:
        policy: the policy.
        subject: the call.
        progress: as of before the policy.
        response: the response of the policy's process, instead of a hook in this process.
    """
    enforces = policy.mode is Mode.ENFORCE
    merged = progress.enforced if enforces or progress.dry_run is None else progress.dry_run
    # At RunPodSandbox earlier policies may have changed labels and annotations.
    is_new_pod = response is None and subject.hook is Hook.PRE_RUN_POD_SANDBOX
    if is_new_pod and not policy.selector.matches(merged.pod):
        return progress, None
    if not enforces and subject.hook in HOOKS_WITHOUT_ANSWER:
        entry = subject.entry(AuditKind.WOULD_CHANGE, policy, "the hook is not run in dry-run")
        return progress._replace(entries=(*progress.entries, entry)), None
    view = merged.view
    try:
        try:
            change = (response or policy.methods[subject.hook])(view)
        except RefusalError as error:
            return _with_refusal(policy, subject, progress, error)
        if change is None:
            return progress, None
        problem = problem_of(subject.hook, change)
        if problem is None and isinstance(change, CgroupChange):
            accepted = usable(subject.hook, change, view, subject.node.facts())
            return _with_change(policy, subject, progress, change, accepted), None
        failure = Failure(policy, FailureKind.INVALID, problem or "", f"invalid: {problem}")
    except BaseException as error:  # noqa: BLE001 - a policy may raise anything, SystemExit too: it failed
        failure = Failure(policy, FailureKind.FAILED, *error_texts(error, view))
    return add_failure(subject, progress, failure), failure


def _with_refusal(
    policy: LoadedPolicy, subject: Subject, progress: Progress, error: RefusalError
) -> tuple[Progress, Failure | None]:
    if not subject.is_refusable:
        reason = f"refused after the call: {error.text}"
        failure = Failure(policy, FailureKind.FAILED, reason, "refused too late")
        return add_failure(subject, progress, failure), failure
    entry = subject.entry(AuditKind.REFUSED, policy, str(error.text))
    progress = progress._replace(entries=(*progress.entries, entry))
    if policy.mode is Mode.ENFORCE:
        refusal = Refusal(StatusCode(error.code), f"{policy.name}: {error.text}", policy.name)
        progress = progress._replace(refusal=refusal)
    return progress, None


def _with_change(
    policy: LoadedPolicy,
    subject: Subject,
    progress: Progress,
    change: CgroupChange,
    accepted: Usable,
) -> Progress:
    """Merge the usable fields of a change; each update, conflict and field left out gets an audit entry."""
    text: object = change.reason
    reason = text if isinstance(text, str) else ""
    entries = [*progress.entries]
    for field_name, value, why in accepted.left_out:
        entry = subject.entry(AuditKind.LEFT_OUT, policy, why)
        entries.append(entry._replace(field=field_name, new=value))
    enforced, dry_run, rule = progress.enforced, progress.dry_run, subject.rule
    updates: tuple[FieldUpdate, ...] = ()
    kind = AuditKind.WOULD_CHANGE
    if dry_run is not None:
        dry_run, updates = merge(dry_run, policy.name, accepted.fields, reason=reason, rule=rule)
    if policy.mode is Mode.ENFORCE:
        kind, is_remote = AuditKind.CHANGED, bool(policy.remote_hooks)
        enforced, updates = merge(
            enforced, policy.name, accepted.fields, reason=reason, rule=rule, is_remote=is_remote
        )
    for update in updates:
        if update.other:
            conflict = f"also set by {update.other}; the {rule} policy's value counts"
            entries.append(subject.entry(AuditKind.CONFLICT, policy, conflict, update))
        if not update.other or rule is ConflictRule.LATER:
            note = accepted.notes.get(update.field, "")
            entries.append(subject.entry(kind, policy, reason, update, note))
    return progress._replace(enforced=enforced, dry_run=dry_run, entries=tuple(entries))


def add_failure(subject: Subject, progress: Progress, failure: Failure) -> Progress:
    """Note that a policy failed; the call is refused if its failure policy says so and it still can be."""
    policy, reason = failure.policy, failure.reason
    kind = AuditKind.INVALID if failure.kind is FailureKind.INVALID else AuditKind.FAILED
    progress = progress._replace(entries=(*progress.entries, subject.entry(kind, policy, reason)))
    if progress.refusal is not None or not policy.refuses_on_failure or not subject.is_refusable:
        return progress
    is_late = failure.kind in (FailureKind.TIMED_OUT, FailureKind.SKIPPED)
    code = StatusCode.UNAVAILABLE if is_late else StatusCode.INTERNAL
    return progress._replace(refusal=Refusal(code, f"{policy.name}: {reason}", policy.name))


def make_decision(subject: Subject, progress: Progress) -> Decision:
    """Return the decision after all policies have run, or one refused."""
    if progress.refusal is not None:
        return refuse(subject, progress.entries, progress.refusal)
    merged = progress.enforced
    owners: dict[str, str] = {}
    changed: dict[Field, Value] = {}
    written_once: set[str] = set()
    for changed_field, claim in merged.claims.items():
        owners[str(changed_field)] = claim.policy
        if claim.is_remote and changed_field.group == CGROUP:
            written_once.add(changed_field.key)
        if not is_same(changed_field, claim.original, claim.value):
            changed[changed_field] = claim.value
    return Decision(
        hook=subject.hook,
        merged=merged,
        change=change_from(subject.hook, changed, "; ".join(merged.reasons)) if changed else None,
        owners=owners,
        written_once=frozenset(written_once),
        audit=progress.entries,
    )


def refuse(subject: Subject, entries: tuple[AuditEntry, ...], refusal: Refusal) -> Decision:
    """Return the decision to refuse the call; changes of earlier policies leave the audit."""
    undone = (AuditKind.CHANGED, AuditKind.PENDING)
    remaining = tuple(entry for entry in entries if entry.kind not in undone)
    return Decision(hook=subject.hook, merged=Merged(subject.view), refusal=refusal, audit=remaining)


def error_texts(error: BaseException, view: View) -> tuple[str, str]:
    """Return why a policy failed, for people, and the cause that identifies repetitions.

    The text of an exception may quote an environment value, so it is left out while the view holds some,
    unless the exception is one of the proxy's own.
    """
    traceback, place = error.__traceback__, "?"
    while traceback is not None:
        place = f"{PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    kind = type(error).__name__
    has_env = isinstance(view, ContainerView) and bool(view.env)
    text = ""
    if isinstance(error, RuntimeProxyError) or not has_env:
        with suppress(Exception):  # an exception's own __str__ is a third party's code too
            text = f": {error}"[:_MAX_TEXT_LENGTH]
    return f"{kind}{text} ({place})", f"{kind} at {place}"
