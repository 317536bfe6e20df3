"""DATA to the runtime within its windows: the client's that cannot pass at once, and the relay's own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import ErrorCode, PeerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.frontends.cri_proxy.relay.output import Output
    from runtimeproxy.frontends.cri_proxy.relay.peer_settings import PeerSettings

OWN_BYTES_PER_TURN: Final = 128 * 1024
"""Own DATA sent before the transport is asked again whether it can write."""
MAX_WAITING: Final = 4096
"""Items in the queue for the connection window: the debt bounds their bytes, but empty frames have none."""

NOTHING_UNSENT: Final = memoryview(b"")


class SendingStream(Protocol):
    """A stream on which the relay sends a message of its own."""

    stream_id: int
    is_sending: bool
    """Whether some of the message is still to be sent."""
    unsent: memoryview
    """The rest of the message."""
    credit_bytes: int
    """The runtime's WINDOW_UPDATEs of this stream less the bytes sent: its window is the initial one and this
    much more, and may be negative after a SETTINGS change."""
    is_queued: bool
    """Whether `FlowControl` has it in one of its queues."""

    def on_sent(self) -> None:
        """Called when the last byte of the message was taken."""


@dataclass(slots=True, eq=False)
class _PassingData:
    """A client's DATA frame, without padding, that waits for the runtime's connection window."""

    stream_id: int
    content: memoryview
    is_last: bool


@dataclass(slots=True, eq=False)
class _Deferred:
    """An action that must not overtake the client's DATA that waits before it."""

    action: Callable[[], None]


