"""Simulate: what the policies in use would do to a pod that does not exist."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from cri_api.runtime.v1 import api_pb2 as cri_pb2
from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import MODES, ROLES
from runtimeproxy.background import BackgroundThreads
from runtimeproxy.cgroups.pace import rest, with_rests
from runtimeproxy.documents.reading import InputError
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.settings import ChainRules
from runtimeproxy.process import give_back_memory
from runtimeproxy.simulate.reading import pod_calls, recorded_call
from runtimeproxy.simulate.result import (
    Certainty,
    PodSimulation,
    PolicyChange,
    Remark,
    SimulatedField,
    SimulatedTarget,
)
from runtimeproxy.simulate.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runtimeproxy.core.policies import PolicySet
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.settings import ConflictRule
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.simulate.kubelet import PodCalls

MOST_CALLS: Final = 2_000
"""Pods and containers of one request; each takes half a millisecond."""
SIMULATION_S: Final = 30.0
"""For one request, of which other requests wait for the end."""

MESSAGES: Final[Mapping[str, Any]] = {
    "RunPodSandbox": cri_pb2.RunPodSandboxRequest,
    "CreateContainer": cri_pb2.CreateContainerRequest,
}
_SOURCE: Final = "request"
_OUTCOMES: Final = {
    AuditKind.OFF: api_pb2.PolicyAnswer.OUTCOME_OFF,
    AuditKind.FAILED: api_pb2.PolicyAnswer.OUTCOME_FAILED,
    AuditKind.INVALID: api_pb2.PolicyAnswer.OUTCOME_FAILED,
    AuditKind.REFUSED: api_pb2.PolicyAnswer.OUTCOME_REFUSES,
    AuditKind.LEFT_OUT: api_pb2.PolicyAnswer.OUTCOME_CHANGES,
}


class LongSimulationError(RuntimeProxyError):
    """A simulation takes too long."""


class Simulator:
    """Simulates one request after the other, in a thread of its own.

    Args:
        policies: Those in use.
        node: The node.
    """

    def __init__(self, policies: PolicySet, node: NodeSources) -> None:
        self._policies = policies
        self._node = node
        self._thread = BackgroundThreads(1, "simulate")
        self._lock = asyncio.Lock()
        self._requests = 0
        """Under way, or waiting for the lock."""

    async def simulate(self, request: api_pb2.SimulateRequest) -> bytes:
        """See the proto; returns the serialized response.

        Raises:
            InputError: The input is not a pod, or too large, or no policy has the given name.
            LongSimulationError: It takes too long.
        """
        self._requests += 1
        try:
            return await self._simulate(request)
        finally:
            self._requests -= 1
            if not self._requests:
                # A long manifest takes some hundred times its size, and leaves that to the allocator.
                self._thread.submit(give_back_memory)

    async def _simulate(self, request: api_pb2.SimulateRequest) -> bytes:
        async with self._lock:
            policies, is_left = self._policies, threading.Event()
            chain = policies.chain
            work = partial(
                _outcome,
                request,
                chosen(policies.loaded.policies, chain.policies, request),
                self._node.latest,
                chain.rule,
                policies.skip_label,
                chain.carried,
                is_left,
            )
            running = asyncio.get_running_loop().run_in_executor(self._thread, with_rests, work)
            try:
                outcome = await asyncio.shield(running)
            finally:
                # The thread is not given the next one while it works for a client that has left.
                is_left.set()
                await asyncio.wait({running})
        if isinstance(outcome, RuntimeProxyError):
            raise outcome
        return outcome


def _outcome(*arguments: Any) -> bytes | RuntimeProxyError:  # noqa: ANN401 - those of `_simulated`
    # A new error: the traceback of the old one would keep all that has been read.
    try:
        return _simulated(*arguments)
    except InputError as error:
        return InputError(error.reason, error.place)
    except LongSimulationError as error:
        return LongSimulationError(str(error))


def _simulated(
    request: api_pb2.SimulateRequest,
    policies: tuple[LoadedPolicy, ...],
    node: Node,
    rule: ConflictRule,
    skip_label: tuple[str, str] | None,
    carried: CarriedFields,
    is_left: threading.Event,
) -> bytes:
    """In a worker thread."""
    calls = calls_of(request, node)
    count = sum(1 + len(each.containers) for each in calls)
    if count > MOST_CALLS:
        raise InputError(
            f"has {count} pods and containers, at most {MOST_CALLS} are simulated at a time; "
            "koord-runtime-proxy simulate has no such bound"
        )
    end_s = time.monotonic() + SIMULATION_S

    def before_each() -> None:
        rest()
        if is_left.is_set() or time.monotonic() > end_s:
            raise LongSimulationError(
                f"the simulation takes longer than {SIMULATION_S:g} s; simulate fewer pods"
            )

    found = simulate(calls, policies, node, ChainRules(rule, skip_label), before_each, carried)
    # Serialized pod by pod, with rests: the parts of a message, one after the other, are the message.
    return b"".join(map(_serialized, found.pods))


def _serialized(pod: PodSimulation) -> bytes:
    rest()
    return api_pb2.SimulateResponse(pods=[pod_message(pod)]).SerializeToString()


def chosen(
    loaded: Iterable[LoadedPolicy], in_use: Iterable[LoadedPolicy], request: api_pb2.SimulateRequest
) -> tuple[LoadedPolicy, ...]:
    """The policies to simulate. Raises InputError if no policy has the given name."""
    policies = tuple(in_use)
    if request.enforce_all:
        servers = (each for each in policies if each.remote_hooks)
        policies = (*(replace(each, mode=Mode.ENFORCE) for each in loaded), *servers)
    if not request.policy:
        return policies
    found = tuple(each for each in policies if each.name == request.policy)
    if not found:
        names = ", ".join(sorted({each.name for each in policies})) or "none"
        raise InputError(f"no policy in use is named {request.policy}; there are: {names}")
    return found


def calls_of(request: api_pb2.SimulateRequest, node: Node) -> list[PodCalls]:
    """The requests of the manifest, or the recorded one.

    Raises:
        InputError: Neither is given, or it cannot be read.
    """
    call, webhook = request.call, request.with_webhook
    if request.WhichOneof("input") == "manifest":
        return pod_calls(request.manifest.encode(), _SOURCE, node, webhook=webhook)
    if request.WhichOneof("input") != "call":
        raise InputError("no manifest and no call is given")
    if call.WhichOneof("content") == "json":
        return pod_calls(call.json.encode(), _SOURCE, node, webhook=webhook)
    if call.method not in MESSAGES:
        raise InputError(
            f"calls of {call.method or 'no method'} are not simulated, only {', '.join(MESSAGES)}"
        )
    try:
        message = MESSAGES[call.method].FromString(call.message)
    except DecodeError as error:
        raise InputError(f"the message is not a request of {call.method}") from error
    return [recorded_call(message, _SOURCE)]


# --- messages ----------------------------------------------------------------------------------------------


def pod_message(pod: PodSimulation) -> api_pb2.SimulatedPod:
    return api_pb2.SimulatedPod(
        namespace=pod.namespace,
        name=pod.name,
        made_by=pod.source.removeprefix(f"{_SOURCE}: "),
        qos_class=pod.qos,
        kube_qos_class=pod.kube_qos,
        targets=map(_target, pod.targets),
        notes=[*pod.notes, *(f"the webhook adds {each}" for each in pod.added)],
    )


def _target(target: SimulatedTarget) -> api_pb2.SimulatedTarget:
    is_pod = target.kind == "pod"
    answers = {each.policy: _answer(each) for each in target.remarks}
    for field in target.fields:
        for change in field.changes:
            answers.setdefault(
                change.policy,
                api_pb2.SimulatedPolicy(
                    policy=change.policy,
                    mode=MODES[change.mode],
                    outcome=api_pb2.PolicyAnswer.OUTCOME_CHANGES,
                    reason=change.reason,
                    certainty=api_pb2.SimulatedField.CERTAINTY_EXACT,
                ),
            )
    unknown = [
        api_pb2.SimulatedPolicy(
            policy=each, certainty=api_pb2.SimulatedField.CERTAINTY_NOT_SIMULATED, certainty_reason=each
        )
        for each in target.not_simulated
    ]
    return api_pb2.SimulatedTarget(
        level=api_pb2.LEVEL_POD if is_pod else api_pb2.LEVEL_CONTAINER,
        container="" if is_pod else target.name,
        fields=map(_field, target.fields),
        policies=[*answers.values(), *unknown],
        refusal=target.refusal,
    )


def _answer(remark: Remark) -> api_pb2.SimulatedPolicy:
    outcome = _OUTCOMES.get(remark.kind, api_pb2.PolicyAnswer.OUTCOME_UNSPECIFIED)
    reason = f"{remark.field}: {remark.reason}" if remark.field else remark.reason
    return api_pb2.SimulatedPolicy(policy=remark.policy, outcome=outcome, reason=reason)


def _field(field: SimulatedField) -> api_pb2.SimulatedField:
    is_exact = field.certainty is Certainty.EXACT
    certainty = api_pb2.SimulatedField.CERTAINTY_DEPENDS_ON
    counting = [each for each in field.changes if each.counts] or list(field.changes)
    return api_pb2.SimulatedField(
        name=field.name,
        before=field.before,
        after=field.after,
        policy=field.owner,
        reason=counting[0].reason if counting else "",
        certainty=api_pb2.SimulatedField.CERTAINTY_EXACT if is_exact else certainty,
        certainty_reason="; ".join(field.depends_on),
        mode=MODES[Mode.ENFORCE] if field.owner or not counting else MODES[counting[0].mode],
        claims=map(_claim, field.changes),
    )


def _claim(change: PolicyChange) -> api_pb2.ExplainedClaim:
    effect = api_pb2.ExplainedClaim.EFFECT_USED if change.counts else api_pb2.ExplainedClaim.EFFECT_VOID
    if change.mode is Mode.DRY_RUN:
        effect = api_pb2.ExplainedClaim.EFFECT_DRY_RUN
    return api_pb2.ExplainedClaim(
        owner=change.policy,
        role=ROLES[change.role],
        value=change.wanted,
        reason=change.reason,
        effect=effect,
        effect_reason=change.note,
        mode=MODES[change.mode],
        strategies=[
            api_pb2.StrategyField(provenance=api_pb2.Provenance(text=each)) for each in change.provenance
        ],
    )
