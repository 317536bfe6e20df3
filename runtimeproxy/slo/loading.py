"""Loads the strategies of a node: from a ConfigMap's keys, a NodeSLO, and the node's labels and annotations.

The merge is that of koord-manager (pkg/slo-controller/nodeslo/resource_strategy.go) and koordlet
(pkg/koordlet/statesinformer/impl/states_nodeslo.go) together: default < cluster strategy < first matching
node strategy < the node's own annotations and labels; then disabled classes get the values that switch them
off. A section of a NodeSLO is merged by koord-manager already and stands in the place of cluster strategy and
node strategies; pod strategies stand in the ConfigMap only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from runtimeproxy.slo.keys import (
    SECTION_BY_KEY,
    SECTIONS,
    UNUSED_SECTIONS,
    KeyConfig,
    Section,
    bandwidth_problem,
    read_key,
    read_node_slo_section,
)
from runtimeproxy.slo.names import (
    COLOCATION_STRATEGY,
    CPU_NORMALIZATION_ENABLED,
    MAX_ANNOTATION_LENGTH,
    NETWORK_BANDWIDTH,
    RATIO_LABELS,
)
from runtimeproxy.slo.object_names import NODE_NAMES, name_problems
from runtimeproxy.slo.reading import (
    InvalidError,
    Overlay,
    Path,
    Problem,
    Report,
    build,
    child,
    parse_json,
    read_overlay,
    shown,
)
from runtimeproxy.slo.schema import Colocation, QoSStrategy
from runtimeproxy.slo.strategies import (
    CAN_BE_DISABLED,
    Layer,
    PodBasis,
    PodRule,
    Provenance,
    Strategies,
    switch_off,
)
from runtimeproxy.spelling import did_you_mean, nearest
from runtimeproxy.units import quantity_bytes

_BOOLS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
"""Source: Go strconv.ParseBool."""
_SWITCHED: Final = ("cpu_qos", "memory_qos", "resctrl_qos")
_MAX_PERCENT: Final = 10_000
_OF_PODS: Final = ("cpu_burst.", "qos.", "cpu_guard.", "startup_boost.")
"""Paths whose provenance strategies of pods have, too."""


class Text(NamedTuple):
    """The text of one key of a ConfigMap."""

    file: str
    """Where it was read, for provenance and problems."""
    text: str


class NodeSlo(NamedTuple):
    """The `spec` of a NodeSLO object."""

    file: str
    spec: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Strategies, and the problems of loading them."""

    strategies: Strategies = field(default_factory=Strategies)
    problems: tuple[Problem, ...] = ()
    """Errors: the key keeps its last good value; warnings: only the named field is not used."""
    good: Mapping[str, KeyConfig] = field(default_factory=dict)
    """The last good state of each key, and of each section of a NodeSLO by its name there."""


def load(
    texts: Mapping[str, Text],
    *,
    node_slo: NodeSlo | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    previous: Loaded | None = None,
) -> Loaded:
    """Returns the strategies of a node.

    A key that cannot be used keeps its value in `previous`, and is absent without one. A key that is absent
    now is withdrawn, whatever it was before. Pure; takes up to a second for the largest ConfigMaps.
    """
    loading = _Loading(labels or {}, annotations or {}, previous.good if previous else {})
    return loading.run(texts, node_slo)


_Layer: TypeAlias = tuple[Overlay, Provenance]


