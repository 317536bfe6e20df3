"""A strict HTTP/2 endpoint without sockets: it keeps the books of both directions and breaks no rule itself.

Every frame that comes is checked against what this side has announced and the other has acknowledged, as
strictly as RFC 9113 allows any implementation to be. A `RuleBrokenError` says which one the other side broke.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tests.frontends.cri_proxy.relay.properties.blocks import Blocks
from tests.frontends.cri_proxy.relay.properties.streams import (
    DEFAULT_WINDOW,
    Announced,
    Block,
    Content,
    RuleBrokenError,
    Stream,
    require,
    settings_of,
)
from tests.peers import wire
from tests.peers.wire import Frame, Reader

MOST = 2**31 - 1


class Endpoint:
    """One end of a connection.

    Args:
        is_client: whether streams are opened here.

    Attributes:
        out: bytes on their way to the other side.
        streams: all streams, by id.
        own: what the other side has acknowledged of this side's SETTINGS.
        peer: the other side's SETTINGS, which count here from their arrival.
    """

    def __init__(self, *, is_client: bool) -> None:
        self.is_client = is_client
        self.out = bytearray()
        self.streams: dict[int, Stream] = {}
        self.own = Announced()
        self.peer = Announced()
        self.send_window = DEFAULT_WINDOW
        self.receive_window = DEFAULT_WINDOW
        self.owed = 0
        self.goaway: int | None = None
        self.pings: deque[bytes] = deque()
        self._unacknowledged: deque[dict[int, int]] = deque()
        self._reader = Reader()
        self._blocks = Blocks()

    # --- sending -----------------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Puts a frame on its way."""
        self.out += bytes(frame)

    def open(self, stream_id: int) -> Stream:
        """A new stream."""
        require(stream_id not in self.streams, "a stream is opened once")
        stream = self.streams[stream_id] = Stream(stream_id, self.peer.window, self.own.window)
        return stream

    def announce(self, values: dict[int, int]) -> None:
        """Sends SETTINGS; they count once they are acknowledged."""
        self._unacknowledged.append(values)
        self.send(wire.settings(values))

    def ping(self, opaque: bytes) -> None:
        """Asks for an answer."""
        self.pings.append(opaque)
        self.send(wire.ping(opaque))

    def reset(self, stream: Stream, code: int) -> None:
        """Gives a stream up."""
        stream.sent_reset = code
        stream.outgoing.clear()
        self.send(wire.reset(stream.stream_id, code))

    def credit(self, stream: Stream | None) -> None:
        """Gives back what was received."""
        if stream is None:
            self.receive_window += self.owed
            self.send(wire.credit(0, self.owed))
            self.owed = 0
        else:
            stream.receive_window += stream.owed
            self.send(wire.credit(stream.stream_id, stream.owed))
            stream.owed = 0

    def can_send(self, stream: Stream) -> bool:
        """Whether the next thing of a stream may go out now."""
        if not stream.outgoing or stream.is_reset:
            return False
        item = stream.outgoing[0]
        if isinstance(item, Block) or not item.content:
            return True
        return min(stream.send_window, self.send_window) > 0

    def send_next(self, stream: Stream) -> None:
        """Sends the next frame of a stream, or all frames of its next header block."""
        item = stream.outgoing[0]
        if isinstance(item, Block):
            stream.outgoing.popleft()
            for frame in self._blocks.sent(stream.stream_id, item):
                self.send(frame)
            stream.has_sent_end = item.is_last
        elif self._send_content(stream, item):
            stream.outgoing.popleft()
            stream.has_sent_end = item.is_last

    def _send_content(self, stream: Stream, item: Content) -> bool:
        """Sends one frame; returns whether nothing is left."""
        room = min(stream.send_window, self.send_window, self.peer.frame)
        extra = 0 if item.pad is None else item.pad + 1
        has_pad = item.pad is not None and extra + min(len(item.content), 1) <= room
        size = min(len(item.content), room - extra if has_pad else room)
        size = max(size, 0)
        piece, item.content = item.content[:size], item.content[size:]
        end = item.is_last and not item.content
        self.send(wire.data(stream.stream_id, piece, end=end, pad=item.pad if has_pad else None))
        used = size + (extra if has_pad else 0)
        stream.send_window -= used
        self.send_window -= used
        return not item.content

    # --- receiving ---------------------------------------------------------------------------------------

    def receive(self, received: bytes) -> None:
        """Takes bytes, cut anywhere.

        Raises:
            RuleBrokenError: the other side broke a rule.
        """
        for frame in self._reader.frames(received):
            self._frame(frame)

    @property
    def is_at_boundary(self) -> bool:
        """Whether all received frames are complete."""
        return not self._reader.rest and not self._blocks.is_open

    def _frame(self, frame: Frame) -> None:
        require(len(frame.payload) <= self.own.frame, "frames keep to the acknowledged size", frame)
        if self._blocks.is_open:
            require(frame.type_ == wire.CONTINUATION, "nothing interrupts a header block", frame)
        handler = {
            wire.DATA: self._data,
            wire.HEADERS: self._block,
            wire.CONTINUATION: self._block,
            wire.RST_STREAM: self._reset,
            wire.SETTINGS: self._settings,
            wire.PING: self._ping,
            wire.GOAWAY: self._goaway,
            wire.WINDOW_UPDATE: self._window_update,
        }.get(frame.type_)
        if handler is not None:
            handler(frame)

    def _known(self, frame: Frame) -> Stream:
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            raise RuleBrokenError(f"a frame on an idle stream: {frame!r}")
        return stream

    def _data(self, frame: Frame) -> None:
        stream = self._known(frame)
        flow = len(frame.payload)
        self.receive_window -= flow
        self.owed += flow
        require(self.receive_window >= 0, "DATA keeps to the connection's window", frame)
        stream.receive_window -= flow
        if stream.sent_reset is not None:
            return
        require(stream.received_reset is None, "no DATA after RST_STREAM", frame)
        require(flow == 0 or stream.receive_window >= 0, "DATA keeps to the stream's window", frame)
        require(not stream.has_received_end, "no DATA after END_STREAM", frame)
        require(bool(stream.blocks), "no DATA before HEADERS", frame)
        stream.owed += flow
        stream.received += frame.content
        stream.has_received_end = frame.ends_stream

    def _block(self, frame: Frame) -> None:
        block = self._blocks.received(frame)
        if block is None:
            return
        stream_id = block.stream_id
        if stream_id not in self.streams and not self.is_client:
            require(stream_id > max(self.streams, default=0), "stream ids grow")
            self.open(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            raise RuleBrokenError(f"HEADERS on an idle stream: {stream_id}")
        if stream.sent_reset is not None:
            return
        if stream.is_refused:
            # By design: the runtime's blocks still come, because the header tables need them.
            return
        require(stream.received_reset is None, f"no HEADERS after RST_STREAM: {stream_id}")
        require(not stream.has_received_end, f"no HEADERS after END_STREAM: {stream_id}")
        stream.blocks.append(block.fields)
        stream.has_received_end = block.is_last

    def _reset(self, frame: Frame) -> None:
        stream = self._known(frame)
        require(stream.received_reset is None, "RST_STREAM comes once", frame)
        stream.received_reset = frame.number
        stream.outgoing.clear()

    def _settings(self, frame: Frame) -> None:
        if frame.flags & wire.ACK:
            require(bool(self._unacknowledged), "an ACK answers SETTINGS", frame)
            before, self.own = self.own, self.own.updated(self._unacknowledged.popleft())
            self._blocks.limit_received(self.own.table)
            for stream in self.streams.values():
                stream.receive_window += self.own.window - before.window
            return
        before, self.peer = self.peer, self.peer.updated(settings_of(frame.payload))
        for stream in self.streams.values():
            stream.send_window += self.peer.window - before.window
            require(stream.send_window <= MOST or stream.is_over, "windows stay below 2^31", frame)
        if self.peer.table != before.table:
            self._blocks.limit_sent(self.peer.table)
        self.send(wire.SETTINGS_ACK)

    def _ping(self, frame: Frame) -> None:
        if frame.flags & wire.ACK:
            require(bool(self.pings), "a PING ACK answers a PING", frame)
            require(self.pings.popleft() == frame.payload, "PING ACKs keep their order", frame)
        else:
            self.send(wire.ping_ack(frame.payload))

    def _goaway(self, frame: Frame) -> None:
        last = int.from_bytes(frame.payload[:4], "big")
        require(self.goaway is None or last <= self.goaway, "GOAWAY never promises more", frame)
        self.goaway = last

    def _window_update(self, frame: Frame) -> None:
        require(frame.number > 0, "credit is more than nothing", frame)
        if frame.stream_id == 0:
            self.send_window += frame.number
            require(self.send_window <= MOST, "windows stay below 2^31", frame)
            return
        stream = self._known(frame)
        stream.send_window += frame.number
        require(stream.send_window <= MOST or stream.is_over, "windows stay below 2^31", frame)

    @property
    def is_acknowledged(self) -> bool:
        """Whether the other side has answered all SETTINGS and PINGs."""
        return not self._unacknowledged and not self.pings

    def owing(self) -> Iterator[Stream]:
        """The streams whose other side waits for credit."""
        return (s for s in self.streams.values() if s.owed and not s.is_reset and not s.has_received_end)
