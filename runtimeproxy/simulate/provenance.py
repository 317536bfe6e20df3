"""Where the values of a policy come from, by the parts of the strategies that it names. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.hooks.views import PodView
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.slo.strategies import Provenance


def provenance_of(policy: Policy, pod: PodView, node: Node) -> tuple[str, ...]:
    """Returns where the strategies that count for a policy and a pod come from, each once, for people.

    Empty if the policy depends on no strategy, or if these are defaults.
    """
    found: list[str] = []
    for part in sorted(policy.strategy_parts):
        for provenance in (node.strategy_for(pod).provenance, node.strategies.provenance):
            texts = list(dict.fromkeys(_of_part(part, provenance)))
            if texts:
                found += texts
                break
    return tuple(dict.fromkeys(found))


def _of_part(part: str, provenance: Mapping[str, Provenance]) -> Iterator[str]:
    for path, each in provenance.items():
        if path == part or path.startswith(f"{part}."):
            yield str(each)
