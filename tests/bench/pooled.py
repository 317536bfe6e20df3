"""The row of the QoS manager with all plugins on a node with Katalyst's pools: 250 pods, a pass a second.

The manager is a process; its daemon is one of the tests, in this process. Samples come from the kernel's
files, then from a Malachite in this process. Cgroups are real ones of version 1, and plain files of
version 2. On a busy machine there is less than a pass a second: they are counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.cgroups.mounts import DEFAULT_ROOT, Mount
from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.units import format_cpu_list
from runtimeproxy.vocabulary import MetricsSource
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.managed import repeated, throttled
from tests.bench.pass_counter import PassCounter
from tests.bench.procfs import cpu_ns, rss_bytes
from tests.bench.samples import cgroups, has_v1
from tests.bench.stands import PROXY
from tests.lab.proxy_process import ManagerProcess
from tests.peers.load_client import LoadError
from tests.qosmanager.fake_daemon import FakeDaemon
from tests.qosmanager.samples.malachite_server import (
    Files,
    MalachiteServer,
    Output,
    as_json,
    compute,
    http_answer,
)

CPUS: Final = 64
NUMA_NODES: Final = 4
GIB: Final = 1 << 30
NODE_BYTES: Final = 256 * GIB
_EVICTIONS: Final = (
    *("katalyst-cpu-suppression", "katalyst-cpu-load", "katalyst-reclaimed-pressure"),
    *("katalyst-memory-pressure", "katalyst-rss-overuse"),
)
CONFIG: Final = """\
[api]
admin_socket = "{socket}"
[cgroups]
root = "{root}"
[qosmanager]
metrics_source = "{source}"
malachite_url = "{url}"
feature_gates = [
    "BECPUEvict=true", "CPUEvict=true", "CPUAllocatableEvict=true",
    "BEMemoryEvict=true", "MemoryEvict=true", "MemoryAllocatableEvict=true",
]
[plugins.pass-counter]
reference = "tests.bench.pass_counter:PassCounter"
mode = "enforce"
[plugins.katalyst-reporter.options]
folder = "{folder}"
"""
MODES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cpu-suppress", "cpu-burst", "katalyst-advisor", "katalyst-reporter"), "enforce"),
    # What the bench's node does is no reason to evict pods: in this mode the work is the same.
    **dict.fromkeys(("cpu-evict", "memory-evict", *_EVICTIONS), "dry-run"),
}
"""All plugins but `profiling`, which no other one needs."""
STRATEGIES: Final = {
    "threshold.enable": "true",
    "threshold.cpu_suppress_policy": '"cfsQuota"',
    "threshold.memory_evict_threshold_percent": "95",
    "threshold.evict_enabled_priority_threshold": "9999",
    "threshold.allocatable_evict_priority_threshold": "7999",
    "threshold.cpu_allocatable_evict_threshold_percent": "200",
    "threshold.cpu_allocatable_evict_lower_percent": "190",
    "cpu_burst.policy": '"auto"',
}
_CONTAINERS: Final = ("a", "b")
_DECIDES: Final = "STATUS=cpu-suppress: "
_ROUND_OVER_USUAL: Final = 20
_SETTLE_OVER_USUAL: Final = 60
"""Malachite has told all rates after 20 s; files are opened and memory is taken."""
_REFRESH_S: Final = 5.0
_REPORT_S: Final = 60.0
"""How long the next report may take; it comes each second."""
_MIB: Final = 1024 * 1024


def rows(bench: Bench, turn: int) -> None:
    """Measures all in the first turn, one version after the other."""
    if turn > 0:
        return
    for version in (1, 2):
        if version == 2 or has_v1():
            folder = bench.folder / f"pooled{version}"
            folder.mkdir()
            _measure(bench, version, folder)


def _measure(bench: Bench, version: int, folder: Path) -> None:
    top = f"bench-{os.getpid()}"
    pods = [f"pod{number}" for number in range(bench.options.storm_pods)]
    containers = [f"{top}/{pod}/{name}" for pod in pods for name in _CONTAINERS]
    paths = [top, *(f"{top}/{pod}" for pod in pods), *containers]
    root = folder / "cgroup"
    with ExitStack() as stack:
        mounts = stack.enter_context(cgroups(version, paths, root))
        if version == 2:
            (root / "cgroup.controllers").write_text("cpu memory io\n")
            stack.enter_context(throttled([root / each for each in containers]))
        filled = partial(fill, top=top, version=version, pods=len(pods))
        daemon = stack.enter_context(daemon_of(folder / "api.sock", filled))
        url = stack.enter_context(_malachite(mounts, [f"/{each}" for each in paths]))
        config = folder / "config.toml"

        def configure(source: MetricsSource) -> None:
            text = CONFIG.format(
                socket=folder / "api.sock",
                root=root if version == 2 else DEFAULT_ROOT,
                source=source,
                url=url,
                folder=folder,
            )
            modes = (f'[plugins.{name}]\nmode = "{mode}"\n' for name, mode in MODES.items())
            config.write_text(text + "".join(modes))

        configure(MetricsSource.KERNEL)
        manager = stack.enter_context(ManagerProcess(folder, config, folder / "proxy.sock"))
        wait_for_state(manager, _DECIDES)
        for source in MetricsSource:
            if source is not MetricsSource.KERNEL:
                configure(source)
                manager.signal(signal.SIGHUP)
            time.sleep(bench.options.seconds * _SETTLE_OVER_USUAL)
            suffix = f"version {version}" + (", Malachite" if source is MetricsSource.MALACHITE else "")
            for _ in range(bench.options.rounds):
                ms = _cpu_ms(manager, daemon, bench.options.seconds * _ROUND_OVER_USUAL)
                bench.results.add(names.POOLED, PROXY, {f"CPU ms/pass, {suffix}": ms})
            memory = rss_bytes(manager.pid) / _MIB
            bench.results.add(names.POOLED, PROXY, {f"MiB, {suffix}": memory})


def wait_for_state(manager: ManagerProcess, state: str) -> None:
    """Waits until its status begins so. Raises LoadError."""
    try:
        manager.wait_for_state(state)
    except (TimeoutError, ChildProcessError) as error:
        raise LoadError(f"{error}: {manager.log[-5:]}") from error


def _cpu_ms(manager: ManagerProcess, daemon: FakeDaemon, seconds: float) -> float:
    """Of a pass, with all that the process does meanwhile."""
    passes, before = _passes(daemon), cpu_ns(manager.pid)
    time.sleep(seconds)
    made, after = _passes(daemon) - passes, cpu_ns(manager.pid)
    return (after - before) / 1e6 / max(made, 1)


def _passes(daemon: FakeDaemon) -> int:
    """By the next report."""
    count, ends_s = len(daemon.reports), time.monotonic() + _REPORT_S
    while len(daemon.reports) == count:
        if time.monotonic() > ends_s:
            raise LoadError("the manager reports no more")
        time.sleep(0.005)
    found = (each.explanation for each in daemon.reports[-1].plugins if each.name == PassCounter.name)
    return int(next(found) or 0)


@contextmanager
def daemon_of(socket: Path, give: Callable[[FakeDaemon], None]) -> Iterator[FakeDaemon]:
    """Serves the API, with what `give` gives it, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made: list[FakeDaemon] = []

    async def start() -> None:
        made.append(FakeDaemon(socket))
        give(made[0])
        await made[0].start()

    def run(work: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(work(), loop).result(60)  # type: ignore[arg-type]

    try:
        run(start)
        yield made[0]
        run(made[0].stop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _cpus(numa_nodes: Sequence[int], first: int, count: int) -> str:
    """So many CPUs of each of these NUMA nodes, from the first one of each on."""
    size = CPUS // NUMA_NODES
    return format_cpu_list(node * size + each for node in numa_nodes for each in range(first, first + count))


def fill(daemon: FakeDaemon, top: str, version: int, pods: int) -> None:
    """Gives it a node with pods: a third is reclaimed, one in the pool `share`, one bound to NUMA node 3."""
    node, size = daemon.node, CPUS // NUMA_NODES
    for cpu in range(CPUS):
        numa_node = cpu // size
        node.cpus.add(
            id=cpu, core=cpu // 2, socket=numa_node // 2, numa_node=numa_node, l3=cpu // 8, is_online=True
        )
    node.capacity.update({"cpu": 1_000 * CPUS, "memory": NODE_BYTES})
    node.allocatable.update({"cpu": 1_000 * (CPUS - 4), "memory": NODE_BYTES - 4 * GIB})
    node.reserved.update({"cpu": 4_000, "memory": 4 * GIB})
    node.memory_bytes.update(dict.fromkeys(range(NUMA_NODES), NODE_BYTES // NUMA_NODES))
    node.cgroups.version = version
    node.qos_class_cgroups.add(kube_qos_class="BestEffort", cgroup=f"/{top}")
    node.plugin_strategies.extend(
        api_pb2.StrategyField(path=path, value=value) for path, value in STRATEGIES.items()
    )
    every = range(NUMA_NODES)
    pools = {
        "reserve": _cpus(every, 0, 1),
        "share": _cpus(every[:3], 1, 8),
        "share-NUMA3": _cpus(every[3:], 1, 8),
        "reclaim": _cpus(every, 9, size - 9),
    }
    for name, cpus in pools.items():
        node.katalyst_pools.add(name=name, cpus=cpus)
    settings = api_pb2.KatalystPoolSettings(enable_reclaim=True, least_reclaim_cpus=4)
    settings.reserved_cpus = pools["reserve"]
    node.katalyst_pool_settings.CopyFrom(settings)
    node.katalyst_advice.add(pool="reclaim", headroom_millicpu=28_000, headroom_bytes=64 * GIB)
    for number in range(pods):
        _add_pod(daemon, top, number, pools)


def _add_pod(daemon: FakeDaemon, top: str, number: int, pools: Mapping[str, str]) -> None:
    uid = f"pod{number}"
    is_reclaimed, is_bound = number % 3 == 0, number % 3 == 1
    level = "reclaimed_cores" if is_reclaimed else "shared_cores"
    pool = "reclaim" if is_reclaimed else "share-NUMA3" if is_bound else "share"
    requests = {"cpu": 200, "memory": GIB // 4}
    if is_reclaimed:
        requests = {RECLAIMED_MILLICPU: 200, RECLAIMED_MEMORY: GIB // 4, "memory": GIB // 4}
    daemon.pods[f"s-{uid}"] = api_pb2.Pod(
        sandbox_id=f"s-{uid}",
        uid=uid,
        namespace="shop",
        name=uid,
        state=api_pb2.Pod.STATE_READY,
        kube_qos_class="BestEffort" if is_reclaimed else "Burstable",
        qos_class="BE" if is_reclaimed else "LS",
        priority=5_500 if is_reclaimed else 9_500,
        katalyst=api_pb2.KatalystLevel(level=level, pool=pool),
        has_known_requests=True,
        strategies=[api_pb2.StrategyField(path="cpu_burst.policy", value='"auto"')],
        containers=[
            api_pb2.Container(
                id=f"{name}-{uid}",
                name=name,
                state=api_pb2.Container.STATE_RUNNING,
                cgroup=f"/{top}/{uid}/{name}",
                requests=requests,
                limits={} if is_reclaimed else requests,
                scaled_cpu_quota_us=-1 if is_reclaimed else 20_000,
            )
            for name in _CONTAINERS
        ],
    )
    member = daemon.node.katalyst_pods.add(pod_uid=uid, level=level, pool=pool, cpus=pools[pool])
    if is_bound:
        member.numa_nodes = "3"


@contextmanager
def _malachite(mounts: Mapping[str, Mount], paths: Sequence[str]) -> Iterator[str]:
    """A Malachite that has read everything a few seconds ago."""
    answers = dict[str, bytes]()
    files = Files(mounts)

    def refresh() -> None:
        now = int(time.time())
        documents = {each: files.cgroup(each, now) for each in paths}
        documents["memory"] = files.memory(now)
        documents["compute"] = compute(0.5, CPUS, now)
        for name, document in documents.items():
            # Of a real one an answer of a cgroup has 6 to 20 KiB.
            padding = {f"other_{number}": number * 1_000_003 for number in range(250)}
            answers[name] = _bytes_of({**document, "other": padding})

    def answer(output: Output, path: str) -> None:
        name = path.partition("=")[2] or path.rpartition("/")[2]
        output.write(answers.get(name) or http_answer(b"", "404 Not Found"))

    refresh()
    with repeated(refresh, _REFRESH_S), MalachiteServer(answer) as server:
        yield server.url


def _bytes_of(document: Mapping[str, object]) -> bytes:
    return as_json(json.loads(json.dumps(document)))
