"""The row of a strategy that changes values of every running pod, with calls beside it.

Two daemons of the same build stand before the same kind of node: one applies strategies, in the other the
feature is off. Each has a fake runtime of its own in this process, with plain files in place of cgroups.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, PodCgroups, RuntimeState
from runtimeproxy.testing.builders import (
    QOS_LABEL,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.paced import Paced
from tests.bench.processes import Process, ProxyLauncher
from tests.bench.procfs import cpu_ns, rss_bytes
from tests.bench.scenarios import CONTAINER_NAME, EXTENDED_RESOURCES
from tests.bench.stands import PROXY
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.node_objects import NodeObjects, kubelet_files, strategy_policies
from tests.peers.load_client import LoadError

ALL_POLICIES: Final = """\
[node]
objects_dir = "{objects}"
kubelet_dir = "{kubelet}"
""" + strategy_policies(enabled=True)
NO_STRATEGIES: Final = '[node]\nobjects_dir = ""\n' + strategy_policies(enabled=False)
_CONTAINERS: Final = (CONTAINER_NAME, "side")
_CLASSES: Final = ("LS", "BE", "")
_VERSIONS_PER_S: Final = 200
_SHORTEST_S: Final = 2.0
_PACE_S: Final = 0.05
_TIMEOUT_S: Final = 120.0
_MIB: Final = 1024 * 1024


def strategies(number: int) -> dict[str, object]:
    """Every other time one of two sets, which differ in a value of every pod."""
    percent = _percent(number)
    memory = {"memoryQOS": {"enable": True, "minLimitPercent": percent}}
    burst = {"policy": "cpuBurstOnly", "cpuBurstPercent": percent}
    return {
        "cpu-burst-config": {"clusterStrategy": burst},
        "resource-qos-config": {"clusterStrategy": {"lsClass": memory, "beClass": memory}},
        "cpu-normalization-config": {"enable": True, "defaultRatio": 1 + percent / 100},
    }


@dataclass
class Node:
    """One daemon before its own runtime, with pods that run."""

    process: Process
    runtime: FakeRuntime
    files: CgroupFiles
    objects: NodeObjects
    number: int = 0
    """How many storms there were."""

    def storm(self) -> None:
        """Changes the strategies."""
        self.number += 1
        self.objects.strategies(strategies(self.number))

    def wait_for_values(self) -> None:
        """Waits until every container has the values of the last storm; LoadError if that takes too long."""
        # The daemon writes files and tells of none of them; a look ends at the first container that waits.
        ends = time.monotonic() + _TIMEOUT_S
        while not all(map(self._has_its_values, self.runtime.state.containers)):
            if time.monotonic() > ends:
                raise LoadError(f"the storm does not end: {self.process.output()}")
            time.sleep(_PACE_S)

    def _has_its_values(self, container_id: str) -> bool:
        state = self.runtime.state
        container = state.containers[container_id]
        request_bytes = _REQUEST_MIB * _MIB
        if container.sandbox_config.labels.get(QOS_LABEL) == "BE":
            if container.config.metadata.name != CONTAINER_NAME:
                return True  # the annotation names the other one only
            request_bytes = _BATCH_BYTES
        wanted = request_bytes * _percent(self.number) // 100
        return self.files.read(state.cgroup_path(container_id), "memory.min") == str(wanted)


_REQUEST_MIB: Final = 100
"""The memory that each container of the other pods requests."""
_BATCH_BYTES: Final = 2**30
"""The batch memory that `EXTENDED_RESOURCES` requests."""


def _percent(number: int) -> int:
    return (20, 40)[number % 2]


def rows(bench: Bench, turn: int) -> None:
    """Measures all rounds in the first turn: both daemons in each, another one first each time."""
    if turn > 0:
        return
    folder = bench.folder / "storm"
    folder.mkdir()
    with ExitStack() as stack:
        on = node_with_pods(bench, stack, folder / "on", ALL_POLICIES)
        off = node_with_pods(bench, stack, folder / "off", NO_STRATEGIES)
        length_s = max(_SHORTEST_S, _alone(bench, on), _alone(bench, on))
        _memory(bench, on)
        ratios, added_us = [], []
        for number in range(bench.options.beside_rounds):
            p50_us, p99_us = {}, {}
            order = (on, off) if number % 2 else (off, on)
            for node in order:
                latencies = sorted(_beside(node, length_s))
                p50_us[node is on] = median(latencies)
                p99_us[node is on] = latencies[len(latencies) * 99 // 100]
            ratios.append(p50_us[True] / p50_us[False])
            added_us.append(p99_us[True] - p99_us[False])
            figures = {
                "p50 us, feature off": p50_us[False],
                "p50 us": p50_us[True],
                "p50 over off": ratios[-1],
                "p99 us, feature off": p99_us[False],
                "p99 us": p99_us[True],
                "p99 us over off": added_us[-1],
            }
            bench.results.add(names.STORM, PROXY, figures)
            on.wait_for_values()
        spread = {
            "p50 over off, best round": min(ratios),
            "p50 over off, worst round": max(ratios),
            "p99 us over off, best round": min(added_us),
            "p99 us over off, worst round": max(added_us),
        }
        bench.results.add(names.STORM, PROXY, spread)


def _alone(bench: Bench, node: Node) -> float:
    """A storm without calls beside it; returns how long it takes in seconds."""
    node.runtime.recorded.clear()
    before_ns, begun_s = cpu_ns(node.process.pid), time.monotonic()
    node.storm()
    node.wait_for_values()
    took_s = time.monotonic() - begun_s
    figures = {
        "CPU s of a storm": (cpu_ns(node.process.pid) - before_ns) / 1e9,
        "until all values s": took_s,
        "calls of the runtime": len([name for name in node.runtime.recorded.methods if name != "Version"]),
    }
    bench.results.add(names.STORM, PROXY, figures)
    return took_s


def _memory(bench: Bench, node: Node) -> None:
    bench.results.add(names.STORM, PROXY, {"MiB, all policies": rss_bytes(node.process.pid) / _MIB})


def _beside(node: Node, length_s: float) -> list[float]:
    """Latencies of `Version` in us while a storm goes on; nothing changes where the feature is off."""
    plan = Paced(node.process.socket, "version", _VERSIONS_PER_S, length_s)
    load = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.paced"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    node.runtime.recorded.clear()
    assert load.stdin is not None
    load.stdin.write(json.dumps(asdict(plan)))
    load.stdin.close()
    load.stdin = None
    node.runtime.recorded.wait("Version", _VERSIONS_PER_S // 4, _TIMEOUT_S)
    node.storm()
    out, errors = load.communicate(timeout=_TIMEOUT_S)
    if load.returncode != 0:
        raise LoadError(errors[-2000:])
    latencies_us: list[float] = json.loads(out)
    return latencies_us


def node_with_pods(
    bench: Bench, stack: ExitStack, folder: Path, config: str, classes: Sequence[str] = _CLASSES
) -> Node:
    """Starts a daemon and runs the pods through it, so that it knows what the kubelet asked for."""
    folder.mkdir()
    files = CgroupFiles(folder / "cgroup", version=2)
    files.make("/kubepods/burstable")
    files.make("/kubepods/besteffort")
    state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
    runtime = stack.enter_context(FakeRuntime(folder / "fake.sock", state=state))
    objects = NodeObjects(folder / "node.d")
    objects.node(capacity={"cpu": "64", "memory": "256Gi"})
    objects.strategies({})
    kubelet_files(folder / "kubelet", {})
    launcher = ProxyLauncher(bench.full.launcher.template, files.root)
    process = launcher.make(
        folder / "proxy.sock",
        str(runtime.socket_path),
        config=config.format(objects=objects.folder, kubelet=folder / "kubelet"),
    )
    stack.enter_context(process)
    process.wait_until_serving()
    requests: dict[tuple[str, str], dict[str, str]] = {}
    with CriClient(Path(process.socket)) as client:
        for number in range(bench.options.storm_pods):
            uid = _run_pod(client, number, classes[number % len(classes)])
            requests |= {(uid, name): {"memory": f"{_REQUEST_MIB}Mi"} for name in _CONTAINERS}
    kubelet_files(folder / "kubelet", requests)
    return Node(process, runtime, files, objects)


def _run_pod(client: CriClient, number: int, qos: str) -> str:
    """Runs a pod as the kubelet does; returns its uid."""
    annotations = EXTENDED_RESOURCES if qos == "BE" else {}
    pod = pod_sandbox_config(f"storm-{number:03}", qos=qos, annotations=annotations)
    resources = api_pb2.LinuxContainerResources(
        cpu_period=100_000,
        cpu_quota=100_000,
        cpu_shares=1024,
        # The kubelet knows no limit of a pod that requests batch memory.
        memory_limit_in_bytes=0 if qos == "BE" else 2 * _REQUEST_MIB * _MIB,
    )
    pod.linux.resources.CopyFrom(resources)
    pod.linux.resources.cpu_quota *= len(_CONTAINERS)
    run = api_pb2.RunPodSandboxRequest(config=pod)
    sandbox = client.runtime.RunPodSandbox(run, timeout=CALL_TIMEOUT_S).pod_sandbox_id
    for name in _CONTAINERS:
        config = container_config(name, pod=pod, resources=resources)
        create = create_container_request(sandbox, config, pod)
        made = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S)
        start = api_pb2.StartContainerRequest(container_id=made.container_id)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
    return pod.metadata.uid
