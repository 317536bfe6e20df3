"""The audit in the log: one line per pod or container that policies changed, or would have changed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runtimeproxy.hooks.audit import AuditEntry

logger = logging.getLogger("runtimeproxy.audit")

GATHER_S: Final = 0.05
"""How long entries wait for others, to be written with them when the calls that they are about have gone on.

A line takes about as long to make as the policies took to decide. If it is made at once, it competes with the
runtime and the kubelet for the CPUs just while they work on the call.
"""

LINES_A_TURN: Final = 4
"""How many lines are made before the loop goes on with other work; each takes 50 to 80 microseconds."""


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
        key = (entry.time_s, entry.hook, entry.pod_uid, entry.pod_name, entry.container, entry.kind)
        self._decisions.setdefault(key, []).append(entry)

    def flush(self) -> None:
        """Logs all that is gathered."""
        while self._decisions:
            with suppress(Exception):  # whose handler raises must not keep the daemon from its end
                self._log_next()

    def _write(self) -> None:
        """Logs what is gathered, some lines in each turn of the loop."""
        try:
            for _ in range(min(len(self._decisions), LINES_A_TURN)):
                self._log_next()
        finally:
            # Also when somebody's handler raises: the loop tells that, and the other lines follow.
            if self._decisions:
                asyncio.get_running_loop().call_soon(self._write)

    def _log_next(self) -> None:
        entries = self._decisions.pop(next(iter(self._decisions)))
        if logger.isEnabledFor(logging.INFO):
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
    fields = {
        "hook": str(first.hook),
        "kind": str(first.kind),
        "pod": pod,
        "container": first.container,
        "uid": first.pod_uid,
        "changes": changes,
    }
    text = f"{name} {first.kind}: {', '.join(_text(entry) for entry in entries)}"
    record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, text, (), None, extra=fields)
    # The line tells when the call came, not when the line was written.
    record.created = first.time_s
    record.msecs = first.time_s % 1 * 1000
    logger.handle(record)


def _text(entry: AuditEntry) -> str:
    if not entry.field:
        return f"{entry.policy}: {entry.reason}"
    note = f"; {entry.note}" if entry.note else ""
    return f"{entry.field} {entry.old or '-'} -> {entry.new or '-'} ({entry.policy}{note})"
