"""The cgroup parameters: names, files, ranges and the direction of looser values; data only.

The names are those of cgroup version 1, as Koordinator uses them. Source: Koordinator
pkg/koordlet/util/system/cgroup_resource.go; ranges of mainline files after the kernel's own checks.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from runtimeproxy.cgroups import formats
from runtimeproxy.cgroups.formats import FileFormat, Value, number
from runtimeproxy.units import (
    MAX_CPU_ID,
    MAX_CPU_PERIOD_US,
    MAX_CPU_QUOTA_US,
    MAX_CPU_SHARES,
    MAX_INT64,
    MIN_CPU_PERIOD_US,
    MIN_CPU_QUOTA_US,
    MIN_CPU_SHARES,
    UNLIMITED,
    parse_cpu_list,
)


class Direction(Enum):
    """The direction of looser values, which parents get before their children."""

    NONE = "none"
    """No order is needed: the value is written at once."""
    LARGER = "larger"
    """A larger number is looser, and unlimited is the loosest."""
    SMALLER = "smaller"
    UNION = "union"
    """A list is looser the more members it has; an empty one is the loosest."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One cgroup parameter."""

    name: str
    """Its version 1 name, which is its name everywhere in this project."""
    v1: FileFormat | None
    """None: version 1 has no such file."""
    v2: FileFormat | None
    """None: version 2 has no such file."""
    _: KW_ONLY
    minimum: int = 0
    maximum: int = MAX_INT64
    unlimited: bool = False
    """Whether -1 (or the text `max`) means "no limit"."""
    is_list: bool = False
    """Whether the value is a CPU or node list and not a number."""
    writable: bool = True
    direction: Direction = Direction.NONE

    @property
    def controller(self) -> str:
        """The controller that carries it, with the same name in both versions."""
        return self.name.partition(".")[0]

    def canonical(self, value: Value) -> Value:
        """The canonical value: an int in range, or a list as given.

        Raises:
            ValueError: Wrong type, out of range, or not a list; says which.
        """
        if self.is_list:
            if not isinstance(value, str):
                raise ValueError(f"{self.name} takes a list such as 0-3,8, not {value!r}")
            parse_cpu_list(value)
            return value
        parsed = _as_int(self.name, value, unlimited=self.unlimited)
        if not (self.unlimited and parsed == UNLIMITED) and not self.minimum <= parsed <= self.maximum:
            limits = f"{self.minimum} to {self.maximum}" + (", or -1" if self.unlimited else "")
            raise ValueError(f"{self.name} is {parsed}, not in {limits}")
        return parsed

    def format_for(self, version: int) -> FileFormat | None:
        return self.v2 if version == 2 else self.v1


def _as_int(name: str, value: Value, *, unlimited: bool) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} takes a number, not {value!r}")  # noqa: TRY004 - one error type for callers
    if isinstance(value, int):
        return value
    if value == "max" and unlimited:
        return UNLIMITED
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} takes a number, not {value!r}") from None


def _memory(name: str) -> Parameter:
    """memory.min, memory.low, memory.high: mainline on version 2, Anolis kernels on version 1."""
    v1 = formats.memory_v1(name, unlimited=str(MAX_INT64))
    return Parameter(name, v1, formats.memory_v2(name), unlimited=True, direction=Direction.LARGER)


def _anolis(name: str, minimum: int, maximum: int, *, on_v1: bool = True) -> Parameter:
    """Plain numbers that only Anolis kernels (and, for memory.oom.group, mainline version 2) have."""
    return Parameter(name, number(name) if on_v1 else None, number(name), minimum=minimum, maximum=maximum)


def _list(name: str) -> Parameter:
    return Parameter(
        name, formats.cpu_list(name), formats.cpu_list(name), is_list=True, direction=Direction.UNION
    )


