"""The interceptor of the first moments: serves before whatever decides on held calls is loaded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.interception import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.interception import CallHandler, CallHead, Interceptor, Reply

_SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")
_METHODS: Final = (
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "StopContainer",
    "StopPodSandbox",
    "RemoveContainer",
    "RemovePodSandbox",
    "RestorePod",
)
HELD_PATHS: Final = frozenset(f"/{service}/{method}" for service in _SERVICES for method in _METHODS)
"""The calls that `runtimeproxy.calls.methods` knows, without loading it."""


class Gate:
    """Holds calls until the real interceptor is there, then hands them and all later ones to it.

    Args:
        budget_s: how long a call waits here, or a quarter of its deadline if that is less.
        refuses: whether it is refused then; else it is forwarded as it came.

    Attributes:
        bypass: while it is set, new calls pass unheld.
        on_unseen: told of each call that was forwarded from here and did not fail.
    """

    def __init__(self, budget_s: float, *, refuses: bool = False) -> None:
        self._budget_s = budget_s
        self._refuses = refuses
        self._interceptor: Interceptor | None = None
        self._waiting: dict[_EarlyCall, None] = {}
        self.bypass = False
        self.on_unseen: Callable[[], None] = _nothing

    def holds(self, path: str) -> bool:
        """Whether calls of this `:path` are held."""
        return path in HELD_PATHS and not self.bypass

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        """The handler of a held call."""
        if self._interceptor is not None:
            return self._interceptor.open(head, reply)
        call = _EarlyCall(self, head, reply, self._budget_s, refuses=self._refuses)
        self._waiting[call] = None
        return call

    def left(self, call: _EarlyCall) -> None:
        """A call waits no more."""
        self._waiting.pop(call, None)

    def hand_over(self, interceptor: Interceptor) -> None:
        """Gives all calls to the real interceptor, in the order in which they came."""
        self._interceptor = interceptor
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.hand_over(interceptor)


class _EarlyCall:
    """A held call that waits for the real interceptor, then stands before that one's handler."""

    __slots__ = (
        "_gate",
        "_head",
        "_hold_s",
        "_is_over",
        "_message",
        "_real",
        "_refuses",
        "_reply",
        "_since_s",
        "_timer",
    )

    def __init__(self, gate: Gate, head: CallHead, reply: Reply, budget_s: float, *, refuses: bool) -> None:
        self._gate = gate
        self._since_s = 0.0
        self._head = head
        self._reply = reply
        self._refuses = refuses
        self._hold_s = budget_s if head.timeout_s is None else min(budget_s, head.timeout_s / 4)
        self._message: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._real: CallHandler | None = None
        self._is_over = False

    def message(self, data: bytes) -> None:
        """Keeps the request until somebody can read it."""
        if self._real is not None:
            self._real.message(data)
            return
        self._message = data
        loop = asyncio.get_running_loop()
        self._since_s = loop.time()
        self._timer = loop.call_later(self._hold_s, self._pass)

    def cancelled(self) -> None:
        """Ends the waiting."""
        self._end()
        if self._real is not None:
            self._real.cancelled()

    def responded(self, outcome: Outcome, data: bytes) -> None:
        """Tells the real handler; a call that was forwarded from here was seen by nobody."""
        if self._real is not None:
            self._real.responded(outcome, data)
        elif outcome is not Outcome.FAILED:
            self._gate.on_unseen()

    def hand_over(self, interceptor: Interceptor) -> None:
        """The real interceptor is there."""
        if self._is_over:
            return
        message = self._message
        self._end()
        head = self._head
        if message is not None:
            head = replace(head, waited_s=asyncio.get_running_loop().time() - self._since_s)
        self._real = interceptor.open(head, self._reply)
        if message is not None:
            self._real.message(message)

    def _pass(self) -> None:
        self._end()
        if self._refuses:
            self._reply.refuse(StatusCode.UNAVAILABLE, f"{MESSAGE_PREFIX}the policies are not loaded yet")
        else:
            self._reply.forward(None)

    def _end(self) -> None:
        self._is_over = True
        self._gate.left(self)
        self._message = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None:
    return
