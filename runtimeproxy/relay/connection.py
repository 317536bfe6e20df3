"""One accepted client connection and the connection to its upstream: how they begin and how they end."""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from runtimeproxy.http2.frames import PREFACE, ErrorCode, PeerError
from runtimeproxy.relay.dial import Dial
from runtimeproxy.relay.relaying import GRACE_S, Relaying
from runtimeproxy.relay.side import Pause, Side
from runtimeproxy.relay.splice import Splice

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from runtimeproxy.relay.state import RelayOptions, Upstream

LINGER_S: Final = 1.0
"""How long bytes already read from a lost runtime may take to reach the client."""
FIRST_CALL_S: Final = 60.0
"""How long a client may take to make its first call; those of the CRI make it at once."""


def _nothing() -> None:
    """Nobody waits for it."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What all connections of one daemon share.

    Attributes:
        relay: for the HTTP/2 side.
        default_upstream: where a client is spliced to that does not speak HTTP/2.
        upstream_wait_s: how long new connections wait for an upstream that is away.
        first_call_s: how long a client may take to make its first call.
        on_defect: told of each error in the relay's own code.
    """

    relay: RelayOptions
    default_upstream: Upstream
    upstream_wait_s: float
    first_call_s: float = FIRST_CALL_S
    on_defect: Callable[[], None] = _nothing


