"""The calls that reached the fake runtime."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import checked_name

METHOD_NAMES = frozenset(
    method.name for service in api_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods
)
"""Names of all methods of the CRI."""


@dataclass
class RecordedCall:
    """One call.

    Attributes:
        method: Name of the method, such as ``CreateContainer``.
        path: Path as the client sent it; tells ``runtime.v1`` from ``runtime.v1alpha2``.
        raw: Request message as bytes; empty where the fake answered before the message.
        metadata: Request headers that gRPC shows to a server.
        deadline_s: Seconds left when the call arrived; ``None`` without a deadline.
        at_s: Time of arrival, of the monotonic clock.
        answered: Whether the fake has answered, be it with an error.
        ended: Set when the call is over for gRPC: its status was sent, or it was cancelled.
        resumed: Set to end a delay or hang.
    """

    method: str
    path: str
    raw: bytes
    metadata: tuple[tuple[str, str | bytes], ...]
    deadline_s: float | None
    request_type: type[Message] = field(repr=False)
    at_s: float = field(default_factory=time.monotonic)
    answered: bool = False
    ended: threading.Event = field(default_factory=threading.Event, repr=False)
    resumed: threading.Event = field(default_factory=threading.Event, repr=False)

    @cached_property
    def message(self) -> Any:  # noqa: ANN401 - a class of its own for each method
        """The request as a message of ``api_pb2``."""
        return self.request_type.FromString(self.raw)

    @property
    def cancelled(self) -> bool:
        """Whether the call ended before the fake answered: cancelled, or past its deadline."""
        return self.ended.is_set() and not self.answered

    def end(self) -> None:
        """Notes that the call is over."""
        self.ended.set()
        self.resumed.set()


class RecordedCalls:
    """Calls in the order of arrival, safe to read while calls come in."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._calls: list[RecordedCall] = []

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(list(self._calls))

    def __getitem__(self, index: int) -> RecordedCall:
        return self._calls[index]

    @property
    def methods(self) -> list[str]:
        """Names of the methods in the order of arrival."""
        return [call.method for call in self]

    def of(self, method: str) -> list[RecordedCall]:
        """Calls of one method; ValueError if the CRI has no such method."""
        checked_name(method, METHOD_NAMES, "method")
        return [call for call in self if call.method == method]

    def add(self, call: RecordedCall) -> None:
        """Adds a call."""
        with self._arrived:
            self._calls.append(call)
            self._arrived.notify_all()

    def clear(self) -> None:
        """Forgets all calls."""
        with self._arrived:
            self._calls.clear()

    def wait(self, method: str, count: int = 1, timeout_s: float = 30.0) -> list[RecordedCall]:
        """Waits until ``count`` calls of a method have arrived and returns all of them.

        Raises:
            TimeoutError: They have not within the time.
            ValueError: The CRI has no such method.
        """
        checked_name(method, METHOD_NAMES, "method")
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.of(method)) >= count, timeout_s):
                raise TimeoutError(f"{len(self.of(method))} of {count} calls of {method}")
            return self.of(method)
