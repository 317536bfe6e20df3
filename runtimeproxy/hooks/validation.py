"""Checks of a policy's change, field by field: values that runtime, kernel or node would refuse are left out.

A result that is not a change is an error of its policy. In a change only invalid fields are left out, each
with a reason. Values outside the kernel's range are clamped where that keeps their meaning, see
`Declaration.clamps`; of OOM scores, identities and switches the intended value is unknown.

Some values are valid only together, see `_without_dependents` and `_without_contradictions`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, NamedTuple

from runtimeproxy import units
from runtimeproxy.cgroups.paths import ROOT_CGROUP, CgroupPathError, cgroup_path
from runtimeproxy.fields.declaration import ROLES, Declaration, Kind
from runtimeproxy.fields.kernel_settings import kernel_setting
from runtimeproxy.fields.tables import (
    FIELDS,
    IDLE,
    NEUTRAL,
    OF_PROCESSES,
    PARAMETERS,
    RESOURCE_FIELDS,
    RESOURCE_PARAMETERS,
    V2_FILES,
)
from runtimeproxy.hooks import fields as flat
from runtimeproxy.hooks.carried import BY_CALLS, CarriedFields
from runtimeproxy.hooks.changes import (
    CLEAR,
    Add,
    AtMost,
    CgroupChange,
    Change,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    NodeChange,
    PodChange,
    ResourceChange,
    Scale,
)
from runtimeproxy.hooks.fields import Field, Merged, Value
from runtimeproxy.hooks.policy import METHOD_HOOKS, Hook
from runtimeproxy.hooks.reasons import NO_REASONS, Reason
from runtimeproxy.hooks.views import ClassView, ContainerView, PodView
from runtimeproxy.hooks.ways import LEVELS
from runtimeproxy.node.facts import ANY_NODE, NodeFacts
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.vocabulary import ClaimLevel

_FILE_NAME: Final = re.compile(r"[a-z0-9_]+(\.[A-Za-z0-9_]+)+")
_CDI_KIND: Final = r"[A-Za-z][\w.-]*[A-Za-z0-9]"
_CDI_DEVICE: Final = re.compile(rf"{_CDI_KIND}/{_CDI_KIND}=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", re.ASCII)
"""Vendor and class of one character are left out: the runtime's parser panics. Source:
tags.cncf.io/container-device-interface, pkg/parser, ParseQualifiedName."""
_MOST_CDI_NAME: Final = 255
"""More characters are no name of a file either, which the specification of a device's vendor is in."""
HOOKS_WITHOUT_ANSWER: Final = frozenset(hook for hook in Hook if hook.startswith("post_"))
"""Effects of a policy's own; of hook servers a response to them has no meaning either."""

_LEVELS: Final = {
    **{hook: level for method, level in LEVELS.items() for hook in METHOD_HOOKS[method]},
    # Of hook servers alone.
    Hook.PRE_START_CONTAINER: ClaimLevel.CONTAINER,
    Hook.POST_START_CONTAINER: ClaimLevel.CONTAINER,
    Hook.POST_STOP_CONTAINER: ClaimLevel.CONTAINER,
    Hook.POST_STOP_POD_SANDBOX: ClaimLevel.POD,
    Hook.POST_REMOVE_CONTAINER: ClaimLevel.CONTAINER,
}
"""Of the cgroup whose values an answer at a hook sets."""
_CREATING: Final = frozenset({Hook.PRE_RUN_POD_SANDBOX, Hook.PRE_CREATE_CONTAINER})
_WRONG_TYPES: Final[Mapping[Hook, tuple[type[Change], ...]]] = {
    Hook.PRE_RUN_POD_SANDBOX: (ContainerChange, NodeChange),
    Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES: (ContainerChange, NodeChange),
    Hook.EVALUATE_POD: (ContainerChange, NodeChange),
    Hook.PRE_CREATE_CONTAINER: (PodChange, NodeChange),
    Hook.PRE_START_CONTAINER: (PodChange, NodeChange),
    Hook.PRE_UPDATE_CONTAINER_RESOURCES: (PodChange, NodeChange),
    Hook.EVALUATE_CONTAINER: (PodChange, NodeChange),
    Hook.EVALUATE_QOS_CLASS: (PodChange, ContainerChange, NodeChange),
    Hook.EVALUATE_NODE: (CgroupChange,),
}
"""The changes that are about something else, by hook."""
_RIGHT_TYPES: Final[Mapping[Hook, type[Change]]] = {
    Hook.PRE_RUN_POD_SANDBOX: PodChange,
    Hook.PRE_UPDATE_POD_SANDBOX_RESOURCES: PodChange,
    Hook.EVALUATE_POD: PodChange,
    Hook.EVALUATE_QOS_CLASS: CgroupChange,
    Hook.EVALUATE_NODE: NodeChange,
}
"""The changes that methods return, by hook; a ContainerChange at the others."""
_MAX_SHOWN: Final = 64

