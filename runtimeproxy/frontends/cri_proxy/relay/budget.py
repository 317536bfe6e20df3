"""Memory for the messages of intercepted calls: the budget of all connections, and the part of each."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

DEFAULT_BUDGET_BYTES: Final = 64 * 1024 * 1024
"""Some messages of the largest size at a time; ordinary requests have a few KiB."""

CONNECTION_BYTES: Final = 32 * 1024 * 1024
"""Of reservations that one connection may be granted together; its others wait."""

SMALL_BYTES: Final = 64 * 1024 + 5
"""A message of 64 KiB with its gRPC prefix: it needs no reservation, so it never waits for others."""

UNRESERVED_BYTES: Final = 32 * 1024 * 1024
"""Of one connection, held without a reservation: small messages, and the beginnings of messages that wait.
A client that sends many messages sends them in turn, frame by frame: 500 of 64 KiB fit."""

UNRESERVED_TOTAL_BYTES: Final = 64 * 1024 * 1024
"""Of all connections together: each may hold as much as is left, so one gets `UNRESERVED_BYTES`, and of many
each its part."""

LEAST_UNRESERVED_BYTES: Final = 256 * 1024
"""For each connection, whatever the others hold: some small messages that come in turn."""

WAITING_BYTES: Final = 1024 * 1024
"""Of one connection, of messages that wait for memory: above it the client is not read. A runtime with large
windows lets whole messages come before memory is reserved for them; usually it is 64 KiB of each."""

LEAST_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Of calls under way, however small the budget is: some hundred of the kubelet's."""


