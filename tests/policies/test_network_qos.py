"""Network QoS. Cases Vnnn are those of Koordinator's tests of `tc` (CONTRIBUTING.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.network_qos import (
    CLASSID,
    NetworkQoS,
    class_share,
    ingress_ceiling_bps,
    network_class,
    share_bps,
    shares,
    whole_bytes,
)
from runtimeproxy.fields.kernel_settings import kernel_setting
from runtimeproxy.fields.network import (
    CLASS_FIELD,
    EGRESS_FIELD,
    INGRESS_FIELD,
    MOST_RECEIVED_BPS,
    NETWORK_QOS,
    OFF,
    POD_MINORS,
    NetworkClass,
    NetworkShares,
    Share,
    classid,
    pod_minor,
    shares_of,
    shares_problem,
)
from runtimeproxy.hooks import PodView
from runtimeproxy.hooks.decision import Unmet, unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.names import NETWORK_QOS as ANNOTATION
from runtimeproxy.slo.schema import ClassQoS, QoSStrategy
from runtimeproxy.slo.schema import NetworkQoS as NetworkOfClass
from tests.slo.configs import good

GIGABIT = 1_000_000_000
LS = {"enable": True, "egressRequest": 40, "egressLimit": 80}
BE = {"enable": True, "egressRequest": 10, "egressLimit": 30, "ingressLimit": 20}


def node(classes: dict[str, Any] | None = None, total: str = "1G", **facts: Any) -> Node:
    given = {"lsClass": {"networkQOS": LS}, "beClass": {"networkQOS": BE}} if classes is None else classes
    config: dict[str, Any] = {"resource-qos-config": {"clusterStrategy": given}}
    if total:
        config["system-config"] = {"clusterStrategy": {"totalNetworkBandwidth": total}}
    return Node(
        strategies=good(config).strategies,
        states=dict.fromkeys((Input.STRATEGIES, Input.CGROUPS), InputState.KNOWN),
        **facts,
    )


def pod(qos: QoSClass = QoSClass.BE, **limits: str) -> PodView:
    annotations = {ANNOTATION: json.dumps(limits)} if limits else {}
    return PodView(uid="u-1", name="a", namespace="x", qos=qos, annotations=annotations)


@pytest.mark.parametrize(
    ("major", "minor", "number"),
    [
        pytest.param(1, 2, 0x10002, id="V223"),
        pytest.param(0x11, 2, 1_114_114, id="V224"),
        pytest.param(0x4B52, 4, 0x4B52_0004, id="ours"),
    ],
)
def test_a_class_as_a_number(major: int, minor: int, number: int) -> None:
    assert classid(major, minor) == number


@pytest.mark.parametrize(
    ("value", "total", "bps"),
    [
        pytest.param(10, 1000, 100, id="V226"),
        pytest.param(200, 1000, 0, id="V227"),
        pytest.param(-1, 1000, 0, id="negative"),
        pytest.param(0, 1000, 0, id="none"),
        pytest.param(100, 1000, 1000, id="all"),
        pytest.param(33, 1000, 330, id="percent"),
        pytest.param("50M", GIGABIT, 50_000_000, id="bits in a second"),
        pytest.param("1Ki", GIGABIT, 1024, id="binary"),
        pytest.param("fast", GIGABIT, 0, id="no quantity"),
        pytest.param("-5", GIGABIT, 0, id="below zero"),
    ],
)
def test_a_share(value: int | str, total: int, bps: int) -> None:
    assert share_bps(value, total) == bps


@pytest.mark.parametrize(("bps", "whole"), [(0, 8), (7, 8), (8, 8), (17, 16), (GIGABIT, GIGABIT)])
def test_the_kernel_counts_whole_bytes(bps: int, whole: int) -> None:
    assert whole_bytes(bps) == whole


@pytest.mark.parametrize(
    ("qos", "share", "problems"),
    [
        pytest.param({}, (8, 1000), 0, id="not enabled"),
        pytest.param({"enable": True}, (8, 1000), 0, id="no limit is the whole link"),
        pytest.param({"enable": True, "egress_request": 20}, (200, 1000), 0, id="guarantee"),
        pytest.param({"enable": True, "egress_limit": 50}, (8, 496), 0, id="ceiling"),
        pytest.param(
            {"enable": True, "egress_request": "800", "egress_limit": "400"},
            (400, 400),
            1,
            id="above the ceiling",
        ),
        pytest.param({"enable": True, "egress_limit": "9k"}, (8, 1000), 1, id="above the link"),
        pytest.param({"egress_request": 20, "egress_limit": 50}, (8, 1000), 0, id="not enabled with values"),
    ],
)
def test_the_share_of_a_class(qos: dict[str, Any], share: tuple[int, int], problems: int) -> None:
    found, said = class_share(NetworkOfClass(**qos), 1000)
    assert (found, len(said)) == (share, problems)


@pytest.mark.parametrize(
    ("qos", "ceiling"),
    [
        ({"enable": True, "ingress_limit": 20}, 200),
        ({"enable": True, "ingress_limit": 100}, 0),
        ({"enable": True, "ingress_limit": "77"}, 72),
        ({"ingress_limit": 20}, 0),
        ({"enable": True}, 0),
    ],
)
def test_what_a_class_may_receive(qos: dict[str, Any], ceiling: int) -> None:
    assert ingress_ceiling_bps(NetworkOfClass(**qos), 1000) == ceiling


def of(**qos: Any) -> ClassQoS:
    return ClassQoS(network_qos=NetworkOfClass(enable=True, **qos))


def test_system_has_what_the_guarantees_leave() -> None:
    qos = QoSStrategy(ls_class=of(egress_request=40), be_class=of(egress_request=10, egress_limit=30))
    found, problems = shares(qos, 1000)
    assert found.egress == ((504, 1000), (400, 1000), (96, 296))
    assert problems == []


def test_guarantees_above_the_link_are_said() -> None:
    qos = QoSStrategy(ls_class=of(egress_request=70), be_class=of(egress_request=40))
    found, (problem,) = shares(qos, 1000)
    assert found.egress[0] == Share(8, 1000)
    assert problem == "the guarantees of lsClass and beClass are above the node's 1000 bits/s: none is sure"


def test_what_is_left_out_is_said() -> None:
    qos = QoSStrategy(
        lsr_class=of(egress_request=1), system_class=of(egress_request=1), be_class=of(ingress_request=5)
    )
    assert shares(qos, 1000)[1] == [
        "beClass: ingressRequest is left out: what is received has passed the link already",
        "lsrClass: networkQOS is left out: LSR pods are in lsClass",
        "systemClass: networkQOS is left out: SYSTEM has what the others leave",
    ]


def test_classes_of_pods() -> None:
    assert {qos: network_class(qos) for qos in QoSClass} == {
        QoSClass.NONE: None,
        QoSClass.SYSTEM: NetworkClass.SYSTEM,
        QoSClass.LSE: NetworkClass.LS,
        QoSClass.LSR: NetworkClass.LS,
        QoSClass.LS: NetworkClass.LS,
        QoSClass.BE: NetworkClass.BE,
    }
    assert [(each.leaf, each.inner, each.order) for each in NetworkClass] == [
        (2, 0x20, 1),
        (3, 0x30, 2),
        (4, 0x40, 3),
    ]


def test_the_shares_as_text() -> None:
    wanted = NetworkShares(1000, (Share(8, 1000), Share(400, 800), Share(96, 296)), (0, 0, 200))
    assert str(wanted) == (
        "total 1000 egress SYSTEM 8-1000 LS 400-800 BE 96-296 ingress SYSTEM 0 LS 0 BE 200"
    )
    assert shares_of(str(wanted)) == wanted
    assert shares_of(OFF) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "on",
        7,
        "total 1000 egress SYSTEM 8-1000 LS 400-800 BE 96-296",
        "total 7 egress SYSTEM 8-8 LS 8-8 BE 8-8 ingress SYSTEM 0 LS 0 BE 0",
        "total 1000 egress SYSTEM 8-1000 LS 900-800 BE 96-296 ingress SYSTEM 0 LS 0 BE 0",
        "total 1000 egress SYSTEM 8-1001 LS 8-800 BE 96-296 ingress SYSTEM 0 LS 0 BE 0",
    ],
)
def test_other_texts_are_no_shares(text: object) -> None:
    setting = kernel_setting(NETWORK_QOS)
    assert setting is not None
    assert setting.problem_of(text) == shares_problem(text) != ""


def test_numbers_of_pods_are_above_those_of_classes() -> None:
    found = {pod_minor(f"uid-{number}") for number in range(500)}
    assert len(found) > 490
    assert all(each in POD_MINORS for each in found)


def test_the_node_has_the_shares_with_their_arithmetic() -> None:
    change = NetworkQoS().node(node())
    assert change is not None
    text = (
        "total 1000000000 egress SYSTEM 500000000-1000000000 LS 400000000-800000000 "
        "BE 100000000-300000000 ingress SYSTEM 0 LS 0 BE 200000000"
    )
    assert change.kernel_settings == {NETWORK_QOS: text}
    assert change.problems == ()
    reason = str(change.reasons[NETWORK_QOS])
    assert "LS (cluster strategy of resource-qos-config" in reason
    assert (
        "egressRequest 40 % of 1000000000 = 400000000, egressLimit 80 % of 1000000000 = 800000000" in reason
    )
    assert reason.endswith(f" = {text}")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param(node(total=""), "the node's bandwidth is not known", id="no bandwidth"),
        pytest.param(
            node({"policies": {"netQOSPolicy": "terway-qos"}, "beClass": {"networkQOS": BE}}),
            "netQOSPolicy is terway-qos, which is not supported here",
            id="terway-qos",
        ),
    ],
)
def test_it_is_off_and_says_why(given: Node, why: str) -> None:
    change = NetworkQoS().node(given)
    assert change is not None
    assert change.kernel_settings == {NETWORK_QOS: OFF}
    assert change.problems[0].startswith(why)
    assert NetworkQoS().pod(pod(), given) is None


def test_without_strategies_nothing_is_wanted() -> None:
    assert NetworkQoS().node(Node()) is None


@pytest.mark.parametrize("lacking", [Feature.TC, Feature.NFT, Feature.NET_ADMIN])
def test_a_node_without_the_programs_or_the_right_has_it_off(lacking: Feature) -> None:
    features = frozenset({Feature.TC, Feature.NFT, Feature.NET_ADMIN})
    given = node(features=features - {lacking})
    assert unmet_on(bind(NetworkQoS()), given) == Unmet(features=(lacking,))
    assert str(Unmet(features=(lacking,))).startswith("the node lacks ")
    assert unmet_on(bind(NetworkQoS()), node(features=features)) is None


def test_a_pod_has_its_class_and_the_share_of_it() -> None:
    change = NetworkQoS().pod(pod(), node())
    assert change is not None
    assert change.cgroup == {CLASS_FIELD: "BE"}
    assert str(change.reasons[CLASS_FIELD]) == (
        "BE pods are in BE, class 4b52:4: guarantee 100000000, ceiling 300000000 of 1000000000 bits/s sent, "
        "ceiling 200000000 bits/s received = BE"
    )


def test_a_pod_has_limits_of_its_own() -> None:
    change = NetworkQoS().pod(pod(QoSClass.LSR, ingressLimit="10M", egressLimit="20000003"), node())
    assert change is not None
    assert change.cgroup == {CLASS_FIELD: "LS", EGRESS_FIELD: 20_000_000, INGRESS_FIELD: 10_000_000}
    reason = str(change.reasons[EGRESS_FIELD])
    assert reason == (f"limit (annotation {ANNOTATION}) 20000003 bits/s in whole bytes = 20000000")


def test_what_nftables_cannot_limit_is_said_and_not_asked_for() -> None:
    """It would refuse the limits of all other pods with it."""
    change = NetworkQoS().pod(pod(ingressLimit="200G", egressLimit="200G"), node(total="400G"))
    assert change is not None
    assert INGRESS_FIELD not in change.cgroup
    assert change.cgroup[EGRESS_FIELD] == 200 * GIGABIT
    (problem,) = change.problems
    most = f"{MOST_RECEIVED_BPS} bits/s, the most that nftables can limit"
    assert str(problem) == f"ingressLimit {200 * GIGABIT} is above {most}: it is left out"
    qos = QoSStrategy(be_class=ClassQoS(network_qos=NetworkOfClass(enable=True, ingress_limit=50)))
    found, problems = shares(qos, 400 * GIGABIT)
    assert found.ingress_ceilings_bps == (0, 0, 0)
    assert [each.partition(" ")[0] for each in problems] == ["beClass:"]
    assert "most that nftables can limit" in problems[0]


def test_cgroup_version_1_has_numbers_of_classes() -> None:
    given = node(facts=NodeFacts(controllers={"net_cls": 1}))
    plain, limited = (NetworkQoS().pod(each, given) for each in (pod(), pod(egressLimit="1M")))
    assert plain is not None
    assert limited is not None
    assert plain.cgroup[CLASSID] == 0x4B52_0004
    assert limited.cgroup[CLASSID] == 0x4B52_0000 | pod_minor("u-1")


def test_an_invalid_annotation_is_said_and_the_class_stays() -> None:
    view = PodView(uid="u-1", qos=QoSClass.BE, annotations={ANNOTATION: '{"egressLimit":"fast"}'})
    change = NetworkQoS().pod(view, node())
    assert change is not None
    assert change.cgroup == {CLASS_FIELD: "BE"}
    assert "egressLimit" in change.problems[0]


def test_pods_without_a_class_are_left_alone() -> None:
    assert NetworkQoS().pod(pod(QoSClass.NONE), node()) is None
