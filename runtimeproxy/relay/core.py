"""One relayed connection without sockets: bytes in from either side, bytes out to both."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import ErrorCode
from runtimeproxy.relay.data import DataSender
from runtimeproxy.relay.refusal import refusal
from runtimeproxy.relay.request import RequestDirection
from runtimeproxy.relay.response import ResponseDirection
from runtimeproxy.relay.state import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.state import RelayOptions, SpecialStream, Upstream


class RelayCore:
    """The HTTP/2 side of one client connection and its runtime connection.

    The owner feeds `client_data` and `runtime_data`, writes what is in `to_client.chunks` and
    `to_runtime.chunks` after each call (to the runtime only once `upstream_opened` was called), and tells
    about the transports. A `PeerError` out of either means `fail` and the end of the connection.

    Args:
        options: what all connections share.
        on_upstream: called when the first call has chosen the upstream: open a connection to it.
        wake: called when output became ready, also in the middle of a call into the core.

    Attributes:
        client_data: takes the next bytes of the client, after its preface.
        runtime_data: takes the next bytes of the runtime.
        to_client: bytes for the client.
        to_runtime: bytes for the runtime.
    """

    def __init__(
        self, options: RelayOptions, on_upstream: Callable[[Upstream], None], wake: Callable[[], None]
    ) -> None:
        self.state = ConnectionState(options, wake)
        self.state.sender = DataSender(self.state)
        self.to_client = self.state.to_client
        self.to_runtime = self.state.to_runtime
        self._drain_ping = b""
        self._request = RequestDirection(self.state, on_upstream, self._is_drain_ack)
        self.client_data: Callable[[bytes], None] = self._request.receive
        self._response = ResponseDirection(self.state)
        self.runtime_data: Callable[[bytes], None] = self._response.receive
        self.state.to_runtime.chunks.append(frames.PREFACE)
        self.state.to_client.chunks.append(frames.EMPTY_SETTINGS)

    @property
    def is_early_full(self) -> bool:
        """Whether so much waits for the upstream that reading from the client must pause."""
        return not self.state.is_open and self._request.is_early_full

    @property
    def is_client_behind(self) -> bool:
        """Whether frames of the client wait for the next turn: call `client_data`, also without bytes."""
        return self._request.is_behind

    @property
    def is_runtime_behind(self) -> bool:
        """Whether frames of the runtime wait for the next turn: call `runtime_data`, also without bytes."""
        return self._response.is_behind

    @property
    def failure(self) -> Exception | None:
        """Why the connection must end, when that came up outside of its own reads; None while it goes on."""
        return self.state.failure

    @property
    def wants_turn(self) -> bool:
        """Whether own DATA goes on after the transport took what is there: call `turn`."""
        return self.state.sender.wants_turn

    @property
    def has_held_calls(self) -> bool:
        """Whether calls are held that a graceful stop waits for."""
        return any(stream.is_pending for stream in self.state.special.values())

    @property
    def is_drained(self) -> bool:
        """Whether the client has answered, no stream is open and the last frame has passed as a whole.

        A client that has not answered may be writing a call just now, which a closed connection would fail.
        """
        state = self.state
        has_ended = state.goaway_id is not None and not state.open_streams
        is_told = state.to_client.at_boundary and not state.to_client.has_own
        return has_ended and not self._drain_ping and is_told

    @property
    def is_disowned(self) -> bool:
        """Whether the client was told, before there was an upstream, that no call was processed."""
        return self.state.goaway_id == 0 and not self.state.is_open

    def upstream_opened(self) -> None:
        """The runtime connection is there: what waited for it can be written, and own DATA follows."""
        self.state.is_open = True
        self._request.forget_early()
        self.state.sender.pump()

    def upstream_failed(self, text: str) -> None:
        """The upstream stayed away: every waiting stream is refused, then the connection ends."""
        state = self.state
        for stream_id in sorted(state.open_streams):
            stream = state.special.pop(stream_id, None)
            if stream is not None:
                self._lose(stream)
            due = state.table_updates.due()
            state.to_client.chunks.append(
                refusal(stream_id, StatusCode.UNAVAILABLE, MESSAGE_PREFIX + text, due)
            )
        state.open_streams.clear()
        state.to_client.chunks.append(state.goaway(state.highest_id, ErrorCode.NO_ERROR))

    def fail(self, code: ErrorCode) -> None:
        """The connection ends with an error: the client gets a GOAWAY if one can be written here."""
        if self.state.to_client.at_boundary:
            self.state.to_client.chunks.append(self.state.goaway(self.state.highest_id, code))
        self.lost()

    def lost(self) -> None:
        """One side is gone: calls whose message was sent end unknown, all others are cancelled."""
        self._request.forget_early()
        special, self.state.special = self.state.special, {}
        for stream in special.values():
            self._lose(stream)

    def client_writable(self, is_writable: bool) -> None:
        """The client's transport went over its high-water mark, or below it again."""
        self.state.to_client.is_writable = is_writable
        if is_writable:
            self.state.to_client.flush_own()

    def runtime_writable(self, is_writable: bool) -> None:
        """The runtime's transport went over its high-water mark, or below it again."""
        self.state.to_runtime.is_writable = is_writable
        if is_writable:
            self.state.to_runtime.flush_own()
            self.state.sender.pump()

    def turn(self) -> None:
        """Own DATA goes on."""
        self.state.sender.pump()

    def drain(self) -> None:
        """Begins a graceful end: no new streams after the answer to a PING of the relay's own.

        Calls that wait for an upstream were not processed: the client may repeat them elsewhere at once.
        """
        self._drain_ping = os.urandom(8)
        if not self.state.is_open:
            self._disown()
        self.state.to_client.own(lambda: self.state.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self.state.to_client.own(frames.ping(self._drain_ping))

    def finish_drain(self) -> None:
        """The client knows of the drain, or had its time: no more streams are taken."""
        if self.state.goaway_id is None:
            self.state.goaway_id = last_id = self.state.highest_id
            self.state.to_client.own(lambda: self.state.goaway(last_id, ErrorCode.NO_ERROR))

    def wait_no_more(self) -> None:
        """The client does not answer at all: nothing more is waited for but its open streams."""
        self._drain_ping = b""

    def _is_drain_ack(self, opaque: bytes) -> bool:
        if not self._drain_ping or opaque != self._drain_ping:
            return False
        self._drain_ping = b""
        self.finish_drain()
        return True

    def _disown(self) -> None:
        self.lost()
        state = self.state
        state.goaway_id = state.highest_id = state.promised_id = 0
        state.open_streams.clear()
        state.to_runtime.chunks.clear()

    def _lose(self, stream: SpecialStream) -> None:
        try:
            stream.lost()
        except Exception as error:  # noqa: BLE001  # the other calls of the connection have to end, too
            self.state.options.failures.report(
                "the handler of a held call failed while it was cancelled",
                type(error).__name__,
                type(error).__name__,
                level=logging.ERROR,
                error=error,
            )
