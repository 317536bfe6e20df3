"""Where the cgroup of a sandbox or container lies, as containerd and systemd place it."""

from __future__ import annotations

from enum import StrEnum

SCOPE_PREFIX = "cri-containerd"
"""First part of a scope's name. Source: containerd, getCgroupsPath of the CRI plugin."""


class CgroupDriver(StrEnum):
    """Who makes cgroups; decides how a cgroup parent is written."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


def spec_path(cgroup_parent: str, owner_id: str, driver: CgroupDriver) -> str:
    """``cgroupsPath`` of the OCI specification of a sandbox or container.

    With systemd this is ``slice:prefix:id``, otherwise a path; "" without a cgroup parent.
    """
    if not cgroup_parent:
        return ""
    if driver is CgroupDriver.SYSTEMD:
        return f"{cgroup_parent.rstrip('/').rsplit('/', 1)[-1]}:{SCOPE_PREFIX}:{owner_id}"
    return f"{cgroup_parent.rstrip('/')}/{owner_id}"


def parent_path(cgroup_parent: str, driver: CgroupDriver) -> str:
    """Path below the cgroup root of a cgroup parent, with a leading slash.

    A slice name is unfolded: ``a-b.slice`` lies in ``a.slice``. Source: systemd.slice(5).
    """
    if driver is CgroupDriver.CGROUPFS or not cgroup_parent.endswith(".slice"):
        return "/" + cgroup_parent.strip("/")
    words = cgroup_parent.rsplit("/", 1)[-1].removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(words[: count + 1])}.slice" for count in range(len(words)))


def container_path(cgroup_parent: str, owner_id: str, driver: CgroupDriver) -> str:
    """Path below the cgroup root of the cgroup of a sandbox or container."""
    name = f"{SCOPE_PREFIX}-{owner_id}.scope" if driver is CgroupDriver.SYSTEMD else owner_id
    return f"{parent_path(cgroup_parent, driver).rstrip('/')}/{name}"
