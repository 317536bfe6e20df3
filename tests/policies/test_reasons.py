"""Reasons of all policies: their arithmetic, the same in audit, `simulate`, `explain` and page."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from cri_api.runtime.v1 import api_pb2 as cri
from cri_api.runtimeproxy.v1 import api_pb2
from policies.batch_resource import BatchResource, BatchResourceOptions
from policies.cpu_burst import CpuBurst
from policies.cpu_idle import CpuIdle
from policies.cpu_normalization import CpuNormalization
from policies.group_identity import GroupIdentity
from policies.memory_qos import MemoryQoS
from policies.system_config import SystemConfig
from policies.template import Template
from runtimeproxy.cgroups import core_scheduling
from runtimeproxy.fields.tables import NEUTRAL, OF_PROCESSES
from runtimeproxy.hooks import ContainerView, PodView, Policy, ResolvedPod, Resources
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.decision import evaluate
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.service.api.explain import Explainer
from runtimeproxy.service.api.pods import PodMessages, parameter_of
from runtimeproxy.service.http import HttpRequest, HttpResponse
from runtimeproxy.service.page.page import NodePage
from runtimeproxy.simulate.kubelet import PodCalls
from runtimeproxy.simulate.reading import pod_calls
from runtimeproxy.simulate.result import PodSimulation
from runtimeproxy.simulate.simulation import simulate
from runtimeproxy.testing import CgroupDriver, CgroupFiles, FakeRuntime, KoordProxy, PodCgroups, RuntimeState
from runtimeproxy.vocabulary import Role
from tests.cgroups.cookies import Cookies
from tests.cgroups.resctrl_files import make_resctrl
from tests.lab.deadline import wait_until
from tests.simulate.test_agreement import HOST, KUBELET, TOPOLOGY, Stand
from tests.simulate.test_explanation import explained
from tests.slo.configs import good

NODE = {
    "kind": "Node",
    "metadata": {"name": HOST, "annotations": {"node.koordinator.sh/cpu-normalization-ratio": "1.20"}},
    "status": {
        "capacity": {"cpu": "6", "memory": "16Gi"},
        "allocatable": {"cpu": "6", "memory": "15Gi"},
    },
}
CONFIG = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 20}},
    "resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressPolicy": "cpuset"}},
    "resource-qos-config": {
        "clusterStrategy": {
            "lsClass": {
                "memoryQOS": {"enable": True, "minLimitPercent": 20, "lowLimitPercent": 10, "wmarkRatio": 90},
                "cpuQOS": {"enable": True, "groupIdentity": 2},
            },
            "beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 30, "mbaPercent": 20}},
        }
    },
}
THRESHOLD = {"enable": True, "cpuSuppressPolicy": "cfsQuota"}
BATCH = {"kubernetes.io/batch-cpu": "700", "kubernetes.io/batch-memory": "128Mi"}
SPEC = "node.koordinator.sh/extended-resource-spec"
QOS = "koordinator.sh/qosClass"
STATUS = "scheduling.koordinator.sh/resource-status"
GPUS = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [{"minor": 0}]})}
BLKIO = "koordinator.sh/blkioQOS"
BLOCK = {"name": "/dev/sda", "type": "device", "ioCfg": {"writeBPS": 1048576}}
SOURCES = r"\(((?:cluster strategy|pod strategy|annotation) [^)]*)\)"
RDMA = {"scheduling.koordinator.sh/device-allocated": json.dumps({"rdma": [{"id": "0000:1f:00.0"}]})}
FULL = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
MI = 1 << 20
GI = 1 << 30
UNCHANGED_WITHOUT_PROCESSES = {f"cgroup[{name}]" for name in OF_PROCESSES}


def pod(
    name: str,
    qos: str,
    resources: object,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {**({QOS: qos} if qos else {}), **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": resources}]},
    }


def batch(*names: str) -> dict[str, str]:
    containers = {each: {"requests": BATCH, "limits": BATCH} for each in names}
    return {SPEC: json.dumps({"containers": containers})}


CASES = [
    pytest.param(
        pod("batch", "BE", {}, batch("main")),
        {
            "resources.cpu_shares": "batch-cpu request 700m = 716",
            "resources.cpu_quota_us": "batch-cpu limit 700m = 70000, / 1.2 normalization ratio "
            "(Node annotation) = 58334",
            "resources.memory_limit_bytes": f"batch-memory limit = {128 * MI}",
            "cgroup[cpu.cfs_quota_us]": "batch-cpu limit 700m = 70000, / 1.2 normalization ratio "
            "(Node annotation) = 58334",
        },
        id="batch-resource",
    ),
    pytest.param(
        pod("two", "BE", {}, batch("main", "side")),
        {
            "cgroup[cpu.shares]": "batch-cpu requests of 2 containers 1400m = 1433",
            "cgroup[memory.limit_in_bytes]": f"batch-memory limits of 2 containers = {256 * MI}",
        },
        id="batch-resource of two containers",
    ),
    pytest.param(
        pod("pinned", "LSR", FULL, {STATUS: '{"cpuset": "2-3"}'}),
        {
            "resources.cpuset_cpus": "CPUs allocated by the scheduler (resource-status) = 2-3",
            "resources.cpu_quota_us": "CPUs that the LSR pod has for itself need no quota = -1",
            "cgroup[cpu.cfs_quota_us]": "CPUs that the LSR pod has for itself need no quota = -1",
        },
        id="cpuset",
    ),
    pytest.param(
        pod("web", "LS", FULL),
        {
            "resources.cpu_quota_us": "CPU quota 200000 / 1.2 normalization ratio (Node annotation) = 166667",
            "resources.cpuset_cpus": "shared pool of LS pods = 0-3",
            "cgroup[cpu.cfs_burst_us]": "CPU quota 200000 x 20 % (cluster strategy of cpu-burst-config in "
            "FILE) = 40000",
            "cgroup[cpu.bvt_warp_ns]": "group identity of LS pods (cluster strategy of resource-qos-config "
            "in FILE) = 2",
            "cgroup[memory.min]": f"memory request {GI} x 20 % (cluster strategy of resource-qos-config in "
            f"FILE) = {GI // 5}",
            "cgroup[memory.low]": f"memory request {GI} x 10 % (cluster strategy of resource-qos-config in "
            f"FILE), at least memory.min {GI // 5} = {GI // 5}",
            "cgroup[memory.wmark_ratio]": "strategy's value (cluster strategy of resource-qos-config in "
            "FILE) = 90",
            "cgroup[memory.wmark_scale_factor]": "strategy's value by default (cluster strategy of "
            "resource-qos-config in FILE) = 20",
        },
        id="cpu-normalization, cpuset, cpu-burst, group-identity, memory-qos",
    ),
    pytest.param(
        pod("database", "LS", {}, {BLKIO: json.dumps({"blocks": [BLOCK]})}),
        {
            "cgroup[blkio.throttle.write_bps_device]": "write bps limit of /dev/sda (annotation "
            "koordinator.sh/blkioQOS) = 8:0 1048576",
        },
        id="block-io",
    ),
    pytest.param(
        pod("training", "LS", {}, GPUS),
        {"env[NVIDIA_VISIBLE_DEVICES]": "GPUs allocated by the scheduler"},
        id="gpu-env",
    ),
    pytest.param(
        pod("crowded", "BE", {"requests": BATCH}, batch("main")),
        {
            "cgroup[resctrl_group]": "BE's group, L3 0-30 % of 11 bits -> f (4 bits); MB 20 % -> 20 % "
            "(cluster strategy of resource-qos-config in FILE) = BE",
            "cgroup[resctrl_monitor]": "counters of the pod = pod-uid-crowded",
        },
        id="resctrl",
    ),
    pytest.param(
        pod("shielded", "LS", {}, {"koordinator.sh/oom-score-adj": "-1000"}),
        {"resources.oom_score_adj": "annotation koordinator.sh/oom-score-adj -1000, at least -997 = -997"},
        id="oom-score",
    ),
    pytest.param(
        pod("mpi", "LS", {}, RDMA),
        {
            "devices[/dev/infiniband/uverbs0]": "RDMA devices allocated by the scheduler: 0000:1f:00.0 is "
            "/dev/infiniband/uverbs0",
            "devices[/dev/infiniband/rdma_cm]": "RDMA devices allocated by the scheduler: 0000:1f:00.0 is "
            "/dev/infiniband/uverbs0",
        },
        id="rdma-devices",
    ),
    pytest.param(
        pod("npu", "LS", {}, {**GPUS, "huawei.com/npu-core": "0"}),
        {"env[ASCEND_VISIBLE_DEVICES]": "accelerators allocated by the scheduler"},
        id="accelerators",
    ),
    pytest.param(
        pod(
            "bound",
            "LSR",
            {"limits": {"cpu": "2"}},
            {
                "katalyst.kubewharf.io/qos_level": "dedicated_cores",
                "katalyst.kubewharf.io/memory_enhancement": '{"numa_binding": "true"}',
                "katalyst.kubewharf.io/cpu_enhancement": '{"cpu_burst_policy": "static"}',
            },
        ),
        {"cgroup[cpu.cfs_burst_us]": "cpu_burst_policy static, CPU quota 200000 x 100 % = 200000"},
        id="katalyst-qos",
    ),
]


CORE_SCHED = {
    "resource-qos-config": {
        "clusterStrategy": {
            "policies": {"cpuPolicy": "coreSched"},
            "beClass": {"cpuQOS": {"enable": True, "schedIdle": 1}},
        }
    }
}
CORE_SCHED_CASES = [
    pytest.param(
        pod("grouped", "BE", {}, labels={"koordinator.sh/core-sched-group-id": "web"}),
        {
            "cgroup[core_sched_group]": "core scheduling of BE pods (cluster strategy of resource-qos-config "
            "in FILE), label koordinator.sh/core-sched-group-id web = group:web",
            "cgroup[cpu.idle]": "schedIdle of BE pods (cluster strategy of resource-qos-config in FILE) = 1",
        },
        id="core-sched",
    ),
]


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    """The daemon with all policies, in front of a fake runtime; the kernel has all files."""
    yield from stand_with(CONFIG)


@pytest.fixture(scope="module")
def core_sched_stand() -> Iterator[Stand]:
    """With the other CPU policy; the kernel has core scheduling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_scheduling, "is_supported", lambda: True)
        patch.setattr(core_scheduling, "prctl", Cookies())
        yield from stand_with(CORE_SCHED)


