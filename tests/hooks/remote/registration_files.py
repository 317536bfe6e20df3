"""Writes registration files as hook servers, editors and Kubernetes do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def content(endpoint: str = "/run/one.sock", **values: Any) -> str:
    """A good file; keys have `_` for `-`."""
    more = {key.replace("_", "-"): value for key, value in values.items()}
    return json.dumps({"remote-endpoint": endpoint, "runtime-hooks": ["PreCreateContainer"], **more})


def write(path: Path, endpoint: str = "/run/one.sock") -> None:
    """Writes in place."""
    path.write_text(content(endpoint))


def replace(path: Path, endpoint: str) -> None:
    """Writes another file and renames it over."""
    new = path.with_suffix(".new")
    new.write_text(content(endpoint))
    new.replace(path)


def write_with_old_time(path: Path, endpoint: str) -> None:
    """Writes in place and keeps the time of the last change, as `cp -p` may."""
    before = path.stat()
    path.write_text(content(endpoint))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_with_old_file(path: Path, endpoint: str) -> None:
    """Renames a file over it that is years old."""
    new = path.with_suffix(".new")
    new.write_text(content(endpoint))
    os.utime(new, (0, 0))
    new.replace(path)


class ConfigMap:
    """A folder as the kubelet mounts a ConfigMap: its files are links through a link that is swapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = 0

    def publish(self, **endpoints: str) -> None:
        """Swaps to a new version with these files, named without their suffix."""
        self._version += 1
        version = self._folder / f"..version_{self._version}"
        version.mkdir()
        for name, endpoint in endpoints.items():
            write(version / f"{name}.json", endpoint)
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")
        for name in endpoints:
            if not (self._folder / f"{name}.json").is_symlink():
                (self._folder / f"{name}.json").symlink_to(f"..data/{name}.json")
