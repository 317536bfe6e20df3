"""Kubernetes objects about this node, as `kubectl get -o yaml` prints them, alone or in lists.

All functions are pure. Only objects of a `Kind` are read, and of them only what counts here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.node.files import (
    InputError,
    kind_of,
    mapping_of,
    quantities_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.node.topology_annotations import TopologyFacts, parse_topology
from runtimeproxy.slo.names import CONFIG_MAP

MAX_ANNOTATIONS_BYTES: Final = 256 * 1024
"""All annotations of an object. Source: Kubernetes apimachinery, TotalAnnotationSizeLimitB."""
MAX_CONFIG_MAP_BYTES: Final = 1024 * 1024
"""All values of a ConfigMap. Source: Kubernetes, MaxSecretSize."""


class Kind(StrEnum):
    """The objects that are read."""

    CONFIG_MAP = "ConfigMap"
    NODE = "Node"
    TOPOLOGY = "NodeResourceTopology"
    NODE_SLO = "NodeSLO"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    """What counts of a Node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    """By resource: `cpu` in millicores, all else in bytes or numbers."""
    allocatable: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSloObject:
    """What counts of a NodeSLO."""

    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapObject:
    """What counts of the ConfigMap `slo-controller-config`."""

    data: Mapping[str, str] = field(default_factory=dict)


ObjectValue: TypeAlias = NodeObject | NodeSloObject | ConfigMapObject | TopologyFacts


class Object(NamedTuple):
    """One object that counts."""

    kind: Kind
    value: ObjectValue
    source: Mapping[str, Any]
    """The object's parts that count, as JSON can hold them; `read_object` makes the same of it again."""


class Rejected(NamedTuple):
    """An object of a kind that counts, which cannot be used."""

    kind: Kind
    reason: str


class Ignored(NamedTuple):
    """An object that is about something else."""

    reason: str
    of_other_node: Kind | None = None
    """Its kind, if it is about another node."""


class Reader(NamedTuple):
    """What decides whether an object is about this node."""

    node_name: str
    cpus: frozenset[int] | None = None
    """The CPUs that this node has; None: not known."""

    def read(self, documents: Iterable[object]) -> list[Object | Rejected | Ignored]:
        """Reads the objects of a file; the items of lists too."""
        return [self.read_object(each) for document in documents for each in _flattened(document)]

    def read_object(self, document: object) -> Object | Rejected | Ignored:
        """Reads one object."""
        if not isinstance(document, dict):
            return Ignored(f"{kind_of(document)} is not a Kubernetes object")
        name = document.get("kind")
        try:
            kind = Kind(name if isinstance(name, str) else "")
        except ValueError:
            what = shortened(name) if isinstance(name, str) and name else "an object without kind"
            return Ignored(f"{what} is not read; {', '.join(Kind)} are")
        try:
            return self._read(kind, document)
        except InputError as error:
            return Rejected(kind, str(error))

    def _read(self, kind: Kind, document: Mapping[str, Any]) -> Object | Ignored:
        with within("metadata"):
            metadata = mapping_of(document.get("metadata"))
            with within("name"):
                name = text_of(metadata.get("name"))
        wanted = CONFIG_MAP if kind is Kind.CONFIG_MAP else self.node_name
        if name != wanted:
            of_other_node = None if kind is Kind.CONFIG_MAP else kind
            return Ignored(f"{kind} {shortened(repr(name))} is not read; {wanted} is", of_other_node)
        match kind:
            case Kind.CONFIG_MAP:
                data = config_map_data(document.get("data"))
                return Object(kind, ConfigMapObject(data=data), _source(kind, name, data=data))
            case Kind.NODE:
                return _node(name, metadata, document)
            case Kind.TOPOLOGY:
                annotations = _annotations(metadata)
                with within("metadata.annotations"):
                    facts = parse_topology(annotations, self.cpus)
                return Object(kind, facts, _source(kind, name, metadata={"annotations": facts.source}))
            case Kind.NODE_SLO:
                with within("spec"):
                    spec = mapping_of(document.get("spec"))
                return Object(kind, NodeSloObject(spec=spec), _source(kind, name, spec=spec))


def config_map_data(value: object) -> dict[str, str]:
    """The data of a ConfigMap.

    Raises:
        InputError: It is none.
    """
    with within("data"):
        data = _texts(value)
        if sum(map(len, data.values())) > MAX_CONFIG_MAP_BYTES:
            raise InputError(f"has more than {MAX_CONFIG_MAP_BYTES} bytes")
    return data


def _node(name: str, metadata: Mapping[str, Any], document: Mapping[str, Any]) -> Object:
    annotations = _annotations(metadata)
    with within("metadata.labels"):
        labels = _texts(metadata.get("labels"))
    with within("status"):
        status = mapping_of(document.get("status"))
        resources = {}
        for key in ("capacity", "allocatable"):
            with within(key):
                resources[key] = quantities_of(status.get(key))
    value = NodeObject(labels=labels, annotations=annotations, **resources)
    source = _source(
        Kind.NODE,
        name,
        metadata={"labels": labels, "annotations": annotations},
        status={key: status.get(key) for key in resources},
    )
    return Object(Kind.NODE, value, source)


def _annotations(metadata: Mapping[str, Any]) -> dict[str, str]:
    with within("metadata.annotations"):
        annotations = _texts(metadata.get("annotations"))
        size = sum(len(key) + len(value) for key, value in annotations.items())
        if size > MAX_ANNOTATIONS_BYTES:
            largest = max(annotations, key=lambda key: len(annotations[key]))
            raise InputError(f"has more than {MAX_ANNOTATIONS_BYTES} bytes; most are of {shortened(largest)}")
    return annotations


def _texts(value: object) -> dict[str, str]:
    found = dict(mapping_of(value))
    for key, text in found.items():
        if not isinstance(text, str):
            raise InputError(f"is {kind_of(text)}, not a text; quote it", shortened(key))
    return found


def _source(kind: Kind, name: str, **parts: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    metadata = {"name": name, **parts.pop("metadata", {})}
    return {"kind": kind.value, "metadata": metadata, **parts}


def _flattened(document: object) -> Iterator[object]:
    """The objects of a document: it is one, or a list of some."""
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        items = document.get("items")
        yield from items if isinstance(items, list) else ()
    else:
        yield document
