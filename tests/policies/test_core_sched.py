"""Core scheduling: the group of a pod, what is idle, and the kernel's switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policies.core_sched import (
    CORE_SCHED_FEATURE,
    CORE_SCHED_SYSCTL,
    GROUP,
    GROUP_IDENTITY_SYSCTL,
    GROUP_LABEL,
    POLICY_LABEL,
    CoreSched,
    is_on,
    pod_group,
)
from runtimeproxy.fields.tables import IDLE, check_value
from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.hooks.decision import Unmet, unmet_on
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

BOTH = frozenset({Feature.CORE_SCHED, Feature.CORE_SCHED_SYSCTL, Feature.GROUP_IDENTITY_SYSCTL})
ON = CpuQoS(enable=True)
EXPELLER = CpuQoS(enable=True, core_expeller=True)
OFF = CpuQoS()
GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoSClass


def rule(
    lsr: CpuQoS = EXPELLER, ls: CpuQoS = EXPELLER, be: CpuQoS = ON, policy: CpuPolicy = CpuPolicy.CORE_SCHED
) -> QoSStrategy:
    classes = {"lsr_class": lsr, "ls_class": ls, "be_class": be}
    values = {name: ClassQoS(cpu_qos=each) for name, each in classes.items()}
    return QoSStrategy(policies=QoSPolicies(cpu_policy=policy), **values)


def node(qos: QoSStrategy | None = None, *applications: HostApplication) -> Node:
    strategies = Strategies(qos=qos or rule(), host_applications=applications)
    return Node(strategies=strategies, features=BOTH, cgroup_driver="systemd")


def pod(
    qos: QoSClass = QoSClass.NONE,
    kube_qos: KubeQoSClass = GUARANTEED,
    labels: Mapping[str, str] | None = None,
    annotation: str | None = None,
) -> PodView:
    return PodView(
        uid="u-1",
        qos=qos,
        labels={**({QOS_CLASS_LABEL: qos.value} if qos else {}), **(labels or {})},
        kube_qos=kube_qos,
        annotations={} if annotation is None else {CPU_QOS: annotation},
    )


def group(view: PodView, on: Node) -> int | str | None:
    change = CoreSched().container(ContainerView(name="main", pod=view), on)
    value = None if change is None else change.cgroup.get(GROUP)
    assert value is None or (isinstance(value, str) and not check_value(GROUP, value))
    return value


@pytest.mark.parametrize(
    ("view", "qos", "expected"),
    [
        (pod(QoSClass.LS, labels={GROUP_LABEL: "web"}), rule(), "group:web:expeller"),
        (pod(QoSClass.LS, labels={GROUP_LABEL: "web"}), rule(ls=ON), "group:web"),
        (pod(QoSClass.BE, labels={GROUP_LABEL: "web"}), rule(), "group:web"),
        (pod(QoSClass.BE, labels={GROUP_LABEL: "web", POLICY_LABEL: ""}), rule(), "group:web"),
        # Without a label all pods of a node are in one group.
        (pod(QoSClass.LS), rule(), "group::expeller"),
        (pod(QoSClass.BE), rule(), "group:"),
        (pod(QoSClass.LS, labels={POLICY_LABEL: "exclusive"}), rule(), "pod:u-1:expeller"),
        (pod(QoSClass.BE, labels={GROUP_LABEL: "a", POLICY_LABEL: "exclusive"}), rule(), "pod:u-1"),
        (pod(QoSClass.LS, labels={GROUP_LABEL: "a", POLICY_LABEL: "none"}), rule(), None),
        # By class.
        (pod(QoSClass.LSE), rule(), "group::expeller"),
        (pod(QoSClass.LSR), rule(lsr=ON), "group:"),
        (pod(QoSClass.LSR), rule(lsr=OFF), None),
        (pod(QoSClass.BE), rule(be=OFF), None),
        (pod(QoSClass.SYSTEM), rule(), None),
        (pod(QoSClass.SYSTEM, labels={POLICY_LABEL: "exclusive"}), rule(), None),
        # Without a class: that of the Kubernetes QoS class.
        (pod(), rule(lsr=ON), "group:"),
        (pod(), rule(lsr=OFF), "group::expeller"),
        (pod(), rule(lsr=OFF, ls=OFF), None),
        (pod(kube_qos=BURSTABLE), rule(lsr=ON), "group::expeller"),
        (pod(kube_qos=BEST_EFFORT), rule(), "group:"),
        # The annotation of an LS pod, and of no other one.
        (pod(QoSClass.LS, annotation='{"enable":false}'), rule(), None),
        (pod(QoSClass.LS, annotation='{"enable":true,"coreExpeller":false}'), rule(), "group:"),
        (pod(QoSClass.BE, annotation='{"enable":true,"coreExpeller":true}'), rule(), "group:"),
        (pod(QoSClass.BE, annotation='{"enable":true}'), rule(be=OFF), None),
        # No class, or another CPU policy.
        (pod(QoSClass.LS), rule(OFF, OFF, OFF), None),
        (pod(QoSClass.LS), rule(policy=CpuPolicy.GROUP_IDENTITY), None),
        # A label of a pod of another class does not lead into an expeller's group.
        (pod(QoSClass.BE, labels={GROUP_LABEL: "web-expeller"}), rule(), "group:web-expeller"),
    ],
)
def test_the_group_of_a_pod(view: PodView, qos: QoSStrategy, expected: str | None) -> None:
    assert group(view, node(qos)) == expected


@pytest.mark.parametrize(
    ("labels", "uid", "problem"),
    [
        ({POLICY_LABEL: "exlusive"}, "u", f"label {POLICY_LABEL} is 'exlusive', not none or exclusive"),
        ({GROUP_LABEL: "a b"}, "u", f"label {GROUP_LABEL} is 'a b', no value of a label"),
        ({GROUP_LABEL: "x" * 64}, "u", "no value of a label"),
        ({GROUP_LABEL: "web:expeller"}, "u", "no value of a label"),
        ({GROUP_LABEL: "web\n"}, "u", "no value of a label"),
        ({POLICY_LABEL: "exclusive"}, "", "the pod's uid '' is none"),
        ({POLICY_LABEL: "exclusive"}, "../x", "the pod's uid '../x' is none"),
    ],
)
def test_what_cannot_be_read_is_a_problem(labels: Mapping[str, str], uid: str, problem: str) -> None:
    """The pod keeps what it has: it may have asked for a group of its own."""
    found = pod_group(labels, uid, QoSClass.LS, ON)
    assert found.name == ""
    assert problem in found.problem
    view = replace(pod(QoSClass.LS, labels=labels), uid=uid)
    change = CoreSched().container(ContainerView(name="main", pod=view), node())
    assert change is not None
    assert change.cgroup == {}
    assert problem in change.problems[0]


def test_the_reason() -> None:
    view = pod(QoSClass.BE, labels={GROUP_LABEL: "web"})
    change = CoreSched().container(ContainerView(name="main", pod=view), node())
    assert change is not None
    text = str(change.reasons[GROUP])
    assert text.startswith("core scheduling of BE pods ")
    assert text.endswith(f"label {GROUP_LABEL} web = group:web")


@pytest.mark.parametrize(
    ("view", "qos", "is_idle"),
    [
        (pod(QoSClass.BE, BEST_EFFORT), rule(be=replace(ON, sched_idle=1)), True),
        (pod(kube_qos=BEST_EFFORT), rule(be=replace(ON, sched_idle=1)), True),
        (pod(QoSClass.BE, BEST_EFFORT), rule(), False),
        (pod(QoSClass.BE, BURSTABLE), rule(be=replace(ON, sched_idle=1)), False),
        (pod(QoSClass.LS, BURSTABLE), rule(ls=replace(ON, sched_idle=1)), False),
        (pod(QoSClass.SYSTEM, BEST_EFFORT), rule(be=replace(ON, sched_idle=1)), False),
        (
            pod(QoSClass.BE, BEST_EFFORT),
            rule(be=replace(ON, sched_idle=1), policy=CpuPolicy.GROUP_IDENTITY),
            False,
        ),
    ],
)
def test_idle_pods(view: PodView, qos: QoSStrategy, is_idle: bool) -> None:
    change = CoreSched().pod(view, node(qos))
    assert (change is not None and change.cgroup == {IDLE: 1}) is is_idle


def test_idle_host_applications() -> None:
    applications = (
        HostApplication(name="a", qos=QoSClass.LS),
        HostApplication(name="b", qos=QoSClass.BE),
        HostApplication(name="..", qos=QoSClass.BE),
    )
    change = CoreSched().node(node(rule(be=replace(ON, sched_idle=1)), *applications))
    assert change is not None
    assert change.cgroups == {"/host-best-effort/b": {IDLE: 1}}
    assert "host application .." in change.problems[0]
    change = CoreSched().node(node(rule(), *applications))
    assert change is not None
    assert change.cgroups == {}


def test_the_kernels_switches_are_set_group_identity_first() -> None:
    change = CoreSched().node(node())
    assert change is not None
    assert list(change.sysctl.items()) == [(GROUP_IDENTITY_SYSCTL, 0), (CORE_SCHED_SYSCTL, 1)]
    change = CoreSched().node(replace(node(), features=frozenset({Feature.CORE_SCHED})))
    assert change is not None
    assert (change.sysctl, change.kernel_settings) == ({}, {}), "of mainline kernels"
    features = frozenset({Feature.CORE_SCHED, Feature.CORE_SCHED_FEATURE, Feature.GROUP_IDENTITY_SYSCTL})
    change = CoreSched().node(replace(node(), features=features))
    assert change is not None
    assert (change.sysctl, change.kernel_settings) == ({GROUP_IDENTITY_SYSCTL: 0}, {CORE_SCHED_FEATURE: 1})


@pytest.mark.parametrize("qos", [QoSStrategy(), rule(OFF, OFF, OFF), rule(policy=CpuPolicy.GROUP_IDENTITY)])
def test_off(qos: QoSStrategy) -> None:
    assert not is_on(Strategies(qos=qos))
    assert CoreSched().node(node(qos)) is None


def test_what_it_needs() -> None:
    """Koordinator's gate CoreSched is off."""
    assert not CoreSched.is_default
    assert CoreSched.inputs == {Input.STRATEGIES}
    policy = bind(CoreSched())
    strategies = Strategies(qos=rule())
    without = Node(strategies=strategies, features=frozenset({Feature.BVT}))
    assert unmet_on(policy, without) == Unmet(features=("core-sched",))
    assert unmet_on(policy, replace(without, states={Input.STRATEGIES: InputState.WITHDRAWN})) is None
    assert unmet_on(policy, node()) is None
