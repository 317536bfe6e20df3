"""Inputs of policies that are not known, kernels that lack something, and evaluation outside of calls."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest

from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    ContainerView,
    Hook,
    Mode,
    NodeChange,
    PodSelector,
    PodView,
    Policy,
    ResolvedPod,
)
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Unmet, evaluate, unmet_for, unmet_on
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.views import ClassView
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import FixedNode, Input, InputState, Node, Pools
from runtimeproxy.qos import KubeQoSClass
from tests.hooks.asking import VIEW, decide, kinds, shares_of, until
from tests.hooks.policy_classes import nothing, raising, refusing, scripted, shares

KNOWN = Node(pools=Pools())
WITHDRAWN = Node(states={Input.POOLS: InputState.WITHDRAWN})
POOLS = frozenset({Input.POOLS})


class ChangingNode:
    """A node that a test replaces."""

    def __init__(self, node: Node) -> None:
        self.latest = node
        self.fresh_until_s = math.inf

    def snapshot(self) -> Node:
        return self.latest


class OldNode(ChangingNode):
    """One whose facts are always old; it notes which threads read them."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.fresh_until_s = 0.0
        self.readers: set[threading.Thread] = set()

    def snapshot(self) -> Node:
        self.readers.add(threading.current_thread())
        return self.latest


async def test_a_policy_is_off_while_an_input_is_unknown(workers: Workers) -> None:
    source = ChangingNode(Node())
    chain = Chain([scripted("a", shares(5), inputs=POOLS), scripted("b", nothing)], workers, node=source)
    decision = await decide(chain)
    assert decision.change is None
    assert decision.without_answer == {"a"}
    assert [(entry.policy, entry.kind, entry.reason) for entry in decision.audit] == [
        ("a", AuditKind.OFF, "not known: pools")
    ]
    for node in (KNOWN, WITHDRAWN):
        source.latest = node
        decision = await decide(chain)
        assert shares_of(decision) == 5
        assert decision.without_answer == frozenset()


async def test_that_is_reported_once_for_each_pod(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    entries: list[AuditEntry] = []
    chain = Chain([scripted("a", shares(5), inputs=POOLS)], workers, sink=entries.append)
    other = ContainerView(name="main", pod=PodView(uid="u2"))
    for view in (VIEW, other, VIEW, other, VIEW):
        await decide(chain, view=view)
    await chain.evaluate(VIEW)
    await until(lambda: len(entries) >= 2)
    assert [(entry.kind, entry.pod_uid) for entry in entries] == [
        (AuditKind.OFF, "u1"),
        (AuditKind.OFF, "u2"),
    ]
    assert caplog.records == []


def test_what_is_known_for_one_pod_only() -> None:
    policy = scripted("a", shares(5), inputs=frozenset({Input.POD_REQUESTS, Input.PRIORITY}))
    node = Node(requests={("u1", "main"): {"memory": 1}})
    pod = PodView(uid="u1", labels={"koordinator.sh/priority-class": "koord-prod"})
    assert unmet_for(policy, pod, node) is None
    other = replace(pod, uid="u2")
    assert unmet_for(policy, other, node) == Unmet((Input.POD_REQUESTS,))
    # A kubelet without a state of its own never says.
    without = Node(states={Input.POD_REQUESTS: InputState.WITHDRAWN})
    assert unmet_for(policy, other, without) is None
    unlabelled = ContainerView(pod=PodView(uid="u1"))
    assert unmet_for(policy, unlabelled, node) == Unmet((Input.PRIORITY,))


@pytest.mark.parametrize(
    ("node", "is_off"),
    [
        pytest.param(Node(), False, id="not-known"),
        pytest.param(Node(features=frozenset({"burst"})), True, id="lacks-it"),
        pytest.param(Node(features=frozenset({"bvt"})), False, id="has-it"),
    ],
)
def test_a_policy_is_off_on_a_kernel_that_lacks_something(node: Node, is_off: bool) -> None:
    policy = scripted("a", shares(5), features=frozenset({"bvt"}))
    decision = evaluate([policy], VIEW, node)
    assert (decision.change is None) is is_off
    # Nothing can be expected of it: neither a report for each pod, nor does what it wanted before hold.
    assert not is_off or (decision.audit, decision.without_answer) == ((), frozenset())
    expected = Unmet(features=("bvt",)) if is_off else None
    assert unmet_for(policy, VIEW, node) == expected
    assert unmet_on(policy, node) == expected
    assert not is_off or str(expected).startswith("the kernel lacks bvt (only ")


def test_the_status_names_policies_that_are_off_while_an_input_is_not_known() -> None:
    inputs = frozenset({Input.STRATEGIES, Input.NORMALIZATION, Input.PRIORITY})
    policy = scripted("a", shares(5), inputs=inputs)
    states = {Input.NORMALIZATION: InputState.KNOWN, Input.STRATEGIES: InputState.UNKNOWN}
    unmet = unmet_on(policy, Node(states=states))
    assert (unmet, str(unmet)) == (Unmet((Input.STRATEGIES,)), "not known: strategies")
    assert unmet_on(policy, Node(states={**states, Input.STRATEGIES: InputState.WITHDRAWN})) is None


@pytest.mark.parametrize("hook", [Hook.POST_START_CONTAINER, Hook.POST_STOP_CONTAINER])
async def test_effects_do_not_depend_on_inputs(workers: Workers, hook: Hook) -> None:
    """What a policy has begun it may have to end."""
    seen: list[ContainerView] = []
    policy = scripted("a", seen.append, inputs=POOLS, features=frozenset({"bvt"}))
    decision = await decide(Chain([policy], workers), hook)
    assert seen == [VIEW]
    assert decision.audit == ()


class Partial(Policy):
    """Does without pools, for fewer pods."""

    name = "partial"
    optional_inputs = POOLS
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.POOLS: PodSelector(annotations=("cpus",))
    }

    def pod(self, pod: PodView, node: Node) -> None:
        return None


