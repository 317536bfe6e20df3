"""The audit log: one line per pod or container that policies changed, or would have changed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from runtimeproxy.hooks.audit import TROUBLE, AuditKind

if TYPE_CHECKING:
    from runtimeproxy.hooks.audit import AuditEntry

logger = logging.getLogger("runtimeproxy.audit")

GATHER_S: Final = 0.05
"""How long entries wait for others, to be written together after their calls have been forwarded.

A line takes about as long to format as the policies took to decide. Formatted at once, it would compete with
the runtime and the kubelet for the CPUs just while they work on the call.
"""

LINES_A_TURN: Final = 4
"""Lines that are formatted in one turn of the loop; each takes 50 to 80 microseconds."""


class AuditLog:
    """An audit sink that gathers the entries of a moment and logs those of each decision as one line.

    Args:
        gather_s: how long the first entry waits for others, in seconds.
    """

    def __init__(self, gather_s: float = GATHER_S) -> None:
        self._gather_s = gather_s
        self._decisions: dict[tuple[object, ...], list[AuditEntry]] = {}

    def __call__(self, entry: AuditEntry) -> None:
        """Takes an entry; never blocks."""
        if not self._decisions:
            asyncio.get_running_loop().call_later(self._gather_s, self._write)
        # Each failed field gets a line of its own, because its reason differs.
        field = entry.field if entry.kind is AuditKind.FAILED else ""
        key = (entry.time_s, entry.hook, entry.pod_uid, entry.pod_name, entry.container, entry.kind, field)
        self._decisions.setdefault(key, []).append(entry)

    def flush(self) -> None:
        """Logs all that is gathered."""
        while self._decisions:
            with suppress(Exception):  # a handler that raises must not keep the daemon from ending
                self._log_next()

    def _write(self) -> None:
        """Logs the gathered entries, some lines in each turn of the loop."""
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
            _log(entries)


def _log(entries: list[AuditEntry]) -> None:
    first = entries[0]
    pod = f"{first.pod_namespace}/{first.pod_name}"
    name = f"{pod}/{first.container}" if first.container else pod
    fields = {
        "hook": str(first.hook),
        "kind": str(first.kind),
        "pod": pod,
        "container": first.container,
        "uid": first.pod_uid,
        "sandbox": first.sandbox_id,
        "container_id": first.container_id,
        "changes": [_change(entry) for entry in entries],
    }
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
