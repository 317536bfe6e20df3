"""The demo's running pod: a strategy comes, changes values of its cgroups, and goes again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.fields.tables import PARAMETERS

OBJECTS_FOLDER: Final = "node.d"
"""The folder of Kubernetes objects, in the demo's own."""
PERCENT: Final = 50
"""The CPU burst of the strategy, in percent of the limit."""
_PARAMETER: Final = "cpu.cfs_burst_us"
_CONFIG_MAP: Final = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: slo-controller-config
  namespace: koordinator-system
data:{data}
"""
_STRATEGY: Final = f"""
  cpu-burst-config: |
    {{"clusterStrategy": {{"policy": "cpuBurstOnly", "cpuBurstPercent": {PERCENT}}}}}"""
_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.02


class LiveChange(NamedTuple):
    """A file of a running pod before, with and after the strategy.

    Attributes:
        container: the container's name, or `pod` for the pod's own cgroup.
        field: the file's name.
        values: the three contents; fewer if the file did not change in time.
    """

    container: str
    field: str
    values: tuple[str, ...]


def write_strategy(folder: Path, *, is_set: bool) -> None:
    """Writes the ConfigMap, with the strategy or without it."""
    objects = folder / OBJECTS_FOLDER
    objects.mkdir(exist_ok=True)
    text = _CONFIG_MAP.format(data=_STRATEGY if is_set else " {}")
    temporary = objects / ".new"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(objects / "slo-controller-config.yaml")


def show_strategy(folder: Path, cgroup_root: Path, cgroups: Mapping[str, str]) -> list[LiveChange]:
    """Lets the strategy come and go, and returns what the files held.

    Args:
        folder: the demo's own.
        cgroup_root: where cgroups are mounted.
        cgroups: path below a mount of the pod and of its containers, by name.
    """
    files = {name: file for name, path in cgroups.items() if (file := _file(cgroup_root, path)) is not None}
    seen = {name: [_text(file)] for name, file in files.items()}
    for is_set in (True, False):
        write_strategy(folder, is_set=is_set)
        deadline_s = time.monotonic() + _TIMEOUT_S
        pending = dict(files)
        while pending and time.monotonic() < deadline_s:
            for name, file in tuple(pending.items()):
                # A plain file is empty for a moment while it is written.
                if (text := _text(file)) not in ("", seen[name][-1]):
                    seen[name].append(text)
                    del pending[name]
            # The kernel reports no changes of these files.
            time.sleep(_POLL_S)
    return [LiveChange(name, file.name, tuple(seen[name])) for name, file in files.items()]


def _file(cgroup_root: Path, cgroup: str) -> Path | None:
    """The file of the CPU burst; None if there is no such cgroup, or the kernel has no such file."""
    mount = find_mounts(cgroup_root).get("cpu")
    if mount is None or (known := PARAMETERS[_PARAMETER].format_for(mount.version)) is None:
        return None
    file = mount.folder / cgroup.strip("/") / known.file
    return file if file.exists() else None


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()