class _Loading:
    def __init__(
        self, labels: Mapping[str, str], annotations: Mapping[str, str], previous: Mapping[str, KeyConfig]
    ) -> None:
        self._labels = labels
        self._previous = previous
        self._problems: list[Problem] = [*name_problems(NODE_NAMES, labels, annotations)]
        self._good: dict[str, KeyConfig] = {}
        self._own = {
            "system": list(self._own_bandwidth(annotations)),
            "colocation": list(self._own_colocation(annotations)),
            "cpu_normalization": list(self._own_normalization()),
        }
        """By attribute, what the node itself says."""

    def run(self, texts: Mapping[str, Text], node_slo: NodeSlo | None) -> Loaded:
        self._read_keys(texts)
        if node_slo is not None:
            self._read_node_slo(node_slo)
        self._check_bandwidth()
        values: dict[str, Any] = {}
        provenance: dict[str, Provenance] = {}
        for section in SECTIONS:
            self._warn_of_several(section)
            values[section.attribute], of_section = _merged(section, self._layers(section))
            provenance |= of_section
        values["host_applications"] = values["host_applications"].applications
        of_pods = {path: by for path, by in provenance.items() if path.startswith(_OF_PODS)}
        values["pod_basis"] = PodBasis(
            classes=values["qos"],
            provenance=of_pods,
            burst_rules=self._rules("cpu-burst-config"),
            qos_rules=self._rules("resource-qos-config"),
            eviction_rules=self._rules("resource-threshold-config"),
            guard_rules=self._rules("cpu-guard-config"),
            boost_rules=self._rules("startup-boost-config"),
        )
        values["qos"] = _with_disabled(values["qos"], provenance)
        strategies = Strategies(**values, provenance=provenance)
        return Loaded(strategies=strategies, problems=tuple(self._problems), good=self._good)

    def _read_keys(self, texts: Mapping[str, Text]) -> None:
        for key, (file, text) in texts.items():
            section = SECTION_BY_KEY.get(key)
            if section is not None:
                self._keep(key, *read_key(section, file, text))
            elif (unused := UNUSED_SECTIONS.get(key)) is not None:
                reason = "is not used: it changes what a node publishes, not what runs there"
                self._problems.append(Problem(file, key, "", reason, is_warning=True))
                _, problems = read_key(unused, file, text)
                self._problems += (each for each in problems if each.is_unknown_name)
            else:
                guess = nearest(key, (*SECTION_BY_KEY, *UNUSED_SECTIONS))
                reason = f"is not used: no such strategy is known{did_you_mean(guess)}"
                problem = Problem(file, child("", key), "", reason, is_warning=True, is_unknown_name=True)
                self._problems.append(problem._replace(guess=guess))

    def _read_node_slo(self, node_slo: NodeSlo) -> None:
        known = {"extensions", *(section.node_slo for section in SECTIONS)}
        report = Report(node_slo.file, "NodeSLO")
        for key in sorted(node_slo.spec.keys() - known):
            report.unknown_name(child("spec", key), nearest(key, sorted(known - {""})))
        self._problems.extend(report.all_problems())
        for section in SECTIONS:
            raw = node_slo.spec.get(section.node_slo) if section.node_slo else None
            if raw is None:
                continue
            self._keep(section.node_slo, *read_node_slo_section(section, node_slo.file, raw))
            of_map = self._good.get(section.key)
            if section.node_slo in self._good and of_map is not None and (of_map.cluster or of_map.nodes):
                reason = f"is used for the node, and not {section.key} in {of_map.file}"
                self._problems.append(Problem(node_slo.file, section.node_slo, "", reason, is_warning=True))

    def _keep(self, name: str, config: KeyConfig | None, problems: Iterable[Problem] = ()) -> None:
        self._problems.extend(problems)
        config = config or self._previous.get(name)
        if config is not None:
            self._good[name] = config

    def _check_bandwidth(self) -> None:
        """Falls back to the last good key where the classes' requests do not fit the strategy's bandwidth."""
        section, of_system = SECTION_BY_KEY["resource-qos-config"], SECTION_BY_KEY["system-config"]
        strategy, _ = _merged(section, self._layers(section))
        config = self._used(section)
        if config is None:
            return
        name = section.node_slo if config.is_node_slo else section.key
        configured, _ = _merged(of_system, self._configured(of_system))
        reason = bandwidth_problem(strategy, configured.total_network_bandwidth)
        if reason:
            self._problems.append(Problem(config.file, name, "networkQOS", reason))
            del self._good[name]
            self._keep(name, None)
            return
        # The webhook cannot know what the node itself says.
        system, _ = _merged(of_system, self._layers(of_system))
        if reason := bandwidth_problem(strategy, system.total_network_bandwidth):
            self._problems.append(Problem(config.file, name, "networkQOS", reason, is_warning=True))

    def _used(self, section: Section) -> KeyConfig | None:
        # A NodeSLO's section is merged already, so it stands in the place of the ConfigMap's key.
        return self._good.get(section.node_slo) or self._good.get(section.key)

    def _layers(self, section: Section) -> Iterator[_Layer]:
        """All that the node's strategy is merged of, the default left out."""
        yield from self._configured(section)
        yield from self._own.get(section.attribute, ())

    def _configured(self, section: Section) -> Iterator[_Layer]:
        config = self._used(section)
        if config is not None:
            yield config.cluster, config.cluster_provenance
            for each in config.nodes:
                if each.selector.matches(self._labels):
                    yield each.values, each.provenance
                    break

    def _warn_of_several(self, section: Section) -> None:
        config = self._used(section)
        names = [
            each.name for each in (config.nodes if config else ()) if each.selector.matches(self._labels)
        ]
        if config is not None and len(names) > 1:
            place = "nodeConfigs" if section.is_inline else "nodeStrategies"
            reason = f"has several that match this node: {', '.join(names[:4])}; the first one is used"
            self._problems.append(Problem(config.file, section.key, place, reason, is_warning=True))

    def _rules(self, key: str) -> tuple[PodRule, ...]:
        config = self._good.get(key)
        rules = config.pods if config is not None else ()
        return tuple(each for each in rules if each.node_selector.matches(self._labels))

    def _own_bandwidth(self, annotations: Mapping[str, str]) -> Iterator[_Layer]:
        text = annotations.get(NETWORK_BANDWIDTH)
        if text is None:
            return
        try:
            bits_per_second = quantity_bytes(text.strip(" "))
        except ValueError:
            bits_per_second = -1
        if bits_per_second < 0:
            self._warn(NETWORK_BANDWIDTH, f"is {shown(text)}, not a quantity in bits/s")
            return
        by = Provenance(Layer.NODE_ANNOTATION, key=NETWORK_BANDWIDTH)
        yield {("total_network_bandwidth",): bits_per_second}, by

    def _own_colocation(self, annotations: Mapping[str, str]) -> Iterator[_Layer]:
        text = annotations.get(COLOCATION_STRATEGY)
        if text is not None:
            report = Report("", COLOCATION_STRATEGY)
            overlay: Overlay = {}
            with suppress(InvalidError):
                overlay = read_overlay(Colocation, parse_json(text, report, MAX_ANNOTATION_LENGTH), report)
            self._problems.extend(each._replace(is_warning=True) for each in report.all_problems())
            if not report.has_errors:
                yield overlay, Provenance(Layer.NODE_ANNOTATION, key=COLOCATION_STRATEGY)
        for label, name in RATIO_LABELS.items():
            if label in self._labels:
                percent = _percent(self._labels[label])
                if percent is None or (percent > 100 and name.startswith("mid_")):
                    self._warn(label, f"is {shown(self._labels[label])}, not a ratio")
                else:
                    yield {(name,): percent}, Provenance(Layer.NODE_LABEL, key=label)

    def _own_normalization(self) -> Iterator[_Layer]:
        text = self._labels.get(CPU_NORMALIZATION_ENABLED)
        if text is None:
            return
        if text not in _BOOLS:
            self._warn(CPU_NORMALIZATION_ENABLED, f"is {shown(text)}, not true or false")
            return
        yield {("enable",): _BOOLS[text]}, Provenance(Layer.NODE_LABEL, key=CPU_NORMALIZATION_ENABLED)

    def _warn(self, key: str, reason: str) -> None:
        self._problems.append(Problem("", key, "", f"{reason}, and is ignored", is_warning=True))


