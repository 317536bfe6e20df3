"""Whole kubelets before the proxy, their memory QoS beside the policy: no value that both write, none lost.

They run pods from files, without an API server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, MIB
from tests.lab.busybox_image import IMAGE
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.node.guest.cgroup_v2 import ROOT
from tests.node.guest.kubelet import remove_pod as remove_sandbox
from tests.node.guest.kubelet import update
from tests.node.guest.machine import (
    CONFIG,
    CONTAINERD,
    ENDPOINT,
    SERVICE,
    UnexpectedError,
    expect,
    run,
    systemctl,
)
from tests.node.guest.node import Check, Node
from tests.node.guest.strategies import objects

TOOLS = Path("/mnt/share/tools")
"""Where the kubelets are, such as `kubelet-1.37`."""
_FOLDER = Path("/var/lib/kubelet")
_MANIFESTS = _FOLDER / "manifests"
LOGS = Path("/mnt/share")
_UNIT = "whole-kubelet"
_PATIENCE_S = 300.0
_PERIOD_S = 70.0
"""The kubelet writes to the cgroups of QoS classes each minute, and no event tells. Source: kubelet
pkg/kubelet/cm/qos_container_manager_linux.go, periodicQOSCgroupUpdateInterval."""
_PACE_S = 0.05
_FILES = ("memory.min", "memory.low", "memory.high")
_CLASSES = {"": ROOT / "kubepods", **{name: ROOT / "kubepods" / name for name in ("burstable", "besteffort")}}
_MEMORY = {"memoryQOS": {"enable": True, "minLimitPercent": 25, "lowLimitPercent": 50}}
_KEYS = {"resource-qos-config": {"clusterStrategy": {"lsClass": _MEMORY, "beClass": _MEMORY}}}

Texts = dict[Path, str]


@dataclass(frozen=True)
class Pod:
    """A pod with one container of the same name."""

    name: str
    qos: str
    parent: str
    """The name of its QoS class's cgroup; empty for Guaranteed."""
    memory_mib: int
    """The request, or the batch memory."""
    limit_mib: int = 0

    @property
    def uid(self) -> str:
        return f"{self.name}-uid"

    @property
    def cgroup(self) -> Path:
        return _CLASSES[self.parent] / f"pod{self.uid}"

    def container_id(self) -> str:
        """The id of its running container; empty if there is none."""
        of_pod = {"io.kubernetes.pod.uid": self.uid}
        running = api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING)
        wanted = api_pb2.ContainerFilter(state=running, label_selector=of_pod)
        request = api_pb2.ListContainersRequest(filter=wanted)
        with CriClient(ENDPOINT) as client:
            found = client.runtime.ListContainers(request, timeout=_PATIENCE_S).containers
        return str(found[0].id) if found else ""

    def manifest(self) -> dict[str, Any]:
        """The pod, as a file of the kubelet has it."""
        resources: dict[str, Any] = {}
        annotations: Mapping[str, str] = {}
        if self.parent == "besteffort":
            annotations = extended_resources({self.name: BATCH_500})
        else:
            cpu = {"cpu": "100m"}
            resources["requests"] = {"memory": f"{self.memory_mib}Mi", **cpu}
            resources["limits"] = {"memory": f"{self.limit_mib}Mi", **cpu}
        container = {"name": self.name, "image": IMAGE, "imagePullPolicy": "Never", "resources": resources}
        metadata = {
            "name": self.name,
            "namespace": "default",
            "uid": self.uid,
            "labels": qos(self.qos),
            "annotations": dict(annotations),
        }
        spec = {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


PODS = (
    Pod("burstable", "LS", "burstable", memory_mib=32, limit_mib=64),
    Pod("guaranteed", "LS", "", memory_mib=48, limit_mib=48),
    Pod("batch", "BE", "besteffort", memory_mib=64),
)


@dataclass(frozen=True)
class Case:
    """A kubelet, and what it writes to the cgroups of QoS classes; values in MiB by class and file."""

    title: str
    version: str
    config: Mapping[str, Any]
    of_kubelet: Mapping[tuple[str, str], int]
    requests_as: Mapping[str, str]
    """The file that has the request of a pod and its container, by the pod's name."""


_ON = {"featureGates": {"MemoryQoS": True}}
CASES = (
    Case(
        "kubelet 1.34, MemoryQoS on",
        "1.34",
        _ON,
        {("", "memory.min"): 80, ("burstable", "memory.min"): 32},
        {"burstable": "memory.min", "guaranteed": "memory.min"},
    ),
    Case("kubelet 1.34, defaults", "1.34", {}, {}, {}),
    Case("kubelet 1.37, defaults", "1.37", {}, {}, {}),
    Case(
        "kubelet 1.37, TieredReservation",
        "1.37",
        {"memoryReservationPolicy": "TieredReservation", "memoryThrottlingFactor": 0.9},
        {("", "memory.min"): 80, ("", "memory.low"): 32, ("burstable", "memory.low"): 32},
        {"burstable": "memory.low", "guaranteed": "memory.min"},
    ),
)


def values_of_both(case: Case, node: Node) -> str:
    """Pods of a kubelet get a strategy, keep it beside the kubelet, and lose it again."""
    version = run(TOOLS / f"kubelet-{case.version}", "--version").removeprefix("Kubernetes ")
    CONFIG.write_text("[policies.memory-qos]\nenabled = true\n")
    systemctl("reload", SERVICE)
    folder = objects()
    folder.strategies({})
    folder.node(capacity={"cpu": "2", "memory": "3Gi"}, kubelet_version=version)
    _forget_the_kubelet_before()
    with _kubelet(case), _pods() as containers:
        _wait_for(containers, _asked(case, containers), "the kubelet's values")
        before = _texts(containers)
        folder.strategies(_KEYS)
        wanted = before | _wanted(case, containers)
        _wait_for(containers, wanted, "the strategy's values")
        with _Changes(containers) as changes:
            threading.Event().wait(_PERIOD_S)
        expect("changes of values within a period of the kubelet", changes.seen, [])
        with CriClient(ENDPOINT) as client:
            for each in PODS:
                update(client, containers[each].name, api_pb2.LinuxContainerResources(cpu_shares=100))
        _wait_for(containers, wanted, "the values after updates")
        folder.strategies({})
        _wait_for(containers, before, "the values of before")
    return f"{version}: {len(wanted)} files, {len(case.of_kubelet)} of QoS classes are the kubelet's"


def _forget_the_kubelet_before() -> None:
    """Not every kubelet resets what another one has written to the cgroups of QoS classes."""
    for cgroup in _CLASSES.values():
        for file in ("memory.min", "memory.low"):
            if (cgroup / file).exists():
                (cgroup / file).write_text("0")


@contextmanager
def _kubelet(case: Case) -> Iterator[None]:
    log = LOGS / f"{case.title.replace(' ', '-').replace(',', '')}.log"
    start_kubelet(case.version, case.config, log)
    try:
        yield
    finally:
        stop_kubelet()


def start_kubelet(version: str, settings: Mapping[str, Any], log: Path, endpoint: Path = ENDPOINT) -> None:
    """Starts one of `TOOLS` as a unit; `settings` are more of its configuration."""
    _MANIFESTS.mkdir(parents=True, exist_ok=True)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{endpoint}",
        "enableServer": False,
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
        "runtimeRequestTimeout": "5m",
        "staticPodPath": str(_MANIFESTS),
        **settings,
    }
    path = _FOLDER / "config.yaml"
    path.write_text(json.dumps(config))
    program = TOOLS / f"kubelet-{version}"
    run(
        *("systemd-run", "--quiet", "--collect", "--unit", _UNIT, f"--property=StandardError=append:{log}"),
        *(program, "--config", path, "--root-dir", _FOLDER, "--hostname-override=node", "--v=2"),
    )


