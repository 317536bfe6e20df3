"""The audit in the log: one line per pod or container that policies changed, or would have changed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtimeproxy.hooks.audit import AuditEntry

logger = logging.getLogger("runtimeproxy.audit")


class AuditLog:
    """An audit sink that gathers the entries of one decision and logs them as one line.

    All entries of a decision arrive in one turn of the event loop, so the line is written at its end.
    """

    def __init__(self) -> None:
        self._gathered: list[AuditEntry] = []

    def __call__(self, entry: AuditEntry) -> None:
        """Takes an entry; never blocks."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._write)
        self._gathered.append(entry)

    def _write(self) -> None:
        gathered, self._gathered = self._gathered, []
        by_call: dict[tuple[object, ...], list[AuditEntry]] = {}
        for entry in gathered:
            key = (entry.time_s, entry.hook, entry.pod_uid, entry.pod_name, entry.container, entry.kind)
            by_call.setdefault(key, []).append(entry)
        for entries in by_call.values():
            _log(entries)


def _log(entries: list[AuditEntry]) -> None:
    first = entries[0]
    pod = f"{first.pod_namespace}/{first.pod_name}"
    name = f"{pod}/{first.container}" if first.container else pod
    changes = [
        {
            "field": entry.field,
            "from": entry.old,
            "to": entry.new,
            "policy": entry.policy,
            "reason": f"{entry.reason}; {entry.note}" if entry.note else entry.reason,
        }
        for entry in entries
    ]
    logger.info(
        "%s %s: %s",
        name,
        first.kind,
        ", ".join(_text(entry) for entry in entries),
        extra={
            "hook": str(first.hook),
            "kind": str(first.kind),
            "pod": pod,
            "container": first.container,
            "uid": first.pod_uid,
            "changes": changes,
        },
    )


def _text(entry: AuditEntry) -> str:
    if not entry.field:
        return f"{entry.policy}: {entry.reason}"
    note = f"; {entry.note}" if entry.note else ""
    return f"{entry.field} {entry.old or '-'} -> {entry.new or '-'} ({entry.policy}{note})"
