"""A held call: its message is held back, shown to the interceptor, and sent on or refused."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.http2.frames import ErrorCode, rst_stream
from runtimeproxy.interception import CallHead, Outcome
from runtimeproxy.relay.intake import PREFIX_BYTES, MessageIntake
from runtimeproxy.relay.own_message import OwnMessage
from runtimeproxy.relay.refusal import refusal
from runtimeproxy.relay.state import SpecialStream
from runtimeproxy.relay.swallowed import SwallowedStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.interception import CallHandler
    from runtimeproxy.relay.headers import RequestHead
    from runtimeproxy.relay.state import ConnectionState

MAX_OBSERVED_BYTES: Final = 1024 * 1024
"""Of a response that is kept for the records; those of held calls have a few hundred bytes."""


class _Nobody:
    """Stands for the handler of a call that is over, which is told nothing more."""

    def message(self, data: bytes) -> None:
        """Nobody reads it."""

    def cancelled(self) -> None:
        """There is no work to stop."""

    def responded(self, outcome: Outcome, data: bytes) -> None:
        """It was told already."""


_NOBODY: Final = _Nobody()


class _Stage(Enum):
    RECEIVING = "receiving"
    DECIDING = "deciding"
    SENDING = "sending"
    SENT = "sent"
    OVER = "over"


class HeldStream(SpecialStream):
    """One held call on one stream; it is also the `Reply` that the interceptor answers with."""

    __slots__ = (
        "_frame_bytes",
        "_handler",
        "_has_half_closed",
        "_has_passed",
        "_has_response_headers",
        "_intake",
        "_own",
        "_response",
        "_response_bytes",
        "_stage",
        "_state",
        "stream_id",
    )

    def __init__(self, state: ConnectionState, stream_id: int, head: RequestHead) -> None:
        self._state = state
        self.stream_id = stream_id
        self._stage = _Stage.RECEIVING
        self._intake = MessageIntake(state, stream_id, self._whole, self._late)
        self._own = OwnMessage(state, stream_id, self._sent)
        self._has_half_closed = False
        self._has_response_headers = False
        self._frame_bytes = 0
        self._has_passed = False
        self._response = bytearray()
        self._response_bytes = 0
        call = CallHead(head.path, head.timeout_s, head.encoding or "identity", connection=state)
        self._handler: CallHandler = state.options.interceptor.open(call, self)
        self._intake.grant_prefix()

    @property
    def is_pending(self) -> bool:
        """A held call is waited for until it has its answer."""
        return self._stage is not _Stage.OVER

    # --- the decision ------------------------------------------------------------------------------------

    def client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """Takes the client's bytes; the whole message goes to the interceptor.

        A message of one frame that is sent on at once, as it came, is not taken at all: its frame passes.
        """
        self._frame_bytes = flow_bytes
        if not (is_last and self._intake.is_empty):
            self._take_frame()
        self._has_half_closed = is_last
        too_much = self._intake.take(content, flow_bytes, is_last)
        if too_much is not None:
            self._turn_away(too_much)
        self._take_frame()
        return self._has_passed

    def _whole(self) -> None:
        """The message is there, and its memory."""
        self._stage = _Stage.DECIDING
        self._handler.message(self._intake.message())

    def _take_frame(self) -> None:
        """Gives the connection credit of the frame back, unless that has passed or was taken before."""
        taken_bytes, self._frame_bytes = self._frame_bytes, 0
        self._state.to_client.credit(0, taken_bytes)

    def _may_pass(self) -> bool:
        """Whether the message is one frame, which was just read and may go to the runtime now."""
        state = self._state
        is_free = state.is_open and not state.sender.waiting and not self._intake.is_granted
        return is_free and 0 < self._frame_bytes <= state.credit.window_bytes

    def _late(self) -> None:
        if self._stage is _Stage.RECEIVING:
            why = "the request did not come while others wait for its memory"
            self._state.guard(lambda: self._turn_away(why))

    def _turn_away(self, why: str) -> None:
        self._handler.cancelled()
        self._refuse(StatusCode.RESOURCE_EXHAUSTED, MESSAGE_PREFIX + why)

    def forward(self, data: bytes | None) -> None:
        """Sends the message on, changed or as it came."""
        if self._stage is not _Stage.DECIDING:
            return
        if data is None and self._may_pass():
            self._state.credit.window_bytes -= self._frame_bytes
            self._frame_bytes = 0
            self._has_passed = True
            self._sent()
            return
        self._stage = _Stage.SENDING
        message = self._intake.message() if data is None else data
        self._intake.replace(len(message))
        self._state.guard(lambda: self._own.start(message))

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        """Charges what the handler holds beside the message."""
        if self._stage in (_Stage.DECIDING, _Stage.SENDING):
            self._intake.reserve_extra(size_bytes, on_granted)

    def _sent(self) -> None:
        """The runtime has the whole message."""
        self._stage = _Stage.SENT
        self._intake.end()

    def refuse(self, code: int, text: str) -> None:
        """Ends the call; the runtime has seen its headers but no message, and so has run nothing."""
        if self._stage is _Stage.DECIDING:
            self._state.guard(lambda: self._refuse(code, text))

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

    # --- windows -----------------------------------------------------------------------------------------

    def runtime_window_update(self, increment_bytes: int) -> None:
        """The runtime's stream credit is the relay's own."""
        self._own.credit(increment_bytes)

    def runtime_settings_changed(self) -> None:
        """The stream's window towards either side may have changed with the runtime's SETTINGS."""
        self._own.go_on()
        self._intake.settings_changed()

    def client_window_update(self) -> bool:
        """Credit for the response passes."""
        return True

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
                self._intake.grant_rest()

    def _end(self, outcome: Outcome, data: bytes = b"") -> None:
        handler = self._finish()
        self._state.special.pop(self.stream_id, None)
        handler.responded(outcome, data)

    def _cancel(self) -> None:
        if self._stage is not _Stage.OVER:
            self._finish().cancelled()

    def _finish(self) -> CallHandler:
        """Lets go of all that knows this stream, so that no collector has to find it; returns the handler."""
        handler, self._handler = self._handler, _NOBODY
        self._stage = _Stage.OVER
        self._own.drop()
        self._intake.end()
        return handler

    def _swallow(self, *, is_refused: bool) -> SwallowedStream:
        swallowed = SwallowedStream(self._state, self.stream_id, is_refused)
        self._state.open_streams.discard(self.stream_id)
        self._state.swallow(self.stream_id, swallowed)
        self._state.sender.go_on()
        return swallowed
