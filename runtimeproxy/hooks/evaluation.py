"""One policy's turn: call its hook, check the answer, fold it in. Knows no threads and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import PurePath
from types import TracebackType
from typing import Final, NamedTuple

from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks.audit import AuditEntry, AuditKind, Subject
from runtimeproxy.hooks.changes import CgroupChange
from runtimeproxy.hooks.decision import Decision, Refusal
from runtimeproxy.hooks.fields import Field, View
from runtimeproxy.hooks.loaded import HookMethod, LoadedPolicy
from runtimeproxy.hooks.merge import Fold, Step, fold
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.validation import LeftOut, answers_nothing, problem_of, usable
from runtimeproxy.hooks.views import ContainerView

_MAX_TEXT_LENGTH: Final = 512


class OutcomeKind(StrEnum):
    """How a policy's turn ended; also the names of its counters."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    REFUSED = "refused"
    FAILED = "failed"
    INVALID = "invalid"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    """Hung in an earlier call and has not returned, or no time or thread was left."""


class Outcome(NamedTuple):
    """How a policy's turn ended, for counters and logs."""

    policy: LoadedPolicy
    kind: OutcomeKind
    reason: str = ""
    cause: str = ""
    """The same for failures that need no second log line."""


class Progress(NamedTuple):
    """How far one call has come. Replaced, never changed, so that a hung thread cannot spoil it."""

    real: Fold
    shadow: Fold | None = None
    """With the dry-run policies' changes too; None while there are no dry-run policies."""
    entries: tuple[AuditEntry, ...] = ()
    refusal: Refusal | None = None


def evaluate(
    policy: LoadedPolicy,
    subject: Subject,
    progress: Progress,
    rule: ConflictRule,
    remote: HookMethod | None = None,
) -> tuple[Progress, Outcome]:
    """Give one policy its turn. Never raises, whatever the policy does.

    Args:
        policy: the policy.
        subject: whose call it is.
        progress: as of before its turn.
        rule: whose value counts when two policies set one field.
        remote: gives the answer if another process has been asked, which then counts.
    """
    seen = progress.real if policy.enforces or progress.shadow is None else progress.shadow
    if remote is None and not policy.concern.matches(seen.pod):
        return progress, Outcome(policy, OutcomeKind.UNCHANGED)
    if not policy.enforces and answers_nothing(subject.hook):
        entry = subject.entry(AuditKind.WOULD_CHANGE, policy, "the hook is not run in dry-run")
        return _noted(progress, entry), Outcome(policy, OutcomeKind.UNCHANGED)
    try:
        return _turn(policy, subject, progress, seen.view, rule, remote)
    except BaseException as error:  # noqa: BLE001 - a policy may raise anything, SystemExit too: it failed
        reason, cause = explained(error, seen.view)
        return failed(subject, progress, Outcome(policy, OutcomeKind.FAILED, reason, cause))


def _turn(
    policy: LoadedPolicy,
    subject: Subject,
    progress: Progress,
    view: View,
    rule: ConflictRule,
    remote: HookMethod | None,
) -> tuple[Progress, Outcome]:
    try:
        answer = (remote or policy.methods[subject.hook])(view)
    except RefusalError as refusal:
        return _refused(policy, subject, progress, refusal)
    if answer is None:
        return progress, Outcome(policy, OutcomeKind.UNCHANGED)
    problem = problem_of(subject.hook, answer)
    if problem is None and isinstance(answer, CgroupChange):
        return _folded(policy, subject, progress, (view, answer), rule)
    invalid = Outcome(policy, OutcomeKind.INVALID, problem or "", f"invalid: {problem}")
    return failed(subject, progress, invalid)


def failed(subject: Subject, progress: Progress, outcome: Outcome) -> tuple[Progress, Outcome]:
    """Note that a policy failed; the call is refused if its failure policy says so and it still can be."""
    policy = outcome.policy
    kind = AuditKind.INVALID if outcome.kind is OutcomeKind.INVALID else AuditKind.FAILED
    progress = _noted(progress, subject.entry(kind, policy, outcome.reason))
    if policy.refuses_on_failure and is_refusable(subject):
        late = outcome.kind in (OutcomeKind.TIMED_OUT, OutcomeKind.SKIPPED)
        code = StatusCode.UNAVAILABLE if late else StatusCode.INTERNAL
        refusal = Refusal(code, f"{policy.name}: {outcome.reason}", policy.name)
        progress = progress._replace(refusal=progress.refusal or refusal)
    return progress, outcome


def is_refusable(subject: Subject) -> bool:
    """Return whether the call is still ahead: what has happened cannot be refused."""
    return subject.hook.startswith("pre_")