def stop_kubelet() -> None:
    """Ends it, if it runs; its pods go on."""
    systemctl("stop", _UNIT, code=None)


def put_pod(pod: dict[str, Any]) -> None:
    """Adds a pod, which the kubelet runs when it runs."""
    _MANIFESTS.mkdir(parents=True, exist_ok=True)
    path = _manifest(pod["metadata"]["name"])
    # The kubelet reads no file whose name begins with a dot.
    before = path.with_name(f".{path.name}")
    before.write_text(json.dumps(pod))
    before.replace(path)


def remove_pod(name: str) -> None:
    """Takes a pod of `put_pod` away."""
    _manifest(name).unlink()


def remove_all_pods() -> None:
    """Takes away what a check that failed has left; no kubelet runs."""
    for path in _MANIFESTS.glob("*.json"):
        path.unlink()
    with CriClient(CONTAINERD) as client:
        listed = client.runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=_PATIENCE_S).items
        for each in listed:
            remove_sandbox(client, each.id)


def _manifest(name: str) -> Path:
    return _MANIFESTS / f"{name}.json"


@contextmanager
def _pods() -> Iterator[dict[Pod, Path]]:
    """Pods that run, with the cgroups of their containers."""
    containers: dict[Pod, Path] = {}
    try:
        for each in PODS:
            put_pod(each.manifest())
        for each in PODS:
            found = wait_until(each.container_id, f"the container of {each.name}", _PATIENCE_S)
            containers[each] = each.cgroup / found
        yield containers
    finally:
        for each in PODS:
            remove_pod(each.name)
        wait_until(lambda: not any(each.cgroup.exists() for each in PODS), "the end of the pods", _PATIENCE_S)