_LIMIT: Final = Field(flat.RESOURCES, "memory_limit_bytes")
_SWAP: Final = Field(flat.RESOURCES, "memory_swap_limit_bytes")
_CGROUP_PARENT: Final = Field(flat.CGROUP_PARENT)
_PERIODS: Final = (Field(flat.RESOURCES, "cpu_period_us"), Field(flat.CGROUP, "cpu.cfs_period_us"))
_QUOTAS: Final = (Field(flat.RESOURCES, "cpu_quota_us"), Field(flat.CGROUP, "cpu.cfs_quota_us"))


class LeftOut(NamedTuple):
    """A field of a change that is left out; contains no secrets."""

    field: str
    value: str
    """The policy's value; empty if it must not be shown."""
    reason: str
    is_uncarried: bool = False
    """Whether only the front end is the reason; see `CarriedFields`."""


class Usable(NamedTuple):
    """The usable part of a change."""

    fields: dict[Field, Value]
    left_out: tuple[LeftOut, ...] = ()
    notes: Mapping[Field, str] = {}
    """Remarks on values that were adjusted."""
    reason: str = ""
    reasons: Mapping[str, str | Reason] = NO_REASONS
    missing: tuple[str, ...] = ()
    """What the pod or container is to have and does not get."""


_IDLE_FIELD: Final = Field(flat.CGROUP, IDLE)
_IDENTITY: Final = "cpu.bvt_warp_ns"
_ONLY_OF_ROOT: Final = (
    f"only the root cgroup has it: it has to stand in cgroups of a NodeChange, at {ROOT_CGROUP}"
)
_NOT_OF_ROOT: Final = "nothing of this is written to the root cgroup"


def problem_of(hook: Hook, answer: object) -> str | None:
    """Return why a policy's result is not valid at a hook; None when its fields can be checked."""
    if hook in HOOKS_WITHOUT_ANSWER:
        return f"{hook} cannot return a change"
    if not isinstance(answer, Change) or isinstance(answer, _WRONG_TYPES.get(hook, ())):
        return f"returned {_kind(answer)}, not a {_RIGHT_TYPES.get(hook, ContainerChange).__name__} or None"
    return None


