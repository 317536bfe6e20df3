"""Init containers, sidecars, regular and ephemeral containers: no policy leaves one out (#2115, #2350).

The kubelet's requests of a manifest, as the proxy and as a plugin of NRI see them. The CRI does not tell
these kinds of containers apart, so a value follows from what a container asks for, or from its name, and
never from its kind. The sums of a pod are the kubelet's, which knows the kinds: an init container runs
alone, or beside sidecars that began before it. What an annotation lists is added up as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from cri_api.runtime.v1 import api_pb2
from policies.accelerators import Accelerators
from policies.batch_resource import BatchResource
from policies.block_io import BlockIO
from policies.core_sched import CoreSched
from policies.cpu_burst import CpuBurst
from policies.cpu_normalization import CpuNormalization
from policies.cpuset import Cpuset
from policies.gpu_env import GpuEnv
from policies.group_identity import GroupIdentity
from policies.katalyst_pools import KatalystPools
from policies.katalyst_qos import KatalystLevels
from policies.memory_qos import MemoryQoS
from policies.oom_score import OomScore
from policies.rdma_devices import RdmaDevices
from runtimeproxy.fields.tables import RESOURCE_FIELDS, RESOURCE_PARAMETERS
from runtimeproxy.frontends.cri_proxy.calls.messages import (
    requested_container,
    requested_pod,
    requested_summary,
)
from runtimeproxy.frontends.nri.messages import container_record, pod_record
from runtimeproxy.hooks import ContainerView, PodView, Policy, Resources, Scale
from runtimeproxy.hooks.algebra import divided
from runtimeproxy.hooks.changes import ContainerChange, PodChange
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.katalyst.levels import (
    CPU_ENHANCEMENT,
    MEMORY_ENHANCEMENT,
    QOS_LEVEL,
    LevelRules,
    Vocabulary,
)
from runtimeproxy.node.block_devices import BlockDevices
from runtimeproxy.node.devices import HostDevice, HostDevices
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Feature, Node, Pool, Pools
from runtimeproxy.pods.record_views import recorded_container, recorded_pod
from runtimeproxy.pods.records import ContainerRecord, Lifecycle
from runtimeproxy.pods.resources import overlay, read_resources
from runtimeproxy.simulate.kubelet import PodCalls, linux_resources
from runtimeproxy.simulate.reading import pod_calls
from runtimeproxy.slo.names import BLKIO_QOS
from runtimeproxy.testing import CgroupDriver
from runtimeproxy.testing.nri_messages import new_container_message, pod_message
from runtimeproxy.testing.state import FakeContainer, Sandbox
from tests.slo.configs import good

MI: Final = 1 << 20
RATIO: Final = 1.25
"""The node's normalization ratio."""
INIT_A, SIDE, INIT_B, MAIN, HELPER, DEBUG = "init-a", "side", "init-b", "main", "helper", "debug"
ORDER: Final = (INIT_A, SIDE, INIT_B, MAIN, HELPER)
"""In which the kubelet creates them; an ephemeral container comes when somebody asks for it."""
AMOUNTS: Final = {
    INIT_A: (1000, 4000, 256, 256),
    SIDE: (250, 500, 64, 128),
    INIT_B: (100, 1000, 512, 512),
    MAIN: (1000, 2000, 512, 1024),
    HELPER: (500, 1000, 128, 256),
}
"""CPU request and limit in millicores, memory request and limit in MiB."""
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
SPEC: Final = "node.koordinator.sh/extended-resource-spec"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"

Values = dict[str, int | str]
"""By parameter of a cgroup, or name of a variable."""


def manifest(qos: str, annotations: Mapping[str, str], *, is_native: bool) -> bytes:
    def container(name: str) -> dict[str, Any]:
        request, limit, low, high = AMOUNTS[name]
        resources = {
            "requests": {"cpu": f"{request}m", "memory": f"{low}Mi"},
            "limits": {"cpu": f"{limit}m", "memory": f"{high}Mi"},
        }
        restart = {"restartPolicy": "Always"} if name == SIDE else {}
        return {"name": name, "image": "i", **restart, **({"resources": resources} if is_native else {})}

    spec = {
        "initContainers": [container(name) for name in (INIT_A, SIDE, INIT_B)],
        "containers": [container(name) for name in (MAIN, HELPER)],
    }
    metadata = {
        "name": "web",
        "namespace": "shop",
        "uid": "u",
        "labels": {"koordinator.sh/qosClass": qos},
        "annotations": dict(annotations),
    }
    return json.dumps({"kind": "Pod", "metadata": metadata, "spec": spec}).encode()


