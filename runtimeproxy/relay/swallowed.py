"""A stream that ended at the relay: what either side still sends on it goes no further."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtimeproxy.relay.state import SpecialStream

if TYPE_CHECKING:
    from runtimeproxy.relay.state import ConnectionState


class SwallowedStream(SpecialStream):
    """After a refusal, or after the runtime ended a held call before it had the message.

    Header blocks of both sides are still forwarded, so that the HPACK states stay in step.

    Attributes:
        has_response_headers: whether a header block of the runtime passed.
        has_ended: whether one of them ended the stream.
        takes_rest: whether the client has its answer, and a message to finish.
    """

    __slots__ = ("_is_refused", "_state", "_stream_id", "has_ended", "has_response_headers", "takes_rest")

    def __init__(self, state: ConnectionState, stream_id: int, is_refused: bool) -> None:
        self._state = state
        self._stream_id = stream_id
        self._is_refused = is_refused
        self.has_response_headers = False
        self.has_ended = False
        self.takes_rest = False

    def client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """Gives the credit back: the stream's too where the client may still finish its message."""
        self._state.to_client.credit(0, flow_bytes)
        if self.takes_rest and not is_last:
            self._state.to_client.credit(self._stream_id, flow_bytes)
        return False

    def client_reset(self) -> bool:
        """The runtime's side of the stream is closed already."""
        return False

    def client_window_update(self) -> bool:
        """As for a reset."""
        return False

    def client_header_block(self, is_last: bool) -> bool:
        """Forwarded for its HPACK state alone."""
        return True

    def runtime_headers(self, is_last: bool) -> None:
        """Forwarded for their HPACK state alone."""
        self.has_response_headers = True
        self.has_ended = self.has_ended or is_last

    def runtime_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """After a refusal the client has its answer: the runtime gets its connection credit back."""
        if not self._is_refused:
            return True
        self._state.to_runtime.credit(0, flow_bytes)
        return False

    def runtime_window_update(self, increment_bytes: int) -> None:
        """Nothing more is sent on this stream."""

    def runtime_settings_changed(self) -> None:
        """As for credit."""

    def runtime_reset(self) -> bool:
        """After a refusal the client has closed the stream already."""
        self.takes_rest = False
        return not self._is_refused

    def disowned(self) -> None:
        """Nothing is pending."""

    def lost(self) -> None:
        """Nothing is pending."""
