"""Wanted values that are not in force, and why: for `explain`, `audit`, `status`, metrics and the page.

Whatever keeps a value from being applied says so here, with a cause and a reason: before it is booked (the
evaluation of what runs), when it is written (the ledger), or of a sysctl.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from runtimeproxy.hooks.algebra import Claim
from runtimeproxy.hooks.carried import NOT_CARRIED
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.vocabulary import claimed_text

if TYPE_CHECKING:
    from runtimeproxy.ledger.target import CgroupTarget


class UnappliedCause(StrEnum):
    """Why a value is not applied."""

    LOWER_LIMIT = "lower-limit"
    """A memory limit of what runs is not lowered: `ledger.lower_memory_limits` is false."""
    IN_USE = "in-use"
    """A memory limit that falls stays above what is in use."""
    TURN = "turn"
    """Its pod waits for its turn in a change of many pods."""
    NEXT_START = "next-start"
    """It counts at the creation only: with the next container, or the next sandbox."""
    NOT_CARRIED = NOT_CARRIED
    """It counts at the creation only, where the front end (`daemon.mode`) does not carry it."""
    CONFLICT = "conflict"
    """Another owner's value counts."""
    CPU_MODE = "cpu-mode"
    """The node is in another CPU mode, or cannot be brought to the wanted one."""
    KUBELET = "kubelet"
    """The kubelet writes it."""
    KOORDLET = "koordlet"
    """Koordlet writes it."""
    ONCE = "once"
    """It is a hook server's, was written once, and another program has changed it."""
    NO_FILE = "no-file"
    """Kernel, cgroup version or cgroup lack the file."""
    NO_CGROUP = "no-cgroup"
    """The cgroup does not exist."""
    CGROUP_UNKNOWN = "cgroup-unknown"
    """The runtime has not said which cgroup it has, or what was asked for it."""
    BASE_UNKNOWN = "base-unknown"
    """It counts on a value that is not known."""
    NOT_COUNTING = "not-counting"
    """Claims of its owner do not count now."""
    FOREIGN = "foreign"
    """It is left to another program, which keeps writing it."""
    INVALID = "invalid"
    """No kernel takes it."""
    REFUSED = "refused"
    """The kernel, or the tree of cgroups, has refused it."""
    UNREADABLE = "unreadable"
    """The files of its cgroup cannot be read or written just now."""
    HANGS = "hangs"
    """Reads or writes of files hang."""
    CHANGE_ENDED = "change-ended"
    """The change that it is part of has ended, as too many pods have failed."""


PROBLEMS: Final = frozenset(
    {
        UnappliedCause.FOREIGN,
        UnappliedCause.INVALID,
        UnappliedCause.REFUSED,
        UnappliedCause.UNREADABLE,
        UnappliedCause.HANGS,
        UnappliedCause.CHANGE_ENDED,
        UnappliedCause.CGROUP_UNKNOWN,
        UnappliedCause.BASE_UNKNOWN,
        UnappliedCause.CPU_MODE,
    }
)
"""The causes that need an operator's attention; the others are as configured, or end by themselves."""

LIMIT: Final = "memory.limit_in_bytes"

LOWER_LIMIT: Final = (
    "it is lower than the limit that runs, which waits for the kubelet's next call that sets it: "
    "ledger.lower_memory_limits is false"
)
IN_USE: Final = "more is in use: it follows the usage down"
NOT_RECORDED: Final = (
    "it counts on what the kubelet asked for, which is not known of what was found at the runtime"
)
OF_KUBELET: Final = "the kubelet writes this value of a QoS class"
OTHER_MODE: Final = "the node is not in the CPU mode that it needs"
BY_KOORDLET: Final = "koordlet writes it, and it is only compared; ledger.take_from_koordlet takes it"
WRITTEN_ONCE: Final = "a hook server's value is written once, and another program has changed it"
NO_FILE: Final = "its cgroup has no such file"
NO_FILE_HERE: Final = "the kernel, or the cgroup version of this node, has no such file"
NO_CGROUP: Final = "its cgroup does not exist"
IN_VM: Final = (
    "it runs in a VM (Kata Containers) and has no cgroup of its own on the node: only messages reach it, "
    "such as the kubelet's next update"
)
CGROUP_UNKNOWN: Final = "the runtime's status of it lacks the cgroup, or the resources that were asked for"


