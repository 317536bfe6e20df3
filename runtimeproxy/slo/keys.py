"""Reads the keys of the ConfigMap `slo-controller-config`, and a NodeSLO, one by one.

A key is a cluster strategy, node strategies and pod strategies. It is used as a whole or not at all.
Source: Koordinator apis/configuration/slo_controller_config.go; pod strategies: its pull request 2557, not
merged, generalized.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

from runtimeproxy.labels import EVERY_LABEL, Conditions, LabelSelector, label_problems, namespace_problem
from runtimeproxy.slo.reading import (
    InvalidError,
    Overlay,
    Path,
    Problem,
    Report,
    build,
    child,
    json_key,
    members_of,
    parse_json,
    read_overlay,
    read_selector,
    selector_path,
    shown,
)
from runtimeproxy.slo.schema import (
    PRODUCT_DEFAULTS,
    Bound,
    CgroupPath,
    Colocation,
    CpuBurstStrategy,
    CpuGuard,
    CpuNormalizationStrategy,
    HostApplication,
    HostApplications,
    MemoryQoSStrategy,
    PodCpuBurst,
    PodCpuGuard,
    PodNetwork,
    PodStartupBoost,
    QoSStrategy,
    Range,
    ResourceAmplification,
    System,
    Threshold,
)
from runtimeproxy.slo.strategies import Layer, PodRule, Provenance
from runtimeproxy.spelling import nearest
from runtimeproxy.units import quantity_bytes

_UNREADABLE: Final = LabelSelector(match_labels={"unreadable": "true"})
"""Stands for a selector with an error, so that it is not reported as a missing one, too."""

_CLASSES: Final = ("lsr_class", "ls_class", "be_class")
"""The classes whose network requests share the node's bandwidth. Source: Koordinator's webhook."""
_REQUESTS: Final = ("ingress_request", "egress_request")

MAX_STRATEGIES: Final = 256
"""Node strategies of one key, and pod strategies: each is compared with each."""
MAX_CONDITIONS: Final = 4_096
"""Labels and values in the selectors of one key's pod strategies: all are compared with each pod."""


# Fields of pod strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCpuQoS:
    """The part of a class's CPU QoS that a pod strategy may change."""

    refused: ClassVar[Mapping[str, str]] = {
        "sched_idle": "applies to a whole class",
        "core_expeller": "applies to a whole class",
    }

    enable: bool = False
    group_identity: Annotated[int, Range(-1, 2)] = 0


class ResctrlClass(StrEnum):
    """A class with a resctrl group."""

    LSR = "LSR"
    LS = "LS"
    BE = "BE"


_SCHEMATA: Final = "belongs to a class; a pod strategy may only say whose class's group the pod joins"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResctrlQoS:
    """`resctrlQOS` of a pod strategy."""

    refused: ClassVar[Mapping[str, str]] = {
        "enable": "applies to a whole class",
        "cat_range_start_percent": _SCHEMATA,
        "cat_range_end_percent": _SCHEMATA,
        "mba_percent": _SCHEMATA,
    }

    class_name: ResctrlClass | None = None


_CLASS: Final = "is a class of the node; a pod strategy has its parts directly, such as `memoryQOS`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQoS:
    """The fields of a pod strategy of `resource-qos-config`."""

    refused: ClassVar[Mapping[str, str]] = {
        "policies": "chooses mechanisms of the whole node",
        "lsr_class": _CLASS,
        "ls_class": _CLASS,
        "be_class": _CLASS,
        "system_class": _CLASS,
        "cgroup_root": _CLASS,
        "blkio_qos": "applies to a whole class; a pod has the annotation koordinator.sh/blkioQOS",
    }

    cpu_qos: PodCpuQoS = field(default_factory=PodCpuQoS)
    memory_qos: MemoryQoSStrategy = field(default_factory=MemoryQoSStrategy)
    resctrl_qos: PodResctrlQoS = field(default_factory=PodResctrlQoS)
    network_qos: PodNetwork = field(default_factory=PodNetwork)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodThreshold:
    """The fields of a pod strategy of `resource-threshold-config`: which evictions are allowed."""

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (each.name for each in fields(Threshold)),
        "applies to the whole node; a pod strategy may only say which evictions are allowed",
    )

    eviction_enabled: bool = False
    """As the label `koordinator.sh/eviction-enabled`."""
    eviction_policy: tuple[str, ...] | None = None
    """As the annotation `koordinator.sh/eviction-policy`."""


