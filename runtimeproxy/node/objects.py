"""Kubernetes objects about this node, as `kubectl get -o yaml` prints them, alone or in lists.

All functions are pure. Only objects of a `Kind` are read, and of them only the fields that are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from runtimeproxy.documents.reading import (
    InputError,
    cpus_of,
    kind_of,
    list_of,
    mapping_of,
    member,
    parse_json,
    quantities_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.node.machine import Processor
from runtimeproxy.node.snapshot import EMPTY, Pool
from runtimeproxy.slo.names import CONFIG_MAP
from runtimeproxy.spelling import did_you_mean, nearest
from runtimeproxy.units import format_cpu_list

if TYPE_CHECKING:
    from runtimeproxy.katalyst.targets import CustomConfig, Target

MAX_ANNOTATIONS_BYTES: Final = 256 * 1024
"""All annotations of an object. Source: Kubernetes apimachinery, TotalAnnotationSizeLimitB."""
MAX_CONFIG_MAP_BYTES: Final = 1024 * 1024
"""All values of a ConfigMap. Source: Kubernetes, MaxSecretSize."""

LS_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
BE_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"
SYSTEM_QOS: Final = "node.koordinator.sh/system-qos-resource"
RESERVATION: Final = "node.koordinator.sh/reservation"
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
CPU_BASIC_INFO: Final = "node.koordinator.sh/cpu-basic-info"
"""Annotations of a NodeResourceTopology, which koordlet publishes. Go matches keys in any case.

Source: Koordinator apis/extension, numa_aware.go, system_qos.go, node.go, cpu_normalization.go.
"""

_MAX_NODES: Final = 1024
"""NUMA nodes and sockets. Source: Linux arch/x86/Kconfig, NODES_SHIFT."""


class Kind(StrEnum):
    """The objects that are read."""

    CONFIG_MAP = "ConfigMap"
    NODE = "Node"
    TOPOLOGY = "NodeResourceTopology"
    NODE_SLO = "NodeSLO"
    TARGET = "AdminQoSConfiguration"
    CUSTOM_CONFIG = "KatalystCustomConfig"


KATALYST_KINDS: Final = frozenset({Kind.TARGET, Kind.CUSTOM_CONFIG})
"""Kinds of which a node uses many objects, of any name."""


class NodeObject(NamedTuple):
    """The used fields of a Node."""

    labels: Mapping[str, str] = EMPTY
    annotations: Mapping[str, str] = EMPTY
    capacity: Mapping[str, int] = EMPTY
    """By resource: `cpu` in millicores, all else in bytes or numbers."""
    allocatable: Mapping[str, int] = EMPTY
    kubelet_version: str = ""
    """Such as `v1.37.2`; empty: it does not say."""


class NodeSloObject(NamedTuple):
    """The used fields of a NodeSLO."""

    spec: Mapping[str, Any] = EMPTY


class ConfigMapObject(NamedTuple):
    """The used fields of the ConfigMap `slo-controller-config`."""

    data: Mapping[str, str] = EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFacts:
    """The facts of the annotations; None: there is no such annotation."""

    ls_pools: tuple[Pool, ...] | None = None
    be_pools: tuple[Pool, ...] | None = None
    system_cpus: frozenset[int] | None = None
    is_system_exclusive: bool = True
    reserved_cpus: frozenset[int] = frozenset()
    """`reservedCPUs` of the reservation."""
    kubelet_policy: str | None = None
    """CPU manager policy: `none` or `static`."""
    kubelet_reserved_cpus: frozenset[int] = frozenset()
    static_cpus: Mapping[tuple[str, str], frozenset[int]] | None = None
    """CPUs that the kubelet has given away, by pod uid; the container's name is not published."""
    processor: Processor | None = None
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


class ObjectsOfKind(NamedTuple):
    """All objects of one of `KATALYST_KINDS`, in a list of the API server."""

    values: tuple[Target | CustomConfig, ...]


ObjectValue: TypeAlias = (
    "NodeObject | NodeSloObject | ConfigMapObject | TopologyFacts | Target | CustomConfig | ObjectsOfKind"
)
ObjectKey: TypeAlias = tuple[Kind, str]
"""A kind and the object's name, which is empty for kinds of which a node has one."""


class Object(NamedTuple):
    """One object of this node."""

    kind: Kind
    value: ObjectValue
    source: Mapping[str, Any]
    """The object's used parts, as JSON can hold them; `read_object` makes the same of it again."""
    name: str = ""
    """Of one of `KATALYST_KINDS`, with its namespace; else empty."""

    @property
    def key(self) -> ObjectKey:
        return self.kind, self.name


class Rejected(NamedTuple):
    """An object of this node that cannot be used."""

    kind: Kind
    reason: str


class Ignored(NamedTuple):
    """An object that is about something else."""

    reason: str
    of_other_node: Kind | None = None
    """Its kind, if it is about another node."""
    is_misspelled: bool = False
    """Its kind or name is nearly one that is read."""


