"""Fits resolved values to the tree of cgroups: what kernel, runtime and systemd would refuse or change. Pure.

- quota: under a bounded ancestor finite ones become unlimited, unless a bound of their own limits them; else
  parents rise to their largest child;
- burst: at most the quota, unless that is unlimited;
- lists of CPUs and NUMA nodes: within those of a bounded ancestor, else parents get what their children have;
  on version 1 a list that is given back stays within its parent's, and an empty one is its parent's;
- memory: low and high are at least min;
- all numbers: within the range of the parameter; quotas as systemd rounds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.cgroups.order import Key
from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import LISTS, PARAMETERS, PERIOD, QUOTA, clamped
from runtimeproxy.units import CPU_PERIOD_US, UNLIMITED, format_cpu_list, parse_cpu_list, rounded_quota

BURST: Final = "cpu.cfs_burst_us"
MEMORY_MIN: Final = "memory.min"
MEMORY_AT_LEAST_MIN: Final = ("memory.low", "memory.high")


Path: TypeAlias = tuple[str, ...]


class TreeValue(NamedTuple):
    """A resolved value before it is fitted."""

    value: Value
    """-1 is unlimited; an empty list is the parent's."""
    is_claimed: bool = True
    """Whether claims led to it. Others are there because their children or parents depend on them."""
    is_bound: bool = False
    """Whether an at_most bounds it: the value then bounds all descendants, too."""
    is_new: bool = False
    """Whether the cgroup is about to be created: the value goes into a message, not into a file."""
    is_given_back: bool = False
    """Whether it is written with the end of all claims on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRules:
    """Facts of the node that fitting depends on."""

    cgroup_version: int = 2
    rounds_quotas: bool = False
    """Whether runtime and kubelet use systemd, which rounds quotas of pods and containers."""


class FitNote(NamedTuple):
    """A value that fitting has changed."""

    key: Key
    old: Value
    new: Value | None
    """None: nothing is written."""
    reason: str


class Fitted(NamedTuple):
    """The values to be written: those that were given, unless a note says that one is left out."""

    values: Mapping[Key, Value]
    notes: tuple[FitNote, ...] = ()


def fit(values: Mapping[Key, TreeValue], rules: TreeRules) -> Fitted:
    """Return fitted values. Fitting them again changes nothing.

    `values`: of any number of levels; the beginnings of a cgroup's path are its ancestors. A quota needs its
    period beside it unless that is 100 ms, and a burst its quota unless that is unlimited.
    """
    tree = _Tree(values, rules)
    for name in LISTS:
        tree.fit_lists(name)
    tree.clamp()
    tree.bound_quotas()
    tree.raise_quotas()
    tree.cap_bursts()
    for name in MEMORY_AT_LEAST_MIN:
        tree.raise_to_min(name)
    return Fitted(tree.values, tuple(tree.notes))


class _Tree:
    """The values while they are fitted. `notes`: on the changed ones."""

    def __init__(self, given: Mapping[Key, TreeValue], rules: TreeRules) -> None:
        self._given = given
        self._rules = rules
        self.values: dict[Key, Value] = {key: each.value for key, each in given.items()}
        self.notes: list[FitNote] = []

    def clamp(self) -> None:
        for key, each in self._given.items():
            if each.is_claimed and (within := clamped(key.name, each.value)) != each.value:
                self._set(key, within, f"{each.value} is out of range")

    def fit_lists(self, name: str) -> None:
        bounds: dict[Path, Path] = {}
        cgroups = self._cgroups(name)
        for path, given in cgroups:
            parent = self._parent(path, name)
            bound = bounds.get(parent) if parent is not None else None
            self._inherit_list(Key(path, name), given)
            if bound is not None:
                self._bound_list(Key(path, name), bound)
            elif given.is_given_back:
                self._keep_within_parent(Key(path, name))
            nearest = path if given.is_bound and self._members(path, name) else bound
            if nearest is not None:
                bounds[path] = nearest
        for path, _ in reversed(cgroups):
            parent = self._parent_with_list(path, name)
            if parent is not None:
                self._widen_list(Key(parent, name), path)
        self._leave_out_empty(name)

    def bound_quotas(self) -> None:
        bounds: dict[Path, Path] = {}
        for path, given in self._cgroups(QUOTA):
            parent = self._parent(path, QUOTA)
            bound = bounds.get(parent) if parent is not None else None
            is_bound = given.is_bound and self._quota(path) != UNLIMITED
            if bound is not None and self._quota(path) != UNLIMITED:
                self._bound_quota(path, bound, is_bound=is_bound)
            elif given.is_claimed and not is_bound:
                self._round(path)
            nearest = path if is_bound and self._quota(path) != UNLIMITED else bound
            if nearest is not None:
                bounds[path] = nearest

    def raise_quotas(self) -> None:
        for path, _ in reversed(self._cgroups(QUOTA)):
            # An unlimited child asks nothing of its ancestors, and passes on what its own children ask for.
            for ancestor in _ancestors(path):
                if UNLIMITED not in (self._quota(path), self._quota(ancestor)):
                    self._raise_quota(ancestor, path)

    def cap_bursts(self) -> None:
        for path, _ in self._cgroups(BURST):
            quota = self.values.get(Key(path, QUOTA), UNLIMITED)
            if quota != UNLIMITED and int(self.values[Key(path, BURST)]) > int(quota):
                self._set(Key(path, BURST), quota, f"the quota is {quota}")

    def raise_to_min(self, name: str) -> None:
        for path, _ in self._cgroups(name):
            least = int(self.values.get(Key(path, MEMORY_MIN), 0))
            value = int(self.values[Key(path, name)])
            if value in (0, UNLIMITED):
                continue
            if least == UNLIMITED or value < least:
                self._set(Key(path, name), least, f"{MEMORY_MIN} is {least}")

    def _inherit_list(self, key: Key, given: TreeValue) -> None:
        """Version 1 takes no empty list for a running cgroup: its parent's stands for it."""
        if self._rules.cgroup_version != 1 or given.is_new or self._members(*key):
            return
        parent = self._parent_with_list(*key)
        if parent is not None:
            self._set(key, self.values[Key(parent, key.name)], f"has the list of {_name(parent)}")

    def _bound_list(self, key: Key, bound: Path) -> None:
        self._limit_list(key, bound, f"{_name(bound)} is bounded")

    def _keep_within_parent(self, key: Key) -> None:
        """Version 1 refuses a list with more than the parent's. That may have shrunk since."""
        parent = self._parent_with_list(*key)
        if self._rules.cgroup_version == 1 and parent is not None:
            if self._given[Key(parent, key.name)].is_claimed:
                return  # which gets what its children have
            self._limit_list(key, parent, f"{_name(parent)} has no more")

    def _limit_list(self, key: Key, above: Path, reason: str) -> None:
        members, most = self._members(*key), self._members(above, key.name)
        if not members <= most:
            self._set(key, format_cpu_list(members & most or most), reason)

    def _widen_list(self, key: Key, child: Path) -> None:
        members, needed = self._members(*key), self._members(child, key.name)
        if not needed <= members:
            self._set(key, format_cpu_list(members | needed), f"has the list of {_name(child)}, too")

    def _leave_out_empty(self, name: str) -> None:
        if self._rules.cgroup_version == 1:
            for path, given in self._cgroups(name):
                key = Key(path, name)
                if not given.is_new and not self._members(*key):
                    old = self.values.pop(key)
                    self.notes.append(FitNote(key, old, None, "the parent's list is not known"))

    def _bound_quota(self, path: Path, bound: Path, *, is_bound: bool) -> None:
        quota = UNLIMITED
        if is_bound:
            # The kernel compares shares of a CPU.
            most = self._quota(bound) * self._period(path) // self._period(bound)
            quota = min(self._quota(path), most) if most >= PARAMETERS[QUOTA].minimum else UNLIMITED
        if quota != self._quota(path):
            self._set(Key(path, QUOTA), quota, f"{_name(bound)} is bounded")

    def _raise_quota(self, path: Path, child: Path) -> None:
        # The kernel compares shares of a CPU.
        needed = -(-self._quota(child) * self._period(path) // self._period(child))
        if needed > self._quota(path):
            quota = needed if needed <= PARAMETERS[QUOTA].maximum else UNLIMITED
            self._set(Key(path, QUOTA), quota, f"{_name(child)} has {self._quota(child)}")
            self._round(path)

    def _round(self, path: Path) -> None:
        if self._rules.rounds_quotas:
            quota = self._quota(path)
            rounded = rounded_quota(quota, self._period(path))
            if quota < rounded <= PARAMETERS[QUOTA].maximum:
                self._set(Key(path, QUOTA), rounded, "systemd rounds to 1 %")

    def _parent_with_list(self, path: Path, name: str) -> Path | None:
        return next((each for each in _ancestors(path) if self._members(each, name)), None)

    def _members(self, path: Path, name: str) -> frozenset[int]:
        return parse_cpu_list(str(self.values.get(Key(path, name), "")))

    def _quota(self, path: Path) -> int:
        return int(self.values.get(Key(path, QUOTA), UNLIMITED))

    def _period(self, path: Path) -> int:
        return int(self.values.get(Key(path, PERIOD), CPU_PERIOD_US))

    def _cgroups(self, name: str) -> list[tuple[Path, TreeValue]]:
        """The cgroups with a value of this name, parents first."""
        found = ((key.path, value) for key, value in self._given.items() if key.name == name)
        return sorted(found, key=lambda each: (len(each[0]), each[0]))

    def _parent(self, path: Path, name: str) -> Path | None:
        return next((each for each in _ancestors(path) if Key(each, name) in self._given), None)

    def _set(self, key: Key, value: Value, reason: str) -> None:
        self.notes.append(FitNote(key, self.values[key], value, reason))
        self.values[key] = value


def _ancestors(path: Path) -> Iterator[Path]:
    for length in range(len(path) - 1, -1, -1):
        yield path[:length]


def _name(path: Path) -> str:
    return "/" + "/".join(path)
