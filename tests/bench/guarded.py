"""The row of the CPU guard: what it takes beside the same node without it, while no pod waits.

Two nodes with the same pods, two thirds of them guarded, stand side by side, each with a QoS manager of its
own: only one has the guard, in enforce. Version 2: a daemon each, and plain files whose pressure never grows.
Version 1: daemons of the tests, and real cgroups without pressure, so that the guard reads the threads of
pods one by one; their usage alone is in plain files, as it grows without being used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.bench import names, waking_threads
from tests.bench.bench import Bench
from tests.bench.managed import STRATEGIES, repeated, with_samples
from tests.bench.pooled import daemon_of, fill, wait_for_state
from tests.bench.procfs import cpu_ns, rss_bytes
from tests.bench.samples import V2_FILES, cgroups, has_v1
from tests.bench.stands import PROXY
from tests.bench.storm import ALL_POLICIES, node_with_pods
from tests.lab.proxy_process import ManagerProcess
from tests.peers.load_client import LoadError
from tests.qosmanager.fake_daemon import FakeDaemon

GUARD: Final = {"cpu-guard-config": {"clusterStrategy": {"enable": True}}}
ENFORCED: Final = '[plugins.cpu-guard]\nmode = "enforce"\n'
V1_CONFIG: Final = '[api]\nadmin_socket = "{socket}"\n[cgroups]\nroot = "{root}"\n' + ENFORCED
V1_STRATEGIES: Final = {
    "threshold.enable": "true",
    "threshold.cpu_suppress_policy": '"cfsQuota"',
    "cpu_burst.policy": '"auto"',
}
_CLASSES: Final = ("LS", "LS", "BE")
_CONTAINERS: Final = ("a", "b")
_DECIDES: Final = "STATUS=cpu-suppress: "
_SIDES: Final = ("none", "guard")
_REPORT_S: Final = 5
"""As the daemon asks for it."""
_ROUND_OVER_USUAL: Final = 20
_SETTLE_OVER_USUAL: Final = 40
"""Files are opened, and pods have their targets."""
_POD_CORES: Final = 0.03
_BE_CORES: Final = 1.0
_BE_CORES_V1: Final = 4.0
"""Of 64 CPUs: BE pods are not quiet."""
_USAGE: Final = "cpuacct.usage"
_SEEING: Final = "claims, rule "
_SEEING_S: Final = 90.0
"""Pods are guarded when they are 30 s old."""
_THREADS: Final = 3
"""Of a container: those of 166 guarded pods are as many as are read in one pass."""
_MIB: Final = 1024 * 1024


def pressures(bench: Bench, turn: int) -> None:
    """Measures version 2 in the first turn."""
    if turn > 0:
        return
    folder = bench.folder / "guarded2"
    folder.mkdir()
    with ExitStack() as stack:
        processes: dict[str, Mapping[str, int]] = {}
        managers: dict[str, ManagerProcess] = {}
        used: dict[Path, float] = {}
        for side in _SIDES:
            node = node_with_pods(bench, stack, folder / side, ALL_POLICIES + ENFORCED, _CLASSES)
            node.objects.node(capacity={"cpu": str(os.cpu_count()), "memory": "256Gi"})
            node.objects.strategies(STRATEGIES | (GUARD if side == "guard" else {}))
            pods = {each.parent for each in with_samples(node.files)}
            used |= {each / "cpu.stat": _POD_CORES for each in pods}
            used[node.files.folder("/kubepods/besteffort") / "cpu.stat"] = _BE_CORES
            config = folder / side / "proxy" / "config.toml"
            manager = managers[side] = stack.enter_context(
                ManagerProcess(folder / side, config, Path(node.process.socket))
            )
            wait_for_state(manager, _DECIDES)
            processes[side] = {"manager": manager.pid, "daemon": node.process.pid}
        stack.enter_context(_growing(used, _cpu_stat))
        _wait_until_seeing(managers["guard"])
        _measure(bench, processes, "version 2")


def threads(bench: Bench, turn: int) -> None:
    """Measures version 1 in the first turn."""
    if turn > 0 or not has_v1():
        return
    folder = bench.folder / "guarded1"
    folder.mkdir()
    top, pods = f"bench-{os.getpid()}", range(bench.options.storm_pods)
    containers = [f"{top}/pod{pod}/{name}" for pod in pods for name in _CONTAINERS]
    paths = [top, *(f"{top}/pod{pod}" for pod in pods), *containers]
    with ExitStack() as stack:
        mounts = stack.enter_context(cgroups(1, paths, folder / "cgroup"))
        root = folder / "root"
        for path in paths:
            (root / "cpuacct" / path).mkdir(parents=True)
            (root / "cpuacct" / path / _USAGE).write_text("0\n")
        for controller in ("cpu", "memory"):
            (root / controller).symlink_to(mounts[controller].folder)
        # Of pods that are guarded: every third one is best-effort.
        guarded = [f"{top}/pod{pod}/{name}" for pod in pods if pod % 3 for name in _CONTAINERS]
        stack.enter_context(_threads([mounts["cpu"].folder / each for each in guarded]))
        processes: dict[str, Mapping[str, int]] = {}
        managers: dict[str, ManagerProcess] = {}
        for side in _SIDES:
            (folder / side).mkdir()

            def give(daemon: FakeDaemon, *, is_guarded: bool = side == "guard") -> None:
                fill(daemon, top, 1, len(pods))
                del daemon.node.plugin_strategies[:]
                strategies = {**V1_STRATEGIES, "cpu_guard.enable": str(is_guarded).lower()}
                for path, value in strategies.items():
                    daemon.node.plugin_strategies.add(path=path, value=value)
                for pod in daemon.pods.values():
                    # What a thread waits that runs for an instant says nothing.
                    pod.strategies.add(path="cpu_guard.target_run_delay_percent", value="100")
                daemon.report_interval_s = _REPORT_S

            daemon = stack.enter_context(daemon_of(folder / side / "api.sock", give))
            config = folder / side / "config.toml"
            config.write_text(V1_CONFIG.format(socket=daemon.path, root=root))
            manager = managers[side] = stack.enter_context(
                ManagerProcess(folder / side, config, folder / side / "proxy.sock")
            )
            wait_for_state(manager, _DECIDES)
            processes[side] = {"manager": manager.pid}
        used = {root / "cpuacct" / top / f"pod{pod}" / _USAGE: _POD_CORES for pod in pods}
        used[root / "cpuacct" / top / _USAGE] = _BE_CORES_V1
        stack.enter_context(_growing(used, lambda used_us: f"{used_us * 1_000:018}\n"))
        _wait_until_seeing(managers["guard"])
        _measure(bench, processes, "version 1")


def _wait_until_seeing(manager: ManagerProcess) -> None:
    """Returns once the guard has samples of pods. Raises LoadError."""
    ends_s, state = time.monotonic() + _SEEING_S, ""
    while _SEEING not in state:
        if time.monotonic() > ends_s:
            raise LoadError(f"the guard does not see: {state}")
        manager.forget_states()
        wait_for_state(manager, _DECIDES)
        state = manager.wait_for_state(_DECIDES)


def _measure(bench: Bench, processes: Mapping[str, Mapping[str, int]], version: str) -> None:
    """In each round both sides at once, for as long; a pass is made each second."""
    time.sleep(bench.options.seconds * _SETTLE_OVER_USUAL)
    for _ in range(bench.options.rounds):
        before = {side: _cpu_ns(pids) for side, pids in processes.items()}
        began_s = time.monotonic()
        time.sleep(bench.options.seconds * _ROUND_OVER_USUAL)
        elapsed_s = time.monotonic() - began_s
        figures: dict[str, float] = {}
        over_ms = 0.0
        after = {side: _cpu_ns(pids) for side, pids in processes.items()}
        for name in processes["none"]:
            ms = {side: (after[side][name] - before[side][name]) / 1e6 / elapsed_s for side in _SIDES}
            figures[f"CPU ms a second, {name}, {version}, none"] = ms["none"]
            figures[f"CPU ms a second, {name}, {version}"] = ms["guard"]
            over_ms += ms["guard"] - ms["none"]
        figures[f"CPU ms a second over none, {version}"] = over_ms
        mib = {side: rss_bytes(pids["manager"]) / _MIB for side, pids in processes.items()}
        figures[f"MiB over none, {version}"] = mib["guard"] - mib["none"]
        bench.results.add(names.GUARDED, PROXY, figures)


def _cpu_ns(pids: Mapping[str, int]) -> dict[str, int]:
    return {name: cpu_ns(pid) for name, pid in pids.items()}


def _cpu_stat(used_us: int) -> str:
    return V2_FILES["cpu.stat"].replace("usage_usec 1", f"usage_usec {used_us:015}")


@contextmanager
def _growing(cores: Mapping[Path, float], text: Callable[[int], str]) -> Iterator[None]:
    """Has files tell that so many CPUs are used, as long as the block runs.

    `text`: from microseconds to the content, of the same length each time: a reader sees no part of it.
    """
    began_s = time.monotonic()

    def write() -> None:
        for path, each in cores.items():
            with path.open("r+") as file:
                file.write(text(int((time.monotonic() - began_s) * each * 1_000_000)))

    with repeated(write, 1.0):
        yield


@contextmanager
def _threads(folders: Sequence[Path]) -> Iterator[None]:
    """A process with threads in each of these cgroups."""
    command = [sys.executable, waking_threads.__file__, str(_THREADS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{folder}/cgroup.procs\n" for folder in folders) + "\n")
        process.stdin.flush()
        if not process.stdout.readline():
            raise LoadError("threads in cgroups are not there")
        yield
        process.stdin.close()
