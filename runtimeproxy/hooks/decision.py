"""From policies to a decision: runs one policy after the other for one pod or container, and sums up.

All functions are pure but for the policies that they call: they know no threads and no clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Final, NamedTuple

from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks.algebra import ClaimOutcome, Resolved, Role
from runtimeproxy.hooks.audit import (
    AuditEntry,
    AuditKind,
    AuditNote,
    DecisionAudit,
    Subject,
    WrittenAudit,
    shown,
)
from runtimeproxy.hooks.carried import NOT_CARRIED
from runtimeproxy.hooks.changes import Change, PodChange
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind, Owners, texts_of
from runtimeproxy.hooks.cpu_limit import OverCpuLimitError
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
    pod_of,
    rounded_for_systemd,
)
from runtimeproxy.hooks.loaded import LoadedPolicy, ReadResponse
from runtimeproxy.hooks.policy import Hook, Mode
from runtimeproxy.hooks.reasons import Reason, Source
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.hooks.validation import HOOKS_WITHOUT_ANSWER, Usable, problem_of, usable
from runtimeproxy.hooks.views import ClassView, ContainerView, PodView
from runtimeproxy.node.snapshot import Input, InputState, Node, lacks

HANGS: Final = "still hangs from an earlier call"

REFUSAL_PREFIX: Final = "hook server err: "
"""Stands before a hook server's text. Source: Koordinator pkg/runtimeproxy/server/cri/criserver.go."""

_MAX_TEXT_LENGTH: Final = 512
_UNDONE: Final = (AuditKind.CHANGED, AuditKind.PENDING)
"""The entries that do not hold when the call is refused."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused call."""

    code: StatusCode
    text: str
    """Begins with the policy's name; the proxy's own prefix goes in front of it."""
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of all policies for one call; outside of calls, for one pod, container, class or node."""

    hook: Hook
    merged: Merged
    """The changes of the enforcing policies: of each field the claims, and the value that they lead to."""
    change: Change | None = None
    """The merged change, with resolved values; None when the call goes on as it came, or is refused.

    A PodChange for pods, a ContainerChange when a container is created, updated or evaluated, a NodeChange
    for the node, else a plain CgroupChange.
    """
    without_answer: frozenset[str] = frozenset()
    """The enforcing policies without an answer, or without the whole: failed, skipped, an input is not known.

    What they wanted before still holds; of all others it holds no more if it is not in `merged`.
    """
    owners: Owners = field(default_factory=dict)
    """Of all fields that policies give a value to, also of those whose value was there already."""
    written_once: frozenset[str] = frozenset()
    """The parameters of `change.cgroup` that are not written again after foreign changes."""
    refusal: Refusal | None = None
    audit: Sequence[AuditEntry] = ()
    """The entries for the audit sink."""
    unwritten: str = ""
    """Why the decision was not applied to the end; empty when it was, or when there was nothing to apply."""

    @property
    def view(self) -> View:
        return self.merged.view

    def sources_of(self, policy: str, reason: str) -> tuple[Source, ...] | None:
        """Return the fields of strategies that a policy's value with this reason follows from.

        None: the policy does not say it.
        """
        given = [
            (claim.owner.name, claim.reason) for each in self.merged.fields.values() for claim in each.claims
        ]
        given += self.audit.reasons if isinstance(self.audit, DecisionAudit | WrittenAudit) else ()
        found = (each for name, each in given if name == policy and isinstance(each, Reason))
        return next((each.sources for each in found if str(each) == reason), None)

    @property
    def pod_change(self) -> PodChange | None:
        return self.change if isinstance(self.change, PodChange) else None


class FailureKind(StrEnum):
    """How a policy failed."""

    FAILED = "failed"
    INVALID = "invalid"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    """Still hangs from an earlier call, or no time or thread was left."""


class ServerError(RuntimeProxyError):
    """A hook server's answer is an error, unusable or missing. Whether the call goes on is not its business.

    Attributes:
        kind: How it failed.
        code: With which a call is refused for it.
        text: The server's own, or why there is none; holds no secret.
    """

    def __init__(self, kind: FailureKind, code: StatusCode, text: str) -> None:
        # For the kubelet NotFound on stop and remove is success.
        code = StatusCode.FAILED_PRECONDITION if code is StatusCode.NOT_FOUND else code
        super().__init__(f"{code.name}: {text}")
        self.kind = kind
        self.code = code
        self.text = text


class Failure(NamedTuple):
    """A policy's failure, for the audit and the log."""

    policy: LoadedPolicy
    kind: FailureKind
    reason: str
    cause: str = ""
    """The same for failures that need no second log line."""
    server: ServerError | None = None
    """The hook server's error, if the policy is one."""


