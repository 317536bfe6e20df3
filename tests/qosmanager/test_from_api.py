"""Messages of the API as what plugins see, and claims as messages and back."""

import dataclasses
import json
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.katalyst.dynamic_config import read_config
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU
from runtimeproxy.qos import KubeQoSClass, PriorityClass, QoSClass
from runtimeproxy.qosmanager.from_api import claim_message, claims_of, node_of, pod_of, strategy_of
from runtimeproxy.qosmanager.plugin import Claim, Role, Target
from runtimeproxy.qosmanager.snapshot import (
    Container,
    ContainerState,
    Cpu,
    HostApplication,
    KatalystTraits,
    Level,
    Node,
    Pod,
    PodEviction,
    Strategies,
)
from runtimeproxy.service.api.strategies import katalyst_fields
from runtimeproxy.slo.schema import (
    AggregatePolicy,
    CgroupBase,
    Colocation,
    CpuBurstPolicy,
    CpuBurstStrategy,
    CpuSuppressPolicy,
    PodCpuBurst,
    PodCpuGuard,
    Threshold,
)
from runtimeproxy.slo.strategies import Layer
from runtimeproxy.slo.values import as_json

SLICE = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu.slice"


def fields_of(part: str, strategy: Any) -> list[api_pb2.StrategyField]:
    """All fields of a strategy, as the daemon sends them."""
    return [
        api_pb2.StrategyField(path=f"{part}.{each.name}", value=as_json(getattr(strategy, each.name)))
        for each in dataclasses.fields(strategy)
    ]


def test_a_pod_has_all_that_its_message_says() -> None:
    burst = PodCpuBurst(policy=CpuBurstPolicy.AUTO, cfs_quota_burst_percent=200)
    eviction = PodEviction(is_enabled=True, allowed=frozenset({"BECPUEvict"}), priority=-5)
    message = api_pb2.Pod(
        sandbox_id="s",
        uid="u",
        namespace="shop",
        name="web",
        qos_class="BE",
        kube_qos_class="BestEffort",
        priority=5_500,
        allocated_cpus="0-1,4",
        created_at=Timestamp(seconds=1_700_000_000, nanos=500_000_000),
        containers=[
            api_pb2.Container(
                id="c",
                name="main",
                state=api_pb2.Container.STATE_RUNNING,
                cgroup=f"{SLICE}/cri-containerd-c.scope",
                requests={"kubernetes.io/batch-cpu": 1_000},
                limits={"cpu": 2_000},
                scaled_cpu_quota_us=50_000,
                requested=api_pb2.Resources(cpu_period_us=50_000),
            ),
            api_pb2.Container(id="d", name="old", state=api_pb2.Container.STATE_STOPPED),
        ],
        strategies=[*fields_of("cpu_burst", burst), *fields_of("eviction", eviction)],
        katalyst=api_pb2.KatalystLevel(
            level="reclaimed_cores", suppression_tolerance_rate=1.5, rss_overuse_problem="is not above 0"
        ),
        has_known_requests=True,
        requests={"memory": 7},
    )
    assert pod_of(message) == (
        Pod(
            sandbox_id="s",
            uid="u",
            namespace="shop",
            name="web",
            qos=QoSClass.BE,
            kube_qos=KubeQoSClass.BEST_EFFORT,
            priority_class=PriorityClass.BATCH,
            priority=5_500,
            cgroup=SLICE,
            containers=(
                Container(
                    id="c",
                    name="main",
                    cgroup=f"{SLICE}/cri-containerd-c.scope",
                    requests={"kubernetes.io/batch-cpu": 1_000},
                    limits={"cpu": 2_000},
                    # For the period that Kubernetes uses.
                    cpu_quota_us=100_000,
                ),
                Container(id="d", name="old", state=ContainerState.STOPPED),
            ),
            cpus=frozenset({0, 1, 4}),
            cpu_burst=burst,
            eviction=eviction,
            created_s=1_700_000_000.5,
            katalyst=KatalystTraits("reclaimed_cores", 1.5, None, "is not above 0"),
            has_known_requests=True,
            requests={"memory": 7},
        ),
        (),
    )


def test_targets_of_a_pods_own_annotation_are_told_from_those_of_strategies() -> None:
    fields = fields_of("cpu_guard", PodCpuGuard(target_pressure_milliseconds=8, target_run_delay_percent=9))
    for field, source in zip(fields, (Layer.POD, Layer.ANNOTATION), strict=True):
        field.provenance.source = source
    pod, problems = pod_of(api_pb2.Pod(sandbox_id="s", strategies=fields))
    assert (pod.cpu_guard.target_run_delay_percent, problems) == (9, ())
    assert pod.annotated_guard == {"target_run_delay_percent"}


