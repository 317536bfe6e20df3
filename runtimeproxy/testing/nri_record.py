"""How a fake runtime does NRI, and what has happened at its socket."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.frontends.nri.ttrpc import MAX_MESSAGE_BYTES

ALL_EVENTS: Final = (1 << (nri.LAST - 1)) - 1
"""Mask of the events of NRI 0.12."""

WAIT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class NriOptions:
    """How a runtime does NRI.

    Attributes:
        runtime_name: As in `Configure`.
        runtime_version: As in `Configure`.
        nri_version: As in `Configure`; "" before 0.12.
        events: Mask of the events that it knows; a plugin that wants others is refused.
        has_event_calls: Whether events have calls of their own, or come as `StateChange`, as before 0.12.
        ignored: Fields of adjustments that it drops without a word, such as `linux.oom_score_adj`.
        config: What `Configure` carries for the plugin.
        request_timeout_s: How long a plugin may take for a request.
        registration_timeout_s: How long a plugin may take for its registration.
        max_message_bytes: What does not fit is synchronized in several messages.
    """

    runtime_name: str = "containerd"
    runtime_version: str = "v2.4.2"
    nri_version: str = "v0.12.5"
    events: int = ALL_EVENTS
    has_event_calls: bool = True
    ignored: frozenset[str] = frozenset()
    config: str = ""
    request_timeout_s: float = 2.0
    registration_timeout_s: float = 5.0
    max_message_bytes: int = MAX_MESSAGE_BYTES

    @classmethod
    def containerd_1_7(cls) -> Self:
        """Those of the last runtimes that have NRI switched off by default."""
        return cls(
            runtime_version="v1.7.28",
            nri_version="",
            events=(1 << nri.REMOVE_CONTAINER) - 1,
            has_event_calls=False,
            ignored=frozenset({"linux.oom_score_adj", "linux.resources.pids"}),
        )


@dataclass(frozen=True)
class NriCall:
    """A call of a plugin, or of the runtime by a plugin (`RegisterPlugin`, `UpdateContainers`).

    Attributes:
        plugin: Its index and name, such as `50-koord`.
        reply: None if there was none.
        error: Why there was none.
        taken_s: How long it took.
    """

    plugin: str
    method: str
    request: Any
    reply: Any
    error: str
    taken_s: float


class NriRecord:
    """What has happened at the socket, safe to read while it does.

    Attributes:
        problems: Why plugins were refused or dropped, and what has failed without a consequence.
    """

    def __init__(self, *, keeps_calls: bool = True) -> None:
        self.problems: list[str] = []
        self._keeps_calls = keeps_calls
        self._calls: list[NriCall] = []
        self._changed = threading.Condition()

    @property
    def calls(self) -> list[NriCall]:
        """All calls, in the order in which they ended."""
        with self._changed:
            return list(self._calls)

    def of(self, method: str) -> list[NriCall]:
        """The calls of one method."""
        return [each for each in self.calls if each.method == method]

    def clear(self) -> None:
        """Forgets all calls and problems."""
        with self._changed:
            self._calls.clear()
            self.problems.clear()

    def add(self, call: NriCall) -> None:
        """Adds a call."""
        with self._changed:
            if self._keeps_calls:
                self._calls.append(call)
            self._changed.notify_all()

    def add_problem(self, text: str) -> None:
        """Adds a problem."""
        with self._changed:
            self.problems.append(text)
            self._changed.notify_all()

    def notify(self) -> None:
        """Has the conditions looked at that others wait for."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, method: str, count: int = 1, timeout_s: float = WAIT_S) -> list[NriCall]:
        """Waits until there are so many calls of a method; returns them.

        Raises:
            TimeoutError: There are fewer after the time.
        """
        self.wait_for(lambda: len(self.of(method)) >= count, f"{count} calls of {method}", timeout_s)
        return self.of(method)

    def wait_for(self, is_true: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Waits until something holds.

        Raises:
            TimeoutError: It does not after the time.
        """
        with self._changed:
            if not self._changed.wait_for(is_true, timeout_s):
                raise TimeoutError(f"not after {timeout_s:g} s: {what}; {self.problems}")
