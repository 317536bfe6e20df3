"""Conversions between the units of Kubernetes, the CRI and cgroup v1 and v2. All functions are pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

UNLIMITED: Final = -1
"""A quota or memory limit that limits nothing, in the CRI and in cgroup v1. Version 2 writes `max`."""

MIN_CPU_SHARES: Final = 2
"""Source: Linux kernel/sched/sched.h, MIN_SHARES."""
MAX_CPU_SHARES: Final = 262_144
"""Source: Linux kernel/sched/sched.h, MAX_SHARES (1 << 18)."""
MIN_CPU_WEIGHT: Final = 1
"""Source: Linux Documentation/admin-guide/cgroup-v2.rst, cpu.weight."""
MAX_CPU_WEIGHT: Final = 10_000
"""Source: Linux Documentation/admin-guide/cgroup-v2.rst, cpu.weight."""
SHARES_PER_CPU: Final = 1_024
"""cpu.shares of one whole CPU. Source: kubelet pkg/kubelet/cm/helpers_linux.go."""

CPU_PERIOD_US: Final = 100_000
"""The CFS period that Kubernetes and Koordinator assume everywhere (policies spec 2.0.4)."""
MIN_CPU_PERIOD_US: Final = 1_000
"""Source: Linux kernel/sched/core.c, min_cfs_quota_period."""
MAX_CPU_PERIOD_US: Final = 1_000_000
"""Source: Linux kernel/sched/core.c, max_cfs_quota_period."""
MIN_CPU_QUOTA_US: Final = 1_000
"""Source: Linux kernel/sched/core.c, min_cfs_quota_period, which bounds the quota too."""
MAX_CPU_QUOTA_US: Final = 2**44 - 1
"""Source: Linux kernel/sched/sched.h, MAX_BW."""

MAX_INT64: Final = 2**63 - 1
"""The largest value of the CRI's integers, and of a Kubernetes quantity."""
V1_UNLIMITED_MEMORY_BYTES: Final = 2**63 - 65_536
"""A cgroup v1 memory limit read back at or above this is no limit.

Source: Linux mm/memcontrol.c: PAGE_COUNTER_MAX pages, that is MAX_INT64 less at most one page (64 KiB).
"""
MAX_CPU_ID: Final = 8_191
"""Source: Linux arch/x86/Kconfig, NR_CPUS_RANGE_END (8,192), the largest of all architectures."""

