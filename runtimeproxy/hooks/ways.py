"""By which way a field that a policy sets gets to a pod or container in a mode of the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from runtimeproxy.fields.tables import OF_PROCESSES, PARAMETERS, RESOURCE_FIELDS, RESOURCE_PARAMETERS
from runtimeproxy.hooks.fields import CGROUP, GROUPS, NODE_CGROUP, RESOURCES, Field
from runtimeproxy.hooks.policy import METHOD_HOOKS
from runtimeproxy.vocabulary import ClaimLevel

if TYPE_CHECKING:
    from runtimeproxy.hooks.carried import CarriedFields

_OF_RESOURCES: Final = {
    **{name: name for name in RESOURCE_FIELDS},
    **{parameter: name for name, parameter in RESOURCE_PARAMETERS.items()},
}
"""Names in `Resources`, also by their cgroup parameters."""
_OF_FILES: Final = frozenset({RESOURCES, CGROUP, NODE_CGROUP})
"""Groups whose keys are the parameters."""


LEVELS: Final[Mapping[str, ClaimLevel]] = {
    "pod": ClaimLevel.POD,
    "container": ClaimLevel.CONTAINER,
    "qos_class": ClaimLevel.QOS_CLASS,
    "node": ClaimLevel.HOST_APPLICATION,
}
"""Of the cgroups that the methods of policies give values."""


def has_file(method: str, name: str) -> bool:
    """Whether cgroups of a method's level have a parameter, as a file or as a value of their processes."""
    parameter = PARAMETERS.get(name)
    return parameter is not None and parameter.is_at(LEVELS[method])


def _settable(method: str) -> frozenset[str]:
    groups = GROUPS[METHOD_HOOKS[method][0]]
    writable = {name for name, each in PARAMETERS.items() if each.writable and has_file(method, name)}
    without_file = (
        {name for name, each in RESOURCE_FIELDS.items() if not has_file(method, each.name)}
        if RESOURCES in groups
        else set()
    )
    return frozenset(writable | (groups - _OF_FILES) | without_file)


SETTABLE: Final[Mapping[str, frozenset[str]]] = {method: _settable(method) for method in LEVELS}
"""The names that `Policy.sets_fields` may have, by method."""


class Way(StrEnum):
    """How a value gets there."""

    MESSAGE = "message"
    """In the runtime's message that creates it."""
    FILE_BEFORE = "file, before the program runs"
    FILE_AFTER = "file, after the start"
    FILE = "file"
    """Of what exists all the time: QoS classes, host applications, sysctls."""
    NONE = "not applicable"


def way_of(carried: CarriedFields, method: str, name: str) -> Way:
    """The way in which a new pod or container gets a field.

    Args:
        carried: Of the mode.
        method: That of the policy.
        name: As in `Policy.sets_fields`.
    """
    if method not in ("pod", "container"):
        return Way.FILE
    is_container = method == "container"
    is_in_cgroup = has_file(method, name)
    # A sandbox's resources are not its pod's.
    if (is_container or not is_in_cgroup) and carried.carries_at_creation(
        _field(name), is_container=is_container
    ):
        return Way.MESSAGE
    if not is_in_cgroup:
        return Way.NONE
    if not is_container and name in OF_PROCESSES:
        # Of its containers, too.
        return Way.FILE_AFTER
    return Way.FILE_BEFORE if carried.writes_before_start(is_container=is_container) else Way.FILE_AFTER


def _field(name: str) -> Field:
    if name in _OF_RESOURCES:
        return Field(RESOURCES, _OF_RESOURCES[name])
    return Field(CGROUP, name) if name in PARAMETERS else Field(name)


def left_undone(carried: CarriedFields, sets_fields: Mapping[str, frozenset[str]]) -> list[str]:
    """What a policy sets and the mode never applies; fields of pods begin with `pod `."""
    return [
        shown_name(method, name)
        for method, names in sets_fields.items()
        for name in sorted(names)
        if way_of(carried, method, name) is Way.NONE
    ]


def shown_name(method: str, name: str) -> str:
    return f"pod {name}" if method == "pod" else name
