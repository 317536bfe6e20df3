"""Load in a process of its own: reads a plan as JSON on standard input, writes what it measured as JSON.

All lanes (ways to the runtime) of a plan are driven in turns, a few cycles each, so that whatever else the
machine does meets all of them alike.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from cri_api.runtime.v1 import api_pb2
from tests.bench.procfs import cpu_ns
from tests.bench.scenarios import SERVICE, Cycle, Pod, Step, cycles
from tests.peers.load_client import Connection, HeaderEncoder, StatusReader
from tests.peers.wire import message as grpc_message

_UNIFORM = {"version": SERVICE + "Version", "list": SERVICE + "ListContainers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do on each lane."""

    sockets: dict[str, str]
    """Lane name to socket."""
    pids: dict[str, int] = field(default_factory=dict)
    """Lane name to the process whose CPU time counts."""
    pods: dict[str, dict[str, str]] = field(default_factory=dict)
    """Lane name to the pod that its calls are about."""
    scenario: str
    count: int
    """Cycles per lane."""
    in_flight: int = 1
    turn: int = 0
    """Cycles of one lane before the next one's turn; 0 for all."""
    warm_up: int = 20
    kubelet_headers: bool = False
    """A deadline and a new traceparent in each call."""


@dataclass(slots=True)
class Measured:
    """What one lane took."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    latencies_us: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Blocks:
    """Header blocks of one connection; those that differ in each call are made before the clock starts."""

    def __init__(self, *, kubelet: bool) -> None:
        self._kubelet = kubelet
        # Source: kubelet, runtimeRequestTimeout 2m; grpc-go encodes it in milliseconds.
        self._encoder = HeaderEncoder((("grpc-timeout", "120000m"),) if kubelet else ())
        self._made: deque[bytes] = deque()
        self._calls = 0
        self._seen: dict[str, bytes] = {}
        self._stable: dict[str, bytes] = {}

    def prepare(self, path: str, count: int) -> None:
        """Makes the next blocks, which must all be for this path."""
        self._made.extend(self._encode(path) for _ in range(count))

    def take(self, path: str) -> bytes:
        """The next block."""
        if self._made:
            return self._made.popleft()
        return self._stable.get(path) or self._encode(path)

    def _encode(self, path: str) -> bytes:
        if self._kubelet:
            self._calls += 1
            trace = (
                f"00-{self._calls * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}-{self._calls:016x}-01"
            )
            return self._encoder.block(path, ("traceparent", trace))
        block = self._encoder.block(path)
        # Without a changing field the second block of a path says "as before" and stays so.
        if self._seen.get(path) == block:
            self._stable[path] = block
        self._seen[path] = block
        return block


class Lane:
    """One connection and what was measured on it."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan = plan
        self.pod = (
            Pod.from_words(plan.pods[name]) if name in plan.pods else Pod("", api_pb2.PodSandboxConfig())
        )
        self.pid = plan.pids.get(name)
        self.connection = Connection(plan.sockets[name])
        self.blocks = Blocks(kubelet=plan.kubelet_headers)
        self.measured = Measured()

    def warm_up(self) -> None:
        """Runs the first cycles and forgets what they took."""
        self._prepare(self.plan.warm_up)
        self._run(cycles(self.plan.scenario, self.pod, self.plan.warm_up))
        self.measured = Measured()
        self._prepare(self.plan.count)

    def turn(self, work: Iterator[Cycle]) -> None:
        """Runs cycles with the clocks on."""
        cpu_before = cpu_ns(self.pid) if self.pid else 0
        before = time.perf_counter()
        self._run(work)
        self.measured.seconds += time.perf_counter() - before
        self.measured.cpu_s += ((cpu_ns(self.pid) if self.pid else 0) - cpu_before) / 1e9

    def finish(self) -> Measured:
        """Closes the connection and looks at how the calls ended."""
        self.connection.close()
        self.measured.failures.extend(StatusReader().failures(self.connection.blocks))
        return self.measured

    def _prepare(self, count: int) -> None:
        path = _UNIFORM.get(self.plan.scenario)
        if path is not None:
            self.blocks.prepare(path, count)

    def _run(self, work: Iterator[Cycle]) -> None:
        running: dict[int, tuple[Cycle, Step, float]] = {}
        starting = [(cycle, next(cycle)) for cycle in islice(work, self.plan.in_flight)]
        clock = time.perf_counter
        while starting or running:
            if starting:
                self._start(starting, running)
                starting = []
            ended = self.connection.completed()
            now = clock()
            for stream in ended:
                cycle, step, began = running.pop(stream)
                self.measured.latencies_us.setdefault(step.name, []).append((now - began) * 1e6)
                following = self._following(cycle, stream, work)
                if following is not None:
                    starting.append(following)

    def _start(
        self, starting: list[tuple[Cycle, Step]], running: dict[int, tuple[Cycle, Step, float]]
    ) -> None:
        calls = [(self.blocks.take(step.method), grpc_message(step.message)) for _, step in starting]
        began = time.perf_counter()
        streams = self.connection.send(calls)
        for stream, (cycle, step) in zip(streams, starting, strict=True):
            running[stream] = (cycle, step, began)

    def _following(self, cycle: Cycle, stream: int, work: Iterator[Cycle]) -> tuple[Cycle, Step] | None:
        answer = self.connection.answers.pop(stream, b"")
        try:
            return cycle, cycle.send(bytes(answer[5:]))
        except StopIteration:
            pass
        following = next(work, None)
        return None if following is None else (following, next(following))


def run(plan: Plan) -> dict[str, Measured]:
    """Carries a plan out."""
    lanes = {name: Lane(plan, name) for name in plan.sockets}
    for lane in lanes.values():
        lane.warm_up()
    gc.collect()
    gc.disable()
    work = {name: cycles(plan.scenario, lane.pod, plan.count) for name, lane in lanes.items()}
    turn = plan.turn or plan.count
    for _ in range(0, plan.count, turn):
        for name, lane in lanes.items():
            lane.turn(islice(work[name], turn))
    gc.enable()
    return {name: lane.finish() for name, lane in lanes.items()}


def main() -> None:
    """Plan in, measurements out."""
    plan: dict[str, Any] = json.load(sys.stdin)
    measured = run(Plan(**plan))
    json.dump({name: asdict(lane) for name, lane in measured.items()}, sys.stdout)


if __name__ == "__main__":
    main()
