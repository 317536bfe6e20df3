"""Resctrl: which part of the last-level cache and of the memory bandwidth a class of pods, or a pod, has.

`resctrlQOS` of a class in `resource-qos-config` gives a range of the cache and a percentage of the bandwidth.
LSE and LSR pods, LS pods, and BE pods have a group each, while their class is enabled; a pod without a class
is in that of its Kubernetes QoS class. The annotation `node.koordinator.sh/resctrl` gives a pod a group of
its own in place of the class's. With `monitor` each of these pods has a monitoring group, too.
Source: Koordinator pkg/koordlet/qosmanager/plugins/resctrl/resctrl_reconcile.go,
pkg/koordlet/runtimehooks/hooks/resctrl, pkg/koordlet/util/system/resctrl.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from runtimeproxy.cgroups.resctrl import GROUP_FIELD, MONITOR_FIELD, number, schemata_text
from runtimeproxy.fields.kernel_settings import RESCTRL_GROUPS
from runtimeproxy.hooks import NodeChange, PodChange, PodSelector, PodView, Policy, Reason
from runtimeproxy.hooks.reasons import Part
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.resctrl import BandwidthAllocation, BandwidthUnit, CacheAllocation, Resctrl
from runtimeproxy.node.snapshot import Feature, Input, Node
from runtimeproxy.slo.names import RESCTRL
from runtimeproxy.slo.schema import PodResctrl

CLASSES: Final = {"LSR": "lsr_class", "LS": "ls_class", "BE": "be_class"}
"""The classes with a group, and their attribute of the strategy. Source: resctrlGroupList."""
ALL_PERCENT: Final = 100
MB: Final = "MB"

AMD_ALL: Final = 2048
"""No limit."""
AMD_PER_PERCENT: Final = 160
"""Hundredths of an eighth of a GB/s per percent. Source:
AMDCCDMaxMBGbps."""

_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_REASON: Final = "part of cache and memory bandwidth"
_UNITS: Final = {
    BandwidthUnit.PERCENT: " %",
    BandwidthUnit.EIGHTHS_OF_GB: "/8 GB/s",
}


def cache_mask(all_bits: int, start_percent: int, end_percent: int) -> int:
    """Return the bits of a cache between two percentages, both rounded up to whole bits; 0 if there is none.

    Source: CalculateCatL3MaskValue.

    Raises:
        ValueError: The bits are not the lowest ones without a gap, or the range is none.
    """
    ways = all_bits.bit_length()
    if all_bits <= 0 or all_bits != (1 << ways) - 1:
        raise ValueError(f"its mask {all_bits:x} is not 2^n - 1")
    if not 0 <= start_percent < end_percent <= ALL_PERCENT:
        raise ValueError(f"{start_percent} to {end_percent} is no range within 0 to {ALL_PERCENT} percent")
    start, end = -(-ways * start_percent // ALL_PERCENT), -(-ways * end_percent // ALL_PERCENT)
    return (1 << end) - (1 << start)


def with_least_bits(mask: int, start_percent: int, cache: CacheAllocation) -> int:
    """Return a mask with as many bits as the kernel wants at least.

    It has the same start, or the highest bits.

    Source: Linux Documentation/filesystems/resctrl.rst, min_cbm_bits.
    """
    if mask.bit_count() >= cache.least_bits:
        return mask
    ways, least = cache.mask.bit_length(), cache.least_bits
    start = min(-(-ways * start_percent // ALL_PERCENT), ways - least)
    return ((1 << least) - 1) << max(0, start)


def bandwidth_value(percent: int, bandwidth: BandwidthAllocation) -> int:
    """Return the number for a percentage of the memory bandwidth.

    Of Intel it is a percentage, rounded up to the node's step (10 in Koordinator, on every node). Source:
    calculateMbaPercentForGroup.

    Raises:
        ValueError: It is not in 1 to 100, or the node's numbers are no parts of a whole.
    """
    if not 0 < percent <= ALL_PERCENT:
        raise ValueError(f"{percent} percent is not in 1 to {ALL_PERCENT}")
    if bandwidth.unit is BandwidthUnit.MB_PER_S:
        raise ValueError(
            "it is in MB/s on this node (mount option mba_MBps), of which no percentage is known"
        )
    if bandwidth.unit is BandwidthUnit.EIGHTHS_OF_GB:
        return AMD_ALL if percent == ALL_PERCENT else AMD_PER_PERCENT * percent // ALL_PERCENT
    rounded = -(-percent // bandwidth.step) * bandwidth.step
    return min(ALL_PERCENT, max(rounded, bandwidth.least))


@dataclass(slots=True)
class Parts:
    """The schemata of one group.

    Attributes:
        lines: By resource and by cache.
        texts: How they follow, by resource.
        problems: What the node cannot give; its line is that of a group without any limit.
    """

    lines: dict[str, dict[int, int]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All lines as one word."""
        return schemata_text(self.lines)


