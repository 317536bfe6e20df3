"""Delays, failures and answers that a test sets for calls of the fake runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypedDict

from runtimeproxy.errors import StatusCode

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message


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
    """The failure for an unknown id."""
    return CallError("NOT_FOUND", f"{kind} {wanted!r}: not found")


Metadata = tuple[tuple[str, str | bytes], ...]

EVERY_METHOD = "*"
"""Stands for all methods that have no behaviour of their own."""


def checked_name(name: str, known: Iterable[str], kind: str) -> str:
    """Returns a name that a test gives, or refuses a misspelled one, which would silently have no effect.

    Raises:
        ValueError: It is not known; the text has the names that were probably meant.
    """
    names = sorted(known)
    if name in names:
        return name
    import difflib

    near = difflib.get_close_matches(str(name), names, n=3) or names
    raise ValueError(f"there is no {kind} {name!r}; did you mean {' or '.join(near[:3])}?")


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How the calls of one method behave. Delay, hang and error come in this order.

    Attributes:
        delay_s: Time to wait, in seconds; a call that ends meanwhile is not carried out.
        hang: Wait until the call ends or is released.
        error: Failure to answer with.
        response: Answer instead of the fake's own, which then does nothing: a message or its bytes.
        initial_metadata: Headers, sent at once.
        trailing_metadata: Trailers of a successful answer.
        gzip: Compress the answer.
        after: Delay, hang and error come once the call was carried out, not before.
        before_message: Answer without reading the request message (unary calls; needs error or
            response).
        times: Number of calls that behave so; ``None`` for all.
    """

    delay_s: float = 0.0
    hang: bool = False
    error: CallError | None = None
    response: bytes | Message | None = None
    initial_metadata: Metadata = ()
    trailing_metadata: Metadata = ()
    gzip: bool = False
    after: bool = False
    before_message: bool = False
    times: int | None = None


class BehaviourFields(TypedDict, total=False):
    """The fields of ``Behaviour`` as keyword arguments."""

    delay_s: float
    hang: bool
    error: CallError | None
    response: bytes | Message | None
    initial_metadata: Metadata
    trailing_metadata: Metadata
    gzip: bool
    after: bool
    before_message: bool
    times: int | None


NORMAL = Behaviour()
"""The fake does its work."""


class Behaviours:
    """Behaviours by method; of one method the last that was set and is not used up holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, list[tuple[Behaviour, list[None]]]] = {}

    def set(self, method: str, behaviour: Behaviour) -> None:
        """Sets the behaviour of a method from the next call on."""
        with self._lock:
            self._entries.setdefault(method, []).append((behaviour, []))

    def clear(self, method: str | None = None) -> None:
        """Forgets the behaviours of a method, or all with ``None``."""
        with self._lock:
            if method is None:
                self._entries.clear()
            else:
                self._entries.pop(method, None)

    def take(self, method: str) -> Behaviour:
        """The behaviour of the next call of a method."""
        if not self._entries:
            return NORMAL
        with self._lock:
            for key in (method, EVERY_METHOD):
                for behaviour, uses in reversed(self._entries.get(key, [])):
                    if behaviour.times is None:
                        return behaviour
                    if len(uses) < behaviour.times:
                        uses.append(None)
                        return behaviour
        return NORMAL
