"""A folder of Kubernetes objects as an operator fills it: strategies, the own Node, its topology."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_STRATEGY_POLICIES: Final = ("cpu-burst", "cpu-normalization", "group-identity", "memory-qos")


def strategy_policies(*, enabled: bool) -> str:
    """The sections of the daemon's configuration that switch the policies with strategies on or off."""
    value = str(enabled).lower()
    return "".join(f"[policies.{name}]\nenabled = {value}\n" for name in _STRATEGY_POLICIES)


class NodeObjects:
    """The folder of `[node] objects_dir`. Each method replaces one file in one step and says when.

    The times are of `time.monotonic`.
    """

    def __init__(self, folder: Path, node_name: str | None = None) -> None:
        self.folder = folder
        self._node_name = node_name or socket.gethostname()
        folder.mkdir(exist_ok=True)

    def strategies(self, keys: Mapping[str, object]) -> float:
        """The ConfigMap with these keys, each a JSON document; no key withdraws all strategies."""
        return self.write("slo-controller-config.yaml", config_map(keys))

    def node(
        self,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        kubelet_version: str = "",
    ) -> float:
        """The own Node."""
        text = node(self._node_name, labels or {}, annotations or {}, capacity or {}, kubelet_version)
        return self.write("node.yaml", text)

    def topology(self, annotations: Mapping[str, str]) -> float:
        """The NodeResourceTopology, which has what koordlet publishes in its annotations."""
        return self.write("topology.yaml", topology(self._node_name, annotations))

    def write(self, name: str, text: str) -> float:
        """A file with this text, whatever it is."""
        temporary = self.folder / f".{name}.new"
        temporary.write_text(text)
        temporary.replace(self.folder / name)
        return time.monotonic()


def config_map(keys: Mapping[str, object]) -> str:
    """`slo-controller-config` as `kubectl get -o yaml` prints it; what is no text becomes JSON."""
    data = "".join(_block(key, value) for key, value in keys.items())
    return (
        "apiVersion: v1\n"
        + (f"data:\n{data}" if data else "data: {}\n")
        + "kind: ConfigMap\n"
        + _metadata({"name": "slo-controller-config", "namespace": "koordinator-system"})
    )


def node(
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    capacity: Mapping[str, str],
    kubelet_version: str = "",
) -> str:
    """A Node; capacity and allocatable are the same."""
    status: dict[str, Any] = {"capacity": dict(capacity), "allocatable": dict(capacity)}
    if kubelet_version:
        status["nodeInfo"] = {"kubeletVersion": kubelet_version}
    metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations)}
    return f"apiVersion: v1\nkind: Node\n{_metadata(metadata)}status: {json.dumps(status)}\n"


def topology(name: str, annotations: Mapping[str, str]) -> str:
    """A NodeResourceTopology."""
    metadata = {"name": name, "annotations": dict(annotations)}
    kind = "apiVersion: topology.node.k8s.io/v1alpha1\nkind: NodeResourceTopology\n"
    return f"{kind}{_metadata(metadata)}topologyPolicies: []\n"


def _metadata(values: Mapping[str, Any]) -> str:
    # JSON is YAML, too.
    return "metadata:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in values.items())


def _block(key: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    return f"  {key}: |\n" + "".join(f"    {line}\n" for line in text.splitlines())


def kubelet_files(folder: Path, requests: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
    """The folder of `[node] kubelet_dir`: no static CPUs, and the requests by pod uid and container name.

    Source: Kubernetes 1.33, pkg/kubelet/allocation/state.
    """
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("kind: KubeletConfiguration\ncpuManagerPolicy: none\n")
    state = {"policyName": "none", "defaultCpuSet": "", "checksum": 1}
    (folder / "cpu_manager_state").write_text(json.dumps(state))
    entries: dict[str, Any] = {}
    for (uid, container), amounts in requests.items():
        pod = entries.setdefault(uid, {"ContainerResources": {}})
        pod["ContainerResources"][container] = {"requests": dict(amounts)}
    text = json.dumps({"data": json.dumps({"entries": entries}), "checksum": 1})
    temporary = folder / ".allocated_pods_state.new"
    temporary.write_text(text)
    temporary.replace(folder / "allocated_pods_state")
