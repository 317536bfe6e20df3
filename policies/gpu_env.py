"""GPU environment: makes the GPUs that Koordinator's scheduler allocated to a pod visible in its containers.

For pods with the label of HAMi-core, HAMi's interposer library is mounted and preloaded, and its environment
gets the first GPU's share of memory and cores. Koordinator can add these mounts only through NRI; here they
are part of the change, which any front end carries that is asked before a container is created. Host paths
come from the configuration alone. Source: Koordinator pkg/koordlet/runtimehooks/hooks/gpu/gpu.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from policies.annotations import DEVICE_ALLOCATED, AnnotationError, Place, parse, remembered
from runtimeproxy.hooks import ContainerChange, ContainerView, MountSpec, PodSelector, Policy
from runtimeproxy.node.snapshot import Node

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
"""The visible GPUs, for NVIDIA's container toolkit."""
ISOLATION_PROVIDER_LABEL: Final = "koordinator.sh/gpu-isolation-provider"
"""Pod label. Source: Koordinator apis/extension/device_share.go."""
HAMI_CORE: Final = "HAMi-core"
"""Value of the label: HAMi's interposer library limits memory and cores."""
GPU_CORE: Final = "koordinator.sh/gpu-core"
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"

_LOCK_PATH: Final = "/tmp/vgpulock"  # noqa: S108 - HAMi's own fixed path
_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_WHOLE_GPU_PERCENT: Final = 100
_REASON: Final = "GPUs allocated by the scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnvOptions:
    """Settings of the policy."""

    hami_library_path: str = "/usr/local/vgpu/libvgpu.so"
    """Path of HAMi's interposer library, on the host and in containers."""
    hami_vgpu_monitor: bool = False
    """True gives each container a cache directory for HAMi's monitor; Koordinator's feature gate
    HamiCoreVGPUMonitor."""

    def __post_init__(self) -> None:
        if not PurePosixPath(self.hami_library_path).is_absolute():
            raise ValueError("hami_library_path is not an absolute path")

    @property
    def library_directory(self) -> str:
        """The directory of the library; the monitor's cache directories are below it."""
        return str(PurePosixPath(self.hami_library_path).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One allocated GPU; None where the allocation has no value, or an unreadable one."""

    minor: int
    core_percent: int | None = None
    memory_bytes: int | None = None
    memory_percent: int | None = None


@remembered
def _allocated(text: str) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the GPUs of an annotation whose number is readable, in its order, and its problems."""
    problems: list[str] = []
    items = parse(DEVICE_ALLOCATED, text).entries().get("gpu", Place("", None)).items()
    found = [_gpu(item, problems) for item in items]
    return tuple(gpu for gpu in found if gpu is not None), tuple(problems)


def _gpu(item: Place, problems: list[str]) -> Gpu | None:
    try:
        minor = item.member("minor").integer()
    except AnnotationError as error:
        problems.append(str(error))
        return None
    return Gpu(
        minor=minor,
        core_percent=_amount(item, GPU_CORE, problems),
        memory_bytes=_amount(item, GPU_MEMORY, problems),
        memory_percent=_amount(item, GPU_MEMORY_RATIO, problems),
    )


def _amount(item: Place, resource: str, problems: list[str]) -> int | None:
    try:
        place = item.member("resources").entries().get(resource)
        return None if place is None else place.quantity()
    except AnnotationError as error:
        problems.append(str(error))
        return None


def cache_directory(container: ContainerView, options: GpuEnvOptions) -> str:
    """Return a container's host directory for HAMi's monitor. Raises AnnotationError."""
    name = _cache_name(container)
    if "/" in name or not container.pod.uid:
        raise AnnotationError("pod uid and container name do not make a directory's name")
    return f"{options.library_directory}/containers/{name}"


def gpu_change(container: ContainerView, options: GpuEnvOptions) -> ContainerChange | None:
    """Return the environment and mounts of a container; None if its pod has no GPU."""
    text = container.pod.annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return None
    try:
        gpus, unreadable = _allocated(text)
    except AnnotationError as error:
        return ContainerChange(problems=(str(error),))
    if not gpus:
        return ContainerChange(problems=unreadable) if unreadable else None
    # Even if the rest is unreadable: an image with the default `all` would see every GPU of the node.
    env = {VISIBLE_DEVICES: ",".join(str(gpu.minor) for gpu in gpus)}
    mounts: tuple[MountSpec, ...] = ()
    problems = list(unreadable)
    if container.pod.labels.get(ISOLATION_PROVIDER_LABEL) == HAMI_CORE:
        try:
            hami, mounts = _hami(container, gpus[0], options, problems)
            env |= hami
        except AnnotationError as error:
            problems.append(str(error))
    return ContainerChange(env=env, mounts=mounts, problems=tuple(problems), reason=_REASON)


def _hami(
    container: ContainerView, gpu: Gpu, options: GpuEnvOptions, problems: list[str]
) -> tuple[Mapping[str, str], tuple[MountSpec, ...]]:
    """Return HAMi's environment and mounts; empty for a whole GPU. Raises AnnotationError."""
    if gpu.memory_percent is None:
        raise AnnotationError(f"annotation {DEVICE_ALLOCATED} has no {GPU_MEMORY_RATIO}")
    if gpu.memory_percent >= _WHOLE_GPU_PERCENT:
        return {}, ()
    if gpu.memory_bytes is None:
        raise AnnotationError(f"annotation {DEVICE_ALLOCATED} has no {GPU_MEMORY}")
    library, directory = options.hami_library_path, options.library_directory
    env = {"CUDA_DEVICE_MEMORY_LIMIT": str(gpu.memory_bytes)}
    if gpu.core_percent is not None:
        env["CUDA_DEVICE_SM_LIMIT"] = str(gpu.core_percent)
    env["LD_PRELOAD"] = library
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
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {"container": frozenset({"env", "mounts"})}
    priority: ClassVar[int] = 60
    options_type: ClassVar[type[GpuEnvOptions] | None] = GpuEnvOptions

    def __init__(self, options: GpuEnvOptions | None = None) -> None:
        self._options = options or GpuEnvOptions()

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the environment and mounts; at creation also make the directory of HAMi's monitor."""
        change = gpu_change(container, self._options)
        has_cache = change is not None and _SHARED_CACHE in change.env
        # Once: a running container uses it.
        if not has_cache or container.id or self.dry_run:
            return change
        try:
            prepare_cache_directory(cache_directory(container, self._options))
        except OSError as error:
            # The GPUs and their limits do not depend on the monitor.
            problem = f"no directory for HAMi's monitor: {error}"
            change = gpu_change(container, replace(self._options, hami_vgpu_monitor=False))
            return None if change is None else replace(change, problems=(*change.problems, problem))
        return change
