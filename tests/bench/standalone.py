"""Stand-alone mode beside a real containerd: how soon containers have their values, also after kills.

`python -m tests.bench.standalone [--containerd 1.6] [--starts 1000] [--kills 20]`, as root; then a fake node
with 250 pods that only run, for CPU time and memory. It ends with 1 if a figure is not as it must be.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

import grpc

from cri_api.runtime.v1 import api_pb2 as cri
from runtimeproxy.testing import CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.bench.procfs import cpu_ns, rss_bytes
from tests.daemon.driving import Pod, batch_pod
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, as_resources
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.node import remove_sandbox, run_sandbox
from tests.lab.node_objects import NodeObjects, strategy_policies
from tests.lab.pods import ContainerSpec, PodSpec, container_config, sandbox_config
from tests.lab.programs import ContainerdVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

GOAL_P99_MS: Final = 100.0
GOAL_AFTER_KILL_S: Final = 2.0
GOAL_IDLE_PERCENT: Final = 0.5
MIB: Final = 1024 * 1024
PODS: Final = 8
"""Half of them BE with batch resources, half LS with a burst."""
LOOK_S: Final = 0.002
SETTLE_S: Final = 20.0
"""After the start of a daemon, before it rests."""
CONTAINERS: Final = 2
"""Of each pod that only runs."""
MISSED_S: Final = 10.0
"""A container without its values after that long has missed them."""
STRATEGIES: Final = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 100}}
}
IDLE: Final = """
from runtimeproxy.hooks import PodChange, PodSelector, Policy
from runtimeproxy.qos import QoSClass

class Idle(Policy):
    name = "idle"
    selector = PodSelector(qos_classes=frozenset({QoSClass.BE}))

    def pod(self, pod, node):
        return PodChange(cgroup={"cpu.idle": 1}, reason="BE is idle")
