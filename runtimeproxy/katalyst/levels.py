"""Katalyst's QoS levels: what a pod's annotations say, and the class of Koordinator that it is treated as.

Source: katalyst-core pkg/config/generic/qos.go and pkg/util/qos; katalyst-api pkg/consts/qos.go. There the
levels are visited in no order and the first that matches is the pod's; here all are visited, and more than
one is an error. What needs a request, a hint or an allocation is refused where pods are placed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Final, NamedTuple, Protocol

from runtimeproxy.documents.reading import InputError, mapping_of, parse_json, shortened
from runtimeproxy.katalyst.names import (
    DEDICATED,
    RECLAIM,
    RECLAIMED_MEMORY,
    RECLAIMED_MILLICPU,
    SHARE,
    QosLevel,
    is_shared_pool,
    pool_and_numa_node,
)
from runtimeproxy.qos import QOS_CLASS_LABEL, QoSClass, qos_class
from runtimeproxy.slo.names import MAX_ANNOTATION_LENGTH
from runtimeproxy.spelling import did_you_mean, nearest_key
from runtimeproxy.units import parse_cpu_list, parse_integer

DOMAIN: Final = "katalyst.kubewharf.io/"
"""Begins the names of Katalyst's annotations."""
QOS_LEVEL: Final = f"{DOMAIN}qos_level"
CPU_ENHANCEMENT: Final = f"{DOMAIN}cpu_enhancement"
MEMORY_ENHANCEMENT: Final = f"{DOMAIN}memory_enhancement"
NETWORK_ENHANCEMENT: Final = f"{DOMAIN}network_enhancement"
ENHANCEMENTS: Final = (CPU_ENHANCEMENT, MEMORY_ENHANCEMENT, NETWORK_ENHANCEMENT)
"""Annotations with a JSON object of texts; of a key in two of them the later one's value is used."""
NUMA_NUMBER: Final = f"{DOMAIN}numa_number"
"""An annotation, or a key of an enhancement."""
NUMA_IDS: Final = f"{DOMAIN}numa_ids"
"""Likewise."""
NUMA_BIND_RESULT: Final = f"{DOMAIN}numa_bind_result"
"""The NUMA node that Katalyst's scheduler chose."""
SKIP_QRM_ADMIT: Final = f"{DOMAIN}skip_qrm_admit"
"""A pod that no pool has to do with."""
MAIN_CONTAINER_NAME: Final = "kubernetes.io/main-container-name"
AGGREGATED_REQUESTS: Final = "pod.kubernetes.io/pod-aggregated-requests"
"""Annotation: the requests of the whole pod, a JSON object by resource. Source: katalyst-api pkg/consts."""
RSS_OVERUSE_THRESHOLD: Final = "rss_overuse_threshold"
"""A key of an enhancement."""

