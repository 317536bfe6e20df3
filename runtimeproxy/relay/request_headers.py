"""What the client's header blocks mean: a new call, which chooses or asks for an upstream, or trailers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtimeproxy.http2.frames import END_STREAM, ErrorCode, PeerError, rst_stream
from runtimeproxy.relay.headers import HeaderTracker
from runtimeproxy.relay.held import HeldStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.headers import RequestHead
    from runtimeproxy.relay.state import ConnectionState, Upstream

MAX_SPECIAL_STREAMS: Final = 2000
"""Held and refused calls of one connection; a kubelet has some dozens, and each costs some KiB."""


class RequestHeaders:
    """Reads every header block of the client, in order, and opens the calls.

    Args:
        state: shared by both directions.
        on_upstream: called when the first call's path has chosen the upstream.
    """

    __slots__ = ("_on_upstream", "_state", "_tracker")

    def __init__(self, state: ConnectionState, on_upstream: Callable[[Upstream], None]) -> None:
        self._state = state
        self._on_upstream = on_upstream
        self._tracker = HeaderTracker()

    def take(self, stream_id: int, flags: int, block: bytes) -> bool:
        """Reads a whole header block; returns whether it is forwarded.

        Raises:
            PeerError: it does not decode, or stands where none may.
        """
        state = self._state
        is_last = bool(flags & END_STREAM)
        if state.goaway_id is not None:
            self._check_second_block(stream_id, is_last)
            return False
        head = self._tracker.decode(block, state.runtime_settings.largest.header_table_bytes)
        if stream_id > state.highest_id:
            return self._open_stream(stream_id, head, is_last)
        if stream_id == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        self._check_second_block(stream_id, is_last)
        return True

    def _check_second_block(self, stream_id: int, is_last: bool) -> None:
        """Ends a held or waiting stream, and the connection with it, if it gets another header block."""
        state = self._state
        stream = state.special.get(stream_id)
        is_blocked = stream is not None and not stream.client_header_block(is_last)
        if is_blocked or state.sender.has_waiting(stream_id):
            for outbox in (state.to_runtime, state.to_client):
                outbox.own(rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR))
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "second header block on a held or waiting stream")

    def _open_stream(self, stream_id: int, head: RequestHead, is_last: bool) -> bool:
        """A new call: chooses the upstream if it is the first, holds it if it may be changed."""
        state = self._state
        upstream = state.options.route(head.path)
        if state.upstream is None:
            state.upstream = upstream
            self._on_upstream(upstream)
        elif upstream.name != state.upstream.name:
            state.goaway_id = last_id = state.highest_id
            state.to_client.own(lambda: state.goaway(last_id, ErrorCode.NO_ERROR))
            return False
        state.highest_id = stream_id
        if stream_id > state.promised_id:
            # The client has not read a GOAWAY yet that says of this call that it is never processed.
            return True
        state.open_streams.add(stream_id)
        if upstream.is_intercepted and not is_last and state.options.interceptor.holds(head.path):
            if len(state.special) >= MAX_SPECIAL_STREAMS:
                raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many held calls on one connection")
            state.special[stream_id] = HeldStream(state, stream_id, head)
        return True