"""
"""Wants BE pods idle, which the daemon refuses to write."""
WANTED: Final = {
    "BE": (("cpu", "cpu.shares", "512"), ("cpu", "cpu.cfs_quota_us", "50000")),
    "LS": (("cpu", "cpu.cfs_quota_us", "50000"), ("cpu", "cpu.cfs_burst_us", "50000")),
}
"""By QoS class of the pod: the values that each container ends with."""
LS_RESOURCES: Final = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=50_000, cpu_shares=512)


@dataclass
class Start:
    """One container: when its program began and when it had its values, in seconds since the epoch."""

    cgroup: str
    wanted: tuple[tuple[str, str, str], ...]
    mark: Path
    began_s: float = 0.0
    right_s: float = 0.0
    is_done: threading.Event = field(default_factory=threading.Event)

    def look(self, now_s: float) -> bool:
        """Returns whether nothing more is to be seen."""
        if not self.began_s:
            with suppress(FileNotFoundError):
                self.began_s = self.mark.stat().st_mtime
        if self.began_s and self._is_right():
            self.right_s = now_s
        if self.right_s or (self.began_s and now_s > self.began_s + MISSED_S):
            self.is_done.set()
        return self.is_done.is_set()

    def _is_right(self) -> bool:
        try:
            return all(cgroup_v1.read(each, self.cgroup, name) == text for each, name, text in self.wanted)
        except OSError:
            return False


class Watcher:
    """Looks at the files of containers that start, every 2 ms."""

    def __init__(self) -> None:
        self._new: queue.SimpleQueue[Start] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def add(self, start: Start) -> None:
        self._new.put(start)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        looked_at: list[Start] = []
        while not self._ended.wait(LOOK_S):
            while not self._new.empty():
                looked_at.append(self._new.get())
            looked_at = [each for each in looked_at if not each.look(time.time())]


class Load:
    """Pods in which containers are started at a rate, and removed some time later."""

    def __init__(self, client: CriClient, folder: Path, stack: ExitStack) -> None:
        self._client = client
        self._marks = folder / "marks"
        self._marks.mkdir()
        self._pods: list[tuple[str, str, PodSpec, cri.PodSandboxConfig]] = []
        self._watcher = Watcher()
        stack.callback(self._watcher.close)
        self._number = 0
        self.starts: list[Start] = []
        self.failures: list[str] = []
        for number in range(PODS):
            self._pods.append(self._run_pod(folder, stack, number))

    def _run_pod(
        self, folder: Path, stack: ExitStack, number: int
    ) -> tuple[str, str, PodSpec, cri.PodSandboxConfig]:
        name, is_batch = f"alone-{number}", number % 2 == 0
        batch = extended_resources({f"c{each}": BATCH_500 for each in range(10)}) if is_batch else {}
        of_class = "BE" if is_batch else "LS"
        spec = PodSpec(name, "besteffort" if is_batch else "burstable", qos(of_class), batch)
        stack.enter_context(cgroup_v1.pod_cgroup(spec.cgroup_parent))
        logs = folder / name
        logs.mkdir()
        config = sandbox_config(spec, str(logs))
        sandbox = run_sandbox(self._client, config)
        stack.callback(remove_sandbox, self._client, sandbox)
        return sandbox, of_class, spec, config

    def run(self, count: int, per_s: float, alive_s: float) -> None:
        """Starts containers when they are due; each is removed some time after it has its values."""
        with ThreadPoolExecutor(16) as threads:
            began_s = time.monotonic()
            for number in range(count):
                time.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
                self._number += 1
                threads.submit(self._run_container, self._number, alive_s)

    def _run_container(self, number: int, alive_s: float) -> None:
        sandbox, of_class, spec, config = self._pods[number % PODS]
        mark = self._marks / str(number)
        command = ("/bin/sh", "-c", f": > /marks/{number}; exec /bin/sleep 1000")
        resources = as_resources(BEST_EFFORT) if of_class == "BE" else LS_RESOURCES
        # Names of a pod's containers, which the annotation has, come again; attempts tell them apart.
        container = container_config(spec, ContainerSpec(f"c{number % 10}", resources, command))
        container.metadata.attempt = number
        container.mounts.add(host_path=str(self._marks), container_path="/marks")
        request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=container, sandbox_config=config)
        runtime = self._client.runtime
        try:
            identity = runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S).container_id
            start = Start(f"{spec.cgroup_parent}/{identity}", WANTED[of_class], mark)
            self._watcher.add(start)
            runtime.StartContainer(cri.StartContainerRequest(container_id=identity), timeout=CALL_TIMEOUT_S)
            start.is_done.wait(MISSED_S * 2)
            self.starts.append(start)
            time.sleep(alive_s)
            runtime.StopContainer(cri.StopContainerRequest(container_id=identity), timeout=CALL_TIMEOUT_S)
            runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=identity), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            self.failures.append(f"{spec.name} {number}: {error}")


@contextmanager
def killed(daemon: ProxyProcess, kills: int, pause_s: float, ready_s: list[float]) -> Iterator[list[float]]:
    """Kills the daemon again and again, and starts it at once; gives when it was started.

    `ready_s`: gets how long each start took.
    """
    started_s: list[float] = []
    ended = threading.Event()

    def run() -> None:
        while len(started_s) < kills and not ended.wait(pause_s):
            daemon.kill()
            started_s.append(time.time())
            daemon.start()
            ready_s.append(time.time() - started_s[-1])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield started_s
    finally:
        ended.set()
        thread.join()


def standalone(folder: Path, runtime: str, more: str = "") -> ProxyProcess:
    config = f'[daemon]\nmode = "standalone"\nlock = "{folder}/front-end.lock"\n{more}'
    daemon = ProxyProcess(folder, ProxyOptions(runtime, config=config + strategy_policies(enabled=True)))
    daemon.policies_folder.mkdir()
    NodeObjects(daemon.objects_folder).strategies(STRATEGIES)
    return daemon


def starts(version: ContainerdVersion, count: int, per_s: float, kills: int) -> bool:
    """Starts containers, then more while the daemon is killed; returns whether all is well."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alone-", dir="/tmp")))
        containerd = stack.enter_context(Containerd(version))
        client = stack.enter_context(CriClient(containerd.socket))
        daemon = standalone(folder, str(containerd.socket))
        (daemon.policies_folder / "idle.py").write_text(IDLE)
        stack.enter_context(daemon)
        load = Load(client, folder, stack)
        before_ns, began_s = cpu_ns(daemon.pid), time.monotonic()
        load.run(count, per_s, 0.5)
        took_s = time.monotonic() - began_s
        cpu_ms = (cpu_ns(daemon.pid) - before_ns) / 1e6
        delays = sorted((each.right_s - each.began_s) * 1000 for each in load.starts if each.right_s)
        missed = len(load.starts) - len(delays)
        print(
            f"containerd {version}: {count} starts, {len(load.starts) / took_s:.1f} a second, "
            f"failed {len(load.failures)}, without values {missed}; from program to values ms: "
            f"p50 {at(delays, 50):.1f}, p90 {at(delays, 90):.1f}, p99 {at(delays, 99):.1f}, "
            f"longest {delays[-1]:.1f}; CPU of the daemon {cpu_ms / count:.1f} ms a start; "
            f"{rss_bytes(daemon.pid) / MIB:.1f} MiB"
        )
        print(*load.failures[:5], sep="\n", end="\n" if load.failures else "")
        is_well = not load.failures and not missed and at(delays, 99) < GOAL_P99_MS
        return (not kills or after_kills(load, daemon, version, kills, per_s)) and is_well


