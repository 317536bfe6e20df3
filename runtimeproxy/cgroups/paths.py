"""Converts the cgroup parent of the CRI to the path below a controller's mount."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from runtimeproxy.errors import RuntimeProxyError

_COMPONENT_LIMIT_BYTES = 255
"""Longest file name. Source: Linux include/uapi/linux/limits.h, NAME_MAX."""
ROOT_CGROUP: Final = "/-.slice"
"""The root of the cgroup tree, by systemd's name, for the files that only the root has. No other form names
it, and none of its other files is ever written. Source: systemd.special(7)."""
ROOT_PATH: Final = ("-.slice",)
_CONTROL = re.compile("[\x00-\x1f\ud800-\udfff]")


class CgroupPathError(RuntimeProxyError):
    """A cgroup path that is empty, leaves the cgroup tree, or names its root."""


@lru_cache(maxsize=2_048)  # two forms of each of the 750 cgroups of 250 pods
def cgroup_path(text: str) -> tuple[str, ...]:
    """Path components below a controller's mount, for every form that the CRI and runtimes use.

    * `/kubepods/besteffort/pod1`: a cgroupfs path; a missing leading slash is added.
    * `kubepods-besteffort-pod1.slice`, bare or behind its parents' path: a systemd slice, expanded to all its
      parents.
    * `kubepods-besteffort-pod1.slice:cri-containerd:id`: a systemd scope in a slice.
    * `ROOT_CGROUP`.

    Raises:
        CgroupPathError: The path is empty or the root, holds `..`, `.`, a NUL or another control character,
            an over-long name, or a slice name that systemd would refuse.
    """
    if text == ROOT_CGROUP:
        return ROOT_PATH
    if text.count(":") == 2 and "/" not in text:
        return _scope(*text.split(":"))
    components = tuple(part for part in text.split("/") if part)
    if not components:
        raise CgroupPathError(f"cgroup path {text!r} names the root of the cgroup tree")
    for part in components:
        _check_component(part, text)
    if components[-1].endswith(".slice"):
        return expand_slice(components[-1])
    return components


@lru_cache(maxsize=2_048)
def path_or_none(text: str) -> tuple[str, ...] | None:
    try:
        return cgroup_path(text)
    except CgroupPathError:
        return None


def paths_of(cgroups: Iterable[str]) -> set[tuple[str, ...]]:
    return {path for cgroup in cgroups if (path := path_or_none(cgroup)) is not None}


def has_container_cgroups(runtime_handler: str) -> bool:
    """Whether the containers of a pod have cgroups of their own on the node; not with Kata Containers.

    There all of them run in one VM, whose threads are in cgroups that Kata makes below the pod's; those of
    containers are in the guest. The handler's name is a matter of the runtime's configuration: `kata`, as
    koordlet has it, or `kata-qemu`, `kata-clh` and more.
    Source: Kata Containers docs/design/host-cgroups.md; Koordinator pkg/koordlet/runtimehooks/reconciler.
    """
    return runtime_handler != "kata" and not runtime_handler.startswith("kata-")


def cgroup_id(path: tuple[str, ...]) -> str:
    return "/" + "/".join(path)


def expand_slice(name: str) -> tuple[str, ...]:
    """The folders of a systemd slice: `a-b.slice` lies in `a.slice`.

    Source: systemd.slice(5), "name of a slice corresponds to the path to the slice in the tree".

    Raises:
        CgroupPathError: `-.slice` (the root), or a name with an empty part.
    """
    stem = name.removesuffix(".slice")
    parts = stem.split("-")
    if stem == name or not all(parts):
        raise CgroupPathError(f"{name!r} is not the name of a systemd slice below the root slice")
    return tuple("-".join(parts[: end + 1]) + ".slice" for end in range(len(parts)))


def container_path(parent: str, container_id: str, *, prefix: str = "") -> tuple[str, ...]:
    """Path of a container's cgroup below its pod's.

    `parent`: the pod's cgroup parent, as the CRI gives it. `prefix`: the runtime's scope prefix
    (`cri-containerd`, `crio`). With systemd slices it is needed (empty counts as `cri-containerd`); with
    cgroupfs only CRI-O uses one.

    Source: containerd internal/cri/server/helpers.go `getCgroupsPath`; CRI-O internal/config/cgmgr.

    Raises:
        CgroupPathError: As `cgroup_path`; or the id is not a plain name.
    """
    pod = cgroup_path(parent)
    if pod[-1].endswith(".slice"):
        name = f"{prefix or 'cri-containerd'}-{container_id}.scope"
    else:
        name = f"{prefix}-{container_id}" if prefix else container_id
    _check_component(name, name)
    return (*pod, name)


def _scope(slice_name: str, prefix: str, name: str) -> tuple[str, ...]:
    parent = cgroup_path(slice_name) if slice_name else ("system.slice",)
    if not parent[-1].endswith(".slice") or not name:
        raise CgroupPathError(f"{slice_name}:{prefix}:{name} is not of the form slice:prefix:name")
    scope = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    _check_component(scope, scope)
    return (*parent, scope)


def _check_component(part: str, whole: str) -> None:
    if part in {".", ".."} or "/" in part or not part:
        raise CgroupPathError(f"cgroup path {whole!r} leaves the cgroup tree")
    if _CONTROL.search(part):
        raise CgroupPathError(f"cgroup path {whole!r} holds a control character")
    if len(part.encode()) > _COMPONENT_LIMIT_BYTES:
        raise CgroupPathError(f"cgroup path {whole[:60]!r}... has a name over {_COMPONENT_LIMIT_BYTES} bytes")
