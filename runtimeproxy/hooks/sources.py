"""Where values of strategies come from, for the reasons of policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtimeproxy.hooks.reasons import Part, Source
from runtimeproxy.node.snapshot import Node
from runtimeproxy.slo.names import CPU_NORMALIZATION_RATIO
from runtimeproxy.slo.strategies import BY_DEFAULT, Provenance

_RATIO_MODEL: Final = "cpu_normalization.ratio_model."
_RATIO: Final = "cpu_normalization.default_ratio"
_NORMALIZES: Final = "cpu_normalization.enable"


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
    if CPU_NORMALIZATION_RATIO in node.annotations:
        return "(Node annotation)"
    provenance = node.strategies.provenance
    of_models = (each for each in provenance if each.startswith(_RATIO_MODEL))
    path = next(of_models, _RATIO if _RATIO in provenance else _NORMALIZES)
    return Source(path, provenance.get(path, BY_DEFAULT))
