"""Snapshots survive a recording, and only plain data is made of what is read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from runtimeproxy.hooks.views import PodView
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import (
    NO_STRATEGIES,
    Cpu,
    Input,
    InputState,
    KubeletFacts,
    Node,
    PodCpus,
    Pool,
    Pools,
)
from runtimeproxy.qos import QoSClass
from runtimeproxy.record.values import BadValueError, changed_fields, decode, encode, with_fields
from runtimeproxy.slo.schema import CpuBurstPolicy, CpuBurstStrategy
from runtimeproxy.slo.strategies import Layer, PodBasis, PodRule, Provenance, Strategies

RULE = PodRule(
    name="r",
    namespace="",
    selector=LabelSelector(
        match_labels={"app": "web"},
        match_expressions=(LabelRequirement(key="tier", operator=LabelOperator.IN, values=("a", "b")),),
    ),
    node_selector=LabelSelector(),
    is_override=True,
    values={("policy",): CpuBurstPolicy.NONE, ("cpu_burst_percent",): 7},
    provenance=Provenance(Layer.POD, "file", "key", "r"),
)
NODE = Node(
    facts=NodeFacts(online_cpus=frozenset({0, 1}), cgroup_version=2, files={"cpu": {"cpu.max": True}}),
    cpus=(Cpu(0, 0, 0, 0, 0), Cpu(1, 1, 0, 0, 0, False)),
    memory_bytes={0: 1 << 34},
    cgroup_driver="systemd",
    features=frozenset({"burst"}),
    labels={"a": "b"},
    capacity={"cpu": 2000},
    kubelet=KubeletFacts("static", frozenset({0}), static_cpus={("uid", "main"): frozenset({1})}),
    pools=Pools(ls=(Pool(0, 0, frozenset({0, 1})),)),
    normalization_ratio=1.3,
    normalization_path="cpu_normalization.default_ratio",
    requests={("uid", "main"): {"cpu": 100}},
    allocations={"uid": PodCpus(QoSClass.LSR, frozenset({1}))},
    strategies=Strategies(
        cpu_burst=CpuBurstStrategy(policy=CpuBurstPolicy.AUTO), pod_basis=PodBasis(burst_rules=(RULE,))
    ),
    states={Input.KUBELET: InputState.KNOWN},
    generations={Input.STRATEGIES: 3},
)


def through_json(document: Any) -> Any:
    return json.loads(json.dumps(document))


def test_a_snapshot_survives() -> None:
    found = with_fields(Node(), through_json(changed_fields(NODE, None)))
    assert found == NODE
    # What an equality does not show.
    assert found.strategies.pod_basis == NODE.strategies.pod_basis
    assert type(found.strategies.cpu_burst.policy) is CpuBurstPolicy
    pod = PodView(labels={"app": "web", "tier": "a"})
    assert found.strategy_for(pod) == NODE.strategy_for(pod)
    assert found.strategy_for(pod).provenance == NODE.strategy_for(pod).provenance
    assert found.strategy_for(pod).cpu_burst.policy is CpuBurstPolicy.NONE


def test_only_what_has_changed_is_written() -> None:
    assert changed_fields(NODE, NODE) == {}
    before = with_fields(NODE, {"labels": encode({"a": "c"})})
    assert changed_fields(NODE, before) == {"labels": {"map": [["a", "b"]]}}
    assert changed_fields(Node(), None) == {}
    assert with_fields(Node(), {}).strategies is NO_STRATEGIES


@pytest.mark.parametrize(
    "value", [None, True, 1, "x", 1.5, math.inf, (1, ("a",)), frozenset({1}), QoSClass.LS]
)
def test_values(value: Any) -> None:
    found = decode(through_json(encode(value)))
    assert found == value
    assert type(found) is type(value)


def test_what_is_not_plain_data_is_not_written() -> None:
    with pytest.raises(TypeError, match="no form in a recording for PodView"):
        encode(PodView())
    with pytest.raises(TypeError, match="no form in a recording for object"):
        encode(object())


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"Path": "x"}, "which this version does not know"),
        ({"eval": "x"}, "which this version does not know"),
        ({}, "not exactly one key"),
        ({"a": 1, "b": 2}, "not exactly one key"),
        ({"QoSClass": "XX"}, "QoSClass of a snapshot cannot be read"),
        ({"Cpu": {"id": 1}}, "Cpu of a snapshot cannot be read"),
        ({"map": [[1]]}, "map of a snapshot cannot be read"),
        ({"Cpu": 5}, "Cpu of a snapshot cannot be read"),
    ],
)
def test_what_cannot_be_read(document: Any, reason: str) -> None:
    with pytest.raises(BadValueError, match=reason):
        decode(document)


def test_fields_of_a_newer_version_do_not_matter() -> None:
    assert with_fields(Node(), {"phase_of_the_moon": 3}) == Node()
    assert decode({"Pool": {**encode(Pool(0, 0, frozenset()))["Pool"], "new": 1}}) == Pool(0, 0, frozenset())
