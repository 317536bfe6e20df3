"""Rows of NRI mode at Go's own side of NRI: what plugins add to the creation of a container."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
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
from tests.bench.procfs import cpu_ns
from tests.bench.scenarios import CONTAINER_NAME, EXTENDED_RESOURCES
from tests.bench.stands import PROXY
from tests.bench.storm import ALL_POLICIES
from tests.lab.nri_adaptation import Message, NriAdaptation
from tests.lab.nri_plugins import GoPlugin
from tests.lab.programs import tools_folder
from tests.peers.load_client import LoadError

_NONE, _GO, _FIXED, _ALL = "no plugin", "Go plugin", "fixed answers", "all policies"
_CYCLES_PER_SECOND = 600
_LEAST = 10
_WARM_UP = 20
_PODS = 20
_REST_S = 0.5
_MOST_RESTS = 40
_EVENTS = (
    *("CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer"),
    *("StopContainer", "RemoveContainer"),
)
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
    plugin: Callable[[], AbstractContextManager[GoPlugin | Process | None]]


@dataclass(frozen=True, slots=True)
class Life:
    """How long the runtime waited for plugins while a container came and went, in seconds."""

    create_s: float
    all_s: float


class NriRows:
    """`CreateContainer` in pods like that of `EvaluatedRow`, and `Synchronize` of a full node."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}
        # A pod's next events wait for the work that its last ones have left.
        self._pods = [_pod(pod_sandbox_config(f"bench-{n}", qos="LS", annotations=GPU)) for n in range(_PODS)]

    def __call__(self, bench: Bench, turn: int) -> None:
        """Measures one round; the first starts the daemon."""
        if not os.access(tools_folder() / "nri-adaptation", os.X_OK):
            raise LoadError("nri-adaptation is not built: run tests/lab/build_tools.sh")
        if not self._ways:
            self._ways = _ways(bench, self._pods)
        lives = {name: self._round(bench, name, way) for name, way in rotated(self._ways, turn).items()}
        none = lives[_NONE]
        for name, measured in lives.items():
            create_s = sorted(life.create_s for life in measured)
            figures = {
                "p50 us": median(create_s),
                "p99 us": create_s[len(create_s) * 99 // 100],
                "added mean us": mean(create_s) - mean(life.create_s for life in none),
                "all events, added mean us": mean(life.all_s for life in measured)
                - mean(life.all_s for life in none),
            }
            in_us = {f"{name}, {figure}": value * 1e6 for figure, value in figures.items()}
            bench.results.add(names.NRI, PROXY, in_us)

    def _round(self, bench: Bench, name: str, way: Way) -> list[Life]:
        count = max(_LEAST, int(bench.options.seconds * _CYCLES_PER_SECOND))
        with way.runtime as runtime, way.plugin() as plugin:
            if plugin is not None:
                runtime.wait_for_plugins(1)
                bench.results.add(names.SYNCHRONIZE, PROXY, {f"{name}, s": runtime.synchronized().seconds})
            for pod in self._pods:
                runtime.run_pod(pod)
            if plugin is not None:
                _rest(plugin.pid)
            live = partial(_live, runtime, is_changed=name in {_FIXED, _ALL})
            pods = cycle(self._pods)
            for pod in islice(pods, _WARM_UP):
                live(pod)
            before_ns = cpu_ns(plugin.pid) if plugin is not None else 0
            measured = [live(pod) for pod in islice(pods, count)]
            if plugin is not None:
                used_us = (cpu_ns(plugin.pid) - before_ns) / 1e3 / count
                bench.results.add(names.NRI, PROXY, {f"{name}, all events, CPU us": used_us})
            return measured


def _rest(pid: int) -> None:
    """Waits until what runs is adopted, which goes on after the answer to Synchronize."""
    for _ in range(_MOST_RESTS):
        before_ns = cpu_ns(pid)
        time.sleep(_REST_S)
        if (cpu_ns(pid) - before_ns) / 1e9 < _REST_S / 10:
            return


def _live(runtime: NriAdaptation, pod: Message, *, is_changed: bool) -> Life:
    """Has a container come and go."""
    answers = [runtime.call(name, pod=pod, container=_container(pod, "created")) for name in _EVENTS]
    if is_changed and not _has_cpu(answers[0].response):
        raise LoadError(f"not adjusted: {answers[0].response}")
    return Life(answers[0].seconds, sum(each.seconds for each in answers))


def _has_cpu(response: Message) -> bool:
    return bool(response["adjust"]["linux"]["resources"]["cpu"])


def _ways(bench: Bench, created: Sequence[Message]) -> dict[str, Way]:
    folder = bench.folder / "nri"
    files, config = make_node(folder, ALL_POLICIES)
    for pod in created:
        files.make(_container(pod, "created")["linux"]["cgroups_path"])
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
            container = _container(pod, f"running-{each}")
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


def _container(pod: Message, name: str) -> Message:
    """A container as a runtime tells it to plugins; it has limits, which policies change."""
    return {
        "id": f"{name}-{pod['name']}",
        "pod_sandbox_id": pod["id"],
        "name": CONTAINER_NAME,
        "labels": {"io.kubernetes.container.name": CONTAINER_NAME},
        "args": ["/bin/sleep", "3600"],
        "env": ["PATH=/bin"],
        "linux": {
            "cgroups_path": f"{pod['linux']['cgroup_parent']}/{name}-{pod['name']}",
            "resources": {
                "cpu": {"shares": {"value": 1024}, "quota": {"value": 100_000}, "period": {"value": 100_000}},
                "memory": {"limit": {"value": 1 << 30}},
            },
        },
    }