def _merged(section: Section, layers: Iterable[_Layer]) -> tuple[Any, dict[str, Provenance]]:
    values: dict[Path, object] = {}
    provenance: dict[str, Provenance] = {}
    for overlay, of_layer in layers:
        values.update(overlay)
        provenance.update((_dotted(section, path), of_layer) for path in overlay)
    return build(section.default, values), provenance


def _dotted(section: Section, path: Path) -> str:
    return section.attribute if path == ("applications",) else ".".join((section.attribute, *path))


def _with_disabled(strategy: QoSStrategy, provenance: dict[str, Provenance]) -> QoSStrategy:
    """Gives disabled QoS of classes the values that switch it off. Source: mergeNoneResourceQOSIfDisabled."""
    classes = {}
    for name in CAN_BE_DISABLED:
        of_class = getattr(strategy, name)
        changes = {}
        for part in _SWITCHED:
            value = getattr(of_class, part)
            if not value.enable:
                path = f"qos.{name}.{part}"
                changes[part] = switch_off(value, path, provenance.get(f"{path}.enable"), provenance)
        classes[name] = dataclasses.replace(of_class, **changes)
    return dataclasses.replace(strategy, **classes)


def _percent(ratio: str) -> int | None:
    """As koord-manager does it, which drops the fraction: 0.29 is 28 percent."""
    try:
        percent = float(ratio) * 100
    except ValueError:
        return None
    return int(percent) if 0 <= percent <= _MAX_PERCENT and "_" not in ratio else None
