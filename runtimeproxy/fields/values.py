"""What a change does with a field: sets it to a plain value, takes it away, or changes what others set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Literal, TypeAlias

from runtimeproxy.vocabulary import Role


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
CgroupValue: TypeAlias = int | str | Literal[Clear.CLEAR] | Scale | Add | AtMost
TextEntries: TypeAlias = Mapping[str, str | Literal[Clear.CLEAR]]
