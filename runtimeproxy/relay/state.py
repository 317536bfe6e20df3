"""What the two directions of one connection share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from runtimeproxy.http2.frames import MAX_STREAM_ID, goaway
from runtimeproxy.logs import FailureLog
from runtimeproxy.relay.budget import ConnectionMemory
from runtimeproxy.relay.credit import RuntimeCredit
from runtimeproxy.relay.early import EarlyMemory
from runtimeproxy.relay.outbox import Outbox
from runtimeproxy.relay.presence import Presence
from runtimeproxy.relay.settings import DEFAULT_HEADER_TABLE_BYTES, PeerSettings

if TYPE_CHECKING:
    from runtimeproxy.interception import Interceptor
    from runtimeproxy.relay.budget import MemoryBudget
    from runtimeproxy.relay.data import DataSender

logger = logging.getLogger(__name__)

DEFAULT_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Of the message of a held call, without its gRPC prefix: what containerd and the kubelet accept."""

TURN_FRAMES: Final = range(2000)
"""Frames of one side that are taken in one turn of the loop: a read of 256 KiB may hold 29,000, and other
clients wait meanwhile."""

_REMEMBERED_SWALLOWED: Final = 128


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where calls go: a name for logs and the path of a Unix socket."""

    name: str
    socket_path: str
    is_intercepted: bool
    """Whether calls to it may be held: those to the runtime."""
    presence: Presence = field(default_factory=Presence, compare=False)
    """Whether it is back after it was away."""


class Router(Protocol):
    """Chooses the upstream by `:path`."""

    def __call__(self, path: str) -> Upstream:
        """Returns the upstream that serves `path`."""


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """What all connections of one daemon share."""

    route: Router
    interceptor: Interceptor
    budget: MemoryBudget
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    early: EarlyMemory = field(default_factory=EarlyMemory)
    failures: FailureLog = field(default_factory=lambda: FailureLog(output=logger))
    """Where everything is logged that a client or a runtime can set off."""


class SpecialStream(ABC):
    """A stream whose frames do not all just pass: held, or refused and to be swallowed."""

    __slots__ = ()

    @property
    def is_pending(self) -> bool:
        """Whether a graceful stop waits for this stream."""
        return False

    @abstractmethod
    def client_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """The client sent DATA, `flow_bytes` with padding; returns whether it is forwarded as it came."""

    @abstractmethod
    def client_reset(self) -> bool:
        """The client sent RST_STREAM; returns whether it is forwarded."""

    @abstractmethod
    def client_window_update(self) -> bool:
        """The client gave stream credit; returns whether it is forwarded."""

    @abstractmethod
    def client_header_block(self, is_last: bool) -> bool:
        """The client sent a second header block; returns whether the connection can go on."""

    @abstractmethod
    def runtime_headers(self, is_last: bool) -> None:
        """The runtime sent HEADERS, which are forwarded."""

    @abstractmethod
    def runtime_data(self, content: bytes, flow_bytes: int, is_last: bool) -> bool:
        """The runtime sent DATA; returns whether it is forwarded."""

    @abstractmethod
    def runtime_window_update(self, increment_bytes: int) -> None:
        """The runtime gave stream credit, which is never forwarded."""

    @abstractmethod
    def runtime_settings_changed(self) -> None:
        """The runtime's SETTINGS were announced or acknowledged."""

    @abstractmethod
    def runtime_reset(self) -> bool:
        """The runtime sent RST_STREAM; returns whether it is forwarded."""

    @abstractmethod
    def disowned(self) -> None:
        """The runtime's GOAWAY says that it never processed this stream."""

    @abstractmethod
    def lost(self) -> None:
        """One of the two connections is gone."""


