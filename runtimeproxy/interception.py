"""The narrow interface between the relay and whoever decides on held calls.

The relay knows bytes, the other side knows the CRI; the daemon joins them. Everything here happens in the
event loop's thread. For each held call the relay asks `Interceptor.open` for a handler and then calls, in
this order: `message` once; after the handler's reply `responded` once. `cancelled` ends it at any point
before the reply has been carried out; nothing is called after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Outcome(Enum):
    """How a held call ended, as far as the frames that passed can tell."""

    SUCCEEDED = "succeeded"
    """One complete response message and then END_STREAM."""
    FAILED = "failed"
    """END_STREAM without a message: the runtime answered with an error (its code is not known)."""
    UNKNOWN = "unknown"
    """A reset, a cancel after the message was sent, a message without END_STREAM, a lost connection."""


@dataclass(frozen=True, slots=True)
class CallHead:
    """What the request headers say about a held call."""

    path: str
    """`/package.Service/Method`."""
    timeout_s: float | None
    """From `grpc-timeout`; None when the caller gave no deadline."""
    encoding: str
    """From `grpc-encoding`; `identity` when absent."""
    waited_s: float = 0.0
    """How much of its time budget a call has used before it was opened here."""
    connection: object = None
    """The same object for all calls of one connection; None if that is not known."""


class Reply(Protocol):
    """The decision on a held call's message: `forward` or `refuse`, once, in the loop's thread.

    All are no-ops before `CallHandler.message` was called (also inside `Interceptor.open`, when the
    headers have not gone out yet) and after the call has been cancelled; a second decision is one, too.
    """

    def forward(self, data: bytes | None) -> None:
        """Send the call on.

        None means the bytes as they came, else a whole gRPC frame (prefix and message).
        """

    def refuse(self, code: int, text: str) -> None:
        """End the call with a gRPC status; the runtime never sees the message."""

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        """Charge the memory that the handler holds beside the message, as its decompressed or parsed form.

        It is given back by itself when the message is no longer held: written to the runtime, refused or
        cancelled. `forward` gives up what has not been granted.

        Args:
            size_bytes: all of it together: takes the place of what this call has reserved here before. Less
                is given back at once.
            on_granted: called once, in the loop's thread, when there is room: within this call if there is,
                which is always so while message and reservation have 64 KiB together. Never after the
                decision, a later `reserve` or the end of the call.
        """


class CallHandler(Protocol):
    """Decides on one held call and sees how it ended."""

    def message(self, data: bytes) -> None:
        """All request bytes up to END_STREAM: gRPC prefix and message, as they came.

        The handler answers through the `Reply` it was opened with, at once or later.
        """

    def cancelled(self) -> None:
        """The call ended before the reply was carried out; work for it can stop."""

    def responded(self, outcome: Outcome, data: bytes) -> None:
        """The runtime's answer has arrived and is about to go to the client.

        `data` holds the response's gRPC frame (prefix and message), and is empty unless the
        outcome is SUCCEEDED. Returns quickly: the answer waits for it.
        """


class Interceptor(Protocol):
    """Says which calls are held, and handles them."""

    def holds(self, path: str) -> bool:
        """Whether calls of this `:path` are held."""

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        """A held call's headers have passed; returns its handler."""