# Keys

_Members: TypeAlias = Mapping[str, tuple[str, object]]
"""Of a JSON object: see `members_of`."""


class Section(NamedTuple):
    """One kind of strategy."""

    key: str
    """Of the ConfigMap."""
    attribute: str
    """Of `Strategies`."""
    default: object
    """The values that a node strategy or NodeSLO is laid over; a dataclass of the schema."""
    node_slo: str
    """The field of a NodeSLO's `spec`; empty: it has none."""
    is_inline: bool = False
    """The cluster strategy's fields are the key's own, and node strategies are called `nodeConfigs`."""
    is_checked: bool = True
    """Koordinator's webhook checks the selectors of its node strategies."""
    pod_kind: type | None = None
    """The dataclass of a pod strategy's fields; None: there are no pod strategies."""
    pod_names: tuple[str, ...] = ()
    """The keys that a pod strategy's fields may be nested in."""

    @property
    def kind(self) -> type:
        return type(self.default)


SECTIONS: Final = (
    Section(
        "resource-threshold-config",
        "threshold",
        Threshold(),
        "resourceUsedThresholdWithBE",
        pod_kind=PodThreshold,
        pod_names=("strategy",),
    ),
    Section(
        "resource-qos-config",
        "qos",
        PRODUCT_DEFAULTS,
        "resourceQOSStrategy",
        pod_kind=PodQoS,
        pod_names=("strategy",),
    ),
    Section(
        "cpu-burst-config",
        "cpu_burst",
        CpuBurstStrategy(),
        "cpuBurstStrategy",
        pod_kind=PodCpuBurst,
        pod_names=("cpuBurstConfig", "cpuBurstStrategy", "strategy"),
    ),
    # Koordinator has no such key, and leaves it alone.
    Section(
        "startup-boost-config",
        "startup_boost",
        PodStartupBoost(),
        "",
        pod_kind=PodStartupBoost,
        pod_names=("startupBoostConfig", "startupBoostStrategy", "strategy"),
    ),
    Section("system-config", "system", System(), "systemStrategy"),
    Section(
        "host-application-config",
        "host_applications",
        HostApplications(),
        "hostApplications",
        is_inline=True,
        is_checked=False,
    ),
    # Of this project: Koordinator has no such key, and leaves it alone.
    Section("cpu-guard-config", "cpu_guard", CpuGuard(), "", pod_kind=PodCpuGuard, pod_names=("strategy",)),
    Section("colocation-config", "colocation", Colocation(), "", is_inline=True),
    Section(
        "cpu-normalization-config",
        "cpu_normalization",
        CpuNormalizationStrategy(),
        "",
        is_inline=True,
        is_checked=False,
    ),
)
SECTION_BY_KEY: Final = {each.key: each for each in SECTIONS}
UNUSED_SECTIONS: Final = {
    "resource-amplification-config": Section(
        "resource-amplification-config", "", ResourceAmplification(), "", is_inline=True, is_checked=False
    )
}
"""By key: those of Koordinator whose names are checked, and nothing else: they change what a node publishes,
not what runs there."""


class NodeStrategy(NamedTuple):
    """A strategy for the nodes that a selector matches."""

    name: str
    selector: LabelSelector
    values: Overlay
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """The strategies of a key, checked."""

    file: str
    cluster: Overlay
    cluster_provenance: Provenance
    nodes: tuple[NodeStrategy, ...] = ()
    pods: tuple[PodRule, ...] = ()

    @property
    def is_node_slo(self) -> bool:
        return self.cluster_provenance.source is Layer.NODE_SLO


def read_key(section: Section, file: str, text: str) -> tuple[KeyConfig | None, tuple[Problem, ...]]:
    """Returns what a key of the ConfigMap says, None if it cannot be used, and its problems."""
    report = Report(file, section.key)
    try:
        raw = parse_json(text, report)
        if not isinstance(raw, Mapping):
            report.fail("", "is not an object")
    except InvalidError:
        return None, report.all_problems()
    config = _KeyReader(section, report).read(raw)
    return (None if report.has_errors else config), report.all_problems()


