"""DATA towards the runtime, within its windows and in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtimeproxy.http2.frames import (
    DATA,
    DEFAULT_MAX_FRAME_BYTES,
    END_STREAM,
    FRAME_HEADER,
    ErrorCode,
    PeerError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.relay.own_message import OwnMessage
    from runtimeproxy.relay.state import ConnectionState

OWN_BYTES_PER_TURN: Final = 128 * 1024
"""Own DATA sent before the transport is asked again whether it can write."""
MAX_WAITING: Final = 4096
"""Of what waits for the connection window: bytes are bounded by the debt, but empty frames have none."""


@dataclass(slots=True, eq=False)
class _PassingData:
    """A client's DATA frame, without padding, that waits for the runtime's connection window."""

    stream_id: int
    content: memoryview
    is_last: bool


@dataclass(slots=True, eq=False)
class _Afterwards:
    """What must not overtake the client's DATA that waits before it."""

    action: Callable[[], None]


class DataSender:
    """Sends DATA to the runtime: the client's that could not pass at once, and the relay's own.

    Once one frame waits for the runtime's connection window, all later DATA queues behind it.

    Attributes:
        waiting: DATA that waits for the runtime's connection window, in order.
    """

    __slots__ = ("_blocked", "_pending_bytes", "_state", "_turn_bytes", "waiting")

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self.waiting: deque[_PassingData | OwnMessage | _Afterwards] = deque()
        self._blocked: deque[OwnMessage] = deque()
        self._pending_bytes = 0
        self._turn_bytes = 0

    @property
    def wants_turn(self) -> bool:
        """Whether own DATA could go on as soon as the transport has taken what it got."""
        return self._turn_bytes >= OWN_BYTES_PER_TURN

    def pass_or_wait(self, stream_id: int, content: bytes, is_last: bool) -> None:
        """Sends a client's DATA, its padding stripped, as far as the window allows; the rest waits.

        Raises:
            PeerError: the client sent more than the credit that it was given.
        """
        self._check_room()
        self.waiting.append(_PassingData(stream_id, memoryview(content), is_last))
        self._pending_bytes += len(content)
        credit = self._state.credit
        if self._pending_bytes > credit.debt_bytes + max(credit.window_bytes, 0):
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        self._pump_queue()

    def send(self, own: OwnMessage) -> None:
        """Sends a held stream's message as far as windows and transport allow now."""
        if own.is_queued:
            return
        if self.waiting or self._needs_credit(own):
            own.is_queued = True
            self.waiting.append(own)

    def after_passing(self, action: Callable[[], None]) -> None:
        """Does something once the client's DATA that waits now is sent, which is at once when none waits."""
        if any(isinstance(item, _PassingData) for item in self.waiting):
            self._check_room()
            self.waiting.append(_Afterwards(action))
        else:
            action()

    def _check_room(self) -> None:
        if len(self.waiting) >= MAX_WAITING:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames wait for the connection's window")

    def has_waiting(self, stream_id: int) -> bool:
        """Whether DATA of a passing stream waits."""
        return any(isinstance(item, _PassingData) and item.stream_id == stream_id for item in self.waiting)

    def drop(self, stream_id: int) -> int:
        """Forgets a reset stream's waiting DATA; returns how many bytes of credit the client gets back."""
        if not self.waiting:
            return 0
        dropped = 0
        # One round: each of the others goes from the front to the end.
        for _ in range(len(self.waiting)):
            item = self.waiting.popleft()
            if isinstance(item, _PassingData) and item.stream_id == stream_id:
                dropped += len(item.content)
            else:
                self.waiting.append(item)
        self._pending_bytes -= dropped
        self.go_on()
        return dropped

    def forget(self, own: OwnMessage) -> None:
        """A held message that is dropped waits no more."""
        if own.is_queued:
            own.is_queued = False
            for queue in (self.waiting, self._blocked):
                if own in queue:
                    queue.remove(own)

    def go_on(self) -> None:
        """Something that waited is gone: empty DATA behind it needs no window."""
        self._pump_queue()

    def pump(self) -> None:
        """Goes on after credit came, the transport drained, or the runtime connection opened."""
        self._turn_bytes = 0
        self._pump_queue()
        blocked, self._blocked = self._blocked, deque()
        for own in blocked:
            own.is_queued = False
            self.send(own)

    def _pump_queue(self) -> None:
        while self.waiting:
            item = self.waiting[0]
            if isinstance(item, _Afterwards):
                self.waiting.popleft()
                item.action()
                continue
            if isinstance(item, _PassingData):
                if not self._send_passing(item):
                    return
            else:
                item.is_queued = False
                if self._needs_credit(item):
                    item.is_queued = True
                    return
            self.waiting.popleft()

    def _send_passing(self, item: _PassingData) -> bool:
        """Sends what fits; returns whether nothing is left."""
        credit = self._state.credit
        limit = self._state.runtime_settings.smallest.max_frame_bytes
        while True:
            size = min(len(item.content), max(credit.window_bytes, 0), limit)
            rest = len(item.content) - size
            if size == 0 and rest:
                return False
            credit.window_bytes -= size
            self._pending_bytes -= size
            self._emit(item.stream_id, item.content[:size], item.is_last and not rest)
            item.content = item.content[size:]
            if not rest:
                return True

    def _needs_credit(self, own: OwnMessage) -> bool:
        """Sends a held message's next frames; returns whether the connection window stopped it.

        If the transport stopped it, it goes on with the next `pump`; if its stream's window did, with
        that stream's next credit.
        """
        state = self._state
        credit = state.credit
        while own.is_sending:
            if not (state.is_open and state.to_runtime.is_writable) or self.wants_turn:
                own.is_queued = True
                self._blocked.append(own)
                state.wake()
                return False
            rest = own.unsent_bytes
            size = min(rest, DEFAULT_MAX_FRAME_BYTES, max(own.window_bytes, 0))
            if size == 0 and rest:
                return False
            size = min(size, max(credit.window_bytes, 0))
            if size == 0 and rest:
                return True
            self._turn_bytes += size
            credit.send_own(size)
            self._emit(own.stream_id, own.take(size), size == rest)
        return False

    def _emit(self, stream_id: int, content: memoryview, is_last: bool) -> None:
        size = len(content)
        header = FRAME_HEADER.pack(size >> 8, size & 0xFF, DATA, END_STREAM if is_last else 0, stream_id)
        # A copy: a view in the transport's buffer would keep the whole message after it counts as written.
        self._state.to_runtime.chunks.append(header + content)
