"""One relayed HTTP/2 connection without sockets: bytes in from either side, bytes out to both."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from runtimeproxy.counts import RelayCounts
from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import MAX_STREAM_ID, MAX_WINDOW_BYTES, ErrorCode, PeerError, window_update
from runtimeproxy.interception import DEFAULT_MAX_MESSAGE_BYTES
from runtimeproxy.logs import FailureLog
from runtimeproxy.relay.budget import ConnectionMemory
from runtimeproxy.relay.error_response import TableSizeUpdates, error_response
from runtimeproxy.relay.flow_control import FlowControl
from runtimeproxy.relay.peer_settings import PeerSettings
from runtimeproxy.relay.preconnect import EarlyBytes, EarlyMemory
from runtimeproxy.relay.request import RequestDirection
from runtimeproxy.relay.response import ResponseDirection

if TYPE_CHECKING:
    from runtimeproxy.interception import Interceptor
    from runtimeproxy.relay.budget import MemoryBudget
    from runtimeproxy.relay.intercepted_stream import SpecialStream
    from runtimeproxy.relay.upstream import Router, Upstream

logger = logging.getLogger(__name__)

MAX_OWN_FRAMES: Final = 1000
"""Own frames that may wait for a side that does not read; above it the connection is closed."""

_REMEMBERED_DISCARDED: Final = 128


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """What all connections of one daemon share."""

    route: Router
    interceptor: Interceptor
    budget: MemoryBudget
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    early: EarlyMemory = field(default_factory=EarlyMemory)
    counts: RelayCounts = field(default_factory=RelayCounts)
    failures: FailureLog = field(default_factory=lambda: FailureLog(output=logger))
    """Logs everything that a client or a runtime can set off."""


class Output:
    """Collects the bytes for one side until the connection writes them.

    The relay's own frames go out at frame boundaries only, and never inside a header block. While the
    transport is over its high-water mark they wait, WINDOW_UPDATEs summed per stream; passing bytes never
    wait here.

    Attributes:
        chunks: bytes to write, in order; always the same list, emptied by the connection that writes it.
        has_own: whether own frames wait for a boundary or for the transport.
        at_boundary: whether the passing bytes so far end at a frame's end, outside of header blocks.
        is_writable: whether the transport is below its high-water mark.
    """

    def __init__(self, first: bytes) -> None:
        self.chunks: list[bytes | memoryview] = [first]
        self.at_boundary = True
        self.has_own = False
        self.is_writable = True
        self._own: list[bytes | Callable[[], bytes]] = []
        self._updates: dict[int, int] = {}

    def send(self, frame: bytes | Callable[[], bytes]) -> None:
        """Sends an own frame as soon as the rules allow; a callable makes it then.

        Raises:
            PeerError: too many wait already.
        """
        if self.at_boundary and self.is_writable and not self._own:
            self.chunks.append(frame if isinstance(frame, bytes) else frame())
            return
        if len(self._own) >= MAX_OWN_FRAMES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames wait for a peer that does not read")
        self._own.append(frame)
        self.has_own = True

    def credit(self, stream_id: int, increment_bytes: int) -> None:
        """Sends a WINDOW_UPDATE, summed with one that waits; 0 bytes send nothing.

        Raises:
            PeerError: credit for too many streams waits already.
        """
        if increment_bytes <= 0:
            return
        if self.at_boundary and self.is_writable:
            self.chunks.append(window_update(stream_id, increment_bytes))
            return
        if stream_id not in self._updates and len(self._updates) >= MAX_OWN_FRAMES:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "credit for too many streams waits")
        total_bytes = self._updates.get(stream_id, 0) + increment_bytes
        self._updates[stream_id] = min(total_bytes, MAX_WINDOW_BYTES)
        self.has_own = True

    def flush_own(self) -> None:
        """Sends the own frames that wait, if the rules allow it now."""
        if not (self.at_boundary and self.is_writable):
            return
        self.chunks.extend(window_update(key, value) for key, value in self._updates.items())
        self._updates.clear()
        self.chunks.extend(frame if isinstance(frame, bytes) else frame() for frame in self._own)
        self._own.clear()
        self.has_own = False


class H2Relay:
    """The HTTP/2 side of one client connection and its runtime connection.

    The owner feeds `request.receive` and `response.receive`, writes `to_client.chunks` and
    `to_runtime.chunks` after each call (to the runtime only once `on_upstream_opened` was called), and
    reports the events of the transports. A `PeerError` out of any of these calls means `fail` and the end.

    Args:
        options: shared by all connections.
        open_upstream: called when the first call has chosen the upstream: opens a connection to it.
        wake: called when output became ready, also in the middle of a call into the relay.

    Attributes:
        request: takes the bytes of the client, after its preface.
        response: takes the bytes of the runtime.
        to_client: bytes for the client.
        to_runtime: bytes for the runtime.
        flow: DATA to the runtime and its connection window.
        memory: of the messages of intercepted calls.
        early: bytes that wait for the upstream.
        special_streams: the streams whose frames do not just pass, by id.
        open_streams: ids of streams that were forwarded and not ended by the runtime or a reset.
        highest_id: the highest stream id that was forwarded.
        goaway_id: the last stream id of the GOAWAY that the relay sent; None before.
        promised_id: the lowest last stream id of any GOAWAY that went to the client.
        drain_ping: the payload of the relay's own PING that the client has not answered; empty for none.
        own_acks: how many SETTINGS of the client the relay acknowledged itself.
        upstream: chosen by the first call; None before.
        is_open: whether the runtime connection is there.
        failure: why the connection must end, found outside of its own reads; None while it goes on.
    """

    def __init__(
        self, options: RelayOptions, open_upstream: Callable[[Upstream], None], wake: Callable[[], None]
    ) -> None:
        self.options = options
        self.open_upstream = open_upstream
        self.wake = wake
        self.to_client = Output(frames.EMPTY_SETTINGS)
        self.to_runtime = Output(frames.PREFACE)
        self.client_settings = PeerSettings()
        self.runtime_settings = PeerSettings()
        self.flow = FlowControl(self)
        self.memory = ConnectionMemory(options.budget)
        self.early = EarlyBytes(self)
        self.table_updates = TableSizeUpdates()
        self.special_streams: dict[int, SpecialStream] = {}
        self._discarded: deque[int] = deque()
        self.open_streams: set[int] = set()
        self.highest_id = 0
        self.goaway_id: int | None = None
        self.promised_id = MAX_STREAM_ID
        self.drain_ping = b""
        self.own_acks = 0
        self.upstream: Upstream | None = None
        self.is_open = False
        self.failure: Exception | None = None
        self.request = RequestDirection(self)
        self.response = ResponseDirection(self)

    # --- queries of the owner -----------------------------------------------------------------------------

    @property
    def has_intercepted_calls(self) -> bool:
        """Whether there are intercepted calls that a graceful stop waits for."""
        return any(stream.is_pending for stream in self.special_streams.values())

    @property
    def is_drained(self) -> bool:
        """Whether the client has answered, no stream is open and the last frame has passed as a whole.

        A client that has not answered may be writing a call just now, which a closed connection would fail.
        """
        has_ended = self.goaway_id is not None and not self.open_streams and not self.drain_ping
        return has_ended and self.to_client.at_boundary and not self.to_client.has_own

    @property
    def is_disowned(self) -> bool:
        """Whether a GOAWAY sent before there was an upstream has disowned all calls."""
        return self.goaway_id == 0 and not self.is_open

    # --- events of the transports --------------------------------------------------------------------------

    def on_upstream_opened(self) -> None:
        """The runtime connection is there: waiting bytes can be written, and own DATA follows."""
        self.is_open = True
        self.early.clear()
        self.flow.pump()

    def on_upstream_failed(self, text: str) -> None:
        """The upstream stayed away: every waiting stream is refused, then the connection ends."""
        for stream_id in sorted(self.open_streams):
            stream = self.special_streams.pop(stream_id, None)
            if stream is not None:
                self._end_stream(stream)
            self.options.counts.without_upstream += 1
            sizes = self.table_updates.take()
            self.to_client.chunks.append(
                error_response(stream_id, StatusCode.UNAVAILABLE, MESSAGE_PREFIX + text, sizes)
            )
        self.open_streams.clear()
        self.to_client.chunks.append(self.goaway(self.highest_id, ErrorCode.NO_ERROR))

    def on_lost(self) -> None:
        """One side is gone: calls whose message was sent end unknown, all others are cancelled."""
        self.early.clear()
        streams, self.special_streams = self.special_streams, {}
        for stream in streams.values():
            self._end_stream(stream)

    def on_client_writable(self, is_writable: bool) -> None:
        """The client's transport went over its high-water mark, or below it again."""
        self.to_client.is_writable = is_writable
        if is_writable:
            self.to_client.flush_own()

    def on_runtime_writable(self, is_writable: bool) -> None:
        """The runtime's transport went over its high-water mark, or below it again."""
        self.to_runtime.is_writable = is_writable
        if is_writable:
            self.to_runtime.flush_own()
            self.flow.pump()

    def fail(self, code: ErrorCode) -> None:
        """The connection ends with an error: the client gets a GOAWAY if one can be written here."""
        if self.to_client.at_boundary:
            self.to_client.chunks.append(self.goaway(self.highest_id, code))
        self.on_lost()

    def _end_stream(self, stream: SpecialStream) -> None:
        try:
            stream.on_connection_lost()
        except Exception as error:  # noqa: BLE001  # the other calls of the connection have to end, too
            self.options.failures.report(
                "handler failed while cancelling an intercepted call",
                type(error).__name__,
                type(error).__name__,
                level=logging.ERROR,
                error=error,
            )

    # --- graceful end ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Begins a graceful end: no new streams after the answer to a PING of the relay's own.

        Calls that wait for an upstream were not processed: the client may repeat them elsewhere at once.
        """
        self.drain_ping = os.urandom(8)
        if not self.is_open:
            self.on_lost()
            self.goaway_id = self.highest_id = self.promised_id = 0
            self.open_streams.clear()
            self.to_runtime.chunks.clear()
        self.to_client.send(lambda: self.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self.to_client.send(frames.ping(self.drain_ping))

    def finish_drain(self) -> None:
        """The client knows of the drain, or had its time: no more streams are taken."""
        if self.goaway_id is None:
            self.stop_taking_streams()

    def stop_taking_streams(self) -> None:
        """Sends GOAWAY: no stream above the highest one so far is processed."""
        self.goaway_id = last_id = self.highest_id
        self.to_client.send(lambda: self.goaway(last_id, ErrorCode.NO_ERROR))

    def give_up_ping(self) -> None:
        """The client does not answer the PING: the drain waits for its open streams only."""
        self.drain_ping = b""

    # --- shared by both directions -------------------------------------------------------------------------

    def goaway(self, last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
        """Returns a GOAWAY for the client that promises no more than earlier ones (RFC 9113, 6.8)."""
        self.promised_id = min(self.promised_id, last_stream_id)
        return frames.goaway(self.promised_id, code, debug)

    def guard(self, action: Callable[..., None], *args: object) -> None:
        """Runs an action that the interceptor or another connection caused; an error ends this one alone."""
        try:
            action(*args)
        except Exception as error:  # noqa: BLE001  # it must not reach the caller, which did not cause it
            self.failure = error
        self.wake()

    def discard(self, stream_id: int, stream: SpecialStream) -> None:
        """Keeps a finished stream's late frames away from the other side, for a bounded number of streams."""
        self.special_streams[stream_id] = stream
        self._discarded.append(stream_id)
        if len(self._discarded) > _REMEMBERED_DISCARDED:
            oldest = self._discarded.popleft()
            if oldest != stream_id:
                self.special_streams.pop(oldest, None)

    def on_client_settings_acknowledged(self) -> None:
        """The ACK of the client's oldest unacknowledged SETTINGS went to the client."""
        acked = self.client_settings.acknowledge()
        if acked is not None:
            self.table_updates.on_acknowledged(acked.header_table_bytes)
