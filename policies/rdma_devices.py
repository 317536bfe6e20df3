"""RDMA devices: gives containers those of the functions that Koordinator's scheduler allocated to a pod.

The annotation names PCI addresses; which device belongs to one the node knows, so no pod names a path.
Koordinator gives these devices through NRI only; here they are part of the change, which any front end
carries that is asked before a container is created. Source: Koordinator
pkg/koordlet/runtimehooks/hooks/rdma/rdma.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from policies.annotations import DEVICE_ALLOCATED, AnnotationError
from policies.device_allocations import allocated_rdma
from runtimeproxy.hooks import ContainerChange, ContainerView, DeviceSpec, PodSelector, Policy
from runtimeproxy.node.devices import RDMA_CM, HostDevice, HostDevices
from runtimeproxy.node.snapshot import Input, Node

_REASON: Final = "RDMA devices allocated by the scheduler"
_MOST_NAMED: Final = 8
"""Functions that the reason names: a host has hundreds."""


def rdma_change(container: ContainerView, host: HostDevices) -> ContainerChange | None:
    """Return the devices of a container, the connection manager first; None if its pod has no RDMA."""
    text = container.pod.annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return None
    try:
        functions = allocated_rdma(text)
    except AnnotationError as error:
        return ContainerChange(problems=(str(error),))
    if not functions.is_allocated:
        return None
    missing = [*functions.problems]
    found: dict[str, DeviceSpec] = {}
    named: list[str] = []
    if host.rdma_cm is not None:
        found[RDMA_CM] = _spec(host.rdma_cm)
    else:
        missing.append(f"this node has no {RDMA_CM}: the kernel's module rdma_ucm is not loaded")
    for address in functions.addresses:
        device = host.rdma.get(address)
        if device is None:
            missing.append(
                f"PCI device {address} has no RDMA device on this node (no infiniband_verbs in sysfs)"
            )
        elif device.path not in found:
            found[device.path] = _spec(device)
            named.append(f"{address} is {device.path}")
    reason = f"{_REASON}: {', '.join(named[:_MOST_NAMED])}" if named else _REASON
    return ContainerChange(devices=tuple(found.values()), missing=tuple(missing), reason=reason)


def _spec(device: HostDevice) -> DeviceSpec:
    return DeviceSpec(host_path=device.path, container_path=device.path, numbers=(device.major, device.minor))


class RdmaDevices(Policy):
    """Gives the devices in `/dev/infiniband` that belong to the RDMA functions of `device-allocated`."""

    name: ClassVar[str] = "rdma-devices"
    is_default: ClassVar[bool] = False
    selector: ClassVar[PodSelector] = PodSelector(annotations=(DEVICE_ALLOCATED,))
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.DEVICES})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {"container": frozenset({"devices"})}
    priority: ClassVar[int] = 62

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the devices; what of them this node does not have is missing."""
        return None if node.devices is None else rdma_change(container, node.devices)
