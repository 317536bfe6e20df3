"""Reads the devices that Koordinator's scheduler has allocated to a pod: the annotation `device-allocated`.

Source: Koordinator apis/extension/device_share.go, DeviceAllocations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from policies.annotations import DEVICE_ALLOCATED, AnnotationError, Place, parse, remembered

GPU_CORE: Final = "koordinator.sh/gpu-core"
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
WHOLE_GPU_PERCENT: Final = 100

_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
"""Domain, bus, device and function, as sysfs writes them. Source: Linux include/linux/pci.h, pci_name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One allocated GPU or other accelerator; None where the allocation has no readable value."""

    minor: int
    uuid: str = ""
    """The vendor's name of it; empty: the allocation has none that can be read."""
    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_percent: int | None = None
    template: str = ""
    """Name of the share that the vendor's driver makes of it; empty: none is named."""

    @property
    def is_share(self) -> bool:
        """Whether it is a part of one only."""
        is_part = self.memory_percent is not None and self.memory_percent < WHOLE_GPU_PERCENT
        return is_part or bool(self.template)


class Gpus(NamedTuple):
    """The accelerators of a pod that could be read, in the annotation's order."""

    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()
    is_first_read: bool = True
    """Whether the first one of the annotation is the first one here."""


class RdmaFunctions(NamedTuple):
    """The readable PCI addresses of a pod's RDMA functions, each once, in the annotation's order."""

    addresses: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    is_allocated: bool = False
    """Whether there is any, readable or not."""


@remembered
def allocated_gpus(text: str) -> Gpus:
    """Return the accelerators of an annotation whose number is readable. Raises AnnotationError."""
    problems: list[str] = []
    items = parse(DEVICE_ALLOCATED, text).entries().get("gpu", Place("", None)).items()
    found = [_gpu(item, problems) for item in items]
    gpus = tuple(gpu for gpu in found if gpu is not None)
    return Gpus(gpus, tuple(problems), not found or found[0] is not None)


def _gpu(item: Place, problems: list[str]) -> Gpu | None:
    try:
        minor = item.member("minor").integer()
        if minor < 0:
            item.member("minor").fail("is below 0")
    except AnnotationError as error:
        problems.append(str(error))
        return None
    return Gpu(
        minor=minor,
        uuid=_uuid(item),
        core_percent=_amount(item, GPU_CORE, problems),
        memory_bytes=_amount(item, GPU_MEMORY, problems),
        memory_percent=_amount(item, GPU_MEMORY_RATIO, problems),
        template=_template(item, problems),
    )


def _amount(item: Place, resource: str, problems: list[str]) -> int | None:
    try:
        place = item.member("resources").entries().get(resource)
        return None if place is None else place.quantity()
    except AnnotationError as error:
        problems.append(str(error))
        return None


def _uuid(item: Place) -> str:
    try:
        return item.member("id").text()
    except AnnotationError:
        # Most vendors' are chosen by number: this is reported where it is needed.
        return ""


def _template(item: Place, problems: list[str]) -> str:
    try:
        return item.member("extension").member("gpuSharedResourceTemplate").text()
    except AnnotationError as error:
        problems.append(str(error))
        return ""


@remembered
def allocated_rdma(text: str) -> RdmaFunctions:
    """Return the RDMA functions of an annotation: of each device its VFs, else itself.

    Raises:
        AnnotationError: nothing of the annotation can be used.
    """
    items = parse(DEVICE_ALLOCATED, text).entries().get("rdma", Place("", None)).items()
    addresses: dict[str, None] = {}
    problems: list[str] = []
    for item in items:
        try:
            functions = item.member("extension").member("vfs").items()
            places = [each.member("busID") for each in functions] or [item.member("id")]
        except AnnotationError as error:
            problems.append(str(error))
            continue
        for place in places:
            try:
                addresses[pci_address(place)] = None
            except AnnotationError as error:
                problems.append(str(error))
    return RdmaFunctions(tuple(addresses), tuple(problems), bool(items))


def pci_address(place: Place) -> str:
    """Return the PCI address in a text, in lower case. Raises AnnotationError."""
    address = place.text().lower()
    if not _PCI_ADDRESS.fullmatch(address):
        place.fail("is not a PCI address such as 0000:1f:00.2")
    return address
