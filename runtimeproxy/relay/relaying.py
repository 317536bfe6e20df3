"""The HTTP/2 relay of one connection between its transports: what is read goes in, what is ready goes out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from runtimeproxy.relay.core import RelayCore
from runtimeproxy.relay.side import Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.http2.frames import ErrorCode
    from runtimeproxy.relay.side import Side
    from runtimeproxy.relay.state import RelayOptions, Upstream

GRACE_S: Final = 1.0
"""How long a graceful stop waits for the client to take the GOAWAY, and for short calls."""

SILENCE_S: Final = 30.0
"""How long a stop that waits for all calls waits for a client that does not answer it; others do at once."""


class Relaying:
    """Moves bytes between two sides through a `RelayCore`, and pauses one while the other cannot write.

    Args:
        options: shared by all connections.
        client: the accepted side, after its preface.
        on_upstream: called when the first call has chosen the upstream.
        on_failure: called with what ends the connection: a `PeerError`, or a defect of ours.

    Attributes:
        from_client: takes what the client's transport read.
        from_runtime: takes what the runtime's transport read.
        is_over: whether the connection has ended; nothing is taken or written then.
    """

    __slots__ = (
        "_behind",
        "_client",
        "_core",
        "_has_more",
        "_is_grace_over",
        "_is_receiving",
        "_loop",
        "_on_failure",
        "_on_settled",
        "_runtime",
        "_waits_for_all",
        "from_client",
        "from_runtime",
        "is_over",
    )

    def __init__(
        self,
        options: RelayOptions,
        client: Side,
        on_upstream: Callable[[Upstream], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._runtime: Side | None = None
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._core = RelayCore(options, on_upstream, self._wake)
        self._is_receiving = False
        self._has_more = True
        self._behind: set[Side] = set()
        self._on_settled: Callable[[], None] | None = None
        self._is_grace_over = False
        self._waits_for_all = False
        self.is_over = False
        self.from_client = self._receiver(self._core.client_data)
        self.from_runtime = self._receiver(self._core.runtime_data)

    # --- moving bytes ------------------------------------------------------------------------------------

    def _receiver(self, receive: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Returns what takes the bytes of one side: the shortest way through the core and out again."""
        client_chunks, runtime_chunks = self._core.to_client.chunks, self._core.to_runtime.chunks

        def received(data: bytes) -> None:
            if self.is_over:
                return
            self._is_receiving = True
            try:
                receive(data)
            except Exception as error:  # noqa: BLE001  # a defect of ours ends this connection, not the daemon
                self._is_receiving = False
                self._on_failure(error)
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
        if self.is_over:
            return
        self._is_receiving = True
        try:
            action()
        except Exception as error:  # noqa: BLE001  # a defect of ours ends this connection, not the daemon
            self._is_receiving = False
            self._on_failure(error)
            return
        self._is_receiving = False
        self._flush()

    def _flush(self) -> None:
        """Writes what is ready for either side."""
        if self.is_over:
            return
        core = self._core
        if core.to_runtime.chunks and self._runtime is not None:
            self._runtime.write(core.to_runtime.chunks)
        if core.to_client.chunks:
            self._client.write(core.to_client.chunks)
        self._after_flush()

    def _after_flush(self) -> None:
        """What is seldom to be done: own DATA goes on, early bytes are too many, a drain is over."""
        if self.is_over:
            return
        core = self._core
        if core.failure is not None:
            self._on_failure(core.failure)
            return
        state = core.state
        self._has_more = not state.is_open or self._on_settled is not None
        if core.wants_turn and state.is_open and state.to_runtime.is_writable:
            self._loop.call_soon(self._guarded, core.turn)
        if core.is_early_full:
            self._client.pause(Pause.EARLY_FULL)
        if state.memory.must_pause:
            self._client.pause(Pause.MEMORY_FULL)
        else:
            self._client.resume(Pause.MEMORY_FULL)
        if core.is_client_behind:
            self._catch_up(self._client, self.from_client)
        if core.is_runtime_behind and self._runtime is not None:
            self._catch_up(self._runtime, self.from_runtime)
        if self._on_settled is not None and not self.is_unsettled:
            self._on_settled()

    def _catch_up(self, side: Side, receive: Callable[[bytes], None]) -> None:
        """What is left of a read goes on in the loop's next turn, and nothing more is read meanwhile."""
        if side not in self._behind:
            self._behind.add(side)
            side.pause(Pause.BEHIND)
            self._loop.call_soon(self._next_turn, side, receive)

    def _next_turn(self, side: Side, receive: Callable[[bytes], None]) -> None:
        self._behind.discard(side)
        receive(b"")
        if side not in self._behind:
            side.resume(Pause.BEHIND)

    # --- the transports ----------------------------------------------------------------------------------

    def upstream_opened(self, runtime: Side) -> None:
        """The runtime's side is there: what waited for it is written."""
        self._runtime = runtime
        self._client.resume(Pause.EARLY_FULL)
        self._guarded(self._core.upstream_opened)

    def upstream_failed(self, text: str) -> None:
        """The upstream stayed away: waiting calls are refused with `text`; the connection ends after it."""
        self._core.upstream_failed(text)
        self._flush()

    def client_writable(self, is_writable: bool) -> None:
        """The client's transport went over its high-water mark, or below it again."""
        self._later(lambda: self._core.client_writable(is_writable), is_writable)

    def runtime_writable(self, is_writable: bool) -> None:
        """The runtime's transport went over its high-water mark, or below it again."""
        self._later(lambda: self._core.runtime_writable(is_writable), is_writable)

    def _later(self, action: Callable[[], None], is_writable: bool) -> None:
        """A transport says "full" in the middle of a write, when nothing more may be written."""
        if is_writable:
            self._guarded(action)
        else:
            action()

    # --- ending ------------------------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether a graceful stop waits: for held calls, and up to 1 s for the client and for short calls."""
        if self.is_over:
            return False
        is_grace_over = self._is_grace_over and not self._waits_for_all
        return self._core.has_held_calls or not (is_grace_over or self._core.is_drained)

    @property
    def is_disowned(self) -> bool:
        """Whether the client was told, before there was an upstream, that no call was processed."""
        return self._core.is_disowned

    def drain(self, on_settled: Callable[[], None], *, waits_for_all: bool = False) -> None:
        """Sends GOAWAY; no new streams once the client knows or 1 s is over.

        Args:
            on_settled: called when nothing of this connection is waited for any more.
            waits_for_all: whether all calls are waited for, not only the held and the short ones.
        """
        self._on_settled = on_settled
        self._waits_for_all = waits_for_all
        self._guarded(self._core.drain)
        self._loop.call_later(GRACE_S, self._end_grace)
        self._loop.call_later(SILENCE_S, self._guarded, self._core.wait_no_more)

    def _end_grace(self) -> None:
        self._is_grace_over = True
        self._guarded(self._core.finish_drain)

    def fail(self, code: ErrorCode) -> None:
        """The client gets a GOAWAY, if one can be written here."""
        self._core.fail(code)
        self._client.write(self._core.to_client.chunks)

    def lost(self) -> None:
        """One side is gone: calls whose message was sent end unknown, all others are cancelled."""
        self._core.lost()
