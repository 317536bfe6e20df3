"""Values by block device, as one text: `8:0 1048576,253:16 1024`, and as the lines of a kernel's file. Pure.

A device stands by its number, MAJ:MIN, in their order. Behind it is one number (of a limit or weight; 0
resets the device: no limit, the default weight), or settings such as `enable=1 ctrl=user rpct=95`. A value
says nothing of devices that it does not name: their lines in the file are another program's.

The kernel takes one device in one write, and refuses partitions. Its files have a line for a device only
while something is set, in any order; the cost model's keep the line of a disk that once had one.
Source: Linux block/blk-cgroup.c, blkg_conf_open_bdev; block/blk-throttle.c, tg_set_conf and tg_set_limit;
block/blk-iocost.c, ioc_weight_write, ioc_qos_write and ioc_cost_model_write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

Settings: TypeAlias = Mapping[str, str]
"""By device, what stands behind it."""

MOST_DEVICES: Final = 128
"""In one value."""
DEVICE: Final = re.compile(r"(0|[1-9][0-9]{0,3}):(0|[1-9][0-9]{0,6})")
"""Majors have 12 bits, minors 20. Source: Linux include/linux/kdev_t.h."""
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_SETTINGS: Final = re.compile(r"[a-z]{1,16}=[a-z0-9.]{1,24}(?: [a-z]{1,16}=[a-z0-9.]{1,24}){0,15}")
_AUTO: Final = "ctrl=auto"


def order(device: str) -> tuple[int, int]:
    major, _, minor = device.partition(":")
    return int(major), int(minor)


def text_of(settings: Settings) -> str:
    return ",".join(f"{device} {settings[device]}" for device in sorted(settings, key=order))


@lru_cache(maxsize=1_024)
def _parsed(text: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for item in text.split(",") if text else ():
        device, _, setting = item.partition(" ")
        is_known = DEVICE.fullmatch(device) and (_NUMBER.fullmatch(setting) or _SETTINGS.fullmatch(setting))
        if not is_known or device in found:
            raise ValueError("is not a list of block devices such as 8:0 1048576,253:16 1024")
        found[device] = setting
    return tuple(found.items())


def by_device(text: object) -> dict[str, str]:
    """The settings of a value.

    Raises:
        ValueError: It is no such value; says why.
    """
    if not isinstance(text, str):
        raise ValueError("is not a list of block devices such as 8:0 1048576,253:16 1024")  # noqa: TRY004
    return dict(_parsed(text))


def is_number(setting: str) -> bool:
    return _NUMBER.fullmatch(setting) is not None


def plain_lines(text: str) -> dict[str, str]:
    """The lines of a file by device, without those of no device (`default 100`)."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        device, _, rest = line.strip().partition(" ")
        if DEVICE.fullmatch(device):
            found[device] = " ".join(rest.split())
    return found


def joined_lines(text: str, present: str, devices: Iterable[str]) -> str:
    """The content of a file with the lines of some devices as another content has them."""
    theirs, moved = plain_lines(present), frozenset(devices)
    kept = [line for line in text.splitlines() if line.partition(" ")[0] not in moved]
    taken = [f"{each} {theirs[each]}" for each in sorted(moved & theirs.keys(), key=order)]
    return "".join(f"{line}\n" for line in (*kept, *taken))


def is_same_setting(wanted: str, present: str) -> bool:
    """Whether a device already has what is wanted: the same number, or all the settings that are wanted.

    The kernel itself chooses the other settings of `ctrl=auto`.
    """
    if is_number(wanted) or is_number(present):
        return wanted == present
    held = dict(_pair(each) for each in present.split())
    return all(held.get(name) == value for name, value in map(_pair, written_setting(wanted).split()))


def written_setting(setting: str) -> str:
    """What is written for a setting: a number beside `ctrl=auto` would mean `ctrl=user` to the kernel."""
    parts = setting.split()
    if _AUTO not in parts:
        return setting
    return " ".join(each for each in parts if each.partition("=")[0] in ("enable", "ctrl"))


def _pair(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    # The kernel shows percentages with two decimals.
    return name, value.rstrip("0").rstrip(".") if "." in value else value


def given_back(ours: Settings, original: Settings, present: Settings, reset: str) -> dict[str, str]:
    """What goes back to devices that are no longer ours.

    Neither to those that have it already, nor to those that another program has changed since.

    Args:
        ours: Their settings as they were written.
        original: Of before.
        present: In the file.
        reset: Of a device without a line.
    """
    found: dict[str, str] = {}
    for device, setting in ours.items():
        wanted, now = original.get(device, reset), present.get(device, reset)
        if not is_same_setting(wanted, now) and is_same_setting(setting, now):
            found[device] = wanted
    return found