def test_what_a_daemon_does_not_say_is_not_known() -> None:
    pod, problems = pod_of(api_pb2.Pod(sandbox_id="s", containers=[api_pb2.Container(id="c")]))
    assert (pod.priority, pod.created_s, pod.cgroup, pod.cpus, problems) == (None, None, "", frozenset(), ())
    assert (pod.qos, pod.cpu_burst, pod.eviction) == (QoSClass.NONE, PodCpuBurst(), PodEviction())
    assert pod.containers[0].cpu_quota_us is None
    assert (pod.katalyst, pod.has_known_requests, pod.requests) == (None, False, {})
    assert node_of(api_pb2.GetNodeResponse()) == (Node(cgroup_version=0), Strategies(), ())


@pytest.mark.parametrize(
    ("qos", "kube_qos", "priority", "expected"),
    [
        ("", "BestEffort", None, (PriorityClass.BATCH, 5_500)),
        ("", "BestEffort", 0, (PriorityClass.BATCH, 5_500)),
        ("", "Burstable", 0, (PriorityClass.PROD, 9_500)),
        ("", "Guaranteed", None, (PriorityClass.PROD, 9_500)),
        ("BE", "Burstable", None, (PriorityClass.BATCH, 5_500)),
        ("LS", "BestEffort", 5_001, (PriorityClass.BATCH, 5_001)),
        ("LS", "Burstable", 100, (PriorityClass.PROD, 100)),
    ],
)
def test_a_pod_without_a_priority_has_that_of_its_class(
    qos: str, kube_qos: str, priority: int | None, expected: tuple[PriorityClass, int]
) -> None:
    """Source: Koordinator apis/extension, GetPodPriorityValueWithDefault."""
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    message = api_pb2.Pod(labels=labels, qos_class=qos, kube_qos_class=kube_qos, priority=priority)
    pod, _ = pod_of(message)
    assert (pod.priority_class, pod.priority_value, pod.priority) == (*expected, priority)


@pytest.mark.parametrize(
    ("quota_us", "period_us", "expected"), [(-1, 50_000, -1), (20_000, 0, 20_000), (20_000, 200_000, 10_000)]
)
def test_a_quota_is_one_of_100_ms(quota_us: int, period_us: int, expected: int) -> None:
    message = api_pb2.Container(id="c", scaled_cpu_quota_us=quota_us)
    if period_us:
        message.requested.cpu_period_us = period_us
    pod, _ = pod_of(api_pb2.Pod(containers=[message]))
    assert pod.containers[0].cpu_quota_us == expected


def test_a_node_has_all_that_its_message_says() -> None:
    threshold = Threshold(enable=True, cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA)
    burst = CpuBurstStrategy(share_pool_threshold_percent=70)
    colocation = Colocation(metric_aggregate_policy=AggregatePolicy(durations=("1m", "2m")))
    message = api_pb2.GetNodeResponse(
        cpus=[
            api_pb2.Cpu(id=0, core=0, socket=0, numa_node=0, is_online=True),
            api_pb2.Cpu(id=1, core=1, socket=0, numa_node=0),
        ],
        pools=[api_pb2.CpuPool(name="system", cpus="7", is_exclusive=False)],
        capacity={"cpu": 8_000},
        allocatable={"cpu": 7_500},
        reserved={"cpu": 500},
        reserved_cpus="0",
        claimed_cpus="5-6",
        annotations={"a": "b"},
        labels={"c": "d"},
        cgroups=api_pb2.CgroupFacts(version=1),
        features=["burst"],
        kubelet=api_pb2.KubeletFacts(
            cpu_manager_policy="static",
            static_cpus=[api_pb2.StaticCpus(pod_uid="u", container="main", cpus="2-3")],
        ),
        normalization_ratio=1.2,
        qos_class_cgroups=[
            api_pb2.QosClassCgroup(kube_qos_class="BestEffort", cgroup="/kubepods/besteffort"),
            api_pb2.QosClassCgroup(kube_qos_class="Newest", cgroup="/kubepods/newest"),
        ],
        host_applications=[
            api_pb2.HostApplication(
                name="nginx", qos_class="LS", priority_class="koord-prod", cgroup="/x", cgroup_base="Kubepods"
            )
        ],
        plugin_strategies=[
            *fields_of("threshold", threshold),
            *fields_of("cpu_burst", burst),
            *fields_of("colocation", colocation),
        ],
    )
    assert node_of(message) == (
        Node(
            cpus=(Cpu(0, 0, 0, 0),),
            capacity={"cpu": 8_000},
            allocatable={"cpu": 7_500},
            annotations={"a": "b"},
            labels={"c": "d"},
            cgroup_version=1,
            features=frozenset({"burst"}),
            cpu_manager_policy="static",
            reserved_cpus=frozenset({0}),
            reserved={"cpu": 500},
            static_cpus={("u", "main"): frozenset({2, 3})},
            claimed_cpus=frozenset({5, 6}),
            system_cpus=frozenset({7}),
            is_system_exclusive=False,
            normalization_ratio=1.2,
            qos_cgroups={KubeQoSClass.BEST_EFFORT: "/kubepods/besteffort"},
        ),
        Strategies(
            threshold=threshold,
            cpu_burst=burst,
            colocation=colocation,
            host_applications=(
                HostApplication("nginx", QoSClass.LS, PriorityClass.PROD, "/x", CgroupBase.KUBEPODS),
            ),
        ),
        (),
    )


