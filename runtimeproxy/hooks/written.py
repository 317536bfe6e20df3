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

    old: str = ""
    """What the file held before; empty when that is not known."""
    skipped: str = ""
    """Why it was not written; empty when it is there now."""
    is_unchanged: bool = False
    """Whether the file held it already."""


def with_written(decision: Decision, written: Mapping[str, Written]) -> Decision:
    """Return the decision with the old values, and a note at each value that was not written.

    What the files held already is no change, and leaves the audit.

    Args:
        decision: what was decided.
        written: by cgroup parameter; those that are not in it stay as they are.
    """
    if not written:
        return decision
    told = (_told(entry, written) for entry in decision.audit)
    return replace(decision, audit=tuple(entry for entry in told if entry is not None))


def _told(entry: AuditEntry, written: Mapping[str, Written]) -> AuditEntry | None:
    name = entry.field.removeprefix(_PREFIX).removesuffix("]")
    if entry.kind is not AuditKind.CHANGED or not entry.field.startswith(_PREFIX) or name not in written:
        return entry
    about = written[name]
    if about.is_unchanged:
        return None
    note = f"not written: {about.skipped}" if about.skipped else ""
    return entry._replace(old=entry.old or about.old, note=note)