class Progress(NamedTuple):
    """The state between two policies. Replaced, never changed: a hung thread cannot spoil it."""

    enforced: Merged
    """The changes of the enforcing policies."""
    dry_run: Merged | None = None
    """With those of the dry-run policies; None if there are no dry-run policies."""
    notes: tuple[AuditNote, ...] = ()
    """For the audit."""
    refusal: Refusal | None = None
    without_answer: frozenset[str] = frozenset()

    def with_note(self, note: AuditNote) -> Progress:
        return self._replace(notes=(*self.notes, note))

    def without(self, policy: LoadedPolicy) -> Progress:
        """Return the state after a policy that has no answer, or not the whole."""
        if policy.mode is not Mode.ENFORCE:
            return self
        return self._replace(without_answer=self.without_answer | {policy.name})


def evaluate(
    policies: Iterable[LoadedPolicy],
    view: View,
    node: Node,
    *,
    hook: Hook | None = None,
    rule: ConflictRule = ConflictRule.LATER,
) -> Decision:
    """Run these policies in this thread, without time limits and without hook servers.

    Args:
        policies: in the order of (priority, name).
        view: a recorded pod or container, the pods of a QoS class, or the node; for `hook` what it gets.
        node: the node.
        hook: where the policies run; None for the evaluation of something that exists.
        rule: whose value counts when two policies set one field.
    """
    subject = Subject(hook or evaluation_of(view), view, time.time(), rule)
    pod = pod_of(view)
    merged, policies = Merged(view), tuple(policies)
    dry_run = merged if any(policy.mode is Mode.DRY_RUN for policy in policies) else None
    progress = Progress(merged, dry_run, without_answer=unsettled(policies, node))
    for policy in policies:
        if subject.hook in policy.methods and (pod is None or policy.selector_on(node).matches(pod)):
            progress, _ = run_policy(policy, subject, node, progress)
        if progress.refusal is not None:
            break
    return make_decision(subject, progress)


def unsettled(policies: Iterable[LoadedPolicy], node: Node) -> frozenset[str]:
    """Return the policies that may want more once all that they depend on is known of the node.

    What a policy in dry-run wanted before, in enforce mode, does not hold any more.
    """
    return frozenset(
        each.name for each in policies if each.mode is Mode.ENFORCE and not each.is_settled_on(node)
    )


def evaluation_of(view: View) -> Hook:
    """Return where policies run for something that exists."""
    if isinstance(view, ContainerView):
        return Hook.EVALUATE_CONTAINER
    if isinstance(view, PodView):
        return Hook.EVALUATE_POD
    return Hook.EVALUATE_QOS_CLASS if isinstance(view, ClassView) else Hook.EVALUATE_NODE