def usable(
    hook: Hook,
    change: Change,
    merged: Merged,
    node: NodeFacts = ANY_NODE,
    carried: CarriedFields = BY_CALLS,
) -> Usable:
    """Return the usable fields of a change, in the form that every reader accepts.

    `change`: a change that is valid at this hook, see `problem_of`. `carried`: what the front end carries.
    """
    left_out: list[LeftOut] = []
    fields: dict[Field, Value] = {}
    notes: dict[Field, str] = {}
    uncarried: list[Field] = []
    lacking = carried.lacking.get(hook, ())
    given = _well_formed(change, left_out)
    for field, value in flat.fields_of(given, carried.counting[hook]).items():
        try:
            if field.group == flat.CGROUP and field.key in OF_PROCESSES:
                _check_level(field.key, _LEVELS[hook])
            fields[field], note = _CHECKS[field.group](field.key, value, node)
        except ValueError as error:
            left_out.append(_left_out(field, value, str(error)))
        else:
            if note:
                notes[field] = note
            if field in lacking or field.group in lacking:
                uncarried.append(field)
    if uncarried:
        _without_uncarried(hook, fields, uncarried, carried, left_out)
    if left_out:
        _without_dependents(fields, given.get("requires", {}), left_out)
    _without_contradictions(hook, fields, merged, left_out)
    problems, missing = given.get("problems", ()), given.get("missing", ())
    if problems or missing:
        left_out += [LeftOut("", "", problem) for problem in (*problems, *missing)]
    reason, reasons = given.get("reason", ""), given.get("reasons", NO_REASONS)
    found = Usable(fields, tuple(left_out), notes, reason, reasons, missing)
    return _with_files(hook, found, uncarried, carried) if uncarried else found


def _left_out(field: Field, value: object, reason: str) -> LeftOut:
    if field.group == flat.ENV:
        # A policy may have written `A=secret` for a name, which must not be logged.
        return LeftOut(str(field) if _is_variable_name(field.key) else flat.ENV, "", reason)
    return LeftOut(str(Field(field.group, str(field.key)[:_MAX_SHOWN])), _shown(value), reason)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


_MAPPING: Final = (dict, Mapping)
"""`dict` comes first: an abstract class takes several times as long to ask."""
_SHAPES: Final[Mapping[str, tuple[tuple[type[Any], ...], Any, str]]] = {
    flat.RESOURCES: ((NoneType, ResourceChange), None, "a ResourceChange"),
    flat.ANNOTATIONS: (_MAPPING, {}, "a mapping"),
    flat.LABELS: (_MAPPING, {}, "a mapping"),
    flat.ENV: (_MAPPING, {}, "a mapping"),
    flat.CGROUP: (_MAPPING, {}, "a mapping"),
    flat.SYSCTL: (_MAPPING, {}, "a mapping"),
    flat.KERNEL_SETTINGS: (_MAPPING, {}, "a mapping"),
    flat.CGROUP_PARENT: ((NoneType, str), None, "a path"),
    flat.MOUNTS: ((tuple,), (), "a tuple of mounts"),
    flat.DEVICES: ((tuple,), (), "a tuple of devices"),
    flat.CDI_DEVICES: ((tuple,), (), "a tuple of names of CDI devices"),
    flat.NODE_CGROUP: (_MAPPING, {}, "a mapping"),
    "requires": (_MAPPING, {}, "a mapping of field names"),
    "problems": ((tuple,), (), "a tuple of texts"),
    "missing": ((tuple,), (), "a tuple of texts"),
    "reason": ((str,), "", "a text"),
    "reasons": (_MAPPING, {}, "a mapping of texts"),
}
"""The types of a change's attributes, the value that changes nothing, and the type's name; in the order in
which they are merged."""
_TEXTS: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "problems": (str,),
    "missing": (str,),
    "requires": (str,),
    "reasons": (str, Reason),
}
"""The attributes whose items have to be texts."""
_SPECS: Final = {flat.MOUNTS: MountSpec, flat.DEVICES: DeviceSpec, flat.CDI_DEVICES: str}
_NESTED: Final = (flat.RESOURCES, *_SPECS, flat.NODE_CGROUP)
"""The attributes whose items have a shape of their own."""


_ATTRIBUTES: Final[Mapping[type[Change], tuple[tuple[str, tuple[type[Any], ...], Any, str], ...]]] = {
    kind: tuple((name, *shape) for name, shape in _SHAPES.items() if hasattr(kind, name))
    for kind in (CgroupChange, PodChange, ContainerChange, NodeChange)
}