def parts_of(
    wanted: PodResctrl,
    resctrl: Resctrl,
) -> Parts:
    """Return the schemata for ranges and percentages; all of what is not given.

    Each resource of the node has its line, so that nothing of an earlier one is left.
    """
    parts = Parts()
    for resource, cache in resctrl.caches.items():
        parts.lines[resource] = _by_cache(
            cache.ids,
            lambda identity, cache=cache: _mask(wanted, identity, cache),  # type: ignore[misc]
            cache.mask,
            f"{resource} ",
            parts.problems,
        )
        parts.texts.append(_cache_text(resource, parts.lines[resource], wanted, cache))
    ranges = wanted.llc_range_by_cache.keys()
    if not resctrl.caches and (wanted.llc_range not in (None, (0, ALL_PERCENT)) or ranges):
        parts.problems.append("this node cannot divide the last-level cache")
    bandwidth = resctrl.bandwidth
    percents = {**wanted.mb_percent_by_cache}
    has_limit = wanted.mb_percent not in (None, ALL_PERCENT) or percents
    if bandwidth is not None and (bandwidth.unit is not BandwidthUnit.MB_PER_S or has_limit):
        _add_bandwidth(parts, wanted, bandwidth)
    elif bandwidth is None and has_limit:
        parts.problems.append("this node cannot limit the memory bandwidth")
    _note_unknown(parts, wanted, resctrl)
    return parts


def _add_bandwidth(parts: Parts, wanted: PodResctrl, bandwidth: BandwidthAllocation) -> None:
    if bandwidth.unit is BandwidthUnit.MB_PER_S:
        try:
            bandwidth_value(ALL_PERCENT, bandwidth)
        except ValueError as error:
            parts.problems.append(f"MB: {error}")
        return
    parts.lines[MB] = _by_cache(
        bandwidth.ids,
        lambda identity: bandwidth_value(_percent(wanted, identity), bandwidth),
        bandwidth_value(ALL_PERCENT, bandwidth),
        "MB ",
        parts.problems,
    )
    values = sorted(set(parts.lines[MB].values()))
    asked = sorted({_percent(wanted, each) for each in bandwidth.ids})
    of = ", ".join(f"{each} %" for each in asked)
    parts.texts.append(f"MB {of} -> " + ", ".join(f"{each}{_UNITS[bandwidth.unit]}" for each in values))


def _by_cache(
    ids: Iterable[int], value_of: Callable[[int], int], everything: int, what: str, problems: list[str]
) -> dict[int, int]:
    values: dict[int, int] = {}
    for identity in ids:
        try:
            values[identity] = value_of(identity)
        except ValueError as error:
            values[identity] = everything
            text = f"{what}is left without a limit: {error}"
            if text not in problems:
                problems.append(text)
    return values


def _mask(wanted: PodResctrl, identity: int, cache: CacheAllocation) -> int:
    start, end = _range(wanted, identity)
    return with_least_bits(cache_mask(cache.mask, start, end), start, cache)


def _range(wanted: PodResctrl, identity: int) -> tuple[int, int]:
    return wanted.llc_range_by_cache.get(identity) or wanted.llc_range or (0, ALL_PERCENT)


def _percent(wanted: PodResctrl, identity: int) -> int:
    own = wanted.mb_percent_by_cache.get(identity, wanted.mb_percent)
    return ALL_PERCENT if own is None else own


def _cache_text(resource: str, line: Mapping[int, int], wanted: PodResctrl, cache: CacheAllocation) -> str:
    ranges = sorted({_range(wanted, each) for each in cache.ids})
    asked = ", ".join(f"{start}-{end} %" for start, end in ranges)
    masks = sorted(set(line.values()))
    text = f"{resource} {asked} of {cache.mask.bit_length()} bits -> "
    text += ", ".join(f"{number(resource, each)} ({each.bit_count()} bits)" for each in masks)
    shared = sum((each & cache.shared_mask).bit_count() for each in masks[:1])
    return text + (f", {shared} of them shared with devices" if shared else "")


