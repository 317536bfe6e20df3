"""One API server for all tests, with the rights of `systemd/kubernetes/rbac.yaml`; `make e2e-api` only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import cgroup_files, daemons, installed, loop, runtime
from tests.lab.kube_api_server import NAMESPACE, KubeApiServer
from tests.lab.programs import REPOSITORY

__all__ = ["cgroup_files", "daemons", "installed", "loop", "runtime"]

NODE = "node-a"


def pytest_ignore_collect() -> bool | None:
    """Without the variable of `make e2e-api` there are no such tests: the programs take minutes to build."""
    return None if os.environ.get("KOORD_RUNTIMEPROXY_E2E_API") else True


def crd(group: str, version: str, kind: str) -> dict[str, Any]:
    """A CustomResourceDefinition with any fields."""
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "scope": "Cluster",
            "versions": [served],
        },
    }


def config_map(**data: str) -> dict[str, Any]:
    keys = {key.replace("_", "-"): text for key, text in data.items()}
    metadata = {"name": "slo-controller-config", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": keys}


def pod(name: str, node: str = NODE, **parts: Any) -> dict[str, Any]:
    containers = [{"name": "app", "image": "x", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}, **parts},
        "spec": {"nodeName": node, "containers": containers},
    }


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    with KubeApiServer(tmp_path_factory.mktemp("cluster")) as found:
        found.apply(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}")
        found.apply((REPOSITORY / "systemd/kubernetes/rbac.yaml").read_text())
        for name in (NODE, "node-b"):
            status = {"allocatable": {"cpu": "4", "memory": "8Gi"}, "capacity": {"cpu": "4", "memory": "8Gi"}}
            metadata = {"name": name, "labels": {"pool": "a"}}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
            found.admin.send("POST", "/api/v1/nodes", node)
        yield found


@pytest.fixture
def token_file(cluster: KubeApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(cluster.account_token("koord-runtime-proxy"))
    return path


@pytest.fixture
def kubeconfig(cluster: KubeApiServer, token_file: Path) -> Path:
    """With the rights of the daemon."""
    return cluster.kubeconfig("node", token_file=token_file)
