"""The merge of layers, and that each value's provenance names its layer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.loading import load
from runtimeproxy.slo.schema import (
    PRODUCT_DEFAULTS,
    CgroupBase,
    CgroupPath,
    CpuBurstPolicy,
    CpuBurstStrategy,
    CpuQoS,
    HostApplication,
    MemoryQoSStrategy,
    ModelRatio,
    NetworkQoS,
    ResctrlQoS,
)
from runtimeproxy.slo.strategies import Layer, Strategies
from tests.slo.configs import FILE, good, loaded

GOLD = {"nodeSelector": {"matchLabels": {"pool": "gold"}}}
ON_GOLD = {"pool": "gold"}


def burst(**values: object) -> CpuBurstStrategy:
    return CpuBurstStrategy(**values)  # type: ignore[arg-type]


def test_v209_a_cluster_strategy_replaces_its_fields_only() -> None:
    result = good({"cpu-burst-config": {"clusterStrategy": {"cfsQuotaBurstPeriodSeconds": 120}}}).strategies
    assert result.cpu_burst == CpuBurstStrategy(
        policy=CpuBurstPolicy.NONE,
        cpu_burst_percent=1_000,
        cfs_quota_burst_percent=300,
        cfs_quota_burst_period_seconds=120,
        share_pool_threshold_percent=50,
    )
    by = result.provenance_of("cpu_burst.cfs_quota_burst_period_seconds")
    assert str(by) == f"cluster strategy of cpu-burst-config in {FILE}"
    assert str(result.provenance_of("cpu_burst.policy")) == "default"


def test_v210_the_first_matching_node_strategy_wins_entirely() -> None:
    config = {
        "clusterStrategy": {"cpuBurstPercent": 500},
        "nodeStrategies": [
            {"name": "gold", **GOLD, "policy": "auto"},
            {"name": "late", "nodeSelector": {"matchLabels": {"disk": "ssd"}}, "cfsQuotaBurstPercent": 200},
        ],
    }
    result = loaded({"cpu-burst-config": config}, labels={"pool": "gold", "disk": "ssd"})
    assert result.strategies.cpu_burst == burst(policy=CpuBurstPolicy.AUTO, cpu_burst_percent=500)
    (problem,) = result.problems
    assert str(problem) == (
        f"{FILE}: cpu-burst-config: nodeStrategies has several that match this node: gold, late; "
        "the first one is used"
    )
    assert str(result.strategies.provenance_of("cpu_burst.policy")) == (
        f"node strategy gold of cpu-burst-config in {FILE}"
    )
    elsewhere = good({"cpu-burst-config": config}, labels={"disk": "hdd"}).strategies
    assert elsewhere.cpu_burst == burst(cpu_burst_percent=500)


def test_v211_a_text_that_is_no_json_keeps_the_previous_strategy() -> None:
    before = good({"cpu-burst-config": {"clusterStrategy": {"policy": "auto"}}})
    after = loaded({"cpu-burst-config": "{", "system-config": {"clusterStrategy": {}}}, previous=before)
    assert after.strategies.cpu_burst == before.strategies.cpu_burst
    (problem,) = after.problems
    assert (problem.file, problem.key, problem.is_warning) == (FILE, "cpu-burst-config", False)
    # And it is kept for as long as it takes, for another node's labels, too.
    assert loaded({"cpu-burst-config": "{"}, previous=after).strategies == after.strategies


def test_v212_an_absent_key_is_the_default_whatever_was_before() -> None:
    before = good({"cpu-burst-config": {"clusterStrategy": {"policy": "auto"}}})
    assert loaded({}, previous=before).strategies == Strategies(pod_basis=loaded({}).strategies.pod_basis)
    assert loaded({}, previous=before).good == {}


def test_a_bad_key_without_a_previous_one_is_absent_and_others_count() -> None:
    result = loaded(
        {
            "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 0}},
            "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 88}},
        }
    )
    assert result.strategies.cpu_burst == CpuBurstStrategy()
    assert result.strategies.system.min_free_kbytes_factor == 88


def test_disabled_classes_hold_the_values_that_switch_them_off() -> None:
    ls = {"cpuQOS": {"groupIdentity": 1}, "memoryQOS": {"enable": True, "wmarkRatio": 90}}
    config = {
        "clusterStrategy": {"lsClass": ls, "systemClass": {"cpuQOS": {"groupIdentity": 1}}},
        "nodeStrategies": [{"name": "gold", **GOLD, "lsClass": {"memoryQOS": {"enable": False}}}],
    }
    result = good({"resource-qos-config": config}).strategies
    assert result.qos.ls_class.cpu_qos == CpuQoS()
    assert str(result.provenance_of("qos.ls_class.cpu_qos.group_identity")) == "disabled by default"
    assert result.qos.ls_class.memory_qos == MemoryQoSStrategy(
        enable=True, wmark_ratio=90, wmark_scale_permill=20, wmark_min_adj=-25
    )
    assert result.qos.system_class.cpu_qos.group_identity == 1
    gold = good({"resource-qos-config": config}, labels=ON_GOLD).strategies
    assert gold.qos.ls_class.memory_qos == MemoryQoSStrategy()
    assert str(gold.provenance_of("qos.ls_class.memory_qos.wmark_ratio")) == (
        f"disabled by node strategy gold of resource-qos-config in {FILE}"
    )


@pytest.mark.parametrize(
    ("name", "key", "identity", "wmark", "cat_end"),
    [
        ("lsr_class", "lsrClass", 2, (95, 20, -25), 100),
        ("ls_class", "lsClass", 2, (95, 20, -25), 100),
        ("be_class", "beClass", -1, (95, 20, 50), 30),
        ("system_class", "systemClass", 0, (0, 50, 0), 100),
    ],
)
def test_an_enabled_class_has_koordinators_defaults(
    name: str, key: str, identity: int, wmark: tuple[int, int, int], cat_end: int
) -> None:
    enabled = {part: {"enable": True} for part in ("cpuQOS", "memoryQOS", "resctrlQOS", "networkQOS")}
    strategy = good({"resource-qos-config": {"clusterStrategy": {key: enabled}}}).strategies
    qos = getattr(strategy.qos, name)
    assert qos.cpu_qos.group_identity == identity
    memory = qos.memory_qos
    assert (memory.wmark_ratio, memory.wmark_scale_permill, memory.wmark_min_adj) == wmark
    assert memory.min_limit_percent == memory.low_limit_percent == memory.throttling_percent == 0
    assert qos.resctrl_qos == ResctrlQoS(enable=True, cat_range_end_percent=cat_end)
    assert qos.network_qos == NetworkQoS(enable=True)


def test_the_nodes_own_words_stand_above_all_strategies() -> None:
    keys = {
        "system-config": {"clusterStrategy": {"totalNetworkBandwidth": "1G"}},
        "colocation-config": {"cpuReclaimThresholdPercent": 50, "memoryReclaimThresholdPercent": 50},
        "cpu-normalization-config": {"enable": True, "defaultRatio": 1.2},
    }
    labels = {
        "node.koordinator.sh/cpu-reclaim-ratio": "0.29",
        "node.koordinator.sh/mid-static-memory-reserved-ratio": "0.1",
        "node.koordinator.sh/cpu-normalization-enabled": "false",
    }
    annotations = {
        "node.koordinator.sh/network-bandwidth": "10G",
        "node.koordinator.sh/colocation-strategy": '{"memoryReclaimThresholdPercent": 70, "enable": true}',
    }
    result = good(keys, labels=labels, annotations=annotations).strategies
    assert result.system.total_network_bandwidth == 10**10
    assert result.colocation.cpu_reclaim_threshold_percent == 28  # as int64(0.29 * 100) in Go
    assert result.colocation.memory_reclaim_threshold_percent == 70
    assert result.colocation.mid_static_memory_reserved_percent == 10
    assert result.colocation.enable
    assert not result.cpu_normalization.enable
    assert result.cpu_normalization.default_ratio == 1.2
    assert str(result.provenance_of("cpu_normalization.enable")) == (
        "node label node.koordinator.sh/cpu-normalization-enabled"
    )
    assert result.provenance_of("system.total_network_bandwidth").source is Layer.NODE_ANNOTATION


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({"node.koordinator.sh/cpu-reclaim-ratio": "much"}, {}),
        ({"node.koordinator.sh/cpu-reclaim-ratio": "nan"}, {}),
        ({"node.koordinator.sh/cpu-reclaim-ratio": "-1"}, {}),
        ({"node.koordinator.sh/mid-static-cpu-reserved-ratio": "1.1"}, {}),
        ({"node.koordinator.sh/cpu-normalization-enabled": "yes"}, {}),
        ({}, {"node.koordinator.sh/network-bandwidth": "fast"}),
        ({}, {"node.koordinator.sh/network-bandwidth": "-1"}),
        ({}, {"node.koordinator.sh/colocation-strategy": "{"}),
        ({}, {"node.koordinator.sh/colocation-strategy": '{"degradeTimeMinutes": 0}'}),
        ({}, {"node.koordinator.sh/colocation-strategy": "x" * 1_000_000}),
    ],
)
def test_invalid_labels_and_annotations_of_a_node_are_reported_and_ignored(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    result = loaded({}, labels=labels, annotations=annotations)
    assert result.strategies == loaded({}).strategies
    (problem,) = result.problems
    assert problem.key in labels or problem.key in annotations
    assert problem.is_warning
    assert len(str(problem)) < 300


def test_host_applications_are_replaced_not_merged() -> None:
    nginx = {
        "name": "nginx",
        "priority": "koord-prod",
        "qos": "LS",
        "cgroupPath": {"base": "CgroupRoot", "parentDir": "host", "relativePath": "nginx"},
    }
    config = {
        "applications": [nginx],
        "nodeConfigs": [{"name": "gold", **GOLD, "applications": [{"name": "log", "qos": "BE"}]}],
    }
    cluster = good({"host-application-config": config}).strategies
    path = CgroupPath(base=CgroupBase.CGROUP_ROOT, parent_dir="host", relative_path="nginx")
    assert cluster.host_applications == (
        HostApplication(name="nginx", priority="koord-prod", qos=QoSClass.LS, cgroup_path=path),
    )
    assert cluster.provenance_of("host_applications").source is Layer.CLUSTER
    gold = good({"host-application-config": config}, labels=ON_GOLD).strategies
    assert gold.host_applications == (HostApplication(name="log", qos=QoSClass.BE),)
    assert gold.provenance_of("host_applications").strategy == "gold"
    none = {**config, "nodeConfigs": [{"name": "gold", **GOLD}]}
    assert good({"host-application-config": none}, labels=ON_GOLD).strategies.host_applications == ()


def test_mappings_merge_and_their_entries_are_replaced() -> None:
    config = {
        "ratioModel": {
            "Xeon 8369B": {"baseRatio": 1.5, "turboEnabledRatio": 1.6},
            "EPYC 7H12": {"baseRatio": 2},
        },
        "nodeConfigs": [{"name": "gold", **GOLD, "ratioModel": {"Xeon 8369B": {"baseRatio": 1.1}}}],
    }
    result = good({"cpu-normalization-config": config}, labels=ON_GOLD).strategies
    assert result.cpu_normalization.ratio_model == {
        "Xeon 8369B": ModelRatio(base_ratio=1.1),
        "EPYC 7H12": ModelRatio(base_ratio=2.0),
    }
    assert result.provenance_of("cpu_normalization.ratio_model.Xeon 8369B").strategy == "gold"


def test_lists_are_replaced() -> None:
    block = {"name": "/dev/vda", "type": "device", "ioCfg": {"readIOPS": 100}}
    config = {
        "clusterStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": [block, block]}}},
        "nodeStrategies": [{"name": "gold", **GOLD, "beClass": {"blkioQOS": {"blocks": [block]}}}],
    }
    result = good({"resource-qos-config": config}, labels=ON_GOLD).strategies
    assert len(result.qos.be_class.blkio_qos.blocks) == 1
    assert result.qos.be_class.blkio_qos.enable
    assert result.qos.be_class.blkio_qos.blocks[0].io_cfg.read_iops == 100


NODE_SLO: dict[str, object] = {
    "cpuBurstStrategy": {"policy": "auto"},
    "hostApplications": [{"name": "nginx", "qos": "LS"}],
    "extensions": {"any": 1},
}


def test_a_section_of_a_node_slo_stands_in_the_place_of_cluster_and_node_strategies() -> None:
    keys = {
        "cpu-burst-config": {
            "clusterStrategy": {"cpuBurstPercent": 200},
            "podStrategies": [{"name": "web", "namespace": "prod", "cpuBurstPercent": 50}],
        },
        "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 88}},
    }
    result = loaded(keys, node_slo=NODE_SLO)
    assert result.strategies.cpu_burst == burst(policy=CpuBurstPolicy.AUTO)
    assert result.strategies.system.min_free_kbytes_factor == 88
    assert [each.name for each in result.strategies.host_applications] == ["nginx"]
    assert str(result.strategies.provenance_of("cpu_burst.policy")) == (
        "NodeSLO cpuBurstStrategy in /etc/node.d/nodeslo.yaml"
    )
    assert result.strategies.pod_basis is not None
    assert [each.name for each in result.strategies.pod_basis.burst_rules] == ["web"]
    assert [(each.key, each.is_warning) for each in result.problems] == [("cpuBurstStrategy", True)]


def test_a_bad_section_of_a_node_slo_keeps_the_last_good_one() -> None:
    before = loaded({}, node_slo=NODE_SLO)
    bad = {**NODE_SLO, "cpuBurstStrategy": {"policy": "sometimes"}}
    after = loaded({}, node_slo=bad, previous=before)
    assert after.strategies == before.strategies
    (problem,) = after.problems
    assert str(problem) == (
        '/etc/node.d/nodeslo.yaml: cpuBurstStrategy: policy is "sometimes", '
        "which is not one of none, cpuBurstOnly, cfsQuotaBurstOnly, auto"
    )
    assert loaded({}, previous=after).strategies == loaded({}).strategies


def test_unknown_sections_of_a_node_slo_are_named() -> None:
    result = loaded({}, node_slo={"cpuburststrategy": {"policy": "auto"}, "extensions": {}})
    assert [(each.key, each.path, each.is_warning) for each in result.problems] == [
        ("NodeSLO", "spec.cpuburststrategy", True)
    ]
    assert result.strategies == loaded({}).strategies


_PERCENT = st.integers(0, 100)
_LAYER = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from([str(each) for each in CpuBurstPolicy]),
        "cpuBurstPercent": st.integers(1, 10_000),
        "cfsQuotaBurstPercent": st.integers(100, 500),
        "cfsQuotaBurstPeriodSeconds": st.integers(-1, 500),
        "sharePoolThresholdPercent": _PERCENT,
    },
)
_NAMES = {
    "policy": "policy",
    "cpuBurstPercent": "cpu_burst_percent",
    "cfsQuotaBurstPercent": "cfs_quota_burst_percent",
    "cfsQuotaBurstPeriodSeconds": "cfs_quota_burst_period_seconds",
    "sharePoolThresholdPercent": "share_pool_threshold_percent",
}


@given(_LAYER, _LAYER, st.booleans())
def test_each_field_comes_from_the_highest_layer_that_sets_it(
    cluster: dict[str, Any], node: dict[str, Any], is_gold: bool
) -> None:
    config = {"clusterStrategy": cluster, "nodeStrategies": [{"name": "gold", **GOLD, **node}]}
    result = good({"cpu-burst-config": config}, labels=ON_GOLD if is_gold else {}).strategies
    default = CpuBurstStrategy()
    for key, name in _NAMES.items():
        value, source = getattr(default, name), Layer.DEFAULT
        if key in cluster:
            value, source = cluster[key], Layer.CLUSTER
        if is_gold and key in node:
            value, source = node[key], Layer.NODE
        assert getattr(result.cpu_burst, name) == value
        assert result.provenance_of(f"cpu_burst.{name}").source is source


_MEMORY = st.fixed_dictionaries(
    {}, optional={"enable": st.booleans(), "minLimitPercent": _PERCENT, "wmarkRatio": _PERCENT}
)


@given(_MEMORY, _MEMORY)
def test_disabling_is_the_last_step_of_the_merge(cluster: dict[str, Any], node: dict[str, Any]) -> None:
    config = {
        "clusterStrategy": {"beClass": {"memoryQOS": cluster}},
        "nodeStrategies": [{"name": "gold", **GOLD, "beClass": {"memoryQOS": node}}],
    }
    memory = good({"resource-qos-config": config}, labels=ON_GOLD).strategies.qos.be_class.memory_qos
    merged = cluster | node
    if merged.get("enable"):
        default = PRODUCT_DEFAULTS.be_class.memory_qos
        assert memory.min_limit_percent == merged.get("minLimitPercent", default.min_limit_percent)
        assert memory.wmark_ratio == merged.get("wmarkRatio", default.wmark_ratio)
    else:
        assert memory == MemoryQoSStrategy()


@given(_LAYER, _LAYER)
def test_loading_again_changes_nothing(cluster: dict[str, Any], node: dict[str, Any]) -> None:
    config = {"clusterStrategy": cluster, "nodeStrategies": [{"name": "gold", **GOLD, **node}]}
    once = good({"cpu-burst-config": config}, labels=ON_GOLD)
    again = loaded({"cpu-burst-config": config}, labels=ON_GOLD, previous=once)
    assert again == once
    assert again.strategies.provenance == once.strategies.provenance


def test_system_defaults_are_koordinators() -> None:
    system = good({"system-config": {"clusterStrategy": {"minFreeKbytesFactor": 88}}}).strategies.system
    assert (system.min_free_kbytes_factor, system.watermark_scale_factor) == (88, 150)
    assert Strategies().system.min_free_kbytes_factor == 100
    assert (system.memcg_reap_back_ground, system.total_network_bandwidth) == (0, 0)
    assert system.sched_group_identity_enabled is None


def test_nothing_configured_is_the_default() -> None:
    result = load({})
    assert result.problems == ()
    assert result.strategies.qos == Strategies().qos
    assert result.strategies.cpu_burst == CpuBurstStrategy()
    assert not result.strategies.threshold.enable