def _well_formed(change: Change, left_out: list[LeftOut]) -> dict[str, Any]:
    """Return the attributes that change something and are of the right type."""
    given: dict[str, Any] = {}
    attributes = _ATTRIBUTES.get(type(change)) or _attributes(type(change))
    for name, types, empty, wanted in attributes:
        value: Any = getattr(change, name)
        # Most attributes: nothing, of the usual type.
        if type(value) is types[0] and not value:
            continue
        is_right = isinstance(value, types)
        if is_right and value == empty:
            continue
        if is_right and name in _TEXTS:
            for item in value if isinstance(value, tuple) else value.values():
                is_right = is_right and isinstance(item, _TEXTS[name])
        if not is_right:
            left_out.append(LeftOut(name, "", f"is {_kind(value)}, not {wanted}"))
        else:
            given[name] = _well_formed_items(name, value, left_out) if name in _NESTED else value
    return given


def _attributes(kind: type[Change]) -> tuple[tuple[str, tuple[type[Any], ...], Any, str], ...]:
    # Those of a policy's own subclass do not count.
    return next(_ATTRIBUTES[each] for each in kind.__mro__ if each in _ATTRIBUTES)


def _well_formed_items(name: str, value: Any, left_out: list[LeftOut]) -> object:  # noqa: ANN401
    if name == flat.RESOURCES:
        if isinstance(value.unified, _MAPPING):
            return value
        left_out.append(LeftOut(flat.UNIFIED, "", f"is {_kind(value.unified)}, not a mapping"))
        return dataclasses.replace(value, unified={})
    if name != flat.NODE_CGROUP:
        return _specs(name, value, left_out)
    kept = {path: found for path, found in value.items() if isinstance(found, _MAPPING)}
    if len(kept) != len(value):
        left_out.append(LeftOut(name, "", "holds something that is not a mapping"))
    return kept


def _specs(name: str, values: object, left_out: list[LeftOut]) -> tuple[object, ...]:
    """Return the mounts or devices that have a name: mostly their path in the container."""
    kind = _SPECS[name]
    kept: list[object] = []
    for value in values if isinstance(values, tuple) else ():
        if isinstance(value, kind) and isinstance(getattr(value, "container_path", value), str):
            kept.append(value)
        else:
            left_out.append(LeftOut(name, "", f"holds {_kind(value)}, not a {kind.__name__}"))
    return tuple(kept)


def _checked_resource(name: str, value: Value, node: NodeFacts) -> tuple[Value, str]:
    if value is CLEAR:
        return value, ""
    if not isinstance(value, _ROLES):
        return _checked_plain(RESOURCE_FIELDS[name], value, node)
    if RESOURCE_FIELDS[name].only_set:
        raise ValueError(f"takes a value only, not {_kind(value)}")
    return _checked_role(RESOURCE_FIELDS[name], value, node)


_RUNTIME_WEIGHTS: Final = (
    "the runtime writes weights of containers, and the kernel refuses these while it is 1"
)


def _check_level(name: str, level: ClaimLevel) -> None:
    if not FIELDS[name].is_at(level):
        raise ValueError(f"is a value of processes, which a cgroup of this level ({level}) does not have")


def _idle_problem(view: object) -> str:
    """Why a pod, container or QoS class cannot be idle; empty if it can.

    Weights of an idle cgroup cannot be written. Source: Linux kernel/sched/fair.c, sched_group_set_shares;
    kubelet, pkg/kubelet/cm: it writes the weight of a pod when it makes the cgroup, and when it resizes the
    pod, which has CPU requests then; those of QoS classes at its start, every minute and for new pods.
    """
    if isinstance(view, ContainerView):
        return _RUNTIME_WEIGHTS
    if isinstance(view, ClassView):
        return "the kubelet writes weights of QoS classes, and the kernel refuses these while it is 1"
    if isinstance(view, PodView) and view.kube_qos is not KubeQoSClass.BEST_EFFORT:
        return "the kubelet resizes pods with CPU requests, and the kernel refuses their weight while it is 1"
    return ""