class MemoryBudget:
    """Grants reservations of memory, first come, first served.

    Memory in use goes before messages still to come: a growing reservation of a whole message needs nothing
    more from its client. A connection that has reached its own limit makes only itself wait.

    Args:
        limit_bytes: how much may be granted together. A single reservation over a limit is granted when
            nothing else is.
        connection_bytes: how much of it may be granted to one connection.
        unreserved_bytes: how much one connection may hold without a reservation.
        small_bytes: up to which size a call needs none.
        unreserved_total_bytes: how much all connections may hold without reservations, but for the least
            that each may.

    Attributes:
        used_bytes: how much is granted.
        unreserved_used_bytes: how much all connections hold without reservations.
        kept_bytes: how much is kept for calls that the runtime has not answered.
    """

    def __init__(
        self,
        limit_bytes: int = DEFAULT_BUDGET_BYTES,
        connection_bytes: int = CONNECTION_BYTES,
        unreserved_bytes: int = UNRESERVED_BYTES,
        small_bytes: int = SMALL_BYTES,
        unreserved_total_bytes: int = UNRESERVED_TOTAL_BYTES,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.connection_bytes = connection_bytes
        self.unreserved_bytes = unreserved_bytes
        self.small_bytes = small_bytes
        self.unreserved_total_bytes = unreserved_total_bytes
        self.used_bytes = 0
        self.unreserved_used_bytes = 0
        self.kept_bytes = 0
        self._arrivals = itertools.count()
        self._connections: dict[ConnectionMemory, None] = {}
        self._growing: OrderedDict[Reservation, None] = OrderedDict()
        self._granted: dict[Reservation, None] = {}
        self._overdraft: Reservation | None = None
        self._is_granting = False

    @property
    def has_waiting(self) -> bool:
        return bool(self._connections or self._growing)

    @property
    def unreserved_room_bytes(self) -> int:
        """How much a connection may hold without a reservation just now."""
        left_bytes = self.unreserved_total_bytes - self.unreserved_used_bytes
        return min(self.unreserved_bytes, max(LEAST_UNRESERVED_BYTES, left_bytes))

    def expire(self) -> None:
        """Reports messages that do not come; to be called every few seconds.

        A message is late if it has not come between two calls, while others wait for its memory.
        """
        for each in tuple(self._granted):
            if not self.has_waiting or each.on_late is None:
                each.is_old = False
            elif each.is_old:
                each.on_late()
            else:
                each.is_old = True

    def _enqueue(self, reservation: Reservation, *, is_whole: bool) -> None:
        if is_whole or reservation.granted_bytes:
            self._growing.setdefault(reservation)
        elif reservation not in reservation.memory.waiting:
            reservation.memory.waiting[reservation] = next(self._arrivals)
            self._connections.setdefault(reservation.memory)

    def _dequeue(self, reservation: Reservation) -> None:
        self._growing.pop(reservation, None)
        memory = reservation.memory
        if memory.waiting.pop(reservation, None) is not None and not memory.waiting:
            del self._connections[memory]

    def _set(self, reservation: Reservation, size_bytes: int) -> None:
        """Grants exactly this much to a reservation, regardless of limits."""
        change_bytes = size_bytes - reservation.granted_bytes
        reservation.granted_bytes = size_bytes
        reservation.memory.used_bytes += change_bytes
        self.used_bytes += change_bytes
        if size_bytes:
            self._granted[reservation] = None
        else:
            self._granted.pop(reservation, None)
        if change_bytes < 0 and self._overdraft is reservation:
            self._overdraft = None

    def _grant(self) -> None:
        """Grants reservations while there is room; `on_granted` may change everything, this included."""
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while (reservation := self._next()) is not None:
                self._dequeue(reservation)
                self._set(reservation, reservation.size_bytes)
                reservation.on_granted()
        finally:
            self._is_granting = False

    def _next(self) -> Reservation | None:
        is_full = False
        for each in self._growing:
            if self._fits(each):
                if self._fits_connection(each):
                    return each
            else:
                is_full = True
                break
        may_exceed = (
            each for each in self._growing if each.granted_bytes and self._overdraft in (None, each)
        )
        if (holding := next(may_exceed, None)) is not None:
            # Calls that hold memory and wait for more could wait for each other: one at a time need not.
            self._overdraft = holding
            return holding
        heads = [next(iter(memory.waiting)) for memory in self._connections]
        heads = [each for each in heads if self._fits_connection(each)]
        if is_full or not heads:
            return None
        first = min(heads, key=lambda each: each.memory.waiting[each])
        return first if self._fits(first) else None

    def _fits(self, reservation: Reservation) -> bool:
        others_bytes = self.used_bytes - reservation.granted_bytes
        most_bytes = self.limit_bytes - min(self.kept_bytes, self.limit_bytes // 2)
        return not others_bytes or others_bytes + reservation.size_bytes <= most_bytes

    def _fits_connection(self, reservation: Reservation) -> bool:
        others_bytes = reservation.memory.used_bytes - reservation.granted_bytes
        return not others_bytes or others_bytes + reservation.size_bytes <= self.connection_bytes


class ConnectionMemory:
    """The memory of one connection's intercepted messages.

    Attributes:
        used_bytes: how much is granted to it.
        unreserved_bytes: how much it holds without a reservation.
        waiting_bytes: how much of that belongs to messages that wait for theirs.
        whole_bytes: how much of that belongs to small messages that have come as a whole.
        kept_bytes: how much is kept for its calls that the runtime has not answered.
        is_much: whether the client may have to pause; `must_pause` says whether it has to.
        waiting: reservations of messages that wait, in the order of their arrival.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.used_bytes = 0
        self.unreserved_bytes = 0
        self.waiting_bytes = 0
        self.whole_bytes = 0
        self.kept_bytes = 0
        self.is_much = False
        self.waiting: OrderedDict[Reservation, int] = OrderedDict()

    def keep(self, size_bytes: int) -> bool:
        """Charges what is kept of a call until it is answered, if there is room; returns whether there is.

        Nothing waits for it: all calls may keep half of the budget, those of one connection a quarter.
        """
        budget = self.budget
        all_bytes, own_bytes = budget.kept_bytes + size_bytes, self.kept_bytes + size_bytes
        if all_bytes > max(budget.limit_bytes // 2, 2 * LEAST_KEPT_BYTES):
            return False
        if own_bytes > max(budget.limit_bytes // 4, LEAST_KEPT_BYTES):
            return False
        budget.kept_bytes, self.kept_bytes = all_bytes, own_bytes
        return True

    def forget(self, size_bytes: int) -> None:
        """A call that kept this much is over."""
        self.kept_bytes -= size_bytes
        self.budget.kept_bytes -= size_bytes
        if self.budget.has_waiting:
            self.budget._grant()  # noqa: SLF001  # the three classes are one mechanism

    def charge(self, unreserved_bytes: int, waiting_bytes: int, whole_bytes: int) -> bool:
        """Adds to the amounts held; returns whether the client may have to pause or may be read again."""
        self.unreserved_bytes += unreserved_bytes
        self.budget.unreserved_used_bytes += unreserved_bytes
        self.waiting_bytes += waiting_bytes
        self.whole_bytes += whole_bytes
        was_much = self.is_much
        self.is_much = (
            self.waiting_bytes > WAITING_BYTES or self.unreserved_bytes > self.budget.unreserved_room_bytes
        )
        return was_much or self.is_much

    @property
    def must_pause(self) -> bool:
        """Whether reading from the client must pause: too much is held, and room comes without its bytes."""
        if self.whole_bytes and self.unreserved_bytes > self.budget.unreserved_room_bytes:
            return True
        if self.waiting_bytes <= WAITING_BYTES:
            return False
        granted = self.budget._granted  # noqa: SLF001  # the three classes are one mechanism
        return not any(each.memory is self and each.on_late is not None for each in granted)

    @property
    def is_full(self) -> bool:
        # Messages that are incomplete or waiting hold more than they may.
        return self.unreserved_bytes - self.whole_bytes > self.budget.unreserved_room_bytes


class Reservation:
    """A share of the budget for one call.

    Attributes:
        size_bytes: how much is asked for.
        granted_bytes: how much of it is granted.
        on_late: called when the message does not come while others wait for its memory; None when it has.
    """

    __slots__ = ("granted_bytes", "is_old", "memory", "on_granted", "on_late", "size_bytes")

    def __init__(self, memory: ConnectionMemory) -> None:
        self.memory = memory
        self.size_bytes = 0
        self.granted_bytes = 0
        self.on_granted: Callable[[], None] = _nothing
        self.on_late: Callable[[], None] | None = None
        self.is_old = False

    @property
    def is_granted(self) -> bool:
        return self.granted_bytes >= self.size_bytes

    def ask(self, size_bytes: int, on_granted: Callable[[], None], *, is_whole: bool = False) -> None:
        """Asks for this much in all, in place of any earlier request.

        Args:
            size_bytes: less than is granted gives the rest back at once.
            on_granted: called when it is there, which may be at once.
            is_whole: whether the message is here already, so that the memory's use does not depend on the
                client.
        """
        budget = self.memory.budget
        self.size_bytes = size_bytes
        if size_bytes <= self.granted_bytes:
            self.on_granted = _nothing
            self.hold(size_bytes)
            on_granted()
            return
        self.on_granted = on_granted
        budget._enqueue(self, is_whole=is_whole)  # noqa: SLF001  # the three classes are one mechanism
        budget._grant()  # noqa: SLF001

    def hold(self, size_bytes: int) -> None:
        """Takes this much at once, over the limits too: it is in memory already. 0 gives all back."""
        budget = self.memory.budget
        budget._dequeue(self)  # noqa: SLF001
        self.size_bytes = size_bytes
        budget._set(self, size_bytes)  # noqa: SLF001
        budget._grant()  # noqa: SLF001

    def release(self) -> None:
        """Gives everything back; no callback follows."""
        self.on_granted, self.on_late = _nothing, None
        self.hold(0)


def _nothing() -> None:
    return
