"""What the program of a container sees first: it writes its own cgroup's values, environment and mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.lab import cgroup_v1
from tests.lab.pods import ContainerSpec

FILES: Final = (
    "cpu/cpu.shares",
    "cpu/cpu.cfs_quota_us",
    "cpu/cpu.cfs_period_us",
    "cpu/cpu.cfs_burst_us",
    "cpu/cpu.idle",
    "cpuset/cpuset.cpus",
    "cpuset/cpuset.mems",
    "memory/memory.limit_in_bytes",
    "memory/memory.memsw.limit_in_bytes",
    "memory/memory.soft_limit_in_bytes",
    "pids/pids.max",
)
"""Files of version 1 that policies and runtimes write, as far as this kernel has them."""
FILE_ONLY: Final = frozenset({"cpu/cpu.cfs_burst_us", "cpu/cpu.idle"})
"""No message of a runtime carries them."""
OOM_SCORE: Final = "oom_score_adj"

_CGROUPS, _OUT = "/lab/cgroup", "/lab/out"
# Builtins only until the last value is read: nothing else runs before.
_SCRIPT: Final = """
exec 3>{out}/{name}.new
while IFS=: read -r number controllers path; do
  case ",$controllers," in *,cpu,*) cgroup=$path ;; esac
done </proc/self/cgroup
for file in {files}; do
  read -r value <{cgroups}/${{file%%/*}}$cgroup/${{file#*/}} && echo "$file=$value" >&3
done 2>/dev/null
read -r value </proc/self/oom_score_adj
echo "oom_score_adj=$value" >&3
for path in {paths}; do [ -e $path ] && echo "path:$path=there" >&3; done
env | sed s/^/env:/ >&3
mv {out}/{name}.new {out}/{name}
exec sleep 1000000
"""


def observing(spec: ContainerSpec, folder: Path, paths: tuple[str, ...] = ()) -> ContainerSpec:
    """The container with a program that writes to a file of its name in `folder` and then sleeps."""
    script = _SCRIPT.format(
        out=_OUT, name=spec.name, files=" ".join(FILES), cgroups=_CGROUPS, paths=" ".join(paths)
    )
    mounts = {_CGROUPS: str(cgroup_v1.controllers()["cpu"].parent), _OUT: str(folder)}
    return ContainerSpec(
        spec.name,
        spec.resources,
        ("/bin/sh", "-c", script),
        spec.env,
        spec.annotations,
        {**spec.mounts, **mounts},
    )


def first_seen(file: Path) -> dict[str, str]:
    """What the program has written."""
    lines = file.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("env:HOSTNAME="))


def cgroup_values(cgroup: str) -> dict[str, str]:
    """The values of a cgroup now."""
    found = {}
    for name in FILES:
        controller, file = name.split("/")
        path = cgroup_v1.file(controller, cgroup, file)
        if path.exists():
            found[name] = path.read_text().strip()
    return found


def values_now(cgroup: str, pid: int) -> dict[str, str]:
    """The values of a container now, as its program reads them."""
    score = (Path("/proc") / str(pid) / "oom_score_adj").read_text().strip()
    return {**cgroup_values(cgroup), OOM_SCORE: score}
