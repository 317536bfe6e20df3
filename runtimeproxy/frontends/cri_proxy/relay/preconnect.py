"""Frames that come before the upstream is open: the relay keeps or answers them, so it checks them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runtimeproxy.frontends.cri_proxy.relay.peer_settings import INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE
from runtimeproxy.http2 import frames
from runtimeproxy.http2.frames import ErrorCode, PeerError

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.relay.flow_control import FlowControl
    from runtimeproxy.frontends.cri_proxy.relay.output import Output

EARLY_BYTES: Final = 64 * 1024
"""Of one client, that may wait for the upstream even if others take all room; its first calls are less."""
MAX_EARLY_BYTES: Final = 1024 * 1024
"""Of one client, while all clients together have less than their limit."""
EARLY_TOTAL_BYTES: Final = 16 * 1024 * 1024

_LENGTHS: Final = {frames.PRIORITY: 5, frames.RST_STREAM: 4, frames.PING: 8, frames.WINDOW_UPDATE: 4}
"""Payloads of fixed length, in bytes. Source: RFC 9113, 6.3, 6.4, 6.7, 6.9."""
_CONNECTION_FRAMES: Final = frozenset((frames.SETTINGS, frames.PING, frames.GOAWAY))
_STREAM_FRAMES: Final = frozenset((frames.PRIORITY, frames.RST_STREAM))
_SETTING_BYTES: Final = 6
_ENABLE_PUSH: Final = 0x2
_ALLOWED: Final = {_ENABLE_PUSH: range(2), MAX_FRAME_SIZE: range(1 << 14, 1 << 24)}
"""Values of settings; others are a PROTOCOL_ERROR. Source: RFC 9113, 6.5.2."""


def check_early(type_: int, flags: int, stream_id: int, payload: bytes) -> None:
    """Checks a frame as the runtime would have.

    Raises:
        PeerError: the frame is a connection error. Source: RFC 9113, 6.3 to 6.9.
    """
    if len(payload) != _LENGTHS.get(type_, len(payload)):
        raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "frame of a wrong length")
    if (type_ in _CONNECTION_FRAMES and stream_id) or (type_ in _STREAM_FRAMES and not stream_id):
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "frame on a wrong stream")
    if type_ == frames.WINDOW_UPDATE and not stream_id and not int.from_bytes(payload, "big"):
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "window update of nothing")
    if type_ == frames.SETTINGS:
        _check_settings(flags, payload)


def _check_settings(flags: int, payload: bytes) -> None:
    if len(payload) % _SETTING_BYTES or (flags & frames.ACK and payload):
        raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
    for at in range(0, len(payload), _SETTING_BYTES):
        name = int.from_bytes(payload[at : at + 2], "big")
        value = int.from_bytes(payload[at + 2 : at + 6], "big")
        if name == INITIAL_WINDOW_SIZE and value > frames.MAX_WINDOW_BYTES:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "initial window above 2^31-1")
        if name in _ALLOWED and value not in _ALLOWED[name]:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "setting out of range")


class EarlyMemory:
    """How many bytes of all clients wait for upstreams, and how many may."""

    def __init__(self, limit_bytes: int = EARLY_TOTAL_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class EarlyBytes:
    """The client's bytes that wait for the upstream in `to_runtime.chunks`."""

    def __init__(self, memory: EarlyMemory, to_runtime: Output, flow: FlowControl) -> None:
        self._memory = memory
        self._to_runtime = to_runtime
        self._flow = flow
        self._data: dict[int, list[int]] = {}
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether reading from the client must pause; `EARLY_BYTES` fit whatever other clients have."""
        if self._size_bytes > MAX_EARLY_BYTES:
            return True
        return self._size_bytes > EARLY_BYTES and self._memory.used_bytes > self._memory.limit_bytes

    def add(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        self._memory.used_bytes += size_bytes

    def on_data_follows(self, stream_id: int) -> None:
        self._data.setdefault(stream_id, []).append(len(self._to_runtime.chunks))

    def drop(self, stream_id: int) -> int:
        """Forgets the DATA of a stream; returns its flow-controlled bytes."""
        chunks = self._to_runtime.chunks
        dropped_bytes = 0
        for index in self._data.pop(stream_id, ()):
            dropped_bytes += len(chunks[index]) - frames.HEADER_BYTES
            chunks[index] = b""
        self._flow.window_bytes += dropped_bytes
        return dropped_bytes

    def clear(self) -> None:
        """Nothing waits any more: the runtime connection is there, or the client's is gone."""
        self._data.clear()
        self._memory.used_bytes -= self._size_bytes
        self._size_bytes = 0
