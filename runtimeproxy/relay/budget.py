"""Memory for the messages of held calls, shared by all connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

DEFAULT_BUDGET_BYTES: Final = 64 * 1024 * 1024
"""Four messages of the largest size at a time; ordinary requests have a few KiB."""


class Reservation:
    """A share of the budget, waiting or granted; `release` gives it back in either state."""

    __slots__ = ("_budget", "granted", "is_old", "on_granted", "on_late", "present_bytes", "size_bytes")

    def __init__(
        self, budget: MemoryBudget, size_bytes: int, present_bytes: int, on_granted: Callable[[], None]
    ) -> None:
        self._budget = budget
        self.size_bytes = size_bytes
        self.present_bytes = present_bytes
        self.on_granted = on_granted
        self.granted = False
        self.on_late: Callable[[], None] | None = None
        self.is_old = False

    def release(self) -> None:
        """Gives the share back; a second call does nothing."""
        self._budget._release(self)  # noqa: SLF001  # the two classes are one mechanism


class MemoryBudget:
    """Grants reservations first come, first served.

    Attributes:
        limit_bytes: how much may be granted together.
        used_bytes: how much is granted.
        waiting_bytes: how much may be in memory and is not granted.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiting_bytes = 0
        self._waiting: deque[Reservation] = deque()
        self._granted: dict[Reservation, None] = {}

    def reserve(
        self, size_bytes: int, on_granted: Callable[[], None], present_bytes: int | None = None
    ) -> Reservation | None:
        """Asks for a share; `on_granted` is called when it is there, which may be at once.

        A single request over the limit is granted when nothing else is. None means that as much as the
        limit is waiting already: small messages are in memory before they are granted, so the queue is
        bounded too.
        """
        if self.waiting_bytes >= self.limit_bytes:
            return None
        present_bytes = size_bytes if present_bytes is None else min(size_bytes, present_bytes)
        reservation = Reservation(self, size_bytes, present_bytes, on_granted)
        self._waiting.append(reservation)
        self.waiting_bytes += present_bytes
        self._grant()
        return reservation

    def expire(self) -> None:
        """Looks for messages that do not come; to be called every few seconds.

        A message is late that has not come between two calls of this, while others wait for its memory.
        """
        for each in tuple(self._granted):
            if not self._waiting or each.on_late is None:
                each.is_old = False
            elif each.is_old:
                each.on_late()
            else:
                each.is_old = True

    def _grant(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if self.used_bytes and self.used_bytes + first.size_bytes > self.limit_bytes:
                return
            self._waiting.popleft()
            self.waiting_bytes -= first.present_bytes
            self.used_bytes += first.size_bytes
            first.granted = True
            self._granted[first] = None
            first.on_granted()

    def _release(self, reservation: Reservation) -> None:
        if reservation.granted:
            reservation.granted = False
            del self._granted[reservation]
            self.used_bytes -= reservation.size_bytes
            self._grant()
        elif reservation in self._waiting:
            self._waiting.remove(reservation)
            self.waiting_bytes -= reservation.present_bytes
            self._grant()