def stand_with(config: Mapping[str, object]) -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="why-") as name:
        folder = Path(name)
        online = folder / "sys/devices/system/cpu/online"
        online.parent.mkdir(parents=True)
        online.write_text("0-5")
        (folder / "sys/class/block/sda").mkdir(parents=True)
        (folder / "sys/class/block/sda/dev").write_text("8:0")
        function = folder / "sys/class/infiniband_verbs/uverbs0"
        function.mkdir(parents=True)
        (function / "dev").write_text("231:192")
        (function / "device").symlink_to("../../../0000:1f:00.0")
        (folder / "sys/class/misc/rdma_cm").mkdir(parents=True)
        (folder / "sys/class/misc/rdma_cm/dev").write_text("10:122")
        make_resctrl(folder / "sys")
        (folder / "sys/filesystems").write_text("nodev\tresctrl\n")
        (folder / "node.d").mkdir()
        data = {key: json.dumps(value) for key, value in config.items()}
        slo = {"kind": "ConfigMap", "metadata": {"name": "slo-controller-config"}, "data": data}
        items = [NODE, TOPOLOGY, slo]
        (folder / "node.d/node.json").write_text(json.dumps({"kind": "List", "items": items}))
        (folder / "kubelet").mkdir()
        (folder / "kubelet/config.yaml").write_text(KUBELET)
        more = {
            "cpu.bvt_warp_ns": "0",
            "memory.wmark_ratio": "0",
            "memory.wmark_scale_factor": "50",
            "memory.wmark_min_adj": "0",
            "io.max": "",
        }
        files = CgroupFiles(folder / "cgroup", version=2, more=more)
        files.make("/kubepods")
        state = RuntimeState(PodCgroups(CgroupDriver.CGROUPFS, files))
        chosen = {each.name: PolicySettings(enabled=True) for each in built_in()}
        with (
            FakeRuntime(folder / "fake.sock", state=state) as fake,
            KoordProxy(fake, folder, built_in(), settings=chosen) as proxy,
        ):
            yield Stand(proxy)


