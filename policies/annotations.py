"""Reads Koordinator's JSON annotations as Go does, and so accepts the same annotations as koordlet.

Go matches the keys of a struct in any case and treats null as absent; the keys of a map match exactly.
Unknown keys are ignored, and a single value of a wrong type is an error of the whole annotation. Source: Go,
package encoding/json, Unmarshal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final, NoReturn, TypeAlias, TypeVar

from runtimeproxy.documents.reading import InputError, json_value, member, printable
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.slo.names import EXTENDED_RESOURCE_SPEC as EXTENDED_RESOURCE_SPEC
from runtimeproxy.slo.names import MAX_ANNOTATION_LENGTH
from runtimeproxy.slo.names import RESOURCE_STATUS as RESOURCE_STATUS
from runtimeproxy.units import MAX_CPU_ID, is_cpu_list, longest_cpu_list, quantity_bytes, quantity_millicores

DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
"""The scheduler's allocation of devices. Source: Koordinator apis/extension/device_share.go."""

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
"""In whole millicores. Source: Koordinator pkg/util, GetBatchMilliCPUFromResourceList."""
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
"""In bytes. Source: Koordinator pkg/util, GetBatchMemoryFromResourceList."""

REMEMBERED_ANNOTATIONS: Final = 256
REMEMBERED_LENGTH: Final = 2_048
"""The longest text that is cached: its parsed form may take 25 times the memory."""

ValueT = TypeVar("ValueT")
JSON: TypeAlias = str | int | float | bool | list["JSON"] | dict[str, "JSON"] | None


def remembered(read: Callable[[str], ValueT]) -> Callable[[str], ValueT]:
    """Cache the parsed form of an annotation's texts: all containers of a pod have the same text."""
    kept = lru_cache(maxsize=REMEMBERED_ANNOTATIONS)(read)
    return lambda text: kept(text) if len(text) <= REMEMBERED_LENGTH else read(text)


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
        return Place(f"{self.path}.{name}", member(self._dict(), name))

    def entries(self) -> Mapping[str, Place]:
        """Return a map's entries; keys are not changed."""
        return {
            key: Place(f"{self.path}[{printable(key[:64])}]", value) for key, value in self._dict().items()
        }

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
        """Return a Kubernetes quantity, written as a string or a number; 0 when absent."""
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
    """Return the JSON value of an annotation; None if the annotation is absent. Raises AnnotationError."""
    text = annotations.get(name)
    return None if text is None else parse(name, text)