def _without_idle(fields: dict[Field, Value], view: object, left_out: list[LeftOut]) -> None:
    """Leaves out an idle state that would make a write of the kubelet or the runtime fail."""
    value = fields.get(_IDLE_FIELD)
    if (isinstance(value, Add) or value == 1) and (problem := _idle_problem(view)):
        _leave_out(fields, _IDLE_FIELD, problem, left_out)


def _checked_parameter(name: str, value: Value, node: NodeFacts) -> tuple[Value, str]:
    problem = node.parameter_problem(name)
    if problem:
        raise ValueError(problem)
    if value is CLEAR:
        if name not in NEUTRAL:
            raise ValueError("has no neutral value, so it cannot be taken away")
        return value, ""
    if isinstance(value, _ROLES):
        return _checked_role(FIELDS[name], value, node)
    return _checked_plain(FIELDS[name], value, node)


def _checked_own_parameter(name: str, value: Value, node: NodeFacts) -> tuple[Value, str]:
    """Of a pod, a container or a QoS class."""
    if name in PARAMETERS and PARAMETERS[name].is_of_root:
        raise ValueError(_ONLY_OF_ROOT)
    return _checked_parameter(name, value, node)


def _checked_node_file(place: object, value: Value, node: NodeFacts) -> tuple[Value, str]:
    if not isinstance(place, str) or not _is_text(place):
        raise ValueError("is not a path")
    path, _, name = place.rpartition("/")
    _checked_cgroup_parent("", path, node)
    if name in PARAMETERS and PARAMETERS[name].is_of_root is not (path == ROOT_CGROUP):
        raise ValueError(_NOT_OF_ROOT if path == ROOT_CGROUP else _ONLY_OF_ROOT)
    if name in OF_PROCESSES:
        _check_level(name, ClaimLevel.HOST_APPLICATION)
    return _checked_parameter(name, value, node)


def _checked_sysctl(name: object, value: Value, _: NodeFacts) -> tuple[Value, str]:
    if not isinstance(name, str) or not flat.SYSCTL_NAME.fullmatch(name) or kernel_setting(name) is not None:
        raise ValueError("is not the name of a sysctl")
    if type(value) is int or _is_text(value):
        return value, ""
    raise ValueError(f"is {_kind(value)}, neither a number nor a text")


def _checked_kernel_setting(name: object, value: Value, _: NodeFacts) -> tuple[Value, str]:
    setting = kernel_setting(name)
    if setting is None:
        raise ValueError("is not the name of a kernel setting")
    if problem := setting.problem_of(value):
        raise ValueError(problem)
    return value, ""


_ROLES: Final = (Scale, Add, AtMost)


def _checked_role(field: Declaration, value: Scale | Add | AtMost, node: NodeFacts) -> tuple[Value, str]:
    """Check the numbers of a change that does more than set a value."""
    if value.role not in ROLES[field.kind]:
        raise ValueError(f"is a {field.kind.value}, which {type(value).__name__} cannot change")
    if isinstance(value, AtMost):
        plain, note = _checked_plain(field, value.value, node)
        return (AtMost(plain), note) if isinstance(plain, int | str) else (value, note)
    if isinstance(value, Add):
        if type(value.amount) is not int or value.amount < 0:
            raise ValueError("the amount is not a whole number of 0 or more")
        if value.at_most is not None and type(value.at_most) is not int:
            raise ValueError("at_most is not a whole number")
        return value, ""
    ratio: object = value.ratio
    if type(ratio) not in (int, float) or not math.isfinite(value.ratio) or value.ratio <= 0:
        raise ValueError("the ratio is not a number above 0")
    if value.value is None:
        return value, ""
    plain, note = _checked_plain(field, value.value, node)
    return (Scale(value.ratio, plain), note) if isinstance(plain, int) else (value, note)


