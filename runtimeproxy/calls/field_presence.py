"""The difference between "leave alone", "set" and "clear" on the wire, where scalars have no presence.

In a CRI message a scalar that is 0 or empty has no bytes: it stands for "no value given". So:

- "leave alone" touches nothing;
- "set" assigns the value; a value of 0 (only `oom_score_adj` has one) is the same as none;
- "clear" in a request that creates something empties the field: the runtime uses what it does without one;
- "clear" in an update cannot be an empty field, for that means "leave alone" there. Fields with a neutral
  value get that value; the others lose what this update would have set.

How values are read from messages is in `runtimeproxy.pods.resources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from runtimeproxy.hooks.changes import Clear, ResourceChange, TextEntries
from runtimeproxy.hooks.fields import RESOURCES, UNIFIED
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.resources import SCALARS
from runtimeproxy.units import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from cri_api.runtime.v1 import api_pb2

NEUTRAL: Final[Mapping[str, int]] = MappingProxyType(
    {
        "cpu_period_us": 100_000,
        "cpu_quota_us": -1,
        "cpu_shares": 1024,
        "memory_limit_bytes": -1,
        "memory_swap_limit_bytes": -1,
    }
)
"""What a running container gets when a value is cleared.

Source: Linux, Documentation/scheduler/sched-bwc.rst (period 100 ms, quota -1 is no limit),
kernel/sched/sched.h (a weight of 1024 is the default),
Documentation/admin-guide/cgroup-v1/memory.rst (-1 resets a limit).
"""


_LIMITS: Final = frozenset(("memory_limit_bytes", "memory_swap_limit_bytes"))


def written_value(field: str, value: int | str | Clear, *, update: bool) -> int | str:
    """What goes into a message for "set" or "clear" of a scalar; 0 or "" empty the field.

    "No limit" is an absent field where a container is created: CRI-O refuses a limit of -1 there.
    """
    if not update and value == UNLIMITED and field in _LIMITS:
        return 0
    if not isinstance(value, Clear):
        return value
    empty = "" if field.startswith("cpuset") else 0
    return NEUTRAL.get(field, empty) if update else empty


def scalar_edits(
    change: ResourceChange, in_force: Resources | None, sent: Resources, *, update: bool
) -> dict[str, int | str]:
    """The CRI fields to assign so that a change is made, and only those that really differ.

    Args:
        change: What policies want.
        in_force: What the runtime has already; None where that is nothing or not known. A field that the
            kubelet does not send and that has the wanted value already is not sent again.
        sent: What the message gives now.
        update: Whether the message updates something that exists.
    """
    edits: dict[str, int | str] = {}
    for field, cri_field in SCALARS.items():
        wanted = getattr(change, field)
        if wanted is None:
            continue
        value = written_value(field, wanted, update=update)
        present = getattr(sent, field)
        if value == (present or (0 if isinstance(value, int) else "")):
            continue
        if present is None and in_force is not None and _in_force(in_force, field, wanted, value):
            continue
        edits[cri_field] = value
    return edits


def _in_force(known: Resources, field: str, wanted: int | str | Clear, value: int | str) -> bool:
    """Whether the runtime has a value already; what it never got cannot be taken away either."""
    current: int | str | None = getattr(known, field)
    return current == value or (current is None and isinstance(wanted, Clear))


def given_fields(resources: Resources) -> frozenset[str]:
    """The fields that have a value, by the names under which changed fields have owners."""
    scalars = {f"{RESOURCES}.{field}" for field in SCALARS if getattr(resources, field) is not None}
    return frozenset(scalars | {f"{UNIFIED}[{key}]" for key in resources.unified})


def entry_edits(
    changes: TextEntries, present: Mapping[str, str], in_force: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """The map entries to set (or, with None, to take away), and only those that really differ.

    Args:
        changes: What policies want.
        present: What the message gives now.
        in_force: What the runtime has already; an entry that the message does not give is not sent again.
    """
    known = in_force or {}
    edits: dict[str, str | None] = {}
    for key, wanted in changes.items():
        value = None if isinstance(wanted, Clear) else wanted
        before = present.get(key)
        if before == value or (before is None and known.get(key) == value):
            continue
        edits[key] = value
    return edits


def assign_scalars(message: api_pb2.LinuxContainerResources, edits: Mapping[str, int | str]) -> None:
    """Makes scalar edits in place; a field that is not named stays as it is."""
    for cri_field, value in edits.items():
        setattr(message, cri_field, value)


def assign_entries(entries: MutableMapping[str, str], edits: Mapping[str, str | None]) -> None:
    """Sets or takes away single entries of a map in place."""
    for key, value in edits.items():
        if value is not None:
            entries[key] = value
        elif key in entries:
            del entries[key]
