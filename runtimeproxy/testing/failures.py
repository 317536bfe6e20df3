"""How a call of the fake runtime fails: code, message, details and trailers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from runtimeproxy.errors import StatusCode
from runtimeproxy.testing.behaviours import checked_name

if TYPE_CHECKING:
    import grpc

DETAILS_TRAILER = "grpc-status-details-bin"
"""Trailer that carries a serialized ``google.rpc.Status``."""


@dataclass(eq=False)
class CallError(Exception):
    """The end of a call with a code other than OK.

    Attributes:
        code: Name of a gRPC status code but OK, such as ``NOT_FOUND``; ValueError for any other text.
        message: Status message, any Unicode text.
        details: Content of the ``grpc-status-details-bin`` trailer; ``None`` sends none.
        trailing_metadata: More trailers; values of keys that end in ``-bin`` are bytes.
    """

    code: str
    message: str = ""
    details: bytes | None = None
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()

    def __post_init__(self) -> None:
        checked_name(
            self.code, (each.name for each in StatusCode if each is not StatusCode.OK), "status code"
        )

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def abort(self, context: grpc.ServicerContext) -> NoReturn:
        """Ends the call of the context with this failure."""
        import grpc

        trailers = list(self.trailing_metadata)
        if self.details is not None:
            trailers.append((DETAILS_TRAILER, self.details))
        if trailers:
            context.set_trailing_metadata(tuple(trailers))
        context.abort(grpc.StatusCode[self.code], self.message)
        raise self


def not_found(kind: str, wanted: str) -> CallError:
    """The failure for an id that nothing has."""
    return CallError("NOT_FOUND", f"{kind} {wanted!r}: not found")