def _checked_plain(field: Declaration, value: Value, node: NodeFacts) -> tuple[Value, str]:
    if field.kind is Kind.NUMBER:
        return _checked_number(field, value)
    if field.kind is Kind.DEVICES:
        return field.canonical(value), ""  # type: ignore[arg-type]
    if not isinstance(value, str):
        wanted = "a list such as 0-3,8" if field.is_list else "a text"
        raise ValueError(f"is {_kind(value)}, not {wanted}")  # noqa: TRY004 - one type
    if field.kind is Kind.TEXT:
        if problem := field.text_problem(value):
            raise ValueError(problem)
        return value, ""
    is_cpus = field.kind is Kind.CPUS
    # In a list of NUMA nodes `N` would be the highest number that the kernel is built for, which no node has.
    plain = units.plain_cpu_list(value, node.last_cpu if is_cpus else None)
    if not plain:
        raise ValueError("is empty")
    problem = node.cpus_problem(plain) if is_cpus else node.memory_nodes_problem(plain)
    if problem:
        raise ValueError(problem)
    return plain, "" if plain == value else f"{_shown(value)!r} in plain spelling"


def _checked_file(name: str, value: Value, node: NodeFacts) -> tuple[Value, str]:
    _checked_text(name, value, node)
    if not _FILE_NAME.fullmatch(name):
        raise ValueError("is not the name of a cgroup file")
    if value is CLEAR:
        return value, ""
    problem = node.unified_problem(name)
    if problem:
        raise ValueError(problem)
    if name == _IDENTITY:
        # A message carries it whatever the mode is, and the kernel refuses it without the mode.
        raise ValueError("counts in one CPU mode only: it has to stand in cgroup, where it waits for that")
    if name == IDLE and str(value).strip() == "1":
        raise ValueError(_RUNTIME_WEIGHTS)
    fields = V2_FILES.get(name, ())
    if not fields:
        return value, ""
    if len(fields) > 1:
        return _checked_cpu_max(str(value))
    (field,) = fields
    if field.kind is not Kind.NUMBER:
        return _checked_plain(field, value, node)
    text = str(value).strip()
    limits = field.v2.limits if field.v2 is not None else None
    number = units.UNLIMITED if text == "max" else units.parse_integer(text)
    _checked_number(field, number, limits)
    return value, ""


def _checked_cpu_max(text: str) -> tuple[Value, str]:
    quota_us, period_us = units.parse_cpu_max(text)
    _checked_number(FIELDS["cpu.cfs_period_us"], period_us)
    checked_us, note = _checked_number(FIELDS["cpu.cfs_quota_us"], quota_us)
    return (units.format_cpu_max(int(checked_us), period_us) if note else text), note


def _checked_number(
    field: Declaration, value: object, limits: tuple[int, int] | None = None
) -> tuple[int, str]:
    if type(value) is not int:
        raise ValueError(f"is {_kind(value)}, not a whole number")
    least = field.minimum if field.policy_minimum is None else field.policy_minimum
    low, high = limits or (least, field.maximum)
    if low <= value <= high or (field.unlimited and value == units.UNLIMITED):
        return value, ""
    bounds = f"{low} to {high}{', or -1' if field.unlimited else ''}"
    if not field.clamps or limits is not None or not 0 < value <= units.MAX_INT64:
        raise ValueError(f"is not in {bounds}")
    return min(max(value, low), high), f"{value} is not in {bounds}"


def _checked_text(key: object, value: Value, _: NodeFacts) -> tuple[Value, str]:
    if not isinstance(key, str) or not key or not _is_text(key):
        raise ValueError("the name is empty, not UTF-8, or holds NUL")
    if value is not CLEAR and not isinstance(value, str):
        raise ValueError(f"is {_kind(value)}, not a text")
    if value is not CLEAR and not _is_text(value):
        raise ValueError("is not UTF-8, or holds NUL")
    return value, ""


def _checked_variable(key: object, value: Value, node: NodeFacts) -> tuple[Value, str]:
    if isinstance(key, str) and "=" in key and _is_text(key):
        raise ValueError("a variable's name holds =")
    return _checked_text(key, value, node)


