"""Measures the effect on a real containerd: `python -m tests.effect`, or `make effect`; as root.

A latency-sensitive server gets requests at a fixed rate, beside greedy best-effort pods on the same CPUs, of
which other processes of the node leave little. Pods are made once; each round has three ways: without the
product, with koord-runtime-proxy and koord-qos-manager, which bound the quota of the BE class, and with
the BE pods frozen, which shows how much there is to win.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Self

from cri_api.runtime.v1 import api_pb2
from tests.effect import workloads
from tests.effect.load import Load, is_served
from tests.effect.report import PERCENTILES, Round, Way, draw, percentile, table
from tests.effect.workloads import counted, work
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec, container_config, sandbox_config
from tests.lab.procfs import cpu_seconds
from tests.lab.programs import REPOSITORY, debian_program
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

CPUS: Final = os.cpu_count() or 1
BE_CLASS: Final = "/kubepods/besteffort"
SHARES: Final = {"/kubepods/burstable": 2048, BE_CLASS: 2}
"""As the kubelet sets them on two CPUs."""
REQUEST_S: Final = 0.001
"""CPU time of one request."""
BURN_S: Final = 0.005
"""CPU time of one unit of the BE pods' work."""
SETTLE_S: Final = 10.0
"""From the first bound on, or its end, to the measurement: the quota changes in steps, a second each."""
_OUT: Final = "/out"
_PROGRAM: Final = "/effect/workloads.py"
_CONFIG: Final = """
[node]
name = "effect"
kubelet_dir = "{kubelet}"
"""
_OFF: Final = {"resource-threshold-config": {"clusterStrategy": {"enable": False}}}


@dataclass(frozen=True)
class Options:
    """What is measured."""

    rounds: int
    seconds: float
    rate: float
    be_pods: int
    system_processes: int
    threshold_percent: int
    kubepods_shares: int
    output: Path


class Work(NamedTuple):
    """Iterations of the pods' work."""

    request: int
    unit: int


def calibrated() -> Work:
    """How many iterations take so long on this machine, by the fastest of some tries."""
    tries, iterations = [], 20_000
    for _ in range(20):
        began_s = time.perf_counter()
        work(iterations)
        tries.append(time.perf_counter() - began_s)
    per_second = iterations / min(tries)
    return Work(int(per_second * REQUEST_S), int(per_second * BURN_S))


class Node:
    """containerd with the pods of the measurement."""

    def __init__(self, stack: ExitStack, folder: Path, options: Options, amounts: Work, port: int) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        python = str(debian_program("python3"))
        pods = [_pod("web", "burstable", "LS", (python, _PROGRAM, "serve", str(port), str(amounts.request)))]
        self.counters = [self.out / f"batch-{index}" for index in range(options.be_pods)]
        for each in self.counters:
            command = (python, _PROGRAM, "burn", f"{_OUT}/{each.name}", str(amounts.unit))
            pods.append(_pod(each.name, "besteffort", "BE", command))
        # Removed when containerd has ended all containers.
        for pod in pods:
            stack.enter_context(cgroup_v1.pod_cgroup(pod.cgroup_parent))
        self.runtime = stack.enter_context(Containerd("1.6"))
        self._client = stack.enter_context(CriClient(self.runtime.socket))
        for pod in pods:
            self._start(pod)
        for cgroup, shares in {**SHARES, "/kubepods": options.kubepods_shares}.items():
            cgroup_v1.file("cpu", cgroup, "cpu.shares").write_text(str(shares))
        for index in range(options.system_processes):
            stack.enter_context(_system_process(self.out / f"system-{index}", amounts.unit))
        wait_until(lambda: all(map(_runs, self.counters)), "the BE pods")
        wait_until(partial(is_served, port), "the LS server")

    def _start(self, pod: PodSpec) -> None:
        (container,) = pod.containers
        calls = self._client.runtime
        sandbox = sandbox_config(pod, str(self.out))
        request = api_pb2.RunPodSandboxRequest(config=sandbox)
        sandbox_id = calls.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        config = container_config(pod, container)
        # The interpreter of this machine, as the image has none.
        for place in ("/usr", "/lib", "/lib64"):
            if Path(place).is_dir():
                config.mounts.add(container_path=place, host_path=str(Path(place).resolve()), readonly=True)
        config.mounts.add(container_path="/effect", host_path=str(REPOSITORY / "tests/effect"), readonly=True)
        config.mounts.add(container_path=_OUT, host_path=str(self.out))
        create = api_pb2.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox
        )
        container_id = calls.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        calls.StartContainer(api_pb2.StartContainerRequest(container_id=container_id), timeout=CALL_TIMEOUT_S)