def decision_of(subject: Subject, progress: Progress, unwritten: str = "") -> Decision:
    """Return the decision when all policies had their turn, or one refused."""
    if progress.refusal is not None:
        return refused_decision(subject, progress.entries, progress.refusal)
    return Decision(
        hook=subject.hook,
        fold=progress.real,
        change=progress.real.change(subject.hook) if progress.real.claims else None,
        owners=progress.real.owners if progress.real.claims else {},
        written_once=progress.real.written_once if progress.real.claims else frozenset(),
        audit=progress.entries,
        unwritten=unwritten,
    )


def refused_decision(subject: Subject, entries: tuple[AuditEntry, ...], refusal: Refusal) -> Decision:
    """Return the decision to refuse: the changes that policies before it asked for do not happen."""
    undone = (AuditKind.CHANGED, AuditKind.PENDING)
    kept = tuple(entry for entry in entries if entry.kind not in undone)
    return Decision(hook=subject.hook, fold=Fold(subject.view), refusal=refusal, audit=kept)


def explained(error: BaseException, view: View) -> tuple[str, str]:
    """Return why a policy failed, for people, and the cause that identifies repetitions.

    The text of an exception may quote an environment value, so it is left out while the view holds some,
    unless the exception is one of the proxy's own.
    """
    place = _place(error.__traceback__)
    kind = type(error).__name__
    may_quote = (
        isinstance(view, ContainerView) and bool(view.env) and not isinstance(error, RuntimeProxyError)
    )
    text = "" if may_quote else _text_of(error)
    return f"{kind}{text} ({place})", f"{kind} at {place}"


def _text_of(error: BaseException) -> str:
    try:
        return f": {error}"[:_MAX_TEXT_LENGTH]
    except Exception:  # noqa: BLE001 - an exception's own __str__ is a third party's code too
        return ""


def _place(traceback: TracebackType | None) -> str:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "?"
    return f"{PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"


def _noted(progress: Progress, *entries: AuditEntry) -> Progress:
    return progress._replace(entries=(*progress.entries, *entries))


def _refused(
    policy: LoadedPolicy, subject: Subject, progress: Progress, error: RefusalError
) -> tuple[Progress, Outcome]:
    if not is_refusable(subject):
        reason = f"refused what has happened: {error.text}"
        return failed(subject, progress, Outcome(policy, OutcomeKind.FAILED, reason, "refused too late"))
    progress = _noted(progress, subject.entry(AuditKind.REFUSED, policy, str(error.text)))
    if policy.enforces:
        refusal = Refusal(StatusCode(error.code), f"{policy.name}: {error.text}", policy.name)
        progress = progress._replace(refusal=refusal)
    return progress, Outcome(policy, OutcomeKind.REFUSED, str(error.text))


def _folded(
    policy: LoadedPolicy,
    subject: Subject,
    progress: Progress,
    answered: tuple[View, CgroupChange],
    rule: ConflictRule,
) -> tuple[Progress, Outcome]:
    view, answer = answered
    change, left_out, notes = usable(subject.hook, answer, view, subject.node.facts())
    text: object = answer.reason
    reason = text if isinstance(text, str) else ""
    real, shadow = progress.real, progress.shadow
    steps: tuple[Step, ...] = ()
    if shadow is not None:
        shadow, steps = fold(shadow, policy.name, change, reason=reason, rule=rule)
    if policy.enforces:
        is_remote = policy.is_remote
        real, steps = fold(real, policy.name, change, reason=reason, rule=rule, is_remote=is_remote)
    entries = [_left_out_entry(policy, subject, each) for each in left_out]
    entries += _entries(policy, subject, steps, (reason, notes), rule)
    kind = OutcomeKind.CHANGED if steps else OutcomeKind.UNCHANGED
    return _noted(progress, *entries)._replace(real=real, shadow=shadow), Outcome(policy, kind)


def _left_out_entry(policy: LoadedPolicy, subject: Subject, left_out: LeftOut) -> AuditEntry:
    entry = subject.entry(AuditKind.LEFT_OUT, policy, left_out.reason)
    return entry._replace(field=left_out.field, new=left_out.value)


def _entries(
    policy: LoadedPolicy,
    subject: Subject,
    steps: tuple[Step, ...],
    texts: tuple[str, Mapping[Field, str]],
    rule: ConflictRule,
) -> list[AuditEntry]:
    reason, notes = texts
    kind = AuditKind.CHANGED if policy.enforces else AuditKind.WOULD_CHANGE
    entries: list[AuditEntry] = []
    for step in steps:
        if step.other:
            told = f"also set by {step.other}; the {rule} policy's value counts"
            entries.append(subject.entry(AuditKind.CONFLICT, policy, told, step))
        if not step.other or rule is ConflictRule.LATER:
            entries.append(subject.entry(kind, policy, reason, step, notes.get(step.field, "")))
    return entries
