"""From the claims on one field to its value. Pure; used for the changes of one call and by the ledger.

Each value that a policy gives for a field is a claim with a role:

```
s1 = the set of the highest (priority, owner), else the base; CLEAR is the neutral value
s2 = s1 if unlimited, else max(least, ceil(s1 / ratio)) by one scale
s3 = s2 if unlimited, else s2 + the sum of all adds, each 0 <= add <= its ceil - s2
s4 = the smallest of s3 and every at_most + opening, which makes an unlimited value finite
```

An opening lifts all bounds of a value for a short time, while pods start below it; it is 0 else.

For lists of CPUs and NUMA nodes s4 is the members that s1 and every at_most share; if they share none, those
of at_most. An empty list is unlimited: a cgroup without a list of its own has its parent's.

The order of the claims does not count. A claim without effect, or with less than it asked for, is in the
result with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from runtimeproxy.fields.tables import FIELDS, LISTS, NEUTRAL
from runtimeproxy.hooks.changes import CLEAR, Add, AtMost, Clear, DeviceSpec, MountSpec, Scale
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.reasons import Reason
from runtimeproxy.hooks.settings import ConflictRule
from runtimeproxy.units import (
    format_cpu_list,
    parse_cpu_list,
)
from runtimeproxy.vocabulary import Role as Role

Value: TypeAlias = int | str
FieldValue: TypeAlias = Value | bytes | Clear | Scale | Add | AtMost | MountSpec | DeviceSpec | None
"""None for no value, as in a view."""


class Claim(NamedTuple):
    """One owner's wish for one field of one target."""

    owner: Claimant
    role: Role
    value: int | float | str | Clear | None
    """The value or CLEAR of a set, the ratio of a scale, the amount of an add, the bound of an at_most. None:
    it has a lease, and the file has its value: that was not saved when the process before this one ended."""
    priority: int = 0
    """Of two sets, or two scales, the one with the higher priority counts, then that of the later name."""
    reason: str | Reason = ""
    """For the audit; no secrets."""
    ceiling: int | None = None
    """Of an add: what the scaled value and this add reach at most; None for no ceiling."""


class ClaimOutcome(StrEnum):
    """Why a claim has no effect, or only a part of it."""

    LOST = "lost"
    """The claim of another owner counts instead."""
    VOID = "void"
    """It cannot be applied, or changes nothing."""
    CLAMPED = "clamped"
    """It counts with another amount."""


class Note(NamedTuple):
    """A claim that has no effect, or only a part of it."""

    claim: Claim
    outcome: ClaimOutcome
    reason: str


class Resolved(NamedTuple):
    """The value of one field, and how it came about."""

    value: FieldValue
    """The base as given where no claim counts. CLEAR only for a field without a neutral value (a label)."""
    owners: tuple[Claimant, ...] = ()
    """Who gives the value; none if no claim is effective."""
    original: FieldValue = None
    """Of a field of a change: the value before any policy."""
    claims: tuple[Claim, ...] = ()
    """Of a field of a change: all that policies gave, in their order; empty if it counts at creation only."""
    used: tuple[Claim, ...] = ()
    """The claims that count, in the order of the steps: set, scale, adds, at_mosts."""
    notes: tuple[Note, ...] = ()
    """All claims that are not used, or not as they are."""
    steps: tuple[Value | Clear | None, ...] = ()
    """s1 to s4, as in the module's docstring; empty for a value of a change that policies do no more than
    set."""
    problem: str = ""
    """For the operator: a list that shares no member with its bound."""
    is_clear: bool = False
    """Whether the value is what is left when it is taken away: CLEAR counts, and nothing else."""
    is_bounded: bool = False
    """Whether an at_most holds for the value, even one that is above it."""


def claims_of(
    owner: Claimant,
    value: Value | Clear | Scale | Add | AtMost,
    *,
    priority: int = 0,
    reason: str | Reason = "",
) -> tuple[Claim, ...]:
    """Return the claims behind the value that a policy gives for a field."""
    if isinstance(value, Scale):
        scale = Claim(owner, Role.SCALE, value.ratio, priority, reason)
        if value.value is None:
            return (scale,)
        return Claim(owner, Role.SET, value.value, priority, reason), scale
    if isinstance(value, Add):
        return (Claim(owner, Role.ADD, value.amount, priority, reason, value.at_most),)
    if isinstance(value, AtMost):
        return (Claim(owner, Role.AT_MOST, value.value, priority, reason),)
    return (Claim(owner, Role.SET, value, priority, reason),)


