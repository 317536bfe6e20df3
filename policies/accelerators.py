"""Accelerators of all vendors: one table, and a policy for whole ones of vendors beside NVIDIA.

Koordinator's scheduler allocates them as GPUs; its DevicePluginAdaption adds an annotation for the vendor's
device plugin, which gives the pod its devices. A part of one is made by that plugin only, so pods with a part
are left to it. Whole ones follow from the allocation: this policy gives them in spite of what a pod's author
or image asks for, and as devices of the container's specification, which a `systemctl daemon-reload` does not
take away. Source: Koordinator pkg/scheduler/plugins/deviceshare/device_plugin_adapter.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from policies.annotations import DEVICE_ALLOCATED, AnnotationError, parse, remembered
from policies.device_allocations import Gpu, allocated_gpus, pci_address
from runtimeproxy.documents.reading import printable
from runtimeproxy.hooks import ContainerChange, ContainerView, DeviceSpec, PodSelector, PodView, Policy
from runtimeproxy.node.devices import HostDevices
from runtimeproxy.node.snapshot import Input, Node

GPU_VENDOR_LABEL: Final = "node.koordinator.sh/gpu-vendor"
"""Label of the Node. Source: Koordinator apis/extension/device_share.go, LabelGPUVendor."""
_PERMISSIONS: Final = "rw"
_REASON: Final = "accelerators allocated by the scheduler"
_UNSEEN: Final = (
    "the daemon sees none of the host's {}, so they are left to the vendor's runtime, which loses them at a"
    " systemctl daemon-reload: install the drop-in koord-runtime-proxy.service.d/60-devices.conf"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """What containers need of one vendor's accelerators."""

    vendor: str
    """Value of the Node's label."""
    annotations: tuple[str, ...] = ()
    """Of pods: each says that the accelerator is of this vendor."""
    share_annotation: str = ""
    """Of pods with a part of an accelerator; empty: the allocation alone tells."""
    variable: str = ""
    """Environment variable with the numbers that the vendor's runtime makes visible; empty: it has none."""
    device: str = ""
    """Node of one accelerator, with `{}` for its number; empty: not known."""
    inventory: str = ""
    """Annotation of the Node in which the vendor's device plugin lists UUID and PCI address of each, whose
    nodes are those of the kernel in /dev/dri; empty: they have names of the vendor, with the number."""
    beside: tuple[str, ...] = ()
    """Further nodes of one, where the host has them."""
    shared: tuple[str, ...] = ()
    """Nodes that all of them need, where the host has them."""


NVIDIA: Final = Accelerator(
    vendor="nvidia",
    variable="NVIDIA_VISIBLE_DEVICES",
    device="/dev/nvidia{}",
    shared=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"),
)
"""Source: NVIDIA k8s-device-plugin, PASS_DEVICE_SPECS."""
HUAWEI: Final = Accelerator(
    vendor="huawei",
    annotations=("huawei.com/npu-core",),
    variable="ASCEND_VISIBLE_DEVICES",
    device="/dev/davinci{}",
    shared=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
)
"""Source: Ascend Docker Runtime, default content mounted."""
CAMBRICON: Final = Accelerator(
    vendor="cambricon",
    annotations=("CAMBRICON_DSMLU_PROFILE",),
    share_annotation="CAMBRICON_DSMLU_PROFILE",
    variable="CAMBRICON_VISIBLE_DEVICES",
    device="/dev/cambricon_dev{}",
    beside=("/dev/cambricon_ipcm{}",),
    shared=("/dev/cambricon_ctl", "/dev/cambricon_gdr"),
)
"""Source: cambricon-k8s-device-plugin device-plugin/pkg/mlu/const.go, server.go."""
METAX: Final = Accelerator(
    vendor="metax",
    annotations=("metax-tech.com/gpu-devices-allocated",),
    inventory="metax-tech.com/node-gpu-devices",
    shared=("/dev/mxcd", "/dev/mxnd", "/dev/mxgd"),
)
"""No runtime of MetaX reads a variable. Source: HAMi pkg/device/metax/protocol.go, MetaxSDeviceInfo;
GPUStack, device plugin of MetaX."""
OTHERS: Final = (HUAWEI, CAMBRICON, METAX)


def other_vendor(pod: PodView, node_labels: Mapping[str, str]) -> Accelerator | None:
    """Return the row of a pod's accelerators; None for NVIDIA's, and where nothing tells the vendor."""
    for each in OTHERS:
        if not pod.annotations.keys().isdisjoint(each.annotations):
            return each
    vendor = node_labels.get(GPU_VENDOR_LABEL, "")
    return next((each for each in OTHERS if each.vendor == vendor), None)


class DeviceNodes(NamedTuple):
    """The nodes of a pod's accelerators, and what the host lacks of them."""

    devices: tuple[DeviceSpec, ...] = ()
    missing: tuple[str, ...] = ()
    unseen: str = ""
    """Why there are none at all; empty if there are some."""


