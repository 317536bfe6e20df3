"""The message of a held call on its way in: its bytes, their bound, and the credit that lets them come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtimeproxy.http2.frames import MAX_WINDOW_BYTES, ErrorCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.budget import Reservation
    from runtimeproxy.relay.state import ConnectionState

PREFIX_BYTES: Final = 5
"""Of a gRPC message: one byte of flags, four of length. Source: gRPC over HTTP/2."""

SURPLUS_BYTES: Final = 4096
"""Stream credit at a time for bytes beyond the declared message, which only a broken client sends."""


class MessageIntake:
    """Takes the client's DATA of one held stream, as much as the bound and the budget allow.

    Stream credit for what the runtime's windows do not let the client send is given when the declared length
    is reserved; connection credit is the caller's matter.
    """

    __slots__ = (
        "_expected_bytes",
        "_granted_bytes",
        "_is_receiving",
        "_limit_bytes",
        "_on_late",
        "_received",
        "_received_flow_bytes",
        "_reservation",
        "_state",
        "_stream_id",
    )

    def __init__(self, state: ConnectionState, stream_id: int, on_late: Callable[[], None]) -> None:
        self._state = state
        self._stream_id = stream_id
        self._on_late: Callable[[], None] | None = on_late
        self._limit_bytes = state.options.max_message_bytes + PREFIX_BYTES
        self._is_receiving = True
        self._received = bytearray()
        self._received_flow_bytes = 0
        self._expected_bytes = 0
        self._granted_bytes = 0
        self._reservation: Reservation | None = None

    # --- bytes -------------------------------------------------------------------------------------------

    def take(self, content: bytes, flow_bytes: int, is_last: bool) -> str | None:
        """Takes what one DATA frame brings; returns why the call is to be refused, None if it goes on.

        Args:
            content: the frame's payload without padding.
            flow_bytes: what it counts in the windows, padding included.
            is_last: whether it ends the message.

        Raises:
            PeerError: the client sent more than it may.
        """
        self._received_flow_bytes += flow_bytes
        window_bytes = self._state.runtime_settings.largest.initial_window_bytes + self._granted_bytes
        if flow_bytes and self._received_flow_bytes > window_bytes:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond a stream's window")
        if not self._is_receiving:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA after END_STREAM")
        self._received += content
        if not self._is_within_bound():
            return f"request message is larger than {self._limit_bytes - PREFIX_BYTES} bytes"
        if not is_last and not self._expected_bytes:
            self._grant(flow_bytes - len(content))
            return None
        if not self._reserve(is_last):
            return "too many large requests at the same time"
        self._is_receiving = not is_last
        if self._reservation is not None:
            self._reservation.on_late = self._on_late
        self._top_up()
        return None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come yet."""
        return not self._received_flow_bytes

    @property
    def is_granted(self) -> bool:
        """Whether the client got stream credit of the relay's, which the runtime knows nothing of."""
        return self._granted_bytes > 0

    def message(self) -> bytes:
        """Returns all that was taken: gRPC prefix and message."""
        return bytes(self._received)

    def drop(self) -> None:
        """The bytes are of no use any more."""
        self._received = bytearray()

    def end(self) -> None:
        """The call needs its message no more: memory and budget are free."""
        self._is_receiving = False
        self._on_late = None
        self.drop()
        self.release()

    def _is_within_bound(self) -> bool:
        """Reads the declared length as soon as it is there."""
        if len(self._received) >= PREFIX_BYTES and not self._expected_bytes:
            self._expected_bytes = PREFIX_BYTES + int.from_bytes(self._received[1:PREFIX_BYTES], "big")
        return max(self._expected_bytes, len(self._received)) <= self._limit_bytes

    # --- budget ------------------------------------------------------------------------------------------

    def _reserve(self, is_last: bool) -> bool:
        """Reserves memory for what is declared and what is here; returns whether there is room at all."""
        if self._reservation is not None:
            if len(self._received) <= self._reservation.size_bytes:
                return True
            self.release()
        # More than was declared may become as much as the bound: then that is reserved, once.
        surplus = self._expected_bytes < len(self._received)
        size_bytes = self._limit_bytes if surplus else self._expected_bytes
        size_bytes = len(self._received) if is_last else size_bytes
        # Without stream credit no more than this can come.
        window_bytes = self._state.runtime_settings.largest.initial_window_bytes
        present_bytes = max(len(self._received), window_bytes)
        self._reservation = self._state.options.budget.reserve(size_bytes, self._granted, present_bytes)
        return self._reservation is not None

    def _granted(self) -> None:
        """The budget has room for this message, which another call's end may have made."""
        self._state.guard(self._top_up)

    def release(self) -> None:
        """The budget is free for other messages."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    # --- stream credit -----------------------------------------------------------------------------------

    def grant_prefix(self) -> None:
        """A runtime whose windows start tiny must not keep the declared length from arriving."""
        self._grant_up_to(PREFIX_BYTES - len(self._received))

    def grant_rest(self) -> None:
        """What the client sent and got no stream credit for is given back, so that it can finish."""
        self._grant(self._received_flow_bytes - self._granted_bytes)

    def settings_changed(self) -> None:
        """The stream's window may have changed with the runtime's SETTINGS."""
        if self._is_receiving and self._reservation is None:
            self.grant_prefix()
        else:
            self._top_up()

    def _top_up(self) -> None:
        """Tops the client's stream window up to the rest of the message, if that is reserved."""
        if not self._is_receiving or self._reservation is None or not self._reservation.granted:
            return
        rest = self._expected_bytes - len(self._received)
        self._grant_up_to(rest if rest > 0 else SURPLUS_BYTES)

    def _grant_up_to(self, size_bytes: int) -> None:
        settings = self._state.runtime_settings
        given = self._granted_bytes - self._received_flow_bytes
        missing = size_bytes - (settings.smallest.initial_window_bytes + given)
        # A window above 2^31-1 is an error, and the client may count with the larger value already.
        room = MAX_WINDOW_BYTES - (settings.largest.initial_window_bytes + given)
        self._grant(min(missing, room))

    def _grant(self, size_bytes: int) -> None:
        if size_bytes > 0:
            self._granted_bytes += size_bytes
            self._state.to_client.credit(self._stream_id, size_bytes)
