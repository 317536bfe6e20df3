"""Tables of the declared fields, by what others know of a field; and checks of values by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtimeproxy.fields import devices
from runtimeproxy.fields.declaration import Declaration, Kind
from runtimeproxy.fields.declared import DECLARED
from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.resources import ResourceChange
from runtimeproxy.units import MAX_CPU_ID, MAX_INT64, UNLIMITED, parse_cpu_list

QUOTA: Final = "cpu.cfs_quota_us"
PERIOD: Final = "cpu.cfs_period_us"
SHARES: Final = "cpu.shares"
IDLE: Final = "cpu.idle"

FIELDS: Final[Mapping[str, Declaration]] = {each.name: each for each in DECLARED}
PARAMETERS: Final[Mapping[str, Declaration]] = {each.name: each for each in DECLARED if each.is_parameter}
"""The cgroup parameters, in the order in which looser values of one cgroup are written."""
OF_PROCESSES: Final = frozenset(name for name, each in PARAMETERS.items() if each.processes is not None)
"""The parameters that each process of a cgroup has for itself."""
LISTS: Final = tuple(name for name, each in PARAMETERS.items() if each.is_list)
"""The parameters that are lists of CPUs or NUMA nodes."""
BY_DEVICE: Final = frozenset(name for name, each in PARAMETERS.items() if each.kind is Kind.DEVICES)
"""The parameters with a setting for each block device."""
NEUTRAL: Final[Mapping[str, Value]] = {
    name: each.neutral for name, each in FIELDS.items() if each.neutral is not None
}
"""The value without any effect, which a new cgroup has."""

_BY_RESOURCE: Final = {each.resource: each for each in DECLARED}
RESOURCE_FIELDS: Final[Mapping[str, Declaration]] = {
    name: _BY_RESOURCE[name] for name in ResourceChange.__slots__ if name != "unified"
}
"""The fields of `Resources` and `ResourceChange`, by their names there."""
CRI_FIELDS: Final[Mapping[str, Declaration]] = {
    name: each for name, each in RESOURCE_FIELDS.items() if each.cri
}
"""Those of them that messages of the CRI have."""
RESOURCE_PARAMETERS: Final[Mapping[str, str]] = {
    name: each.name for name, each in RESOURCE_FIELDS.items() if each.is_parameter
}
"""The cgroup parameters behind fields of `Resources`."""
UPDATABLE: Final[tuple[str, ...]] = tuple(
    name for name, each in RESOURCE_FIELDS.items() if not each.creation_only
)
"""The fields of `Resources` that an update of a running container can change."""

_OF_VERSION_2: Final = [
    (each.v2.file, each)
    for each in DECLARED
    if each.v2 is not None and each.writable and each.kind is not Kind.DEVICES
]
V2_FILES: Final[Mapping[str, tuple[Declaration, ...]]] = {
    file: tuple(each for its, each in _OF_VERSION_2 if its == file) for file, _ in _OF_VERSION_2
}
"""The fields of each file of version 2 that can be written, in the order of their values there; without files
that have a line for each block device."""


def unified_text(file: str, values: Mapping[str, Value]) -> str | None:
    """The text of a file of version 2 for values by field; None if none of them is in it."""
    fields = V2_FILES.get(file, ())
    if not any(each.name in values for each in fields):
        return None
    given = {**NEUTRAL, **values}
    return " ".join(each.v2.encode(clamped(each.name, given[each.name])) for each in fields if each.v2)


def neutral_text(file: str) -> str | None:
    """The text of a file of version 2 in a new cgroup; None if it is not known."""
    defaults = [each.v2.default for each in V2_FILES.get(file, ()) if each.v2 and each.v2.default]
    return defaults[0] if defaults else unified_text(file, NEUTRAL)


def unknown_parameter(name: str) -> str:
    """Why this is not the name of a parameter: unknown, or that of a file of version 2."""
    names = [each.name for each in PARAMETERS.values() if each.v2 is not None and each.v2.file == name]
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
    if isinstance(value, str) and (parameter is None or parameter.kind is not Kind.NUMBER):
        if parameter is not None and parameter.is_list:
            # The kernel's `N` is the last CPU of a node.
            parse_cpu_list(value, MAX_CPU_ID)
        if parameter is not None and parameter.kind is Kind.DEVICES:
            devices.by_device(value)
        return value
    is_number = parameter is None or parameter.kind is Kind.NUMBER
    if is_number and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INT64:
        return value
    raise ValueError(f"{name} has no value of its kind")


def clamped(name: str, value: Value) -> Value:
    """The value within the range of a field; lists and texts as they are, unknown names within the CRI's."""
    field = FIELDS.get(name)
    if isinstance(value, str):
        return value
    if field is None:
        return min(value, MAX_INT64)
    if field.unlimited and value < 0:
        return UNLIMITED
    return min(max(value, field.minimum), field.maximum)