def _pod(name: str, kube_qos: KubeQos, qos: str, command: tuple[str, ...]) -> PodSpec:
    """A pod of one container with a share of a whole CPU, and without a limit."""
    resources = api_pb2.LinuxContainerResources(cpu_shares=1024, cpu_period=100_000)
    container = ContainerSpec(resources=resources, command=command)
    return PodSpec(name, kube_qos, labels={"koordinator.sh/qosClass": qos}, containers=(container,))


@contextmanager
def _system_process(counter: Path, iterations: int) -> Iterator[None]:
    """Computes without end, outside all pods: as a backup or a package's installation does."""
    command = (str(debian_program("python3")), workloads.__file__, "burn", str(counter), str(iterations))
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait(30)


def _runs(counter: Path) -> bool:
    return counter.exists() and counted(counter) > 0


def be_quota_us() -> int:
    return int(cgroup_v1.read("cpu", BE_CLASS, "cpu.cfs_quota_us"))


class Product:
    """Both processes of the product, from `with` to the end of its block; then no value of theirs is left."""

    def __init__(self, folder: Path, runtime: Path, threshold_percent: int) -> None:
        kubelet_files(folder / "kubelet", {})
        config = _CONFIG.format(kubelet=folder / "kubelet")
        self._daemon = ProxyProcess(folder, ProxyOptions(str(runtime), config=config))
        self._objects = NodeObjects(self._daemon.objects_folder, "effect")
        self._objects.node(capacity={"cpu": str(CPUS), "memory": "4Gi"})
        strategy = {
            "enable": True,
            "cpuSuppressThresholdPercent": threshold_percent,
            "cpuSuppressPolicy": "cfsQuota",
        }
        self._on = {"resource-threshold-config": {"clusterStrategy": strategy}}
        self._log = folder / "manager.log"
        self._manager: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._objects.strategies(self._on)
        self._daemon.start()
        program, option, _, *flags = self._daemon.command()
        wanted = ("--config", "--koord-runtimeproxy-endpoint")
        pairs = [pair for pair in zip(flags[::2], flags[1::2], strict=True) if pair[0] in wanted]
        command = [program, option, "runtimeproxy.qosmanager", *(word for pair in pairs for word in pair)]
        with self._log.open("ab") as log:
            self._manager = subprocess.Popen(
                command, cwd=REPOSITORY, env=self._daemon.environment(), stdout=log, stderr=log
            )
        self._wait(lambda: be_quota_us() > 0, "a bound of the BE class")
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._objects.strategies(_OFF)
            self._wait(lambda: be_quota_us() == -1, "the end of the bound")
        finally:
            self._end_manager()
            self._daemon.terminate()

    def used_s(self) -> float:
        """CPU time that both processes have used so far; 0 without them."""
        if self._manager is None:
            return 0.0
        return cpu_seconds(self._daemon.pid) + cpu_seconds(self._manager.pid)

    def close(self) -> None:
        """Ends what still runs."""
        self._end_manager()
        self._daemon.close()

    def _end_manager(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.terminate()
            manager.wait(30)

    def _wait(self, condition: object, what: str) -> None:
        assert callable(condition)
        try:
            wait_until(condition, what, timeout_s=60)
        except TimeoutError:
            print("\n".join(self._daemon.log[-20:]), self._log.read_text()[-4000:], sep="\n", file=sys.stderr)
            raise


@contextmanager
def quotas() -> Iterator[list[int]]:
    """Reads the quota of the BE class every second."""
    found: list[int] = [be_quota_us()]
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(1.0):
            found.append(be_quota_us())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@contextmanager
def frozen() -> Iterator[None]:
    """Stops all BE pods."""
    state = cgroup_v1.file("freezer", BE_CLASS, "freezer.state")
    state.write_text("FROZEN")
    try:
        wait_until(lambda: state.read_text().strip() == "FROZEN", "the BE pods to be frozen")
        yield
    finally:
        state.write_text("THAWED")


def measured(node: Node, options: Options, port: int, product: Product, way: Way) -> Round:
    """Sends the requests of one round."""
    before, used_ns, product_s, began_s = _units(node), _used_ns(), product.used_s(), time.monotonic()
    with quotas() as found:
        load = send(port, options)
    seconds = time.monotonic() - began_s
    return Round(
        way=way,
        latencies_ms=sorted(each * 1e3 for each in load.latencies_s),
        be_per_s=(_units(node) - before) / seconds,
        be_cores=(_used_ns() - used_ns) / 1e9 / seconds,
        quotas_us=found,
        late_ms=load.late_s * 1e3,
        product_cores=(product.used_s() - product_s) / seconds,
    )


def send(port: int, options: Options) -> Load:
    """Sends the requests; in a process of its own."""
    words = (str(port), str(options.rate), str(int(options.rate * options.seconds)))
    done = subprocess.run(
        (sys.executable, "-m", "tests.effect.load", *words),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        timeout=options.seconds + 120,
        check=True,
    )
    return Load(**json.loads(done.stdout))


def _units(node: Node) -> int:
    return sum(map(counted, node.counters))


def _used_ns() -> int:
    return int(cgroup_v1.read("cpuacct", BE_CLASS, "cpuacct.usage"))


def run(options: Options) -> list[Round]:
    """All rounds."""
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="effect-", dir="/tmp") as name, ExitStack() as stack:
        folder, port, amounts = Path(name), 19_753, calibrated()
        node = Node(stack, folder, options, amounts, port)
        own = folder / "product"
        own.mkdir()
        product = Product(own, node.runtime.socket, options.threshold_percent)
        stack.callback(product.close)
        beside: dict[Way, Callable[[], AbstractContextManager[object]]] = {
            Way.ALONE: frozen,
            Way.WITHOUT: contextlib.nullcontext,
            Way.WITH: lambda: product,
        }
        ways = tuple(Way)
        for number in range(options.rounds):
            for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
                with beside[way]():
                    time.sleep(SETTLE_S)
                    rounds.append(measured(node, options, port, product, way))
                print(_line(number, rounds[-1]), flush=True)
    return rounds


