"""Cgroup v1 and v2 values of pods and containers: read, checked, compared, written in safe order."""

from runtimeproxy.cgroups.hierarchy import DEFAULT_ROOT, Hierarchy, Mount, detect
from runtimeproxy.cgroups.order import Key, Step, plan
from runtimeproxy.cgroups.parameters import PARAMETERS, Direction, Parameter, check_value
from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path, container_path, expand_slice
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, Outcome, WriteResult

__all__ = [
    "DEFAULT_ROOT",
    "PARAMETERS",
    "CgroupPathError",
    "CgroupValues",
    "CgroupWriter",
    "Direction",
    "Hierarchy",
    "Key",
    "Mount",
    "Outcome",
    "Parameter",
    "Step",
    "WriteResult",
    "cgroup_path",
    "check_value",
    "container_path",
    "detect",
    "expand_slice",
    "plan",
]
