"""What lists and status answers of containerd and CRI-O become."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.from_cri import listed_container, listed_pod, parse_info, seen_container, seen_pod
from runtimeproxy.pods.records import Lifecycle

METADATA = api_pb2.PodSandboxMetadata(name="web", uid="u1", namespace="shop", attempt=2)
CONTAINERD_POD = {
    "pid": 1,
    "config": {
        "linux": {
            "cgroup_parent": "/kubepods/podu1",
            "overhead": {"cpu_shares": 5},
            "resources": {"cpu_quota": 50_000},
        }
    },
}
CRIO_POD = {"runtimeSpec": {"annotations": {"io.kubernetes.cri-o.CgroupParent": "kubepods-podu1.slice"}}}


def pod_status(info: str) -> api_pb2.PodSandboxStatusResponse:
    status = api_pb2.PodSandboxStatus(id="p1", metadata=METADATA, labels={"a": "b"}, runtime_handler="kata")
    return api_pb2.PodSandboxStatusResponse(status=status, info={"info": info})


def test_listed_pod() -> None:
    item = api_pb2.PodSandbox(
        id="p1", metadata=METADATA, state=api_pb2.SANDBOX_NOTREADY, labels={"a": "b"}, annotations={"c": "d"}
    )
    record = listed_pod(item)
    assert (record.id, record.name, record.namespace, record.uid, record.attempt) == (
        "p1",
        "web",
        "shop",
        "u1",
        2,
    )
    assert (record.labels, record.annotations) == ({"a": "b"}, {"c": "d"})
    assert record.state is Lifecycle.STOPPED
    assert not record.detailed


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (api_pb2.CONTAINER_CREATED, Lifecycle.CREATED),
        (api_pb2.CONTAINER_RUNNING, Lifecycle.RUNNING),
        (api_pb2.CONTAINER_EXITED, Lifecycle.STOPPED),
        (api_pb2.CONTAINER_UNKNOWN, Lifecycle.STOPPED),
    ],
)
def test_listed_container(state: api_pb2.ContainerState.ValueType, expected: Lifecycle) -> None:
    metadata = api_pb2.ContainerMetadata(name="main", attempt=3)
    record = listed_container(api_pb2.Container(id="c1", metadata=metadata, state=state), "p1")
    assert (record.id, record.pod_id, record.name, record.attempt) == ("c1", "p1", "main", 3)
    assert record.state is expected


def test_a_pod_of_containerd() -> None:
    record = seen_pod(pod_status(json.dumps(CONTAINERD_POD)))
    assert record.cgroup_parent == "/kubepods/podu1"
    assert record.overhead == Resources(cpu_shares=5)
    assert record.requested == record.booked == Resources(cpu_quota_us=50_000)
    assert record.runtime_handler == "kata"
    assert record.detailed
    assert record.recovered


def test_a_pod_of_crio() -> None:
    assert seen_pod(pod_status(json.dumps(CRIO_POD))).cgroup_parent == "kubepods-podu1.slice"


@pytest.mark.parametrize(
    ("ips", "is_host", "addresses"),
    [
        (("10.0.0.2",), False, ("10.0.0.2",)),
        (("10.0.0.2", "fd00::2"), False, ("10.0.0.2", "fd00::2")),
        (("",), False, None),
        (("10.1.1.1",), True, ()),
    ],
)
def test_addresses_of_a_pod(ips: tuple[str, ...], is_host: bool, addresses: tuple[str, ...] | None) -> None:
    answer = pod_status(json.dumps(CONTAINERD_POD))
    answer.status.network.ip = ips[0]
    answer.status.network.additional_ips.extend(api_pb2.PodIP(ip=each) for each in ips[1:])
    if is_host:
        answer.status.linux.namespaces.options.network = api_pb2.NODE
    record = seen_pod(answer)
    assert (record.addresses, record.is_host_network) == (addresses, is_host)


@pytest.mark.parametrize(
    "info", ["", "{", "[]", "null", "3", '{"config": 3}', '{"config": {"linux": []}}', "[" * 100_000]
)
def test_information_that_makes_no_sense_is_none(info: str) -> None:
    record = seen_pod(pod_status(info))
    assert (record.cgroup_parent, record.uid) == ("", "u1")


@pytest.mark.parametrize(
    ("status", "info", "expected"),
    [
        pytest.param(
            api_pb2.ContainerStatus(
                resources=api_pb2.ContainerResources(linux=api_pb2.LinuxContainerResources(cpu_shares=7))
            ),
            {"config": {"linux": {"resources": {"cpu_shares": 5}}}},
            Resources(cpu_shares=7),
            id="status-is-newer-than-config",
        ),
        pytest.param(
            api_pb2.ContainerStatus(),
            {"config": {"linux": {"resources": {"cpu_shares": 5}}}},
            Resources(cpu_shares=5),
            id="containerd-1.6",
        ),
        pytest.param(
            api_pb2.ContainerStatus(),
            {
                "config": {"linux": {"resources": {"cpu_shares": 5, "oom_score_adj": -9}}},
                "runtimeSpec": {"linux": {"resources": {"cpu": {"shares": 6}}}},
            },
            Resources(cpu_shares=6, oom_score_adj=-9),
            id="containerd-1.6-after-an-update",
        ),
        pytest.param(
            api_pb2.ContainerStatus(),
            {"runtimeSpec": {"linux": {"resources": {"cpu": {"shares": 6}}}}},
            Resources(cpu_shares=6),
            id="old-crio",
        ),
        pytest.param(api_pb2.ContainerStatus(), {}, Resources(), id="neither"),
    ],
)
def test_seen_container(status: api_pb2.ContainerStatus, info: dict[str, Any], expected: Resources) -> None:
    answer = api_pb2.ContainerStatusResponse(
        status=status, info={"info": json.dumps(info | {"sandboxID": "p1"})}
    )
    record = seen_container(answer)
    assert record.requested == record.booked == expected
    assert record.pod_id == "p1"


def test_a_container_without_verbose_information_has_no_pod() -> None:
    assert seen_container(api_pb2.ContainerStatusResponse()).pod_id == ""
    assert parse_info({}) == {}
