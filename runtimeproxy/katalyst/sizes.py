"""How many CPUs pools and pods get. Pure arithmetic on sizes; ties go by name.

Without an advisor sizes follow from requests (`quantity`, `proportion`); with one, from the requirements that
it has computed (`assemble`).

Source: katalyst-core pkg/agent/qrm-plugins/cpu/dynamicpolicy, pkg/agent/qrm-plugins/util, and
pkg/agent/sysadvisor/plugin/qosaware/resource/cpu/assembler/provisionassembler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from runtimeproxy.katalyst.topology import Topology

_EPSILON: Final = 0.0001
"""Source: pkg/agent/qrm-plugins/cpu/util, CPUIsSufficient."""


class ImpossibleSizesError(ValueError):
    """No sizes satisfy what was asked for."""


def precise_ceil(cpus: float) -> int:
    """Round CPUs up; what is below a millicore is dropped first. Source: pkg/util/general, PreciseCeil."""
    return -(-int(cpus * 1_000) // 1_000)


def quantity(millicpu: int, ratio: float = 1.0) -> int:
    """Return the CPUs for the requests of a pool. Source: state.GetPoolQuantity, `snb_ratio` is 2.0.

    As `precise_ceil` of the CPUs, but 1001 millicores are 2 CPUs: 1.001 x 1000 is below 1001 as a number.
    """
    return -(-int(millicpu * ratio) // 1_000)


def is_sufficient(requested: float, available: float) -> bool:
    return requested < available + _EPSILON


class NumaCount(NamedTuple):
    """Over how many NUMA nodes a request goes."""

    numa_nodes: int
    """1 at least."""
    cpus_each: int
    """Of each of them, rounded up."""


def numa_count(topology: Topology, millicpu: int) -> NumaCount:
    """Return how many NUMA nodes a request needs at least, all of them the same size.

    Source: pkg/agent/qrm-plugins/util, GetNUMANodesCountToFitCPUReq.

    Raises:
        ImpossibleSizesError: More than there are.
    """
    numa_nodes = max(1, len(topology.numa_nodes))
    each = max(1, -(-len(topology.all_cpus) // numa_nodes))
    count = max(1, -(-millicpu // (1_000 * each)))
    if count > numa_nodes:
        raise ImpossibleSizesError(
            f"{millicpu}m of CPU need {count} NUMA nodes of {each} CPUs, there are {numa_nodes}"
        )
    return NumaCount(count, -(-millicpu // (1_000 * count)))


def proportion(quantities: Mapping[str, int], total: int) -> dict[str, int]:
    """Share out CPUs by quantities, one at least to each pool.

    Returns `total` for every pool if there is less than one for each: they have all CPUs in common. Else the
    sum is `total`.

    Source: dynamicpolicy, getProportionalPoolsQuantity; quantities are above 0.
    """
    if len(quantities) > total:
        return dict.fromkeys(sorted(quantities), total)
    whole = sum(quantities.values())
    sizes = {name: max(1, -(-total * quantities[name] // whole)) for name in sorted(quantities)}
    surplus = sum(sizes.values()) - total
    while surplus > 0:
        for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
            if surplus > 0 and sizes[name] > 1:
                sizes[name] -= 1
                surplus -= 1
    return sizes


def overlap_ratio(pool: frozenset[int], reclaim: frozenset[int] | None) -> Fraction:
    """Return which part of a pool the pool `reclaim` has, too. `pool` is not empty.

    Raises:
        LookupError: There is no pool `reclaim`.
    """
    if reclaim is None:
        raise LookupError("there is no pool reclaim")
    return Fraction(len(pool & reclaim), len(pool))


def normalise(quantities: Mapping[str, int], total: int) -> dict[str, int]:
    """Share out CPUs by quantities, one at least to each pool, all about the same part of theirs.

    Returns `total` for every pool if there is less than one for each. Else the sum is `total`.

    Source: provisionassembler/helper.go, normalizePoolSizes; quantities are above 0.
    """
    if len(quantities) > total:
        return dict.fromkeys(sorted(quantities), total)
    whole = sum(quantities.values())
    sizes = {name: -(-total * quantities[name] // whole) for name in sorted(quantities)}
    for _ in range(sum(sizes.values()) - total):
        large = [name for name, size in sizes.items() if size > 1]
        sizes[max(large, key=lambda name: (Fraction(sizes[name], quantities[name]), sizes[name]))] -= 1
    return sizes


class Regulated(NamedTuple):
    """Sizes of all pools."""

    sizes: Mapping[str, int]
    is_throttled: bool
    """Whether pools get less than they need."""


def regulate(
    base: Mapping[str, int], fixed: Mapping[str, int], available: int, *, expands: bool
) -> Regulated:
    """Return the sizes of pools within what is available.

    `base`: what pools of `shared_cores` need. `fixed`: sizes of isolated and dedicated pods; they stay if all
    fits. `expands`: whether the pools of `base` get what is left.

    Source: provisionassembler/helper.go, regulatePoolSizes.
    """
    everything = {**base, **fixed}
    if sum(everything.values()) > available:
        return Regulated(normalise(everything, available), True)
    if not expands or not base:
        return Regulated(everything, False)
    return Regulated({**normalise(base, available - sum(fixed.values())), **fixed}, False)


def overlapped(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Return how many of `count` CPUs each pool shares with `reclaim`; pools that share none are left out.

    Source: provisionassembler/helper.go, allocateOverlap; the largest pools first.

    Raises:
        ImpossibleSizesError: The pools have fewer CPUs.
    """
    total, left = sum(sizes.values()), count
    if count > total:
        raise ImpossibleSizesError(f"{count} CPUs to share, the pools have {total}")
    found: dict[str, int] = {}
    for name in sorted(sizes, key=lambda each: (-sizes[each], each)):
        if left > 0 and sizes[name] > 0:
            found[name] = min(-(-count * sizes[name] // total), sizes[name], left)
            left -= found[name]
    return found


class IsolatedSize(NamedTuple):
    """Of a pod that an advisor has split off its pool, in CPUs."""

    upper: int
    lower: int
    """Used where the upper ones of all do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What is to be shared out: on one NUMA node, or on all that no pod is bound to.

    Attributes:
        usable: CPUs that are not reserved.
        reserved_for_reclaim: CPUs that `reclaimed_cores` have at least.
        share: What each pool of `shared_cores` requires, in CPUs by name, by its usage.
        requests: What the pods of each of these pools request, in CPUs; 0 for one that is not in it.
        isolated: By name of the pool.
        dedicated: CPUs that pods have alone, by name.
        dedicated_reclaim: How many of these `reclaimed_cores` may use.
    """

    usable: int
    reserved_for_reclaim: int
    share: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    isolated: Mapping[str, IsolatedSize] = field(default_factory=dict)
    dedicated: Mapping[str, int] = field(default_factory=dict)
    dedicated_reclaim: int = 0


class Assembled(NamedTuple):
    """The sizes of all pools, in CPUs."""

    sizes: Mapping[str, int]
    """Of pools of `shared_cores`, isolated and dedicated pods."""
    reclaim: int
    """CPUs that `reclaimed_cores` have alone."""
    overlap: Mapping[str, int]
    """How many CPUs of each pool they have, too."""
    is_throttled: bool


def assemble(requirements: Requirements, *, enable_reclaim: bool, overlap: bool) -> Assembled:
    """Return the sizes of pools by what an advisor has computed.

    Source: provisionassembler/assembler_common.go.
    """
    own = requirements
    least = own.reserved_for_reclaim
    share = {name: max(1, size) for name, size in own.share.items()}
    requests = {name: max(1, precise_ceil(own.requests.get(name, 0))) for name in share}
    available = own.usable if overlap else max(0, own.usable - least)
    isolated = {name: size.upper for name, size in own.isolated.items()}
    needed = max(sum(requests.values()), sum(share.values())) + sum(isolated.values())
    if needed > available - sum(own.dedicated.values()):
        isolated = {name: size.lower for name, size in own.isolated.items()}
    expands = overlap or not enable_reclaim
    regulated = regulate(
        requests if expands else share, {**isolated, **own.dedicated}, available, expands=expands
    )
    sizes = regulated.sizes
    extra = own.dedicated_reclaim if enable_reclaim else 0
    if not overlap:
        unused = max(0, available - sum(sizes.values())) if enable_reclaim else 0
        return Assembled(sizes, unused + extra + least, {}, regulated.is_throttled)
    unused = available - sum(isolated.values()) - sum(share.values())
    if enable_reclaim and unused >= least:
        total, common = unused, {name: max(sizes[name] - size, 1) for name, size in share.items()}
    else:
        of_share = {name: sizes[name] for name in share}
        total, common = least, overlapped(of_share, min(least, sum(of_share.values())))
    return Assembled(sizes, max(0, total - sum(common.values())) + extra, common, regulated.is_throttled)


def reserved_for_reclaim(cpus: int, numa_nodes: int) -> int:
    """Return what `reclaimed_cores` have at least on each NUMA node, of `cpus` for the whole node.

    Source: sysadvisor, GetReservedForReclaim per NUMA node; `minReclaimedResourceForAllocate` is 4 CPUs.
    """
    return max(1, max(cpus, numa_nodes) // numa_nodes)
