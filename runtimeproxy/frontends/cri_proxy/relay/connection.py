"""One accepted client connection and the connection to its upstream: how they begin, move bytes and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from runtimeproxy.frontends.cri_proxy.relay.h2_relay import H2Relay
from runtimeproxy.frontends.cri_proxy.relay.preconnect import EARLY_BYTES
from runtimeproxy.frontends.cri_proxy.relay.upstream import Dial
from runtimeproxy.http2.frames import PREFACE, ErrorCode, PeerError

if TYPE_CHECKING:
    import socket

    from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
    from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream

WRITE_HIGH_WATER_BYTES: Final = 256 * 1024
"""Of a transport's buffer; above it reading of the other side pauses."""
LINGER_S: Final = 1.0
"""How long bytes already read from a lost runtime may take to reach the client."""
FIRST_CALL_S: Final = 60.0
"""How long a client may take to make its first call; those of the CRI make it at once."""
GRACE_S: Final = 1.0
"""How long a graceful stop waits for the client to take the GOAWAY, and for short calls."""
SILENCE_S: Final = 30.0
"""How long a stop that waits for all calls waits for a client that does not answer it; others do at once."""


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Options of all connections of one daemon."""

    relay: RelayOptions
    default_upstream: Upstream
    """Where a client is spliced to that does not speak HTTP/2."""
    upstream_wait_s: float
    """How long new connections wait for an upstream that is away."""
    first_call_s: float = FIRST_CALL_S
    """How long a client may take to make its first call."""
    on_defect: Callable[[], None] = _nothing
    """Called for each error in the relay's own code."""


class Pause(Flag):
    """Reasons for not reading a transport."""

    PEER_FULL = auto()
    """The other side's write buffer is full."""
    EARLY_FULL = auto()
    """As many bytes as may wait for the upstream do."""
    MEMORY_FULL = auto()
    """Its messages wait for memory that other calls hold."""
    BEHIND = auto()
    """The last read is not processed completely."""


_UNPAUSED: Final = Pause(0)


def _drop(data: bytes) -> None:
    """Discards bytes that are no longer needed."""


