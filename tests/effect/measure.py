"""One measurement: requests for some time, and what the kernel counts meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.effect.load import Sent
from tests.effect.node import BE_CLASS, BENCH, CPUS, LS_CLASS, PRODUCT, SYSTEM, Node, generator_command
from tests.effect.product import Product, Way, be_quota_us, idle_pods, way_problems
from tests.effect.results import CURVE, PERCENTILES, Cores, Measurement, Second, percentile
from tests.lab import cgroup_v1
from tests.lab.programs import REPOSITORY

UNIFIED: Final = Path("/sys/fs/cgroup/unified")
"""The hierarchy of version 2 without controllers, in which runc puts pods, too."""
MOST_OTHERS: Final = 0.05
"""CPU time of all else, of the node's: with more the figures are not of this program alone."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Counters(NamedTuple):
    """CPU time so far, in seconds."""

    ls: float
    be: float
    system: float
    bench: float
    product: float
    busy: float
    idle: float
    steal: float


def counters() -> Counters:
    """Reads them all."""
    groups = (LS_CLASS, BE_CLASS, SYSTEM, BENCH, PRODUCT)
    ls, be, *rest = (int(cgroup_v1.read("cpuacct", each, "cpuacct.usage")) / 1e9 for each in groups)
    system, bench, product = rest
    # Source: proc(5): user, nice, system, idle, iowait, irq, softirq, steal.
    fields = [int(each) / _TICKS_PER_S for each in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    busy = sum(fields[index] for index in (0, 1, 2, 5, 6))
    return Counters(ls, be, system, bench, product, busy, fields[3] + fields[4], fields[7])


def cores_between(before: Counters, after: Counters, seconds: float) -> Cores:
    """CPU time per second."""
    growth = Counters(*((now - then) / seconds for now, then in zip(after, before, strict=True)))
    others = max(growth.busy - sum(growth[:5]), 0.0)
    return Cores(*growth[:5], others, growth.idle, growth.steal)


def full_us(node: Node) -> int:
    """What the LS pod has waited for CPUs; 0 without a tree of version 2."""
    with contextlib.suppress(OSError):
        for line in (UNIFIED / node.web.lstrip("/") / "cpu.pressure").read_text().splitlines():
            if line.startswith("full "):
                return int(line.rpartition("=")[2])
    return 0


@contextmanager
def every_second(node: Node, product: Product, way: Way) -> Iterator[list[Second]]:
    """Reads bound, pressure and usage each second."""
    found: list[Second] = []
    ended = threading.Event()
    began_s = time.monotonic()

    def read() -> None:
        at_s, full, before = time.monotonic(), full_us(node), counters()
        while not ended.wait(max(at_s + 1 - time.monotonic(), 0)):
            now_s, now_full, now = time.monotonic(), full_us(node), counters()
            cores = cores_between(before, now, now_s - at_s)
            found.append(
                Second(
                    at_s=now_s - began_s,
                    quota_us=be_quota_us(),
                    idle_pods=idle_pods(node),
                    full_ms=(now_full - full) / 1e3 / (now_s - at_s),
                    ls_cores=cores.ls,
                    be_cores=cores.be,
                    guard=product.guard() if way.name == "feedback" else None,
                )
            )
            at_s, full, before = now_s, now_full, now

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@contextmanager
def sending(node: Node, rate: float, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """The load generator; ended with the block."""
    command = generator_command(node, rate, seconds)
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def sent(process: subprocess.Popen[bytes], seconds: float) -> Sent:
    """What the load generator has found, at its end."""
    output, _ = process.communicate(timeout=seconds + 120)
    if process.returncode:
        raise RuntimeError(f"the load generator ended with {process.returncode}")
    return Sent(**json.loads(output))


def measured(node: Node, product: Product, way: Way, number: int, rate: float, seconds: float) -> Measurement:
    """Sends the requests of one round, and counts."""
    units, before, began_s = node.units(), counters(), time.monotonic()
    with every_second(node, product, way) as found, sending(node, rate, seconds) as process:
        requests = sent(process, seconds)
    took_s = time.monotonic() - began_s
    cores = cores_between(before, counters(), took_s)
    be_per_s = (node.units() - units) / took_s
    latencies_ms = sorted(each * 1e3 for each in requests.latencies_s)
    problems = [*node.problems(), *way_problems(way, node, found)]
    if cores.others + cores.steal > MOST_OTHERS * CPUS:
        problems.append(f"others used {cores.others:.2f} CPUs, {cores.steal:.2f} were stolen")
    return Measurement(
        load=node.load.name,
        way=way.text,
        round=number,
        seconds=took_s,
        requests=len(latencies_ms),
        curve_ms=[percentile(latencies_ms, percent) for percent in CURVE],
        percentiles_ms=[percentile(latencies_ms, percent) for percent in PERCENTILES],
        late_ms=requests.late_s * 1e3,
        be_per_s=be_per_s,
        cores=cores,
        per_second=found,
        problems=problems,
    )


class Cost(NamedTuple):
    """What requests need, in seconds of CPU time."""

    server_s: float
    generator_s: float


def cost_of_requests(node: Node, rate: float, seconds: float) -> Cost:
    """Measures it with nothing beside the server; to be called while BE pods are frozen."""
    before = counters()
    with sending(node, rate, seconds) as process:
        requests = sent(process, seconds)
    number = len(requests.latencies_s)
    return Cost((counters().ls - before.ls) / number, requests.cpu_s / number)
