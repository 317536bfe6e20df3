"""A pod's annotations about its QoS. An invalid one is reported and ignored, as the function says.

Source: policies spec 1.2, 1.6; ranges are checked, which Koordinator does for some only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, NamedTuple

from runtimeproxy.slo.names import (
    BLKIO_QOS,
    CPU_BURST,
    CPU_QOS,
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    MAX_ANNOTATION_LENGTH,
    MAX_ANNOTATION_VALUES,
    MEMORY_QOS,
    NETWORK_QOS,
    RESCTRL,
)
from runtimeproxy.slo.reading import (
    InvalidError,
    Overlay,
    Problem,
    Report,
    child,
    members_of,
    parse_json,
    read_object,
    read_overlay,
    shown,
)
from runtimeproxy.slo.schema import (
    INT32_MAX,
    BlkioQoS,
    CpuQoS,
    MemoryQoSPolicy,
    MemoryQoSValues,
    Percent,
    PodCpuBurst,
    PodNetwork,
    Range,
)

MAX_GUESSES: Final = 8
"""Unknown fields of an annotation that are compared with the known ones: it is read while a call waits."""
_INT32: Final = range(-(2**31), 2**31)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,64}")
"""Source: Go strconv.ParseInt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMemoryQoS(MemoryQoSValues):
    """The annotation `koordinator.sh/memoryQOS`."""

    policy: MemoryQoSPolicy = MemoryQoSPolicy.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class LlcSchemata:
    """A part of the last-level cache."""

    unused: ClassVar[frozenset[str]] = frozenset({"percent"})
    """Koordinator has one type for both kinds of schemata."""

    range: tuple[Percent, ...] = ()
    """Start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlcSchemataOfCache(LlcSchemata):
    """A part of one last-level cache."""

    cache_id: Annotated[int, Range(0, INT32_MAX)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MbSchemata:
    """A part of the memory bandwidth."""

    unused: ClassVar[frozenset[str]] = frozenset({"range"})
    """Koordinator has one type for both kinds of schemata."""

    percent: Percent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MbSchemataOfCache(MbSchemata):
    """A part of the memory bandwidth behind one last-level cache."""

    cache_id: Annotated[int, Range(0, INT32_MAX)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LlcAnnotation:
    """`llc` of the annotation `node.koordinator.sh/resctrl`."""

    schemata: LlcSchemata = field(default_factory=LlcSchemata)
    schemata_per_cache: tuple[LlcSchemataOfCache, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MbAnnotation:
    """`mb` of the annotation `node.koordinator.sh/resctrl`."""

    schemata: MbSchemata = field(default_factory=MbSchemata)
    schemata_per_cache: tuple[MbSchemataOfCache, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResctrlAnnotation:
    """The annotation `node.koordinator.sh/resctrl` of a pod."""

    llc: LlcAnnotation = field(default_factory=LlcAnnotation)
    mb: MbAnnotation = field(default_factory=MbAnnotation)


class OwnSchemata(NamedTuple):
    """A pod's own part of the last-level cache and of the memory bandwidth."""

    llc_range: tuple[int, int] | None
    llc_range_by_cache: Mapping[int, tuple[int, int]]
    mb_percent: int | None
    mb_percent_by_cache: Mapping[int, int]


class PodAnnotations:
    """Reads the annotations of one pod and collects their problems."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self._problems: list[Problem] = []

    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems)

    def cpu_burst(self) -> Overlay | None:
        return self._overlay(CPU_BURST, PodCpuBurst)

    def cpu_qos(self) -> Overlay | None:
        return self._overlay(CPU_QOS, CpuQoS)

    def memory_qos(self) -> Overlay | None:
        return self._overlay(MEMORY_QOS, PodMemoryQoS)

    def network_qos(self) -> Overlay | None:
        return self._overlay(NETWORK_QOS, PodNetwork)

    def blkio_qos(self) -> Overlay | None:
        return self._overlay(BLKIO_QOS, BlkioQoS)

    def resctrl(self) -> OwnSchemata | None:
        """The schemata; None without one, or if it is invalid or empty: then the class's group counts."""
        report = Report("", RESCTRL, MAX_GUESSES)
        try:
            raw = self._parsed(RESCTRL, report)
            if raw is None:
                return None
            own = _schemata(read_object(ResctrlAnnotation, raw, report, ""), report)
        except InvalidError:
            return None
        finally:
            self._problems.extend(report.all_problems())
        return own if any(each not in (None, {}) for each in own) and not report.has_errors else None

    def eviction_policy(self) -> frozenset[str]:
        """The features that may evict the pod; none if it is invalid."""
        report = Report("", EVICTION_POLICY, MAX_GUESSES)
        try:
            raw = self._parsed(EVICTION_POLICY, report)
            if not isinstance(raw, list) or not all(isinstance(each, str) for each in raw):
                report.fail("", "is not a list of texts")
            return frozenset(map(str, raw))
        except InvalidError:
            return frozenset()
        finally:
            self._problems.extend(report.all_problems())

    def eviction_priority(self) -> int:
        """The priority; 0 if it is invalid."""
        text = self._annotations[EVICTION_PRIORITY]
        number = int(text) if _INTEGER.fullmatch(text) else None
        if number is None or number not in _INT32:
            reason = f"is {shown(text)}, not a whole number of 32 bits"
            self._problems.append(Problem("", EVICTION_PRIORITY, "", reason))
            return 0
        return number

    def _overlay(self, key: str, kind: type) -> Overlay | None:
        report = Report("", key, MAX_GUESSES)
        try:
            raw = self._parsed(key, report)
        except InvalidError:
            raw = None
        overlay = read_overlay(kind, raw, report, beside=_refused_names(kind, raw, report))
        self._problems.extend(report.all_problems())
        return None if key not in self._annotations or report.has_errors else overlay

    def _parsed(self, key: str, report: Report) -> object:
        text = self._annotations.get(key)
        if text is None:
            return None
        return parse_json(text, report, MAX_ANNOTATION_LENGTH, MAX_ANNOTATION_VALUES)


def _refused_names(kind: type, raw: object, report: Report) -> frozenset[str]:
    """Names, in lower case, that make a pod strategy an error; koordlet ignores them in an annotation."""
    refused: Mapping[str, str] = getattr(kind, "refused", {})
    reasons = {name.replace("_", ""): reason for name, reason in refused.items()}
    members = members_of(raw) if isinstance(raw, Mapping) else {}
    found = frozenset(members.keys() & reasons.keys())
    for folded in sorted(found):
        report.warn(child("", members[folded][0]), f"{reasons[folded]}, and is not used")
    return found


def _schemata(own: ResctrlAnnotation, report: Report) -> OwnSchemata:
    return OwnSchemata(
        _range(own.llc.schemata, report, "llc.schemata"),
        {
            each.cache_id: cache_range
            for number, each in enumerate(own.llc.schemata_per_cache)
            if (cache_range := _range(each, report, f"llc.schemataPerCache[{number}]")) is not None
        },
        own.mb.schemata.percent,
        {each.cache_id: each.percent for each in own.mb.schemata_per_cache if each.percent is not None},
    )


def _range(schemata: LlcSchemata, report: Report, place: str) -> tuple[int, int] | None:
    if not schemata.range:
        return None
    if len(schemata.range) != 2 or schemata.range[0] >= schemata.range[1]:
        report.fail(f"{place}.range", f"is {shown(schemata.range)}, not a start and a larger end in percent")
    return schemata.range[0], schemata.range[1]
