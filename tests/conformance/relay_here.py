"""The relay in a thread of this process: for tests that hold time or the decision in their hands."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Interceptor, Outcome, Reply
from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.connection import ConnectionOptions
from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream
from runtimeproxy.listener import listen
from tests.peers.bytes_client import WAIT_S


class TravellingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward: all timers that are due by then fire."""

    def __init__(self) -> None:
        super().__init__()
        self._travelled_s = 0.0

    def time(self) -> float:
        """The loop's clock."""
        return super().time() + self._travelled_s

    def travel(self, seconds: float) -> None:
        """Puts the clock forward; in the loop's thread."""
        self._travelled_s += seconds


@dataclass
class HeldHere:
    """A call that is held until the test answers; a `CallHandler`."""

    head: CallHead
    reply: Reply
    loop: asyncio.AbstractEventLoop
    arrived: threading.Event = field(default_factory=threading.Event)
    was_cancelled: threading.Event = field(default_factory=threading.Event)
    outcomes: queue.Queue[Outcome] = field(default_factory=queue.Queue)
    data: bytes = b""

    def on_message(self, data: bytes) -> None:
        """The request is there."""
        self.data = data
        self.arrived.set()

    def on_cancelled(self) -> None:
        """The call is over."""
        self.was_cancelled.set()

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        """The answer is there."""
        self.outcomes.put(outcome)

    def forward(self, data: bytes | None = None) -> None:
        """Sends the call on."""
        self.loop.call_soon_threadsafe(self.reply.forward, data)


class HoldingInterceptor:
    """Holds calls of some paths until the test answers.

    Attributes:
        held: The calls, as their headers come.
    """

    def __init__(self, paths: Collection[str]) -> None:
        self._paths = paths
        self.held: queue.Queue[HeldHere] = queue.Queue()

    def intercepts(self, path: str) -> bool:
        """Whether calls of this path are held."""
        return path in self._paths

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        """A call's headers have passed."""
        call = HeldHere(head, reply, asyncio.get_running_loop())
        self.held.put(call)
        return call

    def next(self) -> HeldHere:
        """Waits for the next call, and for its message."""
        call = self.held.get(timeout=WAIT_S)
        assert call.arrived.wait(WAIT_S)
        return call


class RelayHere:
    """Relays from `with` to the end of its block, without policies, with a clock that can travel."""

    def __init__(self, socket: Path, runtime: Path, interceptor: Interceptor | None = None) -> None:
        self.socket = socket
        self._runtime = Upstream("runtime", str(runtime), is_intercepted=True)
        self._interceptor = interceptor or HoldingInterceptor(())
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay-here")
        self._loop = TravellingLoop()
        self._stop = asyncio.Event()
        self._server: RelayServer | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return 0 if self._server is None else self._server.connection_count

    def travel(self, seconds: float) -> None:
        """Puts the clock forward and lets all timers fire that are due by then."""
        self.run_here(lambda: self._loop.travel(seconds))
        # The timers fire in the turn after the one that notices the new time.
        for _ in range(3):
            self.run_here(lambda: None)

    def run_here(self, action: Callable[[], None]) -> None:
        """Runs something in the loop's thread and waits for it."""
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(WAIT_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        relay = RelayOptions(lambda _: self._runtime, self._interceptor, MemoryBudget())
        self._server = RelayServer(ConnectionOptions(relay, self._runtime, upstream_wait_s=10.0))
        listener = listen(str(self.socket))
        try:
            await self._server.start(listener)
            self._ready.set()
            await self._stop.wait()
        finally:
            self._server.stop_accepting()
            listener.release()
            await self._server.drain(0)