def run(stand: Stand, calls: PodCalls) -> str:
    """Runs the pod as the kubelet does, and returns its id."""
    files, runtime = stand.proxy.fake_runtime.state.cgroups.files, stand.proxy.runtime
    assert files is not None
    files.make(calls.config.linux.cgroup_parent)
    made = runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=calls.config), timeout=30)
    for container in calls.containers:
        request = cri.CreateContainerRequest(
            pod_sandbox_id=made.pod_sandbox_id, config=container.config, sandbox_config=calls.config
        )
        created = runtime.CreateContainer(request, timeout=30)
        runtime.StartContainer(cri.StartContainerRequest(container_id=created.container_id), timeout=30)
    return made.pod_sandbox_id


def reasons_on_page(stand: Stand, pod_id: str) -> list[str]:
    """What the node page gets when somebody opens the pod."""
    loop, core = stand.proxy._loop, stand.parts.core
    assert loop is not None
    messages = PodMessages(core.inventory, core.ledger, core.node)

    async def ask() -> HttpResponse:
        async def load() -> SimpleNamespace:
            return SimpleNamespace(explainer=Explainer(messages, core.policies, core.leased, thread))

        with ThreadPoolExecutor(1) as thread:
            request = HttpRequest("/page/pod", f"id={pod_id}", {"host": "localhost"})
            return await NodePage(load, thread).respond(request)

    found = json.loads(asyncio.run_coroutine_threadsafe(ask(), loop).result(30).data)
    return sorted(
        claim["reason"]
        for target in found["targets"]
        for field in target.get("fields", ())
        for claim in field.get("claims", ())
        if claim.get("reason")
    )


