"""A containerd of its own with the pods of a load, and what runs beside the pods."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cri_api.runtime.v1 import api_pb2
from tests.effect import workloads
from tests.effect.load import is_served
from tests.effect.workloads import counted, work
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec, container_config, sandbox_config
from tests.lab.programs import REPOSITORY, debian_program

CPUS: Final = os.cpu_count() or 1
PODS: Final = "/kubepods"
LS_CLASS: Final = "/kubepods/burstable"
BE_CLASS: Final = "/kubepods/besteffort"
SYSTEM: Final = "/effect-system"
BENCH: Final = "/effect-bench"
PRODUCT: Final = "/effect-product"
BE_POD_SHARES: Final = 2
REQUEST_S: Final = 0.001
"""CPU time of one request of load B."""
BURN_S: Final = 0.005
"""CPU time of one unit of the BE pods' work of load B."""
TEXT_BYTES: Final = 32_768
"""What nginx compresses for one request of load A: about 0.7 ms of CPU time."""
NGINX_WORKERS: Final = 4
_RT_RUNTIME_US: Final = 300_000
"""What the load generator may use as a real-time process, of each second and CPU."""
_OUT: Final = "/out"
_PROGRAM: Final = "/effect/workloads.py"
_NGINX: Final = """
daemon off;
user root;
worker_processes {workers};
pid {out}/nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {out}/t1;
    proxy_temp_path {out}/t2;
    fastcgi_temp_path {out}/t3;
    uwsgi_temp_path {out}/t4;
    scgi_temp_path {out}/t5;
    keepalive_requests 100000000;
    keepalive_timeout 1h;
    default_type text/plain;
    gzip on;
    gzip_comp_level 6;
    gzip_types text/plain;
    server {{
        listen 127.0.0.1:{port} reuseport;
        root {out}/www;
        add_header X-Worker $pid;
    }}
}}
"""


class Amounts(NamedTuple):
    """Iterations of the work of load B."""

    request: int
    unit: int


def calibrated() -> Amounts:
    """How many iterations take so long on this machine, by the fastest of some tries."""
    tries, iterations = [], 20_000
    for _ in range(20):
        began_s = time.perf_counter()
        work(iterations)
        tries.append(time.perf_counter() - began_s)
    per_second = iterations / min(tries)
    return Amounts(int(per_second * REQUEST_S), int(per_second * BURN_S))


@dataclass(frozen=True)
class Load:
    """What runs on the node.

    Attributes:
        name: As on the command line.
        is_nginx: Load A: nginx and ffmpeg; else load B: the server and the greedy work of `workloads`.
        ls_percent: The CPU time that the LS pod needs, of the node's; 0: the rate is given.
        rate: Requests per second; 0: the one that needs `ls_percent`.
        system_percent: CPU time of the system's regular work, that of this program included; 100: as much as
            it gets.
        be_pods: Best-effort pods.
        be_shares: CPU shares of their class.
        times: CPU shares of all pods and of the system are so many times what they are on a node, so that
            other programs of a machine that is not quiet get less.
    """

    name: str
    is_nginx: bool
    ls_percent: int
    rate: float
    system_percent: int
    be_pods: int
    be_shares: int
    times: int = 1

    @property
    def protocol(self) -> str:
        """Of the load generator."""
        return "http" if self.is_nginx else "byte"

    @property
    def workers(self) -> int:
        """Of the server, if it says which one answers."""
        return NGINX_WORKERS if self.is_nginx else 0


