"""`evictionConfig` of Katalyst's dynamic configuration: what the eviction plugins here use of it. Pure.

Source: katalyst-api pkg/apis/config/v1alpha1/adminqos.go, EvictionConfig; ranges are those of its
CustomResourceDefinition. An attribute's name is the JSON key in snake_case. None: the target says nothing,
and the plugin's own option applies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU
from runtimeproxy.slo.schema import Duration, Quantity, Range
from runtimeproxy.vocabulary import MOST_BYTES

MOST_GRACE_S: Final = 3_600
"""The daemon gives no pod more."""
_MOST: Final = 1_000_000
"""Far above any threshold with a meaning."""
_NOT_HERE: Final = "is of an eviction that is not there, and is not used"
_ENHANCED: Final = "is of Katalyst's enhanced eviction by NUMA nodes, which is not there, and is not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPressureEviction:
    """Of `katalyst-cpu-load` and `katalyst-cpu-suppression`."""

    unused: ClassVar[Mapping[str, str]] = {
        "numacpupressureevictionconfig": _NOT_HERE,
        "numasyscpupressureevictionconfig": _NOT_HERE,
    }

    enable_load_eviction: bool | None = None
    load_upper_bound_ratio: Annotated[float, Range(1, _MOST)] | None = None
    load_lower_bound_ratio: Annotated[float, Range(0, _MOST)] | None = None
    load_threshold_met_percentage: Annotated[float, Range(0, 1)] | None = None
    load_metric_ring_size: Annotated[int, Range(1, _MOST)] | None = None
    load_eviction_cool_down_time: Annotated[str, Duration()] | None = None
    enable_suppression_eviction: bool | None = None
    max_suppression_tolerance_rate: Annotated[float, Range(0, _MOST)] | None = None
    min_suppression_tolerance_duration: Annotated[str, Duration()] | None = None
    grace_period: Annotated[int, Range(-1, MOST_GRACE_S)] | None = None
    """In seconds; below 1: the plugin's own. Source: katalyst-core, DefaultGracePeriod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPressureEviction:
    """Of `katalyst-memory-pressure` and `katalyst-rss-overuse`."""

    unused: ClassVar[Mapping[str, str]] = {
        "numafreebelowwatermarktimesreclaimedthreshold": _ENHANCED,
        "numafreeconstraintfastevictionwaitcycle": _ENHANCED,
        "reclaimedgraceperiod": "is not used: gracePeriod applies to pods of all levels",
        "evictnonreclaimedannotationselector": "is not used: each level has its own conditions",
        "evictnonreclaimedlabelselector": "is not used: each level has its own conditions",
    }

    enable_numa_level_eviction: bool | None = None
    enable_system_level_eviction: bool | None = None
    numa_victim_minimum_utilization_threshold: Annotated[float, Range(0, 1)] | None = None
    numa_free_below_watermark_times_threshold: Annotated[int, Range(0, _MOST)] | None = None
    system_kswapd_rate_threshold: Annotated[int, Range(0, 10**9)] | None = None
    system_kswapd_rate_exceed_duration_threshold: Annotated[int, Range(0, _MOST)] | None = None
    system_free_memory_threshold_minimum: Annotated[int, Quantity(), Range(0, MOST_BYTES)] | None = None
    numa_eviction_ranking_metrics: tuple[str, ...] | None = None
    system_eviction_ranking_metrics: tuple[str, ...] | None = None
    enable_rss_overuse_eviction: bool | None = None
    rss_overuse_rate_threshold: Annotated[float, Range(0, _MOST)] | None = None
    grace_period: Annotated[int, Range(-1, MOST_GRACE_S)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimedResourcesEviction:
    """Of `katalyst-reclaimed-pressure`."""

    eviction_threshold: Mapping[str, Annotated[float, Range(0, _MOST)]] = field(default_factory=dict)
    """By resource."""
    soft_eviction_threshold: Mapping[str, Annotated[float, Range(0, _MOST)]] = field(default_factory=dict)
    grace_period: Annotated[int, Range(-1, MOST_GRACE_S)] | None = None
    threshold_met_tolerance_duration: Annotated[int, Range(0, _MOST)] | None = None
    """In seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionConfig:
    """All that a target sets."""

    unused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "systemloadpressureevictionconfig",
            "cpusystempressureevictionconfig",
            "rootfspressureevictionconfig",
            "networkevictionconfig",
            "pidoveruseevictionconfig",
        ),
        _NOT_HERE,
    )

    dry_run: tuple[str, ...] | None = None
    """Names of plugins, Katalyst's or ours; `*` is all, `-NAME` is not."""
    cpu_pressure_eviction_config: CpuPressureEviction = CpuPressureEviction()
    memory_pressure_eviction_config: MemoryPressureEviction = MemoryPressureEviction()
    reclaimed_resources_eviction_config: ReclaimedResourcesEviction = ReclaimedResourcesEviction()


NO_EVICTION_CONFIG: Final = EvictionConfig()
CLASSES: Final = (EvictionConfig, CpuPressureEviction, MemoryPressureEviction, ReclaimedResourcesEviction)
_CPU: Final = "cpu_pressure_eviction_config"
_MEMORY: Final = "memory_pressure_eviction_config"
_RECLAIMED: Final = "reclaimed_resources_eviction_config"


def _json_key(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join("RSS" if word == "rss" else word.capitalize() for word in rest)


def _paths(value: object, place: str = "") -> Iterator[str]:
    for each in fields(value):  # type: ignore[arg-type]  # of dataclasses only
        below, path = getattr(value, each.name), f"{place}.{each.name}" if place else each.name
        if is_dataclass(below):
            yield from _paths(below, path)
        else:
            yield path


PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {
        path: ".".join(("evictionConfig", *map(_json_key, path.split("."))))
        for path in _paths(NO_EVICTION_CONFIG)
    }
)
"""By attributes: where it is in `spec.config`, such as
`evictionConfig.cpuPressureEvictionConfig.loadUpperBoundRatio`."""


def value_at(config: EvictionConfig, path: str) -> Any:  # noqa: ANN401 - of any field
    """Return a field by its attributes; None: it is not set."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return None if value == {} else value


def set_fields(config: EvictionConfig) -> Iterator[tuple[str, Any]]:
    """The fields that are set, by their path in `spec.config`."""
    for path, shown in PATHS.items():
        if (value := value_at(config, path)) is not None:
            yield shown, value


class OfPlugin(NamedTuple):
    """What of the configuration is for one plugin."""

    switches: tuple[str, ...] = ()
    """By attributes: it is switched off if all of them are false."""
    values: tuple[str, ...] = ()
    """Its thresholds and times."""
    grace: str = ""
    names: tuple[str, ...] = ()
    """Katalyst's names of it, as `dryRun` has them."""


OF_PLUGINS: Final[Mapping[str, OfPlugin]] = MappingProxyType(
    {
        "katalyst-cpu-suppression": OfPlugin(
            (f"{_CPU}.enable_suppression_eviction",),
            (f"{_CPU}.max_suppression_tolerance_rate", f"{_CPU}.min_suppression_tolerance_duration"),
            f"{_CPU}.grace_period",
            ("cpu-pressure-suppression-plugin", "cpu-pressure-eviction-plugin", "cpu-pressure-eviction"),
        ),
        "katalyst-cpu-load": OfPlugin(
            (f"{_CPU}.enable_load_eviction",),
            (
                f"{_CPU}.load_upper_bound_ratio",
                f"{_CPU}.load_lower_bound_ratio",
                f"{_CPU}.load_threshold_met_percentage",
                f"{_CPU}.load_metric_ring_size",
                f"{_CPU}.load_eviction_cool_down_time",
            ),
            f"{_CPU}.grace_period",
            ("cpu-pressure-load-plugin", "cpu-pressure-eviction-plugin", "cpu-pressure-eviction"),
        ),
        "katalyst-reclaimed-pressure": OfPlugin(
            (),
            (
                f"{_RECLAIMED}.eviction_threshold",
                f"{_RECLAIMED}.soft_eviction_threshold",
                f"{_RECLAIMED}.threshold_met_tolerance_duration",
            ),
            f"{_RECLAIMED}.grace_period",
            ("reclaimed-resource-pressure-eviction-plugin",),
        ),
        "katalyst-memory-pressure": OfPlugin(
            (f"{_MEMORY}.enable_system_level_eviction", f"{_MEMORY}.enable_numa_level_eviction"),
            (
                f"{_MEMORY}.numa_victim_minimum_utilization_threshold",
                f"{_MEMORY}.numa_free_below_watermark_times_threshold",
                f"{_MEMORY}.system_kswapd_rate_threshold",
                f"{_MEMORY}.system_kswapd_rate_exceed_duration_threshold",
                f"{_MEMORY}.system_free_memory_threshold_minimum",
            ),
            f"{_MEMORY}.grace_period",
            ("system-memory-pressure-eviction-plugin", "numa-memory-pressure-eviction-plugin"),
        ),
        "katalyst-rss-overuse": OfPlugin(
            (f"{_MEMORY}.enable_rss_overuse_eviction",),
            (f"{_MEMORY}.rss_overuse_rate_threshold",),
            f"{_MEMORY}.grace_period",
            ("rss-overuse-eviction-plugin",),
        ),
    }
)
"""By the name of the plugin here."""


def of_plugin(name: str) -> OfPlugin:
    # Of a plugin of another package there is nothing.
    return OF_PLUGINS.get(name, OfPlugin())


def asked_evictions(config: EvictionConfig) -> frozenset[str]:
    """The plugins that a target asks for: it switches one on, or sets a threshold of it and not off."""
    found = set[str]()
    for name, own in OF_PLUGINS.items():
        switches = [value_at(config, path) for path in own.switches]
        has_value = any(value_at(config, path) is not None for path in own.values)
        if True in switches or (has_value and (not switches or switches.count(False) < len(switches))):
            found.add(name)
    return frozenset(found)


def is_switched_off(config: EvictionConfig, plugin: str) -> bool:
    switches = of_plugin(plugin).switches
    return bool(switches) and all(value_at(config, path) is False for path in switches)


def is_dry_run(config: EvictionConfig, plugin: str) -> bool:
    """Whether a plugin only computes. Source: katalyst-core pkg/util/general, IsNameEnabled."""
    names, has_all = {plugin, *of_plugin(plugin).names}, False
    for each in config.dry_run or ():
        if each in names or each.removeprefix("-") in names:
            return each in names
        has_all = has_all or each == "*"
    return has_all


class Unusable(NamedTuple):
    """A value that does not apply."""

    path: str
    """In `spec.config`."""
    reason: str
    """The rest of a sentence that begins with the path."""


_RANKS: Final = ("qos.pod", "priority.pod")
_ORDERS: Final = {
    f"{_MEMORY}.numa_eviction_ranking_metrics": (*_RANKS, "mem.total.numa.container"),
    f"{_MEMORY}.system_eviction_ranking_metrics": (*_RANKS, "mem.usage.container"),
}
"""What the order here is. Source: katalyst-core, DefaultNumaEvictionRankingMetrics."""
_LEAST: Final = {
    f"{_CPU}.load_threshold_met_percentage": (0.01, "pods would go at any load"),
    f"{_MEMORY}.numa_free_below_watermark_times_threshold": (1, "pods would go while nothing is short"),
    f"{_MEMORY}.system_kswapd_rate_threshold": (1, "pods would go while kswapd does nothing"),
    f"{_MEMORY}.rss_overuse_rate_threshold": (0.01, "each pod would go"),
}
"""Katalyst takes less, and evicts by it."""
MOST_RING: Final = 1_000


def usable(config: EvictionConfig) -> tuple[EvictionConfig, tuple[Unusable, ...]]:
    """Return the configuration without values that do not apply, and these."""
    found = dict[str, str]()
    for path, (least, reason) in _LEAST.items():
        value = value_at(config, path)
        if value is not None and value < least:
            found[path] = f"is {value:g}, and is not used: {reason}"
    size = f"{_CPU}.load_metric_ring_size"
    if (value_at(config, size) or 0) > MOST_RING:
        found[size] = f"is {value_at(config, size)}, and is not used: it is above {MOST_RING}"
    lower, upper = (f"{_CPU}.load_{bound}_bound_ratio" for bound in ("lower", "upper"))
    most = value_at(config, upper)
    if most is not None and (value_at(config, lower) or 0) > most:
        found[lower] = _above_text(value_at(config, lower), PATHS[upper], most)
    for path, order in _ORDERS.items():
        value = value_at(config, path)
        if value is not None and value != order:
            found[path] = f"is not used: the order is always {', '.join(order)}"
    config = _without(config, found)
    unusable = [Unusable(PATHS[path], reason) for path, reason in found.items()]
    config, resources = _without_resources(config)
    config, soft = _without_soft(config)
    names = [
        Unusable(PATHS["dry_run"], f"names {each[:64]!r}, which is no plugin here")
        for each in config.dry_run or ()
        if each != "*" and each.removeprefix("-") not in _NAMES
    ]
    return config, (*unusable, *resources, *soft, *names)


_NAMES: Final = frozenset(chain(OF_PLUGINS, *(each.names for each in OF_PLUGINS.values())))


def _without(config: EvictionConfig, paths: Iterable[str]) -> EvictionConfig:
    for path in paths:
        part, _, name = path.partition(".")
        config = replace(config, **{part: replace(getattr(config, part), **{name: None})})
    return config


def _without_resources(config: EvictionConfig) -> tuple[EvictionConfig, list[Unusable]]:
    """Leaves out thresholds of resources that are no reclaimed ones."""
    part, unusable = config.reclaimed_resources_eviction_config, list[Unusable]()
    kept = dict[str, Mapping[str, float]]()
    known: Set[str] = {RECLAIMED_MILLICPU, RECLAIMED_MEMORY}
    for name in ("eviction_threshold", "soft_eviction_threshold"):
        given: Mapping[str, float] = getattr(part, name)
        kept[name] = {resource: value for resource, value in given.items() if resource in known}
        place = PATHS[f"{_RECLAIMED}.{name}"]
        unusable += (
            Unusable(f"{place}.{resource[:64]}", f"is not used: only {' and '.join(sorted(known))} are")
            for resource in sorted(given.keys() - known)
        )
    if unusable:
        config = replace(config, **{_RECLAIMED: replace(part, **kept)})  # type: ignore[arg-type]
    return config, unusable


def _without_soft(config: EvictionConfig) -> tuple[EvictionConfig, list[Unusable]]:
    """Leaves out soft thresholds of resources that are above the hard ones."""
    part = config.reclaimed_resources_eviction_config
    hard, soft = part.eviction_threshold, part.soft_eviction_threshold
    place, most = PATHS[f"{_RECLAIMED}.soft_eviction_threshold"], PATHS[f"{_RECLAIMED}.eviction_threshold"]
    unusable = [
        Unusable(f"{place}.{resource}", _above_text(value, most, hard[resource]))
        for resource, value in sorted(soft.items())
        if value > hard.get(resource, value)
    ]
    if unusable:
        kept = {resource: value for resource, value in soft.items() if value <= hard.get(resource, value)}
        part = replace(part, soft_eviction_threshold=kept)
        config = replace(config, reclaimed_resources_eviction_config=part)
    return config, unusable


def _above_text(value: float, hard_path: str, most: float) -> str:
    return f"is {value:g}, and is not used: it is above {hard_path}, {most:g}"


_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_UNIT_S: Final = {
    "ns": 1e-9,
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs"), 1e-6),
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3_600.0,
}


def duration_s(text: str) -> float:
    """Return the seconds of a duration that the schema has checked; a negative one is 0."""
    if text.startswith("-"):
        return 0.0
    return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