def run_policy(  # noqa: C901 - all that may happen to one answer, in order
    policy: LoadedPolicy,
    subject: Subject,
    node: Node,
    progress: Progress,
    response: ReadResponse | None = None,
) -> tuple[Progress, Failure | None]:
    """Run one policy, check its change and merge it. Raises nothing that the policy raises.

    `progress`: as of before the policy. `response`: the response of a hook server, instead of the method
    of a policy in this process.

    Raises:
        OverCpuLimitError: by the `CpuLimit` below which this runs, if it does.
    """
    enforces = policy.mode is Mode.ENFORCE
    merged = progress.enforced if enforces or progress.dry_run is None else progress.dry_run
    view = merged.view if response is not None else merged.start
    # When a sandbox is created, earlier policies may have changed labels, annotations and cgroup parent.
    if response is None and subject.hook is Hook.PRE_RUN_POD_SANDBOX:
        view = merged.changed_pod or view
        if isinstance(view, PodView) and not policy.selector_on(node).matches(view):
            return progress, None
    if not enforces and subject.hook in HOOKS_WITHOUT_ANSWER:
        note = AuditNote(AuditKind.WOULD_CHANGE, policy, "effects are left out in dry-run")
        return progress.with_note(note), None
    # Effects are left to the policy: what it has begun it may have to end.
    is_answer = subject.hook not in HOOKS_WITHOUT_ANSWER
    try:
        has_features = policy.features <= node.features and not policy.needless_features & node.features
        is_on = has_features and node.unsure.isdisjoint(policy.inputs)
        if is_answer and not is_on and (unmet := unmet_for(policy, view, node)):
            return _with_off(policy, progress, unmet), None
        may_lack = is_answer and not node.unsure.isdisjoint(policy.optional_inputs)
        if may_lack and node.unknown_inputs(policy.optional_inputs, pod_of(view)):
            progress = progress.without(policy)
        try:
            change = policy.methods[subject.hook](view, node) if response is None else response(view)
        except RefusalError as error:
            return _with_refusal(policy, subject, progress, error)
        if change is None:
            return progress, None
        problem = problem_of(subject.hook, change)
        if problem is None and isinstance(change, Change):
            accepted = usable(subject.hook, change, merged, node.facts, subject.carried)
            if accepted.missing and policy.refuses_on_failure and subject.is_creation:
                refusal = RefusalError("; ".join(accepted.missing)[:_MAX_TEXT_LENGTH])
                return _with_refusal(policy, subject, progress, refusal)
            return _with_change(policy, subject, progress, change, accepted), None
        failure = Failure(policy, FailureKind.INVALID, problem or "", f"invalid: {problem}")
    except OverCpuLimitError:
        raise
    except ServerError as error:
        failure = Failure(policy, error.kind, str(error), f"{error.kind} {error.code.name}", error)
    except BaseException as error:  # noqa: BLE001 - a policy may raise anything, SystemExit too: it failed
        failure = Failure(policy, FailureKind.FAILED, *error_texts(error, view))
    return add_failure(subject, progress, failure), failure


class Unmet(NamedTuple):
    """What a policy needs and the node lacks; as text, the reason for people."""

    unknown_inputs: tuple[Input, ...] = ()
    """While they are not known, what the policy wanted before still holds."""
    features: tuple[str, ...] = ()
    """Of the kernel."""
    needless_features: tuple[str, ...] = ()
    """Of the kernel, which make the policy needless."""
    is_off: bool = True
    """Whether the policy does not run at all."""

    def __str__(self) -> str:
        if self.unknown_inputs:
            return f"not known: {', '.join(self.unknown_inputs)}"
        if self.needless_features:
            return f"the kernel has {', '.join(self.needless_features)}"
        return lacks(self.features)


def unmet_for(policy: LoadedPolicy, view: View, node: Node) -> Unmet | None:
    """Return why a policy whose selector matches does not run for this view; None if it runs."""
    if (unmet := unmet_features(policy, node)) is not None:
        return unmet
    unknown = node.unknown_inputs(policy.inputs, pod_of(view))
    return Unmet(unknown) if unknown else None