def resolve(
    parameter: str,
    base: Value | None,
    claims: Iterable[Claim],
    *,
    rule: ConflictRule = ConflictRule.LATER,
    is_base_known: bool = True,
    opening: int = 0,
) -> Resolved:
    """Return the value of a field.

    Args:
        parameter: the cgroup parameter by its version 1 name; the field's own name where there is none.
        base: what the kubelet asked for, or the original; None for nothing, which means the neutral value.
        claims: in any order; those of one owner and role differ in nothing but their values.
        rule: whose set and whose scale counts: that of the last (priority, owner), or of the first.
        is_base_known: whether `base` can be calculated with. If not, only a set leads to a value.
        opening: what is added to every at_most, in the unit of the field; 0 or more. None of a list.
    """
    given = tuple(claims)
    if not given:
        return Resolved(base)
    value = given[0].value
    is_alone = len(given) == 1 and given[0].role is Role.SET
    if is_alone and type(value) is int and parameter not in LISTS:
        # Most fields have one owner.
        return Resolved(value, (given[0].owner,), None, (), given, (), (value, value, value, value))
    run = _Run(parameter, sorted(given, key=_rank, reverse=rule is ConflictRule.LATER))
    s1 = run.set_value(base, NEUTRAL.get(parameter), is_base_known=is_base_known)
    if parameter in LISTS:
        s2 = s3 = s1
        run.void((Role.SCALE, Role.ADD), "a list has no amount")
        s4 = run.bound_list(s1)
    else:
        s2 = run.scale(s1)
        s3 = run.add(s2)
        s4 = run.bound(s3, opening)
    used, notes, steps = tuple(run.used), tuple(run.notes), (s1, s2, s3, s4)
    if not used:
        return Resolved(base, (), None, (), (), notes, steps, is_bounded=run.is_bounded)
    owners = tuple(dict.fromkeys(claim.owner for claim in used))
    is_clear = len(used) == 1 and used[0].value is CLEAR
    return Resolved(s4, owners, None, (), used, notes, steps, run.problem, is_clear, run.is_bounded)


_Amount: TypeAlias = Value | Clear | None
"""A value between two steps; None for one that is not known, CLEAR for one that is taken away."""