_ALL = (
    # The kernel refuses a weight while a group is idle: 0 comes before it, 1 after it.
    Parameter("cpu.idle", number("cpu.idle"), number("cpu.idle"), maximum=1, direction=Direction.SMALLER),
    Parameter(
        "cpu.shares",
        number("cpu.shares"),
        formats.weight_v2("cpu.weight"),
        minimum=MIN_CPU_SHARES,
        maximum=MAX_CPU_SHARES,
    ),
    Parameter(
        "cpu.cfs_quota_us",
        number("cpu.cfs_quota_us"),
        formats.quota_v2("cpu.max"),
        minimum=MIN_CPU_QUOTA_US,
        maximum=MAX_CPU_QUOTA_US,
        unlimited=True,
        direction=Direction.LARGER,
    ),
    # The same quota is more of a CPU in a smaller period. It rises before the period shrinks, see `order`.
    Parameter(
        "cpu.cfs_period_us",
        number("cpu.cfs_period_us"),
        formats.period_v2("cpu.max"),
        minimum=MIN_CPU_PERIOD_US,
        maximum=MAX_CPU_PERIOD_US,
        direction=Direction.SMALLER,
    ),
    # The kernel refuses a burst above the quota, so it rises after the quota and falls before it.
    Parameter(
        "cpu.cfs_burst_us", number("cpu.cfs_burst_us"), number("cpu.max.burst"), direction=Direction.LARGER
    ),
    Parameter("cpu.bvt_warp_ns", number("cpu.bvt_warp_ns"), number("cpu.bvt_warp_ns"), minimum=-1, maximum=2),
    _list("cpuset.cpus"),
    _list("cpuset.mems"),
    Parameter(
        "memory.limit_in_bytes",
        formats.memory_v1("memory.limit_in_bytes"),
        formats.memory_v2("memory.max"),
        unlimited=True,
        direction=Direction.LARGER,
    ),
    Parameter(
        "memory.usage_in_bytes",
        number("memory.usage_in_bytes"),
        number("memory.current"),
        writable=False,
    ),
    _memory("memory.min"),
    _memory("memory.low"),
    _memory("memory.high"),
    _anolis("memory.wmark_ratio", 0, 100),
    _anolis("memory.wmark_scale_factor", 1, 1000),
    _anolis("memory.wmark_min_adj", -25, 50),
    _anolis("memory.priority", 0, 12),
    _anolis("memory.use_priority_oom", 0, 1),
    _anolis("memory.oom.group", 0, 1),
    _anolis("memory.pagecache_limit.enable", 0, 1, on_v1=False),
    _anolis("memory.pagecache_limit.size", 0, MAX_INT64, on_v1=False),
    _anolis("memory.pagecache_limit.sync", 0, 1, on_v1=False),
    Parameter("net_cls.classid", number("net_cls.classid"), None, maximum=0xFFFF_FFFF),
)

PARAMETERS: dict[str, Parameter] = {parameter.name: parameter for parameter in _ALL}
"""All known parameters by name, in the order in which looser values of one cgroup are written."""


def unknown_parameter(name: str) -> str:
    """Why this is not the name of a parameter: unknown, or that of a file of version 2."""
    names = [each.name for each in _ALL if each.v2 is not None and each.v2.file == name]
    if names:
        return f"is {' or '.join(names)} here: parameters have their names of cgroup version 1"
    return "is not a known cgroup parameter"


def check_value(name: str, value: Value) -> str:
    """Why a value can never be written; empty when it can. Pure: for the checks of a policy's changes."""
    parameter = PARAMETERS.get(name)
    if parameter is None:
        return f"{name} {unknown_parameter(name)}"
    if not parameter.writable:
        return f"{name} cannot be written"
    try:
        parameter.canonical(value)
    except ValueError as error:
        return str(error)
    return ""


def saved_value(name: str, value: object) -> Value:
    """A value that was saved, as all that compares and orders values can read it; its range may be another.

    One of a parameter that is not known, such as after a downgrade, is any number or text.

    Raises:
        ValueError: It is no such value.
    """
    parameter = PARAMETERS.get(name)
    if isinstance(value, str) and (parameter is None or parameter.is_list):
        if parameter is not None:
            # The kernel's `N` is the last CPU of a node.
            parse_cpu_list(value, MAX_CPU_ID)
        return value
    is_list = parameter is not None and parameter.is_list
    if is_list or isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_INT64:
        raise ValueError(f"{name} has no value of its kind")
    return value


def clamped(name: str, value: Value) -> Value:
    """The value within the range of a parameter; lists as they are, unknown names within that of the CRI."""
    parameter = PARAMETERS.get(name)
    if isinstance(value, str):
        return value
    if parameter is None:
        return min(value, MAX_INT64)
    if parameter.unlimited and value < 0:
        return UNLIMITED
    return min(max(value, parameter.minimum), parameter.maximum)
