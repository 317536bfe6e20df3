"""Reads the keys of the ConfigMap `slo-controller-config`, and a NodeSLO, one by one.

A key is a cluster strategy, node strategies and pod strategies. It is used as a whole or not at all.
Source: policies spec 4.1; pod strategies: Koordinator's pull request 2557 (policies spec 0), generalized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from runtimeproxy.labels import (
    EVERY_LABEL,
    Conditions,
    LabelOperator,
    LabelRequirement,
    LabelSelector,
    label_problems,
    namespace_problem,
)
from runtimeproxy.slo.checks import application_problems, strategy_problems
from runtimeproxy.slo.pod_schema import PodQoS, PodThreshold
from runtimeproxy.slo.pods import PodRule
from runtimeproxy.slo.problems import Problem
from runtimeproxy.slo.provenance import Provenance, Source
from runtimeproxy.slo.reading import (
    InvalidError,
    Overlay,
    Report,
    child,
    json_key,
    parse_json,
    read_overlay,
    shown,
)
from runtimeproxy.slo.schema import (
    PRODUCT_DEFAULTS,
    Colocation,
    CpuBurst,
    CpuNormalization,
    HostApplications,
    PodCpuBurst,
    QoSStrategy,
    System,
    Threshold,
)

_UNREADABLE: Final = LabelSelector(match_labels={"unreadable": "true"})
"""Stands for a selector with an error, so that it is not reported as a missing one, too."""

MAX_STRATEGIES: Final = 256
"""Node strategies of one key, and pod strategies: each is compared with each."""
MAX_CONDITIONS: Final = 4_096
"""Labels and values in the selectors of one key's pod strategies: all are compared with each pod."""


class Section(NamedTuple):
    """One kind of strategy."""

    key: str
    """Of the ConfigMap."""
    attribute: str
    """Of `Strategies`."""
    kind: type
    """The schema's dataclass."""
    default: object
    """The values that a node strategy or NodeSLO is laid over."""
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


SECTIONS: Final = (
    Section(
        "resource-threshold-config",
        "threshold",
        Threshold,
        Threshold(),
        "resourceUsedThresholdWithBE",
        pod_kind=PodThreshold,
        pod_names=("strategy",),
    ),
    Section(
        "resource-qos-config",
        "qos",
        QoSStrategy,
        PRODUCT_DEFAULTS,
        "resourceQOSStrategy",
        pod_kind=PodQoS,
        pod_names=("strategy",),
    ),
    Section(
        "cpu-burst-config",
        "cpu_burst",
        CpuBurst,
        CpuBurst(),
        "cpuBurstStrategy",
        pod_kind=PodCpuBurst,
        pod_names=("cpuBurstConfig", "cpuBurstStrategy", "strategy"),
    ),
    Section("system-config", "system", System, System(), "systemStrategy"),
    Section(
        "host-application-config",
        "host_applications",
        HostApplications,
        HostApplications(),
        "hostApplications",
        is_inline=True,
        is_checked=False,
    ),
    Section("colocation-config", "colocation", Colocation, Colocation(), "", is_inline=True),
    Section(
        "cpu-normalization-config",
        "cpu_normalization",
        CpuNormalization,
        CpuNormalization(),
        "",
        is_inline=True,
        is_checked=False,
    ),
)
SECTION_BY_KEY: Final = {each.key: each for each in SECTIONS}
UNUSED_KEYS: Final = {
    "resource-amplification-config": "is not used: it changes what a node publishes, not what runs there"
}


class NodeStrategy(NamedTuple):
    """A strategy for the nodes that a selector matches."""

    name: str
    selector: LabelSelector
    values: Overlay
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class KeyConfig:
    """What a key says, read and checked."""

    section: Section
    file: str
    cluster: Overlay
    cluster_provenance: Provenance
    nodes: tuple[NodeStrategy, ...] = ()
    pods: tuple[PodRule, ...] = ()

    @property
    def is_node_slo(self) -> bool:
        """Whether it is a section of a NodeSLO."""
        return self.cluster_provenance.source is Source.NODE_SLO


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
    provenance = Provenance(Source.NODE_SLO, file, section.node_slo)
    return None if report.has_errors else KeyConfig(section, file, overlay, provenance), report.all_problems()


