"""A held call: its message is taken, shown to the interceptor, and sent on or refused."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.interception import CallHead, Outcome
from runtimeproxy.relay.frames import MAX_WINDOW_BYTES, ErrorCode, PeerError, rst_stream
from runtimeproxy.relay.refusal import refusal
from runtimeproxy.relay.state import SpecialStream
from runtimeproxy.relay.swallowed import SwallowedStream

if TYPE_CHECKING:
    from runtimeproxy.relay.budget import Reservation
    from runtimeproxy.relay.headers import RequestHead
    from runtimeproxy.relay.state import ConnectionState

PREFIX_BYTES: Final = 5
"""Of a gRPC message: one byte of flags, four of length. Source: gRPC over HTTP/2."""

SURPLUS_BYTES: Final = 4096
"""Stream credit at a time for bytes beyond the declared message, which only a broken client sends."""

MAX_OBSERVED_BYTES: Final = 1024 * 1024
"""Of a response that is kept for the records; those of held calls have a few hundred bytes."""


class _Stage(Enum):
    RECEIVING = "receiving"
    DECIDING = "deciding"
    SENDING = "sending"
    SENT = "sent"
    OVER = "over"


class HeldStream(SpecialStream):
    """One held call on one stream; it is also the `Reply` that the interceptor answers with."""

    __slots__ = (
        "_expected_bytes",
        "_granted_bytes",
        "_handler",
        "_has_half_closed",
        "_has_response_headers",
        "_limit_bytes",
        "_received",
        "_received_flow_bytes",
        "_reservation",
        "_response",
        "_response_bytes",
        "_runtime_credit_bytes",
        "_sent_bytes",
        "_stage",
        "_state",
        "_unsent",
        "is_queued",
        "stream_id",
    )

    def __init__(self, state: ConnectionState, stream_id: int, head: RequestHead) -> None:
        self._state = state
        self.stream_id = stream_id
        self.is_queued = False
        self._stage = _Stage.RECEIVING
        self._limit_bytes = state.options.max_message_bytes + PREFIX_BYTES
        self._received = bytearray()
        self._received_flow_bytes = 0
        self._expected_bytes = 0
        self._granted_bytes = 0
        self._reservation: Reservation | None = None
        self._unsent = memoryview(b"")
        self._sent_bytes = 0
        self._runtime_credit_bytes = 0
        self._has_half_closed = False
        self._has_response_headers = False
        self._response = bytearray()
        self._response_bytes = 0
        call = CallHead(head.path, head.timeout_s, head.encoding or "identity")
        self._handler = state.options.interceptor.open(call, self)
        self._grant_prefix()

    @property
    def is_pending(self) -> bool:
        """A held call is waited for until it has its answer."""
        return self._stage is not _Stage.OVER

    # --- the message from the client -------------------------------------------------------------------

    def client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> None:
        """Takes the client's bytes and gives connection credit back at once."""
        self._state.to_client.credit(0, flow_bytes)
        self._received_flow_bytes += flow_bytes
        if flow_bytes and self._received_flow_bytes > self._client_window_bytes():
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond a stream's window")
        if self._stage is not _Stage.RECEIVING:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA after END_STREAM")
        self._received += content
        if is_last:
            self._decide()
        elif self._has_room():
            self._expect(flow_bytes - len(content))

    def _client_window_bytes(self) -> int:
        return self._state.runtime_settings.largest.initial_window_bytes + self._granted_bytes

    def _has_room(self) -> bool:
        """Reads the declared length and refuses what is over the bound."""
        if len(self._received) >= PREFIX_BYTES and not self._expected_bytes:
            self._expected_bytes = PREFIX_BYTES + int.from_bytes(self._received[1:PREFIX_BYTES], "big")
        if max(self._expected_bytes, len(self._received)) <= self._limit_bytes:
            return True
        self._refuse_too_much(f"request message is larger than {self._limit_bytes - PREFIX_BYTES} bytes")
        return False

    def _expect(self, padding_bytes: int) -> None:
        """Sees to it that the client gets the stream credit for the rest of its message."""
        if not self._expected_bytes:
            self._grant(padding_bytes)
        elif self._reserve():
            self._top_up()

    def _reserve(self) -> bool:
        """Reserves memory for what is declared and what is here; returns whether there is room at all."""
        if self._reservation is not None:
            if len(self._received) <= self._reservation.size_bytes:
                return True
            self._release()
        # More than was declared may become as much as the bound: then that is reserved, once.
        surplus = self._expected_bytes < len(self._received)
        size_bytes = self._limit_bytes if surplus else self._expected_bytes
        self._reservation = self._state.options.budget.reserve(size_bytes, self._granted)
        if self._reservation is None:
            self._refuse_too_much("too many large requests at the same time")
        return self._reservation is not None

    def _granted(self) -> None:
        """The budget has room for this message, which another call's end may have made."""
        self._state.guard(self._top_up)

    def _top_up(self) -> None:
        """Tops the client's stream window up to the rest of the message, if that is reserved."""
        if self._stage is not _Stage.RECEIVING or self._reservation is None or not self._reservation.granted:
            return
        rest = self._expected_bytes - len(self._received)
        self._grant_up_to(rest if rest > 0 else SURPLUS_BYTES)

    def _grant_prefix(self) -> None:
        """A runtime whose windows start tiny must not keep the declared length from arriving."""
        self._grant_up_to(PREFIX_BYTES - len(self._received))

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
            self._state.to_client.credit(self.stream_id, size_bytes)

    # --- the decision ------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._has_half_closed = True
        if self._has_room() and self._reserve():
            self._stage = _Stage.DECIDING
            self._handler.message(bytes(self._received))

    def forward(self, data: bytes | None) -> None:
        """Sends the message on, changed or as it came."""
        if self._stage is not _Stage.DECIDING:
            return
        self._stage = _Stage.SENDING
        self._unsent = memoryview(bytes(self._received) if data is None else data)
        self._received = bytearray()
        self._state.guard(self._send)

    def _send(self) -> None:
        self._state.sender.send(self)

    def refuse(self, code: int, text: str) -> None:
        """Ends the call; the runtime has seen its headers but no message, and so has run nothing."""
        if self._stage is _Stage.DECIDING:
            self._state.guard(lambda: self._refuse(code, text))

    def _refuse_too_much(self, text: str) -> None:
        """Refuses a call whose message the interceptor has not seen."""
        self._handler.cancelled()
        self._refuse(StatusCode.RESOURCE_EXHAUSTED, MESSAGE_PREFIX + text)

    def _refuse(self, code: int, text: str) -> None:
        self._finish()
        swallowed = self._swallow(is_refused=True)
        swallowed.has_response_headers = self._has_response_headers
        self._state.to_runtime.own(rst_stream(self.stream_id, ErrorCode.CANCEL))
        self._state.to_client.own(lambda: self._refusal(swallowed, code, text))

    def _refusal(self, swallowed: SwallowedStream, code: int, text: str) -> bytes:
        """Returns the answer as it has to be at the moment when it is written."""
        if swallowed.has_ended:
            return b""
        due = self._state.table_updates.due()
        is_trailers = swallowed.has_response_headers
        answer = refusal(self.stream_id, code, text, due, is_trailers=is_trailers)
        if not self._has_half_closed:
            answer += rst_stream(self.stream_id, ErrorCode.NO_ERROR)
        return answer

    # --- the message to the runtime ----------------------------------------------------------------------

    @property
    def is_sending(self) -> bool:
        """Whether some of the message is still to be sent."""
        return self._stage is _Stage.SENDING

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
            self._stage = _Stage.SENT
            self._release()
        return content

    def runtime_window_update(self, increment_bytes: int) -> None:
        """The runtime's stream credit is the relay's own."""
        self._runtime_credit_bytes += increment_bytes
        if self._stage is _Stage.SENDING:
            self._state.sender.send(self)

    def runtime_settings_changed(self) -> None:
        """The stream's window towards either side may have changed with the runtime's SETTINGS."""
        if self._stage is _Stage.SENDING:
            self._state.sender.send(self)
        elif self._stage is _Stage.RECEIVING and self._reservation is None:
            self._grant_prefix()
        else:
            self._top_up()

    # --- the answer ----------------------------------------------------------------------------------------

    def runtime_headers(self, is_last: bool) -> None:
        """Response headers or trailers pass."""
        self._has_response_headers = True
        if is_last:
            self._answered()

    def runtime_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """The response is observed while it passes."""
        self._response_bytes += len(content)
        if self._response_bytes <= MAX_OBSERVED_BYTES:
            self._response += content
        if is_last:
            self._answered()
        return True

    def _answered(self) -> None:
        """The runtime ended the stream."""
        if self._stage is not _Stage.SENT:
            self._end_early(is_reset=False)
            return
        outcome = self._outcome()
        data = bytes(self._response) if outcome is Outcome.SUCCEEDED else b""
        self._end(outcome, data)

    def _outcome(self) -> Outcome:
        if not self._response_bytes:
            return Outcome.FAILED
        complete = PREFIX_BYTES + int.from_bytes(self._response[1:PREFIX_BYTES], "big")
        is_whole = self._response_bytes == complete == len(self._response)
        return Outcome.SUCCEEDED if is_whole else Outcome.UNKNOWN

    def runtime_reset(self) -> bool:
        """The runtime reset the stream."""
        if self._stage is _Stage.SENT:
            self._end(Outcome.UNKNOWN)
        else:
            self._end_early(is_reset=True)
        return True

    def disowned(self) -> None:
        """The runtime never processed the stream: the client learns it by the same GOAWAY."""
        if self._stage is _Stage.SENT:
            self._end(Outcome.FAILED)
        else:
            self._cancel()
            self._swallow(is_refused=True)

    # --- other ends ----------------------------------------------------------------------------------------

    def client_reset(self) -> bool:
        """The client gave up."""
        if self._stage is _Stage.SENT:
            self._end(Outcome.UNKNOWN)
        else:
            self._cancel()
            self._state.special.pop(self.stream_id, None)
            self._state.sender.go_on()
        self._state.open_streams.discard(self.stream_id)
        return True

    def client_window_update(self) -> bool:
        """Credit for the response passes."""
        return True

    def client_header_block(self, is_last: bool) -> bool:
        """Trailers of a client cannot be relayed around a held message."""
        return False

    def lost(self) -> None:
        """A connection is gone: a message that was sent may have taken effect."""
        if self._stage is _Stage.SENT:
            self._end(Outcome.UNKNOWN)
        else:
            self._cancel()

    def _end_early(self, *, is_reset: bool) -> None:
        """The runtime ended the stream before it had the whole message."""
        self._cancel()
        swallowed = self._swallow(is_refused=False)
        if not is_reset:
            self._state.to_runtime.own(rst_stream(self.stream_id, ErrorCode.CANCEL))
            if not self._has_half_closed:
                swallowed.takes_rest = True
                self._grant(self._received_flow_bytes - self._granted_bytes)

    def _end(self, outcome: Outcome, data: bytes = b"") -> None:
        self._finish()
        self._state.special.pop(self.stream_id, None)
        self._handler.responded(outcome, data)

    def _cancel(self) -> None:
        if self._stage is not _Stage.OVER:
            self._finish()
            self._handler.cancelled()

    def _finish(self) -> None:
        self._stage = _Stage.OVER
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self._release()

    def _release(self) -> None:
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _swallow(self, *, is_refused: bool) -> SwallowedStream:
        swallowed = SwallowedStream(self._state, self.stream_id, is_refused)
        self._state.open_streams.discard(self.stream_id)
        self._state.swallow(self.stream_id, swallowed)
        self._state.sender.go_on()
        return swallowed
