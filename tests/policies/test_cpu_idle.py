"""Idle groups: which pods and host applications yield where the kernel has no group identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.batch_resource import BatchResource
from policies.cpu_idle import CpuIdle
from runtimeproxy.hooks import PodChange, PodView
from runtimeproxy.hooks.decision import evaluate, unmet_for, unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.snapshot import Feature, Node
from runtimeproxy.qos import QOS_CLASS_LABEL, KubeQoSClass, QoSClass
from runtimeproxy.slo.names import CPU_QOS, EXTENDED_RESOURCE_SPEC
from runtimeproxy.slo.schema import ClassQoS, CpuPolicy, CpuQoS, HostApplication, QoSPolicies, QoSStrategy
from runtimeproxy.slo.strategies import Strategies

FEATURES = frozenset({Feature.IDLE})
GUARANTEED, BURSTABLE, BEST_EFFORT = KubeQoSClass
BATCH = '{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"500"}}}}'


def _class(identity: int | None) -> ClassQoS:
    return ClassQoS() if identity is None else ClassQoS(cpu_qos=CpuQoS(enable=True, group_identity=identity))


def rule(ls: int | None = 2, be: int | None = -1) -> QoSStrategy:
    return QoSStrategy(lsr_class=_class(2), ls_class=_class(ls), be_class=_class(be))


def node(qos: QoSStrategy | None = None, *applications: HostApplication) -> Node:
    strategies = Strategies(qos=qos or rule(), host_applications=applications)
    return Node(strategies=strategies, features=FEATURES, cgroup_driver="systemd")


def pod(qos: QoSClass, kube_qos: KubeQoSClass, **annotations: str) -> PodView:
    labels = {QOS_CLASS_LABEL: qos.value} if qos else {}
    names = {"batch": EXTENDED_RESOURCE_SPEC, "cpu_qos": CPU_QOS}
    given = {names[name]: text for name, text in annotations.items()}
    return PodView(uid="u", qos=qos, labels=labels, kube_qos=kube_qos, annotations=given)


@pytest.mark.parametrize(
    ("view", "qos", "expected"),
    [
        pytest.param(pod(QoSClass.BE, BEST_EFFORT), rule(), {"cpu.idle": 1}, id="BE"),
        pytest.param(pod(QoSClass.NONE, BEST_EFFORT), rule(), {"cpu.idle": 1}, id="without a class"),
        pytest.param(pod(QoSClass.BE, BURSTABLE), rule(), {"cpu.shares": 2}, id="BE with CPU requests"),
        pytest.param(pod(QoSClass.BE, BURSTABLE, batch=BATCH), rule(), {}, id="BE with batch resources, too"),
        # That no other owner sets its weight is for the ledger to see.
        pytest.param(
            pod(QoSClass.BE, BEST_EFFORT, batch=BATCH), rule(), {"cpu.idle": 1}, id="BE with batch resources"
        ),
        pytest.param(pod(QoSClass.LS, BURSTABLE), rule(), {}, id="LS"),
        pytest.param(
            pod(QoSClass.LS, BURSTABLE, cpu_qos='{"enable":true,"groupIdentity":-1}'),
            rule(),
            {"cpu.shares": 2},
            id="LS by annotation",
        ),
        pytest.param(
            pod(QoSClass.LS, BURSTABLE, cpu_qos='{"enable":true,"groupIdentity":3}'), rule(), {}, id="invalid"
        ),
        pytest.param(pod(QoSClass.BE, BEST_EFFORT), rule(be=0), {}, id="neutral"),
        pytest.param(pod(QoSClass.BE, BEST_EFFORT), rule(be=None), {}, id="not enabled"),
        pytest.param(
            pod(QoSClass.BE, BEST_EFFORT),
            replace(rule(), policies=QoSPolicies(cpu_policy=CpuPolicy.CORE_SCHED)),
            {},
            id="core scheduling",
        ),
    ],
)
def test_values_of_a_pod(view: PodView, qos: QoSStrategy, expected: dict[str, int]) -> None:
    change = CpuIdle().pod(view, node(qos))
    assert (change.cgroup if change is not None else {}) == expected


def test_reasons_say_what_stands_for_what() -> None:
    change = CpuIdle().pod(pod(QoSClass.BE, BEST_EFFORT), node())
    assert change is not None
    text = "group identity of BE pods (default) = -1; the kernel has none, so they are idle = 1"
    assert str(change.reasons["cpu.idle"]) == text
    change = CpuIdle().pod(pod(QoSClass.BE, BURSTABLE), node())
    assert change is not None
    assert str(change.reasons["cpu.shares"]).endswith("the least weight (the pod has CPU requests) = 2")


def test_host_applications_that_yield_are_idle() -> None:
    applications = HostApplication(name="a", qos=QoSClass.BE), HostApplication(name="b", qos=QoSClass.LS)
    change = CpuIdle().node(node(rule(), *applications))
    assert change is not None
    assert change.cgroups == {"/host-best-effort/a": {"cpu.idle": 1}}
    assert CpuIdle().node(node(rule())) is None
    assert CpuIdle().node(node(rule(be=None), *applications)) is None


def test_it_is_off_where_the_kernel_has_group_identity_or_no_idle_groups() -> None:
    policy, view = bind(CpuIdle()), pod(QoSClass.BE, BEST_EFFORT)
    assert unmet_for(policy, view, node()) is None
    for features, text in (
        ({Feature.IDLE, Feature.BVT}, "the kernel has bvt"),
        ({Feature.BURST}, "the kernel lacks idle"),
    ):
        on = replace(node(), features=frozenset(features))
        assert str(unmet_for(policy, view, on)) == str(unmet_on(policy, on)) == text
        assert evaluate([policy], view, on).merged.fields == {}


def test_the_weight_of_batch_resources_counts() -> None:
    policies = [bind(CpuIdle()), bind(BatchResource())]
    decision = evaluate(policies, pod(QoSClass.BE, BEST_EFFORT, batch=BATCH), node())
    assert isinstance(decision.change, PodChange)
    assert decision.change.cgroup["cpu.shares"] == 512
