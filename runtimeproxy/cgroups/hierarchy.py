"""Where the kernel's cgroup files lie: which version carries which controller, read from the mount."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_ROOT = Path("/sys/fs/cgroup")
"""Where cgroups are mounted. Source: cgroups(7); file-hierarchy(7) of systemd."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The folder that holds one controller's cgroups."""

    version: int
    """1 or 2."""
    folder: Path


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The cgroup mounts of a node. The layout is read once: mounts do not change while a node runs pods."""

    root: Path
    mounts: dict[str, Mount] = field(default_factory=dict)
    """By controller; a controller without an entry is not there."""

    @property
    def version(self) -> int:
        """2 when version 2 carries the CPU or memory controller, else 1."""
        carriers = (self.mounts.get(name) for name in ("cpu", "memory"))
        return 2 if any(mount is not None and mount.version == 2 for mount in carriers) else 1


def detect(root: Path = DEFAULT_ROOT) -> Hierarchy:
    """The cgroup layout below `root`; empty, never an error, when nothing is mounted there.

    Version 2 at the root (unified) or in `unified` (hybrid) counts for the controllers that it lists; all
    others are looked for as version 1 folders, which may carry several controllers (`cpu,cpuacct`).
    """
    mounts: dict[str, Mount] = {}
    for folder in _folders(root):
        for controller in folder.name.split(","):
            mounts.setdefault(controller, Mount(1, folder.resolve()))
    for unified in (root / "unified", root):
        for controller in _controllers(unified):
            mounts[controller] = Mount(2, unified.resolve())
    return Hierarchy(root, mounts)


def _folders(root: Path) -> list[Path]:
    try:
        if (root / "cgroup.controllers").exists():
            return []
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and entry.name != "unified")
    except OSError:
        return []


def _controllers(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return []