class Place(NamedTuple):
    """One value of one policy."""

    is_pod: bool
    field: str
    """The cgroup parameter, else the name of the field."""
    policy: str

    @classmethod
    def of(cls, field: str, policy: str, *, is_pod: bool) -> Place:
        return cls(is_pod, field if is_pod and field.startswith("resources") else key_of(field), policy)


def key_of(field: str) -> str:
    return parameter_of(field) or field


@pytest.mark.parametrize(("manifest", "expected"), CASES)
def test_reasons_are_the_same_everywhere(
    stand: Stand, manifest: dict[str, Any], expected: Mapping[str, str]
) -> None:
    check_reasons(stand, manifest, expected)


@pytest.mark.parametrize(("manifest", "expected"), CORE_SCHED_CASES)
def test_reasons_of_core_scheduling(
    core_sched_stand: Stand, manifest: dict[str, Any], expected: Mapping[str, str]
) -> None:
    check_reasons(core_sched_stand, manifest, expected)


def check_reasons(stand: Stand, manifest: dict[str, Any], expected: Mapping[str, str]) -> None:
    core = stand.parts.core
    node = core.node.latest
    assert node.state_of(Input.STRATEGIES) is InputState.KNOWN
    (calls,) = pod_calls(json.dumps(manifest).encode(), "pod.json", node)
    (pod,) = simulate([calls], core.policies.loaded.policies, node).pods
    simulated = {
        Place.of(field.name, change.policy, is_pod=target.kind == "pod"): change
        for target in pod.targets
        for field in target.fields
        for change in field.changes
    }
    pod_id = run(stand, calls)
    targets = explained(stand, pod_id).targets
    claims = {
        Place.of(field.name, claim.owner, is_pod=target.level == api_pb2.LEVEL_POD): claim
        for target in targets
        if target.level in (api_pb2.LEVEL_POD, api_pb2.LEVEL_CONTAINER)
        for field in target.fields
        for claim in field.claims
    }

    def reasons() -> list[str]:
        found = explained(stand, pod_id).targets
        claimed = (claim for target in found for field in target.fields for claim in field.claims)
        return sorted(claim.reason for claim in claimed if claim.reason)

    # Sums of QoS classes follow a new pod a moment later.
    wait_until(lambda: reasons_on_page(stand, pod_id) == reasons(), "the page has the same reasons")
    changed = {
        Place.of(field.name, change.policy, is_pod=target.kind == "pod")
        for target in pod.targets
        for field in target.fields
        for change in field.changes
        # The file of a new cgroup holds a neutral value already.
        if field.is_changed and field.after != str(NEUTRAL.get(key_of(field.name)))
        if change.role is Role.SET
        # The fake runtime's containers have no processes.
        if field.name not in UNCHANGED_WITHOUT_PROCESSES
    }

    def audit() -> dict[Place, str]:
        found = {
            Place.of(entry.field, entry.policy, is_pod=not entry.container): entry.reason
            for entry in stand.proxy.audit
            if entry.pod_uid == calls.config.metadata.uid and entry.kind is AuditKind.CHANGED
        }
        return found if found.keys() >= changed else {}

    audited = wait_until(audit, "the audit has all changes")
    texts = {place: change.reason for place, change in simulated.items()}
    assert {place: claim.reason for place, claim in claims.items() if claim.reason} == texts
    assert audited == {place: texts[place] for place in audited}
    for place, claim in claims.items():
        sources = {each.provenance.text for each in claim.strategies} - {"default"}
        assert sources == set(simulated[place].provenance), place
        assert sources == set(re.findall(SOURCES, claim.reason)), place
    for place, change in simulated.items():
        if change.wanted not in (None, "<set>") and not place.field.startswith("devices["):
            last = re.findall(r"= ([^=]+)$", change.reason)
            # A division has a result where its policy knows the dividend.
            scaled = resulting(pod, place) if change.role is Role.SCALE and change.counts else None
            assert last == [scaled or change.wanted], place
    for name, text in expected.items():
        found = {each for place, each in texts.items() if place.field == key_of(name)}
        assert text in {re.sub(r"in /\S+/node\.json", "in FILE", each) for each in found}, name


