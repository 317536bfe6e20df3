"""The runtime's connection window, and what the relay owes it."""

from __future__ import annotations

from runtimeproxy.http2.frames import DEFAULT_WINDOW_BYTES


class RuntimeCredit:
    """Keeps the client's and the runtime's connection windows consistent.

    The client gets credit at once for the DATA that is taken, which the runtime never sees; what the
    relay sends instead uses the runtime's window without the client's knowledge. That is the debt, and it
    is taken out of the runtime's next connection WINDOW_UPDATEs. At any time
    `client's window + waiting bytes = window_bytes + debt_bytes`.
    """

    __slots__ = ("debt_bytes", "window_bytes")

    def __init__(self) -> None:
        self.window_bytes = DEFAULT_WINDOW_BYTES
        """How much DATA the runtime accepts now, on all streams together."""
        self.debt_bytes = 0
        """How much of the relay's own DATA is not yet made up for."""

    def send_own(self, size_bytes: int) -> None:
        """The relay sends DATA of its own."""
        self.window_bytes -= size_bytes
        self.debt_bytes += size_bytes

    def receive(self, increment_bytes: int) -> int:
        """The runtime gave connection credit; returns how much of it is passed to the client."""
        self.window_bytes += increment_bytes
        paid = min(self.debt_bytes, increment_bytes)
        self.debt_bytes -= paid
        return increment_bytes - paid
