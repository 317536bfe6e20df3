"""An intercepted call: its message is held back, shown to the interceptor, and sent on or refused."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Final

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.frontends.cri_proxy.interception import PREFIX_BYTES, Outcome
from runtimeproxy.frontends.cri_proxy.relay.budget import Reservation
from runtimeproxy.frontends.cri_proxy.relay.error_response import error_response
from runtimeproxy.frontends.cri_proxy.relay.flow_control import NOTHING_UNSENT
from runtimeproxy.http2.frames import MAX_WINDOW_BYTES, ErrorCode, PeerError, rst_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead
    from runtimeproxy.frontends.cri_proxy.relay.counts import MethodCounts
    from runtimeproxy.frontends.cri_proxy.relay.streams import Streams

MAX_OBSERVED_BYTES: Final = 1024 * 1024
"""Of a response that is kept for the records; those of intercepted calls have a few hundred bytes."""
SURPLUS_BYTES: Final = 4096
"""Stream credit at a time for bytes beyond the declared message, which only a broken client sends."""


class DiscardedStream:
    """After a refusal, or after the runtime ended an intercepted call before it had the message.

    What either side still sends goes no further, but for header blocks, which keep the HPACK states in step.
    A `SpecialStream`.

    Attributes:
        has_response_headers: whether a header block of the runtime passed.
        has_ended: whether one of them ended the stream.
        takes_rest: whether the client has its answer, and a message to finish.
    """

    __slots__ = ("_is_refused", "_relay", "_stream_id", "has_ended", "has_response_headers", "takes_rest")

    is_pending: Final = False

    def __init__(self, relay: Streams, stream_id: int, *, is_refused: bool) -> None:
        self._relay = relay
        self._stream_id = stream_id
        self._is_refused = is_refused
        self.has_response_headers = False
        self.has_ended = False
        self.takes_rest = False

    def on_client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """Gives the credit back: the stream's too where the client may still finish its message."""
        self._relay.to_client.credit(0, flow_bytes)
        if self.takes_rest and not is_last:
            self._relay.to_client.credit(self._stream_id, flow_bytes)
        return False

    def on_client_reset(self) -> bool:
        return False  # the runtime's side of the stream is closed already

    def on_client_window_update(self) -> bool:
        return False

    def on_client_headers(self) -> bool:
        return True

    def on_runtime_headers(self, is_last: bool) -> None:
        self.has_response_headers = True
        self.has_ended = self.has_ended or is_last

    def on_runtime_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """After a refusal the client has its answer: the runtime gets its connection credit back."""
        if not self._is_refused:
            return True
        self._relay.to_runtime.credit(0, flow_bytes)
        return False

    def on_runtime_window_update(self, increment_bytes: int) -> None:
        return

    def on_runtime_settings(self) -> None:
        return

    def on_runtime_reset(self) -> bool:
        self.takes_rest = False
        return not self._is_refused  # after a refusal the client has closed the stream already

    def on_not_processed(self) -> None:
        return

    def on_connection_lost(self) -> None:
        return


class _Stage(Enum):
    RECEIVING = "receiving"
    DECIDING = "deciding"
    SENDING = "sending"
    SENT = "sent"
    OVER = "over"


