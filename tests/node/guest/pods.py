"""Pods of each QoS class on cgroup v2: what the kubelet asks for, and what the kernel has in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import cpuset, extended_resources, qos
from tests.e2e.values import (
    ALL_CPUS,
    BATCH_500,
    BEST_EFFORT,
    BURSTABLE,
    GUARANTEED,
    HALF_A_CORE,
    MIB,
    as_resources,
    on_this_machine,
)
from tests.lab import cgroup_v1
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.pods import ContainerSpec, KubeQos, PodSpec
from tests.node.guest.cgroup_v2 import ROOT, CgroupValues, make_pod_cgroup, values
from tests.node.guest.kubelet import remove_pod, run_pod, update
from tests.node.guest.machine import ENDPOINT, UnexpectedError, expect, systemctl
from tests.node.guest.node import Check, Node, Pod

V1Values = cgroup_v1.CgroupValues
Spec = TypeVar("Spec", bound=PodSpec)


@dataclass(frozen=True)
class Case:
    """A pod with one container; values as cgroup v1 has them. None: the policies change nothing."""

    title: str
    kube_qos: KubeQos
    requested: V1Values
    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    applied: V1Values | None = None
    pod_applied: V1Values | None = None


_UNPINNED = replace(GUARANTEED, cpu_quota_us=-1, memory_limit_bytes=None)
_BATCH = extended_resources({"main": BATCH_500})


def _pinned(title: str, cpus: str) -> Case:
    applied = replace(GUARANTEED, cpu_quota_us=-1, cpuset_cpus=cpus)
    return Case(title, "guaranteed", GUARANTEED, qos(title), cpuset(cpus), applied, _UNPINNED)


BATCH = Case("BE", "besteffort", BEST_EFFORT, qos("BE"), _BATCH, HALF_A_CORE, HALF_A_CORE)
CASES = (
    _pinned("LSE", "0"),
    _pinned("LSR", "1"),
    Case("LS", "burstable", BURSTABLE, qos("LS")),
    BATCH,
    Case("SYSTEM", "guaranteed", GUARANTEED, qos("SYSTEM")),
    Case("no class", "burstable", BURSTABLE, qos("")),
)

# What the kubelet asks for later.
RESIZED = V1Values(2048, 200000, 128 * MIB, ALL_CPUS)
MOVED_TO = "0"


@dataclass(frozen=True)
class SlicePodSpec(PodSpec):
    """A pod as the kubelet names it with the systemd cgroup driver."""

    @property
    def cgroup_parent(self) -> str:
        """Its slice, behind the path of those above it."""
        folder = "" if self.kube_qos == "guaranteed" else f"/kubepods-{self.kube_qos}.slice"
        return f"/kubepods.slice{folder}/{self.slice_unit}"

    @property
    def slice_unit(self) -> str:
        """The name of its slice. Source: kubelet pkg/kubelet/cm: dashes in the uid become underlines."""
        prefix = "" if self.kube_qos == "guaranteed" else f"{self.kube_qos}-"
        return f"kubepods-{prefix}pod{self.uid.replace('-', '_')}.slice"


def as_v2(v1: V1Values) -> CgroupValues:
    """The same values in the files of version 2. Source: runc's ConvertCPUSharesToCgroupV2Value."""
    weight = 1 + (v1.cpu_shares - 2) * 9999 // 262142
    quota = "max" if v1.cpu_quota_us < 0 else str(v1.cpu_quota_us)
    memory = "max" if v1.memory_limit_bytes is None else str(v1.memory_limit_bytes)
    return CgroupValues(
        weight, f"{quota} 100000", memory, "" if v1.cpuset_cpus == ALL_CPUS else v1.cpuset_cpus
    )


def has_its_values(case: Case, node: Node) -> str:
    """Runs a pod with the cgroupfs driver and compares the kernel's files."""
    spec = _spec(PodSpec, case)
    kubelet = as_v2(case.requested)
    files = {"cpu.weight": str(kubelet.cpu_weight), "cpu.max": kubelet.cpu_max}
    cgroup = make_pod_cgroup(spec.cgroup_parent, files)
    pod = node.pods[case.title] = _run(node, spec, cgroup, "{id}", handler="runc")
    return _compare(case, pod)


def has_its_values_on_version_1(case: Case, node: Node) -> str:
    """The same on cgroup version 1, where the runtime makes the pod's cgroups."""
    spec = _spec(PodSpec, case)
    cgroup = cgroup_v1.controllers()["cpu"] / spec.cgroup_parent.lstrip("/")
    pod = node.pods[case.title] = _run(node, spec, cgroup, "{id}", handler="runc")
    wanted = on_this_machine(case.applied or case.requested)
    found = cgroup_v1.values(f"{spec.cgroup_parent}/{pod.container_id}")
    expect("container", found, wanted)
    return f"container: {found}"


