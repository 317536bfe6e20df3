"""One accepted client connection and the connection to its upstream, on asyncio transports."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from runtimeproxy.relay.core import RelayCore
from runtimeproxy.relay.frames import PREFACE, ErrorCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.state import RelayOptions, Upstream

logger = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES: Final = 256 * 1024
"""Of a transport's buffer; above it reading of the other side pauses."""
LINGER_S: Final = 1.0
"""How long bytes already read from a lost runtime may take to reach the client."""
PREFACE_TIMEOUT_S: Final = 120.0
"""How long a client may take to begin. Source: grpc-go's default ConnectionTimeout for its handshake."""

_RETRY_FIRST_S: Final = 0.01
_RETRY_MOST_S: Final = 0.25
_AWAY = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET, errno.EINTR)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What all connections of one daemon share.

    Attributes:
        relay: for the HTTP/2 side.
        default_upstream: where a client is spliced to that does not speak HTTP/2.
        upstream_wait_s: how long new connections wait for an upstream that is away.
    """

    relay: RelayOptions
    default_upstream: Upstream
    upstream_wait_s: float


class _Side(asyncio.BaseProtocol):
    """One of the two transports; everything is decided in the connection.

    Attributes:
        transport: None before the connection is made, and after it is lost: some loops take no word then.
        data_received: takes what was read. Event loops remember it when the protocol is set, so a change
            goes through `receive_with`.
    """

    def __init__(
        self,
        on_data: Callable[[bytes], None],
        on_writable: Callable[[bool], None],
        on_lost: Callable[[], None],
        admit: Callable[[asyncio.Transport], bool] | None = None,
        on_eof: Callable[[], None] | None = None,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.data_received = on_data
        self._admit = admit
        self._on_eof = on_eof
        self._on_writable = on_writable
        self._on_lost = on_lost

    def receive_with(self, on_data: Callable[[bytes], None]) -> None:
        """What takes the bytes from now on."""
        self.data_received = on_data
        if self.transport is not None:
            self.transport.set_protocol(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        self.transport = stream
        stream.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if self._admit is not None and not self._admit(stream):
            stream.abort()

    def write(self, chunks: list[bytes | memoryview]) -> None:
        """Writes and empties a list of chunks."""
        if self.transport is not None:
            if len(chunks) == 1:
                self.transport.write(chunks[0])
            else:
                self.transport.writelines(chunks)
        chunks.clear()

    def eof_received(self) -> None:
        """The transport closes itself then, as soon as all is written, which may be never."""
        if self._on_eof is not None:
            self._on_eof()

    def pause_writing(self) -> None:
        self._on_writable(False)

    def resume_writing(self) -> None:
        self._on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost()


class Connection:
    """Relays between one client and its upstream; ends both when either ends.

    Args:
        options: shared by all connections.
        admit: asked whether the client may connect.
        on_closed: called once, when the client's transport is gone.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        admit: Callable[[asyncio.Transport], bool],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self._options = options
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._client = _Side(self._sniff, self._client_writable, self._client_lost, admit)
        self._runtime: _Side | None = None
        self._core: RelayCore | None = None
        self._early = bytearray()
        self._from_client: Callable[[bytes], None] = self._sniff
        self._is_closed = False
        self._is_receiving = False
        self._has_more = True
        self._is_paused_early = False
        self._connect_deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._on_settled: Callable[[], None] | None = None
        self._is_grace_over = False

    def protocol(self) -> asyncio.BaseProtocol:
        """Returns the protocol of the accepted socket."""
        self._timer = self._loop.call_later(PREFACE_TIMEOUT_S, self.abort)
        return self._client

    @property
    def is_unsettled(self) -> bool:
        """Whether a graceful stop waits: for held calls, and up to 1 s for the client and for short calls."""
        core = self._core
        if core is None or self._is_closed:
            return False
        return core.has_held_calls or not (self._is_grace_over or core.is_drained)

    # --- beginning ---------------------------------------------------------------------------------------

    def _sniff(self, data: bytes) -> None:
        """Waits for the client's preface; anything else is spliced."""
        self._early += data
        if not PREFACE.startswith(self._early[: len(PREFACE)]):
            self._client.receive_with(self._splice_early)
            self._open(self._options.default_upstream)
        elif len(self._early) >= len(PREFACE):
            self._cancel_timer()
            rest = bytes(self._early[len(PREFACE) :])
            self._early.clear()
            core = self._core = RelayCore(self._options.relay, self._open, self._wake)
            self._from_client = self._receiver(core, core.client_data)
            self._client.receive_with(self._from_client)
            self._from_client(rest)

    def _splice_early(self, data: bytes) -> None:
        """Bytes of a spliced client before its upstream is open."""
        self._early += data
        if len(self._early) > WRITE_HIGH_WATER_BYTES:
            self._pause(self._client)

    def _open(self, upstream: Upstream) -> None:
        self._cancel_timer()
        self._connect_deadline_s = self._loop.time() + self._options.upstream_wait_s
        self._connect(upstream, _RETRY_FIRST_S)

    def _connect(self, upstream: Upstream, retry_s: float) -> None:
        """Connects at once or tries again until the time is over; a Unix connect never blocks."""
        if self._is_closed:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(upstream.socket_path)
        except OSError as error:
            sock.close()
            is_over = self._loop.time() + retry_s > self._connect_deadline_s
            if error.errno not in _AWAY or is_over:
                # Not from within the read that brought the first call: it is not known to the core yet.
                self._loop.call_soon(self._upstream_failed, upstream, error)
                return
            self._timer = self._loop.call_later(
                retry_s, self._connect, upstream, min(retry_s * 2, _RETRY_MOST_S)
            )
            return
        self._adopting = self._loop.create_task(self._adopt(sock), name="adopt-runtime-connection")
        self._adopting.add_done_callback(self._adopted)

    async def _adopt(self, sock: socket.socket) -> None:
        core = self._core
        receive = self._receiver(core, core.runtime_data) if core is not None else self._splice_to_client
        side = _Side(receive, self._runtime_writable, self._runtime_lost, on_eof=self._runtime_lost)
        await self._loop.create_unix_connection(
            cast("Callable[[], asyncio.Protocol]", lambda: side), sock=sock
        )
        self._runtime = side
        if self._is_closed:
            self._abort_side(side)
            return
        if self._core is None:
            self._begin_splice(side)
            return
        if self._is_paused_early:
            self._is_paused_early = False
            self._resume(self._client)
        self._guarded(self._core.upstream_opened)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("cannot adopt a runtime connection", exc_info=task.exception())
            self.abort()

    def _upstream_failed(self, upstream: Upstream, error: OSError) -> None:
        if self._is_closed:
            return
        reason = error.strerror or type(error).__name__
        logger.warning(
            "%s is away: %s", upstream.name, reason, extra={"upstream": upstream.name, "reason": reason}
        )
        if self._core is None:
            self.abort()
            return
        self._core.upstream_failed(f"{upstream.name} is not reachable: {reason}")
        self._flush()
        self._close_client()

    # --- relaying ----------------------------------------------------------------------------------------

    def _receiver(self, core: RelayCore, receive: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Returns what takes the bytes of one side: the shortest way through the core and out again."""
        client_chunks, runtime_chunks = core.to_client.chunks, core.to_runtime.chunks

        def received(data: bytes) -> None:
            if self._is_closed:
                return
            self._is_receiving = True
            try:
                receive(data)
            except Exception as error:  # noqa: BLE001  # a defect of ours ends this connection, not the daemon
                self._is_receiving = False
                self._fail(error)
                return
            self._is_receiving = False
            if runtime_chunks and self._runtime is not None:
                self._runtime.write(runtime_chunks)
            if client_chunks:
                self._client.write(client_chunks)
            if self._has_more:
                self._after_flush()

        return received

    def _wake(self) -> None:
        """Output became ready; while bytes are taken in, they are written at the end of that."""
        self._has_more = True
        if not self._is_receiving:
            self._flush()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Runs something of the core outside of received data, with the same care."""
        if self._is_closed:
            return
        self._is_receiving = True
        try:
            action()
        except Exception as error:  # noqa: BLE001  # a defect of ours ends this connection, not the daemon
            self._is_receiving = False
            self._fail(error)
            return
        self._is_receiving = False
        self._flush()

    def _flush(self) -> None:
        """Writes what is ready for either side."""
        core = self._core
        if core is None or self._is_closed:
            return
        if core.to_runtime.chunks and self._runtime is not None:
            self._runtime.write(core.to_runtime.chunks)
        if core.to_client.chunks:
            self._client.write(core.to_client.chunks)
        self._after_flush()

    def _after_flush(self) -> None:
        """What is seldom to be done: own DATA goes on, early bytes are too many, a drain is over."""
        core = self._core
        if core is None or self._is_closed:
            return
        if core.failure is not None:
            self._fail(core.failure)
            return
        state = core.state
        self._has_more = not state.is_open or self._on_settled is not None
        if core.wants_turn and state.is_open and state.to_runtime.is_writable:
            self._loop.call_soon(self._guarded, core.turn)
        if core.is_early_full and not self._is_paused_early:
            self._is_paused_early = True
            self._pause(self._client)
        if self._on_settled is not None and not self.is_unsettled:
            self._on_settled()

    def _client_writable(self, is_writable: bool) -> None:
        if self._runtime is not None:
            (self._resume if is_writable else self._pause)(self._runtime)
        core = self._core
        if core is not None:
            self._later(lambda: core.client_writable(is_writable), is_writable)

    def _runtime_writable(self, is_writable: bool) -> None:
        (self._resume if is_writable else self._pause)(self._client)
        core = self._core
        if core is not None:
            self._later(lambda: core.runtime_writable(is_writable), is_writable)

    def _later(self, action: Callable[[], None], is_writable: bool) -> None:
        """A transport says "full" in the middle of a write, when nothing more may be written."""
        if is_writable:
            self._guarded(action)
        else:
            action()

    # --- splicing ----------------------------------------------------------------------------------------

    def _begin_splice(self, runtime: _Side) -> None:
        self._client.receive_with(self._splice_to_runtime)
        # First, because the write may find the runtime's buffer full and pause the client again.
        self._resume(self._client)
        self._splice_to_runtime(bytes(self._early))
        self._early.clear()

    def _splice_to_runtime(self, data: bytes) -> None:
        if self._runtime is not None and self._runtime.transport is not None:
            self._runtime.transport.write(data)

    def _splice_to_client(self, data: bytes) -> None:
        if self._client.transport is not None:
            self._client.transport.write(data)

    # --- ending ------------------------------------------------------------------------------------------

    def drain(self, on_settled: Callable[[], None]) -> None:
        """Begins a graceful end: GOAWAY, and no new streams once the client knows or 1 s is over.

        Args:
            on_settled: called when nothing of this connection is waited for any more.
        """
        core = self._core
        if core is None:
            self.abort()
            return
        self._on_settled = on_settled
        self._guarded(core.drain)
        self._loop.call_later(LINGER_S, self._end_grace, core)

    def _end_grace(self, core: RelayCore) -> None:
        self._is_grace_over = True
        self._guarded(core.finish_drain)

    def close(self) -> None:
        """Ends the connection after what is written has gone out, at most 1 s later."""
        self._close_client()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._is_closed = True
        self._cancel_timer()
        if self._core is not None:
            self._core.lost()
        self._abort_side(self._client)
        self._abort_side(self._runtime)

    def _fail(self, error: Exception) -> None:
        is_ours = not isinstance(error, PeerError)
        code = ErrorCode.INTERNAL_ERROR if is_ours else cast("PeerError", error).code
        level = logging.ERROR if is_ours else logging.WARNING
        trace = error if is_ours else None
        logger.log(level, "connection ends: %s", error, exc_info=trace, extra={"http2_error": code.name})
        if self._core is not None:
            self._core.fail(code)
            self._client.write(self._core.to_client.chunks)
        self._close_client()

    def _client_lost(self) -> None:
        self._is_closed = True
        self._cancel_timer()
        if self._core is not None:
            self._core.lost()
        self._abort_side(self._runtime)
        self._on_closed(self)
        if self._on_settled is not None:
            self._on_settled()

    def _runtime_lost(self) -> None:
        """The client gets what was read from the runtime, then its connection ends too."""
        if self._is_closed:
            return
        if self._core is not None:
            self._core.lost()
        self._close_client()

    def _close_client(self) -> None:
        self._is_closed = True
        self._cancel_timer()
        self._abort_side(self._runtime)
        if self._client.transport is not None:
            self._client.transport.close()
            self._timer = self._loop.call_later(LINGER_S, self._abort_side, self._client)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @staticmethod
    def _abort_side(side: _Side | None) -> None:
        if side is not None and side.transport is not None:
            side.transport.abort()

    @staticmethod
    def _pause(side: _Side) -> None:
        if side.transport is not None:
            with contextlib.suppress(RuntimeError):
                side.transport.pause_reading()

    @staticmethod
    def _resume(side: _Side) -> None:
        if side.transport is not None:
            with contextlib.suppress(RuntimeError):
                side.transport.resume_reading()
