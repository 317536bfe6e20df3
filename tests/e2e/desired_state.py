"""A node of 20 pods whose strategies change while they run, and what its kernel's files should hold then."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.koordinator import cpuset, extended_resources, qos
from tests.e2e.values import BATCH_500, BEST_EFFORT, BURSTABLE, GUARANTEED, as_resources
from tests.lab import cgroup_v1
from tests.lab.cgroup_v1 import CgroupValues
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CriClient
from tests.lab.node import RunningPod, running_pod
from tests.lab.node_objects import NodeObjects, kubelet_files, strategy_policies
from tests.lab.pods import NAMESPACE, ContainerSpec, KubeQos, PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

WITHIN_S: Final = 3.0
"""How long after the change of a file of strategies the kernel's files have the values on a quiet machine."""
DEADLINE_S: Final = 30.0
"""How long it is waited for: other tests run beside this one."""
QUOTA_US: Final = 100_000
"""The quota of each container with a limit: one CPU."""
BATCH_QUOTA_US: Final = 50_000
POOL_LABEL: Final = "lab/pool"
BURST_ANNOTATION: Final = "koordinator.sh/cpuBurst"

Texts = Mapping[str, bytes]
_PACE_S = 0.01


@dataclass(frozen=True)
class Kind:
    """Pods that are the same but for their names."""

    count: int
    kube_qos: KubeQos
    requested: CgroupValues
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def specs(self, name: str) -> Iterator[PodSpec]:
        for number in range(self.count):
            container = ContainerSpec(resources=as_resources(self.requested))
            yield PodSpec(f"{name}-{number}", self.kube_qos, self.labels, self.annotations, (container,))


KINDS: Final = {
    "web": Kind(5, "burstable", BURSTABLE, qos("LS") | {"app": "web"}, {}),
    "annotated": Kind(
        2,
        "burstable",
        BURSTABLE,
        qos("LS") | {"app": "web"},
        {BURST_ANNOTATION: '{"policy": "cpuBurstOnly", "cpuBurstPercent": 5}'},
    ),
    "plain": Kind(3, "burstable", BURSTABLE, {}, {}),
    "bound": Kind(4, "guaranteed", GUARANTEED, qos("LSR"), cpuset("0")),
    "batch": Kind(6, "besteffort", BEST_EFFORT, qos("BE"), extended_resources({"main": BATCH_500})),
}


@dataclass(frozen=True)
class Site:
    """The daemon, its node's objects, and its pods by kind."""

    proxy: ProxyProcess
    objects: NodeObjects
    client: CriClient
    pods: Mapping[str, tuple[RunningPod, ...]]
    before: Texts
    """Every value file of the pods, before any strategy."""

    def values(self, name: str, **kinds: int | str) -> dict[str, bytes]:
        """The texts of a cpu or cpuset file in the containers and own cgroups of pods of these kinds."""
        pods = [(pod, value) for kind, value in kinds.items() for pod in self.pods[kind]]
        return merged(of_pod(pod, name, value) for pod, value in pods)

    def container_values(self, name: str, **kinds: int | str) -> dict[str, bytes]:
        """The same for the containers alone."""
        pods = [(pod, value) for kind, value in kinds.items() for pod in self.pods[kind]]
        return merged(of_container(pod, name, value) for pod, value in pods)

    def checked(self, pod: RunningPod) -> dict[str, Any]:
        """What `check-slo` says of the objects, with the source of each value of this pod."""
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": pod.spec.name,
                "namespace": NAMESPACE,
                "labels": dict(pod.spec.labels),
                "annotations": dict(pod.spec.annotations),
            },
            "status": {"qosClass": pod.spec.kube_qos.capitalize()},
        }
        file = self.proxy.folder / "pod.yaml"
        file.write_text(json.dumps(document))
        words = ("check-slo", str(self.objects.folder), "--pod", str(file), "--output", "json")
        done = self.proxy.run(*words)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def wait_for(self, changed: Texts, since_s: float, within_s: float = DEADLINE_S) -> float:
        """Waits until the files hold these texts, and all others what they held before any strategy.

        Returns:
            How long after `since_s` that was, in seconds.

        Raises:
            AssertionError: it took too long; with what differs.
        """
        wanted = {**self.before, **changed}
        deadline_s = since_s + within_s
        while self._is_pending(changed) or (self.differing(wanted)):
            if time.monotonic() > deadline_s:
                differing = self.differing(wanted)
                some = "\n".join(f"{path}: {found!r}, not {text!r}" for path, found, text in differing[:20])
                raise AssertionError(f"not within {within_s} s, {len(differing)} files differ:\n{some}")
            time.sleep(_PACE_S)
        return time.monotonic() - since_s

    def differing(self, wanted: Texts) -> list[tuple[str, bytes | None, bytes | None]]:
        """The files that do not hold what is wanted: path, found, wanted."""
        found = self.texts()
        paths = sorted(found.keys() | wanted.keys())
        return [
            (path, found.get(path), wanted.get(path)) for path in paths if found.get(path) != wanted.get(path)
        ]

    def texts(self) -> dict[str, bytes]:
        """All files that hold values, of the pods and of the directories above them."""
        return _texts(self.pods)

    def _is_pending(self, changed: Texts) -> bool:
        """A quick look at the files that should change."""
        return any(cgroup_v1.text_file(path).read_bytes() != text for path, text in changed.items())

    def withdraw(self) -> float:
        """Takes all strategies, labels and pools away, and waits until each file has its text of before."""
        self.objects.node()
        self.objects.topology({})
        since_s = self.objects.strategies({})
        return self.wait_for({}, since_s)