class Reader(NamedTuple):
    """Name and CPUs of this node, by which an object belongs to it."""

    node_name: str
    cpus: frozenset[int] | None = None
    """The CPUs that this node has; None: not known."""

    def read(self, documents: Iterable[object]) -> list[Object | Rejected | Ignored]:
        return [self.read_object(each) for document in documents for each in _flattened(document)]

    def read_object(self, document: object) -> Object | Rejected | Ignored:
        if not isinstance(document, dict):
            return Ignored(f"{kind_of(document)} is not a Kubernetes object")
        name = document.get("kind")
        listed = _LISTS.get(name if isinstance(name, str) else "")
        if listed is not None:
            return self._read_list(listed, document)
        try:
            kind = Kind(name if isinstance(name, str) else "")
        except ValueError:
            what = shortened(name) if isinstance(name, str) and name else "an object without kind"
            guess = nearest(what, Kind)
            reason = f"{what} is not read; {', '.join(Kind)} are{did_you_mean(guess)}"
            return Ignored(reason, is_misspelled=bool(guess))
        try:
            return self._read(kind, document)
        except InputError as error:
            return Rejected(kind, str(error))

    def _read_list(self, kind: Kind, document: Mapping[str, Any]) -> Object | Rejected:
        values: list[Any] = []
        sources = []
        try:
            with within("items"):
                for item in list_of(document.get("items")):
                    found = self._read(kind, mapping_of(item))
                    if isinstance(found, Object):
                        values.append(found.value)
                        sources.append(found.source)
        except InputError as error:
            return Rejected(kind, str(error))
        return Object(kind, ObjectsOfKind(tuple(values)), {"kind": f"{kind}List", "items": sources})

    def _read(self, kind: Kind, document: Mapping[str, Any]) -> Object | Ignored:
        if kind in KATALYST_KINDS:
            return _of_katalyst(kind, document)
        with within("metadata"):
            metadata = mapping_of(document.get("metadata"))
            with within("name"):
                name = text_of(metadata.get("name"))
        wanted = CONFIG_MAP if kind is Kind.CONFIG_MAP else self.node_name
        if name != wanted:
            of_other_node = None if kind is Kind.CONFIG_MAP else kind
            guess = nearest(name, [wanted]) if of_other_node is None else ""
            reason = f"{kind} {shortened(repr(name))} is not read; {wanted} is{did_you_mean(guess)}"
            return Ignored(reason, of_other_node, is_misspelled=bool(guess))
        match kind:
            case Kind.CONFIG_MAP:
                data = config_map_data(document.get("data"))
                return Object(kind, ConfigMapObject(data=data), _source(kind, name, data=data))
            case Kind.NODE:
                return _node(name, metadata, document)
            case Kind.TOPOLOGY:
                annotations = annotations_of(metadata)
                with within("metadata.annotations"):
                    facts = parse_topology(annotations, self.cpus)
                return Object(kind, facts, _source(kind, name, metadata={"annotations": facts.source}))
            case _:
                with within("spec"):
                    spec = mapping_of(document.get("spec"))
                return Object(kind, NodeSloObject(spec=spec), _source(kind, name, spec=spec))


_LISTS: Final = {f"{kind}List": kind for kind in KATALYST_KINDS}


def _of_katalyst(kind: Kind, document: Mapping[str, Any]) -> Object | Ignored:
    from runtimeproxy.katalyst.targets import RESOURCE, read_custom_config, read_target

    if kind is Kind.TARGET:
        target = read_target(document)
        return Object(kind, target, target.source, target.name)
    custom = read_custom_config(document)
    if custom is None:
        return Ignored(f"a {kind} is not read that is about other objects than {RESOURCE}")
    return Object(kind, custom, custom.source, custom.name)


def config_map_data(value: object) -> dict[str, str]:
    """The data of a ConfigMap. Raises InputError."""
    with within("data"):
        data = _texts(value)
        if sum(map(len, data.values())) > MAX_CONFIG_MAP_BYTES:
            raise InputError(f"has more than {MAX_CONFIG_MAP_BYTES} bytes")
    return data


def _node(name: str, metadata: Mapping[str, Any], document: Mapping[str, Any]) -> Object:
    annotations = annotations_of(metadata)
    with within("metadata.labels"):
        labels = _texts(metadata.get("labels"))
    with within("status"):
        status = mapping_of(document.get("status"))
        resources = {}
        for key in ("capacity", "allocatable"):
            with within(key):
                resources[key] = quantities_of(status.get(key))
        with within("nodeInfo"), within("kubeletVersion"):
            version = text_of(mapping_of(status.get("nodeInfo")).get("kubeletVersion"))
    value = NodeObject(labels=labels, annotations=annotations, kubelet_version=version, **resources)
    source = _source(
        Kind.NODE,
        name,
        metadata={"labels": labels, "annotations": annotations},
        status={**{key: status.get(key) for key in resources}, "nodeInfo": {"kubeletVersion": version}},
    )
    return Object(Kind.NODE, value, source)


def annotations_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of an object's metadata. Raises InputError."""
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
    # A document is one object, or a list of some.
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List"):
        items = document.get("items")
        yield from items if isinstance(items, list) else ()
    else:
        yield document


def has_incomplete(documents: Iterable[object]) -> bool:
    # An object that is cut off looks so.
    return any(not _is_named(each) for document in documents for each in _flattened(document))


