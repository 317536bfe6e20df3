"""Carrying out what policies answered: edits of the request, then cgroup values. Runs in worker threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runtimeproxy.calls.message import frame_message
from runtimeproxy.cgroups import Outcome
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks import CgroupChange, PodChange
from runtimeproxy.hooks.written import Written

if TYPE_CHECKING:
    from runtimeproxy.calls.desk import CgroupWriter
    from runtimeproxy.calls.operation import Operation, Question
    from runtimeproxy.cgroups import WriteResult


class CgroupWriteError(RuntimeProxyError):
    """A cgroup value that could not be written, for another reason than a missing file or cgroup."""


def edited_request(
    operation: Operation, answers: Sequence[tuple[Question, CgroupChange]], *, carried: bool
) -> bytes | None:
    """The frame with the edited request; None if nothing differs from the request as it came.

    Args:
        operation: The call.
        answers: What policies were asked and answered, in order.
        carried: Whether the request has been edited already.
    """
    changed = carried
    for question, change in answers:
        changed = question.edit(change) or changed
    return frame_message(operation.request.SerializeToString()) if changed else None


def write_answer(
    writer: CgroupWriter, operation: Operation, question: Question, change: CgroupChange
) -> Mapping[str, Written]:
    """Writes the cgroup values of an answer; those of a container without a cgroup wait for it.

    Returns:
        What became of those that were to be written now.

    Raises:
        CgroupWriteError: A value was not written.
    """
    if not change.cgroup:
        return {}
    target = (change.cgroup_parent if isinstance(change, PodChange) else None) or question.cgroup
    if target:
        return write_values(writer, target, change.cgroup)
    if question.details is None:
        raise CgroupWriteError("the pod's cgroup is not known")
    operation.pending.update(change.cgroup)
    return {}


def write_values(writer: CgroupWriter, cgroup: str, values: Mapping[str, int | str]) -> Mapping[str, Written]:
    """Writes values to one cgroup; returns what became of them.

    Raises:
        CgroupWriteError: A value was not written; a missing file or cgroup is no reason.
    """
    results = writer.write(cgroup, values)
    failed = [
        f"{result.name}: {result.error}"
        for result in results
        if result.outcome in (Outcome.INVALID, Outcome.REFUSED, Outcome.FAILED)
    ]
    if failed:
        raise CgroupWriteError("; ".join(failed))
    return {result.name: _written(result) for result in results}


def _written(result: WriteResult) -> Written:
    old = "" if result.old is None else str(result.old)
    skipped = result.error if result.outcome is Outcome.MISSING else ""
    return Written(old, skipped, is_unchanged=result.outcome is Outcome.UNCHANGED)
