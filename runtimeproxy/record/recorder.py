"""Records intercepted calls in a running daemon. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.record.entries import CallTaken, Decided, Encoder, ResponseTaken, Taken
from runtimeproxy.record.redaction import KEY_BYTES

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.frontends.cri_proxy.calls.methods import CallKind
    from runtimeproxy.frontends.cri_proxy.interception import Outcome
    from runtimeproxy.hooks.decision import Decision
    from runtimeproxy.hooks.policy import Hook
    from runtimeproxy.node.snapshot import Node

MAX_WAITING: Final = 4096
"""Calls and responses that wait to be written; more, and the recording ends."""
MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Of their requests."""
BATCH: Final = 16
"""Entries that a worker thread makes at a time; each takes some hundred microseconds."""

TOO_SLOW: Final = "the recording was not read in time, and has ended; record again, to a faster disk"

ENDED: Final = "the recording has ended"


class Recorder:
    """One recording; `CallServices.recorder` while it goes on.

    Attributes:
        problem: why it has ended; empty as long as it has not.
        started_s: when it was made, in seconds since the epoch.
    """

    def __init__(
        self,
        services: CallServices,
        *,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.problem = ""
        self.started_s = time.time()
        self._services = services
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._number = 0
        self._waiting: deque[Taken] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()

    async def lines(self, executor: Executor) -> AsyncGenerator[bytes, None]:
        """Records calls until the caller stops, and yields lines; ends early with `problem` set."""
        services, core, run = self._services, self._services.core, asyncio.get_running_loop().run_in_executor
        encoder = Encoder(os.urandom(KEY_BYTES))
        records = (*core.store.pods, *core.store.containers)
        start = partial(encoder.start, time.time(), core.chain.node.latest, records, core.chain.policies)
        # From now on: a call that ends while the records are written follows them.
        services.recorder = self
        try:
            yield await run(executor, lambda: b"".join(start()))
            while not self.problem:
                await self._wake.wait()
                taken = self._take()
                data = await run(executor, _encoded, encoder, taken)
                if data:
                    yield data
        finally:
            # Calls that are under way are not waited for.
            self.end(ENDED)

    def _take(self) -> Sequence[Taken]:
        taken = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        self._waiting_bytes -= sum(len(each.frame) for each in taken)
        if not self._waiting:
            self._wake.clear()
        return taken

    @property
    def calls(self) -> int:
        return self._number

    @property
    def node(self) -> Node:
        return self._services.core.chain.node.latest

    def begin(self, kind: CallKind, frame: bytes, encoding: str) -> CallInRecording:
        return CallInRecording(self, kind, frame, encoding)

    def next_number(self) -> int:
        """The number of the next call that is decided."""
        self._number += 1
        return self._number

    def put(self, taken: Taken) -> None:
        """Takes a call or response; never waits."""
        if self.problem:
            return
        self._waiting.append(taken)
        self._waiting_bytes += len(taken.frame)
        if len(self._waiting) > self._max_waiting or self._waiting_bytes > self._max_waiting_bytes:
            self.end(TOO_SLOW)
        self._wake.set()

    def end(self, problem: str) -> None:
        """Ends the recording, with a reason; what waits is not written any more."""
        self.problem = self.problem or problem
        self._waiting.clear()
        if self._services.recorder is self:
            self._services.recorder = None
        self._wake.set()


def _encoded(encoder: Encoder, taken: Sequence[Taken]) -> bytes:
    # In a worker thread.
    return b"".join(line for each in taken for line in encoder.lines(each))


class CallInRecording:
    """One call of a recording."""

    __slots__ = ("_decisions", "_encoding", "_frame", "_kind", "_node", "_number", "_recorder", "_time_s")

    def __init__(self, recorder: Recorder, kind: CallKind, frame: bytes, encoding: str) -> None:
        self._recorder = recorder
        self._kind = kind
        self._frame = frame
        self._encoding = encoding
        self._time_s = time.time()
        self._number = 0
        self._node: Node | None = None
        self._decisions: list[Decided] = []

    def on_decision(self, hook: Hook, decision: Decision) -> None:
        self._decisions.append(Decided(hook, decision))
        self._node = self._recorder.node

    def on_decided(self) -> None:
        """The call goes to the runtime now, or is refused."""
        recorder, self._number = self._recorder, self._recorder.next_number()
        node = recorder.node if self._node is None else self._node
        recorder.put(
            CallTaken(
                self._number,
                self._time_s,
                self._kind,
                self._frame,
                self._encoding,
                node,
                tuple(self._decisions),
            )
        )
        self._frame, self._node, self._decisions = b"", None, []

    def on_response(self, outcome: Outcome, frame: bytes) -> None:
        if self._number:
            self._recorder.put(ResponseTaken(self._number, self._kind, outcome, frame))