class TableUpdates:
    """Which dynamic table size updates the next header block to the client must begin with.

    Source: RFC 7541, 4.2: after a reduced SETTINGS_HEADER_TABLE_SIZE is acknowledged, the next block
    signals the smallest size since the last block and then the final one.
    """

    __slots__ = ("_limit_bytes", "_lowest_bytes")

    def __init__(self) -> None:
        self._limit_bytes = DEFAULT_HEADER_TABLE_BYTES
        self._lowest_bytes: int | None = None

    def acknowledged(self, limit_bytes: int) -> None:
        """The ACK of the client's SETTINGS passed to it."""
        if limit_bytes < self._limit_bytes:
            lowest = self._lowest_bytes
            self._lowest_bytes = limit_bytes if lowest is None else min(lowest, limit_bytes)
        self._limit_bytes = limit_bytes

    def block_passed(self) -> None:
        """A header block of the runtime passed: it began with the updates that were due."""
        self._lowest_bytes = None

    def due(self) -> tuple[int, ...]:
        """Returns the sizes that a block of the relay's own signals, and takes them for signalled."""
        lowest = self._lowest_bytes
        if lowest is None:
            return ()
        self._lowest_bytes = None
        # Never below the lowest: the runtime's encoder may still use as much as that.
        final = max(lowest, min(self._limit_bytes, DEFAULT_HEADER_TABLE_BYTES))
        return (lowest,) if lowest == final else (lowest, final)


class ConnectionState:
    """One client connection and its runtime connection, without sockets.

    Attributes:
        wake: called when bytes became ready outside of a `receive`.
        special: the streams that do not just pass, by id.
        open_streams: ids of streams that were forwarded and not ended by the runtime or a reset.
        highest_id: the highest stream id that was forwarded.
        goaway_id: the last stream id of the GOAWAY that the relay sent; None before.
        promised_id: the lowest last stream id of any GOAWAY that went to the client.
        failure: why the connection ends, found outside of its own reads; None while it goes on.
        is_open: whether the runtime connection is there.
        memory: what the messages of held calls take.
        own_acks: how many SETTINGS of the client the relay acknowledged itself.
    """

    __slots__ = (
        "_swallowed",
        "client_settings",
        "credit",
        "failure",
        "goaway_id",
        "highest_id",
        "is_open",
        "memory",
        "open_streams",
        "options",
        "own_acks",
        "promised_id",
        "runtime_settings",
        "sender",
        "special",
        "table_updates",
        "to_client",
        "to_runtime",
        "upstream",
        "wake",
    )

    sender: DataSender

    def __init__(self, options: RelayOptions, wake: Callable[[], None]) -> None:
        self.options = options
        self.wake = wake
        self.to_client = Outbox()
        self.to_runtime = Outbox()
        self.client_settings = PeerSettings()
        self.runtime_settings = PeerSettings()
        self.credit = RuntimeCredit()
        self.memory = ConnectionMemory(options.budget)
        self.table_updates = TableUpdates()
        self.special: dict[int, SpecialStream] = {}
        self.open_streams: set[int] = set()
        self.highest_id = 0
        self.goaway_id: int | None = None
        self.promised_id = MAX_STREAM_ID
        self.failure: Exception | None = None
        self.is_open = False
        self.own_acks = 0
        self.upstream: Upstream | None = None
        self._swallowed: deque[int] = deque()

    def goaway(self, last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
        """Returns a GOAWAY for the client that promises no more than earlier ones (RFC 9113, 6.8)."""
        self.promised_id = min(self.promised_id, last_stream_id)
        return goaway(self.promised_id, code, debug)

    def guard(self, action: Callable[[], None]) -> None:
        """Runs what the interceptor or another connection set off: an error ends this connection alone."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  # it must not reach the caller, who is not to blame
            self.failure = error
        self.wake()

    def swallow(self, stream_id: int, stream: SpecialStream) -> None:
        """Keeps a finished stream's late frames away from the other side, for a bounded number of streams."""
        self.special[stream_id] = stream
        self._swallowed.append(stream_id)
        if len(self._swallowed) > _REMEMBERED_SWALLOWED:
            oldest = self._swallowed.popleft()
            if oldest != stream_id:
                self.special.pop(oldest, None)

    def client_settings_acknowledged(self) -> None:
        """The ACK of the client's oldest unacknowledged SETTINGS went to the client."""
        acked = self.client_settings.acknowledge()
        if acked is not None:
            self.table_updates.acknowledged(acked.header_table_bytes)
