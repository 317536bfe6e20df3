"""What one end of a connection knows of each stream, sends on it, and has announced."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.peers import wire
from tests.peers.wire import Frame

DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384


@dataclass(frozen=True)
class Block:
    """A header block to send; `pieces` is the number of frames it takes."""

    fields: tuple[tuple[str, str], ...]
    is_last: bool = False
    pieces: int = 1
    pad: int | None = None
    priority: bool = False


@dataclass
class Content:
    """DATA to send, cut by the windows; `pad` bytes of padding in each frame that has room for them."""

    content: bytes
    is_last: bool = False
    pad: int | None = None


@dataclass
class Stream:
    """Both directions of one stream, as one endpoint sees them."""

    stream_id: int
    send_window: int
    receive_window: int
    outgoing: deque[Block | Content] = field(default_factory=deque)
    blocks: list[dict[str, str]] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)
    has_sent_end: bool = False
    has_received_end: bool = False
    sent_reset: int | None = None
    received_reset: int | None = None
    owed: int = 0

    @property
    def is_reset(self) -> bool:
        """Whether either side gave the stream up."""
        return self.sent_reset is not None or self.received_reset is not None

    @property
    def is_refused(self) -> bool:
        """Whether the relay answered in the runtime's place."""
        return bool(self.blocks) and "grpc-message" in self.blocks[-1]

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be sent or received."""
        return self.is_reset or (self.has_sent_end and self.has_received_end)


@dataclass(frozen=True)
class Announced:
    """The values of one SETTINGS frame that count here."""

    window: int = DEFAULT_WINDOW
    frame: int = DEFAULT_FRAME
    table: int = 4096

    def updated(self, values: dict[int, int]) -> Announced:
        """These values after a SETTINGS frame."""
        return Announced(
            values.get(wire.INITIAL_WINDOW, self.window),
            values.get(wire.MAX_FRAME, self.frame),
            values.get(wire.TABLE_SIZE, self.table),
        )


class RuleBrokenError(AssertionError):
    """The other side broke a rule of HTTP/2."""


def require(condition: bool, rule: str, frame: Frame | None = None) -> None:
    """Raises `RuleBrokenError` unless the condition holds."""
    if not condition:
        raise RuleBrokenError(f"{rule}: {frame!r}")


def settings_of(payload: bytes) -> dict[int, int]:
    """The values of a SETTINGS frame."""
    return {
        int.from_bytes(payload[at : at + 2], "big"): int.from_bytes(payload[at + 2 : at + 6], "big")
        for at in range(0, len(payload), 6)
    }