def unmet_on(policy: LoadedPolicy, node: Node) -> Unmet | None:
    """Return why a policy does not run on this node, or only in part; None if it does.

    Also None where the policy has nothing to do, as an input is withdrawn.
    """
    states = {each: node.state_of(each) for each in policy.inputs if each is not Input.PRIORITY}
    if unknown := tuple(each for each, state in states.items() if state is InputState.UNKNOWN):
        return Unmet(unknown)
    if InputState.WITHDRAWN in states.values():
        return None
    if (unmet := unmet_features(policy, node)) is not None:
        return unmet
    missing = missing_features(policy.optional_features, node)
    return Unmet(features=tuple(sorted(missing)), is_off=False) if missing else None


def unmet_features(policy: LoadedPolicy, node: Node) -> Unmet | None:
    """Return why a policy is off on a node for its kernel; None if it is not."""
    if missing := missing_features(policy.features, node):
        return Unmet(features=tuple(sorted(missing)))
    if needless := policy.needless_features & node.features:
        return Unmet(needless_features=tuple(sorted(needless)))
    return None


def missing_features(features: frozenset[str], node: Node) -> frozenset[str]:
    """Return those that the kernel is known to lack."""
    if not features or node.state_of(Input.CGROUPS) is not InputState.KNOWN:
        return frozenset()
    return features - node.features


def _with_off(policy: LoadedPolicy, progress: Progress, unmet: Unmet) -> Progress:
    if not unmet.unknown_inputs:
        return progress
    return progress.without(policy).with_note(AuditNote(AuditKind.OFF, policy, str(unmet)))


def _with_refusal(
    policy: LoadedPolicy, subject: Subject, progress: Progress, error: RefusalError
) -> tuple[Progress, Failure | None]:
    if not subject.is_creation:
        reason = f"refused, which counts when a pod or container is created only: {error.text}"
        failure = Failure(policy, FailureKind.FAILED, reason, "refused too late")
        return progress.without(policy).with_note(AuditNote(AuditKind.FAILED, policy, reason)), failure
    progress = progress.with_note(AuditNote(AuditKind.REFUSED, policy, str(error.text)))
    if policy.mode is Mode.ENFORCE:
        refusal = Refusal(StatusCode(error.code), f"{policy.name}: {error.text}", policy.name)
        progress = progress._replace(refusal=refusal)
    return progress, None


def _with_change(
    policy: LoadedPolicy,
    subject: Subject,
    progress: Progress,
    change: Change,
    accepted: Usable,
) -> Progress:
    """Merge the usable fields of a change; each update, conflict and field left out gets an audit entry."""
    reason, reasons = accepted.reason, accepted.reasons
    notes = [*progress.notes]
    for left in accepted.left_out:
        note = NOT_CARRIED if left.is_uncarried else ""
        notes.append(
            AuditNote(AuditKind.LEFT_OUT, policy, left.reason, note=note, field=left.field, new=left.value)
        )
    enforced, dry_run, rule = progress.enforced, progress.dry_run, subject.rule
    name, fields, priority = policy.name, accepted.fields, policy.priority
    updates: tuple[FieldUpdate, ...] = ()
    kind = AuditKind.WOULD_CHANGE
    if dry_run is not None:
        dry_run, updates = merge(
            dry_run, name, fields, priority=priority, reason=reason, reasons=reasons, rule=rule
        )
    if policy.mode is Mode.ENFORCE:
        kind, is_remote = AuditKind.CHANGED, bool(policy.remote_hooks)
        enforced, updates = merge(
            *(enforced, name, fields),
            priority=priority,
            reason=reason,
            reasons=reasons,
            rule=rule,
            is_remote=is_remote,
        )
    for update in updates:
        if update.other:
            conflict = f"also set by {update.other}; the {rule} policy's value counts"
            notes.append(AuditNote(AuditKind.CONFLICT, policy, conflict, update))
        if not update.other or rule is ConflictRule.LATER:
            of_field = reasons.get(update.field.key, reason)
            notes.append(AuditNote(kind, policy, of_field, update, accepted.notes.get(update.field, "")))
    after = Progress(enforced, dry_run, tuple(notes), progress.refusal, progress.without_answer)
    # With nothing but problems it cannot decide.
    return after.without(policy) if (change.problems or change.missing) and not fields else after