def _line(number: int, each: Round) -> str:
    found = [(percent, percentile(each.latencies_ms, percent)) for percent in PERCENTILES]
    shown = ", ".join(f"p{percent:g} {value:.2f} ms" for percent, value in found)
    bound = median(each.quotas_us)
    return (
        f"round {number + 1} {each.way}: {shown}; BE {each.be_per_s:.0f} units/s, {each.be_cores:.2f} cores, "
        f"quota {bound:g} us; generator at most {each.late_ms:.2f} ms late"
    )


def main() -> None:
    """Measures, and writes table and plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second")
    parser.add_argument("--be-pods", type=int, default=2 * CPUS)
    parser.add_argument(
        "--system-processes",
        type=int,
        default=CPUS,
        help="processes outside all pods that compute without end",
    )
    parser.add_argument("--threshold-percent", type=int, default=65)
    parser.add_argument(
        "--kubepods-shares",
        type=int,
        default=1024 * CPUS,
        help="CPU shares of all pods, beside what else runs; the kubelet's by default",
    )
    parser.add_argument("--output", type=Path, default=Path("dist/effect"))
    options = Options(**vars(parser.parse_args()))
    options.output.mkdir(parents=True, exist_ok=True)
    rounds = run(options)
    text = table(rounds)
    (options.output / "effect.md").write_text(text + "\n")
    figures = [{**each._asdict(), "latencies_ms": None, **_percentiles(each)} for each in rounds]
    (options.output / "effect.json").write_text(json.dumps(figures, indent=1) + "\n")
    draw(rounds, options.output / "effect.png")
    print(text)


def _percentiles(each: Round) -> dict[str, float]:
    return {f"p{percent:g}_ms": percentile(each.latencies_ms, percent) for percent in PERCENTILES}


if __name__ == "__main__":
    main()
