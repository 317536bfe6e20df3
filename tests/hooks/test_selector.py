from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from policies.batch_resource import BatchResource
from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import (
    EVERY_POD,
    Hook,
    LabelOperator,
    LabelRequirement,
    LabelSelector,
    PodChange,
    PodSelector,
    PodView,
    Policy,
)
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.hooks.policy_checks import check_policy_class
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import QoSClass
from tests.hooks.asking import decide

BE = PodView(qos=QoSClass.BE)
WEB = PodView(namespace="prod", labels={"app": "web", "tier": "front"})
LS = PodView(qos=QoSClass.LS, annotations={"a": "1"})


def require(key: str, operator: str, *values: str) -> LabelRequirement:
    return LabelRequirement(key=key, operator=LabelOperator(operator), values=values)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (require("app", "In", "db", "web"), True),
        (require("app", "In", "db"), False),
        (require("absent", "In", "db"), False),
        (require("app", "NotIn", "db"), True),
        (require("app", "NotIn", "web"), False),
        (require("absent", "NotIn", "db"), True),
        (require("app", "Exists"), True),
        (require("absent", "Exists"), False),
        (require("app", "DoesNotExist"), False),
        (require("absent", "DoesNotExist"), True),
    ],
)
def test_labels_are_compared_as_kubernetes_does(requirement: LabelRequirement, expected: bool) -> None:
    assert requirement.matches(WEB.labels) is expected


@pytest.mark.parametrize(
    ("settings", "pod", "expected"),
    [
        (PolicySettings(), LS, True),
        (PolicySettings(namespaces=("prod",)), replace(LS, namespace="prod"), True),
        (PolicySettings(namespaces=("prod",)), LS, False),
        (PolicySettings(namespaces=("prod",)), WEB, False),
        (PolicySettings(selector=LabelSelector(match_labels={"app": "web"})), WEB, False),
        (
            PolicySettings(selector=LabelSelector(match_labels={"app": "web"})),
            replace(LS, labels={"app": "web"}),
            True,
        ),
    ],
)
def test_the_operators_conditions_hold_beside_the_policys(
    settings: PolicySettings, pod: PodView, expected: bool
) -> None:
    workers = Workers()
    chain = Chain([bind(Labels(), settings)], workers)
    assert bool(chain.policies_for(Hook.PRE_RUN_POD_SANDBOX, pod)) is expected
    decision = asyncio.run(decide(chain, Hook.PRE_RUN_POD_SANDBOX, view=pod))
    workers.close()
    assert (decision.change is not None) is expected


def test_two_selectors_hold_together() -> None:
    own = PodSelector(
        namespaces=frozenset({"prod", "dev"}), labels=LabelSelector(match_labels={"app": "web"})
    )
    assert own.narrowed(("prod",), LabelSelector(match_labels={"tier": "front"})).matches(WEB)
    assert own.narrowed((), LabelSelector(match_expressions=(require("tier", "Exists"),))).matches(WEB)
    for namespaces, labels in (
        (("test",), LabelSelector()),
        ((), LabelSelector(match_labels={"app": "db"})),
        ((), LabelSelector(match_expressions=(require("tier", "DoesNotExist"),))),
    ):
        assert not own.narrowed(namespaces, labels).matches(WEB)
    assert not own.narrowed(("test",), None).matches(replace(WEB, namespace="test"))


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        (PodSelector(namespaces=("prod",)), "namespaces ('prod',) is not a frozenset"),  # type: ignore[arg-type]
        (PodSelector(namespaces=frozenset({"Prod"})), "namespaces: 'Prod' is not the name of a namespace"),
        (PodSelector(labels={"app": "web"}), "such as LabelSelector(match_labels={'tier': 'batch'})"),  # type: ignore[arg-type]
        (
            PodSelector(labels=LabelSelector(match_expressions=[require("a", "Exists")])),  # type: ignore[arg-type]
            "is not a LabelSelector of LabelRequirements",
        ),
        (
            PodSelector(labels=LabelSelector(match_expressions=(require("app", "In"),))),
            "match_expressions.0.values: In needs values",
        ),
        (
            PodSelector(labels=LabelSelector(match_labels={"app": "a b"})),
            "match_labels.app: 'a b' is not the value of a label",
        ),
        (
            PodSelector(labels=LabelSelector(match_expressions=(require("-/x", "Exists"),))),
            "match_expressions.0.key: '-/x' is not the name of a label",
        ),
    ],
)
def test_a_selector_is_checked_at_load(selector: PodSelector, reason: str) -> None:
    policy = type("Picky", (Labels,), {"name": "picky", "selector": selector})
    with pytest.raises(PolicyLoadError, match=re.escape(reason)):
        check_policy_class(policy)


