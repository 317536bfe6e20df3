"""Where audit entries go: the log, the last ones for the API, the numbers for metrics, and given readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtimeproxy.hooks.audit import AuditLog, AuditQueue, AuditRing, AuditSink
from runtimeproxy.hooks.counts import PolicyCounts


class AuditQueues:
    """Queues of audit entries, by their origin. Used in the event loop's thread.

    Args:
        sinks: Get all entries.
        events: Get those that may become Events of a pod.

    Attributes:
        counts: What policies have done.
        ring: The last entries, and the last failure of each policy.
        decisions: Of calls.
        changes: Of values of what runs; they have lines of their own in the log, and metrics.
        claims: Of claims with a lease and evictions.
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

    def flush(self) -> None:
        """Hands on the entries that are gathered."""
        self.report()
        for queue in (self.decisions, self.changes, self.claims):
            queue.flush()

    def close(self) -> None:
        """The same, and writes them to the log."""
        self.flush()
        self._log.flush()
