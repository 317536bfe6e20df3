"""Rows of the proxy's own life: how fast it starts, how much memory it takes and keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.load import generate, plan_for
from tests.bench.processes import Notices, Process
from tests.bench.procfs import rss_bytes
from tests.bench.scenarios import make_pod
from tests.bench.stands import PROXY, Stand, Way
from tests.peers.load_client import call

_RECORDS_THERE = r"^STATUS=(?!.*waiting).*\d+ containers"
_REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_SERVICE_NAME = b"runtime.v1.RuntimeService"
_WHAT_IS_THE_CRI = b"\x22" + bytes((len(_SERVICE_NAME),)) + _SERVICE_NAME
"""A `ServerReflectionRequest` with `file_containing_symbol`, its field 4."""
_TIMEOUT_S = 60.0
# What a start or a call leaves to do in the background (imports, the checkpoint) ends without a sign, and
# what memory a process keeps is known after that only.
_SETTLE_S = 1.0
_MIB = 1024 * 1024
_IN_FLIGHT = 4


@contextmanager
def _started(stand: Stand, name: str) -> Iterator[tuple[Process, dict[str, float]]]:
    """A proxy of its own before a stand's runtime, and how long in seconds its start took."""
    notices = Notices(stand.folder / f"{name}.notify")
    process = stand.launcher.make(
        stand.folder / f"{name}.sock", stand.upstream, {"NOTIFY_SOCKET": str(notices.path)}
    )
    took: dict[str, float] = {}
    began = time.monotonic()
    try:
        with process:
            process.wait_until_serving()
            took["first answer s"] = time.monotonic() - began
            if stand.launcher.template is None:
                notices.wait_for(_RECORDS_THERE, _TIMEOUT_S)
                took["records s"] = time.monotonic() - began
            yield process, took
    finally:
        notices.close()
        notices.path.unlink()


def start(bench: Bench, turn: int) -> None:
    """Starts a proxy before a full runtime, and once more with the checkpoint of that one."""
    with _started(bench.full, f"start{turn}") as (process, took):
        bench.results.add(names.START, PROXY, took)
        time.sleep(_SETTLE_S)
        bench.results.add(names.RSS, PROXY, {"MiB, all containers": rss_bytes(process.pid) / _MIB})
        if bench.full.launcher.template is None:
            call(process.socket, _REFLECTION, _WHAT_IS_THE_CRI)
            time.sleep(_SETTLE_S)
            after = rss_bytes(process.pid) / _MIB
            bench.results.add(names.RSS, PROXY, {"MiB, after a reflection call": after})
    with _started(bench.full, f"start{turn}") as (_, again):
        figures = {f"{name}, with a checkpoint": again[name] for name in again if name == "records s"}
        bench.results.add(names.START, PROXY, figures)


def memory(bench: Bench, turn: int) -> None:
    """Looks at the memory at the start, and before and after many containers came and went; once a run."""
    if turn > 0:
        return
    with _started(bench.empty, "memory-empty") as (process, _):
        time.sleep(_SETTLE_S)
        bench.results.add(names.RSS, PROXY, {"MiB, at start": rss_bytes(process.pid) / _MIB})
    with _started(bench.full, "memory-full") as (process, _):
        way = Way(process.socket, process.pid)
        _create_and_remove(way, bench.options.cycles // 5)
        before = rss_bytes(process.pid) / _MIB
        _create_and_remove(way, bench.options.cycles)
        after = rss_bytes(process.pid) / _MIB
    figures = {"MiB, after create/remove cycles": after, "MiB growth over the cycles": after - before}
    bench.results.add(names.RSS, PROXY, figures)


def _create_and_remove(way: Way, cycles: int) -> None:
    pod = make_pod(way.socket, f"cycles-{cycles}", best_effort=True)
    plan = replace(
        plan_for({PROXY: way}, "create-remove", cycles),
        pods={PROXY: pod.as_words()},
        in_flight=_IN_FLIGHT,
        kubelet_headers=True,
    )
    generate(plan)