class InterceptedStream:
    """One intercepted call: a `SpecialStream`, and the `Reply` that the interceptor answers with."""

    __slots__ = (
        "_body",
        "_counts",
        "_frame_bytes",
        "_handler",
        "_has_half_closed",
        "_has_passed",
        "_has_response_headers",
        "_held_since_s",
        "_kept_bytes",
        "_relay",
        "_response",
        "_response_bytes",
        "_stage",
        "credit_bytes",
        "is_queued",
        "is_sending",
        "stream_id",
        "unsent",
    )

    def __init__(self, relay: Streams, stream_id: int, call: CallHead, counts: MethodCounts) -> None:
        self._relay = relay
        self._counts = counts
        self._held_since_s = 0.0
        self._kept_bytes = 0
        self.stream_id = stream_id
        self._stage = _Stage.RECEIVING
        self._body = RequestBody(relay, self)
        self._has_half_closed = False
        self._has_response_headers = False
        self._frame_bytes = 0
        """Of the DATA frame that was just read, if it has neither passed nor been credited yet."""
        self._has_passed = False
        self._response = bytearray()
        self._response_bytes = 0
        self.is_sending = False
        self.is_queued = False
        self.unsent = NOTHING_UNSENT
        self.credit_bytes = 0
        self._handler: CallHandler | None = relay.options.interceptor.open(call, self)
        if relay.runtime_settings.smallest.initial_window_bytes < PREFIX_BYTES:
            # The declared length is to arrive all the same.
            self._body.grant_up_to(PREFIX_BYTES)

    @property
    def is_pending(self) -> bool:
        return self._stage is not _Stage.OVER

    # --- the message -------------------------------------------------------------------------------------

    def on_client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """Takes the client's bytes; the whole message goes to the interceptor.

        A message of one frame that is sent on at once, as it came, is not taken at all: its frame passes.
        """
        if is_last and not self._body.flow_bytes:
            self._frame_bytes = flow_bytes
        else:
            self._relay.to_client.credit(0, flow_bytes)
        self._has_half_closed = is_last
        refusal = self._body.take(content, flow_bytes, is_last)
        if refusal is not None:
            self._turn_away(refusal)
        if self._frame_bytes:
            self._relay.to_client.credit(0, self._frame_bytes)
            self._frame_bytes = 0
        return self._has_passed

    def on_message(self) -> None:
        if self._handler is not None:
            self._stage = _Stage.DECIDING
            self._held_since_s = time.monotonic()
            # One copy is enough, here and in the handler.
            self._body.content = content = bytes(self._body.content)
            self._handler.on_message(content)

    def on_late(self) -> None:
        # The message does not come while others wait for its memory.
        if self._stage is _Stage.RECEIVING:
            reason = "the request did not come while others wait for its memory"
            self._relay.guard(self._turn_away, reason)

    def _turn_away(self, reason: str) -> None:
        handler = self._finish()
        if handler is not None:
            handler.on_cancelled()
        self._refuse(StatusCode.RESOURCE_EXHAUSTED, MESSAGE_PREFIX + reason)

    # --- the decision ------------------------------------------------------------------------------------

    def forward(self, data: bytes | None) -> None:
        """Sends the message on, changed or as it came."""
        if self._stage is not _Stage.DECIDING:
            return
        self._counts.held.observe(time.monotonic() - self._held_since_s)
        relay, body, flow = self._relay, self._body, self._relay.flow
        # A message of one frame, which was just read: that frame may go to the runtime, as it is or changed.
        if self._frame_bytes and not body.granted_bytes:
            if data is not None:
                rest_bytes = flow.send_instead(self, data, self._frame_bytes)
                if rest_bytes >= 0:
                    self._frame_bytes = rest_bytes
                    self.on_sent()
                    return
            elif relay.to_runtime.is_open and not flow.waiting and self._frame_bytes <= flow.window_bytes:
                flow.window_bytes -= self._frame_bytes
                self._frame_bytes = 0
                self._has_passed = True
                self.on_sent()
                return
        self._stage = _Stage.SENDING
        self.unsent = memoryview(body.content if data is None else data)
        body.replace(len(self.unsent))
        self.is_sending = True
        relay.guard(flow.send, self)

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        if self._stage in (_Stage.DECIDING, _Stage.SENDING):
            self._body.reserve_extra(size_bytes, on_granted)

    def keep(self, size_bytes: int) -> bool:
        """Charges the memory that the handler holds until the answer; returns whether there is room."""
        if self._stage is not _Stage.DECIDING or self._kept_bytes or not self._relay.memory.keep(size_bytes):
            return False
        self._kept_bytes = size_bytes
        return True

    def on_sent(self) -> None:
        """The runtime has the whole message."""
        self._stage = _Stage.SENT
        self._body.close()

    def refuse(self, code: int, text: str) -> None:
        # The runtime has seen the headers but no message, and so has run nothing.
        if self._stage is _Stage.DECIDING:
            self._counts.held.observe(time.monotonic() - self._held_since_s)
            self._relay.guard(self._refuse, code, text)

    def _refuse(self, code: int, text: str) -> None:
        self._counts.refused[code] += 1
        self._finish()
        discarded = self._discard(is_refused=True)
        discarded.has_response_headers = self._has_response_headers
        self._relay.to_runtime.send(rst_stream(self.stream_id, ErrorCode.CANCEL))
        self._relay.to_client.send(lambda: self._refusal(discarded, code, text))

    def _refusal(self, discarded: DiscardedStream, code: int, text: str) -> bytes:
        """Returns the answer as it has to be at the moment when it is written."""
        if discarded.has_ended:
            return b""
        sizes = self._relay.table_updates.take()
        is_trailers = discarded.has_response_headers
        answer = error_response(self.stream_id, code, text, sizes, is_trailers=is_trailers)
        if not self._has_half_closed:
            answer += rst_stream(self.stream_id, ErrorCode.NO_ERROR)
        return answer

    # --- windows -----------------------------------------------------------------------------------------

    def on_runtime_window_update(self, increment_bytes: int) -> None:
        self.credit_bytes += increment_bytes
        self._relay.flow.send(self)

    def on_runtime_settings(self) -> None:
        """The stream's window towards either side may have changed."""
        self._relay.flow.send(self)
        self._body.on_runtime_settings()

    def on_client_window_update(self) -> bool:
        return True

    # --- the answer --------------------------------------------------------------------------------------

    def on_runtime_headers(self, is_last: bool) -> None:
        """Response headers or trailers pass."""
        self._has_response_headers = True
        if is_last:
            self._on_answered()

    def on_runtime_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """The response is observed while it passes."""
        self._response_bytes += len(content)
        if self._response_bytes <= MAX_OBSERVED_BYTES:
            self._response += content
        if is_last:
            self._on_answered()
        return True

    def _on_answered(self) -> None:
        """The runtime ended the stream."""
        if self._stage is not _Stage.SENT:
            self._end_early(is_reset=False)
            return
        if not self._response_bytes:
            self._end(Outcome.FAILED)
            return
        whole_bytes = PREFIX_BYTES + int.from_bytes(self._response[1:PREFIX_BYTES], "big")
        if self._response_bytes == whole_bytes == len(self._response):
            self._end(Outcome.SUCCEEDED, bytes(self._response))
        else:
            self._end(Outcome.UNKNOWN)

    def on_runtime_reset(self) -> bool:
        if self._stage is _Stage.SENT:
            self._end(Outcome.UNKNOWN)
        else:
            self._end_early(is_reset=True)
        return True

    def on_not_processed(self) -> None:
        # The client learns it by the same GOAWAY.
        if self._stage is _Stage.SENT:
            self._end(Outcome.FAILED)
        else:
            self._cancel()
            self._discard(is_refused=True)

    # --- other ends --------------------------------------------------------------------------------------

    def on_client_reset(self) -> bool:
        if self._stage is _Stage.SENT:
            self._end(Outcome.UNKNOWN)
        else:
            self._cancel()
            self._relay.special_streams.pop(self.stream_id, None)
            self._relay.flow.pump_waiting()
        self._relay.open_streams.discard(self.stream_id)
        return True

    def on_client_headers(self) -> bool:
        return False  # trailers of a client cannot be relayed around a message that is held back

    def on_connection_lost(self) -> None:
        # A message that was sent may have taken effect.
        if self._stage is _Stage.SENT:
            self._end(Outcome.UNKNOWN)
        else:
            self._cancel()

    def _end_early(self, *, is_reset: bool) -> None:
        """The runtime ended the stream before it had the whole message."""
        self._cancel()
        discarded = self._discard(is_refused=False)
        if not is_reset:
            self._relay.to_runtime.send(rst_stream(self.stream_id, ErrorCode.CANCEL))
            if not self._has_half_closed:
                discarded.takes_rest = True
                self._body.grant_rest()

    def _end(self, outcome: Outcome, data: bytes = b"") -> None:
        handler = self._finish()
        self._counts.ended[outcome] += 1
        self._relay.special_streams.pop(self.stream_id, None)
        if handler is not None:
            handler.on_response(outcome, data)

    def _cancel(self) -> None:
        self._counts.cancelled += 1
        handler = self._finish()
        if handler is not None:
            handler.on_cancelled()

    def _finish(self) -> CallHandler | None:
        """Drops all references to this stream, for no collector has to find it; returns the handler, once."""
        handler, self._handler = self._handler, None
        self._stage = _Stage.OVER
        if self.is_sending:
            self._relay.flow.stop(self)
        self._body.close()
        if self._kept_bytes:
            self._relay.memory.forget(self._kept_bytes)
            self._kept_bytes = 0
        return handler

    def _discard(self, *, is_refused: bool) -> DiscardedStream:
        discarded = DiscardedStream(self._relay, self.stream_id, is_refused=is_refused)
        self._relay.open_streams.discard(self.stream_id)
        self._relay.discard(self.stream_id, discarded)
        # DATA that waited behind this stream's message may go on.
        self._relay.flow.pump_waiting()
        return discarded


