"""Devices of this host that policies give to containers, from sysfs and the names in /dev."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_DEVFS: Final = Path("/dev")
RDMA_CM: Final = "/dev/infiniband/rdma_cm"
"""Of the kernel's module `rdma_ucm`. Source: Linux drivers/infiniband/core/ucma.c, ucma_misc."""
_RDMA_FOLDER: Final = "/dev/infiniband"
"""Source: Linux drivers/infiniband/core/uverbs_main.c, uverbs_devnode."""
_UVERBS: Final = "class/infiniband_verbs"
_RDMA_CM: Final = "class/misc/rdma_cm"
_NVIDIA_DRIVER: Final = "bus/pci/drivers/nvidia"
"""Source: Linux Documentation/ABI/stable/sysfs-class-infiniband; Documentation/ABI/testing/sysfs-bus-pci."""
_DRM: Final = "class/drm"
_DRM_FOLDER: Final = "/dev/dri"
_DRM_NODE: Final = re.compile(r"(?:card|renderD)[0-9]+", re.ASCII)
"""Others in the folder are connectors and the file `version`. Source: Linux drivers/gpu/drm/drm_sysfs.c."""
_ACCELERATOR: Final = re.compile(r"(?:nvidia|davinci|devmm_svm|hisi_hdc|cambricon)[\w-]*|mx[cng]d", re.ASCII)
"""The names of accelerators' nodes that are looked for: `policies/accelerators.py` has them by vendor."""
_NUMBERS: Final = re.compile(r"([0-9]{1,7}):([0-9]{1,7})\s*", re.ASCII)
_MAX_DEVICES: Final = 4_096
"""Nodes of a kind that are read: a host has hundreds of virtual functions at most."""


class HostDevice(NamedTuple):
    """A character device."""

    path: str
    """On the host, below /dev; the node is not looked at."""
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDevices:
    """The devices of a host that containers may get."""

    rdma: Mapping[str, HostDevice] = field(default_factory=dict)
    """The device for user space's verbs (uverbs), by the PCI address of the function, in lower case; of
    several the first by name, as in Koordinator."""
    rdma_cm: HostDevice | None = None
    """The connection manager; None: its module is not loaded."""
    drm: Mapping[str, tuple[HostDevice, ...]] = field(default_factory=dict)
    """The nodes of a GPU in /dev/dri, by name, by the PCI address of its function, in lower case."""
    accelerators: frozenset[str] = frozenset()
    """Paths of the nodes of GPUs and NPUs; empty also where the daemon does not see the host's /dev."""
    has_nvidia_driver: bool = False


def read_devices(sysfs: Path, devfs: Path) -> HostDevices | None:
    """The present devices; what cannot be read is not there. None without sysfs."""
    if not os.path.isdir(sysfs):  # noqa: PTH112 - no permission is no folder
        return None
    return HostDevices(
        rdma=_uverbs(sysfs / _UVERBS),
        rdma_cm=_device(sysfs / _RDMA_CM, RDMA_CM),
        drm=_drm(sysfs / _DRM),
        accelerators=_accelerators(devfs),
        has_nvidia_driver=os.path.isdir(sysfs / _NVIDIA_DRIVER),  # noqa: PTH112 - no permission is no driver
    )


def _uverbs(folder: Path) -> Mapping[str, HostDevice]:
    """Source: Koordinator pkg/koordlet/runtimehooks/hooks/rdma/rdma.go, getUVerbsViaPciAdd."""
    found: dict[str, HostDevice] = {}
    for name in _names(folder):
        address = _address(folder / name)
        device = _device(folder / name, f"{_RDMA_FOLDER}/{name}")
        if address and device is not None:
            found.setdefault(address, device)
    return found


def _drm(folder: Path) -> Mapping[str, tuple[HostDevice, ...]]:
    found: dict[str, tuple[HostDevice, ...]] = {}
    for name in filter(_DRM_NODE.fullmatch, _names(folder)):
        address = _address(folder / name)
        device = _device(folder / name, f"{_DRM_FOLDER}/{name}")
        if address and device is not None:
            found[address] = (*found.get(address, ()), device)
    return found


def _address(folder: Path) -> str:
    """The PCI address of a class device's function; empty if it has none."""
    try:
        return os.path.basename(os.readlink(folder / "device")).lower()  # noqa: PTH119, PTH115
    except OSError:
        return ""


def _accelerators(devfs: Path) -> frozenset[str]:
    return frozenset(f"/dev/{name}" for name in _names(devfs) if _ACCELERATOR.fullmatch(name))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:_MAX_DEVICES]  # noqa: PTH208 - names only
    except OSError:
        return []


def _device(folder: Path, path: str) -> HostDevice | None:
    """The device of a folder in sysfs, with the numbers of its file `dev`."""
    try:
        match = _NUMBERS.fullmatch((folder / "dev").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return HostDevice(path, int(match[1]), int(match[2])) if match else None
