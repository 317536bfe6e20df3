"""Kubernetes objects as `kubectl get -o yaml` prints them, and a node's folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

NODE_NAME = "node-a"
LS_POOLS = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
BURST = {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 200}}


def config_map(**keys: Any) -> dict[str, Any]:
    """The ConfigMap of strategies; keys have `_` for `-`, and JSON values."""
    data = {
        key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value, indent=2)
        for key, value in keys.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system", "uid": "1"},
        "data": data,
    }


def node_object(name: str = NODE_NAME, **metadata: Any) -> dict[str, Any]:
    """The Node, with capacity and allocatable."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": "a"}, "annotations": {}, **metadata},
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "allocatable": {
                "cpu": "3900m",
                "memory": "7Gi",
                "pods": "110",
                "kubernetes.io/batch-cpu": "2000",
            },
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
            "images": [{"names": ["registry/pause:3.9"], "sizeBytes": 1}],
        },
    }


def topology(annotations: Mapping[str, Any] = MappingProxyType({}), name: str = NODE_NAME) -> dict[str, Any]:
    """A NodeResourceTopology; a value that is not a text becomes JSON."""
    texts = {key: text if isinstance(text, str) else json.dumps(text) for key, text in annotations.items()}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "annotations": texts},
        "topologyPolicies": ["None"],
        "zones": [],
    }


def node_slo(name: str = NODE_NAME, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": name},
        "spec": spec,
    }


def listed(*objects: dict[str, Any]) -> dict[str, Any]:
    """As `kubectl get node,cm -o yaml` prints several."""
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": list(objects)}


def text_of(*objects: dict[str, Any]) -> bytes:
    """The objects as documents of one YAML file."""
    text: str = yaml.safe_dump_all(objects)
    return text.encode()


def write(path: Path, *objects: dict[str, Any]) -> None:
    """Replaces a file by another one with these objects."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(text_of(*objects))
    new.replace(path)


class MountedConfigMap:
    """A folder as the kubelet's atomic writer makes it: files are links through a link that is swapped.

    Source: Kubernetes pkg/volume/util/atomic_writer.go: the new data folder is written, `..data_tmp` is
    renamed to `..data`, links of new keys are made, those of removed keys deleted, and then the old folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._version = 0

    def publish(self, **texts: str) -> None:
        """Swaps to a new version with these keys, which have `_` for `-`."""
        keys = {key.replace("_", "-"): text for key, text in texts.items()}
        self._version += 1
        version = self.folder / f"..2026_11_22_10_00_00.{self._version:010}"
        version.mkdir()
        for key, text in keys.items():
            (version / key).write_text(text)
        data = self.folder / "..data"
        old = data.resolve() if data.is_symlink() else None
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(data)
        for key in keys:
            if not (self.folder / key).is_symlink():
                (self.folder / key).symlink_to(f"..data/{key}")
        for each in self.folder.iterdir():
            if not each.name.startswith("..") and each.name not in keys:
                each.unlink()
        if old is not None:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()


class Machine:
    """Folders that stand for a node's: two sockets with cores of two threads each."""

    def __init__(self, root: Path, cores: int = 2) -> None:
        self.sysfs = root / "sys"
        self.procfs = root / "proc"
        self.cgroups = root / "cgroup"
        in_socket = 2 * cores
        for cpu in range(2 * in_socket):
            folder = self.sysfs / f"devices/system/cpu/cpu{cpu}"
            socket = cpu // in_socket
            _fill(folder / "topology", core_id=cpu // 2 % cores, physical_package_id=socket)
            for index, level in enumerate((1, 1, 2, 3)):
                _fill(folder / f"cache/index{index}", level=level, id=socket)
        for node in range(2):
            _fill(
                self.sysfs / f"devices/system/node/node{node}",
                cpulist=f"{node * in_socket}-{(node + 1) * in_socket - 1}",
                meminfo=f"Node {node} MemTotal:       {(node + 1) * 1024} kB\nNode {node} MemFree: 1 kB",
            )
        _fill(self.sysfs / "devices/system/node", online="0-1")
        present = f"0-{2 * in_socket - 1}"
        _fill(self.sysfs / "devices/system/cpu", present=present, online=present, possible="0-15")
        _fill(self.sysfs / "devices/system/cpu/smt", active="1")
        _fill(self.sysfs / "devices/system/cpu/intel_pstate", no_turbo="0")
        _fill(
            self.procfs,
            cpuinfo="processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8269CY CPU @ 2.50GHz\n",
            filesystems="nodev\tsysfs\nnodev\tcgroup2\n\text4",
        )

    def switch(self, online: str) -> None:
        """Switches CPUs on and off."""
        _fill(self.sysfs / "devices/system/cpu", online=online)


def _fill(folder: Path, **texts: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")