ANNOTATED = PodView(uid="u1", annotations={"cpus": "0"})


@pytest.mark.parametrize(
    ("node", "pod", "is_asked"),
    [
        (Node(), PodView(), False),
        (Node(), ANNOTATED, True),
        (WITHDRAWN, PodView(), False),
        (WITHDRAWN, ANNOTATED, True),
        (KNOWN, PodView(), True),
    ],
)
def test_fewer_pods_need_a_policy_while_an_input_is_away(node: Node, pod: PodView, is_asked: bool) -> None:
    chain = Chain([bind(Partial())], Workers(), node=FixedNode(node))
    for hook in (Hook.PRE_RUN_POD_SANDBOX, Hook.EVALUATE_POD):
        assert bool(chain.policies_for(hook, pod)) is is_asked


def test_a_node_that_would_have_to_be_read_is_not_read_for_that() -> None:
    source = OldNode(KNOWN)
    chain = Chain([bind(Partial())], Workers(), node=source)
    assert chain.policies_for(Hook.EVALUATE_POD, PodView())
    source.latest = Node()
    assert not chain.policies_for(Hook.EVALUATE_POD, PodView())
    assert not source.readers


async def test_an_evaluation_is_of_the_present_node(workers: Workers) -> None:
    """Even if its facts have to be read: a worker thread does that."""
    source = OldNode(Node())
    chain = Chain([bind(Partial()), scripted("other", nothing)], workers, node=source)
    for node, held in ((Node(), {"partial"}), (KNOWN, set()), (WITHDRAWN, set()), (Node(), {"partial"})):
        source.latest = node
        for view in (PodView(), VIEW):
            assert (await chain.evaluate(view)).without_answer == held
    assert source.readers
    assert threading.main_thread() not in source.readers


@pytest.mark.parametrize(("node", "expected"), [(Node(), {"partial"}), (WITHDRAWN, set()), (KNOWN, set())])
async def test_what_it_wanted_before_holds_until_all_is_known(
    workers: Workers, node: Node, expected: set[str]
) -> None:
    chain = Chain([bind(Partial())], workers, node=FixedNode(node))
    assert chain.unsettled == expected
    for pod in (PodView(), ANNOTATED):
        assert (await chain.evaluate(pod)).without_answer == expected
        assert evaluate(chain.policies, pod, node).without_answer == expected