def resulting(pod: PodSimulation, place: Place) -> str | None:
    """What a field comes to."""
    return next(
        field.after
        for target in pod.targets
        for field in target.fields
        if (target.kind == "pod") is place.is_pod and key_of(field.name) == place.field
    )


def test_all_policies_are_in_the_table() -> None:
    names = {
        name for case in (*CASES, *CORE_SCHED_CASES) for name in str(case.id).split(" of ")[0].split(", ")
    }
    # One is off where the kernel has group identity, one would change this machine's network
    # (`test_network_qos.py`), one needs pools (`test_katalyst_pools.py`), and one concerns no pod: see below.
    # That of starts is a claim with a lease (`test_startup_boost.py`).
    others = {"cpu-idle", "katalyst-pools", "network-qos", "startup-boost", "system-config"}
    assert names | others == {policy.name for policy in built_in()}


def be_pod(*containers: tuple[str, Mapping[str, str]], resources: Resources | None = None) -> PodView:
    spec = {name: {"requests": amounts, "limits": amounts} for name, amounts in containers}
    return PodView(
        uid="u",
        qos=QoSClass.BE,
        kube_qos=KubeQoSClass.BEST_EFFORT,
        annotations={SPEC: json.dumps({"containers": spec})},
        resources=resources or Resources(),
    )


def ls_pod(resources: Resources) -> PodView:
    return PodView(uid="u", qos=QoSClass.LS, kube_qos=KubeQoSClass.GUARANTEED, resources=resources)


def on(config: Mapping[str, object], *features: Feature, **facts: Any) -> Node:
    return Node(strategies=good(config).strategies, features=frozenset(features), **facts)


SUPPRESSED = on({"resource-threshold-config": {"clusterStrategy": THRESHOLD}})
SOURCE = "(cluster strategy of {} in /etc/node.d/config.yaml)"
OF_QOS = SOURCE.format("resource-qos-config")