def _asked(case: Case, containers: Mapping[Pod, Path]) -> Texts:
    """What the kubelet writes."""
    found = {
        cgroup / case.requests_as[pod.name]: _text(pod.memory_mib)
        for pod, container in containers.items()
        for cgroup in (pod.cgroup, container)
        if pod.name in case.requests_as
    }
    return found | _of_kubelet(case)


def _of_kubelet(case: Case) -> Texts:
    return {_CLASSES[name] / file: _text(value) for (name, file), value in case.of_kubelet.items()}


def _wanted(case: Case, containers: Mapping[Pod, Path]) -> Texts:
    """What the strategy makes of it: 25 and 50 percent of requests, but of what the kubelet writes itself."""
    found: Texts = {}
    for file, divisor in (("memory.min", 4), ("memory.low", 2)):
        for pod, container in containers.items():
            for cgroup in (pod.cgroup, container):
                found[cgroup / file] = _text(pod.memory_mib // divisor)
        for name, cgroup in _CLASSES.items():
            below = sum(pod.memory_mib // divisor for pod in PODS if name in ("", pod.parent))
            # The ledger keeps memory.low from below memory.min.
            found[cgroup / file] = _text(max(below, case.of_kubelet.get((name, "memory.min"), 0)))
    return found | _of_kubelet(case)


def _text(mib: int) -> str:
    return f"{mib * MIB}\n"


def _texts(containers: Mapping[Pod, Path]) -> Texts:
    cgroups = [*_CLASSES.values(), *(pod.cgroup for pod in containers), *containers.values()]
    return {cgroup / file: (cgroup / file).read_text() for cgroup in cgroups for file in _FILES}


def _wait_for(containers: Mapping[Pod, Path], wanted: Texts, what: str) -> None:
    """Waits until these files hold what is wanted; says which did not."""
    differing: list[str] = []

    def hold() -> bool:
        found = _texts(containers)
        differing[:] = [
            f"{path}: {found[path]!r}, not {text!r}" for path, text in wanted.items() if found[path] != text
        ]
        return not differing

    try:
        wait_until(hold, what, _PATIENCE_S)
    except TimeoutError:
        raise UnexpectedError(f"{what}: {differing}") from None


class _Changes:
    """Looks for values that change while this lasts: what one program writes, the other would put right."""

    def __init__(self, containers: Mapping[Pod, Path]) -> None:
        self._containers = containers
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.seen: list[str] = []

    def __enter__(self) -> _Changes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _follow(self) -> None:
        before = _texts(self._containers)
        while not self._end.wait(_PACE_S):
            now = _texts(self._containers)
            changed = (path for path, text in now.items() if text != before[path])
            self.seen += [f"{path}: {before[path]!r} -> {now[path]!r}" for path in changed]
            before = now


CHECKS = tuple(
    Check(f"{case.title}: its memory QoS and the policy", partial(values_of_both, case)) for case in CASES
)
