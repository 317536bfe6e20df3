"""What strategies and annotations say for one pod, and where each value comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.slo.schema import (
    PRODUCT_DEFAULTS,
    BlockType,
    ClassQoS,
    CpuBurstPolicy,
    CpuBurstStrategy,
    CpuQoS,
    MemoryQoSStrategy,
    PodEviction,
    PodNetwork,
    PodResctrl,
    QoSStrategy,
)
from runtimeproxy.slo.strategies import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_LENGTH,
    Layer,
    PodStrategy,
    Strategies,
)
from tests.slo.configs import FILE, good, pod

CPU_BURST = "koordinator.sh/cpuBurst"
CPU_QOS = "koordinator.sh/cpuQOS"
MEMORY_QOS = "koordinator.sh/memoryQOS"
NETWORK_QOS = "koordinator.sh/networkQOS"
BLKIO_QOS = "koordinator.sh/blkioQOS"
RESCTRL = "node.koordinator.sh/resctrl"
EVICTION_POLICY = "koordinator.sh/eviction-policy"
EVICTION_PRIORITY = "koordinator.sh/eviction-priority"
EVICTION_ENABLED = "koordinator.sh/eviction-enabled"


def strategies(**keys: object) -> Strategies:
    return good({key.replace("_", "-"): value for key, value in keys.items()}).strategies


def enabled(*parts: str) -> dict[str, object]:
    """A `resource-qos-config` in which all classes have these parts enabled."""
    of_class = {part: {"enable": True} for part in parts}
    return {"clusterStrategy": dict.fromkeys(("lsrClass", "lsClass", "beClass"), of_class)}


def burst_rule(**item: object) -> dict[str, object]:
    return {"clusterStrategy": {"policy": "auto"}, "podStrategies": [{"name": "web", **item}]}


# CPU burst


def test_v098_an_annotation_replaces_its_fields_of_the_nodes_config() -> None:
    node = {
        "policy": "auto",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": 600,
    }
    result = strategies(cpu_burst_config={"clusterStrategy": node}).for_pod(
        pod("LS", {CPU_BURST: {"policy": "cpuBurstOnly", "cpuBurstPercent": 500}})
    )
    assert result.cpu_burst == CpuBurstStrategy(
        policy=CpuBurstPolicy.CPU_BURST_ONLY,
        cpu_burst_percent=500,
        cfs_quota_burst_percent=300,
        cfs_quota_burst_period_seconds=600,
    )
    assert str(result.provenance_of("cpu_burst.policy")) == f"annotation {CPU_BURST}"
    assert result.provenance_of("cpu_burst.cfs_quota_burst_percent").source is Layer.CLUSTER
    assert str(result.provenance_of("cpu_burst.share_pool_threshold_percent")) == "default"


def test_v100_a_pods_config_counts_without_a_nodes() -> None:
    result = Strategies().for_pod(pod("LS", {CPU_BURST: {"policy": "auto", "cpuBurstPercent": 500}}))
    assert result.cpu_burst == CpuBurstStrategy(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=500)
    assert result.problems == ()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '"auto"',
        '{"policy": "sometimes"}',
        '{"cpuBurstPercent": 0}',
        '{"cpuBurstPercent": 10001}',
        '{"cpuBurstPercent": "500"}',
        '{"cfsQuotaBurstPercent": 99}',
        '{"cfsQuotaBurstPeriodSeconds": -2}',
        "[" * 50_000,
        "x" * 1_000_000,
        '{"policy": "auto", "cpuBurstPercent": ' + "9" * 5_000 + "}",
    ],
)
def test_an_invalid_cpu_burst_annotation_is_reported_and_the_nodes_config_counts(text: str) -> None:
    node = strategies(cpu_burst_config={"clusterStrategy": {"policy": "auto"}})
    result = node.for_pod(pod("LS", {CPU_BURST: text}))
    assert result.cpu_burst == node.cpu_burst
    (problem,) = result.problems
    assert (problem.key, problem.file) == (CPU_BURST, "")
    assert len(str(problem)) < 300


def test_an_unknown_field_of_an_annotation_is_ignored() -> None:
    result = Strategies().for_pod(pod("LS", {CPU_BURST: {"policy": "auto", "future": 1}}))
    assert result.cpu_burst.policy == "auto"
    assert [each.is_warning for each in result.problems] == [True]


@pytest.mark.parametrize(
    ("key", "annotation", "reason"),
    [
        (
            CPU_BURST,
            {"policy": "auto", "sharePoolThresholdPercent": 60},
            "sharePoolThresholdPercent is a threshold of the node, not of a pod, and is not used",
        ),
        (
            NETWORK_QOS,
            {"Enable": False, "ingressLimit": "10M"},
            "Enable applies to a whole class, and is not used",
        ),
    ],
)
def test_a_field_of_the_nodes_strategy_in_an_annotation_is_ignored(
    key: str, annotation: Mapping[str, object], reason: str
) -> None:
    """Koordlet reads an annotation into a type without it."""
    result = Strategies().for_pod(pod("LS", {key: annotation}))
    if key == CPU_BURST:
        assert result.cpu_burst == CpuBurstStrategy(policy=CpuBurstPolicy.AUTO)
    else:
        assert result.network_qos == PodNetwork(ingress_limit=10_000_000)
    (problem,) = result.problems
    assert (str(problem), problem.is_warning) == (f"{key}: {reason}", True)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"namespace": "prod", "cpuBurstPercent": 50}, True),
        ({"namespace": "dev", "cpuBurstPercent": 50}, False),
        ({"podSelector": {"matchLabels": {"app": "web"}}, "cpuBurstPercent": 50}, True),
        ({"podSelector": {"matchLabels": {"app": "db"}}, "cpuBurstPercent": 50}, False),
        (
            {"namespace": "prod", "podSelector": {"matchLabels": {"app": "db"}}, "cpuBurstPercent": 50},
            False,
        ),
        ({"namespace": "prod", "cpuBurstConfig": {"cpuBurstPercent": 50}}, True),
        ({"namespace": "prod", "cpuBurstStrategy": {"cpuBurstPercent": 50}}, True),
        ({"namespace": "prod", "strategy": {"cpuBurstPercent": 50}}, True),
        (
            {"namespace": "prod", "nodeSelector": {"matchLabels": {"no": "where"}}, "cpuBurstPercent": 50},
            False,
        ),
    ],
)
def test_a_pod_strategy_counts_for_its_pods(item: dict[str, object], expected: bool) -> None:
    result = strategies(cpu_burst_config=burst_rule(**item)).for_pod(pod("LS", app="web"))
    assert result.cpu_burst.cpu_burst_percent == (50 if expected else 1_000)
    assert result.cpu_burst.policy == "auto"
    if expected:
        assert str(result.provenance_of("cpu_burst.cpu_burst_percent")) == (
            f"pod strategy web of cpu-burst-config in {FILE}"
        )


def test_the_first_matching_pod_strategy_counts_alone() -> None:
    rules = [
        {"namespace": "prod", "cpuBurstPercent": 50},
        {"namespace": "prod", "cpuBurstPercent": 60, "cfsQuotaBurstPercent": 200},
    ]
    result = strategies(cpu_burst_config={"podStrategies": rules}).for_pod(pod())
    assert (result.cpu_burst.cpu_burst_percent, result.cpu_burst.cfs_quota_burst_percent) == (50, 300)
    assert result.provenance_of("cpu_burst.cpu_burst_percent").strategy == "podStrategies[0]"


@pytest.mark.parametrize(("is_override", "percent", "policy"), [(False, 70, "none"), (True, 50, "auto")])
def test_override_pod_ignores_the_annotation(is_override: bool, percent: int, policy: str) -> None:
    rule = burst_rule(namespace="prod", cpuBurstPercent=50, overridePod=is_override)
    annotation = {"policy": "none", "cpuBurstPercent": 70}
    result = strategies(cpu_burst_config=rule).for_pod(pod("LS", {CPU_BURST: annotation}))
    assert (result.cpu_burst.cpu_burst_percent, result.cpu_burst.policy) == (percent, policy)


def test_override_pod_counts_for_the_parts_that_the_strategy_sets() -> None:
    rule = {"name": "web", "namespace": "prod", "overridePod": True, "memoryQOS": {"minLimitPercent": 30}}
    config = {**enabled("cpuQOS", "memoryQOS"), "podStrategies": [rule]}
    result = strategies(resource_qos_config=config).for_pod(
        pod("LS", {MEMORY_QOS: {"policy": "none"}, CPU_QOS: {"enable": True, "groupIdentity": -1}})
    )
    assert result.memory_qos.min_limit_percent == 30
    assert result.cpu_qos.group_identity == -1


# Group identity

IDENTITIES = {
    "clusterStrategy": {
        "lsrClass": {"cpuQOS": {"enable": True, "groupIdentity": 2}},
        "lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 1}},
        "beClass": {"cpuQOS": {"enable": True}},
        "systemClass": {"cpuQOS": {"enable": True, "groupIdentity": 2}},
    }
}
G, B, E = KubeQoSClass.GUARANTEED, KubeQoSClass.BURSTABLE, KubeQoSClass.BEST_EFFORT


@pytest.mark.parametrize(
    ("qos", "kube_qos", "identity"),
    [
        ("LSE", G, 2),
        ("LSR", G, 2),
        ("LS", B, 1),
        ("BE", E, -1),
        ("SYSTEM", G, 2),
        ("SYSTEM", B, 1),
        ("SYSTEM", E, -1),
        ("", G, 2),
        ("", B, 1),
        ("", E, -1),
    ],
)
def test_the_class_of_a_pods_group_identity(qos: str, kube_qos: KubeQoSClass, identity: int) -> None:
    result = strategies(resource_qos_config=IDENTITIES).for_pod(pod(qos, kube_qos=kube_qos))
    assert result.cpu_qos.group_identity == identity


def test_a_guaranteed_pod_has_the_class_that_is_enabled() -> None:
    only_ls = {"clusterStrategy": {"lsClass": {"cpuQOS": {"enable": True, "groupIdentity": 1}}}}
    assert strategies(resource_qos_config=only_ls).for_pod(pod("", kube_qos=G)).cpu_qos.group_identity == 1
    assert strategies(resource_qos_config=only_ls).for_pod(pod("LSR", kube_qos=G)).cpu_qos.group_identity == 0
    assert Strategies().for_pod(pod("", kube_qos=G)).cpu_qos == CpuQoS()


@pytest.mark.parametrize(
    ("qos", "annotation", "identity"),
    [
        ("LS", {"enable": True, "groupIdentity": -1}, -1),
        ("LS", {"enable": True}, 1),
        ("LS", {"enable": False, "groupIdentity": -1}, 0),
        ("LS", {"groupIdentity": -1}, 0),
        ("LS", None, 0),
        ("LS", {"enable": True, "groupIdentity": 3}, None),
        ("LS", "{", None),
        ("BE", {"enable": True, "groupIdentity": 2}, -1),
        ("LSR", {"enable": True, "groupIdentity": -1}, 2),
        ("", {"enable": True, "groupIdentity": -1}, 1),
    ],
)
def test_the_annotation_of_cpu_qos_counts_for_ls(qos: str, annotation: object, identity: int | None) -> None:
    result = strategies(resource_qos_config=IDENTITIES).for_pod(pod(qos, {CPU_QOS: annotation}))
    assert result.cpu_qos.group_identity == identity
    assert [each.key for each in result.problems] == ([CPU_QOS] if identity is None else [])
    if qos == "LS" and annotation != {"enable": True}:
        assert result.provenance_of("cpu_qos.group_identity").source is Layer.ANNOTATION


@pytest.mark.parametrize("annotation", [{"enable": False}, {}, {"groupIdentity": 1}])
def test_the_annotation_that_disables_group_identity_is_its_source(annotation: dict[str, object]) -> None:
    result = strategies(resource_qos_config=enabled("cpuQOS")).for_pod(pod("LS", {CPU_QOS: annotation}))
    assert result.cpu_qos == CpuQoS()
    assert str(result.provenance_of("cpu_qos.enable")) == f"annotation {CPU_QOS}"
    assert str(result.provenance_of("cpu_qos.group_identity")) == f"disabled by annotation {CPU_QOS}"


def test_a_pod_strategy_enables_and_disables_group_identity() -> None:
    on = {"name": "on", "namespace": "prod", "cpuQOS": {"enable": True, "groupIdentity": 1}}
    off = {"name": "off", "namespace": "dev", "cpuQOS": {"enable": False}}
    config = {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True}}}, "podStrategies": [on, off]}
    node = strategies(resource_qos_config=config)
    assert node.for_pod(pod("LS")).cpu_qos == CpuQoS(enable=True, group_identity=1, core_expeller=True)
    result = node.for_pod(pod("BE", namespace="dev"))
    assert result.cpu_qos == CpuQoS()
    assert str(result.provenance_of("cpu_qos.group_identity")) == (
        f"disabled by pod strategy off of resource-qos-config in {FILE}"
    )


# Memory QoS


@pytest.mark.parametrize(
    ("qos", "kube_qos", "name"),
    [
        ("LSE", G, "lsr_class"),
        ("LSR", G, "lsr_class"),
        ("LS", B, "ls_class"),
        ("BE", E, "be_class"),
        ("", G, "lsr_class"),
        ("", B, "ls_class"),
        ("", E, "be_class"),
    ],
)
def test_v149_policy_auto_has_koordinators_defaults_of_the_class(
    qos: str, kube_qos: KubeQoSClass, name: str
) -> None:
    result = Strategies().for_pod(pod(qos, {MEMORY_QOS: {"policy": "auto"}}, kube_qos=kube_qos))
    default = getattr(PRODUCT_DEFAULTS, name).memory_qos
    assert result.memory_qos.enable
    assert result.memory_qos.wmark_min_adj == default.wmark_min_adj
    assert (result.memory_qos.wmark_ratio, result.memory_qos.wmark_scale_permill) == (95, 20)
    assert result.provenance_of("memory_qos.wmark_ratio").source is Layer.ANNOTATION


def test_v151_v152_none_and_system_have_the_values_that_switch_it_off() -> None:
    node = strategies(resource_qos_config=enabled("memoryQOS"))
    assert node.for_pod(pod("SYSTEM")).memory_qos == MemoryQoSStrategy()
    assert node.for_pod(pod("LS")).memory_qos == PRODUCT_DEFAULTS.ls_class.memory_qos.__class__(
        enable=True, wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25
    )
    none = node.for_pod(pod("LS", {MEMORY_QOS: {"policy": "none", "minLimitPercent": 50}}))
    assert none.memory_qos == MemoryQoSStrategy()
    assert str(none.provenance_of("memory_qos.min_limit_percent")) == f"disabled by annotation {MEMORY_QOS}"


@pytest.mark.parametrize(
    "annotation", [{"policy": "default", "lowLimitPercent": 20}, {"lowLimitPercent": 20}]
)
def test_policy_default_lays_the_fields_over_the_class(annotation: dict[str, object]) -> None:
    config = {"clusterStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}}}
    result = strategies(resource_qos_config=config).for_pod(pod("LS", {MEMORY_QOS: annotation}))
    assert (result.memory_qos.min_limit_percent, result.memory_qos.low_limit_percent) == (50, 20)
    of_disabled = Strategies().for_pod(pod("LS", {MEMORY_QOS: annotation})).memory_qos
    assert of_disabled == MemoryQoSStrategy(enable=True, low_limit_percent=20)


def test_policy_default_alone_changes_nothing() -> None:
    result = Strategies().for_pod(pod("LS", {MEMORY_QOS: {"policy": "default"}}))
    assert result.memory_qos == MemoryQoSStrategy()


@pytest.mark.parametrize(
    "text", ["{", '{"policy": "max"}', '{"minLimitPercent": 101}', '{"wmarkMinAdj": -26}']
)
def test_an_invalid_memory_qos_annotation_is_reported_and_the_class_counts(text: str) -> None:
    node = strategies(resource_qos_config=enabled("memoryQOS"))
    result = node.for_pod(pod("LS", {MEMORY_QOS: text}))
    assert result.memory_qos == node.qos.ls_class.memory_qos
    assert [each.key for each in result.problems] == [MEMORY_QOS]


# resctrl, network, block I/O, eviction


def test_the_class_of_resctrl() -> None:
    node = strategies(resource_qos_config=enabled("resctrlQOS"))
    assert [
        node.for_pod(pod(qos)).resctrl_qos.class_name for qos in ("LSE", "LSR", "LS", "BE", "SYSTEM", "")
    ] == ["LSR", "LSR", "LS", "BE", "", "LS"]
    assert Strategies().for_pod(pod("LS")).resctrl_qos == PodResctrl()


def test_a_pod_strategy_names_the_class_of_resctrl() -> None:
    rule = {"name": "batch", "namespace": "prod", "resctrlQOS": {"className": "BE"}}
    result = strategies(resource_qos_config={**enabled("resctrlQOS"), "podStrategies": [rule]}).for_pod(
        pod("LS")
    )
    assert result.resctrl_qos.class_name == "BE"
    assert result.provenance_of("resctrl_qos.class_name").strategy == "batch"
    # A class that is not enabled has no group to join.
    off = strategies(resource_qos_config={"podStrategies": [rule]}).for_pod(pod("LS"))
    assert off.resctrl_qos == PodResctrl()


def test_the_annotation_of_resctrl_replaces_the_class() -> None:
    annotation = {
        "LLC": {"schemata": {"range": [0, 30]}, "schemataPerCache": [{"cacheid": 1, "range": [10, 50]}]},
        "mb": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheID": 1, "percent": 10}]},
    }
    node = strategies(resource_qos_config=enabled("resctrlQOS"))
    result = node.for_pod(pod("LS", {RESCTRL: annotation}))
    assert result.problems == ()
    assert result.resctrl_qos == PodResctrl(
        llc_range=(0, 30), llc_range_by_cache={1: (10, 50)}, mb_percent=20, mb_percent_by_cache={1: 10}
    )
    assert result.resctrl_qos.has_own_group
    assert not node.for_pod(pod("LS", {RESCTRL: {}})).resctrl_qos.has_own_group


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"llc": {"schemata": {"range": [30, 30]}}}',
        '{"llc": {"schemata": {"range": [30]}}}',
        '{"llc": {"schemata": {"range": [0, 101]}}}',
        '{"llc": {"schemata": {"range": [0, null]}}}',
        '{"llc": {"schemataPerCache": [{"cacheID": -1, "range": [0, 10]}]}}',
        '{"llc": {"schemataPerCache": [null]}}',
        '{"mb": {"schemata": {"percent": 101}}}',
        '{"mb": 3}',
    ],
)
def test_an_invalid_resctrl_annotation_is_reported_and_the_class_counts(text: str) -> None:
    result = strategies(resource_qos_config=enabled("resctrlQOS")).for_pod(pod("LS", {RESCTRL: text}))
    assert result.resctrl_qos == PodResctrl(class_name="LS")
    assert [each.key for each in result.problems] == [RESCTRL]


def test_network_limits() -> None:
    rule = {"name": "web", "namespace": "prod", "networkQOS": {"ingressLimit": "5M", "egressLimit": "6M"}}
    node = strategies(resource_qos_config={"podStrategies": [rule]})
    assert node.for_pod(pod()).network_qos == PodNetwork(ingress_limit=5_000_000, egress_limit=6_000_000)
    result = node.for_pod(pod("", {NETWORK_QOS: {"IngressLimit": "10M"}}))
    assert result.network_qos == PodNetwork(ingress_limit=10_000_000, egress_limit=6_000_000)
    assert result.provenance_of("network_qos.ingress_limit").source is Layer.ANNOTATION
    bad = Strategies().for_pod(pod("", {NETWORK_QOS: {"ingressLimit": "fast"}}))
    assert bad.network_qos == PodNetwork()
    assert [each.key for each in bad.problems] == [NETWORK_QOS]


def test_block_io_limits() -> None:
    block = {"name": "data", "type": "podvolume", "iocfg": {"readIOPS": 10, "ioWeightPercent": 40}}
    result = Strategies().for_pod(pod("LS", {BLKIO_QOS: {"blocks": [block]}}))
    assert result.blkio_qos.enable
    (got,) = result.blkio_qos.blocks
    assert (got.name, got.type, got.io_cfg.read_iops) == ("data", BlockType.POD_VOLUME, 10)
    bad = Strategies().for_pod(pod("LS", {BLKIO_QOS: {"blocks": [{**block, "type": "tape"}]}}))
    assert not bad.blkio_qos.enable
    assert [each.path for each in bad.problems] == ["blocks[0].type"]


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, PodEviction(is_enabled=True, allowed=frozenset({"MemoryEvict"}))),
        ({EVICTION_ENABLED: "false"}, {}, PodEviction(allowed=frozenset({"MemoryEvict"}))),
        ({EVICTION_ENABLED: "True"}, {}, PodEviction(allowed=frozenset({"MemoryEvict"}))),
        (
            {},
            {EVICTION_POLICY: '["BECPUEvict"]', EVICTION_PRIORITY: "-7"},
            PodEviction(is_enabled=True, allowed=frozenset({"BECPUEvict"}), priority=-7),
        ),
    ],
)
def test_eviction(labels: dict[str, Any], annotations: dict[str, object], expected: PodEviction) -> None:
    rule = {
        "name": "web",
        "namespace": "prod",
        "evictionEnabled": True,
        "evictionPolicy": ["MemoryEvict"],
    }
    node = strategies(resource_threshold_config={"podStrategies": [rule]})
    assert node.for_pod(pod("LS", annotations, **labels)).eviction == expected
    override = strategies(resource_threshold_config={"podStrategies": [{**rule, "overridePod": True}]})
    got = override.for_pod(pod("LS", annotations, **labels)).eviction
    assert (got.is_enabled, got.allowed) == (True, frozenset({"MemoryEvict"}))


@pytest.mark.parametrize("text", ["{", '"BECPUEvict"', "[1]", "null"])
def test_an_invalid_eviction_policy_allows_no_eviction(text: str) -> None:
    result = Strategies().for_pod(pod("BE", {EVICTION_POLICY: text}))
    assert not result.eviction.allows("BECPUEvict")
    assert [each.key for each in result.problems] == [EVICTION_POLICY]
    assert Strategies().for_pod(pod("BE")).eviction.allows("BECPUEvict")


@pytest.mark.parametrize(
    "text", ["", "x", "1_0", "2147483648", "9" * 10_000, "٣", "5\n", " 5", "0" * 31 + "5" + "x" * 9]
)
def test_an_invalid_eviction_priority_is_zero(text: str) -> None:
    result = Strategies().for_pod(pod("BE", {EVICTION_PRIORITY: text}))
    assert result.eviction.priority == 0
    assert [each.key for each in result.problems] == [EVICTION_PRIORITY]


# All together


def test_strategies_made_by_hand_count_for_pods() -> None:
    ls = ClassQoS(memory_qos=MemoryQoSStrategy(enable=True, min_limit_percent=50))
    node = Strategies(qos=QoSStrategy(ls_class=ls), cpu_burst=CpuBurstStrategy(policy=CpuBurstPolicy.AUTO))
    result = node.for_pod(pod("LS"))
    assert result.memory_qos.min_limit_percent == 50
    assert result.cpu_burst.policy == "auto"


def test_the_parts_that_pod_strategies_set() -> None:
    rule = {"name": "web", "namespace": "prod", "memoryQOS": {"minLimitPercent": 30}}
    elsewhere = {
        "name": "gold",
        "namespace": "prod",
        "nodeSelector": {"matchLabels": {"pool": "gold"}},
        "cpuQOS": {"enable": True},
    }
    node = strategies(
        cpu_burst_config=burst_rule(namespace="prod", cpuBurstPercent=50),
        resource_qos_config={"podStrategies": [rule, elsewhere]},
    )
    assert node.pod_parts == {"cpu_burst", "memory_qos"}
    assert strategies(resource_qos_config=enabled("cpuQOS")).pod_parts == frozenset()
    assert Strategies().pod_parts == frozenset()


def test_equal_pods_share_one_strategy() -> None:
    node = strategies(cpu_burst_config=burst_rule(namespace="prod", cpuBurstPercent=50))
    assert node.for_pod(pod("LS", app="a")) is node.for_pod(pod("LS", app="b"))
    assert node.for_pod(pod("LS")) is not node.for_pod(pod("LS", namespace="dev"))
    assert node.for_pod(pod("LS")) is not node.for_pod(pod("BE"))


def test_what_is_remembered_is_bounded() -> None:
    node = Strategies()
    first = node.for_pod(pod("LS", {CPU_BURST: {"cpuBurstPercent": 1}}))
    for number in range(2, MAX_REMEMBERED + 2):
        node.for_pod(pod("LS", {CPU_BURST: {"cpuBurstPercent": number}}))
    again = node.for_pod(pod("LS", {CPU_BURST: {"cpuBurstPercent": 1}}))
    assert again == first
    assert again is not first


def test_the_annotations_of_what_is_remembered_are_bounded_together() -> None:
    node = Strategies()

    def of(number: int, length: int) -> PodStrategy:
        text = json.dumps({"cpuBurstPercent": number, "x": "x" * length})
        return node.for_pod(pod("LS", {CPU_BURST: text}))

    most = MAX_REMEMBERED_LENGTH // 8 - 100
    first = of(1, most)
    assert of(1, most) is first
    for number in range(2, 11):
        of(number, most)
    again = of(1, most)
    assert again == first
    assert again is not first


@pytest.mark.parametrize("key", [CPU_BURST, MEMORY_QOS, RESCTRL, EVICTION_POLICY])
def test_an_annotation_has_no_more_values_than_its_schema_can_mean(key: str) -> None:
    """Each unknown key of 1,500 was looked up and reported: 6 to 15 ms a pod."""
    text = "[" + ",".join(["1"] * 514) + "]"
    annotations = Strategies().for_pod(pod("LS", {key: text}))
    assert [each.reason for each in annotations.problems if each.key == key] == ["has more than 512 values"]


def test_long_annotations_are_not_remembered() -> None:
    node = Strategies()
    long = json.dumps({"cpuBurstPercent": 7, "x": "x" * (MAX_REMEMBERED_LENGTH // 8)})
    first, second = (node.for_pod(pod("LS", {CPU_BURST: long})) for _ in range(2))
    assert first == second
    assert first is not second
    assert first.cpu_burst.cpu_burst_percent == 7


def test_a_rule_without_a_name_is_not_taken_for_one_that_is_named_as_its_place() -> None:
    rules = [
        {"name": "podStrategies[1]", "namespace": "prod", "policy": "auto"},
        {"namespace": "dev", "cpuBurstPercent": 7},
    ]
    node = strategies(cpu_burst_config={"podStrategies": rules})
    assert node.for_pod(pod("LS")).cpu_burst == CpuBurstStrategy(policy=CpuBurstPolicy.AUTO)
    assert node.for_pod(pod("LS", namespace="dev")).cpu_burst == CpuBurstStrategy(cpu_burst_percent=7)


def test_a_pod_strategy_disables_a_qos_of_system_pods() -> None:
    memory = {"memoryQOS": {"enable": True, "minLimitPercent": 30}}
    rule = {"name": "off", "namespace": "prod", "memoryQOS": {"enable": False}}
    config = {"clusterStrategy": {"systemClass": memory}, "podStrategies": [rule]}
    node = strategies(resource_qos_config=config)
    assert node.for_pod(pod("SYSTEM", namespace="dev")).memory_qos.min_limit_percent == 30
    assert node.for_pod(pod("SYSTEM")).memory_qos == MemoryQoSStrategy()


_BURST = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from([str(each) for each in CpuBurstPolicy]),
        "cpuBurstPercent": st.integers(1, 10_000),
        "cfsQuotaBurstPercent": st.integers(100, 1_000),
    },
)
_ATTRIBUTES = {
    "policy": "policy",
    "cpuBurstPercent": "cpu_burst_percent",
    "cfsQuotaBurstPercent": "cfs_quota_burst_percent",
}


@given(_BURST, _BURST, _BURST, _BURST, st.booleans())
def test_each_field_comes_from_the_highest_layer_that_sets_it(
    cluster: dict[str, Any],
    node: dict[str, Any],
    of_pod: dict[str, Any],
    annotation: dict[str, Any],
    is_override: bool,
) -> None:
    selector = {"matchLabels": {"pool": "gold"}}
    config: dict[str, Any] = {
        "clusterStrategy": cluster,
        "nodeStrategies": [{"name": "gold", "nodeSelector": selector, **node}],
    }
    if of_pod:
        rule = {"name": "web", "namespace": "prod", "overridePod": is_override, "cpuBurstConfig": of_pod}
        config["podStrategies"] = [rule]
    result = good({"cpu-burst-config": config}, labels={"pool": "gold"}).strategies.for_pod(
        pod("LS", {CPU_BURST: json.dumps(annotation)})
    )
    layers: list[tuple[Layer, dict[str, Any]]] = [
        (Layer.CLUSTER, cluster),
        (Layer.NODE, node),
        (Layer.POD, of_pod),
    ]
    if not (of_pod and is_override):
        layers.append((Layer.ANNOTATION, annotation))
    for key, name in _ATTRIBUTES.items():
        value, source = getattr(CpuBurstStrategy(), name), Layer.DEFAULT
        for layer, values in layers:
            if key in values:
                value, source = values[key], layer
        assert getattr(result.cpu_burst, name) == value
        assert result.provenance_of(f"cpu_burst.{name}").source is source


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["enable", "policy", "llc", "mb", "schemata", "range", "blocks", "ioCfg", "x"]),
            below,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                CPU_BURST,
                CPU_QOS,
                MEMORY_QOS,
                NETWORK_QOS,
                BLKIO_QOS,
                RESCTRL,
                EVICTION_POLICY,
                EVICTION_PRIORITY,
            ]
        ),
        _JSON | st.text(max_size=20),
    )
)
def test_whatever_annotations_say_a_pod_has_a_strategy(annotations: dict[str, object]) -> None:
    result = Strategies().for_pod(pod("LS", annotations))
    assert all(each.key in annotations for each in result.problems)
    assert -25 <= (result.memory_qos.wmark_min_adj or 0) <= 50
