"""The row of calls that pass while ten clients watch pods: the same load without and with them.

As a program it is the watchers: `python -m tests.bench.watched SOCKET NUMBER` prints a line when all have had
their snapshot, and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from statistics import fmean, median

import grpc

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.beside import paced_result, start_paced
from tests.bench.paced import Paced
from tests.bench.scenarios import make_pod
from tests.bench.stands import PROXY

WATCHERS = 10
_VERSIONS_PER_S = 200
_CREATES_PER_S = 2
"""Containers that come and go, so that there is something to watch."""
_ROUND_OVER_USUAL = 10


def rows(bench: Bench, turn: int) -> None:
    """Measures all rounds in the first turn: without and with watchers in each, in turns."""
    if turn > 0:
        return
    socket = bench.full.ways[PROXY].socket
    pod = make_pod(socket, "bench-watched", best_effort=True).as_words()
    ratios: list[float] = []
    over_us: list[float] = []
    for number in range(bench.options.beside_rounds):
        figures: dict[bool, tuple[float, float]] = {}
        for is_watched in (False, True) if number % 2 else (True, False):
            with _watchers(socket) if is_watched else contextlib.nullcontext():
                figures[is_watched] = _round(bench, socket, pod)
        ratios.append(figures[True][0] / figures[False][0])
        over_us.append(figures[True][1] - figures[False][1])
    bench.results.add(
        names.WATCHED,
        PROXY,
        {
            "p50 over none": median(ratios),
            "p99 us over none": median(over_us),
            "p99 over none, best round us": min(over_us),
            "p99 over none, worst round us": max(over_us),
        },
    )


def _round(bench: Bench, socket: str, pod: dict[str, str]) -> tuple[float, float]:
    """The p50 and the p99 of the passing calls, in microseconds."""
    seconds = bench.options.seconds * _ROUND_OVER_USUAL
    version = Paced(socket, "version", _VERSIONS_PER_S, seconds)
    create = Paced(socket, "create-remove", _CREATES_PER_S, seconds, pod)
    running = [start_paced(each) for each in (create, version)]
    _, latencies_us = (paced_result(each) for each in running)
    ordered = sorted(latencies_us)
    bench.results.add(names.WATCHED, PROXY, {"mean us": fmean(ordered)})
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


@contextlib.contextmanager
def _watchers(socket: str) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.watched", socket, str(WATCHERS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


def main(socket: str, number: int) -> None:
    """Watches until the standard input ends."""
    ready = threading.Barrier(number + 1)

    def watch(channel: grpc.Channel) -> None:
        stream = api_pb2_grpc.RuntimeProxyStub(channel).WatchPods(
            api_pb2.WatchPodsRequest(), wait_for_ready=True
        )
        next(stream)
        ready.wait()
        with contextlib.suppress(grpc.RpcError):
            for _ in stream:
                pass

    options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
    channels = [grpc.insecure_channel(f"unix:{socket}", options=options) for _ in range(number)]
    for channel in channels:
        threading.Thread(target=watch, args=(channel,), daemon=True).start()
    ready.wait()
    print("watching", flush=True)
    sys.stdin.read()
    for channel in channels:
        channel.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
