"""The handler of an intercepted call that is traced.

Both sides of it are observed: what the relay reports to it, and its reply. A call that is not sampled has its
handler alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.cri_proxy.calls.call_trace import CANCELLED, REFUSED, CallTrace
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import InterceptedCall
from runtimeproxy.hooks.traceparent import parse_traceparent

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import TraceSink
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Outcome, Reply


class _TracedReply:
    """The `Reply` of a handler: notes when and how the call was decided."""

    __slots__ = ("_reply", "_trace")

    def __init__(self, reply: Reply, trace: CallTrace) -> None:
        self._reply = reply
        self._trace = trace

    def forward(self, data: bytes | None) -> None:
        self._trace.decided_s = time.monotonic()
        self._trace.is_changed = data is not None
        self._reply.forward(data)

    def refuse(self, code: int, text: str) -> None:
        trace = self._trace
        trace.decided_s, trace.code, trace.reason = time.monotonic(), StatusCode(code), text
        self._reply.refuse(code, text)
        trace.end(REFUSED)

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        self._reply.reserve(size_bytes, on_granted)

    def keep(self, size_bytes: int) -> bool:
        return self._reply.keep(size_bytes)


class _TracedHandler:
    """The `CallHandler` in front of a handler: notes when the message came and how the call ended."""

    __slots__ = ("_handler", "_trace")

    def __init__(self, handler: CallHandler, trace: CallTrace) -> None:
        self._handler = handler
        self._trace = trace

    def on_message(self, data: bytes) -> None:
        self._trace.message_s = time.monotonic()
        self._handler.on_message(data)

    def on_cancelled(self) -> None:
        self._handler.on_cancelled()
        self._trace.end(CANCELLED)

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        self._handler.on_response(outcome, data)
        self._trace.end(outcome.value)


def open_traced(sink: TraceSink, services: CallServices, head: CallHead, reply: Reply) -> CallHandler:
    """The handler of an intercepted call, which is traced if the client records it, or by chance."""
    parent = parse_traceparent(head.traceparent)
    if not (sink.samples() if parent is None else parent.is_sampled):
        return InterceptedCall(services, head, reply)
    trace = CallTrace(head.path, parent, sink, head.waited_s)
    return _TracedHandler(InterceptedCall(services, head, _TracedReply(reply, trace), trace), trace)