class Connection:
    """Pairs one client with its upstream; ends both when either ends.

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
        self._client = Side(self._sniff, self._client_writable, self._client_lost, self._client_ended)
        self._is_client_full = False
        self._runtime: Side | None = None
        self._relaying: Relaying | None = None
        self._first_bytes = bytearray()
        self._dial: Dial | None = None
        self._upstream: Upstream | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._drain: Callable[[Relaying], None] | None = None
        self._on_settled: Callable[[], None] = _nothing
        self._is_closed = False

    def protocol(self) -> asyncio.BaseProtocol:
        """Returns the protocol of the accepted socket."""
        self._timer = self._loop.call_later(self._options.first_call_s, self._never_called)
        return self._client

    def _never_called(self) -> None:
        """A client that has something to say may be saying it just now: it gets a GOAWAY first."""
        if self._drain is None:
            self.drain(self.close)

    # --- beginning ---------------------------------------------------------------------------------------

    def _sniff(self, data: bytes) -> None:
        """Waits for the client's preface; anything else is spliced."""
        self._first_bytes += data
        if not PREFACE.startswith(self._first_bytes[: len(PREFACE)]):
            splice = Splice(self._client, bytes(self._first_bytes))
            self._first_bytes.clear()
            self._open(splice, self._options.default_upstream)
        elif len(self._first_bytes) >= len(PREFACE):
            rest = bytes(self._first_bytes[len(PREFACE) :])
            self._first_bytes.clear()
            self._relay(rest)

    def _relay(self, rest: bytes) -> None:
        def open_upstream(upstream: Upstream) -> None:
            self._open(relaying, upstream)

        relaying = self._relaying = Relaying(self._options.relay, self._client, open_upstream, self._fail)
        self._client.receive_with(relaying.from_client)
        if self._drain is not None:
            self._drain(relaying)
        relaying.from_client(rest)

    def _open(self, traffic: Relaying | Splice, upstream: Upstream) -> None:
        self._stop_timer()
        self._upstream = upstream
        self._dial = Dial(
            upstream,
            self._options.upstream_wait_s,
            on_connected=functools.partial(self._connected, traffic),
            on_failed=functools.partial(self._upstream_failed, upstream),
            sock=self._upstream_socket,
        )
        self._upstream_socket = None
        self._dial.start()

    def _connected(self, traffic: Relaying | Splice, sock: socket.socket) -> None:
        self._adopting = self._loop.create_task(self._adopt(traffic, sock), name="adopt-runtime-connection")
        self._adopting.add_done_callback(self._adopted)

    async def _adopt(self, traffic: Relaying | Splice, sock: socket.socket) -> None:
        lost = self._runtime_lost
        side = Side(traffic.from_runtime, self._runtime_writable, lost, on_eof=lost)
        await self._loop.create_unix_connection(
            cast("Callable[[], asyncio.Protocol]", lambda: side), sock=sock
        )
        if self._is_closed or self._is_disowned:
            side.abort()
            return
        self._runtime = side
        if self._is_client_full:
            side.pause(Pause.PEER_FULL)
        traffic.upstream_opened(side)

    def _adopted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report("cannot adopt a runtime connection", error, level=logging.ERROR)
            self.abort()

    def _upstream_failed(self, upstream: Upstream, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        self._options.relay.failures.report(
            f"{upstream.name} is away",
            reason,
            reason,
            upstream=upstream.name,
            socket=upstream.socket_path,
            reason=reason,
        )
        if self._relaying is None:
            self.abort()
            return
        self._relaying.upstream_failed(f"{upstream.name} is not reachable: {reason}")
        self.close()

    # --- back-pressure -----------------------------------------------------------------------------------

    def _client_writable(self, is_writable: bool) -> None:
        self._is_client_full = not is_writable
        if self._runtime is not None:
            (self._runtime.resume if is_writable else self._runtime.pause)(Pause.PEER_FULL)
        if self._relaying is not None:
            self._relaying.client_writable(is_writable)

    def _runtime_writable(self, is_writable: bool) -> None:
        (self._client.resume if is_writable else self._client.pause)(Pause.PEER_FULL)
        if self._relaying is not None:
            self._relaying.runtime_writable(is_writable)

    # --- ending ------------------------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether a graceful stop waits: for held calls, and up to 1 s for the client and for short calls."""
        if self._relaying is None:
            return self._drain is not None and not self._is_closed
        return self._relaying.is_unsettled

    @property
    def _is_disowned(self) -> bool:
        return self._relaying is not None and self._relaying.is_disowned

    def drain(self, on_settled: Callable[[], None], *, waits_for_all: bool = False) -> None:
        """Begins a graceful end: GOAWAY, and no new streams once the client knows or 1 s is over.

        Args:
            on_settled: called when nothing of this connection is waited for any more.
            waits_for_all: whether all calls are waited for, not only the held and the short ones.
        """
        self._on_settled = on_settled
        self._drain = functools.partial(Relaying.drain, on_settled=on_settled, waits_for_all=waits_for_all)
        if self._relaying is not None:
            self._drain(self._relaying)
            if self._dial is not None and self._is_disowned:
                self._dial.cancel()
        elif self._dial is None:
            # Its preface may be on the way, and the client is to see a GOAWAY rather than a lost connection.
            self._stop_timer()
            self._timer = self._loop.call_later(GRACE_S, self.abort)
        elif not waits_for_all:
            self.abort()

    def close(self) -> None:
        """Ends the connection when what is written has gone out and the client ends it too, or after 1 s."""
        if self._is_closed:
            return
        self._stop()
        if self._runtime is not None:
            self._runtime.abort()
        if self._client.transport is not None:
            self._client.end()
            self._timer = self._loop.call_later(LINGER_S, self._client.abort)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._stop()
        if self._relaying is not None:
            self._relaying.lost()
        self._client.abort()
        if self._runtime is not None:
            self._runtime.abort()

    def _fail(self, error: Exception) -> None:
        """Ends the connection because of a broken peer or of a defect of ours."""
        if isinstance(error, PeerError):
            code = error.code
            # Behind a colon stands what the peer has sent.
            cause = str(error).partition(":")[0]
            self._options.relay.failures.report("connection ends", cause, str(error), http2_error=code.name)
        else:
            code = ErrorCode.INTERNAL_ERROR
            self._options.on_defect()
            self._report("connection ends", error, level=logging.ERROR)
        if self._relaying is not None:
            self._relaying.fail(code)
        self.close()

    def _report(self, what: str, error: BaseException, level: int) -> None:
        """Logs a defect of ours with its traceback."""
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        cause = frame.f_code.co_filename, line
        self._options.relay.failures.report(what, cause, str(error), level=level, error=error)

    def _client_lost(self) -> None:
        self._stop()
        if self._relaying is not None:
            self._relaying.lost()
        if self._runtime is not None:
            self._runtime.abort()
        self._on_closed(self)
        self._on_settled()

    def _client_ended(self) -> None:
        """The client sends no more: its transport ends once all is written, which it gets 1 s for."""
        if self._relaying is not None and not self._is_closed:
            self._relaying.lost()
            self.close()

    def _runtime_lost(self) -> None:
        """The client gets what was read from the runtime, then its connection ends too."""
        if self._is_closed or self._is_disowned:
            return
        if self._upstream is not None:
            self._upstream.presence.lost()
        if self._relaying is not None:
            self._relaying.lost()
        self.close()

    def _stop(self) -> None:
        """Nothing is taken, tried or timed any more."""
        self._is_closed = True
        self._stop_timer()
        if self._dial is not None:
            self._dial.cancel()
        if self._upstream_socket is not None:
            self._upstream_socket.close()
            self._upstream_socket = None
        if self._relaying is not None:
            self._relaying.is_over = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