def _note_unknown(parts: Parts, wanted: PodResctrl, resctrl: Resctrl) -> None:
    caches = {each for cache in resctrl.caches.values() for each in cache.ids}
    controls = set(resctrl.bandwidth.ids) if resctrl.bandwidth is not None else set[int]()
    for what, named, known in (
        ("llc", wanted.llc_range_by_cache, caches),
        ("mb", wanted.mb_percent_by_cache, controls),
    ):
        if known and (unknown := sorted(set(named) - known)):
            shown = ", ".join(map(str, unknown[:8]))
            here = ", ".join(map(str, sorted(known)[:8]))
            parts.problems.append(f"{what}: this node has no cache with the id {shown}, but {here}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResctrlOptions:
    """`[policies.resctrl.options]`."""

    monitor: bool = True
    """Whether each pod in a group has a monitoring group, as far as the processor has RMIDs."""


class ResctrlPolicy(Policy):
    """Makes the resctrl groups of classes, and puts pods into these or into groups of their own."""

    name: ClassVar[str] = "resctrl"
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.STRATEGIES: PodSelector(annotations=(RESCTRL,))
    }
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES})
    optional_inputs: ClassVar[frozenset[Input]] = frozenset({Input.CGROUPS})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"resctrl_qos"})
    features: ClassVar[frozenset[str]] = frozenset({Feature.RESCTRL, Feature.RESCTRL_MOUNTED})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({GROUP_FIELD, MONITOR_FIELD}),
        "node": frozenset({"kernel_settings"}),
    }
    priority: ClassVar[int] = 59
    is_default: ClassVar[bool] = False
    options_type: ClassVar[type[ResctrlOptions] | None] = ResctrlOptions

    def __init__(self, options: ResctrlOptions | None = None) -> None:
        self._options = options or ResctrlOptions()

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the group of the pod's tasks, and their monitoring group."""
        strategy, resctrl = node.strategy_for(pod), node.resctrl
        wanted, problems = strategy.resctrl_qos, strategy.problems_of(RESCTRL)
        if resctrl is None or not (wanted.class_name or wanted.has_own_group):
            return PodChange(problems=problems) if problems else None
        if not _UID.fullmatch(pod.uid):
            return PodChange(problems=(*problems, f"the pod's uid {pod.uid[:64]!r} is none"))
        name = f"pod-{pod.uid}"
        if wanted.has_own_group:
            parts = parts_of(wanted, resctrl)
            problems += tuple(f"annotation {RESCTRL}: {each}" for each in parts.problems)
            if not parts.text:
                return PodChange(problems=problems)
            value = f"{name},{parts.text}"
            reason = Reason(f"annotation {RESCTRL}: ", "; ".join(parts.texts), " = ", value)
        else:
            value = wanted.class_name
            path = f"qos.{CLASSES[value]}.resctrl_qos.enable"
            source = strategy_source(strategy.provenance, "resctrl_qos.class_name", path)
            share = "; ".join(_of_class(value, node, resctrl).texts)
            reason = Reason(f"{value}'s group, ", share, " ", *source, " = ", value)
        values, reasons = {GROUP_FIELD: value}, {GROUP_FIELD: reason}
        if self._options.monitor and resctrl.monitors:
            values[MONITOR_FIELD] = name
            reasons[MONITOR_FIELD] = Reason("counters of the pod = ", name)
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def node(self, node: Node) -> NodeChange | None:
        """Return the groups of the enabled classes."""
        resctrl = node.resctrl
        if resctrl is None:
            return None
        settings: dict[str, int | str] = {}
        reasons: dict[str, str | Reason] = {}
        problems: list[str] = []
        for name, attribute in CLASSES.items():
            if not getattr(node.strategies.qos, attribute).resctrl_qos.enable:
                continue
            parts, setting = _of_class(name, node, resctrl), f"{RESCTRL_GROUPS}{name}"
            problems += (f"resctrlQOS of {name}: {each}" for each in parts.problems)
            if parts.text:
                settings[setting] = parts.text
                reasons[setting] = Reason(
                    f"{name} pods: ", "; ".join(parts.texts), " ", *_source(name, node), " = ", parts.text
                )
        if self._options.monitor and settings and not resctrl.monitors:
            problems.append(
                "pods have no counters: the kernel or the processor has no monitoring of the cache"
            )
        if not settings and not problems:
            return None
        return NodeChange(kernel_settings=settings, problems=tuple(problems), reason=_REASON, reasons=reasons)


def _of_class(name: str, node: Node, resctrl: Resctrl) -> Parts:
    qos = getattr(node.strategies.qos, CLASSES[name]).resctrl_qos
    llc_range = (qos.cat_range_start_percent, qos.cat_range_end_percent)
    return parts_of(PodResctrl(llc_range=llc_range, mb_percent=qos.mba_percent), resctrl)


def _source(name: str, node: Node) -> tuple[Part, ...]:
    path = f"qos.{CLASSES[name]}.resctrl_qos"
    return strategy_source(node.strategies.provenance, f"{path}.cat_range_end_percent", f"{path}.enable")