async def test_evaluation_is_what_a_call_would_decide(workers: Workers) -> None:
    entries: list[AuditEntry] = []
    policies = [scripted("a", shares(5)), scripted("b", raising)]
    chain = Chain(policies, workers, sink=entries.append)
    decision = await chain.evaluate(VIEW)
    assert decision.hook is Hook.EVALUATE_CONTAINER
    assert shares_of(decision) == shares_of(await decide(chain)) == 5
    assert (
        kinds(decision)
        == kinds(evaluate(policies, VIEW, Node()))
        == [
            ("a", AuditKind.CHANGED),
            ("b", AuditKind.FAILED),
        ]
    )
    await until(lambda: len(entries) >= 3)
    # The changes of an evaluation are not made yet, so only the call's are audited.
    assert [(entry.policy, entry.kind) for entry in entries] == [
        ("b", AuditKind.FAILED),
        ("a", AuditKind.CHANGED),
        ("b", AuditKind.FAILED),
    ]


class Whole(Policy):
    """Has a say about the classes and the node."""

    name = "whole"

    def qos_class(self, qos: KubeQoSClass, pods: Any, node: Node) -> CgroupChange:
        total = sum(each.cgroup.get("memory.min", 0) for each in pods)
        return CgroupChange(cgroup={"memory.min": total if qos is KubeQoSClass.BURSTABLE else 0})

    def node(self, node: Node) -> NodeChange:
        return NodeChange(
            sysctl={"kernel.sched_core": 1}, cgroups={"/host/app": {"cpu.bvt_warp_ns": 2}}, reason="test"
        )


@pytest.fixture
def whole() -> LoadedPolicy:
    return bind(Whole())


async def test_a_qos_class_is_evaluated_from_its_pods(whole: LoadedPolicy, workers: Workers) -> None:
    pods = tuple(ResolvedPod(pod=PodView(), cgroup={"memory.min": size}) for size in (4096, 8192))
    view = ClassView(qos=KubeQoSClass.BURSTABLE, pods=pods)
    decision = await Chain([whole], workers).evaluate(view)
    assert decision.change == CgroupChange(cgroup={"memory.min": 12_288})
    assert decision.owners == {"cgroup[memory.min]": (Claimant("whole"),)}
    (entry,) = decision.audit
    assert (entry.target, entry.pod_name) == ("QoS class Burstable", "")


async def test_the_node_is_evaluated(whole: LoadedPolicy, workers: Workers) -> None:
    decision = await Chain([whole], workers).evaluate(Node())
    assert decision.change == NodeChange(
        sysctl={"kernel.sched_core": 1},
        cgroups={"/host/app": {"cpu.bvt_warp_ns": 2}},
    )
    assert decision.merged.reasons == {"whole": "test"}
    assert {entry.target for entry in decision.audit} == {"node"}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    "policy",
    [
        partial(scripted, "a", raising),
        partial(scripted, "a", refusing),
        partial(scripted, "a", lambda _: "nonsense"),
        partial(scripted, "a", lambda _: ContainerChange(problems=("unreadable",))),
        partial(scripted, "a", nothing, inputs=POOLS),
        partial(scripted, "a", nothing, optional_inputs=POOLS),
    ],
    ids=["raises", "refuses", "returns-nonsense", "cannot-decide", "lacks-an-input", "lacks-an-optional-one"],
)
async def test_a_policy_that_no_longer_enforces_holds_nothing(
    workers: Workers, mode: Mode, policy: Callable[..., LoadedPolicy]
) -> None:
    """Whoever switches a failing policy to dry-run wants its values away."""
    held = {"a"} if mode is Mode.ENFORCE else set()
    chain = Chain([policy(mode=mode)], workers)
    assert evaluate(chain.policies, VIEW, Node()).without_answer == held
    assert (await chain.evaluate(VIEW)).without_answer == held
    if mode is Mode.DRY_RUN:
        assert chain.unsettled == held
