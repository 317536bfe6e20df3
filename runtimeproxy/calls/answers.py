"""Carrying out what policies answered: edits of the request, then cgroup values. Runs in worker threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runtimeproxy.calls.message import frame_message
from runtimeproxy.cgroups import Outcome
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks import CgroupChange, PodChange

if TYPE_CHECKING:
    from runtimeproxy.calls.desk import CgroupWriter
    from runtimeproxy.calls.operation import Operation, Question


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
) -> None:
    """Writes the cgroup values of an answer; those of a container without a cgroup wait for it.

    Raises:
        CgroupWriteError: A value was not written.
    """
    if not change.cgroup:
        return
    target = (change.cgroup_parent if isinstance(change, PodChange) else None) or question.cgroup
    if target:
        write_values(writer, target, change.cgroup)
    elif question.details is not None:
        operation.pending.update(change.cgroup)
    else:
        raise CgroupWriteError("the pod's cgroup is not known")


def write_values(writer: CgroupWriter, cgroup: str, values: Mapping[str, int | str]) -> None:
    """Writes values to one cgroup.

    Raises:
        CgroupWriteError: A value was not written; a missing file or cgroup is no reason.
    """
    failed = [
        f"{result.name}: {result.error}"
        for result in writer.write(cgroup, values)
        if result.outcome in (Outcome.INVALID, Outcome.REFUSED, Outcome.FAILED)
    ]
    if failed:
        raise CgroupWriteError("; ".join(failed))
