"""The fields of pod strategies and of pods' annotations as data; see `schema`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from runtimeproxy.slo.schema import (
    INT32_MAX,
    MemoryQoS,
    MemoryQoSPolicy,
    MemoryQoSValues,
    Percent,
    PodNetwork,
    Threshold,
    Within,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCpuQoS:
    """The part of a class's CPU QoS that a pod strategy may change."""

    refused: ClassVar[Mapping[str, str]] = {
        "sched_idle": "counts for a whole class",
        "core_expeller": "counts for a whole class",
    }

    enable: bool = False
    group_identity: Annotated[int, Within(-1, 2)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMemoryQoS(MemoryQoSValues):
    """The annotation `koordinator.sh/memoryQOS`."""

    policy: MemoryQoSPolicy = MemoryQoSPolicy.DEFAULT


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
        "enable": "counts for a whole class",
        "cat_range_start_percent": _SCHEMATA,
        "cat_range_end_percent": _SCHEMATA,
        "mba_percent": _SCHEMATA,
    }

    class_name: ResctrlClass | None = None


_CLASS: Final = "is a class of the node; a pod strategy has its parts directly, such as `memoryQOS`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQoS:
    """What a pod strategy of `resource-qos-config` may say."""

    refused: ClassVar[Mapping[str, str]] = {
        "policies": "chooses mechanisms of the whole node",
        "lsr_class": _CLASS,
        "ls_class": _CLASS,
        "be_class": _CLASS,
        "system_class": _CLASS,
        "cgroup_root": _CLASS,
        "blkio_qos": "counts for a whole class; a pod has the annotation koordinator.sh/blkioQOS",
    }

    cpu_qos: PodCpuQoS = field(default_factory=PodCpuQoS)
    memory_qos: MemoryQoS = field(default_factory=MemoryQoS)
    resctrl_qos: PodResctrlQoS = field(default_factory=PodResctrlQoS)
    network_qos: PodNetwork = field(default_factory=PodNetwork)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodThreshold:
    """What a pod strategy of `resource-threshold-config` may say: which evictions are allowed."""

    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (each.name for each in fields(Threshold)),
        "counts for the whole node; a pod strategy may only say which evictions are allowed",
    )

    eviction_enabled: bool = False
    """As the label `koordinator.sh/eviction-enabled`."""
    eviction_policy: tuple[str, ...] | None = None
    """As the annotation `koordinator.sh/eviction-policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlcSchemata:
    """A part of the last-level cache."""

    range: tuple[Percent, ...] = ()
    """Start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlcSchemataOfCache(LlcSchemata):
    """A part of one last-level cache."""

    cache_id: Annotated[int, Within(0, INT32_MAX)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MbSchemata:
    """A part of the memory bandwidth."""

    percent: Percent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MbSchemataOfCache(MbSchemata):
    """A part of the memory bandwidth behind one last-level cache."""

    cache_id: Annotated[int, Within(0, INT32_MAX)] = 0


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