class RequestBody:
    """The message of an intercepted call on its way in: its bytes, its memory, and the credit for it.

    Stream credit beyond the runtime's windows is given when the declared length is reserved; connection
    credit is the stream's matter. What is held is charged until it is released: small messages to the
    connection alone, all others to the budget.

    Args:
        stream: gets `on_message` when the message is there and its memory reserved, possibly within `take`,
            or `on_late` when it does not come while others wait for its memory.

    Attributes:
        content: all that was taken and is of use: gRPC prefix and message.
        flow_bytes: how much has come, padding included.
        granted_bytes: stream credit that the client got of the relay, which the runtime knows nothing of.
    """

    __slots__ = (
        "_expected_bytes",
        "_extra_bytes",
        "_held_bytes",
        "_is_receiving",
        "_limit_bytes",
        "_memory",
        "_relay",
        "_reservation",
        "_small_bytes",
        "_stream",
        "_stream_id",
        "_unreserved_bytes",
        "_waiting_bytes",
        "_whole_bytes",
        "content",
        "flow_bytes",
        "granted_bytes",
    )

    def __init__(self, relay: Streams, stream: InterceptedStream) -> None:
        self._relay = relay
        self._stream: InterceptedStream | None = stream
        self._stream_id = stream.stream_id
        self._limit_bytes = relay.options.max_message_bytes + PREFIX_BYTES
        self._is_receiving = True
        self.content: bytes | bytearray = b""
        self.flow_bytes = 0
        self.granted_bytes = 0
        self._expected_bytes = 0
        self._memory = relay.memory
        self._small_bytes = relay.memory.budget.small_bytes
        self._reservation: Reservation | None = None
        self._held_bytes = 0
        self._extra_bytes = 0
        self._unreserved_bytes = 0
        self._waiting_bytes = 0
        self._whole_bytes = 0

    # --- bytes -------------------------------------------------------------------------------------------

    def take(self, content: bytes, flow_bytes: int, is_last: bool) -> str | None:
        """Takes the content of one DATA frame; returns why the call is to be refused, None if it goes on.

        `flow_bytes`: its size in the windows, padding included. `is_last`: whether it ends the message.

        Raises:
            PeerError: the client sent more than it may.
        """
        self.flow_bytes += flow_bytes
        window_bytes = self._relay.runtime_settings.largest.initial_window_bytes + self.granted_bytes
        if flow_bytes and self.flow_bytes > window_bytes:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond a stream's window")
        if not self._is_receiving:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "DATA after END_STREAM")
        self._is_receiving = not is_last
        if is_last and not self.content and self._take_short(content):
            return None
        self._append(content)
        self._held_bytes = len(self.content)
        if self._held_bytes >= PREFIX_BYTES and not self._expected_bytes:
            self._expected_bytes = PREFIX_BYTES + int.from_bytes(self.content[1:PREFIX_BYTES], "big")
        if max(self._expected_bytes, self._held_bytes) > self._limit_bytes:
            self._relay.options.counts.too_large += 1
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

    def _take_short(self, content: bytes) -> bool:
        """Takes a whole message if it needs no reservation, as nearly all; returns whether it does not.

        It is charged if it is held, not if it is decided at once.
        """
        size_bytes = len(content)
        if size_bytes > self._small_bytes or size_bytes > self._limit_bytes:
            return False
        if PREFIX_BYTES + int.from_bytes(content[1:PREFIX_BYTES], "big") > size_bytes:
            return False
        self.content, self._held_bytes = content, size_bytes
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.on_message()
        if self._held_bytes:
            self._charge()
        return True

    def _append(self, content: bytes) -> None:
        if not self.content:
            self.content = content
        elif isinstance(self.content, bytearray):
            self.content += content
        else:
            self.content = bytearray(self.content) + content

    def replace(self, size_bytes: int) -> None:
        """The received bytes are of no use any more: this much is held instead of them."""
        reservation = self._reservation
        if reservation is not None and not reservation.is_granted:
            # What was not granted is not needed any longer.
            self._extra_bytes = max(0, reservation.granted_bytes - self._held_bytes)
        self.content = b""
        self._held_bytes = size_bytes
        total_bytes = size_bytes + self._extra_bytes
        if reservation is None and total_bytes > self._small_bytes:
            reservation = self._reservation = Reservation(self._memory)
        if reservation is not None:
            reservation.hold(total_bytes)
        self._charge()

    def close(self) -> None:
        """The call needs its message no more: memory and budget are free."""
        self._is_receiving = False
        self._stream = None
        self.content = b""
        self._held_bytes = self._extra_bytes = 0
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        if self._unreserved_bytes or self._waiting_bytes:
            self._charge()

    # --- memory ------------------------------------------------------------------------------------------

    def _reserve(self, is_last: bool) -> bool:
        """Reserves the memory of the message, if it is not small; returns whether it is there already."""
        size_bytes = self._held_bytes if is_last else self._expected_bytes
        if size_bytes < self._held_bytes:
            # More than was declared may become as much as the bound.
            size_bytes = self._held_bytes if self._held_bytes <= self._small_bytes else self._limit_bytes
        reservation = self._reservation
        if reservation is None:
            if size_bytes <= self._small_bytes:
                return True
            reservation = self._reservation = Reservation(self._memory)
            reservation.on_late = self._stream.on_late if self._stream is not None else None
        if is_last:
            reservation.on_late = None
        if reservation.size_bytes != size_bytes:
            reservation.ask(size_bytes, self._on_granted)
            return False
        return reservation.is_granted

    def _on_granted(self) -> None:
        # Another call's end may have made the room.
        self._relay.guard(self._go_on)

    def _go_on(self) -> None:
        self._charge()
        if self._is_receiving:
            self._top_up()
        elif self._stream is not None:
            stream, self._stream = self._stream, None
            stream.on_message()

    def reserve_extra(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        """Charges the memory that the handler holds for the message, in place of an earlier amount."""
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
            self._relay.guard(on_granted)

        self._reservation.ask(total_bytes, granted, is_whole=True)

    def _charge(self) -> bool:
        """Charges the connection for bytes held without a grant; returns whether the call is to be refused.

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
            self._relay.wake()
        return more_bytes > 0 and not whole_bytes and memory.is_full

    # --- stream credit -----------------------------------------------------------------------------------

    def grant_rest(self) -> None:
        # So that the client can finish.
        self._grant(self.flow_bytes - self.granted_bytes)

    def on_runtime_settings(self) -> None:
        if self._is_receiving and not self._expected_bytes:
            self.grant_up_to(PREFIX_BYTES - len(self.content))
        else:
            self._top_up()

    def _top_up(self) -> None:
        if self._is_receiving and (self._reservation is None or self._reservation.is_granted):
            rest_bytes = self._expected_bytes - len(self.content)
            self.grant_up_to(rest_bytes if rest_bytes > 0 else SURPLUS_BYTES)

    def grant_up_to(self, size_bytes: int) -> None:
        """Tops the client's stream window up to this much."""
        settings = self._relay.runtime_settings
        given_bytes = self.granted_bytes - self.flow_bytes
        missing_bytes = size_bytes - (settings.smallest.initial_window_bytes + given_bytes)
        # A window above 2^31-1 is an error, and the client may rely on the larger value already.
        room_bytes = MAX_WINDOW_BYTES - (settings.largest.initial_window_bytes + given_bytes)
        if missing_bytes > 0:
            self._grant(min(missing_bytes, room_bytes))

    def _grant(self, size_bytes: int) -> None:
        if size_bytes > 0:
            self.granted_bytes += size_bytes
            self._relay.to_client.credit(self._stream_id, size_bytes)
