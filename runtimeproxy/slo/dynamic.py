"""Which plugins of a QoS manager strategies ask for: daemon and manager go by the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from runtimeproxy.slo.schema import CpuBurstPolicy

GATES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cpu-suppress": ("BECPUSuppress",),
        "cpu-burst": ("CPUBurst",),
        "cpu-evict": ("BECPUEvict", "CPUAllocatableEvict", "CPUEvict"),
        "memory-evict": ("BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict"),
        "cpu-guard": (),
    }
)
"""Koordinator's feature gates of each plugin: one of them is to be on, if it has any. Source: its
pkg/features."""
QUOTA_BURST: Final = frozenset({CpuBurstPolicy.AUTO, CpuBurstPolicy.CFS_QUOTA_BURST_ONLY})
"""CPU burst by the quota, which moves from second to second. Source: koordlet's genOperationByContainer."""


def asked_plugins(
    *, has_thresholds: bool, bursts: Iterable[CpuBurstPolicy], has_guard: bool = False
) -> frozenset[str]:
    """The plugins that strategies ask for, by name.

    `has_thresholds` is `enable` of `resource-threshold-config`, `has_guard` that of `cpu-guard-config`; the
    policies are those of the pods that run.
    """
    found = {"cpu-suppress", "cpu-evict", "memory-evict"} if has_thresholds else set[str]()
    if not QUOTA_BURST.isdisjoint(bursts):
        found.add("cpu-burst")
    if has_guard:
        found.add("cpu-guard")
    return frozenset(found)


def is_gated_on(plugin: str, gates: Mapping[str, bool]) -> bool:
    """Whether a feature gate of a plugin is on, or it has none."""
    own = GATES.get(plugin, ())
    return not own or any(gates.get(gate, False) for gate in own)
