"""The message of a held call on its way in: its bytes, their bound, and the credit that lets them come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtimeproxy.http2.frames import MAX_WINDOW_BYTES, ErrorCode, PeerError
from runtimeproxy.relay.budget import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.state import ConnectionState

PREFIX_BYTES: Final = 5
"""Of a gRPC message: one byte of flags, four of length. Source: gRPC over HTTP/2."""

SURPLUS_BYTES: Final = 4096
"""Stream credit at a time for bytes beyond the declared message, which only a broken client sends."""


class MessageIntake:
    """Takes the client's DATA of one held stream, as much as the bound and the budget allow.

    Stream credit for what the runtime's windows do not let the client send is given when the declared length
    is reserved; connection credit is the caller's matter. What is held is charged until it is released:
    small messages to the connection alone, all others to the budget.

    Args:
        state: of the connection.
        stream_id: the stream.
        on_whole: called when the message is there and its memory reserved, possibly within `take`.
        on_late: called when it does not come while others wait for its memory.
    """

    __slots__ = (
        "_expected_bytes",
        "_extra_bytes",
        "_granted_bytes",
        "_held_bytes",
        "_is_receiving",
        "_limit_bytes",
        "_memory",
        "_on_late",
        "_on_whole",
        "_received",
        "_received_flow_bytes",
        "_reservation",
        "_small_bytes",
        "_state",
        "_stream_id",
        "_unreserved_bytes",
        "_waiting_bytes",
        "_whole_bytes",
    )

    def __init__(
        self,
        state: ConnectionState,
        stream_id: int,
        on_whole: Callable[[], None],
        on_late: Callable[[], None],
    ) -> None:
        self._state = state
        self._stream_id = stream_id
        self._on_whole: Callable[[], None] = on_whole
        self._on_late: Callable[[], None] | None = on_late
        self._limit_bytes = state.options.max_message_bytes + PREFIX_BYTES
        self._is_receiving = True
        self._received: bytes | bytearray = b""
        self._received_flow_bytes = 0
        self._expected_bytes = 0
        self._granted_bytes = 0
        self._memory = state.memory
        self._small_bytes = state.memory.budget.small_bytes
        self._reservation: Reservation | None = None
        self._held_bytes = 0
        self._extra_bytes = 0
        self._unreserved_bytes = 0
        self._waiting_bytes = 0
        self._whole_bytes = 0

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
        self._is_receiving = not is_last
        self._add(content)
        if not self._is_within_bound():
            return f"request message is larger than {self._limit_bytes - PREFIX_BYTES} bytes"
        if self._charge():
            return "too many requests wait on this connection"
        if not is_last and not self._expected_bytes:
            self._grant(flow_bytes - len(content))
        elif self._reserve(is_last):
            self._go_on()
        else:
            self._charge()
        return None

    def _add(self, content: bytes) -> None:
        """Keeps the content: a message of one frame as it is, a longer one in one growing buffer."""
        if not self._received:
            self._received = content
        elif isinstance(self._received, bytearray):
            self._received += content
        else:
            self._received = bytearray(self._received)
            self._received += content
        self._held_bytes = len(self._received)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come yet."""
        return not self._received_flow_bytes

    @property
    def is_granted(self) -> bool:
        """Whether the client got stream credit of the relay's, which the runtime knows nothing of."""
        return self._granted_bytes > 0

    def message(self) -> bytes:
        """Returns all that was taken: gRPC prefix and message; there is one copy of it, the one returned."""
        if not isinstance(self._received, bytes):
            self._received = bytes(self._received)
        return self._received

    def replace(self, size_bytes: int) -> None:
        """The received bytes are of no use any more: this much is held instead of them."""
        reservation = self._reservation
        if reservation is not None and not reservation.is_granted:
            # Nobody waits for more any longer.
            self._extra_bytes = max(0, reservation.granted_bytes - self._held_bytes)
        self._received = b""
        self._held_bytes = size_bytes
        total_bytes = size_bytes + self._extra_bytes
        if reservation is None and total_bytes > self._small_bytes:
            reservation = self._reservation = Reservation(self._memory)
        if reservation is not None:
            reservation.hold(total_bytes)
        self._charge()

    def end(self) -> None:
        """The call needs its message no more: memory and budget are free."""
        self._is_receiving = False
        self._on_whole, self._on_late = _nothing, None
        self._received = b""
        self._held_bytes = 0
        self.release()

    def _is_within_bound(self) -> bool:
        """Reads the declared length as soon as it is there."""
        if len(self._received) >= PREFIX_BYTES and not self._expected_bytes:
            self._expected_bytes = PREFIX_BYTES + int.from_bytes(self._received[1:PREFIX_BYTES], "big")
        return max(self._expected_bytes, len(self._received)) <= self._limit_bytes

    # --- memory ------------------------------------------------------------------------------------------

    def _reserve(self, is_last: bool) -> bool:
        """Reserves what the message needs, if it is not small; returns whether it is there already."""
        size_bytes = self._held_bytes if is_last else self._expected_bytes
        if size_bytes < self._held_bytes:
            # More than was declared may become as much as the bound.
            size_bytes = self._held_bytes if self._held_bytes <= self._small_bytes else self._limit_bytes
        reservation = self._reservation
        if reservation is None:
            if size_bytes <= self._small_bytes:
                return True
            reservation = self._reservation = Reservation(self._memory)
            reservation.on_late = self._on_late
        if is_last:
            reservation.on_late = None
        if reservation.size_bytes != size_bytes:
            reservation.ask(size_bytes, self._granted)
            return False
        return reservation.is_granted

    def _granted(self) -> None:
        """The budget has room for this message, which another call's end may have made."""
        self._state.guard(self._go_on)

    def _go_on(self) -> None:
        self._charge()
        if self._is_receiving:
            self._top_up()
        else:
            on_whole, self._on_whole = self._on_whole, _nothing
            on_whole()

    def reserve_extra(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        """Charges what others hold because of the message, instead of what they held before.

        Args:
            size_bytes: all of it together.
            on_granted: called when there is room.
        """
        self._extra_bytes = size_bytes
        total_bytes = self._held_bytes + size_bytes
        if self._reservation is None:
            if total_bytes <= self._small_bytes:
                self._charge()
                on_granted()
                return
            self._reservation = Reservation(self._memory)
            self._charge()

        def granted() -> None:
            self._charge()
            self._state.guard(on_granted)

        self._reservation.ask(total_bytes, granted, is_whole=True)

    def _charge(self) -> bool:
        """Charges the connection for what is held and not granted; returns whether the call is to be refused.

        A small message that is whole is not: rather its client is not read until there is room.
        """
        waiting_bytes = whole_bytes = 0
        if self._reservation is not None:
            waiting_bytes = unreserved_bytes = max(0, self._held_bytes - self._reservation.granted_bytes)
        else:
            unreserved_bytes = self._held_bytes + self._extra_bytes
            if not self._is_receiving and unreserved_bytes <= self._small_bytes:
                whole_bytes = unreserved_bytes
        more_bytes = unreserved_bytes - self._unreserved_bytes
        if not more_bytes and (waiting_bytes, whole_bytes) == (self._waiting_bytes, self._whole_bytes):
            return False
        memory = self._memory
        is_much = memory.charge(
            more_bytes, waiting_bytes - self._waiting_bytes, whole_bytes - self._whole_bytes
        )
        self._unreserved_bytes = unreserved_bytes
        self._waiting_bytes = waiting_bytes
        self._whole_bytes = whole_bytes
        if is_much:
            self._state.wake()
        return more_bytes > 0 and not whole_bytes and memory.is_full

    def release(self) -> None:
        """The budget is free for other messages."""
        self._held_bytes = self._extra_bytes = 0
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        self._charge()

    # --- stream credit -----------------------------------------------------------------------------------

    def grant_prefix(self) -> None:
        """A runtime whose windows start tiny must not keep the declared length from arriving."""
        self._grant_up_to(PREFIX_BYTES - len(self._received))

    def grant_rest(self) -> None:
        """What the client sent and got no stream credit for is given back, so that it can finish."""
        self._grant(self._received_flow_bytes - self._granted_bytes)

    def settings_changed(self) -> None:
        """The stream's window may have changed with the runtime's SETTINGS."""
        if self._is_receiving and not self._expected_bytes:
            self.grant_prefix()
        else:
            self._top_up()

    def _top_up(self) -> None:
        """Tops the client's stream window up to the rest of the message, if that is reserved."""
        if not self._is_receiving or (self._reservation is not None and not self._reservation.is_granted):
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


def _nothing() -> None:
    """Nobody waits for it."""