def add_failure(subject: Subject, progress: Progress, failure: Failure) -> Progress:
    """Note that a policy failed; the call is refused if its failure policy says so and it still can be."""
    policy, reason, server = failure.policy, failure.reason, failure.server
    refuses = progress.refusal is None and policy.refuses_on_failure and subject.is_refusable
    is_late = failure.kind in (FailureKind.TIMED_OUT, FailureKind.SKIPPED)
    code = StatusCode.UNAVAILABLE if is_late else StatusCode.INTERNAL
    kind = AuditKind.INVALID if failure.kind is FailureKind.INVALID else AuditKind.FAILED
    if server is not None and refuses:
        kind, code, reason = AuditKind.REFUSED, server.code, f"{REFUSAL_PREFIX}{server.text}"
    progress = progress.without(policy).with_note(AuditNote(kind, policy, reason))
    if not refuses:
        return progress
    return progress._replace(refusal=Refusal(code, f"{policy.name}: {reason}", policy.name))


def make_decision(subject: Subject, progress: Progress) -> Decision:
    """Return the decision after all policies have run, or one refused."""
    if progress.refusal is not None:
        notes = [note for note in progress.notes if note.kind not in _UNDONE]
        return Decision(
            hook=subject.hook,
            merged=Merged(subject.view),
            refusal=progress.refusal,
            audit=DecisionAudit(subject, notes),
        )
    merged, notes = progress.enforced, list(progress.notes)
    owners: dict[str, tuple[Claimant, ...]] = {}
    changed: dict[Field, Value] = {}
    written_once: set[str] = set()
    for changed_field, each in merged.fields.items():
        if each.notes or each.problem:
            notes += _notes(changed_field, each)
        if not each.owners:
            continue
        owners[str(changed_field)] = each.owners
        is_servers = not each.steps and each.owners[0].kind is ClaimantKind.SERVER
        if is_servers and changed_field.group == CGROUP:
            written_once.add(changed_field.key)
        value = rounded_for_systemd(merged.start, changed_field, each.value)
        if not is_same(changed_field, each.original, value):
            changed[changed_field] = value
    return Decision(
        hook=subject.hook,
        merged=merged,
        change=change_from(subject.hook, changed) if changed else None,
        without_answer=progress.without_answer,
        owners=owners,
        written_once=frozenset(written_once),
        audit=DecisionAudit(subject, notes) if notes else (),
    )


def _notes(field: Field, resolved: Resolved) -> Iterator[AuditNote]:
    """Yield a note for each claim without its whole effect; of sets the conflict has been reported."""
    new = shown(field, resolved.value)
    for claim, outcome, why in resolved.notes:
        if claim.role is not Role.SET or outcome is not ClaimOutcome.LOST:
            reason = f"{claim.role} {claim.value}: {why}"
            yield AuditNote(AuditKind.VOID, str(claim.owner), reason, field=str(field), new=new)
    if resolved.problem:
        owners = texts_of(resolved.owners)
        yield AuditNote(AuditKind.VOID, owners, resolved.problem, field=str(field), new=new)


def refuse(subject: Subject, entries: Iterable[AuditEntry], refusal: Refusal) -> Decision:
    """Return the decision to refuse the call; changes of earlier policies leave the audit."""
    remaining = tuple(entry for entry in entries if entry.kind not in _UNDONE)
    return Decision(hook=subject.hook, merged=Merged(subject.view), refusal=refusal, audit=remaining)


def error_texts(error: BaseException, view: View) -> tuple[str, str]:
    """Return why a policy failed, for the log, and a text by which repetitions are recognized.

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
