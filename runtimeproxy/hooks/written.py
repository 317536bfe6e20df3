"""What became of the cgroup values of a decision, in its audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import CGROUP

_PREFIX: Final = f"{CGROUP}["


class Written(NamedTuple):
    """What became of one value."""

    new: str = ""
    """What was to be written; empty when nobody asks."""
    old: str = ""
    """What the file held before; empty when that is not known."""
    failed: str = ""
    """Why the kernel or the writer refused it; empty when they did not."""
    skipped: str = ""
    """Why it was not written although nothing failed, such as a cgroup that is gone; empty when it was."""
    is_unchanged: bool = False
    """Whether the file held it already."""
    is_pending: bool = False
    """Whether it waits for the container's cgroup."""

    def kind(self) -> AuditKind:
        """What an audit entry about the value is."""
        if self.failed:
            return AuditKind.FAILED
        if self.skipped:
            return AuditKind.LEFT_OUT
        return AuditKind.PENDING if self.is_pending else AuditKind.CHANGED


def with_written(decision: Decision, written: Mapping[str, Written]) -> Decision:
    """Return the decision with an audit that calls changed only what was changed.

    What the files held already is no change, and leaves the audit; so does a value that another policy's
    has replaced, of which the entry about their conflict tells.

    Args:
        decision: what was decided.
        written: by cgroup parameter; those that are not in it stay as they are.
    """
    if not written:
        return decision
    entries = (_about(decision, entry, written) for entry in decision.audit)
    return replace(decision, audit=tuple(entry for entry in entries if entry is not None))


def _about(decision: Decision, entry: AuditEntry, written: Mapping[str, Written]) -> AuditEntry | None:
    name = entry.field.removeprefix(_PREFIX).removesuffix("]")
    if entry.kind is not AuditKind.CHANGED or not entry.field.startswith(_PREFIX) or name not in written:
        return entry
    value = written[name]
    if value.is_unchanged or decision.owners.get(entry.field, entry.policy) != entry.policy:
        return None
    return entry._replace(
        kind=value.kind(), old=entry.old or value.old, reason=value.failed or value.skipped or entry.reason
    )