def memory(*, allocatable: int | None = None, **strategy: object) -> Node:
    of_class = {"memoryQOS": {"enable": True, **strategy}}
    features = [each for each in Feature if each.startswith("memory-")]
    return on(
        {"resource-qos-config": {"clusterStrategy": {"lsClass": of_class}}},
        *features,
        allocatable={} if allocatable is None else {"memory": allocatable},
    )


@pytest.mark.parametrize(
    ("policy", "view", "node", "expected"),
    [
        pytest.param(
            BatchResource(),
            be_pod(("main", BATCH)),
            SUPPRESSED,
            {
                "cpu.shares": "batch-cpu request 700m = 716",
                "cpu.cfs_quota_us": "best-effort pods share one quota "
                f"{SOURCE.format('resource-threshold-config')} = -1",
            },
            id="only what the strategy sets names it",
        ),
        pytest.param(
            BatchResource(BatchResourceOptions(cfs_quota_enabled=False)),
            be_pod(("main", BATCH)),
            Node(),
            {"cpu.cfs_quota_us": "best-effort pods share one quota by the option cfs_quota_enabled = -1"},
            id="an option switches quotas off",
        ),
        pytest.param(
            BatchResource(BatchResourceOptions(cpu_normalization_ratio=2)),
            be_pod(("main", {"kubernetes.io/batch-cpu": "1"})),
            Node(),
            {
                "cpu.shares": "batch-cpu request 1m, at least 2 = 2",
                "cpu.cfs_quota_us": "batch-cpu limit 1m = 1000, / 2 normalization ratio "
                "(option cpu_normalization_ratio), at least 1000 = 1000",
                "memory.limit_in_bytes": "no batch-memory limit = -1",
            },
            id="least values",
        ),
        pytest.param(
            BatchResource(),
            be_pod(
                *(("main", BATCH), ("side", BATCH)),
                resources=Resources(cpu_shares=1024, cpu_quota_us=50_000, memory_limit_bytes=MI),
            ),
            Node(),
            {
                "cpu.shares": "batch-cpu requests of 2 containers 1400m = 1433, + 1024 of other containers "
                "= 2457",
                "cpu.cfs_quota_us": "batch-cpu limits of 2 containers 1400m = 140000, + 50000 of other "
                "containers = 190000",
                "memory.limit_in_bytes": f"batch-memory limits of 2 containers = {256 * MI}, + {MI} of other "
                f"containers = {257 * MI}",
            },
            id="containers that the annotation does not name",
        ),
        pytest.param(
            BatchResource(),
            be_pod(("main", BATCH), ("side", {})),
            Node(),
            {
                "cpu.cfs_quota_us": "a container has no batch-cpu limit = -1",
                "memory.limit_in_bytes": "a container has no batch-memory limit = -1",
            },
            id="an unlimited container",
        ),
        pytest.param(
            CpuNormalization(),
            ls_pod(Resources(cpu_quota_us=200_000)),
            on(
                {"cpu-normalization-config": {"enable": True, "defaultRatio": 1.5}},
                normalization_ratio=1.5,
                normalization_path="cpu_normalization.default_ratio",
            ),
            {
                "cpu.cfs_quota_us": "CPU quota 200000 / 1.5 normalization ratio "
                f"{SOURCE.format('cpu-normalization-config')} = 133334"
            },
            id="the ratio of a strategy",
        ),
        pytest.param(
            CpuBurst(),
            ls_pod(Resources(cpu_quota_us=20_000, cpu_period_us=50_000)),
            on({"cpu-burst-config": {"clusterStrategy": {"policy": "auto"}}}, Feature.BURST),
            {
                "cpu.cfs_burst_us": "CPU quota 20000 per 50000 us x 100000 x 1000 % by default "
                f"{SOURCE.format('cpu-burst-config')} = 400000"
            },
            id="another period, and the default percentage",
        ),
        pytest.param(
            MemoryQoS(),
            ls_pod(Resources(memory_limit_bytes=GI)),
            memory(allocatable=MI, minLimitPercent=50, pageCacheLimitPercent=50),
            {
                "memory.min": f"memory request {GI} x 50 % {OF_QOS}, at most {MI} = {MI}",
                "memory.pagecache_limit.size": f"memory limit {GI} x 50 % {OF_QOS} = {GI // 2}",
                "memory.pagecache_limit.enable": "a page cache limit is set = 1",
            },
            id="within the node's memory, and the page cache",
        ),
    ],
)
def test_reasons_of_special_cases(
    policy: Policy, view: PodView, node: Node, expected: Mapping[str, str]
) -> None:
    decision = evaluate([bind(policy)], view, node)
    found = {
        field.key: (str(claim.reason), claim, each.value)
        for field, each in decision.merged.fields.items()
        for claim in each.claims
    }
    assert {name: found[name][0] for name in expected} == expected
    for name, (reason, claim, value) in found.items():
        assert claim.role is not Role.SET or reason.endswith(f" = {value!r}"), name