class _KeyReader:
    def __init__(self, section: Section, report: Report) -> None:
        self._section = section
        self._report = report
        self._nodes_key = "nodeConfigs" if section.is_inline else "nodeStrategies"

    def read(self, raw: Mapping[str, object]) -> KeyConfig:
        section, report = self._section, self._report
        lists = frozenset({self._nodes_key.lower(), "podstrategies"})
        members = _members(raw)
        if section.is_inline:
            place = ""
            cluster = read_overlay(section.kind, raw, report, beside=lists)
        else:
            place, value = members.get("clusterstrategy", ("clusterStrategy", None))
            cluster = read_overlay(section.kind, value, report, place)
            self._report_unknown(members, lists | {"clusterstrategy"})
        _check(section, {}, cluster, place, report)
        return KeyConfig(
            section,
            report.file,
            cluster,
            Provenance(Source.CLUSTER, report.file, section.key),
            tuple(self._nodes(members.get(self._nodes_key.lower()), cluster)),
            tuple(self._pods(members.get("podstrategies"))),
        )

    def _report_unknown(self, members: Mapping[str, tuple[str, object]], known: frozenset[str]) -> None:
        for folded, (key, _) in members.items():
            if folded not in known:
                self._report.warn(
                    child("", key), "is not a known field, and is not used; strategies are in clusterStrategy"
                )

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
            members = _members(item)
            name = self._name(members, place)
            selector = self._node_selector(members, place)
            values = read_overlay(
                self._section.kind, item, self._report, place, beside=frozenset({"name", "nodeselector"})
            )
            if self._section.kind is HostApplications:
                values.setdefault(("applications",), ())
            _check(self._section, cluster, values, place, self._report)
            if selector is None:
                continue
            provenance = Provenance(Source.NODE, self._report.file, self._section.key, name or place)
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

    def _node_selector(self, members: Mapping[str, tuple[str, object]], place: str) -> LabelSelector | None:
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
            report.error(member[0], "cannot be: this strategy counts for the whole node")
            return
        names: set[str] = set()
        conditions = 0
        for place, item in self._items(member):
            members = _members(item)
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
                Provenance(Source.POD, report.file, section.key, name or place),
            )

    def _pod_values(
        self, members: Mapping[str, tuple[str, object]], item: Mapping[str, object], place: str
    ) -> Overlay:
        section, report = self._section, self._report
        assert section.pod_kind is not None  # noqa: S101 - the caller has looked
        of_item = frozenset({"name", "namespace", "podselector", "nodeselector", "overridepod"})
        nested = [members[each.lower()] for each in section.pod_names if each.lower() in members]
        beside = of_item | {each.lower() for each in section.pod_names}
        inline = [key for folded, (key, _) in members.items() if folded not in beside]
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

    def _name(self, members: Mapping[str, tuple[str, object]], place: str) -> str:
        key, value = members.get("name", ("name", None))
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > 253:
            self._report.error(child(place, key), f"is {shown(value)}, not a text of at most 253 characters")
            return ""
        return value

    def _namespace(self, members: Mapping[str, tuple[str, object]], place: str) -> str:
        key, value = members.get("namespace", ("namespace", None))
        if value is None:
            return ""
        if value != "" and namespace_problem(value):
            self._report.error(child(place, key), f"is {shown(value)}, not a namespace's name")
        return str(value)

    def _is_override(self, members: Mapping[str, tuple[str, object]], place: str) -> bool:
        key, value = members.get("overridepod", ("overridePod", None))
        if value is not None and not isinstance(value, bool):
            self._report.error(child(place, key), f"is {shown(value)}, not true or false")
        return value is True

    def _selector(
        self, members: Mapping[str, tuple[str, object]], name: str, place: str
    ) -> LabelSelector | None:
        key, value = members.get(name.lower(), (name, None))
        if value is None:
            return None
        place = child(place, key)
        try:
            selector = read_selector(value, self._report, place)
        except InvalidError:
            return _UNREADABLE
        for where, reason in label_problems(selector):
            self._report.error(f"{place}.{_selector_path(where)}", f"cannot be: {reason}")
        return selector


