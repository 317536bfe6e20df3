"""Fields of strategies as messages, with their provenance. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.slo.strategies import BY_DEFAULT

if TYPE_CHECKING:
    from runtimeproxy.hooks.reasons import Source
    from runtimeproxy.slo.strategies import Provenance


def strategy_fields(
    strategies: object, provenance: Mapping[str, Provenance]
) -> Iterator[api_pb2.StrategyField]:
    """The fields that some layer says something about, by path.

    Args:
        strategies: A dataclass of dataclasses.
        provenance: By dotted path; paths without a field are left out.
    """
    for path, each in sorted(provenance.items()):
        value = _value_at(path, strategies)
        if value is not _MISSING:
            yield api_pb2.StrategyField(path=path, value=as_json(value), provenance=provenance_message(each))


def source_field(source: Source, pod: object, node: object) -> api_pb2.StrategyField:
    """The field of a strategy that a reason names: of the pod's strategy, else of the node's."""
    found = (_value_at(source.path, each) for each in (pod, node))
    value = next((each for each in found if each is not _MISSING), None)
    provenance = provenance_message(source.provenance)
    return api_pb2.StrategyField(path=source.path, value=as_json(value), provenance=provenance)


def _value_at(path: str, strategies: object) -> object:
    value = strategies
    for name in path.split("."):
        value = getattr(value, name, _MISSING)
    return value


_MISSING: Final = object()


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


def as_json(value: object) -> str:
    return json.dumps(value, default=_plain, sort_keys=True)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return str(value)