class Node:
    """containerd with the pods of one load."""

    def __init__(self, stack: ExitStack, folder: Path, load: Load, port: int) -> None:
        self.load = load
        self.port = port
        self.out = folder / "out"
        self.out.mkdir()
        self._system: list[subprocess.Popen[bytes]] = []
        self._amounts = calibrated()
        web, batch = self._pods()
        self.web, self.batch = web.cgroup_parent, [pod.cgroup_parent for pod in batch]
        self._counters = [self.out / pod.name for pod in batch]
        # Removed when containerd has ended all containers.
        for pod in (web, *batch):
            stack.enter_context(cgroup_v1.pod_cgroup(pod.cgroup_parent))
        # As the kubelet sets them.
        shares = {PODS: 1024 * CPUS * load.times, LS_CLASS: 1024 * CPUS, BE_CLASS: load.be_shares}
        self.runtime = stack.enter_context(Containerd("1.6"))
        self._client = stack.enter_context(CriClient(self.runtime.socket))
        for pod in (web, *batch):
            self._start(pod)
        shares.update(dict.fromkeys(self.batch, BE_POD_SHARES))
        for cgroup, value in shares.items():
            cgroup_v1.file("cpu", cgroup, "cpu.shares").write_text(str(value))
        stack.callback(self._end_system)
        wait_until(lambda: all(self._done(each) for each in self._counters), "the BE pods")
        wait_until(partial(is_served, port), "the LS server")

    def units(self) -> int:
        """What all BE pods have done so far."""
        return sum(map(self._done, self._counters))

    def start_system(self, percent: float) -> None:
        """Starts the system's work: this share of all CPUs, or as much as it gets."""
        for index in range(CPUS):
            if percent >= 100:
                words: tuple[str, ...] = ("burn", str(self.out / f"system-{index}"), str(self._amounts.unit))
            else:
                words = ("regular", str(percent / 100))
            process = subprocess.Popen((str(debian_program("python3")), workloads.__file__, *words))
            self._system.append(process)
            # Not by preexec_fn: that needs a whole fork, which the threads of gRPC may not survive.
            join(SYSTEM, process.pid)

    def problems(self) -> list[str]:
        """What no longer runs."""
        return [f"a process of the system ended: {each.returncode}" for each in self._system if each.poll()]

    def _end_system(self) -> None:
        for process in self._system:
            process.kill()
            process.wait(30)

    def _done(self, counter: Path) -> int:
        if not counter.exists():
            return 0
        return frames(counter) if self.load.is_nginx else counted(counter)

    def _pods(self) -> tuple[PodSpec, list[PodSpec]]:
        names = [f"batch-{index}" for index in range(self.load.be_pods)]
        if self.load.is_nginx:
            www = self.out / "www"
            www.mkdir()
            (www / "text").write_bytes(text())
            config = _NGINX.format(workers=NGINX_WORKERS, out=_OUT, port=self.port)
            (self.out / "nginx.conf").write_text(config)
            serve: tuple[str, ...] = (str(debian_program("nginx")), "-p", _OUT, "-c", f"{_OUT}/nginx.conf")
            ffmpeg = str(debian_program("ffmpeg"))
            burn = [(ffmpeg, *ffmpeg_words(f"{_OUT}/{name}")) for name in names]
        else:
            python, amounts = str(debian_program("python3")), self._amounts
            serve = (python, _PROGRAM, "serve", str(self.port), str(amounts.request))
            burn = [(python, _PROGRAM, "burn", f"{_OUT}/{name}", str(amounts.unit)) for name in names]
        web = _pod("web", "burstable", "LS", serve)
        batch = [_pod(name, "besteffort", "BE", command) for name, command in zip(names, burn, strict=True)]
        return web, batch

    def _start(self, pod: PodSpec) -> None:
        (container,) = pod.containers
        calls = self._client.runtime
        sandbox = sandbox_config(pod, str(self.out))
        request = api_pb2.RunPodSandboxRequest(config=sandbox)
        sandbox_id = calls.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        config = container_config(pod, container)
        # The programs of this machine, as the image has none; libraries are found by links in /etc.
        for place in ("/usr", "/lib", "/lib64", "/etc"):
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
    """A pod of one container without a limit; best-effort ones have the kubelet's least shares."""
    shares = 2 if kube_qos == "besteffort" else 1024
    resources = api_pb2.LinuxContainerResources(cpu_shares=shares, cpu_period=100_000)
    container = ContainerSpec(resources=resources, command=command)
    return PodSpec(name, kube_qos, labels={"koordinator.sh/qosClass": qos}, containers=(container,))


def text() -> bytes:
    """What nginx compresses: words, the same on each machine."""
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlucmfwyp", k=chance.randint(2, 9))) for _ in range(2_000)]
    return " ".join(chance.choices(words, k=TEXT_BYTES)).encode()[:TEXT_BYTES]


def ffmpeg_words(progress: str) -> Sequence[str]:
    """Encodes a picture that moves, without end, by two threads; writes how many frames it has."""
    source = "testsrc2=size=640x360:rate=30"
    encode = ("-c:v", "libx264", "-preset", "medium", "-threads", "2", "-f", "null")
    report = ("-progress", f"file:{progress}", "-stats_period", "0.1")
    return "-nostdin", "-loglevel", "error", *report, "-f", "lavfi", "-i", source, *encode, "-"


def frames(progress: Path) -> int:
    """How many frames ffmpeg has said last that it has encoded."""
    with progress.open("rb") as opened:
        opened.seek(max(progress.stat().st_size - 4_096, 0))
        lines = opened.read().decode("ascii", "replace").splitlines()[:-1]
    found = [line.removeprefix("frame=") for line in lines if line.startswith("frame=")]
    return int(found[-1]) if found else 0


def join(cgroup: str, pid: int) -> None:
    """Puts a process into a cgroup of `own_cgroups`."""
    for controller in ("cpu", "cpuacct"):
        cgroup_v1.file(controller, cgroup, "cgroup.procs").write_text(str(pid))


@contextmanager
def own_cgroups(times: int) -> Iterator[None]:
    """The cgroups of what runs outside the pods, beside them; in the block this process is in `BENCH`."""
    try:
        for cgroup in (SYSTEM, BENCH, PRODUCT):
            for controller in ("cpu", "cpuacct"):
                cgroup_v1.file(controller, cgroup, "").mkdir(exist_ok=True)
        # That of all pods together, as on a node whose system.slice gets as much.
        cgroup_v1.file("cpu", SYSTEM, "cpu.shares").write_text(str(1024 * CPUS * times))
        for cgroup in (BENCH, PRODUCT):
            cgroup_v1.file("cpu", cgroup, "cpu.shares").write_text(str(1024 * times))
        with suppress(OSError):
            # Kernels without CONFIG_RT_GROUP_SCHED have no such file, and need none.
            if (limit := cgroup_v1.file("cpu", BENCH, "cpu.rt_runtime_us")).exists():
                limit.write_text(str(_RT_RUNTIME_US))
        join(BENCH, os.getpid())
        yield
    finally:
        join("/", os.getpid())
        for cgroup in (SYSTEM, BENCH, PRODUCT):
            cgroup_v1.kill_processes(cgroup)
            for controller in ("cpu", "cpuacct"):
                wait_until(partial(_removed, cgroup_v1.file(controller, cgroup, "")), f"{cgroup} is removed")


def _removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.is_dir()


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


def generator_command(node: Node, rate: float, seconds: float) -> list[str]:
    """The command line of the load generator."""
    load = node.load
    words = (load.protocol, str(node.port), str(rate), str(max(int(rate * seconds), 1)), str(load.workers))
    return [sys.executable, "-m", "tests.effect.load", *words]
