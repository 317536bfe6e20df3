"""Carrying out what policies answered: edits of the request, then cgroup values. Runs in worker threads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from runtimeproxy.calls.grpc_framing import frame_message
from runtimeproxy.cgroups import Outcome
from runtimeproxy.hooks import PodChange
from runtimeproxy.hooks.audit import Written
from runtimeproxy.hooks.fields import CGROUP, Field
from runtimeproxy.hooks.merge import FieldUpdate

if TYPE_CHECKING:
    from runtimeproxy.calls.cri_call import Operation, Question
    from runtimeproxy.calls.desk import CgroupWriter
    from runtimeproxy.cgroups import WriteResult
    from runtimeproxy.hooks.audit import AuditSink, Subject
    from runtimeproxy.hooks.decision import Decision


_REFUSED: Final = (Outcome.INVALID, Outcome.REFUSED, Outcome.FAILED)


def edited_request(
    operation: Operation, answers: Sequence[tuple[Question, Decision]], *, carried: bool
) -> bytes | None:
    """The frame with the edited request; None if nothing differs from the request as it came.

    Args:
        operation: The call.
        answers: What policies were asked and what they decided, in order.
        carried: Whether the request has been edited already.
    """
    changed = carried
    for question, decision in answers:
        if decision.change is not None:
            changed = question.edit(decision.change) or changed
    return frame_message(operation.request.SerializeToString()) if changed else None


def write_answer(
    writer: CgroupWriter, operation: Operation, question: Question, decision: Decision
) -> Mapping[str, Written]:
    """Writes the cgroup values of a decision; those of a container without a cgroup wait for it.

    Returns:
        What became of each of them.
    """
    change = decision.change
    if change is None or not change.cgroup:
        return {}
    target = (change.cgroup_parent if isinstance(change, PodChange) else None) or question.cgroup
    if target:
        return write_values(writer, target, change.cgroup, decision.written_once)
    if question.details is None:
        return dict.fromkeys(change.cgroup, Written(skipped="the pod's cgroup is not known"))
    # Replaced, not changed: the loop may look at them while a late thread is here.
    operation.pending = {**operation.pending, **change.cgroup}
    names = [str(Field(CGROUP, name)) for name in change.cgroup]
    operation.pending_owners = {**operation.pending_owners, **{name: decision.owners[name] for name in names}}
    return dict.fromkeys(change.cgroup, Written(is_pending=True))


def write_values(
    writer: CgroupWriter, cgroup: str, values: Mapping[str, int | str], once: Collection[str] = ()
) -> Mapping[str, Written]:
    """Writes values to one cgroup, unless its place is not known (empty); returns what became of them.

    Args:
        writer: Writes them.
        cgroup: The cgroup.
        values: By parameter.
        once: Those not to be written again.
    """
    if not cgroup:
        why = "the cgroup is not known"
        return {name: Written(new=str(value), skipped=why) for name, value in values.items()}
    return {result.name: _written(result) for result in writer.write(cgroup, values, once)}


def audit_late_writes(
    sink: AuditSink, subject: Subject, owners: Mapping[str, str], written: Mapping[str, Written]
) -> None:
    """Audits what became of values that were pending when they were decided.

    Args:
        sink: Takes the entries.
        subject: What the decision was about.
        owners: The policy that owns each field.
        written: What became of the values.
    """
    for name, result in written.items():
        if not (result.is_unchanged or result.is_pending):
            field = Field(CGROUP, name)
            step = FieldUpdate(field, result.old or None, result.new)
            reason = result.failed or result.skipped or "the cgroup is there now"
            sink(subject.entry(result.kind(), owners.get(str(field), ""), reason, step))


def _written(result: WriteResult) -> Written:
    return Written(
        new=str(result.value),
        old="" if result.old is None else str(result.old),
        failed=result.error if result.outcome in _REFUSED else "",
        skipped=result.error if result.outcome is Outcome.MISSING else "",
        is_unchanged=result.outcome is Outcome.UNCHANGED,
    )