def _is_variable_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and "=" not in name and _is_text(name)


def _checked_spec(_: str, value: Value, __: NodeFacts) -> tuple[Value, str]:
    if not isinstance(value, MountSpec | DeviceSpec):
        raise ValueError("is neither mount nor device")  # noqa: TRY004 - one type for all that cannot be used
    if not (_is_absolute_path(value.host_path) and _is_absolute_path(value.container_path)):
        raise ValueError("a path is not absolute")
    if isinstance(value, MountSpec) and type(value.readonly) is not bool:
        raise ValueError("readonly is neither true nor false")
    if isinstance(value, DeviceSpec):
        if not _are_permissions(value.permissions):
            raise ValueError("permissions are not a subset of rwm")
        if value.numbers is not None and not _are_device_numbers(value.numbers):
            raise ValueError("numbers are not those of a device")
    return value, ""


def _are_device_numbers(value: object) -> bool:
    """Source: Linux include/linux/kdev_t.h, 12 bits and 20 bits."""
    if not isinstance(value, tuple) or [*map(type, value)] != [int, int]:
        return False
    major, minor = value
    return 0 <= int(major) < 1 << 12 and 0 <= int(minor) < 1 << 20


def _are_permissions(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) == len(set(value) & set("rwm"))


def _checked_cdi_device(name: str, value: Value, _: NodeFacts) -> tuple[Value, str]:
    if len(name) > _MOST_CDI_NAME or not _CDI_DEVICE.fullmatch(name):
        raise ValueError("is not a CDI device such as vendor.com/class=name")
    return value, ""


def _checked_cgroup_parent(_: str, value: Value, __: NodeFacts) -> tuple[Value, str]:
    if not isinstance(value, str) or not _is_text(value):
        raise ValueError("is not a path")
    try:
        cgroup_path(value)
    except CgroupPathError as error:
        raise ValueError(str(error)) from None
    return value, ""


_CHECKS: Final[Mapping[str, Callable[[str, Value, NodeFacts], tuple[Value, str]]]] = {
    flat.RESOURCES: _checked_resource,
    flat.CGROUP: _checked_own_parameter,
    flat.NODE_CGROUP: _checked_node_file,
    flat.SYSCTL: _checked_sysctl,
    flat.KERNEL_SETTINGS: _checked_kernel_setting,
    flat.UNIFIED: _checked_file,
    flat.CGROUP_PARENT: _checked_cgroup_parent,
    flat.MOUNTS: _checked_spec,
    flat.DEVICES: _checked_spec,
    flat.CDI_DEVICES: _checked_cdi_device,
    flat.ENV: _checked_variable,
    flat.LABELS: _checked_text,
    flat.ANNOTATIONS: _checked_text,
}
"""By group of fields: returns a value as it is used, and a note on its adjustment.

They raise ValueError, with the reason, for a value that cannot be used."""


def _kind(value: object) -> str:
    """Return the type's name with its article, for messages."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _is_text(value: object) -> bool:
    """Return whether both protobuf and a C string can hold the text."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_absolute_path(value: object) -> bool:
    return isinstance(value, str) and _is_text(value) and value.startswith("/")


def _without_uncarried(
    hook: Hook,
    fields: dict[Field, Value],
    uncarried: Sequence[Field],
    carried: CarriedFields,
    left_out: list[LeftOut],
) -> None:
    """Leave out what neither the front end's message nor a file carries; of an update without a word.

    The creation, or the evaluation of what runs, tells it. Nothing is lost of a sandbox's resource that the
    change gives to the pod's own cgroup, too.
    """
    for field in uncarried:
        if carried.file_instead(hook, field):
            continue
        is_of_pod = (
            field.group == flat.RESOURCES
            and Field(flat.CGROUP, RESOURCE_PARAMETERS.get(field.key, "")) in fields
        )
        if hook in _CREATING and not is_of_pod:
            left_out.append(_left_out(field, fields[field], carried.reason)._replace(is_uncarried=True))
        del fields[field]


