"""Linux resources of containers, and a change of them: sets, clears, and changes of what others set.

The attributes stand here for type checkers. One that is declared and not written here is there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final, Literal, TypeAlias, TypeVar

from runtimeproxy.fields.declared import DECLARED
from runtimeproxy.vocabulary import Role

T = TypeVar("T")


class Clear(Enum):
    """The type of CLEAR."""

    CLEAR = "clear"

    def __repr__(self) -> str:
        return "CLEAR"


CLEAR: Final = Clear.CLEAR
"""Take the value away: the runtime then uses its default."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Divides the value, rounded up; an unlimited one stays unlimited. One policy per field."""

    role: ClassVar = Role.SCALE
    ratio: float
    """The divisor: above 1; with 1 or less nothing changes."""
    value: int | None = None
    """Also sets this value first; None divides what others set, or what the kubelet asked for."""


@dataclass(frozen=True, slots=True)
class Add:
    """Adds to the value that sets and scales lead to; an unlimited one stays unlimited."""

    role: ClassVar = Role.ADD
    amount: int
    """Above 0."""
    at_most: int | None = None
    """What the value and this amount reach at most; None for no ceiling."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """Bounds the value that all others lead to; makes an unlimited one finite."""

    role: ClassVar = Role.AT_MOST
    value: int | str
    """The largest value, or for a list of CPUs or NUMA nodes those that it may have."""


IntChange: TypeAlias = int | Literal[Clear.CLEAR] | None
AmountChange: TypeAlias = int | Literal[Clear.CLEAR] | Scale | Add | AtMost | None
"""A plain value sets; Scale, Add and AtMost change the value that others set or ask for."""
ListChange: TypeAlias = str | Literal[Clear.CLEAR] | AtMost | None
TextChange: TypeAlias = str | Literal[Clear.CLEAR] | None
CgroupValue: TypeAlias = int | str | Literal[Clear.CLEAR] | Scale | Add | AtMost
TextEntries: TypeAlias = Mapping[str, str | Literal[Clear.CLEAR]]


def _with_all_declared(kind: type[T]) -> type[T]:
    # Before `dataclass` reads the attributes.
    for each in DECLARED:
        if each.resource and each.resource not in kind.__annotations__:
            kind.__annotations__[each.resource] = "object"
            setattr(kind, each.resource, None)
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
@_with_all_declared
class Resources:
    """Linux resources of a container or sandbox; None (or empty) means that no value is set."""

    cpu_period_us: int | None = None
    cpu_quota_us: int | None = None
    """-1 means unlimited."""
    cpu_shares: int | None = None
    """Unitless weight, 2 to 262,144."""
    memory_limit_bytes: int | None = None
    memory_swap_limit_bytes: int | None = None
    oom_score_adj: int | None = None
    """None also stands for 0, which is the same on the wire."""
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    pids_limit: int | None = None
    """-1 means unlimited. This and the classes are never in a message of the CRI."""
    rdt_class: str | None = None
    blockio_class: str | None = None
    hugepage_limits_bytes: tuple[tuple[str, int], ...] = ()
    """Pairs of page size (`2MB`) and limit."""
    unified: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
@_with_all_declared
class ResourceChange:
    """A change of the CRI's LinuxContainerResources, and of what only other front ends carry."""

    cpu_period_us: IntChange = None
    """CFS period, 1,000 to 1,000,000."""
    cpu_quota_us: AmountChange = None
    """CFS quota, at least 1,000; -1 means unlimited, at creation too."""
    cpu_shares: AmountChange = None
    """cpu.shares (unitless weight), 2 to 262,144."""
    memory_limit_bytes: AmountChange = None
    """Memory limit, above 0; -1 means unlimited.

    At creation -1 becomes no value, which every runtime treats as unlimited (CRI-O refuses -1 there); in an
    update, where absent means unchanged, it is sent as -1.
    """
    memory_swap_limit_bytes: AmountChange = None
    """Memory plus swap limit, above 0; -1 means unlimited, written like that of `memory_limit_bytes`."""
    oom_score_adj: IntChange = None
    """-1000 to 1000; 0 is a value like any other: runtimes set it, too, where the message has none. Of what
    runs its processes get it."""
    cpuset_cpus: ListChange = None
    """A CPU list such as `0-3,8`."""
    cpuset_mems: ListChange = None
    """A NUMA node list."""
    pids_limit: AmountChange = None
    """The largest number of processes and threads, above 0; -1 means unlimited. Where the front end does not
    carry it, by file, from the container's start on."""
    rdt_class: TextChange = None
    """The name of a class of RDT (cache and memory bandwidth); only by NRI, at creation."""
    blockio_class: TextChange = None
    """The name of a class of the runtime's block I/O configuration; only by NRI, at creation."""
    unified: TextEntries = field(default_factory=dict)
    """cgroup v2 files by name; key by key."""