def read_node_slo_section(
    section: Section, file: str, raw: object
) -> tuple[KeyConfig | None, tuple[Problem, ...]]:
    """Returns what a section of a NodeSLO's `spec` says, None if it cannot be used, and its problems."""
    report = Report(file, section.node_slo)
    if section.kind is HostApplications:
        raw = {"applications": raw}
    overlay = read_overlay(section.kind, raw, report)
    _check(section, {}, overlay, "", report)
    provenance = Provenance(Layer.NODE_SLO, file, section.node_slo)
    return None if report.has_errors else KeyConfig(file, overlay, provenance), report.all_problems()


class _KeyReader:
    def __init__(self, section: Section, report: Report) -> None:
        self._section = section
        self._report = report
        self._nodes_key = "nodeConfigs" if section.is_inline else "nodeStrategies"

    def read(self, raw: Mapping[str, object]) -> KeyConfig:
        section, report = self._section, self._report
        lists = frozenset({self._nodes_key, "podStrategies"})
        members = members_of(raw)
        if section.is_inline:
            place = ""
            cluster = read_overlay(section.kind, raw, report, beside=lists)
        else:
            place, value = members.get("clusterstrategy", ("clusterStrategy", None))
            cluster = read_overlay(section.kind, value, report, place)
            self._report_unknown(members, lists | {"clusterStrategy"})
        _check(section, {}, cluster, place, report)
        return KeyConfig(
            report.file,
            cluster,
            Provenance(Layer.CLUSTER, report.file, section.key),
            tuple(self._nodes(members.get(self._nodes_key.lower()), cluster)),
            tuple(self._pods(members.get("podstrategies"))),
        )

    def _report_unknown(self, members: _Members, known: frozenset[str]) -> None:
        folded_names = {each.lower() for each in known}
        fields = {json_key(each.name) for each in dataclasses.fields(self._section.kind)}
        for folded, (key, _) in members.items():
            if folded in folded_names:
                continue
            # A field of the strategy may stand one level too high.
            guess = nearest(key, sorted(known)) or nearest(key, sorted(fields))
            guess = f"clusterStrategy.{guess}" if guess in fields else guess
            self._report.unknown_name(child("", key), guess, "; strategies are in clusterStrategy")

    def _items(self, member: tuple[str, object] | None) -> Iterator[tuple[str, Mapping[str, object]]]:
        place, value = member or ("", None)
        if value is None:
            return
        if not isinstance(value, Sequence) or isinstance(value, str):
            self._report.error(place, "is not a list")
        elif len(value) > MAX_STRATEGIES:
            self._report.error(place, f"has {len(value)} strategies, more than {MAX_STRATEGIES}")
        else:
            for number, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield f"{place}[{number}]", item
                else:
                    self._report.error(f"{place}[{number}]", "is not an object")

    def _nodes(self, member: tuple[str, object] | None, cluster: Overlay) -> Iterator[NodeStrategy]:
        found: list[tuple[str, NodeStrategy, Conditions]] = []
        for place, item in self._items(member):
            members = members_of(item)
            name = self._name(members, place)
            selector = self._node_selector(members, place)
            values = read_overlay(
                self._section.kind, item, self._report, place, beside={"name", "nodeSelector"}
            )
            if self._section.kind is HostApplications:
                values.setdefault(("applications",), ())
            _check(self._section, cluster, values, place, self._report)
            if selector is None:
                continue
            provenance = Provenance(Layer.NODE, self._report.file, self._section.key, name or place)
            strategy = NodeStrategy(name or place, selector, values, provenance)
            conditions = Conditions(selector)
            for other_place, other, of_other in found:
                if self._section.is_checked and conditions.overlap(of_other):
                    reason = f"can match the same nodes as that of {other_place}"
                    self._report.error(child(place, "nodeSelector"), reason)
                if other.name == strategy.name:
                    self._report.warn(child(place, "name"), f"is that of {other_place}, too")
            found.append((place, strategy, conditions))
            yield strategy

    def _node_selector(self, members: _Members, place: str) -> LabelSelector | None:
        """The selector of a node strategy; None if it matches no node."""
        selector = self._selector(members, "nodeSelector", place)
        if self._section.is_checked and selector in (None, EVERY_LABEL):
            self._report.error(child(place, "nodeSelector"), "must be there, and not be empty")
            return None
        if selector is None:
            self._report.warn(child(place, "nodeSelector"), "is not there: this matches no node")
        return selector

    def _pods(self, member: tuple[str, object] | None) -> Iterator[PodRule]:
        section, report = self._section, self._report
        if member is not None and member[1] is not None and section.pod_kind is None:
            report.error(member[0], "cannot be: this strategy applies to the whole node")
            return
        names: set[str] = set()
        conditions = 0
        for place, item in self._items(member):
            members = members_of(item)
            name = self._name(members, place)
            if name and name in names:
                report.error(child(place, "name"), "is that of another pod strategy, too")
            names.add(name)
            namespace = self._namespace(members, place)
            selector = self._selector(members, "podSelector", place) or EVERY_LABEL
            if not namespace and selector == EVERY_LABEL:
                report.error(place, "has neither a namespace nor a podSelector")
            conditions += len(selector.match_labels)
            conditions += sum(1 + len(each.values) for each in selector.match_expressions)
            if conditions > MAX_CONDITIONS:
                reason = f"brings the labels and values of all pod strategies above {MAX_CONDITIONS}"
                report.error(child(place, "podSelector"), reason)
                return
            values = self._pod_values(members, item, place)
            yield PodRule(
                name or place,
                namespace,
                selector,
                self._selector(members, "nodeSelector", place) or EVERY_LABEL,
                self._is_override(members, place),
                values,
                Provenance(Layer.POD, report.file, section.key, name or place),
            )

    def _pod_values(self, members: _Members, item: Mapping[str, object], place: str) -> Overlay:
        section, report = self._section, self._report
        assert section.pod_kind is not None  # noqa: S101 - the caller has looked
        beside = {"name", "namespace", "podSelector", "nodeSelector", "overridePod", *section.pod_names}
        nested = [members[each.lower()] for each in section.pod_names if each.lower() in members]
        of_item = {each.lower() for each in beside}
        inline = [key for folded, (key, _) in members.items() if folded not in of_item]
        if len(nested) > 1 or (nested and inline):
            both = [*(key for key, _ in nested), *inline][:2]
            places = " and ".join(child("", key) for key in both)
            report.error(place, f"has its strategy in two places: {places}")
            return {}
        if nested:
            values = read_overlay(section.pod_kind, nested[0][1], report, child(place, nested[0][0]))
        else:
            values = read_overlay(section.pod_kind, item, report, place, beside=beside)
        if not values and not report.has_errors:
            report.error(place, f"has no strategy: none of its fields, and no {section.pod_names[0]}")
        return values

    def _name(self, members: _Members, place: str) -> str:
        key, value = members.get("name", ("name", None))
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > 253:
            self._report.error(child(place, key), f"is {shown(value)}, not a text of at most 253 characters")
            return ""
        return value

    def _namespace(self, members: _Members, place: str) -> str:
        key, value = members.get("namespace", ("namespace", None))
        if value is None:
            return ""
        if value != "" and namespace_problem(value):
            self._report.error(child(place, key), f"is {shown(value)}, not a namespace's name")
        return str(value)

    def _is_override(self, members: _Members, place: str) -> bool:
        key, value = members.get("overridepod", ("overridePod", None))
        if value is not None and not isinstance(value, bool):
            self._report.error(child(place, key), f"is {shown(value)}, not true or false")
        return value is True

    def _selector(self, members: _Members, name: str, place: str) -> LabelSelector | None:
        key, value = members.get(name.lower(), (name, None))
        if value is None:
            return None
        place = child(place, key)
        try:
            selector = read_selector(value, self._report, place)
        except InvalidError:
            return _UNREADABLE
        for where, reason in label_problems(selector):
            self._report.error(f"{place}.{selector_path(where)}", f"cannot be: {reason}")
        return selector


