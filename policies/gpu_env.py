"""GPU environment: makes the GPUs that Koordinator's scheduler allocated to a pod visible in its containers.

For pods with the label of HAMi-core, HAMi's interposer library is mounted and preloaded, and its environment
gets the first GPU's share of memory and cores. Koordinator can add these mounts only through NRI; here they
are part of the change, which any front end carries that is asked before a container is created. Host paths
come from the configuration alone. The GPUs' nodes are given, too: those that NVIDIA's runtime adds behind
runc's back are lost at a `systemctl daemon-reload`. Source: Koordinator
pkg/koordlet/runtimehooks/hooks/gpu/gpu.go.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from policies.accelerators import NVIDIA, device_nodes, other_vendor
from policies.annotations import DEVICE_ALLOCATED, AnnotationError
from policies.device_allocations import GPU_MEMORY, GPU_MEMORY_RATIO, Gpus, allocated_gpus
from runtimeproxy.hooks import ContainerChange, ContainerView, DeviceSpec, MountSpec, PodSelector, Policy
from runtimeproxy.node.snapshot import Input, Node

ISOLATION_PROVIDER_LABEL: Final = "koordinator.sh/gpu-isolation-provider"
"""Pod label. Source: Koordinator apis/extension/device_share.go."""
HAMI_CORE: Final = "HAMi-core"
"""Value of the label: HAMi's interposer library limits memory and cores."""

_LOCK_PATH: Final = "/tmp/vgpulock"  # noqa: S108 - HAMi's own fixed path
_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_PRELOAD: Final = "LD_PRELOAD"
_FIRST_UNREAD: Final = "the first GPU of the annotation, whose share they are, cannot be read"
_REASON: Final = "GPUs allocated by the scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnvOptions:
    """Settings of the policy."""

    hami_library_path: str = "/usr/local/vgpu/libvgpu.so"
    """Path of HAMi's interposer library, on the host and in containers."""
    hami_vgpu_monitor: bool = False
    """True gives each container a cache directory for HAMi's monitor; Koordinator's feature gate
    HamiCoreVGPUMonitor."""
    device_nodes: bool = False
    """True gives containers the nodes of their GPUs, which outlive a `systemctl daemon-reload`: to whoever
    can set the annotation."""

    def __post_init__(self) -> None:
        if not PurePosixPath(self.hami_library_path).is_absolute():
            raise ValueError("hami_library_path is not an absolute path")

    @property
    def library_directory(self) -> str:
        """The directory of the library; the monitor's cache directories are below it."""
        return str(PurePosixPath(self.hami_library_path).parent)


def cache_directory(container: ContainerView, options: GpuEnvOptions) -> str:
    """Return a container's host directory for HAMi's monitor. Raises AnnotationError."""
    name = _cache_name(container)
    if "/" in name or not container.pod.uid:
        raise AnnotationError("pod uid and container name do not make a directory's name")
    return f"{options.library_directory}/containers/{name}"


def gpu_change(
    container: ContainerView,
    options: GpuEnvOptions,
    node: Node | None = None,
    *,
    library_problem: str = "",
) -> ContainerChange | None:
    """Return the environment, mounts and devices of a container; None if its pod has no NVIDIA GPU.

    `node`: None for one of which nothing is known. `library_problem`: why HAMi's library cannot be given;
    empty if it can.
    """
    node = node or Node()
    text = container.pod.annotations.get(DEVICE_ALLOCATED)
    if text is None or other_vendor(container.pod, node.labels) is not None:
        return None
    try:
        allocated = allocated_gpus(text)
    except AnnotationError as error:
        return ContainerChange(problems=(str(error),))
    gpus, problems = allocated.gpus, list(allocated.problems)
    if not gpus:
        return ContainerChange(problems=allocated.problems) if problems else None
    # Even if the rest is unreadable: an image with the default `all` would see every GPU of the node.
    env = {NVIDIA.variable: ",".join(str(gpu.minor) for gpu in gpus)}
    mounts: tuple[MountSpec, ...] = ()
    missing: list[str] = []
    if container.pod.labels.get(ISOLATION_PROVIDER_LABEL) == HAMI_CORE:
        try:
            hami, mounts = _hami(container, allocated, options, problems, library_problem)
            env |= hami
        except AnnotationError as error:
            missing.append(f"no limits by HAMi-core: {error}")
    devices: tuple[DeviceSpec, ...] = ()
    if options.device_nodes and node.devices is not None:
        nodes = device_nodes(NVIDIA, (gpu.minor for gpu in gpus), node.devices)
        devices = nodes.devices
        missing += nodes.missing
        if nodes.unseen and node.devices.has_nvidia_driver:
            problems.append(nodes.unseen)
    return ContainerChange(
        env=env,
        mounts=mounts,
        devices=devices,
        problems=tuple(problems),
        missing=tuple(missing),
        reason=_REASON,
    )


