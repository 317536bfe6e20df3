"""The strategies of a node, and what they and a pod's own annotations say for one pod, with provenance.

Precedence: default < cluster < node < first matching pod strategy, field by field < annotation. A pod
strategy with `overridePod` stands above the annotation, for the parts of QoS that it sets.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from runtimeproxy.documents.reading import printable
from runtimeproxy.labels import LabelSelector
from runtimeproxy.qos import KubeQoSClass, QoSClass, qos_class_with_default
from runtimeproxy.slo.names import (
    BLKIO_QOS,
    CPU_BURST,
    CPU_GUARD,
    CPU_QOS,
    EVICTION_ENABLED,
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    MEMORY_QOS,
    NETWORK_QOS,
    RESCTRL,
    STARTUP_BOOST,
)
from runtimeproxy.slo.reading import Overlay, Path, Problem, build
from runtimeproxy.slo.schema import (
    PRODUCT_DEFAULTS,
    BlkioQoS,
    Colocation,
    CpuBurstStrategy,
    CpuGuard,
    CpuNormalizationStrategy,
    CpuQoS,
    HostApplication,
    MemoryQoSPolicy,
    MemoryQoSStrategy,
    PodCpuGuard,
    PodEviction,
    PodNetwork,
    PodResctrl,
    PodStartupBoost,
    QoSStrategy,
    System,
    Threshold,
)

CAN_BE_DISABLED: Final = ("lsr_class", "ls_class", "be_class")
"""Classes whose CPU, memory and resctrl QoS is off while `enable` is false, as in `loading`."""

MAX_REMEMBERED: Final = 1_024
"""Resolved pod strategies of one state of the configuration; pods that differ in nothing share one."""

MAX_REMEMBERED_LENGTH: Final = 64 << 10
"""Of the annotations of all pods whose strategies are remembered, in characters: what is read takes up to
40 bytes a character. An eighth at most is one pod's."""

_CLASS_NAMES: Final = {
    QoSClass.LSE: "lsr_class",
    QoSClass.LSR: "lsr_class",
    QoSClass.LS: "ls_class",
    QoSClass.BE: "be_class",
    QoSClass.SYSTEM: "system_class",
    QoSClass.NONE: "lsr_class",
}
"""Source: Koordinator pkg/koordlet/qosmanager/helpers, GetPodResourceQoSByQoSClass.

Without a class a pod has one by its Kubernetes QoS class."""
_RESCTRL_GROUPS: Final = {"lsr_class": "LSR", "ls_class": "LS", "be_class": "BE"}
_ANNOTATIONS: Final = (
    CPU_BURST,
    CPU_QOS,
    MEMORY_QOS,
    BLKIO_QOS,
    NETWORK_QOS,
    RESCTRL,
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    CPU_GUARD,
    STARTUP_BOOST,
)

_Value = TypeVar("_Value")


class Layer(StrEnum):
    """A layer of the configuration; a later one wins, except as `overridePod` says."""

    DEFAULT = "default"
    CLUSTER = "cluster strategy"
    NODE = "node strategy"
    NODE_SLO = "NodeSLO"
    NODE_LABEL = "node label"
    NODE_ANNOTATION = "node annotation"
    POD = "pod strategy"
    POD_LABEL = "pod label"
    ANNOTATION = "annotation"


class Provenance(NamedTuple):
    """Where a value comes from."""

    source: Layer = Layer.DEFAULT
    file: str = ""
    """Path of the file; empty for labels, annotations and defaults."""
    key: str = ""
    """Key of the ConfigMap, or of the label or annotation; for a NodeSLO, the name of its section."""
    strategy: str = ""
    """Name of the node strategy or pod strategy, or its place in the key if it has none."""
    is_off: bool = False
    """The layer disables the QoS, and this value is the one that switches it off."""

    def __str__(self) -> str:
        text = f"{self.source} {self.strategy}" if self.strategy else str(self.source)
        if self.key:
            text += f" of {self.key}" if self.source in _OF_KEY else f" {self.key}"
        if self.file:
            text += f" in {self.file}"
        return printable(f"disabled by {text}" if self.is_off else text)


