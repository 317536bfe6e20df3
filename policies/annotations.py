"""Reads Koordinator's JSON annotations as Go does, and so accepts the same annotations as koordlet.

Go matches the keys of a struct in any case and treats null as absent; the keys of a map match exactly.
Unknown keys are ignored, and a single value of a wrong type is an error of the whole annotation (policies
spec 1.6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeAlias

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.units import quantity_bytes

RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
"""The scheduler's allocation of CPUs. Source: policies spec 1.2, 1.6.1."""
EXTENDED_RESOURCE_SPEC: Final = "node.koordinator.sh/extended-resource-spec"
"""The containers' batch resources, which the CRI does not carry. Source: policies spec 1.2, 1.6.2."""
DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""The scheduler's allocation of devices. Source: policies spec 1.2, 1.6.8."""

REMEMBERED_ANNOTATIONS: Final = 256
"""Size of the cache of parsed texts, per annotation: all containers of a pod have the same one."""

JSON: TypeAlias = str | int | float | bool | list["JSON"] | dict[str, "JSON"] | None


class AnnotationError(RuntimeProxyError):
    """An invalid annotation; the text names the annotation and the place in it, not its content."""


class Place:
    """A JSON value in an annotation, with its path for error messages."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, value: JSON) -> None:
        self.path = path
        self.value = value

    def member(self, name: str) -> Place:
        """Return a struct's member, matching its key in any case; the last match wins, as in Go."""
        found: JSON = None
        for key, value in self._dict().items():
            if key.lower() == name.lower():
                found = value
        return Place(f"{self.path}.{name}", found)

    def entries(self) -> Mapping[str, Place]:
        """Return a map's entries; keys are not changed."""
        return {key: Place(f"{self.path}[{key[:64]}]", value) for key, value in self._dict().items()}

    def items(self) -> list[Place]:
        """Return a list's items; a null item is an error."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            self.fail("is not a list")
        items = [Place(f"{self.path}[{index}]", value) for index, value in enumerate(self.value)]
        for item in items:
            if item.value is None:
                item.fail("is null")
        return items

    def text(self) -> str:
        """Return a string; empty when absent."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            self.fail("is not a string")
        return self.value

    def integer(self) -> int:
        """Return a whole number; 0 when absent."""
        if self.value is None:
            return 0
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.fail("is not a whole number")
        return self.value

    def quantity(self, parse: Callable[[str], int] = quantity_bytes) -> int:
        """Return a Kubernetes quantity, written as a string or a number; 0 when absent.

        Spaces around it are ignored. Source: Kubernetes apimachinery Quantity.UnmarshalJSON.
        """
        if self.value is None:
            return 0
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            self.fail("is not a quantity")
        try:
            return parse(str(self.value).strip(" "))
        except ValueError:
            self.fail("is not a quantity")

    def fail(self, reason: str) -> NoReturn:
        """Raise an error about this place."""
        raise AnnotationError(f"annotation {self.path} {reason}")

    def _dict(self) -> dict[str, JSON]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            self.fail("is not an object")
        return self.value


def read(annotations: Mapping[str, str], name: str) -> Place | None:
    """Return the JSON value of an annotation; None if the annotation is absent.

    Raises:
        AnnotationError: the annotation is not JSON.
    """
    text = annotations.get(name)
    return None if text is None else parse(name, text)


def parse(name: str, text: str) -> Place:
    """Return the JSON value in the text of the annotation `name`.

    Raises:
        AnnotationError: the text is not JSON.
    """
    try:
        value: JSON = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"annotation {name} is not valid JSON") from error
    return Place(name, value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")
