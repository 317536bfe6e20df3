"""The row of calls that pass while others are changed: two loads at fixed rates beside each other."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from statistics import fmean

from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.paced import Paced
from tests.bench.scenarios import Pod, make_pod
from tests.bench.stands import DIRECT, PROXY, Way
from tests.peers.load_client import LoadError

_VERSIONS_PER_S = 200
_CREATES_PER_S = 20
_ROUND_OVER_USUAL = 10
"""A round lasts so many times as long as one of the other rows: a p99 of 5 s is the tenth of 1,000 calls."""
_TIMEOUT_S = 120.0


def rows(bench: Bench, turn: int) -> None:
    """Measures all rounds in the first turn: both ways in each, another one first each time."""
    if turn > 0:
        return
    ways = {name: bench.full.ways[name] for name in (DIRECT, PROXY)}
    pod = make_pod(ways[PROXY].socket, "bench-beside", best_effort=True)
    added_us = []
    for number in range(bench.options.beside_rounds):
        p99_us = {name: _round(bench, name, way, pod) for name, way in rotated(ways, number).items()}
        added_us.append(p99_us[PROXY] - p99_us[DIRECT])
    bench.results.add(
        names.BESIDE,
        PROXY,
        {"p99 over direct, best round us": min(added_us), "p99 over direct, worst round us": max(added_us)},
    )


def _round(bench: Bench, name: str, way: Way, pod: Pod) -> float:
    seconds = bench.options.seconds * _ROUND_OVER_USUAL
    version = Paced(way.socket, "version", _VERSIONS_PER_S, seconds)
    create = Paced(way.socket, "create-remove", _CREATES_PER_S, seconds, pod.as_words())
    running = [start_paced(each) for each in (create, version)]
    _, latencies_us = (paced_result(each) for each in running)
    ordered = sorted(latencies_us)
    p99_us = ordered[len(ordered) * 99 // 100]
    bench.results.add(names.BESIDE, name, {"mean us": fmean(ordered), "p99 us": p99_us})
    return p99_us


def start_paced(plan: Paced) -> subprocess.Popen[str]:
    """Starts a load in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.paced"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(plan)))
    process.stdin.close()
    process.stdin = None
    return process


def paced_result(process: subprocess.Popen[str]) -> list[float]:
    """Waits for its end; returns the latencies in microseconds."""
    out, errors = process.communicate(timeout=_TIMEOUT_S)
    if process.returncode != 0:
        raise LoadError(errors[-2000:])
    latencies_us: list[float] = json.loads(out)
    return latencies_us
