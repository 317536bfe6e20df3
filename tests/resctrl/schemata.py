"""Resources as the kernel divides them: what `schemata` takes, and how it is shown. Without a file system.

Source: Linux, fs/resctrl/ctrlmondata.c (parse_line, cbm_validate, bw_validate, show_doms);
fs/resctrl/rdtgroup.c (__init_one_rdt_domain, cbm_ensure_valid, rdt_bit_usage_show);
arch/x86/kernel/cpu/resctrl/core.c (defaults of Intel and AMD).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

NAME_WIDTH: Final = 6
"""Of the names in `schemata`: that of `L3CODE`, also where code and data are not apart."""
AMD_MAXIMUM: Final = 2048
"""Of `MB`, in 1/8 GB/s."""


class RefusedError(OSError):
    """What the kernel refuses, with what it says in `info/last_cmd_status`."""

    def __init__(self, status: str = "", code: int = errno.EINVAL) -> None:
        super().__init__(code, status)
        self.status = status


def refuse(status: str = "", code: int = errno.EINVAL) -> NoReturn:
    """Raises RefusedError."""
    raise RefusedError(status, code)


@dataclass(frozen=True)
class Variant:
    """A processor and a kernel."""

    vendor: str = "intel"
    """`intel` or `amd`."""
    caches: tuple[int, ...] = (0, 1)
    """Ids of the caches, ascending."""
    cbm_bits: int = 20
    min_cbm_bits: int = 1
    """Of Intel."""
    shareable_bits: int = 0
    """That hardware uses as well, as a mask."""
    cache_bytes: int = 40 << 20
    """Of one cache."""
    cdp: bool = False
    """`L3CODE` and `L3DATA` in place of `L3`."""
    has_l3: bool = True
    has_mb: bool = True
    l3_closids: int = 16
    """Halved if code and data are apart."""
    mb_closids: int = 8
    rmids: int = 32
    """0: no monitoring."""
    mon_features: tuple[str, ...] = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    padded: bool = False
    """Values are padded to one width. Source: kernels before 6.15, max_data_width."""
    single_id: bool = False
    """`tasks` takes one id per write. Source: kernels before 6.7."""

    @property
    def is_amd(self) -> bool:
        return self.vendor == "amd"


@dataclass
class Resource:
    """One line of `schemata`."""

    name: str
    variant: Variant
    closids: int
    is_mask: bool

    @property
    def largest(self) -> int:
        """All bits, or the whole bandwidth."""
        if self.is_mask:
            return (1 << self.variant.cbm_bits) - 1
        return AMD_MAXIMUM if self.variant.is_amd else 100

    @property
    def min_cbm_bits(self) -> int:
        return 0 if self.variant.is_amd else self.variant.min_cbm_bits

    @property
    def min_bandwidth(self) -> int:
        return 0 if self.variant.is_amd else 10

    @property
    def bandwidth_gran(self) -> int:
        return 1 if self.variant.is_amd else 10

    def checked(self, text: str) -> int:
        """A value as the kernel takes it.

        Raises:
            RefusedError: It does not.
        """
        return self._mask(text) if self.is_mask else self._bandwidth(text)

    def _mask(self, text: str) -> int:
        if not re.fullmatch(r"\+?(0[xX])?[0-9a-fA-F]+", text):
            refuse(f"Non-hex character in the mask {text}")
        value = int(text, 16)
        if (self.min_cbm_bits > 0 and value == 0) or value > self.largest:
            refuse("Mask out of range")
        if not self.variant.is_amd and value != first_run(value):
            refuse(f"The mask {value:x} has non-consecutive 1-bits")
        if first_run(value).bit_count() < self.min_cbm_bits:
            refuse(f"Need at least {self.min_cbm_bits} bits in the mask")
        return value

    def _bandwidth(self, text: str) -> int:
        if not re.fullmatch(r"\+?[0-9]+", text) or int(text) >= 1 << 32:
            refuse(f"Invalid MB value {text}")
        value = int(text)
        if not self.min_bandwidth <= value <= self.largest:
            refuse(f"MB value {value} out of range [{self.min_bandwidth},{self.largest}]")
        return -(-value // self.bandwidth_gran) * self.bandwidth_gran

    def shown(self, value: int) -> str:
        """A value in `schemata`."""
        width = data_width(self.variant) if self.variant.padded else 0
        return f"{value:0{width}x}" if self.is_mask else f"{value:{width}d}"


def first_run(mask: int) -> int:
    """The lowest ones that stand side by side."""
    lowest = mask & -mask
    return mask & ~(mask + lowest) if mask else 0


def data_width(variant: Variant) -> int:
    """Of padded values: the widest of all resources."""
    widths = [(variant.cbm_bits + 3) // 4] if variant.has_l3 else []
    return max([*widths, *([4 if variant.is_amd else 3] if variant.has_mb else [])], default=0)


def resources(variant: Variant) -> list[Resource]:
    """What can be divided, in the order of `schemata`."""
    found = []
    if variant.has_l3 and variant.cdp:
        found = [
            Resource(name, variant, variant.l3_closids // 2, is_mask=True) for name in ("L3CODE", "L3DATA")
        ]
    elif variant.has_l3:
        found = [Resource("L3", variant, variant.l3_closids, is_mask=True)]
    if variant.has_mb:
        found.append(Resource("MB", variant, variant.mb_closids, is_mask=False))
    return found


Values = dict[str, dict[int, int]]
"""By resource and cache id."""


@dataclass
class Share:
    """What one control group has."""

    values: Values
    is_exclusive: bool = False


@dataclass
class Division:
    """The shares of all control groups by CLOSID, 0 being the default group's."""

    variant: Variant
    shares: dict[int, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resources = resources(self.variant)
        whole = {each.name: dict.fromkeys(self.variant.caches, each.largest) for each in self.resources}
        self.shares[0] = Share(whole)

    @property
    def closids(self) -> int:
        return min((each.closids for each in self.resources), default=0)

    def allocate(self) -> int:
        """A new CLOSID, with all that is not exclusively others'.

        Raises:
            RefusedError: There is none, or no bit is left.
        """
        closid = next((each for each in range(self.closids) if each not in self.shares), None)
        if closid is None:
            refuse("Out of CLOSIDs", errno.ENOSPC)
        values: Values = {}
        for resource in self.resources:
            values[resource.name] = {}
            for cache in self.variant.caches:
                value = resource.largest if not resource.is_mask else first_run(self._unused(resource, cache))
                if resource.is_mask and value.bit_count() < resource.min_cbm_bits:
                    refuse(f"No space on {resource.name}:{cache}", errno.ENOSPC)
                values[resource.name][cache] = value
        self.shares[closid] = Share(values)
        return closid

    def _unused(self, resource: Resource, cache: int) -> int:
        exclusive = 0
        for share in self.shares.values():
            if share.is_exclusive:
                for each in self.resources:
                    exclusive |= share.values[each.name][cache] if each.is_mask else 0
        return resource.largest & ~exclusive

    def write(self, closid: int, text: str) -> None:
        """Does what is written into `schemata`: all lines, or none.

        Raises:
            RefusedError: A line is not valid.
        """
        if not text.endswith("\n"):
            refuse()
        staged: Values = {}
        for line in text[:-1].split("\n"):
            name, colon, rest = line.partition(":")
            name = name.strip()
            if not colon:
                refuse("Missing ':'")
            if not rest:
                refuse(f"Missing '{name}' value")
            resource = next((each for each in self.resources if each.name == name), None)
            if resource is None:
                refuse(f"Unknown or unsupported resource name '{name}'")
            self._parse_line(closid, resource, rest, staged.setdefault(name, {}))
        for name, values in staged.items():
            self.shares[closid].values[name].update(values)

    def _parse_line(self, closid: int, resource: Resource, rest: str, staged: dict[int, int]) -> None:
        while rest:
            one, _, rest = rest.partition(";")
            number, equals, value = one.partition("=")
            if not equals or not re.fullmatch(r"\+?[0-9]+", number):
                refuse("Missing '=' or non-numeric domain")
            cache = int(number)
            if cache not in self.variant.caches:
                refuse()
            if cache in staged:
                refuse(f"Duplicate domain {cache}")
            checked = resource.checked(value.strip())
            if resource.is_mask:
                self._check_overlap(closid, cache, checked)
            staged[cache] = checked

    def _check_overlap(self, closid: int, cache: int, mask: int) -> None:
        for other, share in self.shares.items():
            if other != closid and mask & self._all_masks(share, cache):
                if share.is_exclusive:
                    refuse("Overlaps with exclusive group")
                if self.shares[closid].is_exclusive:
                    refuse("Overlaps with other group")
        if self.shares[closid].is_exclusive and mask & self.variant.shareable_bits:
            refuse("Overlaps with other group")

    def _all_masks(self, share: Share, cache: int) -> int:
        return or_all(share.values[each.name][cache] for each in self.resources if each.is_mask)

    def set_mode(self, closid: int, text: str) -> None:
        """Does what is written into `mode`. Pseudo-locking is not built.

        Raises:
            RefusedError: It overlaps with others, or there is no such mode.
        """
        if not text.endswith("\n"):
            refuse()
        share = self.shares[closid]
        if text == "shareable\n":
            share.is_exclusive = False
        elif text == "exclusive\n":
            if not any(each.is_mask for each in self.resources):
                refuse("Cannot be exclusive without CAT/CDP")
            for cache in self.variant.caches:
                others = or_all(
                    self._all_masks(each, cache) for each in self.shares.values() if each is not share
                )
                if self._all_masks(share, cache) & (others | self.variant.shareable_bits):
                    refuse("Schemata overlaps")
            share.is_exclusive = True
        else:
            refuse("Unknown or unsupported mode")

    def mode(self, closid: int) -> str:
        """The text of `mode`."""
        return "exclusive\n" if self.shares[closid].is_exclusive else "shareable\n"

    def schemata(self, closid: int) -> str:
        """The text of `schemata`."""
        values = self.shares[closid].values
        return table(
            {each.name: {c: each.shown(v) for c, v in values[each.name].items()} for each in self.resources}
        )

    def size(self, closid: int) -> str:
        """The text of `size`."""
        one_bit = self.variant.cache_bytes // self.variant.cbm_bits
        values = self.shares[closid].values
        lines = {}
        for each in self.resources:
            shown = {
                c: str(one_bit * v.bit_count() if each.is_mask else v) for c, v in values[each.name].items()
            }
            lines[each.name] = shown
        return table(lines)

    def cache_bytes(self, closid: int, cache: int) -> int:
        """How much of a cache a group may use."""
        share = self._all_masks(self.shares[closid], cache)
        return self.variant.cache_bytes // self.variant.cbm_bits * share.bit_count()

    def bit_usage(self, resource: Resource) -> str:
        """The text of `info/RESOURCE/bit_usage`."""
        shown = []
        for cache in self.variant.caches:
            kinds = {True: 0, False: 0}
            for share in self.shares.values():
                kinds[share.is_exclusive] |= share.values[resource.name][cache]
            bits = [self._kind(1 << bit, kinds) for bit in range(self.variant.cbm_bits - 1, -1, -1)]
            shown.append(f"{cache}={''.join(bits)}")
        return ";".join(shown) + "\n"

    def _kind(self, bit: int, kinds: Mapping[bool, int]) -> str:
        is_hardware, is_software = bool(self.variant.shareable_bits & bit), bool(kinds[False] & bit)
        if is_hardware:
            return "X" if is_software else "H"
        return "S" if is_software else "E" if kinds[True] & bit else "0"


def or_all(masks: Iterable[int]) -> int:
    """All bits of them."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def table(lines: Mapping[str, Mapping[int, str]]) -> str:
    """Lines of `schemata` or `size`."""
    return "".join(
        f"{name:>{NAME_WIDTH}}:" + ";".join(f"{cache}={value}" for cache, value in values.items()) + "\n"
        for name, values in lines.items()
    )


def cpu_list(text: str, online: Sequence[int]) -> set[int]:
    """The CPUs of `cpus_list`. Source: lib/bitmap-str.c, bitmap_parselist.

    Raises:
        RefusedError: It is none, or has CPUs that are not online.
    """
    found: set[int] = set()
    for each in filter(None, text.strip().split(",")):
        if not (match := re.fullmatch(r"(\d+)(?:-(\d+))?", each)):
            refuse("Bad CPU list/mask")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return _online(found, online)


def cpu_mask(text: str, online: Sequence[int]) -> set[int]:
    """The CPUs of `cpus`: hexadecimal words of 32 bits.

    Raises:
        RefusedError: It is none, or has CPUs that are not online.
    """
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8})*", text.strip()):
        refuse("Bad CPU list/mask")
    mask = int(text.strip().replace(",", ""), 16)
    return _online({bit for bit in range(mask.bit_length()) if mask >> bit & 1}, online)


def _online(found: set[int], online: Sequence[int]) -> set[int]:
    if found - set(online):
        refuse("Can only assign online CPUs")
    return found


def shown_mask(cpus: Iterable[int], online: Sequence[int]) -> str:
    """The text of `cpus`."""
    digits = (max(online) + 4) // 4
    text = f"{or_all(1 << each for each in cpus):0{digits}x}"
    words = [text[max(0, end - 8) : end] for end in range(len(text), 0, -8)]
    return ",".join(reversed(words)) + "\n"


def shown_list(cpus: Iterable[int]) -> str:
    """The text of `cpus_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) + "\n"