@pytest.mark.parametrize(
    ("selector", "pod", "expected"),
    [
        pytest.param(EVERY_POD, PodView(), True, id="no-conditions"),
        pytest.param(PodSelector(qos_classes=frozenset({QoSClass.BE})), BE, True, id="qos-class"),
        pytest.param(PodSelector(qos_classes=frozenset({QoSClass.BE})), LS, False, id="other-qos-class"),
        pytest.param(PodSelector(qos_classes=frozenset({QoSClass.NONE})), PodView(), True, id="no-qos-label"),
        pytest.param(PodSelector(qos_classes=frozenset()), PodView(), False, id="no-class-at-all"),
        pytest.param(PodSelector(annotations=("a", "b")), LS, True, id="one-of-the-annotations"),
        pytest.param(PodSelector(annotations=("b",)), LS, False, id="annotation-missing"),
        pytest.param(
            PodSelector(qos_classes=frozenset({QoSClass.BE}), annotations=("a",)),
            LS,
            False,
            id="both-must-hold",
        ),
        pytest.param(PodSelector(namespaces=frozenset({"prod", "dev"})), WEB, True, id="namespace"),
        pytest.param(PodSelector(namespaces=frozenset({"dev"})), WEB, False, id="other-namespace"),
        pytest.param(PodSelector(labels=LabelSelector(match_labels={"app": "web"})), WEB, True, id="label"),
        pytest.param(
            PodSelector(labels=LabelSelector(match_labels={"app": "db"})), WEB, False, id="other-value"
        ),
        pytest.param(
            PodSelector(labels=LabelSelector(match_labels={"x": ""})), WEB, False, id="no-such-label"
        ),
        pytest.param(
            PodSelector(
                namespaces=frozenset({"prod"}),
                labels=LabelSelector(
                    match_labels={"app": "web"}, match_expressions=(require("tier", "NotIn", "front"),)
                ),
            ),
            WEB,
            False,
            id="all-must-hold",
        ),
    ],
)
def test_a_selector_matches_pods(selector: PodSelector, pod: PodView, expected: bool) -> None:
    assert selector.matches(pod) is expected


class Labels(Policy):
    """Gives a pod the annotation that the next policy needs."""

    name = "labels"
    priority = 1
    selector = PodSelector(qos_classes=frozenset({QoSClass.LS}))

    def pod(self, pod: PodView, node: Node) -> PodChange:
        return PodChange(annotations={"b": "2"}, reason="test")


class Needs(Policy):
    """Changes pods that have the annotation."""

    name = "needs"
    selector = PodSelector(annotations=("b",))

    def pod(self, pod: PodView, node: Node) -> PodChange:
        return PodChange(labels={"seen": "yes"}, reason="test")


def test_no_policy_runs_for_a_pod_that_no_selector_matches() -> None:
    chain = Chain([bind(BatchResource())], Workers())
    assert Hook.PRE_RUN_POD_SANDBOX in chain.hooks
    assert not chain.policies_for(Hook.PRE_RUN_POD_SANDBOX, BE)
    assert not chain.policies_for(Hook.POST_STOP_CONTAINER, PodView())


async def test_a_selector_looks_at_the_pod_as_earlier_policies_left_it() -> None:
    workers = Workers()
    chain = Chain([bind(Labels()), bind(Needs())], workers)
    decision = await decide(chain, Hook.PRE_RUN_POD_SANDBOX, view=LS)
    assert decision.owners == {"annotations[b]": (Claimant("labels"),), "labels[seen]": (Claimant("needs"),)}
    other = await decide(chain, Hook.PRE_RUN_POD_SANDBOX, view=BE)
    assert other.change is None
    workers.close()


def test_a_selector_of_another_type_is_refused_at_load() -> None:
    class Wrong(Needs):
        """Names a class where conditions are meant."""

        name = "wrong"
        selector = QoSClass.BE  # type: ignore[assignment]  # the mistake that is to be found

    with pytest.raises(PolicyLoadError, match="is not a PodSelector"):
        check_policy_class(Wrong)


class _Broader(PodSelector):
    """One that looks where it likes."""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (_Broader(), "is not a PodSelector"),
        (PodSelector(annotations="key"), "annotations"),  # type: ignore[arg-type]
        (PodSelector(annotations=(1,)), "annotations"),  # type: ignore[arg-type]
        (PodSelector(annotations=(b"key",)), "annotations"),  # type: ignore[arg-type]
        (PodSelector(annotations=("\ud800",)), "annotations"),
        (PodSelector(annotations=("",)), "annotations"),
        (PodSelector(qos_classes={QoSClass.BE}), "qos_classes"),  # type: ignore[arg-type]
        (PodSelector(qos_classes=frozenset({"BE"})), "qos_classes"),  # type: ignore[arg-type]
    ],
    ids=["subclass", "text", "number", "bytes", "surrogate", "empty", "set", "class as text"],
)
def test_a_selector_that_could_disturb_the_loop_is_refused_at_load(wrong: PodSelector, why: str) -> None:
    class Wrong(Needs):
        """Has conditions that cannot be looked at."""

        name = "wrong"
        selector = wrong

    with pytest.raises(PolicyLoadError, match=why):
        check_policy_class(Wrong)
