"""CPU sets, with the vectors of the policies specification as ids."""

from __future__ import annotations

import pytest

from policies.annotations import RESOURCE_STATUS, AnnotationError
from policies.cpuset import Cpuset, CpusetOptions, allocated_cpus
from runtimeproxy.hooks import ContainerView, PodChange, PodView, ResourceChange
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import QoSClass

NUMA_ONLY = '{"numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]}'


def status(text: str) -> dict[str, str]:
    return {RESOURCE_STATUS: text}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param('{"cpuset": "2-4"}', "2-4", id="V064"),
        pytest.param('{"CPUSet": "8,0-3"}', "8,0-3", id="verbatim-in-any-case"),
        pytest.param('{"cpuset": ""}', None, id="empty"),
        pytest.param(NUMA_ONLY, None, id="V076-numa-only"),
        pytest.param("null", None, id="null"),
    ],
)
def test_allocated_cpus(text: str, cpus: str | None) -> None:
    assert allocated_cpus(status(text)) == cpus


def test_a_pod_without_the_annotation_has_no_allocated_cpus() -> None:
    assert allocated_cpus({}) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"cpuset": 2-4}', id="V065"),
        pytest.param('{"cpuset": 24}', id="number"),
        pytest.param('{"cpuset": "4-2"}', id="reversed"),
        pytest.param('{"cpuset": "0-3;reboot"}', id="no-list"),
        pytest.param("[]", id="list"),
    ],
)
def test_a_malformed_annotation_is_an_error(text: str) -> None:
    with pytest.raises(AnnotationError, match="resource-status"):
        allocated_cpus(status(text))


@pytest.mark.parametrize("qos", QoSClass)
def test_containers_of_every_class_get_the_cpus_and_no_quota(qos: QoSClass) -> None:
    pod = PodView(qos=qos, annotations=status('{"cpuset": "2-4"}'))
    change = Cpuset().container(ContainerView(name="main", pod=pod), Node())
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="2-4", cpu_quota_us=-1)


def test_the_pods_quota_is_unset() -> None:
    pod = PodView(annotations=status('{"cpuset": "2-4"}'))
    values = {"cpu.cfs_quota_us": -1}
    reason = "CPUs allocated by the scheduler"
    assert Cpuset().pod(pod, Node()) == PodChange(cgroup=values, reason=reason)


def test_numa_resources_alone_change_nothing() -> None:
    """V076."""
    pod = PodView(annotations=status(NUMA_ONLY))
    assert Cpuset().pod(pod, Node()) is None
    assert Cpuset().container(ContainerView(pod=pod), Node()) is None


def test_quotas_can_be_kept() -> None:
    """V077."""
    policy = Cpuset(CpusetOptions(disable_unset_cpu_quota=True))
    pod = PodView(annotations=status('{"cpuset": "2-4"}'))
    change = policy.container(ContainerView(pod=pod), Node())
    assert policy.pod(pod, Node()) is None
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="2-4")
