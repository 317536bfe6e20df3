"""Calls at a fixed rate, in a process of their own: a plan as JSON on standard input, latencies as JSON out.

A call is sent when it is due, whether or not the ones before it were answered.
"""

from __future__ import annotations

import gc
import json
import select
import sys
import time
from dataclasses import dataclass

from cri_api.runtime.v1 import api_pb2
from tests.bench.generator import Blocks
from tests.bench.scenarios import Cycle, Pod, Step, cycles
from tests.peers.load_client import Connection, StatusReader
from tests.peers.wire import message

_WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Paced:
    """A load: cycles of a scenario, so many a second; the steps of a cycle follow each other at once."""

    socket: str
    scenario: str
    per_s: float
    seconds: float
    pod: dict[str, str] | None = None


class Load:
    """One connection with the cycles that run on it."""

    def __init__(self, plan: Paced) -> None:
        self._plan = plan
        self._connection = Connection(plan.socket)
        self._blocks = Blocks(kubelet=True)
        self._running: dict[int, tuple[Cycle, Step, float]] = {}
        self.latencies_us: list[float] = []

    def run(self) -> None:
        """Starts all cycles when they are due, and waits for the end of the last one."""
        pod = Pod.from_words(self._plan.pod) if self._plan.pod else Pod("", api_pb2.PodSandboxConfig())
        warm_up = round(self._plan.per_s * _WARM_UP_S)
        count = warm_up + round(self._plan.per_s * self._plan.seconds)
        begun_s = time.perf_counter()
        for number, cycle in enumerate(cycles(self._plan.scenario, pod, count)):
            self._receive_until(begun_s + number / self._plan.per_s)
            if number == warm_up:
                self.latencies_us.clear()
            self._send(cycle, next(cycle))
        while self._running:
            self._receive()
        self._connection.close()
        for failure in StatusReader().failures(self._connection.blocks):
            raise SystemExit(f"a call failed: {failure}")

    def _receive_until(self, due_s: float) -> None:
        while (left_s := due_s - time.perf_counter()) > 0:
            if select.select([self._connection.socket], [], [], left_s)[0]:
                self._receive()

    def _send(self, cycle: Cycle, step: Step) -> None:
        call = (self._blocks.take(step.method), message(step.message))
        sent_s = time.perf_counter()
        (stream,) = self._connection.send([call])
        self._running[stream] = (cycle, step, sent_s)

    def _receive(self) -> None:
        for stream in self._connection.receive():
            cycle, _, sent_s = self._running.pop(stream)
            self.latencies_us.append((time.perf_counter() - sent_s) * 1e6)
            answer = bytes(self._connection.answers.pop(stream, b"")[5:])
            try:
                following = cycle.send(answer)
            except StopIteration:
                continue
            self._send(cycle, following)


def main() -> None:
    """Plan in, latencies in us out."""
    load = Load(Paced(**json.load(sys.stdin)))
    gc.collect()
    gc.disable()
    load.run()
    json.dump(load.latencies_us, sys.stdout)


if __name__ == "__main__":
    main()
