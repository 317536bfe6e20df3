"""What groups of resctrl can have a part of on this node, from the folder where it is mounted.

Source: Linux Documentation/filesystems/resctrl.rst, section "Info directory".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.cgroups.resctrl import FOLDER, SCHEMATA, parse_schemata

_CACHES: Final[tuple[str, ...]] = ("L3", "L3CODE", "L3DATA")
"""`L3CODE` and `L3DATA` in place of `L3` where it is mounted with `cdp`."""
_PERCENT: Final = 100
_MOST_TEXT: Final = 65_536


class BandwidthUnit(StrEnum):
    """What the numbers of a bandwidth mean."""

    PERCENT = "percent"
    """Intel."""
    EIGHTHS_OF_GB = "eighths of GB/s"
    """AMD."""
    MB_PER_S = "MB/s"
    """Mounted with `mba_MBps`."""


class CacheAllocation(NamedTuple):
    """The last-level cache, or its part for code or data."""

    mask: int
    """All bits: one for each part that can be given to a group."""
    ids: tuple[int, ...]
    """Of the caches."""
    least_bits: int = 1
    is_sparse: bool = False
    """Whether masks may have gaps."""
    shared_mask: int = 0
    """Bits that devices use, too."""


class BandwidthAllocation(NamedTuple):
    """The memory bandwidth."""

    ids: tuple[int, ...]
    unit: BandwidthUnit
    least: int = 0
    step: int = 1


class Resctrl(NamedTuple):
    """What is mounted."""

    caches: Mapping[str, CacheAllocation]
    """By resource: `L3`, or `L3CODE` and `L3DATA`; empty: the processor cannot divide the cache."""
    bandwidth: BandwidthAllocation | None = None
    """None: the processor cannot limit it."""
    closids: int = 0
    """How many groups there can be, with the root group; 0: not known."""
    rmids: int = 0
    """How many groups and monitoring groups there can be; 0: no monitoring."""
    monitors: tuple[str, ...] = ()
    """The counters of monitoring groups."""


def read_resctrl(sysfs: Path) -> Resctrl | None:
    """Return what is mounted; None for nothing."""
    folder = sysfs / FOLDER
    schemata = parse_schemata(_text(folder / SCHEMATA))
    if not (folder / SCHEMATA).exists():
        return None
    info = folder / "info"
    caches = {
        name: CacheAllocation(
            mask=_number(info / name / "cbm_mask", 16),
            ids=tuple(sorted(schemata[name])),
            least_bits=max(1, _number(info / name / "min_cbm_bits")),
            is_sparse=_text(info / name / "sparse_masks") == "1",
            shared_mask=_number(info / name / "shareable_bits", 16),
        )
        for name in _CACHES
        if name in schemata
    }
    closids = [each for name in (*_CACHES, "MB") if (each := _number(info / name / "num_closids"))]
    return Resctrl(
        caches=caches,
        bandwidth=_bandwidth(info / "MB", schemata.get("MB", {})),
        closids=min(closids, default=0),
        rmids=_number(info / "L3_MON/num_rmids"),
        monitors=tuple(_text(info / "L3_MON/mon_features").split()),
    )


def _bandwidth(info: Path, present: Mapping[int, int]) -> BandwidthAllocation | None:
    if not present:
        return None
    least = _text(info / "min_bandwidth")
    unit = BandwidthUnit.PERCENT
    if least == "0":
        # That of Intel is a percentage above 0. Source: Linux arch/x86/kernel/cpu/resctrl/core.c,
        # __get_mem_config_intel, __rdt_get_mem_config_amd.
        unit = BandwidthUnit.EIGHTHS_OF_GB
    elif max(present.values()) > _PERCENT:
        # No file says it. The root group has the largest number of MB/s.
        unit = BandwidthUnit.MB_PER_S
    return BandwidthAllocation(
        ids=tuple(sorted(present)),
        unit=unit,
        least=_number(info / "min_bandwidth"),
        step=max(1, _number(info / "bandwidth_gran")),
    )


def _text(path: Path) -> str:
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_TEXT).strip()
    return ""


def _number(path: Path, base: int = 10) -> int:
    with suppress(ValueError):
        return int(_text(path), base)
    return 0
