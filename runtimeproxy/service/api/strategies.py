"""Fields of strategies as messages, with their provenance. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.documents.reading import printable
from runtimeproxy.slo.strategies import BY_DEFAULT
from runtimeproxy.slo.values import MISSING, as_json, given_values, value_at

if TYPE_CHECKING:
    from runtimeproxy.hooks.reasons import Source
    from runtimeproxy.katalyst.dynamic_config import KatalystConfig
    from runtimeproxy.katalyst.targets import TargetState
    from runtimeproxy.slo.strategies import Provenance


def strategy_fields(
    strategies: object, provenance: Mapping[str, Provenance]
) -> Iterator[api_pb2.StrategyField]:
    """The fields that some layer says something about, by path.

    Args:
        strategies: A dataclass of dataclasses.
        provenance: By dotted path; paths without a field are left out.
    """
    for path, value, each in given_values(strategies, provenance):
        yield api_pb2.StrategyField(path=path, value=as_json(value), provenance=provenance_message(each))


def katalyst_fields(
    config: KatalystConfig, targets: Iterable[TargetState]
) -> Iterator[api_pb2.StrategyField]:
    """The fields that a target of Katalyst's dynamic configuration sets."""
    file = next((each.file for each in targets if each.is_applied), "")
    text = printable(f"{config.target} (version {config.version})" + (f" in {file}" if file else ""))
    provenance = api_pb2.Provenance(source="Katalyst target", file=file, strategy=config.target, text=text)
    for path, value in config.fields():
        yield api_pb2.StrategyField(path=path, value=as_json(value), provenance=provenance)


def target_messages(targets: Iterable[TargetState]) -> Iterator[api_pb2.KatalystTarget]:
    for each in targets:
        yield api_pb2.KatalystTarget(
            name=printable(each.name),
            source=each.file,
            is_applied=each.is_applied,
            version=each.version,
            reason=printable(each.reason),
        )


def source_field(source: Source, pod: object, node: object) -> api_pb2.StrategyField:
    """The field of a strategy that a reason names: of the pod's strategy, else of the node's."""
    found = (value_at(each, source.path) for each in (pod, node))
    value = next((each for each in found if each is not MISSING), None)
    provenance = provenance_message(source.provenance)
    return api_pb2.StrategyField(path=source.path, value=as_json(value), provenance=provenance)


def all_fields(
    strategies: object, parts: Iterable[str], provenance: Mapping[str, Provenance]
) -> Iterator[api_pb2.StrategyField]:
    """All fields of some parts of strategies, those that no layer says anything about with their defaults.

    Args:
        strategies: A dataclass of dataclasses.
        parts: Names of its attributes.
        provenance: By dotted path; that of a part counts for its fields.
    """
    for part in parts:
        value = getattr(strategies, part)
        for each in dataclasses.fields(value):
            path = f"{part}.{each.name}"
            # Fields below this one may have a source of their own.
            below = (it for name, it in provenance.items() if name.startswith(f"{path}."))
            found = provenance.get(path) or next(below, BY_DEFAULT)
            yield api_pb2.StrategyField(
                path=path, value=as_json(getattr(value, each.name)), provenance=provenance_message(found)
            )


def provenance_message(provenance: Provenance) -> api_pb2.Provenance:
    return api_pb2.Provenance(
        source=provenance.source,
        file=provenance.file,
        key=provenance.key,
        strategy=provenance.strategy,
        is_off=provenance.is_off,
        text=str(provenance),
    )
