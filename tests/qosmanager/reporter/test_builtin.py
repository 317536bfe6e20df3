"""The built-in field reporters: where what they know is in the document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.reporter.amounts import node_amounts
from runtimeproxy.qosmanager.reporter.builtin import AMOUNTS_ANNOTATION, BUILT_IN, RECLAIMED_ANNOTATION
from runtimeproxy.qosmanager.reporter.document import merged, read_field
from runtimeproxy.qosmanager.reporter.fields import View
from runtimeproxy.qosmanager.snapshot import Cpu, PoolMember, Snapshot
from runtimeproxy.units import quantity_bytes, quantity_millicores
from tests.qosmanager.reporter.nodes import GIB, MEMBERS, PODS, pod, pools, snapshot


def reported(of_node: Snapshot) -> dict[str, Any]:
    view = View(of_node, node_amounts(of_node)[0])
    given = [(each.name, read_field(one)) for each in BUILT_IN for one in each().report(view)]
    document, conflicts = merged(given, "node-1")
    assert not conflicts
    return document


def zones_of(document: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """By name."""

    def walk(zones: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
        for zone in zones:
            if zone["type"] == kind:
                yield zone["name"], zone
            yield from walk(zone.get("children", []))

    return dict(walk(document["status"].get("topologyZone", [])))


def attributes(zone: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in zone["attributes"]}


def test_capacity_and_allocatable_of_the_node_differ() -> None:
    """Complaint of Katalyst's users, issue 609."""
    document = reported(snapshot())

    assert document["status"]["resources"] == {
        "allocatable": {
            "cpu": "14",
            "memory": "30Gi",
            RECLAIMED_MILLICPU: "6k",
            RECLAIMED_MEMORY: "12Gi",
        },
        "capacity": {"cpu": "16", "memory": "32Gi", RECLAIMED_MILLICPU: "12k", RECLAIMED_MEMORY: "30Gi"},
    }
    annotations = document["metadata"]["annotations"]
    assert json.loads(annotations[AMOUNTS_ANNOTATION])["cpu"] == {
        "total": "16",
        "reserved": "2",
        "dedicated": "2",
        "used": "3",
        "free": "9",
    }
    assert json.loads(annotations[RECLAIMED_ANNOTATION]) == {
        "cpu": {"requested": "2k", "free": "4k"},
        "memory": {"requested": "1Gi", "free": "11Gi"},
    }
    assert document["spec"]["nodeResourceProperties"] == [
        {"propertyName": "cpu", "propertyQuantity": "16"},
        {
            "propertyName": "cpu_pools",
            "propertyValues": [
                "dedicated=1,9",
                "reclaim=3,6-8,10-11,14-15",
                "reserve=0,2",
                "share=4-5,12-13",
            ],
        },
        {"propertyName": "memory", "propertyQuantity": "32Gi"},
        {"propertyName": "numa", "propertyQuantity": "4"},
    ]


def test_each_numa_node_has_numbers_of_its_own() -> None:
    """Complaint of Katalyst's users, issue 217."""
    numa = zones_of(reported(snapshot()), "Numa")

    assert list(numa) == ["0", "1", "2", "3"]
    assert numa["1"]["resources"] == {
        "allocatable": {
            "cpu": "3",
            "memory": "7680Mi",
            RECLAIMED_MILLICPU: "1333",
            RECLAIMED_MEMORY: "2688Mi",
        },
        "capacity": {"cpu": "4", "memory": "8Gi", RECLAIMED_MILLICPU: "3k", RECLAIMED_MEMORY: "7680Mi"},
    }
    found = attributes(numa["1"])
    assert (
        found
        | {
            "cpu_total": "4",
            "cpu_reserved": "1",
            "cpu_dedicated": "0",
            "cpu_used": "1",
            "cpu_free": "2",
            "reclaimed_cpu_requested": "750",
            "reclaimed_cpu_free": "583",
            "cpu_lists": "2-3,10-11",
            "reserved_cpu_list": "2",
            "cpu_pool_reclaim": "3,10-11",
            "cpu_pool_reserve": "2",
        }
        == found
    )


def test_the_tree_of_sockets_numa_nodes_and_caches() -> None:
    document = reported(snapshot())

    sockets = document["status"]["topologyZone"]
    assert [(each["type"], each["name"]) for each in sockets] == [("Socket", "0"), ("Socket", "1")]
    assert [[child["name"] for child in each["children"]] for each in sockets] == [["0", "1"], ["2", "3"]]
    # A cache of several NUMA nodes is in each of them with those of its CPUs that are there.
    (cache,) = sockets[0]["children"][1]["children"]
    assert (cache["type"], cache["name"]) == ("CacheGroup", "0")
    assert cache["resources"] == {"allocatable": {"cpu": "3"}, "capacity": {"cpu": "4"}}
    assert attributes(cache) == {"cpu_lists": "2-3,10-11"}