# Checks beyond single fields, like those of Koordinator's webhook (pkg/webhook/cm/plugins/sloconfig)


def _check(section: Section, cluster: Overlay, values: Overlay, place: str, report: Report) -> None:
    """Reports problems of the strategy at `place` that sets these values over the cluster's."""
    merged = {**cluster, **values}
    strategy = build(section.default, merged)
    problems = [*_bound_problems(strategy, (), merged)]
    if isinstance(strategy, QoSStrategy):
        problems += _network_problems(values)
    for where, reason in problems:
        report.error(".".join(part for part in (place, *map(json_key, where)) if part), reason)
    for where_text, reason in _application_problems(values.get(("applications",))):
        report.error(child(place, f"applications{where_text}"), reason)


def _bound_problems(value: object, path: Path, merged: Overlay) -> Iterator[tuple[Path, str]]:
    bounds: tuple[Bound, ...] = getattr(value, "bounds", ())
    for bound in bounds:
        lower, upper = getattr(value, bound.lower), getattr(value, bound.upper)
        if lower is not None and upper is not None and lower >= upper:
            if (*path, bound.lower) in merged:
                reason = f"is {lower}, which is not below {json_key(bound.upper)}, {upper}"
                yield (*path, bound.lower), reason
            else:
                reason = f"is {upper}, which is not above {json_key(bound.lower)}, {lower}"
                yield (*path, bound.upper), reason
    for each in dataclasses.fields(value):  # type: ignore[arg-type]
        below = getattr(value, each.name)
        if dataclasses.is_dataclass(below):
            yield from _bound_problems(below, (*path, each.name), merged)


