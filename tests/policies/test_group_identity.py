"""Group identity. Cases Vnnn are those of Koordinator's groupidentity/rule_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.group_identity import (
    BVT,
    CORE_SCHED_FEATURE,
    CORE_SCHED_SYSCTL,
    GROUP_IDENTITY_SYSCTL,
    GroupIdentity,
    directory_identity,
    host_identity,
    is_on,
)
from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.hooks.decision import Unmet, evaluate, unmet_for, unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import QOS_CLASS_LABEL, KubeQoSClass, QoSClass
from runtimeproxy.slo.names import CPU_QOS
from runtimeproxy.slo.schema import (
    ClassQoS,
    CpuPolicy,
    CpuQoS,
    HostApplication,
    QoSPolicies,
    QoSStrategy,
)
from runtimeproxy.slo.strategies import Strategies

FEATURES = frozenset({Feature.BVT, Feature.GROUP_IDENTITY_SYSCTL, Feature.CORE_SCHED_SYSCTL})


def _class(identity: int | None) -> ClassQoS:
    """A class; None: not enabled, with the values that such a class has."""
    return ClassQoS() if identity is None else ClassQoS(cpu_qos=CpuQoS(enable=True, group_identity=identity))


def rule(lsr: int | None = 2, ls: int | None = 2, be: int | None = -1) -> QoSStrategy:
    return QoSStrategy(lsr_class=_class(lsr), ls_class=_class(ls), be_class=_class(be))


def node(qos: QoSStrategy | None = None, *applications: HostApplication) -> Node:
    strategies = Strategies(qos=qos or rule(), host_applications=applications)
    return Node(strategies=strategies, features=FEATURES, cgroup_driver="systemd")


def pod(
    qos: QoSClass = QoSClass.NONE,
    kube_qos: KubeQoSClass = KubeQoSClass.GUARANTEED,
    annotation: str | None = None,
) -> PodView:
    return PodView(
        uid="u",
        qos=qos,
        labels={QOS_CLASS_LABEL: qos.value} if qos else {},
        kube_qos=kube_qos,
        annotations={} if annotation is None else {CPU_QOS: annotation},
    )


def identity(view: PodView, on: Node) -> int | str | None:
    """What the policy sets for the pod, and the same for its containers; None for nothing."""
    change = GroupIdentity().pod(view, on)
    changed = GroupIdentity().container(ContainerView(name="main", pod=view), on)
    cgroup = {} if change is None else change.cgroup
    assert cgroup == ({} if changed is None else changed.cgroup)
    value = cgroup.get(BVT)
    assert value is None or isinstance(value, int)
    return value


GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoSClass


@pytest.mark.parametrize(
    ("view", "qos", "expected"),
    [
        pytest.param(pod(QoSClass.LS, BURSTABLE), rule(), 2, id="V047"),
        pytest.param(pod(QoSClass.LSR), rule(1, 2, -1), 1, id="LSR"),
        pytest.param(pod(QoSClass.LSE), rule(1, 2, -1), 1, id="LSE"),
        pytest.param(pod(QoSClass.BE, BEST_EFFORT), rule(), -1, id="BE"),
        pytest.param(
            pod(QoSClass.LS, annotation='{"enable":true,"groupIdentity":-1}'), rule(), -1, id="V050"
        ),
        pytest.param(pod(QoSClass.LS, annotation='{"groupIdentity":1}'), rule(), 0, id="enable-is-absent"),
        pytest.param(pod(QoSClass.LS, annotation='{"enable":true}'), rule(), 2, id="without-a-value"),
        pytest.param(pod(QoSClass.BE, annotation='{"enable":true,"groupIdentity":2}'), rule(), -1, id="V053"),
        pytest.param(pod(QoSClass.LSR), rule(None, 2, -1), 0, id="V058-LSR"),
        pytest.param(pod(QoSClass.LSE), rule(None, 2, -1), 0, id="V058-LSE"),
        pytest.param(pod(), rule(None, 2, -1), 2, id="V058-unlabeled"),
        pytest.param(pod(), rule(1, 2, -1), 1, id="unlabeled-as-LSR"),
        pytest.param(pod(), rule(None, None, -1), 0, id="V059-unlabeled"),
        pytest.param(pod(QoSClass.BE, BEST_EFFORT), rule(None, None, -1), -1, id="V059-BE"),
        pytest.param(pod(kube_qos=BURSTABLE), rule(2, 1, -1), 1, id="unlabeled-burstable"),
        pytest.param(pod(kube_qos=BEST_EFFORT), rule(), -1, id="unlabeled-besteffort"),
        pytest.param(pod(QoSClass.SYSTEM, BURSTABLE), rule(2, 1, -1), 1, id="system-as-unlabeled"),
    ],
)
def test_identity_of_a_pod(view: PodView, qos: QoSStrategy, expected: int) -> None:
    assert identity(view, node(qos)) == expected


def test_an_annotation_out_of_range_leaves_the_pod_alone() -> None:
    """V052."""
    view = pod(QoSClass.LS, annotation='{"enable":true,"groupIdentity":3}')
    assert identity(view, node()) is None
    change = GroupIdentity().pod(view, node())
    assert change is not None
    assert CPU_QOS in change.problems[0]


@pytest.mark.parametrize(
    ("directory", "qos", "expected"),
    [
        pytest.param(GUARANTEED, rule(), 0, id="V049-kubepods"),
        pytest.param(BURSTABLE, rule(), 2, id="V049-burstable"),
        pytest.param(BEST_EFFORT, rule(), -1, id="V049-besteffort"),
        pytest.param(BURSTABLE, rule(None, None, -1), 0, id="V059-burstable"),
    ],
)
def test_identity_of_a_directory(directory: KubeQoSClass, qos: QoSStrategy, expected: int) -> None:
    assert directory_identity(directory, qos) == expected
    change = GroupIdentity().qos_class(directory, (), node(qos))
    assert change is not None
    assert change.cgroup == {BVT: expected}


@pytest.mark.parametrize(
    ("qos_class", "expected"),
    [
        pytest.param(QoSClass.LS, 2, id="V062-LS"),
        pytest.param(QoSClass.NONE, 0, id="V062-unknown"),
        pytest.param(QoSClass.SYSTEM, 0, id="SYSTEM"),
        pytest.param(QoSClass.LSR, 1, id="LSR"),
        pytest.param(QoSClass.BE, -1, id="BE"),
    ],
)
def test_identity_of_a_host_application(qos_class: QoSClass, expected: int) -> None:
    assert host_identity(qos_class, rule(1, 2, -1)) == expected


@pytest.mark.parametrize(
    "qos",
    [
        pytest.param(QoSStrategy(), id="V055"),
        pytest.param(rule(None, None, None), id="V056"),
        pytest.param(replace(rule(), policies=QoSPolicies(cpu_policy=CpuPolicy.CORE_SCHED)), id="core-sched"),
    ],
)
def test_without_an_enabled_class_nothing_is_set(qos: QoSStrategy) -> None:
    assert not is_on(Strategies(qos=qos))
    assert identity(pod(QoSClass.LS), node(qos)) is None
    assert GroupIdentity().node(node(qos, HostApplication(name="a", qos=QoSClass.LS))) is None
    for directory in KubeQoSClass:
        assert GroupIdentity().qos_class(directory, (), node(qos)) is None


def test_no_policies_mean_group_identity() -> None:
    """V061."""
    assert is_on(Strategies(qos=rule()))


def test_the_kernels_switches_are_set_core_scheduling_first() -> None:
    change = GroupIdentity().node(node())
    assert change is not None
    assert list(change.sysctl.items()) == [(CORE_SCHED_SYSCTL, 0), (GROUP_IDENTITY_SYSCTL, 1)]


def test_a_kernel_whose_core_scheduling_is_a_feature_of_the_scheduler() -> None:
    features = frozenset({Feature.BVT, Feature.GROUP_IDENTITY_SYSCTL, Feature.CORE_SCHED_FEATURE})
    change = GroupIdentity().node(replace(node(), features=features))
    assert change is not None
    assert (change.sysctl, change.kernel_settings) == ({GROUP_IDENTITY_SYSCTL: 1}, {CORE_SCHED_FEATURE: 0})


def test_a_kernel_without_the_switch_needs_none() -> None:
    change = GroupIdentity().node(
        replace(node(), features=frozenset({Feature.BVT, Feature.CORE_SCHED_SYSCTL}))
    )
    assert change is not None
    assert not change.sysctl


def test_host_applications_get_their_class() -> None:
    change = GroupIdentity().node(
        node(
            None,
            HostApplication(name="a", qos=QoSClass.LS),
            HostApplication(name="..", qos=QoSClass.BE),
        )
    )
    assert change is not None
    assert change.cgroups == {"/host-latency-sensitive/a": {BVT: 2}}
    assert "host application .." in change.problems[0]


def test_what_it_needs() -> None:
    """Koordinator's gate GroupIdentity is on."""
    assert GroupIdentity.is_default
    assert GroupIdentity.features == {Feature.BVT}
    assert GroupIdentity.inputs == {Input.STRATEGIES}
    assert not GroupIdentity.selector_without[Input.STRATEGIES].matches(pod(QoSClass.LS))


def test_a_kernel_without_group_identity_is_named_in_the_status() -> None:
    policy = bind(GroupIdentity())
    strategies = Strategies(qos=rule())
    without = Node(strategies=strategies, features=frozenset({Feature.BURST}))
    assert unmet_for(policy, pod(QoSClass.LS), without) == Unmet(features=("bvt",))
    assert evaluate([policy], pod(QoSClass.LS), without).audit == ()
    assert unmet_on(policy, without) == Unmet(features=("bvt",))
    # Nothing to say where it has nothing to do, or where the kernel is not known yet.
    assert unmet_on(policy, replace(without, states={Input.STRATEGIES: InputState.WITHDRAWN})) is None
    assert unmet_on(policy, Node(strategies=strategies)) is None
    assert unmet_on(policy, node()) is None