class Withheld(NamedTuple):
    """Claims on one value that are not in force."""

    claims: tuple[Claim, ...]
    cause: UnappliedCause
    reason: str
    """For people."""
    text: str = ""
    """The wanted value, where the claims do not say it."""

    @property
    def wanted(self) -> str:
        return self.text or ", ".join(dict.fromkeys(map(claim_text, self.claims)))


class UnappliedStage(StrEnum):
    """Where a value is kept from being applied; a value may be in several of them."""

    ASKED = "asked"
    """Claims of policies that are not in the books."""
    BOOKED = "booked"
    """Resolved values that the files do not hold."""
    LOST = "lost"
    """Claims in the books that others have replaced."""
    NETWORK = "network"
    """Resolved values that the network does not have."""


class Unapplied(NamedTuple):
    """A value that is wanted and not in force."""

    target: CgroupTarget
    field: str
    """A cgroup parameter in its version 1 name, a field of the message, or `sysctl[NAME]`."""
    wanted: str
    """For people; never the value of an environment variable."""
    owners: tuple[Claimant, ...]
    cause: UnappliedCause
    reason: str
    since_s: float
    """Since the epoch."""


_Place: TypeAlias = tuple[UnappliedStage, str]
"""Stage, and the cgroup's path or an id."""


class UnappliedValues:
    """The wanted values that are not in force now. Safe for all threads. `clock`: seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()
        self._values: dict[_Place, dict[str, Unapplied]] = {}
        self._new: dict[tuple[_Place, str], Unapplied] = {}

    def __len__(self) -> int:
        return len(self._values)

    @property
    def has_new(self) -> bool:
        """Whether `take_new` returns any."""
        return bool(self._new)

    def note(
        self,
        stage: UnappliedStage,
        target: CgroupTarget,
        cgroup: str,
        found: Mapping[str, Withheld],
        among: Collection[str] | None = None,
    ) -> None:
        """Replaces what is known of one cgroup.

        Args:
            stage: What it is known of.
            target: Whose cgroup it is.
            cgroup: Its path; the id of the sandbox or container if that is not known.
            found: What is not in force, by field.
            among: The fields that were checked; None for all.
        """
        place = stage, cgroup
        if not found and place not in self._values:
            return
        with self._lock:
            known = self._values.setdefault(place, {})
            for field in [each for each in known if each not in found]:
                if among is None or field in among:
                    del known[field]
                    self._new.pop((place, field), None)
            for field, each in found.items():
                self._put(place, field, target, each, known)
            if not known:
                del self._values[place]

    def _put(
        self, place: _Place, field: str, target: CgroupTarget, each: Withheld, known: dict[str, Unapplied]
    ) -> None:
        before = known.get(field)
        is_same = before is not None and before.cause is each.cause
        since_s = before.since_s if before is not None and is_same else self._clock()
        owners = tuple(dict.fromkeys(claim.owner for claim in each.claims))
        now = Unapplied(target, field, each.wanted, owners, each.cause, each.reason, since_s)
        known[field] = now
        if not is_same or (place, field) in self._new:
            self._new[place, field] = now

    def change_cause(self, old: UnappliedCause, new: UnappliedCause, reason: str) -> None:
        with self._lock:
            for place, known in self._values.items():
                for field, each in known.items():
                    if each.cause is old:
                        now = each._replace(cause=new, reason=reason, since_s=self._clock())
                        known[field] = self._new[place, field] = now

    def keep(self, is_there: Callable[[CgroupTarget, str], bool]) -> None:
        """Forgets what belongs to cgroups that are gone.

        Args:
            is_there: Whether a cgroup still counts, by whose it is, and its path.
        """
        with self._lock:
            gone = {
                place
                for place, known in self._values.items()
                if not all(is_there(each.target, place[1]) for each in known.values())
            }
            for place in gone:
                del self._values[place]
            for key in [each for each in self._new if each[0] in gone]:
                del self._new[key]

    def values(self, cgroup: str | None = None) -> tuple[Unapplied, ...]:
        with self._lock:
            if cgroup is None:
                return tuple(each for known in self._values.values() for each in known.values())
            places = (self._values.get((stage, cgroup), {}) for stage in UnappliedStage)
            return tuple(each for known in places for each in known.values())

    def take_new(self) -> tuple[Unapplied, ...]:
        """Values that are new since the last call, or have another cause since then."""
        with self._lock:
            found, self._new = tuple(self._new.values()), {}
        return found


def claim_text(claim: Claim) -> str:
    """A claim for people."""
    return claimed_text(claim.role, claim.value if isinstance(claim.value, int | float | str) else None)
