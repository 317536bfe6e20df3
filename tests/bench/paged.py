"""Passing calls while three browsers poll the node page: the same load without and with them, in turns.

`python -m tests.bench.paged [ROUNDS]`; a fake node with 250 pods.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.beside import paced_result, start_paced
from tests.bench.paced import Paced
from tests.lab.busy_node import BusyNode
from tests.lab.procfs import cpu_seconds

BROWSERS: Final = 3
POLL_S: Final = 2.0
"""As the page does."""
_VERSIONS_PER_S: Final = 200
_ROUND_S: Final = 6.0


@contextmanager
def browsers(port: int) -> Iterator[None]:
    """Polls as pages do that are open, not all at once."""
    ended = threading.Event()

    def poll(first_s: float) -> None:
        tags: list[str] = []
        pause_s = first_s
        while not ended.wait(pause_s):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", f"/page/data?known={'.'.join(tags)}")
            tags = json.load(connection.getresponse())["tags"]
            connection.close()
            pause_s = POLL_S

    first_s = [number * POLL_S / BROWSERS for number in range(BROWSERS)]
    threads = [threading.Thread(target=poll, args=(each,)) for each in first_s]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def main(rounds: int) -> None:
    """Prints, per round and as medians: p50 with over without, and how much p99 and CPU are above."""
    ratios: list[float] = []
    over_us: list[float] = []
    more_cpu_ms: list[float] = []
    with tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as folder, BusyNode(Path(folder)) as node:
        node.fill()
        for number in range(rounds):
            found: dict[bool, list[float]] = {}
            cpu_s: dict[bool, float] = {}
            for is_polled in (False, True) if number % 2 else (True, False):
                with browsers(node.port) if is_polled else nullcontext():
                    plan = Paced(str(node.daemon.socket), "version", _VERSIONS_PER_S, _ROUND_S)
                    used_s = cpu_seconds(node.daemon.pid)
                    found[is_polled] = sorted(paced_result(start_paced(plan)))
                    cpu_s[is_polled] = cpu_seconds(node.daemon.pid) - used_s
            p50, p99 = ({has: each[len(each) * at // 100] for has, each in found.items()} for at in (50, 99))
            ratios.append(p50[True] / p50[False])
            over_us.append(p99[True] - p99[False])
            more_cpu_ms.append((cpu_s[True] - cpu_s[False]) / _ROUND_S * 1e3)
            _print(f"round {number + 1}", ratios[-1], over_us[-1], more_cpu_ms[-1])
    _print("median", median(ratios), median(over_us), median(more_cpu_ms))


def _print(name: str, ratio: float, over_us: float, more_cpu_ms: float) -> None:
    text = (
        f"p50 {ratio:.3f} x without, p99 {over_us:+.0f} us, CPU of the daemon {more_cpu_ms:+.1f} ms a second"
    )
    print(f"{name}: {text}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
