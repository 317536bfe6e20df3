"""Puts load on the ways to a runtime and says what it took."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from tests.bench.generator import Plan
from tests.bench.procfs import cpu_ns
from tests.bench.stands import Way
from tests.peers.load_client import LoadError, call
from tests.peers.wire import message as grpc_message

_TIMEOUT_S = 120.0
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Load:
    """What calls of one kind took on one way."""

    count: int
    seconds: float
    cpu_s: float
    latencies_us: list[float]

    @property
    def mean_us(self) -> float:
        """Mean latency."""
        return fmean(self.latencies_us)

    @property
    def p99_us(self) -> float:
        """The latency that one call in a hundred exceeds."""
        ordered = sorted(self.latencies_us)
        return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]

    def metrics(self) -> dict[str, float]:
        """All figures by their name in the table."""
        return {
            "mean us": self.mean_us,
            "p99 us": self.p99_us,
            "calls/s": self.count / self.seconds,
            "CPU us/call": self.cpu_s * 1e6 / self.count,
        }


def generate(plan: Plan) -> dict[str, dict[str, Load]]:
    """Runs the bench's own generator.

    Returns:
        By way and step. Seconds and CPU time are those of whole cycles.

    Raises:
        LoadError: A call failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.generator"],
        input=json.dumps(asdict(plan)),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise LoadError(done.stderr[-2000:])
    measured = json.loads(done.stdout)
    for name, lane in measured.items():
        if lane["failures"]:
            raise LoadError(f"{len(lane['failures'])} calls failed on {name}, first: {lane['failures'][0]}")
    return {
        name: {
            step: Load(plan.count, lane["seconds"], lane["cpu_s"], latencies)
            for step, latencies in lane["latencies_us"].items()
        }
        for name, lane in measured.items()
    }


@dataclass(frozen=True, slots=True)
class Shape:
    """How the calls of one kind are put."""

    method: str
    connections: int
    streams: int
    """Calls in flight on each connection."""


def h2load_is_there() -> bool:
    """Whether nghttp2's load generator is installed."""
    return shutil.which("h2load") is not None


def h2load(way: Way, shape: Shape, count: int, folder: Path) -> Load:
    """Runs h2load, which costs little CPU time itself, with empty request messages.

    Raises:
        LoadError: Not all calls were answered with what a single call is answered with.
    """
    body = folder / "body"
    body.write_bytes(grpc_message(b""))
    log = folder / "h2load.log"
    log.unlink(missing_ok=True)
    expected = len(grpc_message(call(way.socket, shape.method)))
    before = cpu_ns(way.pid)
    done = subprocess.run(
        [
            *("h2load", "-B", f"unix:{way.socket}", "-n", str(count), "-t", "1"),
            *("-c", str(shape.connections), "-m", str(shape.streams)),
            *("-d", str(body), f"--log-file={log}"),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"http://localhost{shape.method}",
        ],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    cpu_s = (cpu_ns(way.pid) - before) / 1e9
    _check(done.stdout, count, count * expected)
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    return Load(count, _seconds(done.stdout), cpu_s, [float(row[2]) for row in rows])


def _check(report: str, count: int, data_bytes: int) -> None:
    succeeded = re.search(r"(\d+) succeeded", report)
    received = re.search(r"\((\d+)\) data", report)
    if not succeeded or not received or int(succeeded[1]) != count or int(received[1]) != data_bytes:
        raise LoadError(f"expected {count} calls with {data_bytes} bytes of data: {report}")


def _seconds(report: str) -> float:
    found = re.search(r"finished in ([\d.]+)(us|ms|s)", report)
    if not found:
        raise LoadError(report)
    return float(found[1]) * _SECONDS[found[2]]


def plan_for(ways: Mapping[str, Way], scenario: str, count: int) -> Plan:
    """A plan that drives each way one call at a time."""
    return Plan(
        sockets={name: way.socket for name, way in ways.items()},
        pids={name: way.pid for name, way in ways.items()},
        scenario=scenario,
        count=count,
    )
