"""Where values of strategies come from, for the reasons of policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from runtimeproxy.hooks.reasons import Part, Source
from runtimeproxy.node.snapshot import Node
from runtimeproxy.slo.strategies import BY_DEFAULT, Provenance


def strategy_source(provenance: Mapping[str, Provenance], path: str, switch: str) -> tuple[Part, ...]:
    """Return where a strategy's value comes from.

    `switch`: the path of what switches the strategy on, which stands for a default.
    """
    found = provenance.get(path)
    if found is None and switch in provenance:
        return "by default ", Source(switch, provenance[switch])
    return (Source(path, found or BY_DEFAULT),)


def ratio_source(node: Node) -> Part:
    """Return where the node's normalization ratio comes from."""
    path = node.normalization_path
    if not path:
        return "(Node annotation)"
    return Source(path, node.strategies.provenance_of(path))
