"""Values of strategies by dotted path, such as `qos.ls_class.cpu_qos.enable`, and as JSON. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from runtimeproxy.slo.strategies import Provenance

MISSING: Final[Any] = object()
"""Of a path without a field."""


def given_values(
    strategies: object, provenance: Mapping[str, Provenance]
) -> Iterator[tuple[str, object, Provenance]]:
    """The values that some layer says something about, by path; paths without a field are left out.

    `strategies`: a dataclass of dataclasses.
    """
    for path, each in sorted(provenance.items()):
        value = value_at(strategies, path)
        if value is not MISSING:
            yield path, value, each


def value_at(strategies: object, path: str) -> Any:  # noqa: ANN401 - any field's
    value: Any = strategies
    for name in path.split("."):
        value = getattr(value, name, MISSING)
    return value


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
