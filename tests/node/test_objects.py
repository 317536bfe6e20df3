"""Kubernetes objects about this node, good and bad."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.documents.reading import InputError, parse_documents
from runtimeproxy.node.machine import Processor
from runtimeproxy.node.objects import (
    KATALYST_KINDS,
    MAX_ANNOTATIONS_BYTES,
    MAX_CONFIG_MAP_BYTES,
    ConfigMapObject,
    Ignored,
    Kind,
    NodeObject,
    NodeSloObject,
    Object,
    Reader,
    Rejected,
    TopologyFacts,
    parse_topology,
)
from runtimeproxy.node.snapshot import Pool
from tests.node.objects_of import (
    BURST,
    LS_POOLS,
    NODE_NAME,
    SYSTEM_QOS,
    config_map,
    listed,
    node_object,
    node_slo,
    text_of,
    topology,
)

GIB = 2**30
CPUS = frozenset(range(16))
READER = Reader(NODE_NAME, CPUS)
KINDS = "ConfigMap, Node, NodeResourceTopology, NodeSLO, AdminQoSConfiguration, KatalystCustomConfig"


def read(*objects: Any, reader: Reader = READER) -> list[Any]:
    return reader.read(parse_documents(text_of(*objects)))


def test_objects_of_one_list_and_of_several_documents() -> None:
    objects = (config_map(cpu_burst_config=BURST), node_object(), topology(), node_slo(cpuBurstStrategy={}))
    found = read(*objects)
    assert [each.kind for each in found] == [each for each in Kind if each not in KATALYST_KINDS]
    assert read(listed(*objects)) == found


def test_a_node() -> None:
    labels = {"pool": "a", "kubernetes.io/arch": "amd64"}
    found = read(node_object(labels=labels, annotations={"a": "b"}))[0]
    assert found.value == NodeObject(
        labels=labels,
        annotations={"a": "b"},
        capacity={"cpu": 4000, "memory": 8 * GIB, "pods": 110},
        allocatable={"cpu": 3900, "memory": 7 * GIB, "pods": 110, "kubernetes.io/batch-cpu": 2000},
    )


def test_a_config_map_and_a_node_slo() -> None:
    found = read(config_map(cpu_burst_config="{}", x="y"), node_slo(cpuBurstStrategy={"policy": "auto"}))
    assert found[0].value == ConfigMapObject(data={"cpu-burst-config": "{}", "x": "y"})
    assert found[1].value == NodeSloObject(spec={"cpuBurstStrategy": {"policy": "auto"}})


def test_of_its_source_an_object_is_made_again() -> None:
    for each in read(config_map(a="b"), node_object(), topology({LS_POOLS: "[]"}), node_slo(a={"b": 1})):
        assert READER.read_object(each.source) == each


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (node_object("node-b"), "Node 'node-b' is not read; node-a is"),
        (topology(name="node-b"), "NodeResourceTopology 'node-b' is not read; node-a is"),
        (node_slo("node-b"), "NodeSLO 'node-b' is not read; node-a is"),
        ({**config_map(), "metadata": {"name": "x"}}, "ConfigMap 'x' is not read; slo-controller-config is"),
        ({"kind": "Pod"}, f"Pod is not read; {KINDS} are"),
        ({"a": 1}, f"an object without kind is not read; {KINDS} are"),
        (
            {"kind": 5},
            f"an object without kind is not read; {KINDS} are",
        ),
        (["Node"], "a list is not a Kubernetes object"),
        ("Node", "a text is not a Kubernetes object"),
    ],
)
def test_objects_that_are_about_something_else(document: Any, reason: str) -> None:
    of_other_node = Kind(document["kind"]) if "'node-b'" in reason else None
    assert READER.read([document]) == [Ignored(reason, of_other_node)]


def test_a_list_of_other_objects() -> None:
    assert READER.read([{"kind": "NodeList", "items": []}, {"kind": "List"}]) == []


def changed(document: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    """A copy with another value at the path."""
    name, *rest = path
    inner = document.get(name)
    return {**document, name: changed(inner if isinstance(inner, dict) else {}, *rest, to=to) if rest else to}


LARGE = "x" * (MAX_ANNOTATIONS_BYTES + 1)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (changed(node_object(), "metadata", to=[]), "metadata: is a list, not a mapping"),
        (changed(node_object(), "metadata", "name", to=5), "metadata.name: is a number, not a text"),
        (changed(node_object(), "metadata", "labels", to="a=b"), "metadata.labels: is a text, not a mapping"),
        (
            changed(node_object(), "metadata", "labels", "a", to=True),
            "metadata.labels.a: is a boolean, not a text; quote it",
        ),
        (
            changed(node_object(), "metadata", "annotations", "a", to=1),
            "metadata.annotations.a: is a number, not a text; quote it",
        ),
        (
            changed(node_object(), "metadata", "annotations", "big", to=LARGE),
            "metadata.annotations: has more than 262144 bytes; most are of big",
        ),
        (changed(node_object(), "status", to="Ready"), "status: is a text, not a mapping"),
        (changed(node_object(), "status", "capacity", to=[]), "status.capacity: is a list, not a mapping"),
        (
            changed(node_object(), "status", "allocatable", "cpu", to="many"),
            "status.allocatable.cpu: is not a quantity: 'many'",
        ),
        (
            changed(node_object(), "status", "allocatable", "memory", to={}),
            "status.allocatable.memory: is a mapping, not a quantity",
        ),
        (changed(config_map(), "data", to="x"), "data: is a text, not a mapping"),
        (changed(config_map(), "data", "a", to={"b": 1}), "data.a: is a mapping, not a text; quote it"),
        (
            changed(config_map(), "data", "a", to="x" * (MAX_CONFIG_MAP_BYTES + 1)),
            "data: has more than 1048576 bytes",
        ),
        (changed(node_slo(), "spec", to=[]), "spec: is a list, not a mapping"),
        (
            changed(topology(), "metadata", "annotations", "big", to=LARGE),
            "metadata.annotations: has more than 262144 bytes; most are of big",
        ),
        (
            topology({LS_POOLS: "["}),
            f"metadata.annotations.{LS_POOLS}: line 1 column 2: Expecting value",
        ),
    ],
)
def test_a_bad_object(document: dict[str, Any], reason: str) -> None:
    assert READER.read([document]) == [Rejected(Kind(document["kind"]), reason)]


RESERVATION = "node.koordinator.sh/reservation"
POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
INFO = "node.koordinator.sh/cpu-basic-info"
CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"


def test_all_annotations_of_a_topology() -> None:
    annotations = {
        LS_POOLS: '[{"socket":0,"node":0,"cpuset":"0-6"},{"socket":1,"node":1,"cpuset":"8-15"}]',
        "node.koordinator.sh/be-cpu-shared-pools": '[{"Socket":0,"NODE":0,"CPUSet":"0-7"}]',
        SYSTEM_QOS: '{"cpuset":"7","cpusetExclusive":false}',
        RESERVATION: '{"resources":{"cpu":"1"},"reservedCPUs":"0","applyPolicy":"ReservedCPUsOnly"}',
        POLICY: '{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}',
        ALLOCS: '[{"namespace":"a","name":"p","uid":"u1","cpuset":"2","managedByKubelet":true},'
        '{"uid":"u2","cpuset":"3"},{"uid":"u1","cpuset":"4","managedByKubelet":true}]',
        INFO: '{"cpuModel":"X","hyperThreadEnabled":true,"turboEnabled":true,"vendorID":"Y"}',
        CPU_TOPOLOGY: '{"detail":[{"id":0,"core":0,"socket":0,"node":0},{"id":15}]}',
        "other": "{",
    }
    found = parse_topology(annotations, CPUS)
    assert found == TopologyFacts(
        ls_pools=(
            Pool(socket=0, numa_node=0, cpus=frozenset(range(7))),
            Pool(socket=1, numa_node=1, cpus=frozenset(range(8, 16))),
        ),
        be_pools=(Pool(socket=0, numa_node=0, cpus=frozenset(range(8))),),
        system_cpus=frozenset({7}),
        is_system_exclusive=False,
        reserved_cpus=frozenset({0}),
        kubelet_policy="static",
        kubelet_reserved_cpus=frozenset({0, 1}),
        static_cpus={("u1", ""): frozenset({2, 4})},
        processor=Processor(model="X", has_hyper_threads=True, has_turbo=True),
    )
    assert "other" not in found.source


def test_annotations_that_are_absent_or_null_say_nothing() -> None:
    null = dict.fromkeys((LS_POOLS, SYSTEM_QOS, POLICY, ALLOCS, INFO, CPU_TOPOLOGY), "null")
    assert parse_topology(null, CPUS) == parse_topology({}, None) == TopologyFacts()
    assert parse_topology({SYSTEM_QOS: '{"cpuset":"7"}'}, CPUS).is_system_exclusive


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (LS_POOLS, "", "is empty"),
        (LS_POOLS, "{}", "is a mapping, not a list"),
        (LS_POOLS, f"[{'{},' * 1024}{{}}]", "has more than 1024 pools"),
        (LS_POOLS, "[1]", "[0]: is a number, not a mapping"),
        (LS_POOLS, '[{"socket":"0"}]', "[0].socket: is not a number of this kind"),
        (LS_POOLS, '[{"node":-1}]', "[0].node: is not a number of this kind"),
        (LS_POOLS, '[{"node":true}]', "[0].node: is not a number of this kind"),
        (LS_POOLS, '[{},{"cpuset":["1"]}]', "[1].cpuset: is a list, not a text"),
        (LS_POOLS, '[{"cpuset":"1-"}]', "[0].cpuset: not a CPU list: '1-'"),
        (LS_POOLS, '[{"cpuset":"0-17"}]', "[0].cpuset: this node has no CPU 16-17, only 0-15"),
        (SYSTEM_QOS, "[]", "is a list, not a mapping"),
        (SYSTEM_QOS, '{"cpuset":"99"}', "cpuset: this node has no CPU 99, only 0-15"),
        (SYSTEM_QOS, '{"cpusetExclusive":"no"}', "cpusetExclusive: is neither true nor false"),
        (RESERVATION, '{"reservedCPUs":5}', "reservedCPUs: is a number, not a text"),
        (RESERVATION, '{"reservedCPUs":"64"}', "reservedCPUs: this node has no CPU 64, only 0-15"),
        (POLICY, '{"policy":"best"}', "policy: is neither none nor static"),
        (POLICY, '{"policy":1}', "policy: is a number, not a text"),
        (POLICY, '{"reservedCPUs":"x"}', "reservedCPUs: not a CPU list: 'x'"),
        (ALLOCS, "{}", "is a mapping, not a list"),
        (ALLOCS, '["x"]', "[0]: is a text, not a mapping"),
        (ALLOCS, '[{"uid":1}]', "[0].uid: is a number, not a text"),
        (ALLOCS, '[{"cpuset":"16"}]', "[0].cpuset: this node has no CPU 16, only 0-15"),
        (INFO, '{"cpuModel":1}', "cpuModel: is a number, not a text"),
        (INFO, '{"turboEnabled":1}', "turboEnabled: is neither true nor false"),
        (INFO, "5", "is a number, not a mapping"),
        (CPU_TOPOLOGY, '{"detail":{}}', "detail: is a mapping, not a list"),
        (CPU_TOPOLOGY, '{"detail":[1]}', "detail[0]: is a number, not a mapping"),
        (CPU_TOPOLOGY, '{"detail":[{"id":1.5}]}', "detail[0].id: is not a number of this kind"),
        (CPU_TOPOLOGY, '{"detail":[{"id":0},{"id":16}]}', "detail: this node has no CPU 16, only 0-15"),
    ],
)
def test_a_bad_annotation_of_a_topology(name: str, text: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse_topology({name: text}, CPUS)
    assert error.value.place.startswith(name)
    assert str(error.value) in (f"{name}: {problem}", f"{name}.{problem}", f"{name}{problem}")


def test_while_the_cpus_are_not_known_no_topology_lies() -> None:
    assert parse_topology({LS_POOLS: '[{"cpuset":"0-127"}]'}, None).ls_pools


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "name", "labels", "annotations", "status", "capacity", "cpu", "items"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from([*Kind, "List"]),
    st.dictionaries(st.sampled_from(["metadata", "data", "spec", "status", "items"]), JSON),
)
def test_any_object_is_read_rejected_or_ignored(kind: str, parts: dict[str, Any]) -> None:
    for name in (NODE_NAME, "slo-controller-config"):
        for each in Reader(name).read([{**parts, "kind": kind}]):
            assert isinstance(each, Object | Rejected | Ignored)


@given(st.sampled_from([LS_POOLS, SYSTEM_QOS, POLICY, ALLOCS, INFO, CPU_TOPOLOGY]), st.text(max_size=40))
def test_any_annotation_is_read_or_refused(name: str, text: str) -> None:
    with suppress(InputError):
        parse_topology({name: text}, CPUS)
