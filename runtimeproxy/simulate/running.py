"""The values that policies want of pods that run, as a daemon asks for them when strategies change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import NEUTRAL
from runtimeproxy.hooks.algebra import resolve
from runtimeproxy.hooks.changes import CLEAR
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.levels import levels_in_force
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.settings import ChainRules
from runtimeproxy.ledger.answers import by_parameter, claims_of, requested_of_pod
from runtimeproxy.node.snapshot import FixedNode, Node
from runtimeproxy.offline import OfflineChain
from runtimeproxy.pods.record_views import recorded_container, recorded_pod, recorded_summary
from runtimeproxy.pods.records import ContainerRecord, PodRecord


class RunningPod(NamedTuple):
    """A pod that runs, with the containers that do."""

    record: PodRecord
    containers: tuple[ContainerRecord, ...] = ()


class WantedValue(NamedTuple):
    """What one cgroup parameter comes to."""

    value: object
    """The kubelet's, or the kernel's default, where no policy has an effect."""
    policies: frozenset[str] = frozenset()


WantedValues: TypeAlias = Mapping[tuple[str, str], WantedValue]
"""By container (empty for the pod itself) and parameter; only those that some policy has a claim on."""


def wanted_values(
    pods: Sequence[RunningPod], policies: Iterable[LoadedPolicy], rules: ChainRules, node: Node
) -> list[WantedValues]:
    """Returns what policies want of each pod on a node. Not for a thread in which an event loop runs."""
    policies = tuple(policies)
    if (levels := levels_in_force(policies, node)) is not None:
        records = (replace(each.record, katalyst=levels.of(recorded_summary(each.record))) for each in pods)
        pods = [each._replace(record=record) for each, record in zip(pods, records, strict=True)]
    return asyncio.run(_wanted_values(pods, OfflineChain(policies, rules), rules, node))


def differing_policies(one: WantedValues, other: WantedValues) -> list[str]:
    """Returns the policies by which a pod gets other values, by name; empty if it gets the same.

    `other`: the values of the same pod on another node.
    """
    found: set[str] = set()
    for place in one.keys() | other.keys():
        # Without a claim it is the kubelet's value, which the other side has too, as what is behind a claim.
        first, second = one.get(place), other.get(place)
        if first is None or second is None or first.value != second.value:
            found |= {name for each in (first, second) if each is not None for name in each.policies}
    return sorted(found)


async def _wanted_values(
    pods: Sequence[RunningPod], offline: OfflineChain, rules: ChainRules, node: Node
) -> list[WantedValues]:
    offline.chain.node = FixedNode(node)
    found: list[WantedValues] = []
    try:
        for pod in pods:
            view = recorded_pod(pod.record)
            decision = await offline.chain.evaluate(view)
            requested, is_known = requested_of_pod(pod.containers), not pod.record.recovered
            values = dict(_values("", decision, requested, rules, is_base_known=is_known))
            for each in pod.containers:
                decision = await offline.chain.evaluate(recorded_container(each, view))
                requested, is_known = by_parameter(each.requested), not each.recovered
                values |= _values(each.name, decision, requested, rules, is_base_known=is_known)
            found.append(values)
    finally:
        offline.close()
    return found


def _values(
    container: str,
    decision: Decision,
    requested: Mapping[str, Value],
    rules: ChainRules,
    *,
    is_base_known: bool,
) -> Iterator[tuple[tuple[str, str], WantedValue]]:
    """Yields the parameters whose value is another one than without policies."""
    claims = claims_of(decision.merged.fields, is_container=container != "", is_base_known=is_base_known)
    for name, each in claims.items():
        without = requested.get(name, NEUTRAL.get(name))
        result = resolve(name, requested.get(name), each, rule=rules.conflicts, is_base_known=is_base_known)
        value = without if result.value in (None, CLEAR) else result.value
        if value != without:
            yield (container, name), WantedValue(value, frozenset(owner.name for owner in result.owners))