def listed(*names: str) -> dict[str, str]:
    """The annotation of a BE pod with the batch resources of these containers."""
    found = {}
    for name in names:
        request, limit, low, high = AMOUNTS[name]
        found[name] = {
            "requests": {BATCH_CPU: str(request), BATCH_MEMORY: f"{low}Mi"},
            "limits": {BATCH_CPU: str(limit), BATCH_MEMORY: f"{high}Mi"},
        }
    return {SPEC: json.dumps({"containers": found})}


@dataclass(frozen=True)
class Case:
    """A policy, a pod, and the values of each container and of the pod.

    Attributes:
        pod: From the start on; the kubelet sends what its containers need at most at one time.
        resized: After `main` has got another CPU and 512 MiB: its values, and those of the pod.
    """

    policy: Callable[[], Policy]
    containers: Mapping[str, Values]
    pod: Values
    resized: tuple[Values, Values]
    qos: str = "LS"
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_native: bool = True
    cpu_policy: str = "groupIdentity"


def batch(name: str) -> Values:
    request, limit, _, high = AMOUNTS[name]
    return {
        "cpu.shares": request * 1024 // 1000,
        "cpu.cfs_quota_us": divided(limit * 100, RATIO),
        "memory.limit_in_bytes": high * MI,
    }


def every(values: Values, *names: str) -> dict[str, Values]:
    return dict.fromkeys(names or (*ORDER, DEBUG), values)


