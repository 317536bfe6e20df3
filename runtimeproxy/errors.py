"""Errors of the proxy, and the form of its own refusals."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

MESSAGE_PREFIX = "koord-runtime-proxy: "
"""Begins the status message of every refusal by the proxy, so that it is never taken for the runtime's."""

MAX_ERROR_LENGTH: Final = 512
"""Of the text of an error in third-party code, in characters: logs and status are read by people."""


class StatusCode(IntEnum):
    """gRPC status codes by number. Source: the gRPC specification, doc/statuscodes.md."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RuntimeProxyError(Exception):
    """Base class of the proxy's own errors."""


UNLIKE_OURS: Final = (
    RuntimeProxyError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading a document raises that is not as this program has written it."""


class ConfigError(RuntimeProxyError):
    """A flag, environment variable or configuration file that cannot be used; ends a start with exit code 2.

    Attributes:
        source: where the value came from: the file's path, "flag" or "environment".
        key: the dotted key or flag; empty for the whole source.
        reason: the problem, for people.
    """

    def __init__(self, source: str, key: str, reason: str) -> None:
        self.source = source
        self.key = key
        self.reason = reason
        super().__init__(": ".join(part for part in (source, key, reason) if part))


class PolicyLoadError(RuntimeProxyError):
    """A policy that cannot be loaded: misspelled hook, wrong signature, duplicate name."""

    def __init__(self, reason: str, origin: str = "") -> None:
        super().__init__(f"{origin}: {reason}" if origin else reason)
        self.reason = reason


class RefusalError(RuntimeProxyError):
    """Raised by a policy to refuse the call: the kubelet gets this code and text.

    The code is kept, except that NOT_FOUND becomes FAILED_PRECONDITION: the kubelet takes NotFound on
    stop and remove for success.
    """

    def __init__(self, text: str, code: StatusCode = StatusCode.FAILED_PRECONDITION) -> None:
        self.code = StatusCode.FAILED_PRECONDITION if code is StatusCode.NOT_FOUND else code
        self.text = text
        super().__init__(text)


def described(error: BaseException) -> str:
    """Return type and text of an error in third-party code as one line of valid UTF-8."""
    try:
        text = " ".join(str(error).split())[:MAX_ERROR_LENGTH]
        text = text.encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - an exception's own __str__ is a third party's code too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
