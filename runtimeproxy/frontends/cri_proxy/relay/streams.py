"""The streams of one relayed HTTP/2 connection: the state that both of its directions share."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.frontends.cri_proxy.interception import DEFAULT_MAX_MESSAGE_BYTES
from runtimeproxy.frontends.cri_proxy.relay.budget import ConnectionMemory
from runtimeproxy.frontends.cri_proxy.relay.counts import RelayCounts
from runtimeproxy.frontends.cri_proxy.relay.error_response import TableSizeUpdates, error_response
from runtimeproxy.frontends.cri_proxy.relay.flow_control import FlowControl
from runtimeproxy.frontends.cri_proxy.relay.output import Output
from runtimeproxy.frontends.cri_proxy.relay.peer_settings import PeerSettings
from runtimeproxy.frontends.cri_proxy.relay.preconnect import EarlyBytes, EarlyMemory
from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import MAX_STREAM_ID, ErrorCode
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.interception import Interceptor
    from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
    from runtimeproxy.frontends.cri_proxy.relay.upstream import Router, Upstream

logger = logging.getLogger(__name__)

_REMEMBERED_DISCARDED: Final = 128


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Options of the HTTP/2 side of all connections of one daemon."""

    route: Router
    interceptor: Interceptor
    budget: MemoryBudget
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    early: EarlyMemory = field(default_factory=EarlyMemory)
    counts: RelayCounts = field(default_factory=RelayCounts)
    failures: FailureLog = field(default_factory=lambda: FailureLog(output=logger))
    """Logs everything that a client or a runtime can set off."""


class SpecialStream(Protocol):
    """A stream whose frames do not all just pass. What frames do is told by their methods' results."""

    @property
    def is_pending(self) -> bool:
        """Whether a graceful stop waits for it."""

    def on_client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """The client's DATA, padding stripped; `flow_bytes` with it. Returns whether the frame passes."""

    def on_client_reset(self) -> bool:
        """Returns whether the frame passes."""

    def on_client_window_update(self) -> bool:
        """Returns whether the frame passes."""

    def on_client_headers(self) -> bool:
        """A second header block; returns whether the connection can go on."""

    def on_runtime_headers(self, is_last: bool) -> None:
        """Response headers or trailers pass."""

    def on_runtime_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """As `on_client_data`, of the runtime."""

    def on_runtime_window_update(self, increment_bytes: int) -> None:
        """The runtime gives credit on this stream; the frame does not pass."""

    def on_runtime_settings(self) -> None:
        """The stream's window towards either side may have changed."""

    def on_runtime_reset(self) -> bool:
        """Returns whether the frame passes."""

    def on_not_processed(self) -> None:
        """A GOAWAY of the runtime says so."""

    def on_connection_lost(self) -> None:
        """One side is gone."""


class Streams:
    """The streams of one client connection, and all else that both directions of the relay share.

    A `PeerError` out of any call means `fail` and the end.

    Attributes:
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
        failure: why the connection must end, found outside of its own reads; None while it goes on.
    """

    def __init__(
        self, options: RelayOptions, open_upstream: Callable[[Upstream], None], wake: Callable[[], None]
    ) -> None:
        self.options = options
        self.open_upstream = open_upstream
        self.wake = wake
        self.to_client = Output(frames.EMPTY_SETTINGS, is_open=True)
        self.to_runtime = Output(frames.PREFACE, is_open=False)
        self.client_settings = PeerSettings()
        self.runtime_settings = PeerSettings()
        self.flow = FlowControl(self.to_client, self.to_runtime, self.runtime_settings, wake)
        self.memory = ConnectionMemory(options.budget)
        self.early = EarlyBytes(options.early, self.to_runtime, self.flow)
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
        self.failure: Exception | None = None

    # --- queries of the owner -----------------------------------------------------------------------------

    @property
    def has_intercepted_calls(self) -> bool:
        # A graceful stop waits for them.
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
        # A GOAWAY sent before there was an upstream has disowned all calls.
        return self.goaway_id == 0 and not self.to_runtime.is_open

    # --- events of the transports --------------------------------------------------------------------------

    def on_upstream_opened(self) -> None:
        """The runtime connection is there: waiting bytes can be written, and own DATA follows."""
        self.to_runtime.is_open = True
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
        if not self.to_runtime.is_open:
            self.on_lost()
            self.goaway_id = self.highest_id = self.promised_id = 0
            self.open_streams.clear()
            self.to_runtime.chunks.clear()
        self.to_client.send(lambda: self.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self.to_client.send(frames.ping(self.drain_ping))

    def finish_drain(self) -> None:
        # The client knows of the drain, or had its time: no more streams are taken.
        if self.goaway_id is None:
            self.stop_taking_streams()

    def stop_taking_streams(self) -> None:
        """Sends GOAWAY: no stream above the highest one so far is processed."""
        self.goaway_id = last_id = self.highest_id
        self.to_client.send(lambda: self.goaway(last_id, ErrorCode.NO_ERROR))

    def give_up_ping(self) -> None:
        # The client does not answer the PING: the drain waits for its open streams only.
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
