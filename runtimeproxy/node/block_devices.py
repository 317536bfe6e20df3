"""The block devices of this machine, and those that pods' volumes are on; from sysfs and the mounts.

A disk is a whole device with no other below it: the kernel throttles disks and refuses partitions.
Source: Linux Documentation/ABI/stable/sysfs-block and sysfs-devices; block/blk-cgroup.c, blkg_conf_open_bdev;
proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from runtimeproxy.fields.devices import DEVICE, order

_BLOCK: Final = "class/block"
_MOUNTS: Final = "self/mountinfo"
_VOLUME: Final = re.compile(r"/pods/([^/ ]+)/volumes/kubernetes\.io~csi/([^/ ]+)/mount")
"""Source: kubelet pkg/volume/csi, getTargetPath; Koordinator pkg/koordlet/qosmanager/plugins/blkio."""
_VOLUMES: Final = "/volumes/kubernetes.io~csi/"
_LVM: Final = "LVM-"
"""Begins the UUIDs of LVM's mappings, whose names are GROUP-VOLUME with each hyphen of a name doubled.
Source: LVM2 lib/activate/dev_manager.c, dm_build_dm_name and dm_build_dm_uuid."""
_BETWEEN_NAMES: Final = re.compile(r"(?<!-)-(?!-)")
_MOST_DEEP: Final = 16
"""How many devices may stand on each other, such as a volume on encryption on RAID."""


class BlockDevices(NamedTuple):
    """Numbers, MAJ:MIN, of block devices."""

    disks: Mapping[str, str] = MappingProxyType({})
    """By the kernel's name, such as `sda` or `dm-0`, and `mapper/NAME` as below /dev: the device itself; of a
    partition the disk that it is on."""
    volume_groups: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """The disks below each volume group of LVM that has an active volume."""
    pod_volumes: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({})
    """The disks below each mounted CSI volume, by pod uid and name of the volume's folder: that of the
    PersistentVolume, or of an ephemeral volume in the pod; empty for one that is on no disk."""


class _Device(NamedTuple):
    number: str
    disk: str
    """Name of the disk that it is a partition of; else its own."""
    below: tuple[str, ...]
    """The names of the devices that it is made of."""
    mapping: str
    """Its name as one of the device mapper; empty if it is none."""
    group: str
    """The volume group of LVM that it belongs to; empty if it is in none."""


def read_block_devices(sysfs: Path, procfs: Path) -> BlockDevices | None:
    """The present block devices; None if sysfs does not say."""
    try:
        names = sorted(os.listdir(sysfs / _BLOCK))  # noqa: PTH208 - names are enough
    except OSError:
        return None
    found = {name: device for name in names if (device := _device(sysfs / _BLOCK / name)) is not None}
    disks = {
        name.replace("!", "/"): found[each.disk].number for name, each in found.items() if each.disk in found
    }
    disks |= {f"mapper/{each.mapping}": each.number for each in found.values() if each.mapping}
    groups: dict[str, set[str]] = {}
    for name, each in found.items():
        if each.group:
            groups.setdefault(each.group, set()).update(_below(name, found))
    return BlockDevices(
        disks,
        {name: tuple(sorted(numbers, key=order)) for name, numbers in groups.items()},
        dict(_pod_volumes(procfs / _MOUNTS, found)),
    )


def _device(folder: Path) -> _Device | None:
    number = _text(folder / "dev")
    if not DEVICE.fullmatch(number):
        return None
    below: tuple[str, ...] = ()
    with suppress(OSError):
        below = tuple(sorted(os.listdir(folder / "slaves")))  # noqa: PTH208 - names are enough
    name = disk = folder.name
    if (folder / "partition").exists():
        disk = os.path.basename(os.path.dirname(os.path.realpath(folder)))  # noqa: PTH119, PTH120 - texts
    mapping = _text(folder / "dm/name") if name.startswith("dm-") else ""
    is_lvm = mapping and _text(folder / "dm/uuid").startswith(_LVM)
    group = _BETWEEN_NAMES.split(mapping, maxsplit=1)[0].replace("--", "-") if is_lvm else ""
    return _Device(number, disk, below, mapping, group)


def _below(name: str, devices: Mapping[str, _Device], depth: int = 0) -> Iterator[str]:
    """The numbers of the disks that a device is made of."""
    device = devices.get(name)
    if device is None or depth > _MOST_DEEP:
        return
    if device.disk != name:
        yield from _below(device.disk, devices, depth + 1)
    elif device.below:
        for each in device.below:
            yield from _below(each, devices, depth + 1)
    else:
        yield device.number


def _pod_volumes(
    mounts: Path, devices: Mapping[str, _Device]
) -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
    names = {device.number: name for name, device in devices.items()}
    names |= {f"/dev/{name}": name for name in devices}
    names |= {f"/dev/mapper/{device.mapping}": name for name, device in devices.items() if device.mapping}
    for line in _lines(mounts):
        if _VOLUMES not in line:
            continue
        before, _, after = line.partition(" - ")
        parts, source = before.split(" "), after.split(" ")[1:2]
        match = _VOLUME.search(parts[4]) if len(parts) > 4 else None
        if match is None or match.end() != len(parts[4]):
            continue
        # Btrfs has a number of its own for each file system, which is no device's.
        name = names.get(parts[2]) or names.get("".join(source)) or ""
        yield (match[1], match[2]), tuple(sorted(set(_below(name, devices)), key=order))


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
