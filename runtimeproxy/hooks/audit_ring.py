"""The last audit entries, for those who look at a running daemon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from runtimeproxy.hooks.audit import AuditEntry, AuditKind

REMEMBERED: Final = 500
"""Entries; with the texts of common policies they take some hundred KiB. A pod with one container has ten."""

_FAILURES: Final = frozenset({AuditKind.FAILED, AuditKind.INVALID})


class AuditRing:
    """An audit sink. Used in the event loop's thread.

    Attributes:
        entries: The newest ones, oldest first.
        last_failures: By policy, its last entry of a failure.
        last_left_out: By policy, the last one of a field that could not be used.
        followers: Called with each new entry; they must not raise.
    """

    def __init__(self, size: int = REMEMBERED) -> None:
        self.entries: deque[AuditEntry] = deque(maxlen=size)
        self.last_failures: dict[str, AuditEntry] = {}
        self.last_left_out: dict[str, AuditEntry] = {}
        self.followers: dict[object, Callable[[AuditEntry], None]] = {}

    def __call__(self, entry: AuditEntry) -> None:
        """Takes an entry."""
        self.entries.append(entry)
        if entry.kind in _FAILURES:
            self.last_failures[entry.policy] = entry
        elif entry.kind is AuditKind.LEFT_OUT:
            self.last_left_out[entry.policy] = entry
        for follower in tuple(self.followers.values()) if self.followers else ():
            follower(entry)