def read_selector(raw: object, report: Report, place: str) -> LabelSelector:
    """Returns a label selector of Kubernetes.

    Raises:
        InvalidError: it is none.
    """
    if not isinstance(raw, Mapping):
        report.fail(place, "is not an object")
    labels: dict[str, str] = {}
    expressions: list[LabelRequirement] = []
    for folded, (key, value) in _members(raw).items():
        where = child(place, key)
        if folded == "matchlabels" and (value is None or isinstance(value, Mapping)):
            labels = {
                str(label): _text(text, report, child(where, label)) for label, text in (value or {}).items()
            }
        elif folded == "matchexpressions" and (value is None or isinstance(value, list | tuple)):
            expressions = [
                _requirement(each, report, f"{where}[{number}]") for number, each in enumerate(value or ())
            ]
        elif folded in ("matchlabels", "matchexpressions"):
            report.fail(where, f"is not {'an object' if folded == 'matchlabels' else 'a list'}")
        else:
            report.fail(where, "is not a field of a label selector")
    return LabelSelector(match_labels=labels, match_expressions=tuple(expressions))


def _selector_path(where: Sequence[str]) -> str:
    """The path of a place in a selector, as `label_problems` names it."""
    kind, member, *rest = where
    if kind == "match_labels":
        return child("matchLabels", member)
    return ".".join((f"matchExpressions[{member}]", *rest))


_OPERATORS: Final = {str(each): each for each in LabelOperator}


def _requirement(raw: object, report: Report, place: str) -> LabelRequirement:
    if not isinstance(raw, Mapping):
        report.fail(place, "is not an object")
    members = _members(raw)
    if unknown := members.keys() - {"key", "operator", "values"}:
        report.fail(child(place, members[min(unknown)][0]), "is not a field of a label selector")
    operator = _text(members.get("operator", ("", None))[1], report, child(place, "operator"))
    if operator not in _OPERATORS:
        report.fail(
            child(place, "operator"), f"is {shown(operator)}, which is none of {', '.join(_OPERATORS)}"
        )
    values = members.get("values", ("", None))[1]
    if values is not None and not isinstance(values, list | tuple):
        report.fail(child(place, "values"), "is not a list")
    return LabelRequirement(
        key=_text(members.get("key", ("", None))[1], report, child(place, "key")),
        operator=_OPERATORS[operator],
        values=tuple(_text(each, report, child(place, "values")) for each in values or ()),
    )


def _text(value: object, report: Report, place: str) -> str:
    if not isinstance(value, str):
        report.fail(place, f"is {shown(value)}, not a text")
    return value


def _members(raw: Mapping[str, object]) -> dict[str, tuple[str, object]]:
    """The members of an object by their keys in lower case; the last one of a key counts, as in Go."""
    return {str(key).lower(): (str(key), value) for key, value in raw.items()}


def _check(section: Section, cluster: Overlay, values: Overlay, place: str, report: Report) -> None:
    """Reports what is wrong with the strategy at `place` that sets these values over the cluster's."""
    for where, reason in strategy_problems(section.default, cluster, values):
        report.error(".".join(part for part in (place, *map(json_key, where)) if part), reason)
    for path, value in values.items():
        if path == ("applications",):
            for where_text, reason in application_problems(value):
                report.error(child(place, f"applications{where_text}"), reason)