def test_a_container_between_request_and_limit() -> None:
    container = ContainerView(
        name="main",
        pod=PodView(uid="u", qos=QoSClass.LS, kube_qos=KubeQoSClass.BURSTABLE),
        requested=Resources(memory_limit_bytes=GI),
    )
    node = replace(memory(throttlingPercent=80), requests={("u", "main"): {"memory": GI // 2}})
    change = MemoryQoS().container(container, node)
    assert change is not None
    reason = f"memory request {GI // 2} + (memory limit {GI} - {GI // 2}) x 80 % {OF_QOS}, in whole pages"
    assert change.reasons["memory.high"] == f"{reason} = {change.cgroup['memory.high']}"


def test_directories_of_classes() -> None:
    pods = [ResolvedPod(pod=PodView(uid=each), cgroup={"memory.min": 5}) for each in "ab"]
    change = MemoryQoS().qos_class(KubeQoSClass.BURSTABLE, pods, memory())
    assert change is not None
    assert change.reasons["memory.min"] == "sum of memory.min of 2 pods = 10"
    of_class = {"cpuQOS": {"enable": True, "groupIdentity": 1}}
    node = on({"resource-qos-config": {"clusterStrategy": {"beClass": of_class}}}, Feature.BVT)
    of_directory = GroupIdentity().qos_class(KubeQoSClass.BEST_EFFORT, (), node)
    assert of_directory is not None
    assert of_directory.reasons == {"cpu.bvt_warp_ns": f"group identity of BE pods {OF_QOS} = 1"}


def test_idle_pods_and_settings_of_the_kernel() -> None:
    of_class = {"cpuQOS": {"enable": True, "groupIdentity": -1}}
    system = {"watermarkScaleFactor": 200}
    config = {
        "resource-qos-config": {"clusterStrategy": {"beClass": of_class}},
        "system-config": {"clusterStrategy": system},
    }
    node = replace(on(config, Feature.IDLE), memory_bytes={0: 64 * GI})
    idle = CpuIdle().pod(PodView(kube_qos=KubeQoSClass.BEST_EFFORT), node)
    assert idle is not None
    identity = f"group identity of pods without a QoS class {OF_QOS} = -1"
    assert idle.reasons == {"cpu.idle": f"{identity}; the kernel has none, so they are idle = 1"}
    change = SystemConfig().node(node)
    assert change is not None
    of_system = OF_QOS.replace("resource-qos-config", "system-config")
    assert {name: str(each) for name, each in change.reasons.items()} == {
        "vm.min_free_kbytes": f"memory {64 * GI} / 1024 x 100 / 10000 (default) = 671088",
        "vm.watermark_scale_factor": f"strategy's value {of_system} = 200",
        "mm.memcg_reaper.reap_background": "strategy's value (default) = 0",
    }


def test_the_template_says_its_option() -> None:
    change = Template().container(ContainerView(pod=PodView(qos=QoSClass.LS)), Node())
    assert change is not None
    assert change.reasons == {"oom_score_adj": "the option oom_score_adj for LS pods = -500"}
