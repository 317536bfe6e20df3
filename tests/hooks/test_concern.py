from __future__ import annotations

import pytest

from policies.batch_resource import BatchResource
from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import EVERY_POD, Concern, ContainerView, Hook, PodChange, PodView, Policy
from runtimeproxy.hooks.call import Order
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.checks import check_policy_class
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.qos import QoSClass

BE = PodView(qos=QoSClass.BE)
LS = PodView(qos=QoSClass.LS, annotations={"a": "1"})


@pytest.mark.parametrize(
    ("concern", "pod", "expected"),
    [
        pytest.param(EVERY_POD, PodView(), True, id="no-conditions"),
        pytest.param(Concern(qos_classes=frozenset({QoSClass.BE})), BE, True, id="qos-class"),
        pytest.param(Concern(qos_classes=frozenset({QoSClass.BE})), LS, False, id="other-qos-class"),
        pytest.param(Concern(qos_classes=frozenset({QoSClass.NONE})), PodView(), True, id="no-qos-label"),
        pytest.param(Concern(qos_classes=frozenset()), PodView(), False, id="no-class-at-all"),
        pytest.param(Concern(annotations=("a", "b")), LS, True, id="one-of-the-annotations"),
        pytest.param(Concern(annotations=("b",)), LS, False, id="annotation-missing"),
        pytest.param(
            Concern(qos_classes=frozenset({QoSClass.BE}), annotations=("a",)), LS, False, id="both-must-hold"
        ),
    ],
)
def test_a_concern_is_about_pods(concern: Concern, pod: PodView, expected: bool) -> None:
    assert concern.matches(pod) is expected
    assert concern.matches(ContainerView(pod=pod)) is expected


class Labels(Policy):
    """Gives a pod the annotation that the next policy needs."""

    name = "labels"
    priority = 1
    concern = Concern(qos_classes=frozenset({QoSClass.LS}))

    def pre_run_pod_sandbox(self, pod: PodView) -> PodChange:
        return PodChange(annotations={"b": "2"}, reason="test")


class Needs(Policy):
    """Changes pods that have the annotation."""

    name = "needs"
    concern = Concern(annotations=("b",))

    def pre_run_pod_sandbox(self, pod: PodView) -> PodChange:
        return PodChange(labels={"seen": "yes"}, reason="test")


def test_nobody_is_asked_about_a_pod_that_concerns_nobody() -> None:
    chain = Chain([bind(BatchResource())], Workers())
    assert chain.wants(Hook.PRE_RUN_POD_SANDBOX)
    assert not chain.concerns(Hook.PRE_RUN_POD_SANDBOX, BE)
    assert not chain.concerns(Hook.POST_STOP_CONTAINER, ContainerView())


async def test_a_concern_looks_at_the_pod_as_earlier_policies_left_it() -> None:
    workers = Workers()
    chain = Chain([bind(Labels()), bind(Needs())], workers)
    decision = await chain.decide(Order(Hook.PRE_RUN_POD_SANDBOX, LS, 5))
    assert decision.owners == {"annotations[b]": "labels", "labels[seen]": "needs"}
    unconcerned = await chain.decide(Order(Hook.PRE_RUN_POD_SANDBOX, BE, 5))
    assert unconcerned.change is None
    workers.close()


def test_a_concern_of_another_type_is_refused_at_load() -> None:
    class Wrong(Needs):
        """Names a class where conditions are meant."""

        name = "wrong"
        concern = QoSClass.BE  # type: ignore[assignment]  # the mistake that is to be found

    with pytest.raises(PolicyLoadError, match="is not a Concern"):
        check_policy_class(Wrong)


class _Broader(Concern):
    """One that looks where it likes."""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (_Broader(), "is not a Concern"),
        (Concern(annotations="key"), "annotations"),  # type: ignore[arg-type]
        (Concern(annotations=(1,)), "annotations"),  # type: ignore[arg-type]
        (Concern(annotations=(b"key",)), "annotations"),  # type: ignore[arg-type]
        (Concern(annotations=("\ud800",)), "annotations"),
        (Concern(annotations=("",)), "annotations"),
        (Concern(qos_classes={QoSClass.BE}), "qos_classes"),  # type: ignore[arg-type]
        (Concern(qos_classes=frozenset({"BE"})), "qos_classes"),  # type: ignore[arg-type]
    ],
    ids=["subclass", "text", "number", "bytes", "surrogate", "empty", "set", "class as text"],
)
def test_a_concern_that_could_disturb_the_loop_is_refused_at_load(wrong: Concern, why: str) -> None:
    class Wrong(Needs):
        """Has conditions that cannot be looked at."""

        name = "wrong"
        concern = wrong

    with pytest.raises(PolicyLoadError, match=why):
        check_policy_class(Wrong)