_MAX_QUANTITY_LENGTH: Final = 128
_MAX_EXPONENT: Final = 1_000
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?"
)
_CPU_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def cpu_shares_from_millicores(cpu_millicores: int) -> int:
    """Return the cpu.shares of a CPU request; 2 for none.

    Source: kubelet MilliCPUToShares, Koordinator MilliCPUToShares (policies spec 2.0.4).
    """
    if cpu_millicores <= 0:
        return MIN_CPU_SHARES
    return min(max(cpu_millicores * SHARES_PER_CPU // 1_000, MIN_CPU_SHARES), MAX_CPU_SHARES)


def cpu_quota_us_from_millicores(cpu_millicores: int) -> int:
    """Return the CFS quota of a CPU limit for a period of 100 ms; -1 for none, and at most what kernels take.

    Source: Koordinator MilliCPUToQuota (policies spec 2.0.4), which knows the least quota only.
    """
    quota_us = cpu_millicores * CPU_PERIOD_US // 1_000
    if quota_us <= 0:
        return UNLIMITED
    return min(max(quota_us, MIN_CPU_QUOTA_US), MAX_CPU_QUOTA_US)


def cpu_weight_from_shares(cpu_shares: int) -> int:
    """Return the cgroup v2 cpu.weight of a cpu.shares.

    Source: runc and Koordinator ConvertCPUSharesToWeight (policies spec 5.4).

    Raises:
        ValueError: the shares lie outside 2 to 262,144.
    """
    if not MIN_CPU_SHARES <= cpu_shares <= MAX_CPU_SHARES:
        raise ValueError(f"cpu.shares {cpu_shares} is not in {MIN_CPU_SHARES} to {MAX_CPU_SHARES}")
    return 1 + (cpu_shares - 2) * 9_999 // 262_142


def cpu_shares_from_weight(cpu_weight: int) -> int:
    """Return the cpu.shares of a cgroup v2 cpu.weight.

    Source: Koordinator ConvertCPUWeightToShares (policies spec 5.4).

    Raises:
        ValueError: the weight lies outside 1 to 10,000.
    """
    if not MIN_CPU_WEIGHT <= cpu_weight <= MAX_CPU_WEIGHT:
        raise ValueError(f"cpu.weight {cpu_weight} is not in {MIN_CPU_WEIGHT} to {MAX_CPU_WEIGHT}")
    return (cpu_weight - 1) * 262_142 // 9_999 + 2


def parse_cpu_max(text: str) -> tuple[int, int]:
    """Return quota and period in microseconds from the text of cpu.max; the quota -1 stands for `max`.

    A missing period is 100,000.

    Raises:
        ValueError: the text is not one or two fields of that kind.
    """
    quota, *rest = text.split() or [""]
    if len(rest) > 1:
        raise ValueError(f"cpu.max has more than two fields: {text!r}")
    quota_us = UNLIMITED if quota == "max" else _natural(quota, "cpu.max")
    return quota_us, _natural(rest[0], "cpu.max") if rest else CPU_PERIOD_US


def format_cpu_max(quota_us: int, period_us: int | None = None) -> str:
    """Return the text to write to cpu.max; without a period the kernel keeps its own. Negative is `max`."""
    quota = "max" if quota_us < 0 else str(quota_us)
    return quota if period_us is None else f"{quota} {period_us}"


def parse_memory_max(text: str) -> int:
    """Return the bytes in the text of memory.max or memory.limit_in_bytes; -1 when it limits nothing.

    Raises:
        ValueError: the text is neither `max` nor a number.
    """
    text = text.strip()
    if text in ("max", "-1"):
        return UNLIMITED
    limit_bytes = _natural(text, "memory limit")
    return UNLIMITED if limit_bytes >= V1_UNLIMITED_MEMORY_BYTES else limit_bytes


def format_memory_max(limit_bytes: int) -> str:
    """Return the text to write to memory.max. Negative is `max`."""
    return "max" if limit_bytes < 0 else str(limit_bytes)


def quantity_bytes(text: str) -> int:
    """Return a Kubernetes quantity (`2Gi`, `500`, `1.5`) as a whole number, rounded away from zero.

    Source: Kubernetes apimachinery resource.Quantity: grammar, Value() and the bound of int64.

    Raises:
        ValueError: the text is not a quantity.
    """
    return _scaled_quantity(text, 0)


def quantity_millicores(text: str) -> int:
    """Return a Kubernetes CPU quantity (`100m`, `1.5`) in thousandths, rounded away from zero.

    Source: Kubernetes apimachinery resource.Quantity, MilliValue().

    Raises:
        ValueError: the text is not a quantity.
    """
    return _scaled_quantity(text, 3)


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPU (or NUMA node) numbers of a list such as `0-3,8`; the empty text is the empty set.

    Source: Linux Documentation/admin-guide/kernel-parameters.rst, CPU lists; kubelet's cpuset.Parse.

    Raises:
        ValueError: the text is not such a list, or names a number above 8,191.
    """
    ranges: list[tuple[int, int]] = []
    for part in text.split(",") if text else ():
        match = _CPU_RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"not a CPU list: {_shortened(text)}")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last or last > MAX_CPU_ID:
            raise ValueError(f"CPU range {part} is reversed or above {MAX_CPU_ID}")
        ranges.append((first, last))
    return frozenset(_members(ranges))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the shortest list text of CPU numbers: ascending, runs as ranges."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def is_cpu_list(text: str) -> bool:
    """Return whether the text is a CPU list that names at least one CPU."""
    try:
        return bool(parse_cpu_list(text))
    except ValueError:
        return False


def _members(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield each number of the ranges once: a long text of overlapping ones must not take seconds."""
    after = 0
    for first, last in sorted(ranges):
        yield from range(max(first, after), last + 1)
        after = max(after, last + 1)


def _natural(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise ValueError(f"{what} holds no number: {_shortened(text)}")
    return int(text)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:64] + "...")


def _scaled_quantity(text: str, digits: int) -> int:
    """Return the quantity times 10**digits, rounded away from zero and bounded to int64."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_QUANTITY_LENGTH else None
    whole, fraction = (match["whole"], match["fraction"] or "") if match else ("", "")
    if match is None or not whole + fraction:
        raise ValueError(f"not a quantity: {_shortened(text)}")
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"quantity's exponent is out of range: {_shortened(text)}")
    suffix = match["suffix"] or ""
    exponent += digits - len(fraction) + _DECIMAL_SUFFIXES.get(suffix, 0)
    magnitude = int(whole + fraction) << _BINARY_SUFFIXES.get(suffix, 0)
    factor: int = 10 ** abs(exponent)
    magnitude = min(magnitude * factor if exponent >= 0 else -(-magnitude // factor), MAX_INT64)
    return -magnitude if match["sign"] == "-" else magnitude
