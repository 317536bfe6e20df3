"""The message of a held call on its way out: DATA of the relay's own on the runtime's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.state import ConnectionState


_NOTHING: Final = memoryview(b"")


class OwnMessage:
    """What is still to be sent on one stream, and how much of it the runtime accepts there.

    Args:
        state: of the connection.
        stream_id: the stream.
        on_sent: called when the last byte was taken, unless the rest was dropped.

    Attributes:
        is_sending: whether some of the message is still to be sent.
        is_queued: whether the `DataSender` has it in one of its queues.
    """

    __slots__ = (
        "_on_sent",
        "_runtime_credit_bytes",
        "_sent_bytes",
        "_state",
        "_unsent",
        "is_queued",
        "is_sending",
        "stream_id",
    )

    def __init__(self, state: ConnectionState, stream_id: int, on_sent: Callable[[], None]) -> None:
        self._state = state
        self.stream_id = stream_id
        self._on_sent: Callable[[], None] | None = on_sent
        self._unsent = _NOTHING
        self._sent_bytes = 0
        self._runtime_credit_bytes = 0
        self.is_sending = False
        self.is_queued = False

    def start(self, data: bytes) -> None:
        """Sends a whole message, as far as windows and transport allow now."""
        self._unsent = memoryview(data)
        self.is_sending = True
        self._state.sender.send(self)

    def go_on(self) -> None:
        """The stream's window may have grown."""
        if self.is_sending:
            self._state.sender.send(self)

    def credit(self, increment_bytes: int) -> None:
        """The runtime gave credit on the stream."""
        self._runtime_credit_bytes += increment_bytes
        self.go_on()

    def drop(self) -> None:
        """Nothing more of it is sent, and nobody is told."""
        self._on_sent = None
        self._unsent = _NOTHING
        self.is_sending = False
        self._state.sender.forget(self)

    # --- what the sender asks ----------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """How much of the message is still to be sent."""
        return len(self._unsent)

    @property
    def window_bytes(self) -> int:
        """How much the runtime accepts on this stream now; may be negative after a SETTINGS change."""
        initial = self._state.runtime_settings.smallest.initial_window_bytes
        return initial + self._runtime_credit_bytes - self._sent_bytes

    def take(self, size_bytes: int) -> memoryview:
        """Returns the next bytes of the message; with the last of them the message is sent."""
        content = self._unsent[:size_bytes]
        self._unsent = self._unsent[size_bytes:]
        self._sent_bytes += size_bytes
        if not self._unsent:
            # Even an empty view keeps the whole message, which the runtime may take long to answer.
            self._unsent = _NOTHING
            self.is_sending = False
            if self._on_sent is not None:
                self._on_sent()
        return content