def _is_named(document: object) -> bool:
    if not isinstance(document, dict) or not document.get("kind"):
        return False
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and bool(metadata.get("name"))


# Annotations of a NodeResourceTopology


def parse_topology(annotations: Mapping[str, str], cpus: frozenset[int] | None) -> TopologyFacts:
    """Reads the annotations of a NodeResourceTopology. Raises InputError, also for unknown CPUs."""
    found: dict[str, Any] = {"source": {name: annotations[name] for name in _READERS if name in annotations}}
    for name, text in found["source"].items():
        with within(name):
            value = parse_json(text)
            if value is not None:
                found.update(_READERS[name](value, cpus))
    return TopologyFacts(**found)


def _pools(value: object, cpus: frozenset[int] | None) -> tuple[Pool, ...]:
    pools = []
    items = list_of(value)
    if len(items) > _MAX_NODES:
        raise InputError(f"has more than {_MAX_NODES} pools")
    for index, item in enumerate(items):
        with within(f"[{index}]"):
            pool = mapping_of(item)
            pools.append(
                Pool(
                    socket=_natural(pool, "socket"),
                    numa_node=_natural(pool, "node"),
                    cpus=_cpus(pool, "cpuset", cpus),
                )
            )
    return tuple(pools)


def _system(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    resource = mapping_of(value)
    is_exclusive = member(resource, "cpusetExclusive")
    if is_exclusive is not None and not isinstance(is_exclusive, bool):
        raise InputError("is neither true nor false", "cpusetExclusive")
    return {
        "system_cpus": _cpus(resource, "cpuset", cpus),
        "is_system_exclusive": True if is_exclusive is None else is_exclusive,
    }


def _reservation(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    return {"reserved_cpus": _cpus(mapping_of(value), "reservedCPUs", cpus)}


def _kubelet(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    policy = mapping_of(value)
    with within("policy"):
        name = text_of(member(policy, "policy"))
    if name not in ("", "none", "static"):
        raise InputError("is neither none nor static", "policy")
    return {
        "kubelet_policy": name or None,
        "kubelet_reserved_cpus": _cpus(policy, "reservedCPUs", cpus),
    }


def _allocations(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    static: dict[tuple[str, str], frozenset[int]] = {}
    for index, item in enumerate(list_of(value)):
        with within(f"[{index}]"):
            allocation = mapping_of(item)
            allocated = _cpus(allocation, "cpuset", cpus)
            with within("uid"):
                uid = text_of(member(allocation, "uid"))
            # The others are the scheduler's, which pods have in an annotation.
            if member(allocation, "managedByKubelet") is True:
                static[uid, ""] = static.get((uid, ""), frozenset()) | allocated
    return {"static_cpus": static}


def _processor(value: object, _: frozenset[int] | None) -> dict[str, Any]:
    info = mapping_of(value)
    with within("cpuModel"):
        model = text_of(member(info, "cpuModel"))
    flags = {key: member(info, key) for key in ("hyperThreadEnabled", "turboEnabled")}
    for key, flag in flags.items():
        if flag is not None and not isinstance(flag, bool):
            raise InputError("is neither true nor false", key)
    return {
        "processor": Processor(
            model=model,
            has_hyper_threads=bool(flags["hyperThreadEnabled"]),
            has_turbo=bool(flags["turboEnabled"]),
        )
    }


def _check_topology(value: object, cpus: frozenset[int] | None) -> dict[str, Any]:
    """The published CPUs must be among those of this node, else the object is of another one."""
    with within("detail"):
        published = set()
        for index, item in enumerate(list_of(member(mapping_of(value), "detail"))):
            with within(f"[{index}]"):
                published.add(_natural(mapping_of(item), "id"))
        _check(frozenset(published), cpus)
    return {}


_READERS: Final[Mapping[str, Callable[[object, frozenset[int] | None], dict[str, Any]]]] = {
    CPU_TOPOLOGY: _check_topology,
    LS_POOLS: lambda value, cpus: {"ls_pools": _pools(value, cpus)},
    BE_POOLS: lambda value, cpus: {"be_pools": _pools(value, cpus)},
    SYSTEM_QOS: _system,
    RESERVATION: _reservation,
    CPU_MANAGER_POLICY: _kubelet,
    POD_CPU_ALLOCS: _allocations,
    CPU_BASIC_INFO: _processor,
}
"""The fields of `TopologyFacts` from each annotation that is read."""


def _cpus(values: Mapping[str, Any], key: str, cpus: frozenset[int] | None) -> frozenset[int]:
    with within(key):
        found = cpus_of(text_of(member(values, key)))
        _check(found, cpus)
    return found


def _check(found: frozenset[int], cpus: frozenset[int] | None) -> None:
    if cpus is not None and not found <= cpus:
        raise InputError(
            f"this node has no CPU {format_cpu_list(found - cpus)}, only {format_cpu_list(cpus)}"
        )


def _natural(values: Mapping[str, Any], key: str) -> int:
    number = member(values, key)
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < _MAX_NODES * 8:
        raise InputError("is not a number of this kind", key)
    return number