_OF_KEY: Final = frozenset({Layer.CLUSTER, Layer.NODE, Layer.POD})

BY_DEFAULT: Final = Provenance()


class StrategyTraits(Protocol):
    """The attributes of a pod that its strategy depends on; a `PodView` has them."""

    @property
    def namespace(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def annotations(self) -> Mapping[str, str]: ...

    @property
    def qos(self) -> QoSClass:
        """By the raw label."""

    @property
    def kube_qos(self) -> KubeQoSClass: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStrategy:
    """The effective strategies of one pod, its own annotations included.

    Policies decide whether a value applies to the pod's QoS class; CPU burst, for one, does not apply to BE.
    """

    cpu_burst: CpuBurstStrategy = field(default_factory=CpuBurstStrategy)
    cpu_qos: CpuQoS = field(default_factory=CpuQoS)
    """Of the class of the pod's group identity: see `cpu_class`."""
    memory_qos: MemoryQoSStrategy = field(default_factory=MemoryQoSStrategy)
    """Of the pod's class by label, or else by its Kubernetes QoS class."""
    resctrl_qos: PodResctrl = field(default_factory=PodResctrl)
    network_qos: PodNetwork = field(default_factory=PodNetwork)
    blkio_qos: BlkioQoS = field(default_factory=BlkioQoS)
    """Of the pod's annotation only."""
    eviction: PodEviction = field(default_factory=PodEviction)
    cpu_guard: PodCpuGuard = field(default_factory=PodCpuGuard)
    startup_boost: PodStartupBoost = field(default_factory=PodStartupBoost)
    problems: tuple[Problem, ...] = ()
    """Annotations of the pod that are invalid, and so ignored."""
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)
    """By dotted path, such as `cpu_burst.cpu_burst_percent`; a missing one is a default."""

    def provenance_of(self, path: str) -> Provenance:
        return self.provenance.get(path, BY_DEFAULT)

    def problems_of(self, annotation: str) -> tuple[str, ...]:
        return tuple(
            str(each)
            for each in self.problems
            if each.key == annotation and (each.guess or not each.is_unknown_name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """The strategies of one node, merged and checked. Without arguments: of a node without configuration."""

    threshold: Threshold = field(default_factory=Threshold)
    qos: QoSStrategy = field(default_factory=QoSStrategy)
    cpu_burst: CpuBurstStrategy = field(default_factory=CpuBurstStrategy)
    system: System = field(default_factory=System)
    host_applications: tuple[HostApplication, ...] = ()
    colocation: Colocation = field(default_factory=Colocation)
    cpu_guard: CpuGuard = field(default_factory=CpuGuard)
    cpu_normalization: CpuNormalizationStrategy = field(default_factory=CpuNormalizationStrategy)
    startup_boost: PodStartupBoost = field(default_factory=PodStartupBoost)
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)
    """By dotted path, such as `qos.ls_class.cpu_qos.enable`; a missing one is a default."""
    pod_basis: PodBasis | None = field(default=None, repr=False)
    """Of the pods' strategies; None: `qos` alone, without pod strategies."""
    pod_parts: frozenset[str] = field(init=False, repr=False, compare=False)
    """The parts of `PodStrategy`, such as `cpu_burst`, that some pod strategy of this node sets."""
    _pods: PodResolver = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        basis = self.pod_basis or PodBasis(classes=self.qos, provenance=self.provenance)
        object.__setattr__(self, "pod_parts", basis.parts())
        object.__setattr__(
            self, "_pods", PodResolver(self.cpu_burst, basis, self.cpu_guard, self.startup_boost)
        )

    def provenance_of(self, path: str) -> Provenance:
        return self.provenance.get(path, BY_DEFAULT)

    def for_pod(self, pod: StrategyTraits) -> PodStrategy:
        # In any thread, and quick: pods that differ in nothing share the result.
        return self._pods.resolve(pod)


class PodRule(NamedTuple):
    """A strategy for pods of a namespace, with some labels, or both."""

    name: str
    namespace: str
    """Empty: any."""
    selector: LabelSelector
    node_selector: LabelSelector
    is_override: bool
    """The pod's annotation does not replace the values of this strategy."""
    values: Overlay
    provenance: Provenance

    def matches(self, pod: StrategyTraits) -> bool:
        return self.namespace in ("", pod.namespace) and self.selector.matches(pod.labels)


class PodBasis(NamedTuple):
    """The node's values and rules that the strategies of its pods are resolved from."""

    classes: QoSStrategy = PRODUCT_DEFAULTS
    """Before disabled classes are replaced by the values that switch them off."""
    provenance: Mapping[str, Provenance] = {}
    """Of `cpu_burst`, `cpu_guard`, `startup_boost`, and of `qos`, as `classes` has it."""
    burst_rules: tuple[PodRule, ...] = ()
    qos_rules: tuple[PodRule, ...] = ()
    eviction_rules: tuple[PodRule, ...] = ()
    guard_rules: tuple[PodRule, ...] = ()
    boost_rules: tuple[PodRule, ...] = ()

    def parts(self) -> frozenset[str]:
        """The parts of `PodStrategy` that some pod strategy sets."""
        parts = {path[0] for rule in self.qos_rules for path in rule.values}
        parts |= {"cpu_burst"} if self.burst_rules else set()
        parts |= {"eviction"} if self.eviction_rules else set()
        parts |= {"cpu_guard"} if self.guard_rules else set()
        parts |= {"startup_boost"} if self.boost_rules else set()
        return frozenset(parts)


_NO_BOOST: Final = PodStartupBoost()


class PodResolver:
    """Resolves the strategies of pods for one state of the configuration; in any thread."""

    def __init__(
        self,
        cpu_burst: CpuBurstStrategy,
        basis: PodBasis,
        cpu_guard: CpuGuard,
        startup_boost: PodStartupBoost = _NO_BOOST,
    ) -> None:
        self._cpu_burst = cpu_burst
        names = (each.name for each in fields(PodCpuGuard))
        self._cpu_guard = PodCpuGuard(**{name: getattr(cpu_guard, name) for name in names})
        self._startup_boost = startup_boost
        self._basis = basis
        self._remembered: dict[tuple[object, ...], PodStrategy] = {}
        self._length = 0
        self._lock = threading.Lock()
        self._last: tuple[StrategyTraits | None, PodStrategy] = None, PodStrategy()
        self._provenance_by_part: dict[str, dict[str, Provenance]] = {}
        for path, provenance in basis.provenance.items():
            part, _, name = path.rpartition(".")
            self._provenance_by_part.setdefault(part, {})[name] = provenance

    def resolve(self, pod: StrategyTraits) -> PodStrategy:
        # Several policies ask about one pod, one after the other.
        last, strategy = self._last
        if pod is not last:
            strategy = self._find(pod)
            self._last = pod, strategy
        return strategy

    def _find(self, pod: StrategyTraits) -> PodStrategy:
        basis = self._basis
        annotations = pod.annotations
        burst = _first(basis.burst_rules, pod)
        qos = _first(basis.qos_rules, pod)
        eviction = _first(basis.eviction_rules, pod)
        guard = _first(basis.guard_rules, pod)
        boost = _first(basis.boost_rules, pod)
        texts = tuple(map(annotations.get, _ANNOTATIONS)) if annotations else ()
        label = pod.labels.get(EVICTION_ENABLED)
        enabled = None if label is None else label == "true"
        # By id, as rules live as long as this object: a rule's name may be the place of one without a name.
        rules = tuple(map(id, (burst, qos, eviction, guard, boost)))
        key = (pod.qos, pod.kube_qos, rules, enabled, texts)
        strategy = self._remembered.get(key)
        if strategy is None:
            resolving = _Resolving(pod, basis.classes, self._provenance_by_part)
            resolving.cpu_burst(self._cpu_burst, burst)
            resolving.cpu_qos(qos)
            resolving.memory_qos(qos)
            resolving.resctrl_qos(qos)
            resolving.network_qos(qos)
            resolving.blkio_qos()
            resolving.eviction(eviction)
            resolving.cpu_guard(self._cpu_guard, guard)
            resolving.startup_boost(self._startup_boost, boost)
            strategy = resolving.result()
            self._remember(key, strategy, sum(len(text) for text in texts if text))
        return strategy

    def _remember(self, key: tuple[object, ...], strategy: PodStrategy, length: int) -> None:
        if length > MAX_REMEMBERED_LENGTH // 8:
            return
        with self._lock:
            if len(self._remembered) >= MAX_REMEMBERED or self._length + length > MAX_REMEMBERED_LENGTH:
                self._remembered.clear()
                self._length = 0
            self._remembered[key] = strategy
            self._length += length


def cpu_class(qos: QoSClass, kube_qos: KubeQoSClass, classes: QoSStrategy) -> str:
    """Return the class, as an attribute of `QoSStrategy`, whose CPU QoS applies to a pod.

    SYSTEM pods and those without a class have one by their Kubernetes QoS class; a Guaranteed one has
    LSR's, or LS's where only that one is enabled. Source: Koordinator pkg/koordlet/runtimehooks/hooks,
    groupidentity/rule.go.
    """
    if qos not in (QoSClass.SYSTEM, QoSClass.NONE):
        return _CLASS_NAMES[qos]
    if kube_qos is KubeQoSClass.BURSTABLE:
        return "ls_class"
    if kube_qos is KubeQoSClass.BEST_EFFORT:
        return "be_class"
    only_ls = classes.ls_class.cpu_qos.enable and not classes.lsr_class.cpu_qos.enable
    return "ls_class" if only_ls else "lsr_class"


def switch_off(value: _Value, path: str, enable: Provenance | None, into: dict[str, Provenance]) -> _Value:
    """Return the values that switch a QoS off, which its type has by default; `into` gets who disabled it.

    `enable` is the provenance of the decision; None: no layer made one. If no layer says anything about the
    QoS, `into` stays as it is.
    """
    names = [each.name for each in fields(value)]  # type: ignore[arg-type]
    if enable is not None or any(f"{path}.{name}" in into for name in names):
        off = (enable or BY_DEFAULT)._replace(is_off=True)
        into.update((f"{path}.{name}", off) for name in names if name != "enable")
    return type(value)()


class _Resolving:
    """Resolves one pod's strategy, part by part."""

    def __init__(
        self, pod: StrategyTraits, classes: QoSStrategy, provenance: Mapping[str, Mapping[str, Provenance]]
    ) -> None:
        from runtimeproxy.slo.annotations import PodAnnotations  # not at the daemon's start

        self._pod = pod
        self._classes = classes
        self._by_part = provenance
        self._annotations = PodAnnotations(pod.annotations)
        self._values: dict[str, Any] = {}
        self._provenance: dict[str, Provenance] = {}
        qos = pod.qos or qos_class_with_default({}, pod.kube_qos)
        self._class = _CLASS_NAMES[qos]

    def result(self) -> PodStrategy:
        return PodStrategy(**self._values, problems=self._annotations.problems(), provenance=self._provenance)

    def cpu_burst(self, node: CpuBurstStrategy, rule: PodRule | None) -> None:
        self._note("cpu_burst", self._by_part.get("cpu_burst", {}))
        of_rule = rule.values if rule is not None else {}
        self._values["cpu_burst"] = self._with_own("cpu_burst", node, rule, of_rule, CPU_BURST)

    def cpu_guard(self, node: PodCpuGuard, rule: PodRule | None) -> None:
        own = {each.name for each in fields(node)}
        of_node = {name: by for name, by in self._by_part.get("cpu_guard", {}).items() if name in own}
        self._note("cpu_guard", of_node)
        of_rule = rule.values if rule is not None else {}
        self._values["cpu_guard"] = self._with_own("cpu_guard", node, rule, of_rule, CPU_GUARD)

    def cpu_qos(self, rule: PodRule | None) -> None:
        name = cpu_class(self._pod.qos, self._pod.kube_qos, self._classes)
        of_rule = _part(rule, "cpu_qos")
        value = self._class_value(name, "cpu_qos", of_rule, rule)
        has_annotation = self._pod.qos is QoSClass.LS and CPU_QOS in self._pod.annotations
        if has_annotation and not _is_overridden(rule, of_rule):
            value = self._annotated_cpu_qos(value)
        self._values["cpu_qos"] = value

    def _annotated_cpu_qos(self, value: CpuQoS) -> CpuQoS:
        overlay = self._annotations.overlay(CPU_QOS)
        if overlay is None:
            self._provenance["cpu_qos.group_identity"] = _by(CPU_QOS)
            return replace(value, group_identity=None)
        if not overlay.get(("enable",)):
            self._provenance["cpu_qos.enable"] = _by(CPU_QOS)
            return switch_off(value, "cpu_qos", _by(CPU_QOS), self._provenance)
        return self._overlay("cpu_qos", value, overlay, _by(CPU_QOS))

    def memory_qos(self, rule: PodRule | None) -> None:
        of_rule = _part(rule, "memory_qos")
        value = self._class_value(self._class, "memory_qos", of_rule, rule)
        overlay = None if _is_overridden(rule, of_rule) else self._annotations.overlay(MEMORY_QOS)
        if overlay is not None:
            value = self._annotated_memory_qos(value, overlay)
        self._values["memory_qos"] = value

    def _annotated_memory_qos(self, value: MemoryQoSStrategy, annotation: Overlay) -> MemoryQoSStrategy:
        by_annotation = _by(MEMORY_QOS)
        policy = annotation.get(("policy",), MemoryQoSPolicy.DEFAULT)
        if policy is MemoryQoSPolicy.NONE:
            self._provenance["memory_qos.enable"] = by_annotation
            return switch_off(value, "memory_qos", by_annotation, self._provenance)
        overlay: dict[Path, object] = {path: each for path, each in annotation.items() if path != ("policy",)}
        if policy is MemoryQoSPolicy.AUTO:
            value = getattr(PRODUCT_DEFAULTS, self._class).memory_qos
            self._provenance.update({f"memory_qos.{each.name}": by_annotation for each in fields(value)})
        if policy is MemoryQoSPolicy.AUTO or overlay:
            overlay["enable",] = True
        return self._overlay("memory_qos", value, overlay, by_annotation)

    def resctrl_qos(self, rule: PodRule | None) -> None:
        of_rule = _part(rule, "resctrl_qos")
        own = None if _is_overridden(rule, of_rule) else self._annotations.resctrl()
        if own is not None:
            self._values["resctrl_qos"] = own
            self._provenance.update({f"resctrl_qos.{each.name}": _by(RESCTRL) for each in fields(own)})
            return
        named = of_rule.get(("class_name",))
        name = next((each for each, group in _RESCTRL_GROUPS.items() if group == named), self._class)
        path = f"qos.{name}.resctrl_qos"
        provenance = self._by_part.get(path, {}).get("enable", BY_DEFAULT)
        is_enabled = name in _RESCTRL_GROUPS and getattr(self._classes, name).resctrl_qos.enable
        if is_enabled and named and rule is not None:
            provenance = rule.provenance
        if provenance != BY_DEFAULT:
            self._provenance["resctrl_qos.class_name"] = provenance._replace(is_off=not is_enabled)
        self._values["resctrl_qos"] = PodResctrl(class_name=_RESCTRL_GROUPS[name] if is_enabled else "")

    def network_qos(self, rule: PodRule | None) -> None:
        of_rule = _part(rule, "network_qos")
        self._values["network_qos"] = self._with_own("network_qos", PodNetwork(), rule, of_rule, NETWORK_QOS)

    def blkio_qos(self) -> None:
        overlay = self._annotations.overlay(BLKIO_QOS)
        if overlay:
            value = self._overlay("blkio_qos", BlkioQoS(), overlay, _by(BLKIO_QOS))
            self._values["blkio_qos"] = replace(value, enable=True)

    def eviction(self, rule: PodRule | None) -> None:
        of_rule = rule.values if rule is not None else {}
        values: dict[str, Any] = {}
        if rule is not None and ("eviction_enabled",) in of_rule:
            values["is_enabled"] = of_rule["eviction_enabled",]
            self._provenance["eviction.is_enabled"] = rule.provenance
        if rule is not None and ("eviction_policy",) in of_rule:
            policy: Any = of_rule["eviction_policy",]
            values["allowed"] = frozenset(policy)
            self._provenance["eviction.allowed"] = rule.provenance
        fixed = frozenset(values) if rule is not None and rule.is_override else frozenset[str]()
        label = self._pod.labels.get(EVICTION_ENABLED)
        if label is not None and "is_enabled" not in fixed:
            values["is_enabled"] = label == "true"
            self._provenance["eviction.is_enabled"] = Provenance(Layer.POD_LABEL, key=EVICTION_ENABLED)
        if EVICTION_POLICY in self._pod.annotations and "allowed" not in fixed:
            values["allowed"] = self._annotations.eviction_policy()
            self._provenance["eviction.allowed"] = _by(EVICTION_POLICY)
        if EVICTION_PRIORITY in self._pod.annotations:
            values["priority"] = self._annotations.eviction_priority()
            self._provenance["eviction.priority"] = _by(EVICTION_PRIORITY)
        if values:
            self._values["eviction"] = PodEviction(**values)

    def startup_boost(self, node: PodStartupBoost, rule: PodRule | None) -> None:
        self._note("startup_boost", self._by_part.get("startup_boost", {}))
        of_rule = rule.values if rule is not None else {}
        self._values["startup_boost"] = self._with_own("startup_boost", node, rule, of_rule, STARTUP_BOOST)

    def _with_own(
        self, part: str, value: _Value, rule: PodRule | None, of_rule: Overlay, annotation: str
    ) -> _Value:
        """The value with the fields of the pod strategy, and then of the annotation."""
        if rule is not None:
            value = self._overlay(part, value, of_rule, rule.provenance)
        overlay = None if _is_overridden(rule, of_rule) else self._annotations.overlay(annotation)
        return self._overlay(part, value, overlay or {}, _by(annotation))

    def _class_value(self, name: str, part: str, of_pod: Overlay, rule: PodRule | None) -> Any:  # noqa: ANN401 - the part's type
        """The part of a class's QoS with the pod strategy's fields, or the values that switch it off."""
        value = getattr(getattr(self._classes, name), part)
        self._note(part, self._by_part.get(f"qos.{name}.{part}", {}))
        if rule is not None:
            value = self._overlay(part, value, of_pod, rule.provenance)
        if not value.enable and (name in CAN_BE_DISABLED or ("enable",) in of_pod):
            value = switch_off(value, part, self._provenance.get(f"{part}.enable"), self._provenance)
        return value

    def _note(self, part: str, provenance: Mapping[str, Provenance]) -> None:
        for name, each in provenance.items():
            self._provenance[f"{part}.{name}"] = each

    def _overlay(self, part: str, value: _Value, overlay: Overlay, provenance: Provenance) -> _Value:
        for path in overlay:
            self._provenance[".".join((part, *path))] = provenance
        return build(value, overlay)


def _first(rules: tuple[PodRule, ...], pod: StrategyTraits) -> PodRule | None:
    return next((rule for rule in rules if rule.matches(pod)), None)


def _part(rule: PodRule | None, part: str) -> Overlay:
    values = rule.values if rule is not None else {}
    return {path[1:]: value for path, value in values.items() if path[0] == part}


def _is_overridden(rule: PodRule | None, of_rule: Overlay) -> bool:
    return rule is not None and rule.is_override and bool(of_rule)


def _by(annotation: str) -> Provenance:
    return Provenance(Layer.ANNOTATION, key=annotation)