def protected(name: str) -> Values:
    low = AMOUNTS[name][2] * MI
    return {"memory.min": low // 2, "memory.low": low // 4 * 3}


QUOTAS: Final = {name: limit * 100 for name, (_, limit, _, _) in AMOUNTS.items()}
# init-a alone needs more CPU than all that run later; of memory these need more.
POD_QUOTA_US: Final = 400_000
RESIZED_QUOTA_US: Final = 450_000
LSR: Final = {STATUS: json.dumps({"cpuset": "2-3"})}
OWN: Final[Values] = {"cpuset.cpus": "2-3", "cpu.cfs_quota_us": -1}
GROUP: Final[Values] = {"core_sched_group": "group::expeller"}
NPU: Final[Values] = {"ASCEND_VISIBLE_DEVICES": "1", "/dev/davinci1": "/dev/davinci1"}
UVERBS: Final = HostDevice("/dev/infiniband/uverbs0", 231, 192)
RDMA_CM: Final = HostDevice("/dev/infiniband/rdma_cm", 10, 122)
RDMA: Final[Values] = {each.path: each.path for each in (RDMA_CM, UVERBS)}
FUNCTION: Final = json.dumps(
    {"rdma": [{"minor": 0, "id": "0000:1f:00.0", "resources": {"koordinator.sh/rdma": "100"}}]}
)
DEVICES: Final = HostDevices(
    rdma={"0000:1f:00.0": UVERBS}, rdma_cm=RDMA_CM, accelerators=frozenset({"/dev/davinci1", "/dev/nvidia1"})
)
GPU: Final[Values] = {"NVIDIA_VISIBLE_DEVICES": "1"}
IDENTITY: Final[Values] = {"cpu.bvt_warp_ns": 2}
LIMIT: Final[Values] = {"blkio.throttle.write_bps_device": "8:0 7"}
# Sidecars and regular containers: what the kubelet saves of requests.
RUNNING: Final = (SIDE, MAIN, HELPER)
REQUESTED: Final = sum(AMOUNTS[name][2] for name in RUNNING) * MI

CASES: Final = {
    "batch-resource, all listed": Case(
        BatchResource,
        {name: batch(name) for name in ORDER},
        {
            "cpu.shares": sum(request for request, *_ in AMOUNTS.values()) * 1024 // 1000,
            "cpu.cfs_quota_us": divided(sum(QUOTAS.values()), RATIO),
            "memory.limit_in_bytes": sum(high for *_, high in AMOUNTS.values()) * MI,
        },
        # Native resources of a listed container: its own values stay.
        (
            batch(MAIN),
            {
                # 3000m and 1.5 GiB of native resources in the pod's, which only others can have.
                "cpu.shares": sum(request for request, *_ in AMOUNTS.values()) * 1024 // 1000 + 3072,
                "cpu.cfs_quota_us": divided(sum(QUOTAS.values()), RATIO) + 300_000,
                "memory.limit_in_bytes": (sum(high for *_, high in AMOUNTS.values()) + 1536) * MI,
            },
        ),
        qos="BE",
        annotations=listed(*ORDER),
        is_native=False,
    ),
    # As Koordinator's webhook lists them: without init containers, and so without sidecars.
    "batch-resource, regular ones listed": Case(
        BatchResource,
        {name: batch(name) for name in (MAIN, HELPER)},
        {"cpu.shares": 1536, "cpu.cfs_quota_us": -1, "memory.limit_in_bytes": -1},
        (
            batch(MAIN),
            {
                "cpu.shares": 1536 + 3072,
                "cpu.cfs_quota_us": divided(300_000, RATIO) + 300_000,
                "memory.limit_in_bytes": (1280 + 1536) * MI,
            },
        ),
        qos="BE",
        annotations=listed(MAIN, HELPER),
        is_native=False,
    ),
    "cpu-normalization": Case(
        CpuNormalization,
        {name: {"cpu.cfs_quota_us": divided(quota_us, RATIO)} for name, quota_us in QUOTAS.items()},
        {"cpu.cfs_quota_us": divided(POD_QUOTA_US, RATIO)},
        (
            {"cpu.cfs_quota_us": divided(300_000, RATIO)},
            {"cpu.cfs_quota_us": divided(RESIZED_QUOTA_US, RATIO)},
        ),
    ),
    "cpu-burst": Case(
        CpuBurst,
        {name: {"cpu.cfs_burst_us": quota_us // 5} for name, quota_us in QUOTAS.items()},
        {"cpu.cfs_burst_us": POD_QUOTA_US // 5},
        ({"cpu.cfs_burst_us": 60_000}, {"cpu.cfs_burst_us": RESIZED_QUOTA_US // 5}),
    ),
    "katalyst-qos": Case(
        KatalystLevels,
        {name: {"cpu.cfs_burst_us": quota_us // 5} for name, quota_us in QUOTAS.items()},
        {"cpu.cfs_burst_us": POD_QUOTA_US // 5},
        ({"cpu.cfs_burst_us": 60_000}, {"cpu.cfs_burst_us": RESIZED_QUOTA_US // 5}),
        "LSR",
        annotations={
            QOS_LEVEL: "dedicated_cores",
            MEMORY_ENHANCEMENT: '{"numa_binding": "true"}',
            CPU_ENHANCEMENT: '{"cpu_burst_policy": "static", "cpu_burst_percent": "20"}',
        },
    ),
    "cpuset, allocated": Case(
        Cpuset, every(OWN), {"cpu.cfs_quota_us": -1}, (OWN, {"cpu.cfs_quota_us": -1}), "LSR", LSR
    ),
    "cpuset, shared": Case(Cpuset, every({"cpuset.cpus": "0-7"}), {}, ({"cpuset.cpus": "0-7"}, {})),
    "group-identity": Case(GroupIdentity, every(IDENTITY), IDENTITY, (IDENTITY, IDENTITY)),
    # The kubelet saves no requests of init containers that end: they are not protected.
    "memory-qos": Case(
        MemoryQoS,
        {name: protected(name) for name in RUNNING},
        {"memory.min": REQUESTED // 2, "memory.low": REQUESTED // 4 * 3},
        (
            {"memory.min": 512 * MI, "memory.low": 768 * MI},
            {"memory.min": (REQUESTED + 512 * MI) // 2, "memory.low": (REQUESTED + 512 * MI) // 4 * 3},
        ),
    ),
    "gpu-env": Case(
        GpuEnv, every(GPU), {}, (GPU, {}), annotations={ALLOCATED: json.dumps({"gpu": [{"minor": 1}]})}
    ),
    "accelerators": Case(
        Accelerators,
        every(NPU),
        {},
        (NPU, {}),
        annotations={ALLOCATED: json.dumps({"gpu": [{"minor": 1}]}), "huawei.com/npu-core": "1"},
    ),
    "rdma-devices": Case(RdmaDevices, every(RDMA), {}, (RDMA, {}), annotations={ALLOCATED: FUNCTION}),
    "core-sched": Case(CoreSched, every(GROUP), {}, (GROUP, {}), cpu_policy="coreSched"),
    # On cgroup version 1, where a limit does not apply below its cgroup.
    "block-io": Case(
        BlockIO,
        every(LIMIT),
        LIMIT,
        (LIMIT, LIMIT),
        annotations={
            BLKIO_QOS: '{"blocks": [{"name": "/dev/sda", "type": "device", "ioCfg": {"writeBPS": 7}}]}'
        },
    ),
    "oom-score": Case(
        OomScore,
        {**every({"oom_score_adj": 300}), SIDE: {"oom_score_adj": 10}, INIT_A: {"oom_score_adj": 20}},
        {},
        ({"oom_score_adj": 300}, {}),
        annotations={
            "koordinator.sh/oom-score-adj": "300",
            "koordinator.sh/oom-score-adj-spec": json.dumps({SIDE: 10, INIT_A: 20}),
        },
    ),
}

CONFIG: Final[dict[str, dict[str, Any]]] = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 20}},
    "resource-qos-config": {
        "clusterStrategy": {
            "lsClass": {
                "memoryQOS": {
                    "enable": True,
                    "minLimitPercent": 50,
                    "lowLimitPercent": 75,
                    "wmarkRatio": 0,
                    "wmarkScalePermill": 50,
                    "wmarkMinAdj": 0,
                },
                "cpuQOS": {"enable": True, "groupIdentity": 2},
            }
        }
    },
}


def node_of(requests: Mapping[str, Mapping[str, int]], cpu_policy: str) -> Node:
    of_classes = CONFIG["resource-qos-config"]["clusterStrategy"] | {"policies": {"cpuPolicy": cpu_policy}}
    config = {**CONFIG, "resource-qos-config": {"clusterStrategy": of_classes}}
    return Node(
        strategies=good(config).strategies,
        normalization_ratio=RATIO,
        pools=Pools(ls=(Pool(socket=0, numa_node=0, cpus=frozenset(range(8))),)),
        features=frozenset(map(str, Feature)),
        requests={("u", name): amounts for name, amounts in requests.items()},
        cgroup_driver="cgroupfs",
        facts=NodeFacts(devices=DEVICES, controllers={"blkio": 1}),
        block_devices=BlockDevices({"sda": "8:0"}),
        levels=LevelRules(order=(Vocabulary.KATALYST, Vocabulary.KOORDINATOR)),
    )


class FrontEnd:
    """Views of a pod and its containers, as a front end makes them of what it is told."""

    def __init__(self, calls: PodCalls) -> None:
        self.config = calls.config
        self.configs = {each.config.metadata.name: each.config for each in calls.containers}
        self.configs[DEBUG] = api_pb2.ContainerConfig(metadata=api_pb2.ContainerMetadata(name=DEBUG))

    def pod(self) -> PodView:
        raise NotImplementedError

    def new(self, name: str) -> ContainerView:
        """A container that is to be created."""
        raise NotImplementedError

    def running(self, name: str) -> ContainerView:
        raise NotImplementedError


class Proxy(FrontEnd):
    """The CRI proxy."""

    def pod(self) -> PodView:
        return requested_pod(self.config, None, requested_summary(self.config, None))

    def new(self, name: str) -> ContainerView:
        config = self.configs[name]
        return requested_container(config, self.pod(), read_resources(config.linux.resources))

    def running(self, name: str) -> ContainerView:
        view = self.new(name)
        record = ContainerRecord(id="c", name=name, requested=view.requested, state=Lifecycle.RUNNING)
        return recorded_container(record, self.pod())


class Nri(FrontEnd):
    """A plugin of the runtime."""

    def pod(self) -> PodView:
        sandbox = Sandbox("s", self.config, "", 0, 1, ())
        return recorded_pod(pod_record(pod_message(sandbox, CgroupDriver.CGROUPFS), 0.0))

    def _record(self, name: str) -> ContainerRecord:
        config = self.configs[name]
        made = FakeContainer("c", "s", config, self.config, config.linux.resources, 0)
        return container_record(new_container_message(made, CgroupDriver.CGROUPFS), 0.0)

    def new(self, name: str) -> ContainerView:
        return recorded_container(replace(self._record(name), id=""), self.pod())

    def running(self, name: str) -> ContainerView:
        return recorded_container(replace(self._record(name), state=Lifecycle.RUNNING), self.pod())


FRONT_ENDS: Final = (Proxy, Nri)


def values_of(change: PodChange | ContainerChange | None, requested: Resources) -> Values:
    """The values of a change that are none of the neutral ones."""
    found: Values = {}
    if change is None:
        return found
    assert not change.problems
    if isinstance(change, ContainerChange):
        found |= {name: str(text) for name, text in change.env.items()}
        found |= {each.container_path: each.host_path for each in change.devices}
        for name in RESOURCE_FIELDS:
            value = getattr(change.resources, name, None)
            if value is not None:
                found[RESOURCE_PARAMETERS.get(name, name)] = _resolved(value, requested)
    for parameter, value in change.cgroup.items():
        found[parameter] = _resolved(value, requested)
    return {name: value for name, value in found.items() if (name, value) not in NOTHING}


NOTHING: Final = frozenset(
    {
        ("memory.min", 0),
        ("memory.low", 0),
        ("memory.high", -1),
        ("memory.wmark_ratio", 0),
        ("memory.wmark_scale_factor", 50),
        ("memory.wmark_min_adj", 0),
        ("memory.priority", 0),
        ("memory.use_priority_oom", 0),
        ("memory.oom.group", 0),
    }
)
"""Values without an effect."""


def _resolved(value: Any, requested: Resources) -> int | str:
    if isinstance(value, Scale):
        return divided(requested.cpu_quota_us or 0, value.ratio)
    assert isinstance(value, int | str)
    return value


@pytest.mark.parametrize("front_end", FRONT_ENDS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_container_has_its_values(case: Case, front_end: type[FrontEnd]) -> None:
    node, seen, policy = stage(case, front_end)
    for name in (*ORDER, DEBUG):
        for view in (seen.new(name), seen.running(name)):
            found = values_of(policy.container(view, node), view.requested)
            assert found == case.containers.get(name, {}), name


@pytest.mark.parametrize("front_end", FRONT_ENDS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_pod_has_what_its_containers_need_together(case: Case, front_end: type[FrontEnd]) -> None:
    node, seen, policy = stage(case, front_end)
    pod = seen.pod()
    assert values_of(policy.pod(pod, node), pod.resources) == case.pod


@pytest.mark.parametrize("front_end", FRONT_ENDS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_resize_is_followed(case: Case, front_end: type[FrontEnd]) -> None:
    """`main` has 3 CPUs and 1.5 GiB as limit now, and 1 GiB as request; the kubelet resizes the pod, too."""
    node, seen, policy = stage(case, front_end)
    of_main, of_pod = case.resized
    requests = {name: {"memory": AMOUNTS[name][2] * MI} for name in RUNNING}
    requests[MAIN] = {"memory": 1024 * MI}
    node = node_of(requests if case.is_native else {MAIN: {}, HELPER: {}, SIDE: {}}, case.cpu_policy)
    updated = Resources(cpu_period_us=100_000, cpu_quota_us=300_000, memory_limit_bytes=1536 * MI)
    view = seen.running(MAIN)
    resized = replace(view, requested=overlay(view.requested, updated), updated=updated)
    assert values_of(policy.container(resized, node), resized.requested) == of_main
    # Init containers have ended, sidecar and regular ones need more together than any before.
    limits = {"cpu": 4500 if case.is_native else 3000, "memory": (1920 if case.is_native else 1536) * MI}
    seen.config.linux.resources.CopyFrom(linux_resources({"cpu": 2750 if case.is_native else 3000}, limits))
    pod = seen.pod()
    assert values_of(policy.pod(pod, node), pod.resources) == of_pod


def stage(case: Case, front_end: type[FrontEnd]) -> tuple[Node, FrontEnd, Policy]:
    """The node as its kubelet describes it, the pod as a front end sees it, and the policy."""
    requests = {name: {"memory": AMOUNTS[name][2] * MI} if case.is_native else {} for name in RUNNING}
    node = node_of(requests, case.cpu_policy)
    text = manifest(case.qos, case.annotations, is_native=case.is_native)
    return node, front_end(pod_calls(text, "test", node)[0]), case.policy()


def test_every_policy_is_in_the_table() -> None:
    about_containers = {policy for policy in built_in() if "container" in policy.sets_fields}
    # All containers have the same of Katalyst's pools: `test_katalyst_pools.py`.
    assert {case.policy for case in CASES.values()} | {KatalystPools} == about_containers
