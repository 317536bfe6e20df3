"""The law: from what pods feel to the bound on all BE pods, in millicores. Pure.

A pod's error is the median of its last waits over their targets; the largest one of all pods decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from runtimeproxy.qosmanager.guard.lever import LEAST_MILLICORES

PAUSE_S: Final = 3.0
"""After a decrease, until its effect can be seen in three samples."""
CPUS_PAUSE_S: Final = 5.0
"""The same where the bound is CPUs, which change less often."""
CALM: Final = 0.8
"""Below this error, BE pods get more back."""
CALM_S: Final = 10.0
LEAST_CUT: Final = 0.1
MOST_CUT: Final = 0.5
ENOUGH: Final = 0.9
"""The error that decreases after the first one are to reach."""
LEAST_BE_SHARE: Final = 0.05
"""Of the node's CPUs: BE pods that use less are not what others wait for."""
LEAST_STEP: Final = 100
STEP_SHARE: Final = 0.05
"""Of the node's CPUs."""
LEAST_FLOOR: Final = 200
FLOOR_SHARE: Final = 0.1
"""Of the node's CPUs: what BE pods keep in any case."""
NEAR_BAD: Final = 0.9
"""Of the bound that was too much: above this a rise waits longer."""
SAME_LOAD: Final = 0.9
"""Of what was used when a bound was too much, by all but BE pods or by the pod that waited: with less, it
need not be too much now. A rise has failed only if all but BE pods do not use more than by as much."""
FIRST_WAIT_S: Final = 120.0
"""How long a rise above the bound that was too much waits for a time without waits. A rise is right when it
has held for as long."""
MOST_WAIT_S: Final = 1_800.0
FORGOTTEN_S: Final = 3_600.0
"""A bound that was too much so long ago says nothing."""
SPARE: Final = 1.2
"""A bound of so many times what BE pods ask for bounds nothing."""
SPARE_S: Final = 60.0
MOST_SPARE_S: Final = 600.0
NEEDED_S: Final = 120.0
"""If waits come back so soon after a bound ended because it bounded nothing, it did."""
SATED: Final = 0.1
"""BE pods of which some task waits for a CPU more of the time ask for more than they use."""
JUDGED: Final = 0.5
"""Decreases are judged when BE pods have given up so much of their bound; half as much if that is all."""
EFFECT: Final = 0.3
"""Of the share that BE pods gave up, the share by which an error must have fallen. It falls by as much where
a pod waits behind BE pods only, and by nothing where it waits for itself."""
FUTILE_S: Final = 300.0
MOST_FUTILE_S: Final = 3_600.0
TRIAL_S: Final = 60.0
"""For how long a bound that began at its floor, and is not seen to have an effect there, may rise."""
RETURN_STEPS: Final = 3
BLIND_HOLD_S: Final = 60.0


class LawInputs(NamedTuple):
    """What the law goes by, at one moment."""

    now_s: float
    errors: Mapping[str, float]
    """By pod's uid, of those that have one now."""
    be_used: float
    """Millicores of all BE pods, mean of the last seconds."""
    be_asked: float
    """Millicores: the 95th percentile of 10 s."""
    cpus: int
    floor: int
    """Millicores, by the strategy; the law has its own least ones."""
    others_used: float | None = 0.0
    """Millicores of all that is no BE pod; None: not known."""
    be_waits: float | None = None
    """Share of the time in which some task of BE pods waits for a CPU, by PSI; None: not known."""
    by_cpus: bool = False
    """Whether a bound of this node is whole CPUs, from `LEAST_MILLICORES` on: see `lever`."""
    moved_s: float = float("-inf")
    """When the number of CPUs changed last that BE pods may have."""
    loads: Mapping[str, float] = {}
    """Millicores, mean of some seconds: of pods with an error above 1, and of `LawState.bad_pod`, 0 if it is
    gone; without those that are not known."""


