"""What the files of cgroup version 2 hold when a container has what the kubelet asked for: pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from runtimeproxy.calls.field_presence import NEUTRAL
from runtimeproxy.hooks.views import Resources
from runtimeproxy.units import (
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    UNLIMITED,
    cpu_weight_from_shares,
    format_cpu_max,
    format_memory_max,
)

NEUTRAL_UNIFIED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cpu.idle": "0",
        "cpu.max": "max 100000",
        "cpu.max.burst": "0",
        "cpu.weight": "100",
        "memory.high": "max",
        "memory.low": "0",
        "memory.max": "max",
        "memory.min": "0",
        "memory.oom.group": "0",
        "memory.swap.max": "max",
        "pids.max": "max",
    }
)
"""What the kernel's files of version 2 hold where nobody writes anything. Source: Linux,
Documentation/admin-guide/cgroup-v2.rst."""


def asked_text(key: str, requested: Resources) -> str | None:
    """The kubelet's text for a file of version 2, or what its other values make of the file."""
    return requested.unified.get(key) or _made_of_scalars(key, requested) or NEUTRAL_UNIFIED.get(key)


def _made_of_scalars(key: str, requested: Resources) -> str | None:
    """What a runtime writes to a file of version 2 for the scalars of the CRI; None if they do not tell.

    Source: opencontainers/runc, libcontainer/cgroups/fs2 and ConvertMemorySwapToCgroupV2Value.
    """
    limit_bytes, swap_bytes = requested.memory_limit_bytes, requested.memory_swap_limit_bytes
    if key == "cpu.weight" and requested.cpu_shares is not None:
        return str(cpu_weight_from_shares(min(max(requested.cpu_shares, MIN_CPU_SHARES), MAX_CPU_SHARES)))
    if key == "cpu.max" and requested.cpu_quota_us is not None:
        return format_cpu_max(requested.cpu_quota_us, requested.cpu_period_us or NEUTRAL["cpu_period_us"])
    if key == "memory.max" and limit_bytes is not None:
        return format_memory_max(limit_bytes)
    if key == "memory.swap.max" and limit_bytes is not None and swap_bytes is not None:
        has_limit = UNLIMITED not in (limit_bytes, swap_bytes)
        return format_memory_max(max(swap_bytes - limit_bytes, 0) if has_limit else UNLIMITED)
    return None
