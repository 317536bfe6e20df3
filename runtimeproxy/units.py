"""Conversions between the units of Kubernetes, the CRI and cgroup v1 and v2. All functions are pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
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
"""The CFS period that Kubernetes and Koordinator (pkg/koordlet/util/system) assume everywhere."""
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
"""A cgroup v1 memory limit read back at or above this means "no limit".

Source: Linux mm/memcontrol.c: PAGE_COUNTER_MAX pages, that is MAX_INT64 less at most one page (64 KiB).
"""
MAX_CPU_ID: Final = 8_191
"""Source: Linux arch/x86/Kconfig, NR_CPUS_RANGE_END (8,192), the largest of all architectures."""
MIN_TIME_S: Final = -62_135_510_400
MAX_TIME_S: Final = 253_402_214_399
"""The years 1 to 9999 without their first and last day, in seconds since the epoch: a message can have the
time, and it can be shown as local time. Source: google/protobuf/timestamp.proto."""

_US_PER_S: Final = 1_000_000
_SYSTEMD_STEP_US: Final = 10_000
"""1 % of a second. Source: opencontainers/runc libcontainer/cgroups/systemd/common.go, addCpuQuota."""
_MAX_QUANTITY_LENGTH: Final = 128
_MAX_EXPONENT: Final = 1_000
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?"
)
_LIST_REGION: Final = re.compile(
    r"(?:(?P<first>[0-9]{1,5}|N)(?:-(?P<last>[0-9]{1,5}|N))?|(?P<all>[aA][lL][lL]))"
    r"(?::(?P<used>[0-9]{1,5})/(?P<group>[0-9]{1,5}))?"
)
_LIST_FIXED_LENGTH: Final = 100
_LIST_LENGTH_PER_CPU: Final = 6
_LIST_DIGITS: Final = 4
_LIST_SEPARATORS: Final = re.compile(r"[,\s]+", re.ASCII)
_PLAIN_LIST: Final = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")


def checked_time_s(time_s: float) -> float:
    """A time in seconds since the epoch. Raises ValueError if it cannot be sent or shown."""
    if not MIN_TIME_S <= time_s <= MAX_TIME_S:
        raise ValueError(f"{time_s:g} is not a time")
    return float(time_s)


def cpu_shares_from_millicores(cpu_millicores: int) -> int:
    """Return the cpu.shares of a CPU request; 2 for none.

    Source: kubelet pkg/kubelet/cm, Koordinator pkg/koordlet/util/system, MilliCPUToShares.
    """
    if cpu_millicores <= 0:
        return MIN_CPU_SHARES
    return min(max(cpu_millicores * SHARES_PER_CPU // 1_000, MIN_CPU_SHARES), MAX_CPU_SHARES)


def cpu_quota_us_from_millicores(cpu_millicores: int) -> int:
    """Return the CFS quota of a CPU limit for a period of 100 ms; -1 for none; at most the kernel's maximum.

    Source: Koordinator pkg/koordlet/util/system, MilliCPUToQuota, which knows the least quota only.
    """
    quota_us = cpu_millicores * CPU_PERIOD_US // 1_000
    if quota_us <= 0:
        return UNLIMITED
    return min(max(quota_us, MIN_CPU_QUOTA_US), MAX_CPU_QUOTA_US)


def rounded_quota(quota_us: int, period_us: int = CPU_PERIOD_US) -> int:
    """Return the quota that systemd sets for one: rounded up to 1 % of the period.

    Source: opencontainers/runc libcontainer/cgroups/systemd/common.go, addCpuQuota.
    """
    if quota_us < 0:
        return quota_us
    per_second_us = quota_us * _US_PER_S // period_us
    per_second_us = -(-per_second_us // _SYSTEMD_STEP_US) * _SYSTEMD_STEP_US
    return max(quota_us, per_second_us * period_us // _US_PER_S)


class WeightFormula(StrEnum):
    """How a runtime or kubelet turns cpu.shares into cpu.weight."""

    LINEAR = "linear"
    """Source: runc before 1.3.2, crun before 1.23, Koordinator pkg/koordlet/util/system/cgroup2.go."""
    QUADRATIC = "quadratic"
    """1,024 shares are the weight 100. Source: opencontainers/cgroups 0.0.5 ConvertCPUSharesToCgroupV2Value,
    which runc has from 1.3.2 on; crun from 1.23 on."""


def cpu_weight_from_shares(cpu_shares: int, formula: WeightFormula = WeightFormula.LINEAR) -> int:
    """Return the cgroup v2 cpu.weight of a cpu.shares.

    Raises:
        ValueError: the shares lie outside 2 to 262,144.
    """
    if not MIN_CPU_SHARES <= cpu_shares <= MAX_CPU_SHARES:
        raise ValueError(f"cpu.shares {cpu_shares} is not in {MIN_CPU_SHARES} to {MAX_CPU_SHARES}")
    if formula is WeightFormula.LINEAR:
        return 1 + (cpu_shares - 2) * 9_999 // 262_142
    if cpu_shares in (MIN_CPU_SHARES, MAX_CPU_SHARES):
        return MIN_CPU_WEIGHT if cpu_shares == MIN_CPU_SHARES else MAX_CPU_WEIGHT
    log = math.log2(cpu_shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612 - 7 / 34))


def cpu_shares_from_weight(cpu_weight: int, formula: WeightFormula = WeightFormula.LINEAR) -> int:
    """Return a cpu.shares with a cgroup v2 cpu.weight; of the quadratic formula the largest.

    Source: of the linear one, Koordinator pkg/koordlet/util/system/cgroup2.go, ConvertCPUWeightToShares.

    Raises:
        ValueError: the weight lies outside 1 to 10,000.
    """
    if not MIN_CPU_WEIGHT <= cpu_weight <= MAX_CPU_WEIGHT:
        raise ValueError(f"cpu.weight {cpu_weight} is not in {MIN_CPU_WEIGHT} to {MAX_CPU_WEIGHT}")
    if formula is WeightFormula.LINEAR:
        return (cpu_weight - 1) * 262_142 // 9_999 + 2
    least, most = MIN_CPU_SHARES, MAX_CPU_SHARES
    while least < most:
        middle = (least + most + 1) // 2
        if cpu_weight_from_shares(middle, formula) <= cpu_weight:
            least = middle
        else:
            most = middle - 1
    return least


def measured_weight_formula(weights: Iterable[tuple[int, int]]) -> WeightFormula | None:
    """Return the formula of a program, by the weights that it wrote for shares; None if they do not tell.

    Args:
        weights: pairs of cpu.shares and cpu.weight, the latest last; that one counts, since an upgrade of the
            program leaves the weights of before. Pairs of neither formula do not count.
    """
    found: WeightFormula | None = None
    for cpu_shares, cpu_weight in weights:
        if MIN_CPU_SHARES <= cpu_shares <= MAX_CPU_SHARES:
            fitting = [
                each for each in WeightFormula if cpu_weight_from_shares(cpu_shares, each) == cpu_weight
            ]
            if len(fitting) == 1:
                found = fitting[0]
    return found


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


def parse_integer(text: str) -> int:
    """Return a decimal number; ValueError for any other text."""
    # int() takes spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 20):
        raise ValueError(f"{text[:64]!r} is not a whole number")
    return int(text)


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


def millicores_quantity(cpu_millicores: int) -> str:
    """Return CPU as a Kubernetes quantity in the form that Kubernetes writes itself: `1500m`, `12`, `2k`.

    Source: Kubernetes apimachinery resource.Quantity, CanonicalizeBytes() of DecimalSI.
    """
    if cpu_millicores % 1_000:
        return f"{cpu_millicores}m"
    return _canonical(cpu_millicores // 1_000, 1_000, ("", "k", "M", "G", "T", "P", "E"))


def number_quantity(number: int) -> str:
    """Return a whole number, 0 or more, as a Kubernetes quantity in the form that Kubernetes writes itself.

    Multiples of 1024 are in binary units, such as `16Gi`, all others in decimal ones, such as `1500k`.
    """
    if number and number % 1_024 == 0:
        return _canonical(number, 1_024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    return millicores_quantity(number * 1_000)


def _canonical(number: int, base: int, suffixes: Sequence[str]) -> str:
    place = 0
    while number and number % base == 0 and place + 1 < len(suffixes):
        number, place = number // base, place + 1
    return f"{number}{suffixes[place]}"


def longest_cpu_list(last: int | None = None) -> int:
    """Return how many characters a list of CPUs (or NUMA nodes) up to `last` may have; None: not known.

    Source: Linux kernel/cgroup/cpuset.c, max_write_len of cpuset.cpus: 100 + 6 * NR_CPUS.
    """
    return _LIST_FIXED_LENGTH + _LIST_LENGTH_PER_CPU * ((MAX_CPU_ID if last is None else last) + 1)


def parse_cpu_list(text: str, last: int | None = None) -> frozenset[int]:
    """Return the CPU (or NUMA node) numbers of a list such as `0-3,8`, as the kernel reads it.

    Empty elements and spaces do not count, and spaces separate as commas do: ` ,0-3  8,` is `0-3,8`. In
    `0-15:2/4` the first two of each four count. `N` is the last number, `all` stands for `0-N`. A text
    without any number is the empty set.

    Source: Linux lib/bitmap.c, bitmap_parselist; Documentation/admin-guide/kernel-parameters.rst, CPU lists.
    Not taken from there: a second line, which the kernel ignores, is an error.

    `last`: the number that `N` stands for; None if that is not known.

    Raises:
        ValueError: the text is not such a list, is longer than `longest_cpu_list`, or names a number above
            8,191.
    """
    if len(text) > longest_cpu_list(last):
        raise ValueError(f"CPU list of more than {longest_cpu_list(last)} characters: {_shortened(text)}")
    members = 0
    stripped = text.strip(" \t\n\v\f\r")
    if "\n" in stripped:
        raise ValueError(f"CPU list of more than one line: {_shortened(text)}")
    for part in dict.fromkeys(_LIST_SEPARATORS.split(stripped)):
        if part:
            members |= _region(part, last)
    return frozenset(number for number, bit in enumerate(reversed(f"{members:b}")) if bit == "1")


@lru_cache(maxsize=32)  # most containers share the CPUs of a few pools
def plain_cpu_list(text: str, last: int | None = None) -> str:
    """Return a CPU list in a spelling that every reader takes; one that has it already is returned as it is.

    The kernel takes all that `parse_cpu_list` does. runc with the systemd driver on cgroup version 2 reads
    lists itself, and refuses spaces between numbers, `N`, `all` and groups; the kubelet refuses empty
    elements, too. Source: opencontainers/runc 1.1 libcontainer/cgroups/systemd/cpuset.go.

    Raises:
        ValueError: as `parse_cpu_list`.
    """
    numbers = parse_cpu_list(text, last)
    return text if _PLAIN_LIST.fullmatch(text) else format_cpu_list(numbers)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the shortest list text of CPU numbers: ascending, runs as ranges."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def is_cpu_list(text: str, last: int | None = None) -> bool:
    """Return whether the text is a CPU list that names at least one CPU; `last` as in `parse_cpu_list`."""
    try:
        return bool(parse_cpu_list(text, last))
    except ValueError:
        return False


def _region(part: str, last: int | None) -> int:
    """Return the numbers of one element of a list as bits: however long a text is, each costs little."""
    # Most elements; the others take ten times as long.
    if len(part) <= _LIST_DIGITS and part.isascii() and part.isdecimal() and int(part) <= MAX_CPU_ID:
        return 1 << int(part)
    match = _LIST_REGION.fullmatch(part)
    if match is None:
        raise ValueError(f"not a CPU list: {_shortened(part)}")
    low = 0 if match["all"] else _list_number(match["first"], last)
    high = _list_number("N" if match["all"] else match["last"] or match["first"], last)
    if low > high or high > MAX_CPU_ID:
        raise ValueError(f"CPU range {part} is reversed or above {MAX_CPU_ID}")
    count = high - low + 1
    if match["group"] is None:
        return ((1 << count) - 1) << low
    used, width = int(match["used"]), int(match["group"])
    if not (match["last"] or match["all"]) or width == 0 or used > width:
        raise ValueError(f"CPU range {part} has no such groups")
    bits = (1 << min(used, count)) - 1
    while width < count:
        bits |= bits << width
        width *= 2
    return (bits & ((1 << count) - 1)) << low


def _list_number(text: str, last: int | None) -> int:
    if text != "N":
        return int(text)
    if last is None:
        raise ValueError("the last number of this node's CPUs, N, is not known")
    return last


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