def divided(value: int, ratio: float) -> int:
    """Return a value divided by a ratio, rounded up."""
    # Exact for the decimal text of a ratio: 1.1 as a float is a little more than 1.1.
    dividend, divisor = Decimal(str(ratio)).as_integer_ratio()
    return -(-value * divisor // dividend)


def _rank(claim: Claim) -> tuple[int, str, str, str, str | Reason]:
    # Owner and value alone leave the order of two claims open that differ in what an audit shows.
    return claim.priority, str(claim.owner), str(claim.value), str(claim.ceiling), claim.reason


class _Run:
    """The steps for one field; each takes the claims of its role.

    Attributes:
        used: The claims that count so far.
        notes: The claims without their whole effect so far.
        problem: See `Resolved.problem`.
        is_bounded: See `Resolved.is_bounded`.
    """

    def __init__(self, parameter: str, claims: Sequence[Claim]) -> None:
        self._by_role: dict[Role, list[Claim]] = {}
        for claim in claims:
            self._by_role.setdefault(claim.role, []).append(claim)
        self._is_list = parameter in LISTS
        field = FIELDS.get(parameter)
        self._has_unlimited = field is not None and field.unlimited
        self._least = 0 if field is None else max(field.minimum, 0)
        self.used: list[Claim] = []
        self.notes: list[Note] = []
        self.problem = ""
        self.is_bounded = False

    def set_value(self, base: Value | None, neutral: Value | None, *, is_base_known: bool) -> _Amount:
        winner: Claim | None = None
        for claim in self._claims_of(Role.SET):
            if winner is not None:
                self._note(claim, ClaimOutcome.LOST, f"{winner.owner} sets this value")
            elif (
                claim.value is None
                or isinstance(claim.value, float)
                or (self._is_list and _members(claim.value) is None)
            ):
                self._note(claim, ClaimOutcome.VOID, "is not a value of this field")
            else:
                winner = claim
        if winner is None:
            if base is None and is_base_known:
                return neutral
            return base if is_base_known else None
        self.used.append(winner)
        if winner.value is CLEAR:
            return CLEAR if neutral is None else neutral
        assert winner.value is not None  # noqa: S101 - see the loop; for the type checker
        assert not isinstance(winner.value, float)  # noqa: S101 - see the loop; for the type checker
        return winner.value

    def scale(self, value: _Amount) -> _Amount:
        winner: Claim | None = None
        for claim in self._claims_of(Role.SCALE):
            if winner is not None:
                self._note(claim, ClaimOutcome.LOST, f"{winner.owner} scales this value")
                continue
            problem = self._problem(value) or _ratio_problem(claim.value)
            if problem:
                self._note(claim, ClaimOutcome.VOID, problem)
            else:
                winner = claim
        if winner is None or not isinstance(value, int):
            return value
        self.used.append(winner)
        assert isinstance(winner.value, int | float)  # noqa: S101 - see the loop; for the type checker
        scaled = divided(value, winner.value)
        if scaled < self._least:
            self._note(winner, ClaimOutcome.CLAMPED, f"{scaled} is below {self._least}")
        return max(self._least, scaled)

    def add(self, value: _Amount) -> _Amount:
        total = 0
        for claim in self._claims_of(Role.ADD):
            amount = claim.value
            problem = self._problem(value) or ("" if _is_number(amount) else "is not a whole number")
            if problem or not (isinstance(value, int) and isinstance(amount, int)):
                self._note(claim, ClaimOutcome.VOID, problem)
                continue
            most = amount if claim.ceiling is None else claim.ceiling - value
            added = max(0, min(amount, most))
            if added != amount:
                limit = f"{value} + {amount} is above {claim.ceiling}" if amount > most else "is below 0"
                self._note(claim, ClaimOutcome.CLAMPED if added else ClaimOutcome.VOID, limit)
            elif not added:
                self._note(claim, ClaimOutcome.VOID, "adds nothing")
            if added:
                self.used.append(claim)
                total += added
        return value + total if isinstance(value, int) and total else value

    def bound(self, value: _Amount, opening: int) -> _Amount:
        bounds: list[tuple[int, Claim]] = []
        for claim in self._claims_of(Role.AT_MOST):
            problem = "" if self._is_unlimited(value) else self._problem(value)
            if self._is_unlimited(claim.value):
                problem = "bounds nothing"
            elif not _is_number(claim.value):
                problem = "is not a whole number"
            if problem or not isinstance(claim.value, int):
                self._note(claim, ClaimOutcome.VOID, problem)
            else:
                bounds.append((claim.value + opening, claim))
        self.is_bounded = bool(bounds)
        result = value
        for bound, _ in bounds:
            if self._is_unlimited(result) or (isinstance(result, int) and bound < result):
                result = bound
        for bound, claim in bounds:
            if bound == result and value != result:
                self.used.append(claim)
                self._note_opening(claim, bound, opening)
            else:
                self._note(claim, ClaimOutcome.VOID, f"the value is {result} already")
        return result

    def _note_opening(self, claim: Claim, bound: int, opening: int) -> None:
        if opening:
            self._note(claim, ClaimOutcome.CLAMPED, f"{claim.value} + {opening} while pods start = {bound}")

    def bound_list(self, value: _Amount) -> _Amount:
        bounding, shared = self._bounds_of_list(value)
        self.is_bounded = bool(bounding)
        if not bounding:
            return value
        wanted = _members(value) or frozenset()
        if wanted and wanted <= shared:
            for claim in bounding:
                self._note(claim, ClaimOutcome.VOID, f"the value is {value} already")
            return value
        if wanted and not wanted & shared:
            self.problem = f"{value} shares no member with {format_cpu_list(shared)} of {bounding[0].owner}"
            for claim in self.used:
                self._note(claim, ClaimOutcome.LOST, self.problem)
            self.used.clear()
        self.used.extend(bounding)
        return format_cpu_list(wanted & shared or shared)

    def _bounds_of_list(self, value: _Amount) -> tuple[list[Claim], frozenset[int]]:
        bounding: list[Claim] = []
        shared: frozenset[int] = frozenset()
        for claim in self._claims_of(Role.AT_MOST):
            members = _members(claim.value)
            if value is None:
                self._note(claim, ClaimOutcome.VOID, _UNKNOWN)
            elif not members:
                self._note(claim, ClaimOutcome.VOID, "is not a list with members")
            elif bounding and not shared & members:
                self._note(claim, ClaimOutcome.LOST, f"shares no member with that of {bounding[0].owner}")
            else:
                shared = shared & members if bounding else members
                bounding.append(claim)
        return bounding, shared

    def void(self, roles: Iterable[Role], reason: str) -> None:
        for role in roles:
            for claim in self._claims_of(role):
                self._note(claim, ClaimOutcome.VOID, reason)

    def _claims_of(self, role: Role) -> Sequence[Claim]:
        return self._by_role.get(role, ())

    def _note(self, claim: Claim, outcome: ClaimOutcome, reason: str) -> None:
        self.notes.append(Note(claim, outcome, reason))

    def _is_unlimited(self, value: object) -> bool:
        return self._has_unlimited and isinstance(value, int) and value < 0

    def _problem(self, value: _Amount) -> str:
        """Return why there is nothing to calculate with; empty for a number."""
        if value is None:
            return _UNKNOWN
        if self._is_unlimited(value):
            return "the value is unlimited"
        return "" if isinstance(value, int) else "the value is not a number"


_UNKNOWN: Final = "the value that it counts on is not known"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ratio_problem(ratio: object) -> str:
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not math.isfinite(ratio):
        return "the ratio is not a number"
    return "" if ratio > 1 else f"a ratio of {ratio} changes nothing"


def _members(value: object) -> frozenset[int] | None:
    """Return the members of a list; None if it is none. CLEAR has none."""
    if value is CLEAR:
        return frozenset()
    try:
        return parse_cpu_list(value) if isinstance(value, str) else None
    except ValueError:
        return None