class FlowControl:
    """Keeps to the runtime's windows, and keeps the client's connection window consistent with them.

    The client gets credit at once for the DATA that the relay takes, which the runtime never sees; the
    relay's own DATA uses the runtime's window without the client's knowledge. That is the debt, and it is
    taken out of the runtime's next connection WINDOW_UPDATEs. At any time
    `client's window + waiting bytes = window_bytes + debt_bytes`.

    Once one frame waits for the runtime's connection window, all later DATA queues behind it.

    Attributes:
        window_bytes: how much DATA the runtime accepts now, on all streams together.
        debt_bytes: how much of the relay's own DATA is not made up for yet.
        waiting: DATA that waits for the runtime's connection window, in order.
        blocked: messages of the relay's own that wait for the transport.
        wants_turn: whether own DATA goes on, by `pump`, as soon as the transport has room.
    """

    def __init__(
        self,
        to_client: Output,
        to_runtime: Output,
        runtime_settings: PeerSettings,
        wake: Callable[[], None],
    ) -> None:
        self._to_client = to_client
        self._to_runtime = to_runtime
        self._runtime_settings = runtime_settings
        self._wake = wake
        self.window_bytes = frames.DEFAULT_WINDOW_BYTES
        self.debt_bytes = 0
        self.waiting: deque[_PassingData | SendingStream | _Deferred] = deque()
        self.blocked: deque[SendingStream] = deque()
        self.wants_turn = False
        self._passing_bytes = 0
        self._turn_bytes = 0

    def on_window_update(self, increment_bytes: int) -> bool:
        """The runtime gave connection credit; returns whether its frame passes: all of it is the client's."""
        self.window_bytes += increment_bytes
        paid_bytes = min(self.debt_bytes, increment_bytes)
        self.debt_bytes -= paid_bytes
        if 0 < paid_bytes < increment_bytes:
            self._to_client.chunks.append(frames.window_update(0, increment_bytes - paid_bytes))
        self._turn_bytes = 0
        if self.waiting or self.blocked or self.wants_turn:
            self.pump()
        return not paid_bytes

    def pump(self) -> None:
        """Goes on after credit came, the transport drained, or the runtime connection opened."""
        self._turn_bytes = 0
        self.wants_turn = False
        if self.waiting:
            self.pump_waiting()
        blocked, self.blocked = self.blocked, deque()
        for stream in blocked:
            stream.is_queued = False
            self.send(stream)

    # --- the client's DATA -------------------------------------------------------------------------------

    def pass_or_wait(self, stream_id: int, content: bytes, is_last: bool) -> None:
        """Sends a client's DATA, its padding stripped, as far as the window allows; the rest waits.

        Raises:
            PeerError: the client sent more than the credit that it was given.
        """
        self._check_room()
        self.waiting.append(_PassingData(stream_id, memoryview(content), is_last))
        self._passing_bytes += len(content)
        if self._passing_bytes > self.debt_bytes + max(self.window_bytes, 0):
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        self.pump_waiting()

    def after_passing(self, action: Callable[[], None]) -> None:
        # At once when none of the client's DATA waits.
        if any(isinstance(item, _PassingData) for item in self.waiting):
            self._check_room()
            self.waiting.append(_Deferred(action))
        else:
            action()

    def _check_room(self) -> None:
        if len(self.waiting) >= MAX_WAITING:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames wait for the connection's window")

    def has_waiting(self, stream_id: int) -> bool:
        return any(isinstance(item, _PassingData) and item.stream_id == stream_id for item in self.waiting)

    def drop(self, stream_id: int) -> int:
        """Forgets a reset stream's waiting DATA; returns how many bytes of credit the client gets back."""
        dropped_bytes = 0
        # One round: each of the others goes from the front to the end.
        for _ in range(len(self.waiting)):
            item = self.waiting.popleft()
            if isinstance(item, _PassingData) and item.stream_id == stream_id:
                dropped_bytes += len(item.content)
            else:
                self.waiting.append(item)
        self._passing_bytes -= dropped_bytes
        self.pump_waiting()
        return dropped_bytes

    def pump_waiting(self) -> None:
        # Empty DATA needs no window.
        while self.waiting:
            # Taken out first: the end of a message makes room for others, which may get here as well.
            item = self.waiting.popleft()
            if isinstance(item, _Deferred):
                item.action()
            elif isinstance(item, _PassingData):
                if not self._send_passing(item):
                    self.waiting.appendleft(item)
                    return
            else:
                item.is_queued = False
                if self._needs_credit(item):
                    item.is_queued = True
                    self.waiting.appendleft(item)
                    return

    def _send_passing(self, item: _PassingData) -> bool:
        """Sends as much as fits; returns whether nothing is left."""
        max_frame_bytes = self._runtime_settings.smallest.max_frame_bytes
        while True:
            size_bytes = min(len(item.content), max(self.window_bytes, 0), max_frame_bytes)
            rest_bytes = len(item.content) - size_bytes
            if size_bytes == 0 and rest_bytes:
                return False
            self.window_bytes -= size_bytes
            self._passing_bytes -= size_bytes
            self._emit(item.stream_id, item.content[:size_bytes], item.is_last and not rest_bytes)
            item.content = item.content[size_bytes:]
            if not rest_bytes:
                return True

    # --- the relay's own DATA ----------------------------------------------------------------------------

    def send(self, stream: SendingStream) -> None:
        if stream.is_sending and not stream.is_queued and (self.waiting or self._needs_credit(stream)):
            stream.is_queued = True
            self.waiting.append(stream)

    def send_instead(self, stream: SendingStream, content: bytes, frame_bytes: int) -> int:
        """Sends a message in place of one of the client that came in one frame, if that is possible now.

        The client's frame has used its window, which stands for the same part of the runtime's: of that there
        is neither debt nor credit.

        `frame_bytes`: what the client's frame took of its window.

        Returns:
            How much of that the client is still to get back; -1 if nothing was sent.
        """
        size_bytes, limits = len(content), self._runtime_settings.smallest
        window_bytes = min(self.window_bytes, limits.initial_window_bytes + stream.credit_bytes)
        is_free = self._to_runtime.is_open and self._to_runtime.is_writable and not self.waiting
        if self._turn_bytes >= OWN_BYTES_PER_TURN or not (
            is_free and size_bytes <= min(window_bytes, frames.DEFAULT_MAX_FRAME_BYTES)
        ):
            return -1
        self._turn_bytes += size_bytes
        self.window_bytes -= size_bytes
        self.debt_bytes += max(0, size_bytes - frame_bytes)
        self._emit(stream.stream_id, content, is_last=True)
        return max(0, frame_bytes - size_bytes)

    def stop(self, stream: SendingStream) -> None:
        stream.unsent = NOTHING_UNSENT
        stream.is_sending = False
        if stream.is_queued:
            stream.is_queued = False
            for queue in (self.waiting, self.blocked):
                if stream in queue:
                    queue.remove(stream)

    def _needs_credit(self, stream: SendingStream) -> bool:
        """Sends a message's next frames; returns whether the connection window stopped it.

        If the transport stopped it, it goes on with the next `pump`; if its stream's window did, with
        that stream's next credit.
        """
        to_runtime = self._to_runtime
        while stream.is_sending:
            self.wants_turn = self._turn_bytes >= OWN_BYTES_PER_TURN
            if self.wants_turn or not (to_runtime.is_open and to_runtime.is_writable):
                stream.is_queued = True
                self.blocked.append(stream)
                self._wake()
                return False
            unsent = stream.unsent
            initial_bytes = self._runtime_settings.smallest.initial_window_bytes
            window_bytes = max(initial_bytes + stream.credit_bytes, 0)
            size_bytes = min(len(unsent), frames.DEFAULT_MAX_FRAME_BYTES, window_bytes)
            if size_bytes == 0 and unsent:
                return False
            size_bytes = min(size_bytes, max(self.window_bytes, 0))
            if size_bytes == 0 and unsent:
                return True
            self._turn_bytes += size_bytes
            self.window_bytes -= size_bytes
            self.debt_bytes += size_bytes
            stream.credit_bytes -= size_bytes
            stream.unsent = unsent[size_bytes:]
            is_last = size_bytes == len(unsent)
            self._emit(stream.stream_id, unsent[:size_bytes], is_last)
            if is_last:
                # Even an empty view keeps the whole message, which the runtime may take long to answer.
                stream.unsent = NOTHING_UNSENT
                stream.is_sending = False
                # Last, because others that wait for its memory may send theirs in it.
                stream.on_sent()
        return False

    def _emit(self, stream_id: int, content: bytes | memoryview, is_last: bool) -> None:
        size = len(content)
        flags = frames.END_STREAM if is_last else 0
        header = frames.FRAME_HEADER.pack(size >> 16, size & 0xFFFF, frames.DATA, flags, stream_id)
        # A copy: a view in the transport's buffer would keep the whole message after its memory is released.
        self._to_runtime.chunks.append(header + content)