def parse(name: str, text: str) -> Place:
    """Return the JSON value in the text of the annotation `name`. Raises AnnotationError."""
    if len(text) > MAX_ANNOTATION_LENGTH:
        raise AnnotationError(f"annotation {name} is longer than {MAX_ANNOTATION_LENGTH:,} characters")
    try:
        return Place(name, json_value(text))
    except InputError as error:
        raise AnnotationError(f"annotation {name} is not valid JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """The scheduler's allocation for a pod, as far as policies use it."""

    cpus: str | None = None
    """The CPU list, as it is written; None if no CPUs are allocated.

    The full syntax of the kernel is accepted, such as `,8-15`; the proxy rewrites it in plain spelling.
    """
    numa_nodes: tuple[int, ...] = ()
    """The NUMA nodes from which CPU is allocated, in the annotation's order; empty beside `cpus`."""


_NO_STATUS: Final = ResourceStatus()


def resource_status(annotations: Mapping[str, str], last_cpu: int | None = None) -> ResourceStatus:
    """Return the scheduler's allocation for a pod. Source: Koordinator apis/extension/numa_aware.go.

    `last_cpu`, of the node, bounds what is read; None: not known.

    Raises:
        AnnotationError: the annotation is malformed, or its CPUs or NUMA nodes are not those of a node.
    """
    text = annotations.get(RESOURCE_STATUS)
    return _NO_STATUS if text is None else _resource_status_on(last_cpu)(text)


@lru_cache(maxsize=1)
def _resource_status_on(last_cpu: int | None) -> Callable[[str], ResourceStatus]:
    return remembered(partial(_resource_status, last_cpu))


def _resource_status(last_cpu: int | None, text: str) -> ResourceStatus:
    status = parse(RESOURCE_STATUS, text)
    place = status.member("cpuset")
    cpus = place.text()
    if len(cpus) > longest_cpu_list(last_cpu):
        place.fail("is longer than any list of this node's CPUs")
    if cpus and not is_cpu_list(cpus, last_cpu):
        place.fail("is not a CPU list")
    if cpus:
        # Nodes are not used beside CPUs, so an unreadable one does not matter.
        return ResourceStatus(cpus)
    return ResourceStatus(None, _nodes_with(_CPU_RESOURCES, last_cpu, status))


_Readers: TypeAlias = tuple[tuple[str, Callable[[str], int]], ...]
_CPU_RESOURCES: Final[_Readers] = (("cpu", quantity_millicores), (BATCH_CPU, quantity_bytes))
_MEMORY_RESOURCES: Final[_Readers] = (("memory", quantity_bytes), (BATCH_MEMORY, quantity_bytes))


def _nodes_with(kinds: _Readers, last_cpu: int | None, status: Place) -> tuple[int, ...]:
    """Return the NUMA nodes that have an amount of one of these resources."""
    nodes: dict[int, None] = {}
    place = status.member("numaNodeResources")
    # Each node with CPU has at least one.
    if (
        isinstance(place.value, list)
        and len(place.value) > (MAX_CPU_ID if last_cpu is None else last_cpu) + 1
    ):
        place.fail("has more NUMA nodes than this node has CPUs")
    for entry in place.items():
        node = entry.member("node").integer()
        resources = entry.member("resources").entries()
        if any(name in resources and resources[name].quantity(read) > 0 for name, read in kinds):
            nodes[node] = None
    return tuple(nodes)


def memory_nodes(annotations: Mapping[str, str], last_cpu: int | None = None) -> tuple[int, ...]:
    """Return the NUMA nodes from which the scheduler allocated memory to a pod, in the annotation's order.

    They apply beside CPUs, too. `last_cpu` as in `resource_status`.

    Raises:
        AnnotationError: the annotation is malformed.
    """
    text = annotations.get(RESOURCE_STATUS)
    return () if text is None else _memory_nodes_on(last_cpu)(text)


@lru_cache(maxsize=1)
def _memory_nodes_on(last_cpu: int | None) -> Callable[[str], tuple[int, ...]]:
    return remembered(lambda text: _nodes_with(_MEMORY_RESOURCES, last_cpu, parse(RESOURCE_STATUS, text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContainer:
    """The batch resources of one container; 0 if absent, None if unreadable."""

    request_cpu_millicores: int | None = 0
    limit_cpu_millicores: int | None = 0
    request_memory_bytes: int | None = 0
    limit_memory_bytes: int | None = 0


@dataclass(frozen=True, slots=True)
class BatchSpecification:
    """The content of the annotation."""

    containers: Mapping[str, BatchContainer] = field(default_factory=dict)
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def batch_specification(annotations: Mapping[str, str]) -> BatchSpecification:
    """Return the batch resources of a pod's containers. Raises AnnotationError."""
    text = annotations.get(EXTENDED_RESOURCE_SPEC)
    return BatchSpecification() if text is None else _batch_specification(text)


@remembered
def _batch_specification(text: str) -> BatchSpecification:
    entries = parse(EXTENDED_RESOURCE_SPEC, text).member("containers").entries()
    containers: dict[str, BatchContainer] = {}
    problems: dict[str, tuple[str, ...]] = {}
    for name, entry in entries.items():
        found: list[str] = []
        containers[name] = BatchContainer(
            request_cpu_millicores=_amount(entry, "requests", BATCH_CPU, found),
            limit_cpu_millicores=_amount(entry, "limits", BATCH_CPU, found),
            request_memory_bytes=_amount(entry, "requests", BATCH_MEMORY, found),
            limit_memory_bytes=_amount(entry, "limits", BATCH_MEMORY, found),
        )
        if found:
            problems[name] = tuple(dict.fromkeys(found))
    return BatchSpecification(MappingProxyType(containers), MappingProxyType(problems))


def _amount(entry: Place, member: str, resource: str, problems: list[str]) -> int | None:
    try:
        return entry.member(member).entries().get(resource, Place("", None)).quantity()
    except AnnotationError as error:
        problems.append(str(error))
        return None