_POOL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Katalyst takes any text; names stand in state, status and metrics here."""
_MAX_GUESSES: Final = 8
"""Unknown keys of an enhancement that are compared with the known ones: a call waits."""
_FLOAT: Final = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,2})?")
_MAX_PERCENT: Final = 100.0
_MAX_NUMA_NUMBER: Final = 1024
"""Source: Linux include/linux/numa.h, NODES_SHIFT is 10 at most."""


class BurstPolicy(StrEnum):
    """What `cpu_burst_policy` says; `dynamic` is known and not supported, by Katalyst neither."""

    DEFAULT = "default"
    CLOSED = "closed"
    STATIC = "static"
    DYNAMIC = "dynamic"


class Vocabulary(StrEnum):
    """Whose names of classes a pod has."""

    KOORDINATOR = "koordinator"
    KATALYST = "katalyst"


class OnError(StrEnum):
    """What happens to a pod with a level or a combination that is refused."""

    FALLBACK = "fallback"
    """It is treated as one of `shared_cores`, and reported."""
    REJECT = "reject"
    """It is refused before its sandbox is created."""


class LevelProblem(NamedTuple):
    """What is wrong with a pod's annotations."""

    place: str
    """The annotation, or the key of an enhancement."""
    reason: str
    is_refused: bool = True
    """Whether the pod is refused, or treated as one of `shared_cores`; else only this value is unused."""

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRules:
    """What is configured about levels.

    Attributes:
        selectors: Annotations that name a level beside `qos_level`, by level: values by annotation.
        aliases: Other names of the three enhancements: the enhancement by the other annotation's name. The
            annotation of the usual name is used where both are present.
        default_values: Of keys of enhancements that a pod lacks.
        default_level: Of pods without any annotation about a level; None: they have none.
        order: Whose class is used of a pod that has both: the first.
        allow_unbound_dedicated: Whether `dedicated_cores` without `numa_binding` are CPUs of any NUMA nodes.
            Katalyst refuses such pods.
    """

    selectors: Mapping[QosLevel, Mapping[str, str]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    default_values: Mapping[str, str] = field(default_factory=dict)
    default_level: QosLevel | None = None
    order: tuple[Vocabulary, ...] = (Vocabulary.KATALYST, Vocabulary.KOORDINATOR)
    on_error: OnError = OnError.FALLBACK
    allow_unbound_dedicated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystQos:
    """What the annotations of a pod say, as it is used.

    A pod that is refused has the values of one of `shared_cores` without annotations, and the problems.

    Attributes:
        pool: `share` or its own name of `shared_cores`; of `system_cores` the pools to run on, maybe empty;
            `reclaim`, `dedicated`. Without the NUMA node that is added to the name where a pod is bound.
        is_default: Whether no annotation names the level.
        yields: Whether a class of Koordinator in the pod's labels is used in place of its level's.
        numa_exclusive: Of `dedicated_cores` with `numa_binding` only, and so are the next three.
        numa_number: How many NUMA nodes; None: not said. What the node has is not known here.
        numa_ids: Which; empty: not said. Used in place of `numa_number`.
        numa_share: False: no pod of another level, or of another pool, on its NUMA node.
        oom_priority: -100 to 300; the lowest goes first.
        burst_percent: Of the quota; None: not said.
        suppression_tolerance_rate: Of `reclaimed_cores` only, infinite where it is not said; None of others.
        rss_overuse_threshold: Of the memory requests; None: not said.
    """

    level: QosLevel = QosLevel.SHARED
    pool: str = SHARE
    is_default: bool = False
    yields: bool = False
    numa_binding: bool = False
    numa_exclusive: bool = False
    align_by_socket: bool = False
    distribute_evenly: bool = False
    full_pcpus: bool = False
    numa_number: int | None = None
    numa_ids: frozenset[int] = frozenset()
    numa_share: bool = True
    oom_priority: int = 0
    burst_policy: BurstPolicy = BurstPolicy.DEFAULT
    burst_percent: float | None = None
    suppression_tolerance_rate: float | None = None
    rss_overuse_threshold: float | None = None
    problems: tuple[LevelProblem, ...] = ()
    source: str = field(default="", compare=False)
    """The annotation that names the level; empty: none."""

    @property
    def refusal(self) -> str:
        """Why the pod is refused; empty if it is not."""
        return "; ".join(str(each) for each in self.problems if each.is_refused)

    @property
    def reason(self) -> str:
        """Why the pod has this level, for people."""
        if self.refusal:
            return "Katalyst refuses what its annotations ask for"
        return "default_level of the configuration" if self.is_default else f"annotation {self.source}"


def katalyst_qos(annotations: Mapping[str, str], rules: LevelRules) -> KatalystQos | None:
    """Return what a pod's annotations say; None if they name no level, and there is none by default."""
    is_second = rules.order[:1] == (Vocabulary.KOORDINATOR,)
    try:
        named = named_level(annotations, rules)
    except ValueError as error:
        return KatalystQos(yields=is_second, problems=(LevelProblem(QOS_LEVEL, str(error)),))
    level = named or rules.default_level
    if level is None:
        return None
    is_default = named is None
    names = (QOS_LEVEL, *rules.selectors.get(level, {}))
    source = "" if is_default else next((each for each in names if each in annotations), "")
    keys = _Keys(annotations, rules)
    found = _read(level, keys)
    try:
        bind_result(annotations)
    except ValueError as error:
        keys.report(NUMA_BIND_RESULT, f"{error}, and is not used")
    problems = (*keys.problems, *_refused_combinations(found, keys, rules))
    if any(each.is_refused for each in problems):
        found = KatalystQos()
    return replace(
        found, is_default=is_default, yields=is_default or is_second, problems=problems, source=source
    )


def named_level(annotations: Mapping[str, str], rules: LevelRules) -> QosLevel | None:
    """Return the level that annotations name; None if none does.

    Raises:
        ValueError: they contradict each other, name more than one, or none that exists.
    """
    matched, is_unknown = [], False
    for level in QosLevel:
        selector = {QOS_LEVEL: level.value, **rules.selectors.get(level, {})}
        present = {key: annotations[key] == value for key, value in selector.items() if key in annotations}
        if len(set(present.values())) > 1:
            agreeing = sum(present.values())
            raise ValueError(
                f"the annotations of {level} contradict each other: {agreeing} of {len(present)} name it"
            )
        if any(present.values()):
            matched.append(level)
        elif level is QosLevel.SHARED:
            is_unknown = bool(present)
    if len(matched) > 1:
        raise ValueError(f"the annotations name more than one level: {', '.join(matched)}")
    if not matched and is_unknown:
        raise ValueError(f"{shortened(annotations.get(QOS_LEVEL, ''))!r} is no level: {', '.join(QosLevel)}")
    return matched[0] if matched else None


class _Keys:
    """The keys of all enhancements of a pod, with the defaults; collects problems."""

    def __init__(self, annotations: Mapping[str, str], rules: LevelRules) -> None:
        self.problems: list[LevelProblem] = []
        self.said: dict[str, str] = {}
        for name in ENHANCEMENTS:
            others = [other for other, of in sorted(rules.aliases.items()) if of == name]
            key = next((each for each in (name, *others) if each in annotations), None)
            if key is not None:
                self._add(key, annotations[key])
        for key in (NUMA_NUMBER, NUMA_IDS):
            if key in annotations:
                self.said[key] = annotations[key]
        self._all = {**rules.default_values, **self.said}

    def get(self, key: str) -> str | None:
        return self._all.get(key)

    def is_true(self, key: str) -> bool:
        return self._all.get(key) == "true"

    def report(self, place: str, reason: str, *, is_refused: bool = False) -> None:
        self.problems.append(LevelProblem(place, reason, is_refused))

    def number(self, key: str) -> float | None:
        """Return a number; None without the key, or if it is none, which is reported."""
        text = self.get(key)
        try:
            return None if text is None else parse_float(text)
        except ValueError as error:
            self.report(key, f"{error}, and is not used")
            return None

    def _add(self, name: str, text: str) -> None:
        if len(text) > MAX_ANNOTATION_LENGTH:
            self.report(name, f"has more than {MAX_ANNOTATION_LENGTH} characters, and is not used")
            return
        try:
            values = mapping_of(parse_json(text))
        except InputError as error:
            self.report(name, f"{error}, and is not used")
            return
        unknown = [key for key in values if key not in _KNOWN_KEYS]
        for key in unknown[:_MAX_GUESSES]:
            if guess := nearest_key(key, _KNOWN_KEYS):
                self.report(shortened(key), f"no enhancement of {name} has this name{did_you_mean(guess)}")
        for key in _KNOWN_KEYS:
            value = values.get(key)
            if key in values and not isinstance(value, str):
                self.report(key, "is not a text, and is not used")
            elif isinstance(value, str):
                if self.said.get(key, value) != value:
                    self.report(key, f"has two values, and that of {name} is used")
                self.said[key] = value


def _read(level: QosLevel, keys: _Keys) -> KatalystQos:
    is_dedicated = level is QosLevel.DEDICATED
    is_bound = keys.is_true("numa_binding")
    is_bound_alone = is_dedicated and is_bound
    for key in ("numa_exclusive", "align_by_socket", "distribute_evenly_across_numa", "full_pcpus_pairing"):
        if keys.said.get(key) == "true" and not is_bound_alone:
            keys.report(key, f"needs {QosLevel.DEDICATED} with numa_binding, and is not used")
    for key in _TRUTHS:
        if keys.said.get(key, "true") not in ("true", "false"):
            keys.report(key, f"is {shortened(keys.said[key])!r}, not 'true' or 'false', and is not used")
    return KatalystQos(
        level=level,
        pool=_pool(level, keys),
        numa_binding=is_bound,
        numa_exclusive=is_bound_alone and keys.is_true("numa_exclusive"),
        align_by_socket=is_bound_alone and keys.is_true("align_by_socket"),
        distribute_evenly=is_bound_alone and keys.is_true("distribute_evenly_across_numa"),
        full_pcpus=is_bound_alone and keys.is_true("full_pcpus_pairing"),
        numa_number=_numa_number(keys),
        numa_ids=_numa_ids(keys),
        numa_share=keys.get("numa_share") != "false",
        oom_priority=_oom_priority(level, keys),
        burst_policy=_burst_policy(level, keys),
        burst_percent=_burst_percent(keys),
        suppression_tolerance_rate=_suppression_tolerance_rate(level, keys),
        rss_overuse_threshold=_rss_overuse_threshold(keys),
    )


_TRUTHS: Final = (
    *("numa_binding", "numa_exclusive", "align_by_socket", "distribute_evenly_across_numa"),
    *("full_pcpus_pairing", "numa_share"),
)
_KNOWN_KEYS: Final = (
    *_TRUTHS,
    *("rss_overuse_threshold", "oom_priority", "cpuset_pool", "suppression_tolerance_rate"),
    *("cpu_burst_policy", "cpu_burst_percent", "cpu_burst_threshold"),
    *("namespace_type", "topology_affinity_restricted", NUMA_NUMBER, NUMA_IDS),
)
"""Of enhancements. Source: katalyst-api pkg/consts/qos.go."""


def _pool(level: QosLevel, keys: _Keys) -> str:
    """Source: pkg/agent/qrm-plugins/commonstate/pool.go, GetSpecifiedPoolName."""
    if level is QosLevel.DEDICATED:
        return DEDICATED
    if level is QosLevel.RECLAIMED:
        return RECLAIM
    name = keys.get("cpuset_pool") or ""
    if name and not _POOL_NAME.fullmatch(name):
        keys.report("cpuset_pool", f"{shortened(name)!r} is not the name of a pool", is_refused=True)
    elif level is QosLevel.SHARED and not is_cpuset_pool(name or SHARE):
        reason = f"{name!r} is not the name of a pool of {QosLevel.SHARED}"
        keys.report("cpuset_pool", reason, is_refused=True)
    return name or (SHARE if level is QosLevel.SHARED else "")


def is_cpuset_pool(name: str) -> bool:
    """Return whether pods of `shared_cores` can name this pool; those of a NUMA node are made of it."""
    _, numa_node = pool_and_numa_node(name)
    return is_shared_pool(name) and numa_node is None


def _refused_combinations(qos: KatalystQos, keys: _Keys, rules: LevelRules) -> Iterator[LevelProblem]:
    """Source: pkg/agent/qrm-plugins/cpu/dynamicpolicy, hint and allocation handlers."""
    if qos.level is QosLevel.DEDICATED and not qos.numa_binding and not rules.allow_unbound_dedicated:
        yield LevelProblem("numa_binding", f"{QosLevel.DEDICATED} needs it: 'true'")
    if qos.numa_exclusive and qos.distribute_evenly:
        yield LevelProblem("distribute_evenly_across_numa", "does not go with numa_exclusive")
    if qos.numa_exclusive and qos.full_pcpus:
        yield LevelProblem("full_pcpus_pairing", "does not go with numa_exclusive")
    if qos.level is not QosLevel.RECLAIMED and "suppression_tolerance_rate" in keys.said:
        yield LevelProblem("suppression_tolerance_rate", f"is for {QosLevel.RECLAIMED} only")


def _numa_number(keys: _Keys) -> int | None:
    text = keys.get(NUMA_NUMBER)
    if not text:
        return None
    try:
        number = parse_integer(text)
    except ValueError as error:
        keys.report(NUMA_NUMBER, str(error), is_refused=True)
        return None
    if not 0 <= number <= _MAX_NUMA_NUMBER:
        keys.report(NUMA_NUMBER, f"{number} is not in 0 to {_MAX_NUMA_NUMBER}", is_refused=True)
        return None
    return number


def _numa_ids(keys: _Keys) -> frozenset[int]:
    try:
        return parse_numa_ids(keys.get(NUMA_IDS) or "")
    except ValueError as error:
        keys.report(NUMA_IDS, str(error), is_refused=True)
        return frozenset()


def parse_numa_ids(text: str, nodes: Collection[int] | None = None) -> frozenset[int]:
    """Return the NUMA nodes of a list such as `0,2-3`; empty for an empty text.

    `nodes`: those of the node; None: they are not known, and any number is taken.

    Raises:
        ValueError: no list, or one with a NUMA node that the node lacks.
    """
    found = parse_cpu_list(text)
    missing = sorted(found.difference(found if nodes is None else nodes))
    if missing:
        raise ValueError(f"the node has no NUMA node {missing[0]}")
    return found


def bind_result(annotations: Mapping[str, str]) -> frozenset[int]:
    """Return the NUMA nodes that Katalyst's scheduler chose for a pod; empty: none.

    Raises:
        ValueError: the annotation is not a list of NUMA nodes.
    """
    return parse_numa_ids(annotations.get(NUMA_BIND_RESULT, ""))


_OOM_RANGES: Final[Mapping[QosLevel, range]] = {
    QosLevel.RECLAIMED: range(-100, 0),
    QosLevel.SHARED: range(100),
    QosLevel.DEDICATED: range(100, 200),
    QosLevel.SYSTEM: range(200, 300),
}
"""Of a level; its first number is the default. Source: pkg/util/qos/oom_priority.go."""
TOP_OOM_PRIORITY: Final = 300
"""Is kept on any level."""


def oom_priority(level: QosLevel | None, asked: int | None) -> int:
    """Return the OOM priority of a pod: within its level's range, the least without one.

    Source: pkg/util/qos/oom_priority.go, AlignOOMPriority.
    """
    if asked == TOP_OOM_PRIORITY:
        return asked
    if level is None:
        return _OOM_RANGES[QosLevel.RECLAIMED].start
    allowed = _OOM_RANGES[level]
    return allowed.start if asked is None else max(allowed.start, min(asked, allowed.stop - 1))


def oom_score_adj(priority: int) -> int:
    """Return the `oom_score_adj` for an OOM priority: -100 is 1000, 300 is -997, straight between them.

    Katalyst writes priorities for a program in the kernel that chooses the victim; the order is the same.
    """
    return 1000 - (priority + 100) * 1997 // 400


def _oom_priority(level: QosLevel, keys: _Keys) -> int:
    asked, text = None, keys.get("oom_priority")
    if text is not None:
        try:
            asked = parse_integer(text)
        except ValueError as error:
            keys.report("oom_priority", f"{error}, and is not used")
    used = oom_priority(level, asked)
    if asked is not None and used != asked:
        allowed = _OOM_RANGES[level]
        reason = f"{asked} is not in {allowed.start} to {allowed.stop - 1} of {level}: {used} is used"
        keys.report("oom_priority", reason)
    return used


_BURST_POLICIES: Final = frozenset(each.value for each in BurstPolicy)


def _burst_policy(level: QosLevel, keys: _Keys) -> BurstPolicy:
    """Source: pkg/util/qos/cpu_enhancement.go, GetPodCPUBurstPolicyFromCPUEnhancement."""
    text = keys.get("cpu_burst_policy")
    if text is not None and text not in _BURST_POLICIES:
        keys.report("cpu_burst_policy", f"{shortened(text)!r} is not one of {', '.join(BurstPolicy)}")
        text = None
    if level is QosLevel.RECLAIMED:
        if text not in (None, BurstPolicy.DEFAULT, BurstPolicy.CLOSED):
            keys.report("cpu_burst_policy", f"{QosLevel.RECLAIMED} have no burst")
        return BurstPolicy.CLOSED
    if text == BurstPolicy.DYNAMIC:
        keys.report("cpu_burst_policy", f"{BurstPolicy.DYNAMIC} is not supported, and no burst is set")
    return BurstPolicy.DEFAULT if text is None else BurstPolicy(text)


def _burst_percent(keys: _Keys) -> float | None:
    text = keys.get("cpu_burst_percent")
    try:
        return None if text is None else parse_burst_percent(text)
    except ValueError as error:
        keys.report("cpu_burst_percent", f"{error}, and is not used")
        return None


def parse_burst_percent(text: str) -> float:
    """Return a percentage of the quota, 100 at most.

    Source: pkg/util/qos/cpu_enhancement.go, GetPodCPUBurstPercentFromCPUEnhancement; not below 0 here.

    Raises:
        ValueError: it is none.
    """
    percent = parse_float(text)
    if percent < 0:
        raise ValueError(f"{shortened(text)!r} is below 0")
    return min(percent, _MAX_PERCENT)


def parse_float(text: str) -> float:
    """Return a decimal number; ValueError for any other text, infinity too."""
    number = float(text) if _FLOAT.fullmatch(text) else inf
    if not isfinite(number):
        raise ValueError(f"{shortened(text)!r} is not a number")
    return number


def _suppression_tolerance_rate(level: QosLevel, keys: _Keys) -> float | None:
    """Source: pkg/util/qos/cpu_enhancement.go, GetPodCPUSuppressionToleranceRate."""
    if level is not QosLevel.RECLAIMED:
        return None
    text = keys.get("suppression_tolerance_rate")
    try:
        return inf if text is None else parse_float(text)
    except ValueError as error:
        keys.report("suppression_tolerance_rate", str(error), is_refused=True)
        return None


def _rss_overuse_threshold(keys: _Keys) -> float | None:
    """Source: pkg/util/qos/memory_enhancement.go."""
    threshold = keys.number(RSS_OVERUSE_THRESHOLD)
    if threshold is not None and threshold <= 0:
        keys.report(RSS_OVERUSE_THRESHOLD, "is not above 0, and is not used")
        return None
    return threshold


class Placed(Protocol):
    """What two pods on one NUMA node are compared by."""

    @property
    def level(self) -> QosLevel: ...
    @property
    def pool(self) -> str: ...
    @property
    def numa_binding(self) -> bool: ...
    @property
    def numa_share(self) -> bool: ...


def keeps_away(holder: Placed, candidate: Placed) -> bool:
    """Return whether a pod may not be bound to a NUMA node since `holder` is bound to it.

    Source: pkg/agent/qrm-plugins/util, NUMA binding with anti-affinity.
    """
    if not holder.numa_binding or holder.level not in (QosLevel.SHARED, QosLevel.DEDICATED):
        return False
    if holder.numa_share and candidate.numa_share:
        return False
    if holder.level is not candidate.level:
        return True
    return holder.level is QosLevel.SHARED and holder.pool != candidate.pool


def requested_amount(requests: Mapping[str, int]) -> int:
    """Return what one container asks for of a resource.

    `requests`: of one resource by its names: CPUs, reclaimed CPU in millicores (rounded up to CPUs), bytes.

    Source: pkg/agent/qrm-plugins/util, GetQuantityFromResourceReq.

    Raises:
        ValueError: more than one resource, or none.
    """
    if len(requests) > 1:
        raise ValueError(f"{' and '.join(sorted(requests))} in one container")
    if "cpu" in requests or "memory" in requests or RECLAIMED_MEMORY in requests:
        return next(iter(requests.values()))
    if RECLAIMED_MILLICPU in requests:
        return -(-requests[RECLAIMED_MILLICPU] // 1000)
    raise ValueError("not found")


def class_of(labels: Mapping[str, str], qos: KatalystQos) -> QoSClass:
    """Return the class of a pod with a level: its label's where that comes first, else the level's."""
    return (qos_class(labels) if qos.yields else QoSClass.NONE) or effective_class(qos)


def pod_problems(labels: Mapping[str, str], qos: KatalystQos) -> tuple[str, ...]:
    """Return what is wrong with a pod's annotations, and what is done about it, for people."""
    found = [str(each) for each in qos.problems]
    if qos.refusal:
        found.append(f"Katalyst refuses such a pod: it is treated as one of {QosLevel.SHARED}")
    if text := disagreement(labels, qos):
        found.append(text)
    return tuple(found)


def disagreement(labels: Mapping[str, str], qos: KatalystQos) -> str:
    """Return in which way a pod's label and its level differ, for people; empty if they do not."""
    named, of_level = qos_class(labels), effective_class(qos)
    if not named or named is of_level or qos.is_default:
        return ""
    return (
        f"label {QOS_CLASS_LABEL} {named} and {qos.level}, which is treated as {of_level}, differ:"
        f" {class_of(labels, qos)} is used"
    )


def effective_class(qos: KatalystQos) -> QoSClass:
    """Return the class of Koordinator that a pod of this level is treated as."""
    if qos.level is QosLevel.DEDICATED:
        return QoSClass.LSE if qos.numa_exclusive or not qos.numa_binding else QoSClass.LSR
    return _CLASSES[qos.level]


_CLASSES: Final = {
    QosLevel.SHARED: QoSClass.LS,
    QosLevel.RECLAIMED: QoSClass.BE,
    QosLevel.SYSTEM: QoSClass.SYSTEM,
}
