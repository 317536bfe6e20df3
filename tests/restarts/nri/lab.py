"""A whole kubelet on containerd beside the NRI plugin, and pods whose values policies change."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

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
from tests.lab.kubelet import Kubelet
from tests.lab.node_objects import NodeObjects, strategy_policies
from tests.lab.programs import ContainerdVersion, KubeletClientVersion
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

RUNTIMES: Final[Mapping[KubeletClientVersion, ContainerdVersion]] = {"1.34": "2.2", "1.37": "2.4"}
"""The containerd below each kubelet."""
_RATIO: Final = 1.25
_KEYS: Final = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 50}},
    "cpu-normalization-config": {"enable": True, "defaultRatio": _RATIO},
}
_UID: Final = "io.kubernetes.pod.uid"

Files = Mapping[str, int]
"""Values by file name, such as `cpu.shares`."""


@dataclass(frozen=True)
class Kind:
    """Pods with one container each.

    Attributes:
        files: The values that it and its pod have to have.
        specified: Those that its pod keeps on cgroup v1 while the runtime's specification of the container
            has them: of one that was created without the plugin.
    """

    name: str
    cgroup: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resources: Mapping[str, Any]
    files: Files
    specified: Files = field(default_factory=dict)

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
    "web",
    "/kubepods/burstable",
    qos("LS"),
    {},
    web_resources(200),
    web_files(200) | {"cpu.shares": 10},
    {"cpu.cfs_quota_us": 20_000},
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
        return running_containers(self.runtime)

    def wrong(self, containers: Mapping[str, str], *, was_away: bool = False) -> list[str]:
        """The values of these containers and their pods that are not right; what is gone is left out.

        `was_away`: whether containers may have been created without the plugin; see `Kind`.
        """
        return [
            text
            for uid, identity in containers.items()
            for kind in KINDS
            if uid.startswith(kind.name)
            for text in wrong_files(
                kind.pod_cgroup(uid), identity, kind.files, kind.specified if was_away else {}
            )
        ]

    def complaints(self) -> list[str]:
        """Errors in the daemon's log, and lines that are no records."""
        lines = self.daemon.log if self.daemon is not None else []
        return [line for line in lines if not line.startswith("{") or '"level":"error"' in line]


def running_containers(runtime: Containerd) -> dict[str, str]:
    """The ids of containers that run, by their pod's uid."""
    running = api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING)
    request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(state=running))
    with CriClient(runtime.socket) as client:
        found = client.runtime.ListContainers(request, timeout=CALL_TIMEOUT_S).containers
    return {each.labels[_UID]: each.id for each in found}


def wrong_files(
    pod_cgroup: str, container_id: str, files: Files, of_pod: Files = MappingProxyType({})
) -> list[str]:
    """The values that differ from these in the cgroups of a pod and its container.

    `of_pod`: other values that are right in the pod's.
    """
    wrong: list[str] = []
    for cgroup, others in ((pod_cgroup, of_pod), (f"{pod_cgroup}/{container_id}", {})):
        for name, value in files.items():
            with suppress(OSError):
                found = cgroup_v1.read(name.partition(".")[0], cgroup, name)
                if found not in (str(value), str(others.get(name, value))):
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
                config = strategy_policies(enabled=True)
                daemon = daemon_of(folder / "d", runtime, kubelet, config, _KEYS)
                stack.enter_context(daemon)
                wait_for_registration(daemon)
            stack.enter_context(kubelet)
            yield Lab(folder, runtime, kubelet, daemon, api)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def daemon_of(
    folder: Path, runtime: Containerd, kubelet: Kubelet, config: str, strategies: Mapping[str, object]
) -> ProxyProcess:
    """The NRI plugin with these sections of its configuration, and these strategies."""
    config = (
        f'[daemon]\nmode = "nri"\nlock = "{folder}/front-end.lock"\n[nri]\nsocket = "{runtime.nri_socket}"\n'
        f'[node]\nkubelet_dir = "{kubelet.folder}"\n{config}'
    )
    made = ProxyProcess(folder, ProxyOptions(str(runtime.socket), config=config))
    objects = NodeObjects(made.objects_folder)
    objects.node()
    objects.strategies(strategies)
    return made


def wait_for_registration(daemon: ProxyProcess) -> None:
    """Waits until the runtime knows the plugin."""
    wait_until(lambda: any("registered with the runtime" in line for line in daemon.log), "the registration")
