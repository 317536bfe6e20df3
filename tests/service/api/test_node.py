"""GetNode: CPUs with pools and owners, labels, strategies."""

from __future__ import annotations

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.node.objects import RESERVATION
from runtimeproxy.node.snapshot import Cpu, KubeletFacts, Node, PodCpus, Pool, Pools
from runtimeproxy.qos import QoSClass
from runtimeproxy.service.api.node import cpus_of, pools_of, reserved_of, shown_texts
from runtimeproxy.service.api.strategies import strategy_fields
from runtimeproxy.slo.schema import CpuBurstStrategy
from runtimeproxy.slo.strategies import Layer, Provenance, Strategies
from runtimeproxy.slo.values import as_json
from runtimeproxy.units import format_cpu_list
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until

NODE = """
apiVersion: v1
kind: Node
metadata:
  name: here
  labels: {kubernetes.io/arch: amd64, team: shop}
status:
  capacity: {cpu: "8", memory: 1Gi}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config}
data:
  cpu-burst-config: '{"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 500}}'
  host-application-config: '{"applications": [{"name": "nginx", "qos": "LS"}]}'
"""


def test_each_cpu_with_its_pools_and_owner() -> None:
    node = Node(
        cpus=tuple(Cpu(number, number // 2, 0, 0, -1 if number == 3 else 7) for number in range(4)),
        pools=Pools(ls=(Pool(0, 0, frozenset({1, 2})),), be=(Pool(0, 0, frozenset({1, 2, 3})),)),
        kubelet=KubeletFacts(reserved_cpus=frozenset({3}), static_cpus={("uid-2", "main"): frozenset({2})}),
    )
    allocations = {"uid-1": PodCpus(QoSClass.LSR, frozenset({0}))}
    cpus = list(cpus_of(node, {"uid-1": "shop/web"}, allocations))
    assert [list(cpu.pools) for cpu in cpus] == [
        ["lsr"],
        ["ls", "be"],
        ["ls", "be", "static"],
        ["be", "reserved"],
    ]
    assert [cpu.owner for cpu in cpus] == ["shop/web", "", "uid-2", ""]
    assert [cpu.HasField("l3") for cpu in cpus] == [True, True, True, False]
    assert [(each.name, each.cpus) for each in pools_of(node.pools)] == [("ls", "1-2"), ("be", "1-3")]
    assert list(pools_of(None)) == []


def test_the_cpus_of_a_node_that_is_not_known() -> None:
    assert list(cpus_of(Node(), {}, {})) == []


def test_labels_of_nobodys_business_are_left_out() -> None:
    texts = {"kubernetes.io/arch": "amd64", "team": "x", "node.koordinator.sh/pool": "y"}
    assert shown_texts(texts) == {"kubernetes.io/arch": "amd64", "node.koordinator.sh/pool": "y"}


def test_fields_of_strategies_with_provenance() -> None:
    provenance = {
        "cpu_burst.cpu_burst_percent": Provenance(Layer.CLUSTER, "/x/slo.yaml", "cpu-burst-config"),
        "no.such.field": Provenance(),
    }
    strategies = Strategies(cpu_burst=CpuBurstStrategy(cpu_burst_percent=500), provenance=provenance)
    (field,) = strategy_fields(strategies, provenance)
    assert (field.path, field.value) == ("cpu_burst.cpu_burst_percent", "500")
    assert field.provenance.text == "cluster strategy of cpu-burst-config in /x/slo.yaml"


def test_values_as_json() -> None:
    assert as_json(frozenset({"b", "a"})) == '["a", "b"]'
    assert as_json(None) == "null"


@pytest.mark.parametrize(
    ("node", "amounts", "cpus"),
    [
        (Node(), {}, ""),
        (
            Node(capacity={"cpu": 8000, "memory": 100}, allocatable={"cpu": 7000, "memory": 90}),
            {"cpu": 1000, "memory": 10},
            "",
        ),
        (
            Node(
                kubelet=KubeletFacts(reserved={"cpu": 500}, reserved_cpus=frozenset({1})),
                annotations={RESERVATION: '{"resources": {"cpu": "2", "memory": "1Gi"}}'},
            ),
            {"cpu": 2000, "memory": 1 << 30},
            "1",
        ),
        (
            Node(
                kubelet=KubeletFacts(reserved={"cpu": 500}),
                annotations={RESERVATION: '{"resources": {"cpu": "8"}, "reservedCPUs": "0-2"}'},
            ),
            {"cpu": 3000},
            "0-2",
        ),
        (
            Node(
                kubelet=KubeletFacts(reserved={"cpu": 500}),
                annotations={
                    RESERVATION: '{"resources": {"cpu": "2"}, "reservedCPUs": "0", '
                    '"applyPolicy": "ReservedCPUsOnly"}'
                },
            ),
            {"cpu": 1000},
            "0",
        ),
        (
            Node(
                kubelet=KubeletFacts(reserved={"cpu": 500}),
                annotations={RESERVATION: '{"resources": {"cpu": "2", "memory": "much"}}'},
            ),
            {"cpu": 500},
            "",
        ),
        (Node(annotations={RESERVATION: "no JSON"}), {}, ""),
    ],
)
def test_what_is_not_for_pods(node: Node, amounts: dict[str, int], cpus: str) -> None:
    reserved, reserved_cpus = reserved_of(node)
    assert (reserved, format_cpu_list(reserved_cpus)) == (amounts, cpus)


def test_a_daemons_node(daemons: Daemons) -> None:
    prepared = daemons.prepare('[node]\nname = "here"\n')
    prepared.objects_folder.mkdir(exist_ok=True)
    (prepared.objects_folder / "node.yaml").write_text(NODE)
    prepared.start()
    with CriClient(prepared.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)

        def node() -> api_pb2.GetNodeResponse:
            return api.GetNode(api_pb2.GetNodeRequest(), timeout=30, wait_for_ready=True)

        def known() -> api_pb2.GetNodeResponse | None:
            """All that is known, once nothing follows any more."""
            found = node()
            asked = api_pb2.GetNodeRequest(known_generation=found.generation)
            again = api.GetNode(asked, timeout=30)
            unchanged = api_pb2.GetNodeResponse(generation=found.generation, is_unchanged=True)
            return found if found.strategies and again == unchanged else None

        answer = wait_until(known, "strategies are known, and nothing changes")
        changed = NODE.replace("500", "600")
        (prepared.objects_folder / ".node.yaml").write_text(changed)
        (prepared.objects_folder / ".node.yaml").rename(prepared.objects_folder / "node.yaml")
        before = api_pb2.GetNodeRequest(known_generation=answer.generation)

        def values() -> set[str]:
            return {each.value for each in api.GetNode(before, timeout=30).plugin_strategies}

        wait_until(lambda: "600" in values(), "the changed strategy in another generation")
    assert answer.name == "here"
    assert answer.kernel_version
    assert dict(answer.labels) == {"kubernetes.io/arch": "amd64"}
    assert dict(answer.capacity) == {"cpu": 8000, "memory": 2**30}
    fields = {each.path: each for each in answer.strategies}
    assert fields["cpu_burst.cpu_burst_percent"].value == "500"
    own = {each.path: each for each in answer.plugin_strategies}
    assert (own["cpu_burst.cpu_burst_percent"].value, own["cpu_burst.policy"].value) == ("500", '"auto"')
    assert own["threshold.enable"].value == "false"
    assert own["threshold.enable"].provenance.source == "default"
    (application,) = answer.host_applications
    assert (application.name, application.qos_class) == ("nginx", "LS")
    assert application.cgroup == "/host-latency-sensitive/nginx"
    states = {each.name: each.state for each in answer.inputs}
    assert states["strategies"] == states["node-object"] == api_pb2.NodeInput.STATE_KNOWN