class PeerTransport(asyncio.BaseProtocol):
    """The client's or the runtime's transport; its `Connection` handles the data and the events.

    Args:
        on_data: takes the bytes that were read.
        on_writable: called when the transport's buffer goes over its high-water mark, and below it again.
        on_lost: called once, when the transport is gone.
        on_eof: called when the peer has ended its direction.

    Attributes:
        transport: None before the connection is made, and after it is lost: some loops take no calls then.
        paused: why it is not read now.
        data_received: takes the bytes that were read. Event loops remember it when the protocol is set, so a
            change goes through `receive_with`.
    """

    def __init__(
        self,
        on_data: Callable[[bytes], None],
        on_writable: Callable[[bool], None],
        on_lost: Callable[[], None],
        on_eof: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.paused = _UNPAUSED
        self.data_received = on_data
        self._on_writable = on_writable
        self._on_lost = on_lost
        self._on_eof = on_eof

    def receive_with(self, on_data: Callable[[bytes], None]) -> None:
        self.data_received = on_data
        if self.transport is not None:
            self.transport.set_protocol(self)

    def write(self, chunks: list[bytes | memoryview]) -> None:
        """Writes and empties a list of chunks."""
        if self.transport is not None:
            if len(chunks) == 1:
                self.transport.write(chunks[0])
            else:
                self.transport.writelines(chunks)
        chunks.clear()

    def pause(self, why: Pause) -> None:
        self.paused |= why
        if self.transport is not None:
            # A transport that is closing raises.
            with contextlib.suppress(RuntimeError):
                self.transport.pause_reading()

    def resume(self, why: Pause) -> None:
        if self.paused & why:
            self.paused &= ~why
            if not self.paused and self.transport is not None:
                with contextlib.suppress(RuntimeError):
                    self.transport.resume_reading()

    def end(self) -> None:
        """Half-closes after the buffered bytes; drops incoming bytes until the peer half-closes, too.

        A peer that writes to a socket which is closed gets an error, and then gRPC gives up answers that it
        has not read yet.
        """
        self.receive_with(_drop)
        self.resume(self.paused)
        if self.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.transport.write_eof()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if self.paused:
            self.transport.pause_reading()

    def eof_received(self) -> None:
        # The transport closes itself then, as soon as all is written, which may be never.
        self._on_eof()

    def pause_writing(self) -> None:
        self._on_writable(False)

    def resume_writing(self) -> None:
        self._on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost()


class Splice:
    """A client that does not speak HTTP/2: its bytes go to the default upstream and back, unread."""

    def __init__(self, client: PeerTransport, early: bytes) -> None:
        self._client = client
        self._early = bytearray(early)
        client.receive_with(self._keep)

    def _keep(self, data: bytes) -> None:
        """Takes bytes before the upstream is open."""
        self._early += data
        if len(self._early) > EARLY_BYTES:
            self._client.pause(Pause.EARLY_FULL)

    def on_upstream_opened(self, runtime: PeerTransport) -> None:
        def to_runtime(data: bytes) -> None:
            if runtime.transport is not None:
                runtime.transport.write(data)

        self._client.receive_with(to_runtime)
        # First, because the write may find the runtime's buffer full and pause the client again.
        self._client.resume(Pause.EARLY_FULL)
        to_runtime(bytes(self._early))
        self._early.clear()

    def on_runtime_data(self, data: bytes) -> None:
        if self._client.transport is not None:
            self._client.transport.write(data)


class Connection:
    """Pairs one client with its upstream, moves their bytes through an `H2Relay`, ends both when either ends.

    Args:
        options: shared by all connections.
        on_closed: called once, when the client's transport is gone.
        upstream_socket: not connected yet; the connection closes it. None makes one when it is needed.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        on_closed: Callable[[Connection], None],
        upstream_socket: socket.socket | None = None,
    ) -> None:
        self._options = options
        self._upstream_socket = upstream_socket
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._client = PeerTransport(
            self._sniff, self._on_client_writable, self._on_client_lost, self._on_client_eof
        )
        self._runtime: PeerTransport | None = None
        self._is_client_full = False
        self._first_bytes = bytearray()
        self._relay: H2Relay | None = None
        self._splice: Splice | None = None
        self._dial: Dial | None = None
        self._upstream: Upstream | None = None
        self._opened_s = 0.0
        self._adopting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_receiving = False
        # Whether `_after_write` may have work; False for most reads of a connection that serves.
        self._has_more = True
        self._behind: set[PeerTransport] = set()
        self.is_draining = False
        self._is_grace_over = False
        self._waits_for_all = False
        self._on_settled: Callable[[], None] = _nothing
        self._is_closed = False

    def protocol(self) -> asyncio.BaseProtocol:
        """Returns that of the accepted socket, and begins to wait for the first call."""
        self._timer = self._loop.call_later(self._options.first_call_s, self._on_no_call)
        return self._client

    def _on_no_call(self) -> None:
        # A client that has something to say may be saying it just now: it gets a GOAWAY first.
        if not self.is_draining:
            self._options.relay.counts.ended["no_call"] += 1
            self.drain(self.close)

    # --- beginning ---------------------------------------------------------------------------------------

    def _sniff(self, data: bytes) -> None:
        """Waits for the client's preface; anything else is spliced."""
        self._first_bytes += data
        first = bytes(self._first_bytes)
        if not PREFACE.startswith(first[: len(PREFACE)]):
            self._first_bytes.clear()
            self._splice = Splice(self._client, first)
            self._open(self._options.default_upstream)
        elif len(first) >= len(PREFACE):
            self._first_bytes.clear()
            relay = self._relay = H2Relay(self._options.relay, self._open, self._wake)
            on_data = partial(self._receive, relay, relay.request.receive)
            self._client.receive_with(on_data)
            if self.is_draining:
                self._drain_relay(relay)
            on_data(first[len(PREFACE) :])

    def _open(self, upstream: Upstream) -> None:
        """Connects to the upstream, which may take a while."""
        self._stop_timer()
        self._upstream = upstream
        self._opened_s = self._loop.time()
        self._dial = Dial(
            upstream,
            self._options.upstream_wait_s,
            on_connected=self._on_connected,
            on_failed=self._on_upstream_failed,
            sock=self._upstream_socket,
        )
        self._upstream_socket = None
        self._dial.start()

    def _on_connected(self, sock: socket.socket) -> None:
        if self._upstream is not None:
            wait_s = self._loop.time() - self._opened_s
            self._options.relay.counts.waits[self._upstream.name].observe(wait_s)
        self._adopting = self._loop.create_task(self._adopt(sock), name="adopt-runtime-connection")
        self._adopting.add_done_callback(self._on_adopted)

    async def _adopt(self, sock: socket.socket) -> None:
        runtime = PeerTransport(
            _drop, self._on_runtime_writable, self._on_runtime_lost, on_eof=self._on_runtime_lost
        )
        relay = self._relay
        if self._splice is not None:
            runtime.data_received = self._splice.on_runtime_data
        elif relay is not None:
            runtime.data_received = partial(self._receive, relay, relay.response.receive)
        await self._loop.create_unix_connection(
            cast("Callable[[], asyncio.Protocol]", lambda: runtime), sock=sock
        )
        if self._is_closed or (relay is not None and relay.is_disowned):
            runtime.abort()
            return
        self._runtime = runtime
        if self._is_client_full:
            runtime.pause(Pause.PEER_FULL)
        if self._splice is not None:
            self._splice.on_upstream_opened(runtime)
        elif relay is not None:
            self._client.resume(Pause.EARLY_FULL)
            self._run(relay.on_upstream_opened)

    def _on_adopted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report_defect("cannot adopt a runtime connection", error)
            self.abort()

    def _on_upstream_failed(self, error: OSError) -> None:
        upstream = cast("Upstream", self._upstream)
        reason = error.strerror or type(error).__name__
        counts = self._options.relay.counts
        counts.waits[upstream.name].observe(self._loop.time() - self._opened_s)
        counts.upstream_failures[upstream.name] += 1
        counts.ended["upstream_away"] += 1
        self._options.relay.failures.report(
            f"{upstream.name} is away",
            reason,
            reason,
            upstream=upstream.name,
            socket=upstream.socket_path,
            reason=reason,
        )
        if self._relay is None:
            self.abort()
            return
        self._relay.on_upstream_failed(f"{upstream.name} is not reachable: {reason}")
        self._wake()
        self.close()

    @property
    def received_bytes(self) -> tuple[int, int]:
        """How many bytes of HTTP/2 came from the client and from its upstream."""
        relay = self._relay
        return (0, 0) if relay is None else (relay.request.received_bytes, relay.response.received_bytes)

    @property
    def stream_counts(self) -> tuple[int, int]:
        """How many calls are in progress, and how many of them are intercepted and not forwarded yet."""
        relay = self._relay
        if relay is None:
            return 0, 0
        return len(relay.open_streams), sum(each.is_pending for each in relay.special_streams.values())

    @property
    def is_idle(self) -> bool:
        """Whether no call is in progress and the end has not begun; not known of a client that is spliced."""
        if self._is_closed or self.is_draining or self._splice is not None:
            return False
        return self._relay is None or not self._relay.open_streams

    # --- moving bytes ------------------------------------------------------------------------------------

    def _receive(self, relay: H2Relay, take: Callable[[bytes], None], data: bytes) -> None:
        """Moves the bytes that one transport read into the relay, and those that are ready out of it."""
        if self._is_closed:
            return
        self._is_receiving = True
        try:
            take(data)
        except Exception as error:  # noqa: BLE001  # a defect of ours ends this connection, not the daemon
            self._is_receiving = False
            self._fail(error)
            return
        self._is_receiving = False
        if relay.to_runtime.chunks and self._runtime is not None:
            self._runtime.write(relay.to_runtime.chunks)
        if relay.to_client.chunks:
            self._client.write(relay.to_client.chunks)
        if self._has_more:
            self._after_write(relay)

    def _run(self, action: Callable[..., None], *args: object) -> None:
        # Errors and output are handled as for received data.
        if self._relay is not None:
            self._has_more = True
            self._receive(self._relay, lambda _: action(*args), b"")

    def _wake(self) -> None:
        """Writes output that became ready; while the relay takes bytes, `_receive` does it afterwards."""
        relay = self._relay
        self._has_more = True
        if self._is_receiving or self._is_closed or relay is None:
            return
        if relay.to_runtime.chunks and self._runtime is not None:
            self._runtime.write(relay.to_runtime.chunks)
        if relay.to_client.chunks:
            self._client.write(relay.to_client.chunks)
        self._after_write(relay)

    def _after_write(self, relay: H2Relay) -> None:
        """Does the rarer work: continues own DATA, pauses a side or lets it catch up, ends a drain."""
        if self._is_closed:
            return
        if relay.failure is not None:
            self._fail(relay.failure)
            return
        self._has_more = not relay.to_runtime.is_open or self.is_draining
        if relay.flow.wants_turn and relay.to_runtime.is_open and relay.to_runtime.is_writable:
            self._loop.call_soon(self._run, relay.flow.pump)
        if not relay.to_runtime.is_open and relay.early.is_full:
            self._client.pause(Pause.EARLY_FULL)
        if relay.memory.is_much and relay.memory.must_pause:
            self._client.pause(Pause.MEMORY_FULL)
        elif self._client.paused:
            self._client.resume(Pause.MEMORY_FULL)
        if relay.request.is_behind:
            self._catch_up(self._client)
        if relay.response.is_behind and self._runtime is not None:
            self._catch_up(self._runtime)
        if self.is_draining and not self.is_unsettled:
            self._on_settled()

    def _catch_up(self, side: PeerTransport) -> None:
        # Nothing more is read meanwhile.
        if side not in self._behind:
            self._behind.add(side)
            side.pause(Pause.BEHIND)
            self._loop.call_soon(self._go_on, side, side.data_received)

    def _go_on(self, side: PeerTransport, receive: Callable[[bytes], None]) -> None:
        self._behind.discard(side)
        receive(b"")
        if side not in self._behind:
            side.resume(Pause.BEHIND)

    def _on_client_writable(self, is_writable: bool) -> None:
        self._is_client_full = not is_writable
        if self._runtime is not None:
            (self._runtime.resume if is_writable else self._runtime.pause)(Pause.PEER_FULL)
        if self._relay is not None:
            self._report_writable(self._relay.on_client_writable, is_writable)

    def _on_runtime_writable(self, is_writable: bool) -> None:
        (self._client.resume if is_writable else self._client.pause)(Pause.PEER_FULL)
        if self._relay is not None:
            self._report_writable(self._relay.on_runtime_writable, is_writable)

    def _report_writable(self, action: Callable[[bool], None], is_writable: bool) -> None:
        # Without writing: a transport calls back in the middle of a write.
        if is_writable:
            self._run(action, True)
        else:
            action(False)

    # --- ending ------------------------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether a graceful stop waits: for intercepted calls, up to 1 s for the client and short calls."""
        if self._is_closed:
            return False
        if self._relay is None:
            return self.is_draining
        is_grace_over = self._is_grace_over and not self._waits_for_all
        return self._relay.has_intercepted_calls or not (is_grace_over or self._relay.is_drained)

    def drain(self, on_settled: Callable[[], None], *, waits_for_all: bool = False) -> None:
        """Begins a graceful end: GOAWAY, and no new streams once the client knows or 1 s is over.

        Args:
            on_settled: called when nothing of this connection is waited for any more.
            waits_for_all: whether all calls are waited for, not only the intercepted and the short ones.
        """
        self.is_draining = True
        self._on_settled = on_settled
        self._waits_for_all = waits_for_all
        if self._relay is not None:
            self._drain_relay(self._relay)
            if self._dial is not None and self._relay.is_disowned:
                self._dial.cancel()
        elif self._dial is None:
            # Its preface may be on the way, and the client is to see a GOAWAY rather than a lost connection.
            self._stop_timer()
            self._timer = self._loop.call_later(GRACE_S, self.abort)
        elif not waits_for_all:
            self.abort()

    def _drain_relay(self, relay: H2Relay) -> None:
        self._run(relay.drain)
        self._loop.call_later(GRACE_S, self._end_grace, relay)
        self._loop.call_later(SILENCE_S, self._run, relay.give_up_ping)

    def _end_grace(self, relay: H2Relay) -> None:
        self._is_grace_over = True
        self._run(relay.finish_drain)

    def close(self) -> None:
        """Ends the connection once all output is written and the client ends it too, or after 1 s."""
        if self._is_closed:
            return
        self._stop()
        if self._runtime is not None:
            self._runtime.abort()
        if self._client.transport is not None:
            self._client.end()
            self._timer = self._loop.call_later(LINGER_S, self._client.abort)

    def abort(self) -> None:
        self._stop()
        if self._relay is not None:
            self._relay.on_lost()
        self._client.abort()
        if self._runtime is not None:
            self._runtime.abort()

    def _fail(self, error: Exception) -> None:
        """Ends the connection because of a broken peer or of a defect of ours."""
        if isinstance(error, PeerError):
            code = error.code
            self._options.relay.counts.ended["protocol_error"] += 1
            # Text behind a colon is from the peer, and must not split the causes.
            cause = str(error).partition(":")[0]
            self._options.relay.failures.report("connection ends", cause, str(error), http2_error=code.name)
        else:
            code = ErrorCode.INTERNAL_ERROR
            self._options.relay.counts.ended["internal_error"] += 1
            self._options.on_defect()
            self._report_defect("connection ends", error)
        if self._relay is not None:
            self._relay.fail(code)
            if self._is_closed:
                return  # the end of its calls has set off another error
            self._client.write(self._relay.to_client.chunks)
        self.close()

    def _report_defect(self, summary: str, error: BaseException) -> None:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        cause = frame.f_code.co_filename, line
        self._options.relay.failures.report(summary, cause, str(error), level=logging.ERROR, error=error)

    def _on_client_lost(self) -> None:
        self._stop()
        if self._relay is not None:
            self._relay.on_lost()
        if self._runtime is not None:
            self._runtime.abort()
        self._on_closed(self)
        self._on_settled()

    def _on_client_eof(self) -> None:
        # The client sends no more: its transport closes once all is written, at the latest after 1 s.
        if self._relay is not None and not self._is_closed:
            self._relay.on_lost()
            self.close()

    def _on_runtime_lost(self) -> None:
        """Passes the bytes already read on to the client, then ends its connection too."""
        relay = self._relay
        if self._is_closed or (relay is not None and relay.is_disowned):
            return
        if self._upstream is not None:
            self._upstream.on_lost()
        if relay is not None:
            relay.on_lost()
        self.close()

    def _stop(self) -> None:
        """Marks the connection as closed; cancels its timer and its attempts to connect."""
        self._is_closed = True
        self._stop_timer()
        if self._dial is not None:
            self._dial.cancel()
        if self._upstream_socket is not None:
            self._upstream_socket.close()
            self._upstream_socket = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
