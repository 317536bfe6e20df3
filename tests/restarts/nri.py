"""A whole kubelet on containerd beside the NRI plugin: pods come and go, and one of them is restarted."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import grpc

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import extended_resources, qos
from tests.e2e.values import BATCH_500, MIB
from tests.lab import cgroup_v1
from tests.lab.busybox_image import IMAGE
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.kube_api_server import KubeApiServer
from tests.lab.kubelet import NODE, Kubelet
from tests.lab.node_objects import NodeObjects, strategy_policies
from tests.lab.programs import ContainerdVersion, KubeletClientVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

RUNTIMES: Final[Mapping[KubeletClientVersion, ContainerdVersion]] = {"1.34": "2.2", "1.37": "2.4"}
"""The containerd below each kubelet."""
RIGHT_S: Final = 2.0
"""How long after the return of the runtime's socket, or the daemon's start, all values have to be right."""
UNDER_RESTARTS: Final = 12
"""Pods that are there while something is restarted."""
_PATIENCE_S: Final = 180.0
_RESIZE_S: Final = 30.0
_PACE_S: Final = 0.05
_LISTENS: Final = "00010000"
"""Flags of a listening socket in /proc/net/unix. Source: the kernel's __SO_ACCEPTCON."""
_RATIO: Final = 1.25
_KEYS: Final = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 50}},
    "cpu-normalization-config": {"enable": True, "defaultRatio": _RATIO},
}
_UID: Final = "io.kubernetes.pod.uid"

Files = Mapping[str, int]
"""Values by file name, such as `cpu.shares`."""


class Event(StrEnum):
    """What happens while pods come and go."""

    NOTHING = "nothing"
    KILL = "kill"
    SIGTERM = "sigterm"
    RUNTIME = "runtime"


@dataclass(frozen=True)
class Kind:
    """Pods with one container each; `files` are the values that it and its pod have to have."""

    name: str
    cgroup: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resources: Mapping[str, Any]
    files: Files

    def pod(self, number: int) -> dict[str, Any]:
        name = f"{self.name}-{number}"
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sleep", "1000000"],
            "resources": self.resources,
        }
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": f"{name}-uid",
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
        }
        spec = {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def pod_cgroup(self, uid: str) -> str:
        return f"{self.cgroup}/pod{uid}"


def web_resources(cpu_millicores: int, memory_mib: int = 32) -> dict[str, Any]:
    """Requests and limits of a `web` container."""
    return {
        "requests": {"cpu": "10m", "memory": "16Mi"},
        "limits": {"cpu": f"{cpu_millicores}m", "memory": f"{memory_mib}Mi"},
    }


def web_files(cpu_millicores: int, memory_mib: int = 32) -> dict[str, int]:
    """Their values: the quota by the node's ratio, the burst by the limit."""
    quota_us = cpu_millicores * 100
    return {
        "cpu.cfs_quota_us": int(quota_us / _RATIO),
        "cpu.cfs_burst_us": quota_us // 2,
        "memory.limit_in_bytes": memory_mib * MIB,
    }


WEB: Final = Kind(
    "web", "/kubepods/burstable", qos("LS"), {}, web_resources(200), web_files(200) | {"cpu.shares": 10}
)
BATCH: Final = Kind(
    "batch",
    "/kubepods/besteffort",
    qos("BE"),
    extended_resources({"main": BATCH_500}),
    {},
    {
        "cpu.shares": 512,
        "cpu.cfs_quota_us": int(50_000 / _RATIO),
        "memory.limit_in_bytes": 64 * MIB,
    },
)
KINDS: Final = (BATCH, WEB)


@dataclass
class Lab:
    """All that runs. Without a `daemon` the kubelet and containerd are alone."""

    folder: Path
    runtime: Containerd
    kubelet: Kubelet
    daemon: ProxyProcess | None
    api: KubeApiServer | None

    def containers(self) -> dict[str, str]:
        """The ids of containers that run, by their pod's uid."""
        running = api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING)
        request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(state=running))
        with CriClient(self.runtime.socket) as client:
            found = client.runtime.ListContainers(request, timeout=CALL_TIMEOUT_S).containers
        return {each.labels[_UID]: each.id for each in found}

    def wrong(self, containers: Mapping[str, str]) -> list[str]:
        """The values of these containers and their pods that are not right; what is gone is left out."""
        return [
            text
            for uid, identity in containers.items()
            for kind in KINDS
            if uid.startswith(kind.name)
            for text in wrong_files(kind.pod_cgroup(uid), identity, kind.files)
        ]

    def complaints(self) -> list[str]:
        """Errors in the daemon's log, and lines that are no records."""
        lines = self.daemon.log if self.daemon is not None else []
        return [line for line in lines if not line.startswith("{") or '"level":"error"' in line]