def _with_files(hook: Hook, found: Usable, uncarried: Sequence[Field], carried: CarriedFields) -> Usable:
    """Return the change with values of the container's cgroup in place of what its message does not carry."""
    moved = {
        field: Field(flat.CGROUP, carried.file_instead(hook, field))
        for field in uncarried
        if field in found.fields
    }
    reasons = {place.key: found.reasons.get(field.key, found.reason) for field, place in moved.items()}
    return found._replace(
        fields={moved.get(field, field): value for field, value in found.fields.items()},
        notes={moved.get(field, field): note for field, note in found.notes.items()},
        reasons={**reasons, **found.reasons},
    )


def _without_dependents(
    fields: dict[Field, Value], requires: Mapping[str, str], left_out: list[LeftOut]
) -> None:
    """Leave out fields that depend on one that is left out.

    A period and a finite quota of one change are one share of a CPU; one of them with another value beside it
    would be another share. An unlimited quota is the same with any period. A pod's change holds them for its
    message and for its cgroup, which also depend on each other.
    """
    gone = {each.field for each in left_out}
    if not gone.isdisjoint(map(str, _PERIODS)):
        for quota in _QUOTAS:
            if fields.get(quota) not in (None, CLEAR, units.UNLIMITED):
                _leave_out(fields, quota, "the period, which it depends on, is left out", left_out)
    if not gone.isdisjoint(map(str, _QUOTAS)):
        for period in _PERIODS:
            if period in fields:
                _leave_out(fields, period, "the quota, which it depends on, is left out", left_out)
    for field in [each for each in fields if requires.get(str(each)) in gone]:
        _leave_out(fields, field, f"{requires[str(field)]}, which it requires, is left out", left_out)


def _without_contradictions(
    hook: Hook, fields: dict[Field, Value], merged: Merged, left_out: list[LeftOut]
) -> None:
    """Leave out values that are valid alone but contradict the request: the runtime would fail the call.

    The limit of memory and swap is at least that of memory. A cgroup parent is a systemd slice if the
    kubelet's is one. Source: runc libcontainer/cgroups/fs/memory.go and fs2 ConvertMemorySwapToCgroupV2Value;
    containerd internal/cri/server `getCgroupsPath`.
    """
    for suspect in (_SWAP, _LIMIT):
        if suspect in fields and _exceeds_swap(hook, fields, merged):
            _leave_out(fields, suspect, "the memory limit is above that of memory and swap", left_out)
    if _IDLE_FIELD in fields:
        _without_idle(fields, merged.start, left_out)
    parent = fields.get(_CGROUP_PARENT)
    pod = flat.pod_of(merged.start) if isinstance(parent, str) else None
    asked = pod.cgroup_parent if pod is not None else ""
    if isinstance(parent, str) and asked and parent.endswith(".slice") != asked.endswith(".slice"):
        _leave_out(fields, _CGROUP_PARENT, "is not of the same kind as the kubelet's", left_out)


def _exceeds_swap(hook: Hook, fields: Mapping[Field, Value], merged: Merged) -> bool:
    limit, swap = _resulting(_LIMIT, fields, merged), _resulting(_SWAP, fields, merged)
    if swap is None or swap == units.UNLIMITED:
        return False
    if limit is None:
        # The limit of a running container may be unknown; a new one has none.
        return hook in _CREATING
    return limit == units.UNLIMITED or limit > swap


def _resulting(field: Field, fields: Mapping[Field, Value], merged: Merged) -> int | None:
    if field in fields:
        value = fields[field]
    elif field in merged.fields:
        value = merged.fields[field].value
    else:
        value = flat.current_value(merged.start, field)
    return value if isinstance(value, int) and value else None


def _leave_out(fields: dict[Field, Value], field: Field, reason: str, left_out: list[LeftOut]) -> None:
    left_out.append(_left_out(field, fields.pop(field), reason))
