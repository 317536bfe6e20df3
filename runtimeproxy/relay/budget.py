"""Memory for the messages of held calls, shared by all connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

DEFAULT_BUDGET_BYTES: Final = 64 * 1024 * 1024
"""Four messages of the largest size at a time; ordinary requests have a few KiB."""


class Reservation:
    """A share of the budget, waiting or granted; `release` gives it back in either state."""

    __slots__ = ("_budget", "granted", "on_granted", "size_bytes")

    def __init__(self, budget: MemoryBudget, size_bytes: int, on_granted: Callable[[], None]) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        self.on_granted = on_granted
        self.granted = False

    def release(self) -> None:
        """Gives the share back; a second call does nothing."""
        self._budget._release(self)  # noqa: SLF001  # the two classes are one mechanism


class MemoryBudget:
    """Grants reservations first come, first served.

    Attributes:
        limit_bytes: how much may be granted together.
        used_bytes: how much is granted.
        waiting_bytes: how much is asked for and not granted.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiting_bytes = 0
        self._waiting: deque[Reservation] = deque()

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> Reservation | None:
        """Asks for a share; `on_granted` is called when it is there, which may be at once.

        A single request over the limit is granted when nothing else is. None means that as much as the
        limit is waiting already: small messages are in memory before they are granted, so the queue is
        bounded too.
        """
        if self.waiting_bytes >= self.limit_bytes:
            return None
        reservation = Reservation(self, size_bytes, on_granted)
        self._waiting.append(reservation)
        self.waiting_bytes += size_bytes
        self._grant()
        return reservation

    def _grant(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if self.used_bytes and self.used_bytes + first.size_bytes > self.limit_bytes:
                return
            self._waiting.popleft()
            self.waiting_bytes -= first.size_bytes
            self.used_bytes += first.size_bytes
            first.granted = True
            first.on_granted()

    def _release(self, reservation: Reservation) -> None:
        if reservation.granted:
            reservation.granted = False
            self.used_bytes -= reservation.size_bytes
            self._grant()
        elif reservation in self._waiting:
            self._waiting.remove(reservation)
            self.waiting_bytes -= reservation.size_bytes
            self._grant()
