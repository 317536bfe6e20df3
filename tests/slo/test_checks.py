"""Checks beyond single fields: selectors, bounds of two fields, network QoS, pod strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from runtimeproxy.slo.keys import MAX_STRATEGIES
from tests.slo.configs import FILE, good, loaded

POOL = {"matchLabels": {"pool": "gold"}}


def errors(key: str, config: object, **others: Any) -> list[tuple[str, str]]:
    result = loaded({key: config}, **others)
    return [(each.path, each.reason) for each in result.problems if not each.is_warning]


def nodes(*selectors: object) -> dict[str, object]:
    return {
        "nodeStrategies": [
            {"name": f"n{number}", "nodeSelector": selector} for number, selector in enumerate(selectors)
        ]
    }


@pytest.mark.parametrize("selector", [None, {}, {"matchLabels": {}}, {"matchExpressions": []}])
def test_a_node_strategy_needs_a_selector(selector: object) -> None:
    assert errors("cpu-burst-config", nodes(selector)) == [
        ("nodeStrategies[0].nodeSelector", "must be there, and not be empty")
    ]


@pytest.mark.parametrize(
    ("selector", "path"),
    [
        (3, ""),
        ({"matchLabels": 3}, ".matchLabels"),
        ({"matchLabels": {"pool": 3}}, ".matchLabels.pool"),
        ({"matchLabels": {"-pool": "x"}}, ".matchLabels.-pool"),
        ({"matchLabels": {"pool": "x y"}}, ".matchLabels.pool"),
        ({"matchLabel": {"pool": "x"}}, ".matchLabel"),
        ({"matchExpressions": {}}, ".matchExpressions"),
        ({"matchExpressions": [3]}, ".matchExpressions[0]"),
        ({"matchExpressions": [{"key": "a", "operator": "Has"}]}, ".matchExpressions[0].operator"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, ".matchExpressions[0].values"),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": "b"}]},
            ".matchExpressions[0].values",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]},
            ".matchExpressions[0].values",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            ".matchExpressions[0].values",
        ),
        (
            {"matchExpressions": [{"key": "a", "operator": "Exists", "value": "b"}]},
            ".matchExpressions[0].value",
        ),
        ({"matchExpressions": [{"operator": "Exists"}]}, ".matchExpressions[0].key"),
    ],
)
def test_selectors_that_kubernetes_would_refuse(selector: object, path: str) -> None:
    found = errors("cpu-burst-config", nodes(selector))
    assert found[0][0] == f"nodeStrategies[0].nodeSelector{path}"


@pytest.mark.parametrize(
    ("expression", "labels", "expected"),
    [
        ({"key": "pool", "operator": "In", "values": ["gold", "blue"]}, {"pool": "blue"}, True),
        ({"key": "pool", "operator": "NotIn", "values": ["gold"]}, {}, True),
        ({"key": "pool", "operator": "NotIn", "values": ["gold"]}, {"pool": "gold"}, False),
        ({"key": "pool", "operator": "Exists"}, {"pool": ""}, True),
        ({"key": "pool", "operator": "DoesNotExist"}, {"pool": ""}, False),
    ],
)
def test_selectors_have_kubernetes_full_syntax(
    expression: object, labels: dict[str, str], expected: bool
) -> None:
    strategy = {"name": "n", "nodeSelector": {"matchExpressions": [expression]}, "cpuBurstPercent": 7}
    result = good({"cpu-burst-config": {"nodeStrategies": [strategy]}}, labels=labels).strategies
    assert (result.cpu_burst.cpu_burst_percent == 7) is expected


def test_overlapping_selectors_are_refused() -> None:
    other = {"matchLabels": {"pool": "blue"}}
    wide = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gold", "red"]}]}
    assert errors("cpu-burst-config", nodes(POOL, other, wide)) == [
        ("nodeStrategies[2].nodeSelector", "can match the same nodes as that of nodeStrategies[0]")
    ]
    assert errors("cpu-burst-config", nodes(POOL, {"matchLabels": {"disk": "ssd"}})) == []
    # Without names, too; and inline keys call them nodeConfigs.
    config = {"nodeConfigs": [{"nodeSelector": POOL}, {"nodeSelector": POOL}]}
    assert errors("colocation-config", config) == [
        ("nodeConfigs[1].nodeSelector", "can match the same nodes as that of nodeConfigs[0]")
    ]


@pytest.mark.parametrize("key", ["host-application-config", "cpu-normalization-config"])
def test_keys_that_koordinators_webhook_does_not_check(key: str) -> None:
    configs = [{"name": "all", "nodeSelector": {}}, {"name": "none"}, {"name": "pool", "nodeSelector": POOL}]
    result = loaded({key: {"nodeConfigs": configs}}, labels={"pool": "gold"})
    assert [(each.path, each.is_warning) for each in result.problems] == [
        ("nodeConfigs[1].nodeSelector", True),
        ("nodeConfigs", True),
    ]
    assert result.problems[1].reason == "has several that match this node: all, pool; the first one is used"


def test_equal_names_are_a_warning() -> None:
    strategies = [
        {"name": "a", "nodeSelector": POOL},
        {"name": "a", "nodeSelector": {"matchLabels": {"pool": "blue"}}},
    ]
    result = loaded({"cpu-burst-config": {"nodeStrategies": strategies}})
    assert [(each.path, each.is_warning) for each in result.problems] == [("nodeStrategies[1].name", True)]


def test_more_strategies_than_can_be_compared_are_refused() -> None:
    many = [{"matchLabels": {"pool": f"p{number}"}} for number in range(MAX_STRATEGIES + 1)]
    assert errors("cpu-burst-config", nodes(*many)) == [
        ("nodeStrategies", "has 257 strategies, more than 256")
    ]
    assert errors("cpu-burst-config", nodes(*many[:-1])) == []


@pytest.mark.parametrize(
    ("strategy", "path"),
    [
        ({"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 60}, "memoryEvictLowerPercent"),
        ({"memoryEvictLowerPercent": 80}, "memoryEvictLowerPercent"),
        ({"cpuEvictThresholdPercent": 50, "cpuEvictLowerPercent": 51}, "cpuEvictLowerPercent"),
        (
            {"cpuEvictBESatisfactionLowerPercent": 60, "cpuEvictBESatisfactionUpperPercent": 50},
            "cpuEvictBESatisfactionLowerPercent",
        ),
        (
            {"cpuAllocatableEvictThresholdPercent": 5, "cpuAllocatableEvictLowerPercent": 6},
            "cpuAllocatableEvictLowerPercent",
        ),
        (
            {"memoryAllocatableEvictThresholdPercent": 5, "memoryAllocatableEvictLowerPercent": 6},
            "memoryAllocatableEvictLowerPercent",
        ),
    ],
)
def test_lower_thresholds_are_below_their_upper_ones(strategy: dict[str, object], path: str) -> None:
    found = errors("resource-threshold-config", {"clusterStrategy": strategy})
    assert [place for place, _ in found] == [f"clusterStrategy.{path}"]


def test_bounds_count_for_the_merged_strategy() -> None:
    config = {
        "clusterStrategy": {"cpuEvictThresholdPercent": 60, "cpuEvictLowerPercent": 50},
        "nodeStrategies": [{"name": "gold", "nodeSelector": POOL, "cpuEvictThresholdPercent": 40}],
    }
    assert errors("resource-threshold-config", config) == [
        (
            "nodeStrategies[0].cpuEvictLowerPercent",
            "is 50, which is not below cpuEvictThresholdPercent, 40",
        )
    ]
    be = {"clusterStrategy": {"beClass": {"resctrlQOS": {"catRangeStartPercent": 30}}}}
    assert [path for path, _ in errors("resource-qos-config", be)] == [
        "clusterStrategy.beClass.resctrlQOS.catRangeStartPercent"
    ]
    be = {"clusterStrategy": {"beClass": {"resctrlQOS": {"catRangeEndPercent": 0}}}}
    assert errors("resource-qos-config", be) == [
        (
            "clusterStrategy.beClass.resctrlQOS.catRangeEndPercent",
            "is 0, which is not above catRangeStartPercent, 0",
        )
    ]


def network(**classes: Mapping[str, object]) -> dict[str, object]:
    return {"clusterStrategy": {name: {"networkQOS": values} for name, values in classes.items()}}


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (
            network(lsClass={"ingressRequest": 50, "egressRequest": "10M"}),
            "clusterStrategy.lsClass.networkQOS.egressRequest",
        ),
        (
            network(lsClass={"ingressRequest": 50}, beClass={"ingressRequest": "10M"}),
            "clusterStrategy.beClass.networkQOS.ingressRequest",
        ),
        (
            network(lsClass={"egressRequest": 60}, beClass={"egressRequest": 50}),
            "clusterStrategy.beClass.networkQOS.egressRequest",
        ),
        (network(lsClass={"egressRequest": 101}), "clusterStrategy.lsClass.networkQOS.egressRequest"),
        (network(lsClass={"egressRequest": "fast"}), "clusterStrategy.lsClass.networkQOS.egressRequest"),
        (network(lsClass={"egressRequest": "-1"}), "clusterStrategy.lsClass.networkQOS.egressRequest"),
    ],
)
def test_network_qos_has_one_format_and_fits(config: object, path: str) -> None:
    assert [place for place, _ in errors("resource-qos-config", config)] == [path]


def test_network_qos_that_fits() -> None:
    good({"resource-qos-config": network(lsClass={"egressRequest": 60}, beClass={"egressRequest": 40})})
    good({"resource-qos-config": network(lsClass={"egressRequest": "6G", "enable": True})})


def test_network_qos_is_checked_as_koordinators_webhook_does() -> None:
    # Limits may have another format than requests, and a node strategy another one than the cluster strategy.
    config = network(
        lsClass={"ingressRequest": 60, "ingressLimit": "10M"}, systemClass={"ingressRequest": "1M"}
    )
    nodes = [
        {"name": "gold", "nodeSelector": POOL, "beClass": {"networkQOS": {"ingressRequest": 60}}},
        {
            "name": "blue",
            "nodeSelector": {"matchLabels": {"pool": "blue"}},
            "beClass": {"networkQOS": {"ingressRequest": "1M"}},
        },
    ]
    good({"resource-qos-config": {**config, "nodeStrategies": nodes}})


def test_a_bandwidth_that_the_node_itself_says_is_no_reason_to_drop_the_key() -> None:
    keys = {"resource-qos-config": network(lsClass={"egressRequest": "6G"})}
    result = loaded(keys, annotations={"node.koordinator.sh/network-bandwidth": "1G"})
    (problem,) = result.problems
    assert problem.is_warning
    assert "more than the node's 1000000000" in problem.reason
    assert result.strategies.qos.ls_class.network_qos.egress_request == "6G"


def test_network_requests_fit_the_bandwidth_of_the_node() -> None:
    qos = network(lsClass={"egressRequest": "6G"}, beClass={"egressRequest": "5G"})
    system = {"clusterStrategy": {"totalNetworkBandwidth": "10G"}}
    before = good({"resource-qos-config": network(lsClass={"egressRequest": "1G"})})
    result = loaded({"resource-qos-config": qos, "system-config": system}, previous=before)
    (problem,) = result.problems
    assert str(problem) == (
        f"{FILE}: resource-qos-config: networkQOS adds up to 11000000000 bits/s of egressRequest over all "
        "classes, more than the node's 10000000000"
    )
    assert result.strategies.qos == before.strategies.qos


@pytest.mark.parametrize(
    ("application", "path"),
    [
        ({}, "applications[0].name"),
        ({"name": "../x"}, "applications[0].name"),
        ({"name": ".."}, "applications[0].name"),
        ({"name": "a\x00b"}, "applications[0].name"),
        ({"name": "a", "cgroupPath": {"parentDir": "b\nc"}}, "applications[0].cgroupPath"),
        ({"name": "a", "cgroupPath": {"parentDir": "../b"}}, "applications[0].cgroupPath"),
        ({"name": "a", "cgroupPath": {"relativePath": "b/../../c"}}, "applications[0].cgroupPath"),
    ],
)
def test_host_applications_stay_in_their_directory(application: object, path: str) -> None:
    assert [each for each, _ in errors("host-application-config", {"applications": [application]})] == [path]
    slo = loaded({}, node_slo={"hostApplications": [application]})
    assert [each.path for each in slo.problems] == [path]


def test_host_applications_have_cgroups_of_their_own() -> None:
    paths = [
        {"parentDir": "apps", "relativePath": "web"},
        {"parentDir": "/apps/", "relativePath": "./web"},
        {"base": "Kubepods", "parentDir": "apps", "relativePath": "web"},
    ]
    found = [{"name": f"app{number}", "cgroupPath": path} for number, path in enumerate(paths)]
    assert errors("host-application-config", {"applications": [*found, {"name": "b"}, {"name": "c"}]}) == [
        ("applications[1].cgroupPath", 'is that of "app0", too')
    ]


def test_names_of_host_applications_are_their_own() -> None:
    config = {"applications": [{"name": "a"}, {"name": "a"}]}
    assert [each for each, _ in errors("host-application-config", config)] == ["applications[1].name"]


def pods(*items: object, key: str = "podStrategies") -> dict[str, object]:
    return {key: list(items)}


WEB = {"name": "web", "namespace": "prod"}


@pytest.mark.parametrize(
    ("item", "path", "reason"),
    [
        ({"name": "a", "policy": "auto"}, "", "has neither a namespace nor a podSelector"),
        ({"name": "a", "podSelector": {}, "policy": "auto"}, "", "has neither a namespace nor a podSelector"),
        ({**WEB, "cpuBurstConfig": {}}, "", "has no strategy: none of its fields, and no cpuBurstConfig"),
        (WEB, "", "has no strategy: none of its fields, and no cpuBurstConfig"),
        (
            {**WEB, "cpuBurstConfig": {"policy": "auto"}, "policy": "auto"},
            "",
            "has its strategy in two places: cpuBurstConfig and policy",
        ),
        (
            {**WEB, "cpuBurstConfig": {"policy": "auto"}, "cpuBurstStrategy": {"policy": "auto"}},
            "",
            "has its strategy in two places: cpuBurstConfig and cpuBurstStrategy",
        ),
        (
            {**WEB, "sharePoolThresholdPercent": 60},
            ".sharePoolThresholdPercent",
            "is a threshold of the node, not of a pod",
        ),
        (
            {**WEB, "cpuBurstStrategy": {"policy": "auto", "sharePoolThresholdPercent": 60}},
            ".cpuBurstStrategy.sharePoolThresholdPercent",
            "is a threshold of the node, not of a pod",
        ),
        ({**WEB, "policy": "auto", "overridePod": "yes"}, ".overridePod", 'is "yes", not true or false'),
        ({**WEB, "namespace": "Prod", "policy": "auto"}, ".namespace", 'is "Prod", not a namespace\'s name'),
        ({**WEB, "namespace": 3, "policy": "auto"}, ".namespace", "is 3, not a namespace's name"),
        ({**WEB, "name": 3, "policy": "auto"}, ".name", "is 3, not a text of at most 253 characters"),
        ({**WEB, "podSelector": 3, "policy": "auto"}, ".podSelector", "is not an object"),
        ({**WEB, "cpuBurstConfig": 3}, ".cpuBurstConfig", "is not an object"),
        ({**WEB, "cpuBurstPercent": 0}, ".cpuBurstPercent", "is 0, which is below 1"),
    ],
)
def test_pod_strategies_that_cannot_be(item: object, path: str, reason: str) -> None:
    assert errors("cpu-burst-config", pods(item)) == [(f"podStrategies[0]{path}", reason)]


@pytest.mark.parametrize(
    ("key", "strategy", "path"),
    [
        ("resource-qos-config", {"policies": {"cpuPolicy": "coreSched"}}, "policies"),
        ("resource-qos-config", {"lsClass": {}}, "lsClass"),
        ("resource-qos-config", {"cgroupRoot": {}}, "cgroupRoot"),
        ("resource-qos-config", {"blkioQOS": {}}, "blkioQOS"),
        ("resource-qos-config", {"cpuQOS": {"schedIdle": 1}}, "cpuQOS.schedIdle"),
        ("resource-qos-config", {"cpuQOS": {"coreExpeller": True}}, "cpuQOS.coreExpeller"),
        ("resource-qos-config", {"resctrlQOS": {"mbaPercent": 10}}, "resctrlQOS.mbaPercent"),
        ("resource-qos-config", {"resctrlQOS": {"catRangeEndPercent": 10}}, "resctrlQOS.catRangeEndPercent"),
        ("resource-qos-config", {"networkQOS": {"ingressRequest": "1M"}}, "networkQOS.ingressRequest"),
        ("resource-threshold-config", {"cpuSuppressThresholdPercent": 60}, "cpuSuppressThresholdPercent"),
        ("resource-threshold-config", {"memoryEvictThresholdPercent": 60}, "memoryEvictThresholdPercent"),
        ("resource-threshold-config", {"enable": True}, "enable"),
    ],
)
def test_what_counts_for_the_node_is_refused_for_pods(
    key: str, strategy: dict[str, object], path: str
) -> None:
    for item, prefix in (({**WEB, **strategy}, ""), ({**WEB, "strategy": strategy}, "strategy.")):
        found = errors(key, pods(item))
        assert found[0][0] == f"podStrategies[0].{prefix}{path}"
        assert any(word in found[0][1] for word in ("whole", "belongs to a class", "class of the node"))


@pytest.mark.parametrize(
    "key", ["system-config", "host-application-config", "colocation-config", "cpu-normalization-config"]
)
def test_keys_of_the_node_have_no_pod_strategies(key: str) -> None:
    assert errors(key, pods({**WEB, "strategy": {}})) == [
        ("podStrategies", "cannot be: this strategy applies to the whole node")
    ]


def test_selectors_of_pod_strategies_are_bounded_together() -> None:
    def item(number: int, count: int) -> dict[str, object]:
        values = [f"v{each}" for each in range(count)]
        selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
        return {"name": f"n{number}", "podSelector": selector, "policy": "auto"}

    assert errors("cpu-burst-config", pods(item(0, 2_047), item(1, 2_047))) == []
    assert errors("cpu-burst-config", pods(item(0, 2_047), item(1, 2_048))) == [
        ("podStrategies[1].podSelector", "brings the labels and values of all pod strategies above 4096")
    ]


def test_an_unknown_field_of_a_pod_strategy_is_a_warning() -> None:
    result = loaded({"cpu-burst-config": pods({**WEB, "policy": "auto", "polícy": 1})})
    assert [(each.path, each.is_warning) for each in result.problems] == [("podStrategies[0].polícy", True)]
    assert "cpu-burst-config" in result.good


def test_pod_strategies_have_names_of_their_own() -> None:
    item = {**WEB, "policy": "auto"}
    assert errors("cpu-burst-config", pods(item, item)) == [
        ("podStrategies[1].name", "is that of another pod strategy, too")
    ]