def has_its_values_in_slices(case: Case, node: Node) -> str:
    """Runs a pod with the systemd driver and compares the kernel's files."""
    spec = _spec(SlicePodSpec, case)
    kubelet = as_v2(case.requested)
    systemctl("start", spec.slice_unit)
    accounting = [f"{name}Accounting=yes" for name in ("CPU", "Memory", "IO", "Tasks")]
    weight = f"CPUWeight={kubelet.cpu_weight}"
    systemctl("set-property", "--runtime", spec.slice_unit, *accounting, weight)
    cgroup = ROOT / spec.cgroup_parent.lstrip("/")
    name = "cri-containerd-{id}.scope"
    pod = node.pods[f"{case.title} in slices"] = _run(node, spec, cgroup, name, handler="systemd")
    return _compare(case, pod)


def keep_the_policy_when_updated(node: Node) -> str:
    """The kubelet resizes a best-effort pod's container, and moves and resizes a pinned one."""
    with CriClient(ENDPOINT) as client:
        batch, pinned, plain = (node.pods[title] for title in ("BE", "LSR", "LS"))
        shares_only = api_pb2.LinuxContainerResources(cpu_period=100000, cpu_shares=2)
        update(client, batch.container_id, shares_only)
        update(client, pinned.container_id, api_pb2.LinuxContainerResources(cpuset_cpus=MOVED_TO))
        for pod in (pinned, plain):
            update(client, pod.container_id, as_resources(RESIZED))
    expect("BE, updated", batch.values()[0], as_v2(HALF_A_CORE))
    wanted = as_v2(replace(RESIZED, cpu_quota_us=-1, cpuset_cpus="1"))
    expect("LSR, moved and resized", pinned.values()[0], wanted)
    expect("LS, resized", plain.values()[0], as_v2(RESIZED))
    return f"LSR: {pinned.values()[0]}; LS: {plain.values()[0]}"


def _spec(kind: type[Spec], case: Case) -> Spec:
    container = ContainerSpec(resources=as_resources(case.requested))
    name = case.title.replace(" ", "-").lower()
    return kind(name, case.kube_qos, case.labels, case.annotations, (container,))


def _run(node: Node, spec: PodSpec, cgroup: Path, container_folder: str, handler: str) -> Pod:
    logs = node.logs / spec.uid
    logs.mkdir()
    with CriClient(ENDPOINT) as client:
        sandbox, container = run_pod(client, spec, str(logs), handler)
    return Pod(spec, sandbox, container, cgroup, cgroup / container_folder.format(id=container))


def _compare(case: Case, pod: Pod) -> str:
    expect("container", values(pod.container_cgroup), as_v2(case.applied or case.requested))
    wanted = as_v2(case.pod_applied or replace(case.requested, memory_limit_bytes=None))

    # Values of the pod's cgroup are written again when the answer has passed.
    def are_there() -> bool:
        return values(pod.cgroup) == wanted

    try:
        wait_until(are_there, "the pod's values")
    except TimeoutError:
        raise UnexpectedError(f"pod: {values(pod.cgroup)} instead of {wanted}") from None
    return f"container: {pod.values()[0]}; pod: {pod.values()[1]}"


def goes_away(title: str, node: Node) -> str:
    """Stops and removes a pod through the proxy, as the kubelet does; its cgroup is empty then."""
    pod = node.pods.pop(title)
    with CriClient(ENDPOINT) as client:
        remove_pod(client, pod.sandbox_id)
    expect("the container's cgroup is there", pod.container_cgroup.exists(), False)
    pod.cgroup.rmdir()
    return "stopped, removed, cgroup gone"


CHECKS = (
    *(Check(f"{case.title}: values on cgroup v2", partial(has_its_values, case)) for case in CASES),
    Check("UpdateContainerResources keeps what policies own", keep_the_policy_when_updated),
    Check("StopPodSandbox and RemovePodSandbox", partial(goes_away, "no class")),
)
ON_VERSION_1 = tuple(
    Check(f"{case.title}: values on cgroup v1", partial(has_its_values_on_version_1, case))
    for case in CASES
    if case.title in ("LSE", BATCH.title)
)
IN_SLICES = (
    Check("BE with the systemd cgroup driver: values on cgroup v2", partial(has_its_values_in_slices, BATCH)),
)
