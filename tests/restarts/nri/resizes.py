"""Pods of an API server are resized in place."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.lab.deadline import wait_until
from tests.lab.kube_api_server import KubeApiServer
from tests.lab.kubelet import NODE
from tests.restarts.nri.lab import WEB, Files, Lab, web_files, web_resources, wrong_files
from tests.restarts.nri.turnover import reasons

_PATIENCE_S: Final = 180.0
_RESIZE_S: Final = 30.0


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