@contextmanager
def site(containerd: Containerd, folder: Path, logs: Path) -> Iterator[Site]:
    """Runs the daemon and all pods."""
    with ExitStack() as stack:
        kubelet = folder / "kubelet"
        kubelet_files(kubelet, {})
        config = f'[node]\nkubelet_dir = "{kubelet}"\n{strategy_policies(enabled=True)}'
        proxy = ProxyProcess(folder, ProxyOptions(str(containerd.socket), config=config))
        objects = NodeObjects(proxy.objects_folder)
        objects.node()
        objects.strategies({})
        stack.enter_context(proxy)
        client = stack.enter_context(CriClient(proxy.socket))
        pods = {
            name: tuple(
                stack.enter_context(running_pod(client, spec, logs, _kubelet_files(kind)))
                for spec in kind.specs(name)
            )
            for name, kind in KINDS.items()
        }
        stack.callback(_start_again, proxy)
        yield Site(proxy, objects, client, pods, _texts(pods))


def _kubelet_files(kind: Kind) -> dict[str, str]:
    """What the kubelet writes to the pod's cgroup."""
    return {
        "cpu.shares": str(kind.requested.cpu_shares),
        "cpu.cfs_quota_us": str(kind.requested.cpu_quota_us),
    }


def _start_again(proxy: ProxyProcess) -> None:
    """A test may have ended it, and the pods are removed through it."""
    if not proxy.alive():
        proxy.start()


def _texts(pods: Mapping[str, tuple[RunningPod, ...]]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for directory in ("/kubepods", "/kubepods/burstable", "/kubepods/besteffort"):
        found |= cgroup_v1.texts(directory, deep=False)
    for each in pods.values():
        for pod in each:
            found |= cgroup_v1.texts(pod.spec.cgroup_parent)
    return found


def _path(name: str, cgroup: str) -> str:
    return f"{name.partition('.')[0]}{cgroup}/{name}"


def _text(value: int | str) -> bytes:
    return f"{value}\n".encode()


def of_container(pod: RunningPod, name: str, value: int | str) -> dict[str, bytes]:
    """The text of one file of a pod's container."""
    return {_path(name, pod.container_cgroup()): _text(value)}


def of_own_cgroup(pod: RunningPod, name: str, value: int | str) -> dict[str, bytes]:
    """The text of one file of a pod's own cgroup."""
    return {_path(name, pod.spec.cgroup_parent): _text(value)}


def of_pod(pod: RunningPod, name: str, value: int | str) -> dict[str, bytes]:
    """The text of one file in both."""
    return of_container(pod, name, value) | of_own_cgroup(pod, name, value)


def merged(parts: Iterable[Mapping[str, bytes]]) -> dict[str, bytes]:
    """All texts."""
    return {path: text for part in parts for path, text in part.items()}


def burst_of(percent: int) -> int:
    """`cpu.cfs_burst_us` of a container of one CPU. Source: Koordinator's CPU burst, within the quota."""
    return min(QUOTA_US * percent // 100, QUOTA_US)


def normalized(quota_us: int, ratio: float) -> int:
    """A quota at the base frequency. Source: Koordinator's CPU normalization."""
    return math.ceil(quota_us / ratio)
