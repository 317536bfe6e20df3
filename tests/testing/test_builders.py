"""Pods and containers as the kubelet describes them."""

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupDriver
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    kubelet_cgroup_parent,
    pod_sandbox_config,
)

SYSTEMD_POD = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"


@pytest.mark.parametrize(
    ("qos", "driver", "expected"),
    [
        (KubeletQos.GUARANTEED, CgroupDriver.CGROUPFS, "/kubepods/poda-b"),
        (KubeletQos.BURSTABLE, CgroupDriver.CGROUPFS, "/kubepods/burstable/poda-b"),
        (KubeletQos.BESTEFFORT, CgroupDriver.SYSTEMD, SYSTEMD_POD),
        (
            KubeletQos.GUARANTEED,
            CgroupDriver.SYSTEMD,
            "/kubepods.slice/kubepods-poda_b.slice",
        ),
    ],
)
def test_kubelet_cgroup_parent(qos: KubeletQos, driver: CgroupDriver, expected: str) -> None:
    assert kubelet_cgroup_parent("a-b", qos, driver) == expected


@pytest.mark.parametrize(
    ("qos", "parent"), [("BE", "/kubepods/besteffort/podu"), ("LS", "/kubepods/burstable/podu")]
)
def test_the_qos_class_decides_label_and_place(qos: str, parent: str) -> None:
    config = pod_sandbox_config(uid="u", qos=qos)
    assert config.labels["koordinator.sh/qosClass"] == qos
    assert config.linux.cgroup_parent == parent


def test_labels_annotations_and_cgroup_parent_can_be_given() -> None:
    config = pod_sandbox_config(
        "web", namespace="n", labels={"a": "b"}, annotations={"c": "d"}, cgroup_parent="/x"
    )
    assert (config.labels["a"], config.annotations["c"]) == ("b", "d")
    assert config.linux.cgroup_parent == "/x"
    assert "koordinator.sh/qosClass" not in config.labels
    assert config.labels["io.kubernetes.pod.namespace"] == "n"


def test_pods_have_uids_of_their_own() -> None:
    assert pod_sandbox_config().metadata.uid != pod_sandbox_config().metadata.uid


def test_a_pod_on_the_hosts_network_has_no_hostname() -> None:
    config = pod_sandbox_config(host_network=True)
    assert config.hostname == ""
    assert config.linux.security_context.namespace_options.network == api_pb2.NODE


def test_a_container_names_its_pod() -> None:
    pod = pod_sandbox_config("web", uid="u")
    config = container_config("app", pod=pod, envs={"A": "1", "B": "2"})
    assert config.labels["io.kubernetes.pod.uid"] == "u"
    assert [(each.key, each.value) for each in config.envs] == [("A", b"1"), ("B", b"2")]
    request = create_container_request("s", config, pod)
    assert (request.config, request.sandbox_config) == (config, pod)


def test_a_container_without_requests_has_the_least_shares() -> None:
    assert container_config().linux.resources.cpu_shares == 2
