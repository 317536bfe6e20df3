"""Cgroup v1 and v2 values of pods and containers: read, checked, compared, written in safe order."""

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT, Mount, find_mounts
from runtimeproxy.cgroups.parameters import PARAMETERS, Direction, Parameter, check_value
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path, container_path
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, Outcome, WriteResult

__all__ = [
    "DEFAULT_ROOT",
    "PARAMETERS",
    "CgroupPathError",
    "CgroupValues",
    "CgroupWriter",
    "Direction",
    "Mount",
    "Outcome",
    "Parameter",
    "WriteResult",
    "cgroup_path",
    "check_value",
    "container_path",
    "find_mounts",
]
