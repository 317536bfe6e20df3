"""Rows of NRI mode at Go's own side of NRI: what plugins add to the creation of a container."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupFiles
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.bench import names
from tests.bench.bench import Bench
from tests.bench.datapath import rotated
from tests.bench.evaluated import GPU, make_node
from tests.bench.processes import Process, ProxyLauncher
from tests.bench.scenarios import CONTAINER_NAME, EXTENDED_RESOURCES
from tests.bench.stands import PROXY
from tests.bench.storm import ALL_POLICIES
from tests.lab.nri_adaptation import Message, NriAdaptation, NriAnswer
from tests.lab.nri_plugins import GoPlugin
from tests.lab.programs import tools_folder
from tests.peers.load_client import LoadError

_NONE, _GO, _FIXED, _ALL = "no plugin", "Go plugin", "fixed answers", "all policies"
_CYCLES_PER_SECOND = 600
_LEAST = 10
_WARM_UP = 20
_CLASSES = ("LS", "BE", "")
_CONTAINERS_PER_POD = 2
_MODE = """\
[daemon]
mode = "nri"
lock = "{lock}"
[nri]
socket = "{socket}"
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A runtime, and the plugin that connects with it in each round; None if there is none."""

    runtime: NriAdaptation
    plugin: Callable[[], AbstractContextManager[object]]


class NriRows:
    """`CreateContainer` of the pod of `EvaluatedRow`, and `Synchronize` with what runs on a full node."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        self._pod = _pod(pod_sandbox_config("bench-nri", qos="LS", annotations=GPU))
        self._numbers = itertools.count()

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first starts the daemon."""
        if not os.access(tools_folder() / "nri-adaptation", os.X_OK):
            raise LoadError("nri-adaptation is not built: run tests/lab/build_tools.sh")
        if not self._ways:
            self._ways = _ways(bench)
        latencies = {name: self._round(bench, name, way) for name, way in rotated(self._ways, turn).items()}
        none_s = mean(latencies[_NONE])
        for name, taken_s in latencies.items():
            figures = {
                "p50 us": median(taken_s) * 1e6,
                "p99 us": sorted(taken_s)[len(taken_s) * 99 // 100] * 1e6,
                "added mean us": (mean(taken_s) - none_s) * 1e6,
            }
            named = {f"{name}, {figure}": value for figure, value in figures.items()}
            bench.results.add(names.NRI, PROXY, named)

    def _round(self, bench: Bench, name: str, way: Way) -> list[float]:
        """How long the runtime waited for each creation, in seconds."""
        count = max(_LEAST, int(bench.options.seconds * _CYCLES_PER_SECOND))
        with way.runtime as runtime, way.plugin() as plugin:
            if plugin is not None:
                runtime.wait_for_plugins(1)
                bench.results.add(names.SYNCHRONIZE, PROXY, {f"{name}, s": runtime.synchronized().seconds})
            runtime.run_pod(self._pod)
            created = [self._created(runtime) for _ in range(_WARM_UP + count)][_WARM_UP:]
        if name in {_FIXED, _ALL} and not all(_has_cpu(each.response) for each in created):
            raise LoadError(f"{name}: a container was not adjusted")
        return [each.seconds for each in created]

    def _created(self, runtime: NriAdaptation) -> NriAnswer:
        container = _container(self._pod, f"created-{next(self._numbers):06}")
        created = runtime.start_container(self._pod, container)
        runtime.remove_container(self._pod, container)
        return created


def _has_cpu(response: Message) -> bool:
    return bool(response["adjust"]["linux"]["resources"]["cpu"])


def _ways(bench: Bench) -> dict[str, Way]:
    folder = bench.folder / "nri"
    files, config = make_node(folder, ALL_POLICIES)
    pods, containers = _inventory(bench.options.storm_pods, files)

    def runtime(name: str) -> NriAdaptation:
        (folder / name).mkdir()
        made = NriAdaptation(folder / name)
        made.set_inventory(pods, containers)
        return made

    none, go, fixed, every = (runtime(name) for name in ("none", "go", "fixed", "all"))
    mode = _MODE.format(lock=folder / "lock", socket=every.socket)
    # What runs is known from Synchronize; there is no CRI.
    absent = str(folder / "no-runtime.sock")
    daemon = ProxyLauncher(None, files.root).make(folder / "daemon.sock", absent, config=mode + config)
    bench.stack.enter_context(daemon)
    return {
        _NONE: Way(none, nullcontext),
        _GO: Way(go, partial(GoPlugin, go.socket, folder)),
        _FIXED: Way(fixed, partial(_fixed_plugin, fixed.socket, folder)),
        # It runs all the time, and connects by itself.
        _ALL: Way(every, partial(nullcontext, daemon)),
    }


def _fixed_plugin(socket: Path, folder: Path) -> Process:
    command = [sys.executable, "-m", "tests.bench.fixed_nri_plugin", str(socket)]
    return Process(command, str(folder / "fixed.sock"), folder, {})


def _inventory(count: int, files: CgroupFiles) -> tuple[list[Message], list[Message]]:
    """Pods of all classes with two containers each, and their cgroups."""
    pods, containers = [], []
    for number in range(count):
        qos = _CLASSES[number % len(_CLASSES)]
        annotations = EXTENDED_RESOURCES if qos == "BE" else {}
        pod = _pod(pod_sandbox_config(f"running-{number:03}", qos=qos, annotations=annotations))
        pods.append(pod)
        for each in range(_CONTAINERS_PER_POD):
            container = _container(pod, f"running-{number:03}-{each}")
            containers.append({**container, "state": "CONTAINER_RUNNING"})
            files.make(container["linux"]["cgroups_path"])
    return pods, containers


def _pod(config: api_pb2.PodSandboxConfig) -> Message:
    """A sandbox as a runtime tells it to plugins."""
    return {
        "id": f"sandbox-{config.metadata.name}",
        "name": config.metadata.name,
        "namespace": config.metadata.namespace,
        "uid": config.metadata.uid,
        "labels": dict(config.labels),
        "annotations": dict(config.annotations),
        "linux": {"cgroup_parent": config.linux.cgroup_parent},
    }


def _container(pod: Message, container_id: str) -> Message:
    """A container as a runtime tells it to plugins; it has limits, which policies change."""
    return {
        "id": container_id,
        "pod_sandbox_id": pod["id"],
        "name": CONTAINER_NAME,
        "labels": {"io.kubernetes.container.name": CONTAINER_NAME},
        "args": ["/bin/sleep", "3600"],
        "env": ["PATH=/bin"],
        "linux": {
            "cgroups_path": f"{pod['linux']['cgroup_parent']}/{container_id}",
            "resources": {
                "cpu": {"shares": {"value": 1024}, "quota": {"value": 100_000}, "period": {"value": 100_000}},
                "memory": {"limit": {"value": 1 << 30}},
            },
        },
    }
