"""The cgroups of host applications."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.schema import CgroupBase, HostApplication

_LATENCY_SENSITIVE: Final = frozenset({QoSClass.LSE, QoSClass.LSR, QoSClass.LS})
_BASES: Final[Mapping[str, Mapping[CgroupBase, str]]] = {
    "systemd": {
        CgroupBase.KUBEPODS: "kubepods.slice",
        CgroupBase.KUBEPODS_BURSTABLE: "kubepods.slice/kubepods-burstable.slice",
        CgroupBase.KUBEPODS_BEST_EFFORT: "kubepods.slice/kubepods-besteffort.slice",
    },
    "cgroupfs": {
        CgroupBase.KUBEPODS: "kubepods",
        CgroupBase.KUBEPODS_BURSTABLE: "kubepods/burstable",
        CgroupBase.KUBEPODS_BEST_EFFORT: "kubepods/besteffort",
    },
}
"""Directories by cgroup driver. Source: kubelet pkg/kubelet/cm; Koordinator pkg/koordlet/util/system."""
_CLASS_SLICE: Final = re.compile(r"(?:.+-)?kubepods(?:-burstable|-besteffort)?\.slice")
_POD_SLICE: Final = re.compile(r"(?:.+-)?kubepods-(?:burstable-|besteffort-)?pod.+\.slice")


def host_application_cgroup(application: HostApplication, cgroup_driver: str | None) -> str:
    """Return the path of a host application's cgroup below a controller's mount.

    Source: Koordinator pkg/koordlet/util/host_application.go.

    Raises:
        ValueError: the driver is not known and the path depends on it, or the path leaves its base, or names
            a cgroup of the kubelet's.
    """
    path = application.cgroup_path
    if path is None:
        base = ""
        if application.qos in _LATENCY_SENSITIVE:
            base = "host-latency-sensitive"
        elif application.qos is QoSClass.BE:
            base = "host-best-effort"
        parts: tuple[str, ...] = (base, application.name)
    elif path.base is CgroupBase.CGROUP_ROOT:
        parts = (path.parent_dir, path.relative_path)
    else:
        bases = _BASES.get(cgroup_driver or "")
        if bases is None:
            raise ValueError("the cgroup driver, which its path depends on, is not known")
        parts = (bases[path.base], path.parent_dir, path.relative_path)
    # A part with a leading slash stays below the base, too.
    names = [name for part in parts for name in PurePosixPath(part.lstrip("/")).parts]
    if not names or ".." in names:
        raise ValueError("its path leaves the directory that it is in, or is empty")
    if _is_kubelets(names):
        raise ValueError("its path is that of a QoS class or of a pod")
    return "/" + "/".join(names)


def _is_kubelets(names: Sequence[str]) -> bool:
    """Return whether a cgroup is that of a QoS class, or of a pod or in one."""
    if "kubepods" in names:
        below = names[names.index("kubepods") + 1 :]
        below = below[1:] if below and below[0] in ("burstable", "besteffort") else below
        return not below or below[0].startswith("pod")
    return bool(_CLASS_SLICE.fullmatch(names[-1])) or any(map(_POD_SLICE.fullmatch, names))