def wrong_files(pod_cgroup: str, container_id: str, files: Files) -> list[str]:
    """What differs from these values in the cgroups of a pod and its container."""
    wrong: list[str] = []
    for cgroup in (pod_cgroup, f"{pod_cgroup}/{container_id}"):
        for name, value in files.items():
            with suppress(OSError):
                found = cgroup_v1.read(name.partition(".")[0], cgroup, name)
                if found != str(value):
                    wrong.append(f"{cgroup}/{name}: {found}, not {value}")
    return wrong


@contextmanager
def lab(version: KubeletClientVersion, *, with_plugin: bool, with_api: bool = False) -> Iterator[Lab]:
    """Runs it all, and removes all that is left."""
    folder = Path(tempfile.mkdtemp(prefix="nri-", dir="/tmp"))
    try:
        with ExitStack() as stack:
            api, kubeconfig = None, None
            if with_api:
                (folder / "api").mkdir()
                api = stack.enter_context(KubeApiServer(folder / "api"))
                kubeconfig = api.kubeconfig("admin", "admin-token")
            runtime = stack.enter_context(Containerd(RUNTIMES[version], Nri()))
            kubelet = Kubelet(version, folder / "k", runtime.socket, kubeconfig)
            daemon = None
            if with_plugin:
                (folder / "d").mkdir()
                daemon = _daemon(folder / "d", runtime, kubelet)
                stack.enter_context(daemon)
                _wait_for_registration(daemon)
            stack.enter_context(kubelet)
            yield Lab(folder, runtime, kubelet, daemon, api)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _daemon(folder: Path, runtime: Containerd, kubelet: Kubelet) -> ProxyProcess:
    config = (
        f'[daemon]\nmode = "nri"\nlock = "{folder}/front-end.lock"\n[nri]\nsocket = "{runtime.nri_socket}"\n'
        f'[node]\nkubelet_dir = "{kubelet.folder}"\n{strategy_policies(enabled=True)}'
    )
    made = ProxyProcess(folder, ProxyOptions(str(runtime.socket), config=config))
    objects = NodeObjects(made.objects_folder)
    objects.node()
    objects.strategies(_KEYS)
    return made


def _wait_for_registration(daemon: ProxyProcess) -> None:
    wait_until(lambda: any("registered with the runtime" in line for line in daemon.log), "the registration")


# --- pods that come and go ---------------------------------------------------------------------------------