@remembered
def _inventory(text: str) -> Mapping[str, str]:
    """Return the PCI addresses of a node's accelerators by UUID, without those that cannot be read."""
    found: dict[str, str] = {}
    for item in parse(METAX.inventory, text).items():
        try:
            found[item.member("uuid").text()] = pci_address(item.member("bdf"))
        except AnnotationError:
            continue
    return found


def drm_nodes(
    row: Accelerator, gpus: Iterable[Gpu], node_annotations: Mapping[str, str], host: HostDevices
) -> DeviceNodes:
    """Return the nodes of GPUs by their UUIDs, those that all need last."""
    left = "so its devices are left to the vendor's device plugin"
    text = node_annotations.get(row.inventory)
    if text is None:
        return DeviceNodes(unseen=f"the Node has no annotation {row.inventory}, {left}")
    try:
        addresses = _inventory(text)
    except AnnotationError as error:
        return DeviceNodes(unseen=f"of the Node, {error}, {left}")
    specs: dict[str, DeviceSpec] = {}
    missing: list[str] = []
    for gpu in gpus:
        address = addresses.get(gpu.uuid)
        if address is None:
            missing.append(
                f"the Node's {row.inventory} has no PCI address of the GPU {printable(gpu.uuid[:64])!r}"
            )
        elif not (nodes := host.drm.get(address)):
            missing.append(f"PCI device {address} has no nodes of a GPU on this node (class/drm in sysfs)")
        else:
            specs |= {each.path: _spec(each.path, (each.major, each.minor)) for each in nodes}
    if not specs:
        return DeviceNodes(missing=tuple(missing))
    shared = [path for path in row.shared if path in host.accelerators]
    unseen = "" if shared else _UNSEEN.format(row.shared[0])
    return DeviceNodes((*specs.values(), *map(_spec, shared)), tuple(missing), unseen)


def _spec(path: str, numbers: tuple[int, int] | None = None) -> DeviceSpec:
    return DeviceSpec(host_path=path, container_path=path, permissions=_PERMISSIONS, numbers=numbers)


def device_nodes(row: Accelerator, numbers: Iterable[int], host: HostDevices) -> DeviceNodes:
    """Return the nodes of accelerators by their numbers, those that all need last."""
    prefix = row.device.partition("{}")[0]
    if not any(path.startswith(prefix) for path in host.accelerators):
        return DeviceNodes(unseen=_UNSEEN.format(row.device.format("*")))
    paths: dict[str, None] = {}
    missing: list[str] = []
    for number in numbers:
        path = row.device.format(number)
        if path in host.accelerators:
            paths[path] = None
        else:
            missing.append(f"this node has no {path}")
        paths |= dict.fromkeys(beside.format(number) for beside in row.beside)
    paths |= dict.fromkeys(row.shared)
    return DeviceNodes(tuple(_spec(path) for path in paths if path in host.accelerators), tuple(missing))


def accelerator_change(
    container: ContainerView,
    node_labels: Mapping[str, str],
    node_annotations: Mapping[str, str],
    host: HostDevices | None,
) -> ContainerChange | None:
    """Return the environment and devices of a container; None if its pod has no whole accelerator of these.

    `host`: None if its devices are not known.
    """
    pod = container.pod
    text = pod.annotations.get(DEVICE_ALLOCATED)
    row = other_vendor(pod, node_labels)
    if text is None or row is None:
        return None
    try:
        gpus, problems, _ = allocated_gpus(text)
    except AnnotationError as error:
        return ContainerChange(problems=(str(error),))
    is_share = row.share_annotation in pod.annotations or any(gpu.is_share for gpu in gpus)
    if problems or is_share or not gpus:
        # What cannot be read may say that it is a share.
        return ContainerChange(problems=problems) if problems else None
    numbers = [gpu.minor for gpu in gpus]
    if host is None:
        nodes = DeviceNodes()
    elif row.inventory:
        nodes = drm_nodes(row, gpus, node_annotations, host)
    else:
        nodes = device_nodes(row, numbers, host)
    return ContainerChange(
        env={row.variable: ",".join(map(str, numbers))} if row.variable else {},
        devices=nodes.devices,
        problems=(nodes.unseen,) if nodes.unseen else (),
        missing=nodes.missing,
        reason=_REASON,
    )


class Accelerators(Policy):
    """Gives whole accelerators: the variable of the vendor's runtime, and the nodes."""

    name: ClassVar[str] = "accelerators"
    is_default: ClassVar[bool] = False
    selector: ClassVar[PodSelector] = PodSelector(annotations=(DEVICE_ALLOCATED,))
    optional_inputs: ClassVar[frozenset[Input]] = frozenset({Input.DEVICES, Input.NODE_OBJECT})
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {"container": frozenset({"env", "devices"})}
    priority: ClassVar[int] = 61

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the environment and devices of a container."""
        return accelerator_change(container, node.labels, node.annotations, node.devices)