def _network_problems(overlay: Overlay) -> Iterator[tuple[Path, str]]:
    """One format for all requests of one strategy, and percentages of at most 100 together."""
    requests = {
        path: overlay[path]
        for path in overlay
        if len(path) == 3 and path[0] in _CLASSES and path[1] == "network_qos" and path[2] in _REQUESTS
    }
    texts = [path for path, value in requests.items() if isinstance(value, str)]
    if texts and len(texts) < len(requests):
        yield texts[-1], "is a quantity, while other requests are percentages: one format only"
    for name in _REQUESTS:
        percent = {path: each for path, each in requests.items() if path[2] == name and isinstance(each, int)}
        if sum(percent.values()) > 100:
            reason = f"adds up to {sum(percent.values())} percent over all classes, more than 100"
            yield [*percent][-1], reason


def _application_problems(applications: object) -> Iterator[tuple[str, str]]:
    """Yields problems of host applications: the place below the list, and the reason."""
    names: set[str] = set()
    places: dict[tuple[str, ...], str] = {}
    for number, each in enumerate(applications if isinstance(applications, tuple) else ()):
        if not isinstance(each, HostApplication):
            continue
        if not each.name.isprintable() or "/" in each.name or each.name in ("", ".", ".."):
            yield f"[{number}].name", "is not the name of a directory"
        elif each.name in names:
            yield f"[{number}].name", "is that of another application, too"
        names.add(each.name)
        where = each.cgroup_path
        place = f"{where.parent_dir}/{where.relative_path}" if where else ""
        if ".." in place.split("/"):
            yield f"[{number}].cgroupPath", "leads out of its base"
        elif not place.isprintable():
            yield f"[{number}].cgroupPath", "is not the path of a directory"
        elif where and (other := places.setdefault(_place_of(where), each.name)) != each.name:
            yield f"[{number}].cgroupPath", f"is that of {shown(other)}, too"


def _place_of(path: CgroupPath) -> tuple[str, ...]:
    """Returns the same for all spellings of a path below one base."""
    parts = f"{path.parent_dir}/{path.relative_path}".split("/")
    return (path.base, *(part for part in parts if part not in ("", ".")))


def bandwidth_problem(strategy: QoSStrategy, total: int) -> str:
    """Returns why the classes' network requests exceed the node's bandwidth in bits/s; empty if not."""
    for name in _REQUESTS:
        requests = [getattr(getattr(strategy, each).network_qos, name) for each in _CLASSES]
        needed = sum(quantity_bytes(each) for each in requests if isinstance(each, str))
        # 0 stands for a bandwidth that is not known.
        if total and needed > total:
            which = f"{needed} bits/s of {json_key(name)} over all classes"
            return f"adds up to {which}, more than the node's {total}"
    return ""