def after_kills(
    load: Load, daemon: ProxyProcess, version: ContainerdVersion, kills: int, per_s: float
) -> bool:
    load.starts, load.failures, pause_s = [], [], 4.0
    ready_s: list[float] = []
    with killed(daemon, kills, pause_s, ready_s) as started_s:
        while len(started_s) < kills:
            load.run(int(per_s * pause_s), per_s, 1.0)
        load.run(int(per_s * pause_s), per_s, 1.0)
    late = []
    for each in load.starts:
        # Since the daemon's start, if that came between the program's and the values.
        since_s = max((at_s for at_s in started_s if at_s < (each.right_s or 0.0)), default=0.0)
        late.append((each.right_s or float("inf")) - max(each.began_s, since_s))
    print(
        f"containerd {version}: daemon killed {len(started_s)} times, {len(load.starts)} starts, "
        f"failed {len(load.failures)}; values at most {max(late):.2f} s after program or daemon began, "
        f"which was ready after {min(ready_s):.2f} to {max(ready_s):.2f} s"
    )
    return not load.failures and max(late) <= GOAL_AFTER_KILL_S


def at(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def resting(pods: int, seconds: float) -> bool:
    """CPU time and memory of a daemon with pods that only run, before the fake runtime."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="alone-", dir="/tmp")))
        files = CgroupFiles(folder / "cgroup")
        state = RuntimeState(cgroups=PodCgroups(files=files))
        runtime = stack.enter_context(FakeRuntime(folder / "runtime.sock", state=state))
        client = stack.enter_context(CriClient(runtime.socket_path))
        for number in range(pods):
            made = batch_pod(client, f"pod-{number}") if number % 2 else ls_pod(client, f"pod-{number}")
            files.make(made.config.linux.cgroup_parent)
            identities = [made.run().id]
            identities += [made.create().start().container for _ in range(CONTAINERS)]
            for identity in identities:
                cgroup = f"{made.config.linux.cgroup_parent}/{identity}"
                files.write(cgroup, "cgroup.procs", str(os.getpid()))
        daemon = stack.enter_context(
            standalone(folder, str(runtime.socket_path), f'[cgroups]\nroot = "{files.root}"\n')
        )
        time.sleep(SETTLE_S)
        before_ns, began_s = cpu_ns(daemon.pid), time.monotonic()
        time.sleep(seconds)
        percent = (cpu_ns(daemon.pid) - before_ns) / 1e7 / (time.monotonic() - began_s)
        print(
            f"{pods} pods with 2 containers that only run, {seconds:.0f} s: CPU {percent:.2f} % of a core, "
            f"{rss_bytes(daemon.pid) / MIB:.1f} MiB"
        )
        return percent < GOAL_IDLE_PERCENT


def ls_pod(client: CriClient, name: str) -> Pod:
    config = pod_sandbox_config(name, qos="LS", kubelet_qos=KubeletQos.BURSTABLE)
    return Pod(client, config, resources=LS_RESOURCES)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.standalone", description=__doc__)
    parser.add_argument("--containerd", choices=get_args(ContainerdVersion), default="1.6")
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--per-s", type=float, default=10.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pods", type=int, default=250)
    parser.add_argument("--resting-s", type=float, default=180.0, help="0 leaves that measure out")
    chosen = parser.parse_args(arguments)
    results = []
    if chosen.starts:
        results.append(starts(chosen.containerd, chosen.starts, chosen.per_s, chosen.kills))
    if chosen.resting_s:
        results.append(resting(chosen.pods, chosen.resting_s))
    load = ", ".join(f"{part:.2f}" for part in os.getloadavg())
    print(f"{os.cpu_count()} CPUs; load average at the end {load}")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
