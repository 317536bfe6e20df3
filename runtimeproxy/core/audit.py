"""Where audit entries go: the log, the last ones for the API, the numbers for metrics, and given readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from runtimeproxy.hooks.audit import AuditEntry, AuditKind, AuditLog, AuditQueue, AuditRing, AuditSink
from runtimeproxy.hooks.counts import PolicyCounts
from runtimeproxy.vocabulary import Mode

DAEMON: Final = "daemon"
"""The target of entries about the process."""
NODE: Final = "node"


class AuditQueues:
    """Queues of audit entries, by their origin. Used in the event loop's thread.

    Args:
        sinks: Get all entries.
        events: Get those that may become Events of a pod.

    Attributes:
        counts: What policies have done.
        ring: The last entries, and the last failure of each policy.
        decisions: Of calls.
        changes: Of values of what runs, and of the daemon; they have lines of their own in the log.
        claims: Of claims with a lease and evictions, and of what policies in dry-run would change.
        report: Has decisions audited that have not been yet.
    """

    def __init__(self, sinks: Sequence[AuditSink], events: Sequence[AuditSink]) -> None:
        self.report: Callable[[], None] = lambda: None
        self.counts = PolicyCounts()
        self.ring = AuditRing()
        self._log = AuditLog()
        self.decisions = AuditQueue((self.counts.count_entry, self.ring, self._log, *events, *sinks))
        self.changes = AuditQueue((self.ring, *sinks))
        self.claims = AuditQueue((self.ring, self._log, *events, *sinks))

    def add_event(
        self,
        kind: AuditKind,
        reason: str,
        *,
        target: str = DAEMON,
        policy: str = "",
        field: str = "",
        old: str = "",
        new: str = "",
        mode: Mode = Mode.ENFORCE,
    ) -> None:
        """Takes what has happened to the daemon, a policy or a strategy; the log has a line of its own."""
        entry = AuditEntry(time.time(), "", kind, policy, mode, "", "", "", "", target=target)
        self.changes(entry._replace(field=field, old=old, new=new, reason=reason))

    def flush(self) -> None:
        """Hands on the entries that are gathered."""
        self.report()
        for queue in (self.decisions, self.changes, self.claims):
            queue.flush()

    def close(self) -> None:
        """The same, and writes them to the log."""
        self.flush()
        self._log.flush()
