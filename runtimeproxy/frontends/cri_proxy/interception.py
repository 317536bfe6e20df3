"""The narrow interface between the relay and the handlers of intercepted calls.

The relay knows bytes, the handlers know the CRI; the daemon joins them. Everything here happens in the event
loop's thread. For each intercepted call the relay gets a handler from `Interceptor.open` and then calls, in
this order: `on_message` once; after the handler's reply `on_response` once. `on_cancelled` ends the call at
any point before the reply has been carried out; nothing is called after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX_BYTES: Final = 5
"""In front of each gRPC message: one byte of flags and four of length.

Source: the gRPC specification, doc/PROTOCOL-HTTP2.md, "Length-Prefixed-Message".
"""

DEFAULT_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Source: containerd and the kubelet's CRI client both stop at 16 MiB."""


class Outcome(Enum):
    """How an intercepted call ended, as far as the frames that passed show."""

    SUCCEEDED = "succeeded"
    """One complete response message and then END_STREAM."""
    FAILED = "failed"
    """END_STREAM without a message: the runtime answered with an error (its code is not known)."""
    UNKNOWN = "unknown"
    """A reset, a cancel after the message was sent, a message without END_STREAM, a lost connection."""


@dataclass(slots=True)
class CallHead:
    """The request headers of an intercepted call."""

    path: str
    """`/package.Service/Method`."""
    timeout_s: float | None
    """From `grpc-timeout`; None when the caller gave no deadline."""
    encoding: str
    """From `grpc-encoding`; `identity` when absent."""
    waited_s: float = 0.0
    """The part of its time budget that a call had used before it was opened here."""
    connection: object = None
    """The same object for all calls of one connection; None if it is not known."""
    encoded_traceparent: bytes = b""
    """See `runtimeproxy.http2.header_fields.decoded`: most calls do without it."""

    @property
    def traceparent(self) -> str:
        """Empty if the client does not trace. Source: W3C Trace Context, "traceparent Header"."""
        from runtimeproxy.http2.header_fields import decoded

        return decoded(self.encoded_traceparent).decode("latin-1")


class Reply(Protocol):
    """Takes the decision on an intercepted call: `forward` or `refuse`, once, in the loop's thread.

    All methods do nothing before `CallHandler.on_message` was called (also inside `Interceptor.open`, when
    the headers have not gone out yet), after the call was cancelled, and after the first decision.
    """

    def forward(self, data: bytes | None) -> None:
        """Forward the call: a whole gRPC frame (prefix and message), or None for the bytes as they came."""

    def refuse(self, code: int, text: str) -> None:
        """End the call with a gRPC status; the runtime never sees the message."""

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        """Charge the memory that the handler holds beside the message, as its decompressed or parsed form.

        The reservation ends with the message: when it is written to the runtime, refused or cancelled.
        `forward` withdraws one that has not been granted.

        Args:
            size_bytes: all of it together: replaces what this call has reserved before; a surplus is given
                back at once.
            on_granted: called once, in the loop's thread, when there is room: before this returns if there
                is, which is always so while message and reservation have 64 KiB together. Never after the
                decision, a later `reserve` or the end of the call.
        """

    def keep(self, size_bytes: int) -> bool:
        """Charge the memory that the handler holds until the call is answered; once, before `forward`.

        Returns:
            Whether there is room. If not, the handler must not hold it; nothing waits for room.
        """


class CallHandler(Protocol):
    """Decides on one intercepted call and records how it ended."""

    def on_message(self, data: bytes) -> None:
        """Takes all request bytes up to END_STREAM: gRPC prefix and message, as they came.

        The handler answers through the `Reply` it was opened with, at once or later.
        """

    def on_cancelled(self) -> None:
        """The call ended before the reply was carried out: stop all work for it."""

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        """The runtime has answered; the response goes to the client when this returns, so return quickly.

        `data` is the response's gRPC frame (prefix and message); empty unless the outcome is SUCCEEDED.
        """


class Interceptor(Protocol):
    """Chooses the calls to intercept, and makes their handlers."""

    def intercepts(self, path: str) -> bool:
        """Whether calls of this `:path` are intercepted."""

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        """The headers of an intercepted call have passed: returns its handler."""
