"""The cgroup mounts of a node: the version and folder of each controller."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = Path("/sys/fs/cgroup")
"""Where cgroups are mounted. Source: cgroups(7); file-hierarchy(7) of systemd."""


@dataclass(frozen=True, slots=True)
class Mount:
    """The folder that holds one controller's cgroups."""

    version: int
    """1 or 2."""
    folder: Path


def find_mounts(root: Path = DEFAULT_ROOT) -> dict[str, Mount]:
    """The cgroup mounts below `root` by controller; empty, never an error, when nothing is mounted there.

    Version 2 at the root (unified) or in `unified` (hybrid) counts for the controllers that it lists; all
    others are looked for as version 1 folders, which may carry several controllers (`cpu,cpuacct`).
    """
    mounts: dict[str, Mount] = {}
    for folder in _folders(root):
        for controller in folder.name.split(","):
            mounts.setdefault(controller, Mount(1, folder.resolve()))
    for unified in (root / "unified", root):
        for controller in controllers_of(unified):
            mounts[controller] = Mount(2, unified.resolve())
    return mounts


def _folders(root: Path) -> list[Path]:
    try:
        if (root / "cgroup.controllers").exists():
            return []
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and entry.name != "unified")
    except OSError:
        return []


def controllers_of(folder: Path) -> list[str]:
    try:
        return (folder / "cgroup.controllers").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