@dataclass
class Turnover:
    """Keeps some pods there: adds one for each that has ended, and takes away the oldest that run.

    Attributes:
        most: How many there are at a time.
        total: How many in all; None: until `stop`.
        begun: How many were added.
        ended: How many are gone with their cgroups.
        first: Values that were wrong when a container was first seen to run.
    """

    lab: Lab
    most: int
    total: int | None = None
    begun: int = 0
    ended: int = 0
    first: list[str] = field(default_factory=list)
    _there: deque[tuple[Kind, str]] = field(default_factory=deque)
    _ending: list[tuple[Kind, str]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _is_stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.is_over:
            with suppress(grpc.RpcError):
                self._turn()
            time.sleep(_PACE_S)

    def stop(self) -> None:
        """Adds no more, and takes all away."""
        self._is_stopped.set()

    @property
    def is_over(self) -> bool:
        is_last = self._is_stopped.is_set() or self.begun == self.total
        return is_last and not self._there and not self._ending

    def _turn(self) -> None:
        running = self.lab.containers()
        new = {uid: identity for uid, identity in running.items() if identity not in self._seen}
        self.first += self.lab.wrong(new)
        self._seen.update(new.values())
        gone = [
            (kind, name)
            for kind, name in self._ending
            if not cgroup_v1.file("cpu", kind.pod_cgroup(f"{name}-uid"), "").is_dir()
        ]
        self._ending = [each for each in self._ending if each not in gone]
        self.ended += len(gone)
        is_last = self._is_stopped.is_set() or self.begun == self.total
        ready = sum(f"{name}-uid" in running for _, name in self._there)
        while self._there and f"{self._there[0][1]}-uid" in running and (is_last or ready > self.most // 2):
            kind, name = self._there.popleft()
            self.lab.kubelet.remove(name)
            self._ending.append((kind, name))
            ready -= 1
        while not is_last and len(self._there) + len(self._ending) < self.most:
            kind = KINDS[self.begun % len(KINDS)]
            pod = kind.pod(self.begun)
            self.lab.kubelet.put(pod)
            self._there.append((kind, pod["metadata"]["name"]))
            self.begun += 1
            is_last = self.begun == self.total


@dataclass
class Report:
    """What came out.

    Attributes:
        pods: How many have come and gone.
        seconds: How long all took.
        first: Values that were wrong when a container was first seen to run.
        right_s: By restart, how long after it all values were right.
        reasons: The kubelet's failed calls by method and text.
        complaints: Errors in the daemon's log.
    """

    event: Event
    pods: int
    seconds: float
    first: Sequence[str]
    right_s: Sequence[float]
    reasons: Counter[str]
    complaints: Sequence[str]


def turned_over(lab: Lab, total: int, most: int) -> Report:
    """Pods come and go, and nothing is restarted."""
    turnover, began = Turnover(lab, most, total), time.monotonic()
    turnover.run()
    seconds = time.monotonic() - began
    return Report(Event.NOTHING, turnover.ended, seconds, turnover.first, (), reasons(lab), lab.complaints())


def restarted(lab: Lab, event: Event, restarts: int, most: int = UNDER_RESTARTS) -> Report:
    """Restarts something while pods come and go; each time waits until all values are right."""
    turnover, began, right_s = Turnover(lab, most), time.monotonic(), list[float]()
    thread = threading.Thread(target=turnover.run, daemon=True)
    thread.start()
    wait_until(lambda: turnover.ended > 0, "the first pod's end", _PATIENCE_S)
    for _ in range(restarts):
        begun = turnover.begun

        def has_begun(before: int = begun) -> bool:
            return turnover.begun > before

        returned = _RESTARTS[event](lab)
        right_s.append(_right_s(lab, returned))
        wait_until(has_begun, "more pods", _PATIENCE_S)
    turnover.stop()
    thread.join()
    seconds = time.monotonic() - began
    # What was created while the plugin was away has other values at first.
    first = turnover.first if lab.daemon is None else ()
    return Report(event, turnover.ended, seconds, first, right_s, reasons(lab), lab.complaints())


def _kill(lab: Lab) -> float:
    daemon = lab.daemon
    assert daemon is not None
    daemon.kill()
    return _started(daemon)


def _sigterm(lab: Lab) -> float:
    daemon = lab.daemon
    assert daemon is not None
    if (code := daemon.terminate()) != 0:
        raise ChildProcessError(f"exit code {code} after SIGTERM")
    return _started(daemon)


def _started(daemon: ProxyProcess) -> float:
    daemon.forget_states()
    daemon.start()
    return time.monotonic()


def _restart_runtime(lab: Lab) -> float:
    lab.runtime.kill()
    returned: list[float] = []

    def watch() -> None:
        wait_until(lambda: _is_listening(lab.runtime.nri_socket), "NRI's socket", _PATIENCE_S)
        returned.append(time.monotonic())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    lab.runtime.start()
    thread.join()
    return returned[0]


def _is_listening(path: Path) -> bool:
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(line.endswith(f" {path}") and f" {_LISTENS} " in line for line in lines)


_RESTARTS: Final[Mapping[Event, Callable[[Lab], float]]] = {
    Event.KILL: _kill,
    Event.SIGTERM: _sigterm,
    Event.RUNTIME: _restart_runtime,
}


def _right_s(lab: Lab, since: float) -> float:
    """How long after a moment the values of all containers that run were right."""
    if lab.daemon is None:
        return 0.0
    wrong: list[str] = []

    def are_right() -> bool:
        wrong[:] = lab.wrong(lab.containers())
        return not wrong

    try:
        wait_until(are_right, "right values", _PATIENCE_S)
    except TimeoutError:
        raise AssertionError(f"not right: {wrong[:10]}") from None
    return time.monotonic() - since


_QUOTED: Final = re.compile(r'\\?"[^"\\]*\\?"|[0-9a-f]{12,}|/\S+|\d+')
_FAILED: Final = re.compile(r'"(\w+)[^"]* from runtime service failed" err="(.*?[^\\])"')


def reasons(lab: Lab) -> Counter[str]:
    """The kubelet's failed calls by method and text, without what differs from call to call."""
    found: Counter[str] = Counter()
    for line in lab.kubelet.failed_calls:
        match = _FAILED.search(line)
        found[f"{match[1]}: {_QUOTED.sub('*', match[2])}" if match else line] += 1
    return found


# --- in-place resize ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resized:
    """What came of resizes.

    Attributes:
        pods: How many pods were resized, each as often as there are `steps`.
        right_s: By pod and step, how long after the API server was asked the values were right.
        wrong: Values that were not right in time.
        containers: How many containers were started anew; a resize in place starts none.
    """

    pods: int
    right_s: Sequence[float]
    wrong: Sequence[str]
    containers: int
    reasons: Counter[str]
    complaints: Sequence[str]


STEPS: Final = ((300, 32), (300, 48), (100, 48), (100, 24), (250, 64))
"""CPU limits in millicores and memory limits in MiB, of `web` pods that have 200 and 32 at first."""


def resized(lab: Lab, pods: int) -> Resized:
    """Resizes pods of the API server in place, up and down."""
    api = lab.api
    assert api is not None
    documents = [_bound(WEB.pod(number)) for number in range(pods)]
    wait_until(lambda: _has_node(api), "the kubelet's node", _PATIENCE_S)
    for each in documents:
        api.apply(json.dumps(each))
    uids = [api.get(each)["metadata"]["uid"] for each in documents]
    before = _wait_for_containers(lab, uids)
    right_s, wrong = list[float](), list[str]()
    for cpu_millicores, memory_mib in STEPS:
        asked_s = []
        for each in documents:
            _patch(api, each, web_resources(cpu_millicores, memory_mib))
            asked_s.append(time.monotonic())
        files = web_files(cpu_millicores, memory_mib)
        for uid, since in zip(uids, asked_s, strict=True):
            wrong += _resized_values(WEB.pod_cgroup(uid), before[uid], files)
            right_s.append(time.monotonic() - since)
    after = _wait_for_containers(lab, uids)
    for each in documents:
        api.delete(each)
    wait_until(lambda: not lab.containers(), "the end of the pods", _PATIENCE_S)
    anew = sum(before[uid] != after[uid] for uid in uids)
    return Resized(pods, right_s, wrong, anew, reasons(lab), lab.complaints())


def _bound(pod: dict[str, Any]) -> dict[str, Any]:
    del pod["metadata"]["uid"]
    pod["spec"] |= {
        "nodeName": NODE,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "enableServiceLinks": False,
    }
    return pod


def _has_node(api: KubeApiServer) -> bool:
    with api.admin.get("/api/v1/nodes", {}) as response:
        return bool(json.loads(b"".join(response.pieces()))["items"])


def _wait_for_containers(lab: Lab, uids: Sequence[str]) -> dict[str, str]:
    def all_run() -> dict[str, str] | None:
        found = lab.containers()
        return found if all(uid in found for uid in uids) else None

    return wait_until(all_run, "the containers", _PATIENCE_S)


def _patch(api: KubeApiServer, pod: dict[str, Any], resources: dict[str, Any]) -> None:
    containers = [{"name": "main", "resources": resources}]
    metadata = {"name": pod["metadata"]["name"], "namespace": "default"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
    path = f"/api/v1/namespaces/default/pods/{metadata['name']}/resize"
    api.admin.send("PATCH", path, body, "application/strategic-merge-patch+json")


def _resized_values(pod_cgroup: str, container_id: str, files: Files) -> list[str]:
    """Waits for the values of a resize; returns those that do not come."""
    try:
        wait_until(lambda: not wrong_files(pod_cgroup, container_id, files), "the values", _RESIZE_S)
    except TimeoutError:
        return wrong_files(pod_cgroup, container_id, files)
    return []