def _hami(
    container: ContainerView,
    allocated: Gpus,
    options: GpuEnvOptions,
    problems: list[str],
    library_problem: str,
) -> tuple[Mapping[str, str], tuple[MountSpec, ...]]:
    """Return HAMi's environment and mounts; empty for a whole GPU. Raises AnnotationError."""
    if not allocated.is_first_read:
        raise AnnotationError(_FIRST_UNREAD)
    gpu = allocated.gpus[0]
    if gpu.memory_percent is None:
        raise AnnotationError(f"annotation {DEVICE_ALLOCATED} has no {GPU_MEMORY_RATIO}")
    if not gpu.is_share:
        return {}, ()
    if gpu.memory_bytes is None:
        raise AnnotationError(f"annotation {DEVICE_ALLOCATED} has no {GPU_MEMORY}")
    if library_problem:
        raise AnnotationError(library_problem)
    library, directory = options.hami_library_path, options.library_directory
    env = {"CUDA_DEVICE_MEMORY_LIMIT": str(gpu.memory_bytes)}
    if gpu.core_percent is not None:
        env["CUDA_DEVICE_SM_LIMIT"] = str(gpu.core_percent)
    env[_PRELOAD] = library
    mounts = (MountSpec(host_path=library, container_path=library), _writable(_LOCK_PATH, _LOCK_PATH))
    if not options.hami_vgpu_monitor:
        return env, mounts
    try:
        cache = _writable(cache_directory(container, options), directory)
    except AnnotationError as error:
        problems.append(str(error))
        return env, mounts
    shared = {_SHARED_CACHE: f"{directory}/{_cache_name(container)}.cache"}
    return {**env, **shared}, (*mounts, cache)


def prepare_cache_directory(path: str) -> None:
    """Make the monitor's directory, writable for every user, without the cache of an earlier container.

    Other files stay: removing all that such a container may have left there takes as long as it likes.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o777)
    (directory / f"{directory.name}.cache").unlink(missing_ok=True)


def _cache_name(container: ContainerView) -> str:
    return f"{container.pod.uid}_{container.name}"


def _writable(host_path: str, container_path: str) -> MountSpec:
    return MountSpec(host_path=host_path, container_path=container_path, readonly=False)


class GpuEnv(Policy):
    """Sets `NVIDIA_VISIBLE_DEVICES`, and HAMi-core's variables and mounts, from `device-allocated`."""

    name: ClassVar[str] = "gpu-env"
    selector: ClassVar[PodSelector] = PodSelector(annotations=(DEVICE_ALLOCATED,))
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "container": frozenset({"env", "mounts", "devices"})
    }
    optional_inputs: ClassVar[frozenset[Input]] = frozenset({Input.DEVICES, Input.NODE_OBJECT})
    priority: ClassVar[int] = 60
    options_type: ClassVar[type[GpuEnvOptions] | None] = GpuEnvOptions

    def __init__(self, options: GpuEnvOptions | None = None) -> None:
        self._options = options or GpuEnvOptions()

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return what the container gets; at creation also make the directory of HAMi's monitor."""
        options, library = self._options, self._options.hami_library_path
        change = gpu_change(container, options, node)
        if change is None:
            return None
        library_problem = ""
        # Elsewhere than on the pod's node there is nothing to look at.
        if node.devices is not None and _PRELOAD in change.env and not os.path.isfile(library):  # noqa: PTH113
            library_problem = f"no file {library} on this node, or out of the daemon's sight"
            change = gpu_change(container, options, node, library_problem=library_problem) or change
        # Once: a running container uses it.
        if _SHARED_CACHE not in change.env or container.id or self.dry_run:
            return change
        try:
            prepare_cache_directory(cache_directory(container, options))
        except OSError as error:
            # The GPUs and their limits do not depend on the monitor.
            problem = f"no directory for HAMi's monitor: {error}"
            change = gpu_change(container, replace(options, hami_vgpu_monitor=False), node) or change
            return replace(change, problems=(*change.problems, problem))
        return change
