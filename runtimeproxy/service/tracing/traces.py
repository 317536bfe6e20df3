"""The way of finished traces to a collector: a bounded queue, and a thread that sends what is in it.

A collector that is slow or away loses spans, which are counted. It never delays a call.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from runtimeproxy.counts import Counts
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.config.settings import TracingSettings
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace

logger = logging.getLogger(__name__)

GATHER_S: Final = 1.0
"""How long the first span waits for others, to be sent with them."""
MOST_QUEUED: Final = 2048
"""Spans that wait for the collector: some MiB. Source: the default of OpenTelemetry's batch processors."""
MOST_AT_ONCE: Final = 512
"""Source: the default of OpenTelemetry's batch processors."""
CLOSE_S: Final = 1.0
"""How long the end of the process waits for the collector."""


class Sender(Protocol):
    """Sends spans; used in one thread, but for `close`."""

    def send(self, traces: Sequence[CallTrace]) -> bool:
        """Makes spans of these calls and sends them; returns whether the collector has taken them."""

    def close(self) -> None:
        """Ends a call of `send` that is under way in another thread."""


MakeSender = Callable[[str, FailureLog], Sender]
"""Makes the sender to an endpoint."""


def _otlp_sender(endpoint: str, failures: FailureLog) -> Sender:
    sender: Sender = importlib.import_module("runtimeproxy.service.tracing.otlp").OtlpSender(
        endpoint, failures
    )
    return sender


class Traces:
    """A `TraceSink`; used in the event loop's thread.

    Args:
        settings: see `TracingSettings`; the endpoint is set.
        make_sender: makes what sends, in the thread that sends.
        gather_s: how long the first span waits for others, in seconds.

    Attributes:
        sent: spans that the collector has taken since the start.
        lost: spans that it has not, or that did not fit into the queue.
        problem: why the last spans were lost; empty if they were sent.
    """

    def __init__(
        self,
        settings: TracingSettings,
        make_sender: MakeSender = _otlp_sender,
        gather_s: float = GATHER_S,
    ) -> None:
        self._settings = settings
        self._gather_s = gather_s
        self._gathered: list[CallTrace] = []
        self._queue: SimpleQueue[list[CallTrace] | None] = SimpleQueue()
        self._queued: Counts[None] = Counts()
        self._lost: Counts[None] = Counts()
        self._failures = FailureLog()
        self._sender: Sender | None = None
        self._is_closing = False
        self.sent = 0
        self.problem = ""
        self._thread = threading.Thread(target=self._run, args=(make_sender,), name="traces", daemon=True)

    @property
    def lost(self) -> int:
        return sum(self._lost.read().values())

    @property
    def endpoint(self) -> str:
        return self._settings.endpoint

    def start(self) -> None:
        self._thread.start()

    def configure(self, settings: TracingSettings) -> None:
        # Another endpoint needs a new process.
        self._settings = settings

    def samples(self) -> bool:
        return random.random() < self._settings.ratio  # noqa: S311 - no secret

    def take(self, trace: CallTrace) -> None:
        """Takes a call that has ended; never blocks."""
        if sum(self._queued.read().values()) + len(self._gathered) >= MOST_QUEUED:
            self._lost.add(None)
            self.problem = f"spans came faster than {self.endpoint} takes them"
            return
        if not self._gathered:
            asyncio.get_running_loop().call_later(self._gather_s, self._pass_on)
        self._gathered.append(trace)

    def close(self) -> None:
        """Sends what is gathered, for a bounded time."""
        self._pass_on()
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        self._is_closing = True
        if self._sender is not None:
            self._sender.close()

    def _pass_on(self) -> None:
        traces, self._gathered = self._gathered, []
        if traces:
            self._queued.add(None, len(traces))
            self._queue.put(traces)

    def _run(self, make_sender: MakeSender) -> None:
        """In the thread: sends until the end."""
        try:
            self._sender = make_sender(self._settings.endpoint, self._failures)
        except Exception as error:  # noqa: BLE001 - a library that cannot be used costs the spans, not the daemon
            text = f"traces cannot be sent to {self.endpoint}: {error}"
            self._failures.report("traces", type(error).__name__, text, level=logging.ERROR, error=error)
        while (traces := self._queue.get()) is not None and not self._is_closing:
            for first in range(0, len(traces), MOST_AT_ONCE):
                self._send(traces[first : first + MOST_AT_ONCE])

    def _send(self, traces: Sequence[CallTrace]) -> None:
        is_sent = False
        try:
            is_sent = self._sender is not None and self._sender.send(traces)
        except Exception as error:  # noqa: BLE001 - a bug costs these spans, not the thread
            self._failures.report("traces", type(error).__name__, f"{type(error).__name__}", error=error)
        if is_sent:
            self.sent += len(traces)
            self.problem = ""
        else:
            self._lost.add(None, len(traces))
            self.problem = self._failures.last or f"{self.endpoint} has not taken them"
        self._queued.add(None, -len(traces))
