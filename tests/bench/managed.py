"""The row of calls that pass while the QoS manager decides for 250 pods: the same load without and with it.

One daemon with all policies, 250 pods with two containers each, all with cgroup files, every tenth container
throttled; one manager, which is stopped (SIGSTOP) in the rounds without it.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from runtimeproxy.testing import CgroupFiles
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.beside import paced_result, start_paced
from tests.bench.paced import Paced
from tests.bench.procfs import cpu_ns, rss_bytes
from tests.bench.samples import V2_FILES
from tests.bench.stands import PROXY
from tests.bench.storm import ALL_POLICIES, Node, node_with_pods
from tests.lab.proxy_process import ManagerProcess
from tests.peers.load_client import LoadError

STRATEGIES: Final = {
    "resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}},
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto"}},
}
_DECIDES: Final = "STATUS=cpu-suppress: "
"""Begins its status while it has a daemon."""
_VERSIONS_PER_S: Final = 200
_ROUND_OVER_USUAL: Final = 10
_SETTLE_S: Final = 3.0
"""After the manager goes on, before a round with it: what it has missed is over."""
_THROTTLED: Final = 10
"""Every so many containers is throttled."""
_PERIODS_PER_S: Final = 10
_MIB: Final = 1024 * 1024


def rows(bench: Bench, turn: int) -> None:
    """Measures all rounds in the first turn: without and with the manager in each, in turns."""
    if turn > 0:
        return
    folder = bench.folder / "managed"
    folder.mkdir()
    with ExitStack() as stack:
        node = node_with_pods(bench, stack, folder / "node", ALL_POLICIES)
        # As many CPUs as this machine has, whose usage is what the manager sees.
        node.objects.node(capacity={"cpu": str(os.cpu_count()), "memory": "256Gi"})
        node.objects.strategies(STRATEGIES)
        stack.enter_context(throttled(with_samples(node.files)))
        config = folder / "node" / "proxy" / "config.toml"
        manager = stack.enter_context(ManagerProcess(folder, config, Path(node.process.socket)))
        try:
            manager.wait_for_state(_DECIDES)
        except (TimeoutError, ChildProcessError) as error:
            raise LoadError(f"{error}: {manager.log[-5:]}") from error
        _measure(bench, node, manager)


def _measure(bench: Bench, node: Node, manager: ManagerProcess) -> None:
    ratios: list[float] = []
    over_us: list[float] = []
    for number in range(bench.options.beside_rounds):
        p50_us, p99_us = {}, {}
        for is_managed in (False, True) if number % 2 else (True, False):
            if is_managed:
                # A call that was on its way when it was stopped has missed its deadline: it connects anew.
                manager.forget_states()
                time.sleep(_SETTLE_S)
                manager.wait_for_state(_DECIDES)
            else:
                manager.signal(signal.SIGSTOP)
            try:
                latencies = _round(bench, node, manager, is_managed=is_managed)
            finally:
                manager.signal(signal.SIGCONT)
            p50_us[is_managed] = median(latencies)
            p99_us[is_managed] = latencies[len(latencies) * 99 // 100]
        ratios.append(p50_us[True] / p50_us[False])
        over_us.append(p99_us[True] - p99_us[False])
        figures = {
            "p50 us, none": p50_us[False],
            "p50 us": p50_us[True],
            "p50 over none": ratios[-1],
            "p99 us, none": p99_us[False],
            "p99 us": p99_us[True],
            "p99 us over none": over_us[-1],
            "MiB, manager": rss_bytes(manager.pid) / _MIB,
        }
        bench.results.add(names.MANAGED, PROXY, figures)
    spread = {
        "p50 over none, best round": min(ratios),
        "p50 over none, worst round": max(ratios),
        "p99 us over none, best round": min(over_us),
        "p99 us over none, worst round": max(over_us),
    }
    bench.results.add(names.MANAGED, PROXY, spread)


def _round(bench: Bench, node: Node, manager: ManagerProcess, *, is_managed: bool) -> list[float]:
    """The latencies of the passing calls in microseconds, in order."""
    seconds = bench.options.seconds * _ROUND_OVER_USUAL
    pids = {"manager": manager.pid, "daemon": node.process.pid}
    before = {name: cpu_ns(pid) for name, pid in pids.items()}
    began_s = time.monotonic()
    latencies = paced_result(start_paced(Paced(node.process.socket, "version", _VERSIONS_PER_S, seconds)))
    elapsed_s = time.monotonic() - began_s
    suffix = "" if is_managed else ", none"
    for name, pid in pids.items():
        if is_managed or name == "daemon":
            used_ms = (cpu_ns(pid) - before[name]) / 1e6 / elapsed_s
            bench.results.add(names.MANAGED, PROXY, {f"CPU ms a second, {name}{suffix}": used_ms})
    return sorted(latencies)


def with_samples(files: CgroupFiles) -> list[Path]:
    """Gives all cgroups the files that samples are read from; returns those of the containers."""
    containers: list[Path] = []
    for folder, below, _ in os.walk(files.root / "kubepods"):
        for name, text in V2_FILES.items():
            Path(folder, name).write_text(text)
        if not below and Path(folder).parent.name.startswith("pod"):
            containers.append(Path(folder))
    return sorted(containers)


@contextmanager
def throttled(containers: Sequence[Path]) -> Iterator[None]:
    """Has some containers throttled in each period, as long as the block runs."""
    seconds = itertools.count(1)

    def throttle() -> None:
        second = next(seconds)
        periods, used_us = second * _PERIODS_PER_S, second * 1_000_000
        text = V2_FILES["cpu.stat"].replace("usage_usec 1", f"usage_usec {used_us}")
        text = text.replace("nr_periods 0", f"nr_periods {periods}")
        text = text.replace("nr_throttled 0", f"nr_throttled {periods}")
        for folder in containers[::_THROTTLED]:
            # In place: the manager keeps the files open.
            (folder / "cpu.stat").write_text(text)

    with repeated(throttle, 1.0):
        yield


@contextmanager
def repeated(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Does something again and again in a thread, as long as the block runs."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
