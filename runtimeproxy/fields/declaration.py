"""What is known of a field: one declaration each, see `runtimeproxy.fields.declared`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from runtimeproxy.fields import devices
from runtimeproxy.fields.formats import FileFormat, ProcessFormat, Value
from runtimeproxy.units import MAX_INT64, UNLIMITED, cpu_weight_from_shares, parse_cpu_list
from runtimeproxy.vocabulary import ClaimLevel, Role

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Kind(Enum):
    """The values of a field."""

    NUMBER = "number"
    CPUS = "CPU list"
    MEMORY_NODES = "NUMA node list"
    TEXT = "text"
    DEVICES = "numbers by block device"
    """Or settings by block device; see `fields/devices.py`. One owner has the whole value: two of them do not
    share it device by device."""


class Direction(Enum):
    """The direction of looser values, which parents get before their children."""

    NONE = "none"
    """No order is needed: the value is written at once."""
    LARGER = "larger"
    """A larger number is looser, and unlimited is the loosest."""
    SMALLER = "smaller"
    UNION = "union"
    """A list is looser the more members it has; an empty one is the loosest."""


class Rounding(Enum):
    """What the kernel makes of numbers: two that it rounds alike are the same."""

    NONE = "none"
    PAGES = "pages"
    WEIGHTS = "weights"
    """Shares become weights on version 2, and may come back as those of the next weight."""


ALL_LEVELS: Final = frozenset(ClaimLevel) - {ClaimLevel.NODE, ClaimLevel.POOL}
"""Of cgroups."""
ROLES: Final = {
    Kind.NUMBER: frozenset(Role),
    Kind.CPUS: frozenset({Role.SET, Role.AT_MOST}),
    Kind.MEMORY_NODES: frozenset({Role.SET, Role.AT_MOST}),
    Kind.TEXT: frozenset({Role.SET}),
    Kind.DEVICES: frozenset({Role.SET}),
}
"""What claims may do with a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """All that other packages need to know of one field."""

    name: str
    """The version 1 name of its cgroup file, as Koordinator uses it; without a file that in `Resources`."""
    kind: Kind = Kind.NUMBER
    neutral: Value | None = None
    """The value without any effect, as in a new cgroup; CLEAR leads to it. None: there is none, so that CLEAR
    can only take it out of a message."""

    minimum: int = 0
    maximum: int = MAX_INT64
    unlimited: bool = False
    """Whether -1 (or the text `max`) means "no limit"."""
    policy_minimum: int | None = None
    """The smallest number that a policy may set, if files hold smaller ones."""
    clamps: bool = False
    """Whether a policy's number above 0 and out of range becomes the nearest in range: the meaning stays."""
    rounding: Rounding = Rounding.NONE
    texts: tuple[str, ...] = ()
    """All values of a text; empty if any that matches `pattern` is one."""
    pattern: str = ""
    """The regular expression of a text's values, or of the settings of a block device."""
    reset: str = "0"
    """The setting that takes a block device's back, which a device without a line has."""
    is_of_root: bool = False
    """Whether only the root cgroup has its file; everything else is in the cgroups below alone."""

    only_set: bool = False
    """Whether a policy's change of the message may set it and nothing else."""
    levels: frozenset[ClaimLevel] = ALL_LEVELS
    """Where an owner with a lease may claim it."""

    v1: FileFormat | None = None
    """None: version 1 has no such file."""
    v2: FileFormat | None = None
    """None: version 2 has no such file."""
    processes: ProcessFormat | None = None
    """In place of `v1` and `v2` if each process of a cgroup has a value of its own. Policies may then set it
    at `levels` only."""
    capability: str = ""
    """The capability without which the kernel refuses some values."""
    writable: bool = True
    direction: Direction = Direction.NONE
    only_unified: bool = False
    """Whether its file is set in `unified` of a message only, and never written directly."""

    resource: str = ""
    """Its name in `Resources` and `ResourceChange`; empty: no message carries it by itself."""
    cri: str = ""
    """Its name in the CRI's LinuxContainerResources, and in messages made like that one; empty: the CRI does
    not carry it, messages of other front ends do."""
    oci: tuple[str, str] | None = None
    """Its place below `linux.resources` of an OCI runtime specification."""
    creation_only: bool = False
    """Whether a runtime takes it for a new container only: no update of a running one carries it."""
    unlimited_is_absent: bool = False
    """Whether "no limit" of a new container is an absent number: CRI-O refuses -1 there."""

    kubelet: frozenset[ClaimLevel] = frozenset()
    """Where the kubelet writes the file itself, without the runtime."""
    koordlet: str = ""
    """Koordlet's feature gate for writing the file from time to time."""
    koordlet_moves: str = ""
    """Koordlet's feature gates for moving the value from second to second, where policies may set it."""
    feature: str = ""
    """The `Feature` of kernels that have its file."""

    @property
    def controllers(self) -> tuple[str, ...]:
        """The names of its controller, which are the same in both versions but for `blkio` and `io`."""
        files = (self.name, *(each.file for each in (self.v2,) if each is not None))
        return tuple(dict.fromkeys(file.partition(".")[0] for file in files))

    @property
    def is_list(self) -> bool:
        return self.kind in (Kind.CPUS, Kind.MEMORY_NODES)

    @property
    def is_parameter(self) -> bool:
        return not self.only_unified and (self.v1, self.v2, self.processes) != (None, None, None)

    def format_for(self, version: int) -> FileFormat | None:
        return self.processes or (self.v2 if version == 2 else self.v1)

    def is_at(self, level: ClaimLevel) -> bool:
        """Whether cgroups of a level have it."""
        return self.is_parameter and (self.processes is None or level in self.levels)

    def canonical(self, value: Value) -> Value:
        """The canonical value: an int in range, or a list or text as given.

        Raises:
            ValueError: Wrong type, out of range, not a list, or another text; says which.
        """
        if self.is_list:
            if not isinstance(value, str):
                raise ValueError(f"{self.name} takes a list such as 0-3,8, not {value!r}")
            parse_cpu_list(value)
            return value
        if self.kind is Kind.TEXT:
            if problem := self.text_problem(value):
                raise ValueError(f"{self.name} {problem}")
            return value
        if self.kind is Kind.DEVICES:
            try:
                return devices.text_of(self._settings(value))
            except ValueError as error:
                raise ValueError(f"{self.name} {error}") from None
        parsed = _as_int(self.name, value, unlimited=self.unlimited)
        if not (self.unlimited and parsed == UNLIMITED) and not self.minimum <= parsed <= self.maximum:
            limits = f"{self.minimum} to {self.maximum}" + (", or -1" if self.unlimited else "")
            raise ValueError(f"{self.name} is {parsed}, not in {limits}")
        return parsed

    def _settings(self, value: object) -> dict[str, str]:
        found = devices.by_device(value)
        if len(found) > devices.MOST_DEVICES:
            raise ValueError(f"has more than {devices.MOST_DEVICES} block devices")
        for device, setting in found.items():
            if self.pattern:
                if not re.fullmatch(self.pattern, setting):
                    raise ValueError(f"of {device} is not one of its settings")
            elif not devices.is_number(setting) or not self._has_number(int(setting)):
                raise ValueError(f"of {device} is not in {self.minimum} to {self.maximum}, or 0")
        return found

    def _has_number(self, number: int) -> bool:
        return str(number) == self.reset or self.minimum <= number <= self.maximum

    def text_problem(self, value: object) -> str:
        """Why this is not a value of the text; empty if it is one."""
        if self.texts:
            return "" if value in self.texts else f"is not one of {', '.join(self.texts)}"
        is_match = isinstance(value, str) and re.fullmatch(self.pattern, value) is not None
        return "" if is_match else "is not a name of letters, digits and . _ -"

    def is_same(self, one: Value, other: Value) -> bool:
        """Whether two values are the same to the kernel."""
        if one == other:
            return True
        if self.is_list:
            return _members(str(one)) == _members(str(other))
        if self.kind is Kind.DEVICES:
            return devices.by_device(one) == devices.by_device(other)
        if self.rounding is Rounding.PAGES:
            return int(one) // PAGE_BYTES == int(other) // PAGE_BYTES
        return self.rounding is Rounding.WEIGHTS and _are_one_weight(int(one), int(other))


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


def _are_one_weight(one: int, other: int) -> bool:
    # Shares that were read back from version 2's weights may lie one weight lower.
    try:
        return abs(cpu_weight_from_shares(one) - cpu_weight_from_shares(other)) <= 1
    except ValueError:
        return False


def _members(text: str) -> frozenset[int] | str:
    try:
        return parse_cpu_list(text)
    except ValueError:
        return text
