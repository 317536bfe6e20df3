"""A pod's annotations about its QoS. An invalid one is reported and ignored, as the function says.

Source: Koordinator apis/slo/v1alpha1/pod.go and apis/extension. Ranges are checked, which it does for some
only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Final

from runtimeproxy.slo.names import (
    BLKIO_QOS,
    CPU_BURST,
    CPU_GUARD,
    CPU_QOS,
    EVICTION_POLICY,
    EVICTION_PRIORITY,
    MAX_ANNOTATION_LENGTH,
    MAX_ANNOTATION_VALUES,
    MEMORY_QOS,
    NETWORK_QOS,
    RESCTRL,
    STARTUP_BOOST,
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
    PodCpuGuard,
    PodNetwork,
    PodResctrl,
    PodStartupBoost,
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
class Schemata:
    """A part of cache, by range, or of memory bandwidth, by percent: Koordinator has one type for both."""

    range: tuple[Percent, ...] = ()
    """Start and end."""
    percent: Percent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemataOfCache(Schemata):
    """A part of one last-level cache, or of the memory bandwidth behind it."""

    cache_id: Annotated[int, Range(0, INT32_MAX)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemataGroup:
    """`llc` or `mb` of the annotation `node.koordinator.sh/resctrl`."""

    schemata: Schemata = field(default_factory=Schemata)
    schemata_per_cache: tuple[SchemataOfCache, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResctrlAnnotation:
    """The annotation `node.koordinator.sh/resctrl` of a pod."""

    llc: SchemataGroup = field(default_factory=SchemataGroup)
    mb: SchemataGroup = field(default_factory=SchemataGroup)


_OVERLAYS: Final[Mapping[str, type]] = {
    CPU_BURST: PodCpuBurst,
    CPU_QOS: CpuQoS,
    MEMORY_QOS: PodMemoryQoS,
    NETWORK_QOS: PodNetwork,
    BLKIO_QOS: BlkioQoS,
    CPU_GUARD: PodCpuGuard,
    STARTUP_BOOST: PodStartupBoost,
}
"""The annotations whose fields replace those of a strategy."""


class PodAnnotations:
    """Reads the annotations of one pod and collects their problems."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations
        self._problems: list[Problem] = []

    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._problems)

    def overlay(self, key: str) -> Overlay | None:
        """The fields that an annotation of `_OVERLAYS` sets; None without it, or if it is invalid."""
        if key not in self._annotations:
            return None
        kind, overlay = _OVERLAYS[key], None
        with self._reading(key) as report:
            raw = self._parsed(key, report)
            overlay = read_overlay(kind, raw, report, beside=_refused_names(kind, raw, report))
        return None if report.has_errors else overlay

    def resctrl(self) -> PodResctrl | None:
        """The pod's own group; None without the annotation, or if it is invalid or empty."""
        own = PodResctrl()
        with self._reading(RESCTRL) as report:
            if (raw := self._parsed(RESCTRL, report)) is not None:
                own = _schemata(read_object(ResctrlAnnotation, raw, report, ""), report)
        return own if own.has_own_group and not report.has_errors else None

    def eviction_policy(self) -> frozenset[str]:
        """The features that may evict the pod; none if it is invalid."""
        features: list[object] = []
        with self._reading(EVICTION_POLICY) as report:
            raw = self._parsed(EVICTION_POLICY, report)
            if not isinstance(raw, list) or not all(isinstance(each, str) for each in raw):
                report.fail("", "is not a list of texts")
            features = raw
        return frozenset(map(str, features))

    def eviction_priority(self) -> int:
        """The priority; 0 if it is invalid."""
        text = self._annotations[EVICTION_PRIORITY]
        number = int(text) if _INTEGER.fullmatch(text) else None
        if number is None or number not in _INT32:
            reason = f"is {shown(text)}, not a whole number of 32 bits"
            self._problems.append(Problem("", EVICTION_PRIORITY, "", reason))
            return 0
        return number

    @contextmanager
    def _reading(self, key: str) -> Iterator[Report]:
        """Collects the problems of one annotation; an invalid value ends the block."""
        report = Report("", key, MAX_GUESSES)
        with suppress(InvalidError):
            yield report
        self._problems.extend(report.all_problems())

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


def _schemata(own: ResctrlAnnotation, report: Report) -> PodResctrl:
    ranges = {
        each.cache_id: _range(each, report, f"llc.schemataPerCache[{number}]")
        for number, each in enumerate(own.llc.schemata_per_cache)
    }
    percents = {each.cache_id: each.percent for each in own.mb.schemata_per_cache}
    return PodResctrl(
        llc_range=_range(own.llc.schemata, report, "llc.schemata"),
        llc_range_by_cache={cache: each for cache, each in ranges.items() if each is not None},
        mb_percent=own.mb.schemata.percent,
        mb_percent_by_cache={cache: each for cache, each in percents.items() if each is not None},
    )


def _range(schemata: Schemata, report: Report, place: str) -> tuple[int, int] | None:
    if not schemata.range:
        return None
    if len(schemata.range) != 2 or schemata.range[0] >= schemata.range[1]:
        report.fail(f"{place}.range", f"is {shown(schemata.range)}, not a start and a larger end in percent")
    return schemata.range[0], schemata.range[1]