def test_zones_of_odd_nodes() -> None:
    made = snapshot(memory_bytes={0: GIB, 7: GIB})
    cpus = (Cpu(0, 0, 0, 0), Cpu(1, 0, 1, 0))
    document = reported(replace(made, node=replace(made.node, cpus=cpus)))

    # Memory without CPUs is in no socket, a NUMA node of two sockets in the first. A pod is bound to node 1,
    # which is not there.
    found = [
        (each["type"], each["name"], len(each.get("children", [])))
        for each in document["status"]["topologyZone"]
    ]
    assert found == [("Numa", "7", 0), ("Socket", "0", 1), ("Socket", "1", 0)]
    assert not zones_of(document, "CacheGroup")

    unknown = replace(made, node=replace(made.node, cpus=(), memory_bytes={}, capacity={}, cpu_pools=None))
    assert reported(unknown)["status"] == {
        "resources": {"allocatable": {}, "capacity": {}},
        "topologyPolicy": "None",
    }


def test_pods_with_something_of_a_zone_are_its_allocations() -> None:
    document = reported(snapshot())

    numa = {
        name: {each["consumer"]: each["requests"] for each in zone["allocations"]}
        for name, zone in zones_of(document, "Numa").items()
        if "allocations" in zone
    }
    # Web and job run anywhere.
    assert numa == {
        "0": {"default/database/database": {"cpu": "2", "memory": "1Gi"}},
        "1": {"default/cache/cache": {"cpu": "2", "memory": "1Gi"}},
    }
    (cache, *_) = document["status"]["topologyZone"][0]["children"][0]["children"]
    assert cache["allocations"] == [{"consumer": "default/database/database", "requests": {"cpu": "2"}}]


@pytest.mark.parametrize(
    ("member", "found"),
    [
        pytest.param(
            PoolMember(
                "dedicated_cores", "dedicated", frozenset({4, 5, 6}), frozenset({4, 5, 6}), frozenset({2, 3})
            ),
            {"2": {"cpu": "2", "memory": "512Mi"}, "3": {"cpu": "1", "memory": "512Mi"}},
            id="cpus-on-two",
        ),
        pytest.param(
            PoolMember("reclaimed_cores", "reclaim-NUMA3", frozenset({6, 7}), numa_nodes=frozenset({3})),
            {"3": {RECLAIMED_MILLICPU: "2k", RECLAIMED_MEMORY: "1Gi"}},
            id="reclaimed-and-bound",
        ),
        pytest.param(PoolMember("shared_cores", "share", frozenset({4})), {}, id="anywhere"),
    ],
)
def test_what_a_pod_has_of_which_zone(member: PoolMember, found: dict[str, Any]) -> None:
    members = {**MEMBERS, "web": member}
    document = reported(snapshot(cpu_pools=pools(members=members)))

    own = {
        name: each["requests"]
        for name, zone in zones_of(document, "Numa").items()
        for each in zone.get("allocations", [])
        if each["consumer"] == "default/web/web"
    }
    assert own == found


def test_cpus_by_koordinators_annotation_and_by_the_kubelet() -> None:
    lsr = replace(pod("lsr", QoSClass.LSR), cpus=frozenset({6, 14}))
    made = snapshot(of_pods=(*PODS, lsr), cpu_pools=None, static_cpus={("web", "web"): frozenset({4, 12})})
    document = reported(made)

    numa = zones_of(document, "Numa")
    assert [each["consumer"] for each in numa["2"]["allocations"]] == ["default/web/web"]
    assert [each["consumer"] for each in numa["3"]["allocations"]] == ["default/lsr/lsr"]
    assert attributes(numa["3"])["cpu_dedicated"] == "2"
    # Without pools nothing is said of what could be reclaimed.
    assert RECLAIMED_MILLICPU not in document["status"]["resources"]["capacity"]


def test_a_pods_odd_name_costs_nobody_anything() -> None:
    odd = replace(pod("odd"), namespace="a\nb", name="x" * 9_000, uid="cache")
    document = reported(snapshot(of_pods=(*PODS[1:], odd)))

    (allocation,) = zones_of(document, "Numa")["1"]["allocations"]
    assert allocation["consumer"] == f"a?b/{'x' * 253}/cache"


def test_numbers_of_numa_nodes_have_the_sum_of_the_node() -> None:
    document = reported(snapshot(reserved={"cpu": 2_501, "memory": 2 * GIB + 1}))

    for part, resources in document["status"]["resources"].items():
        for name, text in resources.items():
            read = quantity_millicores if name == "cpu" else quantity_bytes
            numa = (zone["resources"][part][name] for zone in zones_of(document, "Numa").values())
            assert sum(map(read, numa)) == read(text), (part, name)
