"""What a node's snapshot says of its inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtimeproxy.hooks.views import PodView
from runtimeproxy.node.snapshot import Cpu, FixedNode, Input, InputState, KubeletFacts, Node, Pools
from runtimeproxy.slo.schema import CpuBurstStrategy
from runtimeproxy.slo.strategies import Strategies

POD = PodView(uid="u1")
BURST = Strategies(cpu_burst=CpuBurstStrategy(cpu_burst_percent=500))


def test_nothing_is_known_at_first() -> None:
    node = Node()
    assert {node.state_of(each) for each in Input} == {InputState.UNKNOWN}
    assert node.unknown_inputs(Input, POD) == tuple(Input)
    assert FixedNode().snapshot() == node


@pytest.mark.parametrize(
    ("node", "known"),
    [
        (Node(cpus=(Cpu(id=0, core=0, socket=0, numa_node=0, l3=0),)), Input.CPUS),
        (Node(memory_bytes={0: 1}), Input.MEMORY),
        (Node(cgroup_driver="systemd"), Input.CGROUPS),
        (Node(kubelet=KubeletFacts()), Input.KUBELET),
        (Node(capacity={"cpu": 4000}), Input.NODE_OBJECT),
        (Node(labels={"a": "b"}), Input.NODE_OBJECT),
        (Node(pools=Pools()), Input.POOLS),
        (Node(strategies=BURST), Input.STRATEGIES),
        (Node(normalization_ratio=1.2), Input.NORMALIZATION),
        (Node(requests={("u1", "main"): {"cpu": 100}}), Input.POD_REQUESTS),
    ],
)
def test_an_input_without_a_state_is_known_by_its_values(node: Node, known: Input) -> None:
    assert [each for each in Input if node.state_of(each) is InputState.KNOWN] == [known]
    assert known not in node.unknown_inputs(Input, POD)


@pytest.mark.parametrize(
    ("state", "unknown"),
    [(InputState.UNKNOWN, (Input.POOLS,)), (InputState.KNOWN, ()), (InputState.WITHDRAWN, ())],
)
def test_a_withdrawn_input_is_not_unknown(state: InputState, unknown: tuple[Input, ...]) -> None:
    node = Node(pools=Pools(), states={Input.POOLS: state})
    assert node.unknown_inputs([Input.POOLS], POD) == unknown


def test_a_pod_has_the_strategies_of_its_node() -> None:
    assert Node(strategies=BURST).strategy_for(POD).cpu_burst.cpu_burst_percent == 500


def test_requests_and_priority_are_known_for_each_pod() -> None:
    node = Node(requests={("u1", "main"): {}})
    both = (Input.PRIORITY, Input.POD_REQUESTS)
    labelled = PodView(uid="u2", labels={"koordinator.sh/priority-class": "koord-batch"})
    assert node.unknown_inputs(both, POD) == (Input.PRIORITY,)
    assert node.unknown_inputs(both, labelled) == (Input.POD_REQUESTS,)
    assert replace(node, requests={}).unknown_inputs(both, POD) == both
