"""Asks the policies about the requests for a pod, as a call does, and says what they would change.

The core and the chain of `hooks` decide, so the answer is that of a call. Where something is not known, the
pod is simulated again with it otherwise; fields with another result depend on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from runtimeproxy.core.questions import Question
from runtimeproxy.frontends.cri_proxy.calls.messages import (
    requested_container,
    requested_pod,
    requested_summary,
)
from runtimeproxy.hooks.carried import BY_CALLS, CarriedFields
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import CGROUP_PARENT
from runtimeproxy.hooks.levels import levels_in_force
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.settings import USUAL_RULES, ChainRules
from runtimeproxy.hooks.views import PodView
from runtimeproxy.node.snapshot import FixedNode, Input, InputState, KubeletFacts, Node
from runtimeproxy.offline import OfflineChain
from runtimeproxy.pods.resources import read_resources
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.simulate.description import CGROUPS, INPUT_TEXTS, Asked, Description, result_of
from runtimeproxy.simulate.kubelet import ContainerCreation, PodCalls
from runtimeproxy.simulate.levels import level_verdict
from runtimeproxy.simulate.result import PodSimulation, Simulation

_STATIC: Final = "static"
_SIMULATED_ID: Final = "simulated"


def simulate(
    calls: Iterable[PodCalls],
    policies: Iterable[LoadedPolicy],
    node: Node,
    rules: ChainRules = USUAL_RULES,
    before_each: Callable[[], None] = lambda: None,
    carried: CarriedFields = BY_CALLS,
) -> Simulation:
    """Returns what the policies would change in the requests for some pods.

    It runs the policies in threads of its own, in an event loop of its own: not for a thread in which one
    runs. Nothing is audited, written or remembered. Hook servers are not called.

    `policies`: those of the daemon, hook servers included. `node`: where the pods would run. `before_each`:
    called before each call; what it raises ends the simulation. `carried`: what the front end carries; one
    that asks no policy before something is created has it evaluated when it runs.
    """
    simulator = _Simulator(tuple(policies), node, rules, before_each, carried)
    return asyncio.run(simulator.run(tuple(calls)))


class _Simulator:
    """One simulation of some pods."""

    def __init__(
        self,
        policies: Sequence[LoadedPolicy],
        node: Node,
        rules: ChainRules,
        before_each: Callable[[], None],
        carried: CarriedFields,
    ) -> None:
        self._before_each = before_each
        self._carried = carried
        self._servers = tuple(each for each in policies if each.remote_hooks)
        self._node = node
        self._rules = rules
        self._offline = OfflineChain(policies, rules, carried=carried)
        self._chain = self._offline.chain
        self._levels = levels_in_force(policies, node)

    async def run(self, calls: Sequence[PodCalls]) -> Simulation:
        try:
            return Simulation(pods=tuple([await self._pod(each) for each in calls]))
        finally:
            self._offline.close()

    async def _pod(self, calls: PodCalls) -> PodSimulation:
        first, *others = _variants(calls, self._node)
        asked = await self._ask(first)
        differing: dict[tuple[str, str], list[str]] = {}
        values = _values(asked)
        for other in others:
            found = _values(await self._ask(other))
            for place in values.keys() | found.keys():
                if values.get(place) != found.get(place):
                    differing.setdefault(place, []).append(other.name)
        pod = asked[0].pod
        notes = list(calls.notes)
        key, value = self._rules.skip_label or ("", "")
        is_skipped = key != "" and pod.labels.get(key) == value
        if is_skipped:
            notes.append(f"the label {key} says that policies leave it alone")
        describe = Description(
            {each.name: each for each in self._chain.policies},
            first.node,
            differing,
            self._servers,
            self._rules.conflicts,
            self._carried,
        )
        return PodSimulation(
            source=calls.source,
            namespace=pod.namespace,
            name=pod.name,
            qos=pod.qos,
            kube_qos=pod.kube_qos,
            priority=pod.priority,
            targets=tuple(describe.target(each, is_skipped=is_skipped) for each in asked),
            added=calls.added,
            notes=tuple(notes),
            katalyst=None if is_skipped else level_verdict(pod, calls.requests),
        )

    async def _ask(self, variant: _Variant) -> list[Asked]:
        """Asks about all requests for a pod, in their order; a refusal ends it."""
        self._chain.node = FixedNode(variant.node)
        calls, asked = variant.calls, list[Asked]()
        summary = requested_summary(calls.config, None, self._levels)
        pod = requested_pod(calls.config, None, summary, calls.runtime_handler)
        if calls.runs_sandbox:
            hook = self._carried.first_hook(is_container=False)
            decision = await self._decide(Question(hook, pod, lambda: pod))
            asked.append(Asked("pod", pod.name, hook, pod, decision, {}, calls.cgroup_values))
            if decision is not None and hook is Hook.PRE_RUN_POD_SANDBOX:
                pod = decision.merged.new_pod
            pod = replace(pod, id=_SIMULATED_ID)
        for call in calls.containers:
            if asked and asked[-1].decision is not None and asked[-1].decision.refusal is not None:
                break
            asked.append(await self._ask_container(call, pod))
        return asked

    async def _ask_container(self, call: ContainerCreation, pod: PodView) -> Asked:
        resources = read_resources(call.config.linux.resources)
        view = requested_container(call.config, pod, resources)
        hook = self._carried.first_hook(is_container=True)
        decision = await self._decide(Question(hook, pod, lambda: view))
        return Asked(call.kind.value, view.name, hook, pod, decision, call.unknown)

    async def _decide(self, question: Question) -> Decision | None:
        self._before_each()
        return await self._offline.decide(question)


# What is not known


class _Variant(NamedTuple):
    """A pod, with something otherwise than in the first variant."""

    name: str
    calls: PodCalls
    node: Node


def _variants(calls: PodCalls, node: Node) -> Iterator[_Variant]:
    """Yields the pod as it is most likely, then with each thing that is not known otherwise."""
    state = node.state_of(Input.POD_REQUESTS)
    likely = node if state is InputState.WITHDRAWN else _with_requests(node, calls)
    yield _Variant("", calls, likely)
    if state is InputState.UNKNOWN:
        states = {**node.states, Input.POD_REQUESTS: InputState.WITHDRAWN}
        yield _Variant(INPUT_TEXTS[Input.POD_REQUESTS], calls, replace(node, states=states))
    if node.state_of(Input.KUBELET) is InputState.UNKNOWN:
        memory = dict.fromkeys(KubeQoSClass, frozenset({"memory.min", "memory.low"}))
        kubelet = KubeletFacts(cpu_manager_policy=_STATIC, class_memory=memory)
        states = {**likely.states, Input.KUBELET: InputState.KNOWN}
        yield _Variant(INPUT_TEXTS[Input.KUBELET], calls, replace(likely, kubelet=kubelet, states=states))
    if node.state_of(Input.CGROUPS) is InputState.UNKNOWN:
        states = {**likely.states, Input.CGROUPS: InputState.KNOWN}
        yield _Variant(CGROUPS, calls, replace(likely, features=frozenset(), states=states))
    for name, other in calls.alternatives:
        yield _Variant(name, other, likely)


def _with_requests(node: Node, calls: PodCalls) -> Node:
    if not calls.requests:
        return node
    uid = calls.config.metadata.uid
    requests = {**node.requests, **{(uid, name): each for name, each in calls.requests.items()}}
    return replace(node, requests=requests)


def _values(asked: Sequence[Asked]) -> dict[tuple[str, str], object]:
    """The results by target and field, the refusals included."""
    found: dict[tuple[str, str], object] = {}
    for each in asked:
        decision = each.decision
        if decision is None:
            continue
        if decision.refusal is not None:
            found[each.name, ""] = decision.refusal
        for field, merged in decision.merged.fields.items():
            # Where a cgroup lies follows from the driver; what policies make of that is what counts.
            if field.group != CGROUP_PARENT:
                found[each.name, str(field)] = result_of(field, merged, decision)
    return found