def test_what_the_cluster_says_of_evictions_comes_as_it_was_read() -> None:
    """All fields, by what `GetNode` says of them."""
    raw = {
        "dryRun": ["*"],
        "cpuPressureEvictionConfig": {"loadUpperBoundRatio": 2, "loadEvictionCoolDownTime": "5m"},
        "memoryPressureEvictionConfig": {"enableRSSOveruseEviction": True, "gracePeriod": 3},
        "reclaimedResourcesEvictionConfig": {"evictionThreshold": {RECLAIMED_MILLICPU: 3}},
    }
    read = read_config({"evictionConfig": raw}, target="AdminQoSConfiguration gold", version="1")
    message = api_pb2.GetNodeResponse(strategies=katalyst_fields(read.config, ()))
    node, _, problems = node_of(api_pb2.GetNodeResponse.FromString(message.SerializeToString()))
    assert (node.eviction, node.eviction_target, problems) == (
        read.config.eviction,
        "AdminQoSConfiguration gold",
        (),
    )
    # One that a newer daemon knows leaves what the plugin has.
    (field,) = (each for each in message.strategies if each.path.endswith("loadUpperBoundRatio"))
    field.value = '"much"'
    node, _, (problem,) = node_of(message)
    assert node.eviction.cpu_pressure_eviction_config.load_upper_bound_ratio is None
    assert "load_upper_bound_ratio" in problem
    assert not node.is_eviction_unknown
    message.inputs.add(name="katalyst", state=api_pb2.NodeInput.STATE_UNKNOWN)
    assert node_of(message)[0].is_eviction_unknown


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("threshold.enable", "1"),
        ("threshold.cpu_suppress_threshold_percent", '"65"'),
        ("threshold.cpu_suppress_policy", '"cpusets"'),
        ("threshold.cpu_evict_lower_percent", "[]"),
        ("threshold.enable", "{"),
        ("threshold.enable", "[" * 5_000),
    ],
)
def test_a_value_that_is_not_known_here_leaves_the_default(path: str, value: str) -> None:
    strategy, (problem,) = strategy_of(Threshold, "threshold", {path: value})
    assert strategy == Threshold()
    assert problem.startswith(f"{path}: {value[:100]} is not known here; ")


def test_parts_of_a_value_may_come_alone() -> None:
    texts = {"colocation.metric_aggregate_policy.durations": json.dumps(["9m"]), "colocation.newer": "1"}
    strategy, problems = strategy_of(Colocation, "colocation", texts)
    assert (strategy.metric_aggregate_policy.durations, problems) == (("9m",), ())


CLAIMS = [
    Claim(Target(Level.QOS_CLASS, "BestEffort"), "cpuset.cpus", Role.AT_MOST, "3", reason="3 of 4 CPUs"),
    Claim(Target(Level.QOS_CLASS, "BestEffort"), "cpu.cfs_quota_us", Role.SET, -1),
    Claim(Target(Level.CONTAINER, "c"), "cpu.cfs_quota_us", Role.ADD, 5_000, 300_000, "throttled"),
    Claim(Target(Level.POD, "u"), "cpu.cfs_burst_us", Role.SET, 0),
    Claim(Target(Level.HOST_APPLICATION, "nginx"), "cpu.shares", Role.AT_MOST, 2),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.target.level}-{claim.role}")
def test_a_claim_comes_back_as_it_was_sent(claim: Claim) -> None:
    sent = api_pb2.Claim.FromString(claim_message(claim).SerializeToString())
    assert list(claims_of([sent])) == [claim]


def test_claims_that_are_not_known_here_are_left_out() -> None:
    of_other_role, without_target = claim_message(CLAIMS[1]), claim_message(CLAIMS[1])
    of_other_role.key.role = api_pb2.ExplainedClaim.ROLE_SCALE
    without_target.key.ClearField("target")
    neutral = claim_message(CLAIMS[1])
    neutral.ClearField("value")
    assert list(claims_of([of_other_role, without_target, neutral])) == []


def test_a_long_reason_is_cut_at_a_letter() -> None:
    message = claim_message(CLAIMS[0]._replace(reason="é" * 200))
    assert message.reason == "é" * 128