class Decreases(NamedTuple):
    """Decreases without a moment of enough in between, as far as they are compared with what follows."""

    bound: int | None
    """Before the first one; None: none."""
    start: int
    """The bound with which the part begins that is judged next."""
    errors: Mapping[str, float]
    """The largest ones at the beginning of that part, by pod."""
    decreases: int = 0
    """In that part."""
    total: int = 0
    effective: frozenset[str] = frozenset()
    """Pods for which a part before had an effect."""


class Rise(NamedTuple):
    """The last rise of the bound, or its end, as long as that may be taken back."""

    held: int
    """The bound before it."""
    at_s: float
    load: float | None
    """What all but BE pods used then, in millicores; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawState:
    """The bound, and what it follows from."""

    bound: int | None = None
    """B, in millicores; None: none."""
    bad: int | None = None
    """The bound before the last decrease."""
    bad_s: float = float("-inf")
    bad_load: float = 0.0
    """What all but BE pods used then, in millicores; 0: not known."""
    bad_pod: str = ""
    """The pod that waited then."""
    bad_pod_load: float = 0.0
    """What it used, in millicores; 0: not known."""
    wait_s: float = FIRST_WAIT_S
    """How long a rise above the bad bound waits at the same load, and has to hold."""
    decreased_s: float = float("-inf")
    over_s: float = float("-inf")
    """When the error was above 1 last."""
    calm_s: float | None = None
    """Since when the error is low, or since the last rise after that."""
    rise: Rise | None = None
    """None: there was none since the last decrease, or it has held."""
    spare_s: float | None = None
    """Since when this bound is more than BE pods ask for."""
    spare_wait_s: float = SPARE_S
    """How long it has to be so; doubled when the end of a bound was wrong."""
    spared_s: float = float("-inf")
    """When a bound ended for that."""
    row: Decreases | None = None
    settled: Mapping[str, float] = field(default_factory=dict)
    """By pod: until when it lowers nothing: the last decreases had no effect, those before had one."""
    futile: Mapping[str, float] = field(default_factory=dict)
    """By pod: until when it drives nothing."""
    futile_s: Mapping[str, float] = field(default_factory=dict)
    """By pod that was futile or settled: how long it is the next time."""
    returning: tuple[int | None, ...] = ()
    """The next bounds of a return; None: no bound."""


class LawStep(NamedTuple):
    """One decision."""

    state: LawState
    rule: int
    """1 to 4; 0: none applies."""
    reason: str
    error: float | None = None
    """The largest one of the pods that drive; None: there is none."""
    driver: str = ""
    """Its pod."""


def floor_of(cpus: int, floor: int = 0, *, by_cpus: bool = False) -> int:
    """Return F, in millicores: what BE pods keep in any case.

    Args:
        cpus: Of the node.
        floor: By the strategy; it may be more than the node has.
        by_cpus: See `LawInputs`. F is whole CPUs then, too, if it is large enough.
    """
    least = max(LEAST_FLOOR, int(cpus * 1_000 * FLOOR_SHARE), min(floor, cpus * 1_000))
    return -(-least // 1_000) * 1_000 if by_cpus and least >= LEAST_MILLICORES else least


def _floor(facts: LawInputs) -> int:
    return floor_of(facts.cpus, facts.floor, by_cpus=facts.by_cpus)


def step_of(cpus: int, *, is_whole: bool = False) -> int:
    """Return by how much a bound rises; a bound of whole CPUs by whole ones."""
    step = max(LEAST_STEP, int(cpus * 1_000 * STEP_SHARE))
    return -(-step // 1_000) * 1_000 if is_whole else step


def cut_of(error: float, decreases: int = 0) -> float:
    """Return by how much of itself the bound falls.

    After decreases that were not enough by more, as far as an error needs that falls with the bound.
    """
    more = min(LEAST_CUT * (decreases + 1), 1 - ENOUGH / error)
    return min(max((error - 1) / 4, more, LEAST_CUT), MOST_CUT)


def _is_whole(bound: int, facts: LawInputs) -> bool:
    return facts.by_cpus and bound >= LEAST_MILLICORES


def _base(state: LawState, facts: LawInputs, floor: int) -> int:
    """What a decrease begins with: the bound, or less if BE pods cannot use all of it."""
    asked = facts.be_asked
    if facts.by_cpus and (state.bound is None or _is_whole(state.bound, facts)):
        # They share their CPUs with all others, and so get less than so many CPUs.
        left = 1 - (facts.others_used or 0.0) / (facts.cpus * 1_000)
        asked = min(asked / max(left, 0.1), facts.cpus * 1_000)
        asked = -(-asked // 1_000) * 1_000 if asked >= LEAST_MILLICORES else asked
    return max(int(asked), floor) if state.bound is None else max(min(state.bound, int(asked)), floor)


def decide(state: LawState, facts: LawInputs) -> LawStep:
    """Return the next bound; to be called once a second while pods have errors."""
    now_s = facts.now_s
    futile, settled = (
        {pod: until_s for pod, until_s in each.items() if now_s < until_s}
        for each in (state.futile, state.settled)
    )
    if len(futile) < len(state.futile):
        # A pod that drives again says nothing of the last rise.
        state = replace(state, rise=None)
    state = replace(state, futile=futile, settled=settled)
    if now_s - state.bad_s >= FORGOTTEN_S:
        state = replace(state, bad=None, wait_s=FIRST_WAIT_S, spare_wait_s=SPARE_S)
    driving = {pod: error for pod, error in facts.errors.items() if pod not in futile}
    driver = max(driving, key=lambda pod: (driving[pod], pod), default="")
    error = driving.get(driver)
    if error is not None and error > 1:
        return _tell(_over(state, facts, driving), error, driver)
    return _tell(_under(replace(_held(state, now_s), row=None, settled={}), facts, error), error, driver)


def _tell(step: LawStep, error: float | None, driver: str) -> LawStep:
    return step._replace(error=error, driver=driver)


def _over(state: LawState, facts: LawInputs, errors: Mapping[str, float]) -> LawStep:
    """Rules 1 and 3."""
    now_s, floor = facts.now_s, _floor(facts)
    state = replace(state, over_s=now_s, calm_s=None, spare_s=None)
    pause_s = CPUS_PAUSE_S if state.bound is not None and _is_whole(state.bound, facts) else PAUSE_S
    decreased_s = state.decreased_s
    if state.rise is None:
        # Its CPUs may have changed later.
        decreased_s = max(decreased_s, facts.moved_s)
    if now_s - decreased_s < pause_s:
        return LawStep(state, 1, f"waits {pause_s:g} s for the effect of the last decrease")
    over = {pod: each for pod, each in errors.items() if each > 1 and pod not in state.settled}
    if state.returning and not over:
        return _next_of_return(state)
    if state.row is not None and state.bound is not None:
        row, bound = state.row, state.bound
        state, useless = _judged_row(state, row, facts, over, bound)
        over = {pod: each for pod, each in over.items() if pod not in useless}
        if useless and not over:
            return _returned(state, bound, row, facts, is_settled=bool(useless & row.effective))
    if not over:
        return LawStep(state, 3, "less had no effect: it stays")
    if state.bound is None and not _uses_much(facts):
        return LawStep(state, 0, f"BE pods use {facts.be_used:.0f}m: they are not what others wait for")
    state = replace(state, returning=())
    if state.bound is None and now_s - state.spared_s < NEEDED_S:
        wait_s = min(state.spare_wait_s * 2, MOST_SPARE_S)
        state = replace(state, spare_wait_s=wait_s, spared_s=float("-inf"))
    if state.bound is not None and not _can_fall(state.bound, facts):
        return _at_floor(state, facts, over)
    return _decreased(state, facts, over, floor)


def _decreased(state: LawState, facts: LawInputs, over: Mapping[str, float], floor: int) -> LawStep:
    """Rule 1: the next decrease of a row."""
    now_s, before = facts.now_s, _base(state, facts, floor)
    row = state.row or Decreases(state.bound, before, over)
    if row.decreases == 0:
        row = row._replace(start=before, errors=over)
    driver = max(over, key=lambda pod: (over[pod], pod))
    held = _failed_from(state, facts)
    if held is not None and held < before:
        after = max(held, floor)
        reason = f"{before}m is too much: back to {after}m, which was right"
    else:
        cut = cut_of(over[driver], row.total)
        after = max(_less(before, cut, facts), floor)
        reason = f"{before}m less {cut:.0%}, at least {floor}m = {after}m"
    is_retry = held is not None and _is_near_bad(state, before if state.bound is None else state.bound)
    bad = before
    if held is not None and state.bound is None and state.bad is not None:
        # The end of a bound has shown nothing new of smaller ones.
        bad = min(state.bad, before)
    state = replace(
        state,
        bound=after,
        bad=bad,
        bad_s=now_s,
        bad_load=facts.others_used or 0.0,
        bad_pod=driver,
        bad_pod_load=facts.loads.get(driver, 0.0),
        wait_s=min(state.wait_s * 2, MOST_WAIT_S) if is_retry else state.wait_s,
        rise=None,
        decreased_s=now_s,
        row=row._replace(decreases=row.decreases + 1, total=row.total + 1),
    )
    return LawStep(state, 1, reason)


def _failed_from(state: LawState, facts: LawInputs) -> int | None:
    """The bound before a rise that has just failed, as it held at this load; None: there is none."""
    rise = state.rise
    if rise is None or facts.now_s - rise.at_s >= state.wait_s:
        return None
    if facts.others_used is None or rise.load is None:
        return rise.held
    return rise.held if facts.others_used * SAME_LOAD <= rise.load else None


def _is_near_bad(state: LawState, bound: int) -> bool:
    return state.bad is not None and bound > NEAR_BAD * state.bad


def _less(bound: int, cut: float, facts: LawInputs) -> int:
    """A bound less a share of it."""
    after = int(bound * (1 - cut))
    if not _is_whole(bound, facts):
        return after
    # A decrease that takes no whole CPU would have no effect.
    fewer = bound - bound % 1_000 if bound % 1_000 else bound - 1_000
    return min(after - after % 1_000 if after >= LEAST_MILLICORES else after, fewer)


def _uses_much(facts: LawInputs) -> bool:
    return facts.be_used > LEAST_BE_SHARE * facts.cpus * 1_000


def _can_fall(bound: int, facts: LawInputs) -> bool:
    """Whether BE pods have more than they keep in any case, and use enough to be waited for."""
    return bound > _floor(facts) and _uses_much(facts)


def _at_floor(state: LawState, facts: LawInputs, over: Mapping[str, float]) -> LawStep:
    """Rule 1 without room: what a bound does that began there is seen only when it rises."""
    floor = _floor(facts)
    where = f"the bound is at its floor of {floor}m"
    if not _uses_much(facts):
        where = f"BE pods use {facts.be_used:.0f}m under their bound of {state.bound}m"
    if state.row is not None and over.keys() & state.row.effective:
        return LawStep(state, 1, f"{where}, which has an effect")
    waited_s = facts.now_s - state.decreased_s
    if waited_s < max(state.futile_s.get(pod, TRIAL_S) for pod in over):
        return LawStep(state, 1, where)
    trial = dict.fromkeys(over, facts.now_s + TRIAL_S)
    longer = {pod: min(state.futile_s.get(pod, FUTILE_S) * 2, MOST_FUTILE_S) for pod in over}
    state = replace(
        state, futile={**state.futile, **trial}, futile_s={**state.futile_s, **longer}, row=None, bad=None
    )
    return LawStep(state, 3, f"{where}, without an effect so far: more for {TRIAL_S:g} s, to compare")


def _judged_row(
    state: LawState, row: Decreases, facts: LawInputs, over: Mapping[str, float], bound: int
) -> tuple[LawState, frozenset[str]]:
    """The state after what the decreases so far have done, and the pods for which that is nothing."""
    fallen = 1 - bound / row.start
    is_first = row.decreases == 1
    if is_first:
        # The first samples may be of BE pods that had only begun.
        errors = {pod: max(each, row.errors.get(pod, 0.0)) for pod, each in over.items()}
        row = row._replace(errors={**row.errors, **errors})
    can_fall = _can_fall(bound, facts)
    if fallen < (JUDGED if can_fall else JUDGED / 2) or (is_first and can_fall):
        return replace(state, row=row), frozenset()
    wanted = {pod: each * (1 - EFFECT * fallen) for pod, each in row.errors.items()}
    useless = frozenset(pod for pod, each in over.items() if pod in wanted and each > wanted[pod])
    settled, futile = dict(state.settled), dict(state.futile)
    longer = {pod: for_s for pod, for_s in state.futile_s.items() if pod in facts.errors}
    for pod in useless:
        for_s = longer.get(pod, FUTILE_S)
        (settled if pod in row.effective else futile)[pod] = facts.now_s + for_s
        longer[pod] = min(for_s * 2, MOST_FUTILE_S)
    effective = row.effective | (over.keys() & wanted.keys()) - useless
    row = row._replace(start=bound, errors=over, decreases=0, effective=effective)
    return replace(state, row=row, settled=settled, futile=futile, futile_s=longer), useless


def _returned(state: LawState, now: int, row: Decreases, facts: LawInputs, *, is_settled: bool) -> LawStep:
    """Rule 3: the first step back to where the last part of the row began, or all of it."""
    bound = row.start if is_settled else row.bound
    # CPUs may have gone.
    end = max(facts.cpus * 1_000, now) if bound is None else bound
    steps: list[int | None] = []
    for number in range(1, RETURN_STEPS):
        each = now + (end - now) * number // RETURN_STEPS
        steps.append(max(each - each % 1_000, now) if _is_whole(each, facts) else each)
    steps.append(bound)
    state = replace(
        state,
        bound=steps[0],
        returning=tuple(steps[1:]),
        row=row._replace(decreases=0, total=0) if is_settled else None,
        bad=None,
        rise=None,
    )
    where = "no bound" if bound is None else f"{bound}m"
    if is_settled:
        return LawStep(state, 3, f"the last decreases had no effect: back to {where}")
    return LawStep(state, 3, f"decreases had no effect: back to {where}; it waits, but not behind BE pods")


def _next_of_return(state: LawState) -> LawStep:
    bound, *rest = state.returning
    state = replace(state, bound=bound, returning=tuple(rest))
    where = "without a bound" if bound is None else f"{bound}m"
    return LawStep(state, 3, f"back to where it was, now {where}")


def _under(state: LawState, facts: LawInputs, error: float | None) -> LawStep:
    """Rules 2 and 4, and what is left of a return."""
    now_s = facts.now_s
    if state.bound is None:
        return LawStep(replace(state, calm_s=None, spare_s=None, returning=()), 0, "nothing is bounded")
    if state.returning:
        return _next_of_return(state)
    spare_s = (
        (state.spare_s if state.spare_s is not None else now_s) if _is_spare(state.bound, facts) else None
    )
    state = replace(state, spare_s=spare_s)
    if state.spare_s is not None and now_s - state.spare_s >= state.spare_wait_s:
        asked = f"{SPARE:g} x {facts.be_asked:.0f}m"
        reason = f"{state.bound}m is more than {asked} for {state.spare_wait_s:g} s: no bound"
        return LawStep(replace(_raised(state, None, facts), spared_s=now_s), 4, reason)
    if error is not None and error >= CALM:
        return LawStep(replace(state, calm_s=None), 2, f"{state.bound}m is right: it stays")
    calm_s = state.calm_s if state.calm_s is not None else now_s
    state = replace(state, calm_s=calm_s)
    if now_s - calm_s < CALM_S:
        return LawStep(state, 2, f"calm for {now_s - calm_s:.0f} of {CALM_S:g} s")
    assert state.bound is not None  # noqa: S101 - see above; for the type checker
    step = step_of(facts.cpus, is_whole=_is_whole(state.bound, facts))
    after = state.bound + step
    if _is_whole(after, facts):
        after -= after % 1_000
    rise = after - state.bound
    left_s = state.wait_s - (now_s - state.over_s)
    if _is_near_bad(state, after) and left_s > 0 and not _has_less_load(state, facts):
        reason = f"{after}m was too much before, at {state.bad}m: {left_s:.0f} s more without waits"
        return LawStep(state, 2, f"{reason}, or less load of others")
    if after >= facts.cpus * 1_000:
        return LawStep(_raised(state, None, facts), 2, f"{after}m are all CPUs: no bound")
    return LawStep(_raised(state, after, facts), 2, f"calm for {CALM_S:g} s: {rise}m more = {after}m")


def _has_less_load(state: LawState, facts: LawInputs) -> bool:
    """Whether all but BE pods, or the pod that waited, use less than when the bound was too much."""
    now_and_then = (
        (facts.others_used, state.bad_load),
        (facts.loads.get(state.bad_pod), state.bad_pod_load),
    )
    return any(now is not None and now < SAME_LOAD * then for now, then in now_and_then)


def _raised(state: LawState, bound: int | None, facts: LawInputs) -> LawState:
    """With more, or without a bound; what was before is kept, in case that is too much."""
    assert state.bound is not None  # noqa: S101 - it can rise; for the type checker
    rise = Rise(state.bound, facts.now_s, facts.others_used)
    if bound is None:
        return replace(_unbounded(state), rise=rise)
    return replace(state, bound=bound, calm_s=facts.now_s, spare_s=None, rise=rise)


def _is_spare(bound: int, facts: LawInputs) -> bool:
    is_sated = facts.be_waits is None or facts.be_waits <= SATED
    return is_sated and bound > SPARE * facts.be_asked


def _held(state: LawState, now_s: float) -> LawState:
    """A rise that has held is right; one above the bad bound halves the wait of the next one."""
    if state.rise is None or now_s - state.rise.at_s < state.wait_s:
        return state
    if state.bound is None or not _is_near_bad(state, state.bound):
        return replace(state, rise=None)
    return replace(state, rise=None, bad=None, wait_s=max(state.wait_s / 2, FIRST_WAIT_S))


def _unbounded(state: LawState) -> LawState:
    return replace(state, bound=None, calm_s=None, spare_s=None, rise=None, returning=())


def raised_to_floor(state: LawState, floor: int) -> LawState:
    """Return the state with a bound of F at least: strategy, CPUs or policy may be others now."""
    if state.bound is None or state.bound >= floor:
        return state
    return replace(state, bound=floor)


def is_held(state: LawState, now_s: float, blind_s: float) -> bool:
    """Whether a guard that has been blind since `blind_s` holds a bound: nothing else bounds BE pods then."""
    return state.bound is not None and now_s - blind_s < BLIND_HOLD_S


def given_back(state: LawState, now_s: float, blind_s: float, cpus: int) -> tuple[LawState, str]:
    """Return the state of a guard that has been blind since `blind_s`, and what it does: hold, then steps."""
    state = replace(state, row=None, returning=(), spare_s=None, rise=None)
    if state.bound is None:
        return state, "nothing is bounded"
    if is_held(state, now_s, blind_s):
        left_s = BLIND_HOLD_S - (now_s - blind_s)
        return replace(state, calm_s=None), f"{state.bound}m is held for {left_s:.0f} s more"
    calm_s = state.calm_s if state.calm_s is not None else now_s - CALM_S
    if now_s - calm_s < CALM_S:
        return state, f"{state.bound}m is given back in steps"
    after = state.bound + step_of(cpus)
    if after >= cpus * 1_000:
        return _unbounded(state), "the bound is given back"
    return replace(state, bound=after, calm_s=now_s), f"given back in steps: {after}m"


def probed(state: LawState, floor: int) -> int:
    """Return the bound of a probe: F, or less than that if it is bounded below."""
    return floor if state.bound is None else min(state.bound, floor)
