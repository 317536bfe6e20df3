"""NRI mode: a real daemon beside Go's own side of NRI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.nri_adaptation import NriAdaptation, NriRuntimeOptions
from tests.lab.proxy_process import ProxyProcess

pytestmark = pytest.mark.golang

UID = "11111111-1111-1111-1111-111111111111"
PARENT = f"/kubepods/besteffort/pod{UID}"
BATCH = (
    '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory":'
    ' "256Mi"}, "requests": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "256Mi"}}}}'
)
POD: dict[str, Any] = {
    "id": "sandbox",
    "name": "batch",
    "namespace": "default",
    "uid": UID,
    "labels": {"koordinator.sh/qosClass": "BE"},
    "annotations": {"node.koordinator.sh/extended-resource-spec": BATCH},
    "linux": {"cgroup_parent": PARENT},
}
CONTAINER: dict[str, Any] = {
    "id": "a" * 64,
    "pod_sandbox_id": "sandbox",
    "name": "main",
    "linux": {"resources": {"cpu": {"shares": {"value": "2"}}, "memory": {}}},
}
PATIENT = NriRuntimeOptions(request_timeout_s=30.0, registration_timeout_s=30.0)
"""A runtime that does not drop a plugin which a busy machine holds up for more than the usual 2 s."""


@pytest.fixture
def nri(socket_folder: Path) -> Iterator[NriAdaptation]:
    with NriAdaptation(socket_folder, PATIENT) as runtime:
        yield runtime


@pytest.fixture
def configuration(socket_folder: Path, nri: NriAdaptation) -> str:
    lock = socket_folder / "front-end.lock"
    return f'[daemon]\nmode = "nri"\nlock = "{lock}"\n[nri]\nsocket = "{nri.socket}"\n'


def status_of(daemon: ProxyProcess) -> api_pb2.GetStatusResponse:
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        return api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)


def test_a_container_is_created_with_the_values_of_policies(
    daemons: Daemons, nri: NriAdaptation, configuration: str, cgroup_files: CgroupFiles
) -> None:
    daemon = daemons.start(configuration)
    nri.wait_for_plugins(1)
    nri.synchronized()
    cgroup_files.make(PARENT)
    nri.run_pod(POD)
    wait_until(lambda: cgroup_files.read(PARENT, "memory.max") != "max", "the pod's limit")
    created = nri.call("CreateContainer", pod=POD, container=CONTAINER)
    print(created)
    resources = created.response["adjust"]["linux"]["resources"]
    assert resources["cpu"] == {"shares": {"value": "1024"}, "quota": {"value": "200000"}}
    assert resources["memory"] == {"limit": {"value": str(256 << 20)}}
    nri.call("PostCreateContainer", pod=POD, container=CONTAINER)
    cgroup = f"{PARENT}/{CONTAINER['id']}"
    cgroup_files.make(cgroup)
    # As a runtime that drops the fields of the answer.
    nri.call("StartContainer", pod=POD, container=CONTAINER)
    assert cgroup_files.read(cgroup, "memory.max") == str(256 << 20)
    nri.call("PostStartContainer", pod=POD, container=CONTAINER)
    status = status_of(daemon)
    assert not status.problems
    nri.remove_container(POD, CONTAINER)
    nri.remove_pod(POD)
    wait_until(lambda: not status_of(daemon).records.pods, "no record")
