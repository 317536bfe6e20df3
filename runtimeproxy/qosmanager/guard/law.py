"""The law: from what pods feel to the bound on all BE pods, in millicores. Pure.

A pod's error is the median of its last waits over its target; the largest one of all pods decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

PAUSE_S: Final = 3.0
"""After a decrease, until its effect can be seen in three samples."""
CPUS_PAUSE_S: Final = 5.0
"""The same where the bound is CPUs, which change less often."""
CALM: Final = 0.8
"""Below this error, BE pods get more back."""
CALM_S: Final = 10.0
LEAST_CUT: Final = 0.1
MOST_CUT: Final = 0.5
LEAST_BE_SHARE: Final = 0.05
"""Of the node's CPUs: BE pods that use less are not what others wait for."""
LEAST_STEP: Final = 250
STEP_SHARE: Final = 0.05
"""Of the node's CPUs."""
LEAST_FLOOR: Final = 500
FLOOR_SHARE: Final = 0.1
"""Of the node's CPUs: what BE pods keep in any case."""
NEAR_BAD: Final = 0.9
"""Of the bound before the last decrease: above this a rise waits longer."""
FIRST_WAIT_S: Final = 60.0
MOST_WAIT_S: Final = 600.0
FORGOTTEN_S: Final = 1_800.0
"""A bound that was bad so long ago says nothing."""
SPARE: Final = 1.2
"""A bound of so many times what BE pods ask for bounds nothing."""
SPARE_S: Final = 60.0
MOST_SPARE_S: Final = 600.0
SATED: Final = 0.1
"""BE pods of which some task waits for a CPU more of the time ask for more than they use."""
USELESS: Final = 0.9
"""If two decreases leave more than this of an error, the pod does not wait behind BE pods."""
FUTILE_S: Final = 300.0
RETURN_STEPS: Final = 3
BLIND_HOLD_S: Final = 60.0


class Facts(NamedTuple):
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
    be_waits: float | None = None
    """Share of the time in which some task of BE pods waits for a CPU, by PSI; None: not known."""
    is_whole: bool = False
    """Whether the bound is whole CPUs at this size: see `lever`."""


class Decrease(NamedTuple):
    """One decrease, as far as it is compared with what follows."""

    bound: int
    """Before it."""
    errors: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawState:
    """The bound, and what it follows from."""

    bound: int | None = None
    """B, in millicores; None: none."""
    bad: int | None = None
    """The bound before the last decrease."""
    bad_s: float = float("-inf")
    wait_s: float = FIRST_WAIT_S
    """How long a rise above the bad bound waits."""
    decreased_s: float = float("-inf")
    over_s: float = float("-inf")
    """When the error was above 1 last."""
    calm_s: float | None = None
    """Since when the error is low, or since the last rise after that."""
    above_bad_s: float | None = None
    """Since when the bound is above the bad one; None: it is not, or that has been judged."""
    spare_s: float | None = None
    """Since when the bound is more than BE pods ask for."""
    spare_wait_s: float = SPARE_S
    """How long it has to be so; doubled when the end of a bound was wrong."""
    spared_s: float = float("-inf")
    """When a bound ended for that."""
    decreases: tuple[Decrease, ...] = ()
    """In a row, without a moment of enough."""
    effective: frozenset[str] = frozenset()
    """Pods for which decreases in this row had an effect."""
    settled: Mapping[str, float] = field(default_factory=dict)
    """By pod: until when it lowers nothing: the last decreases had no effect, those before had one."""
    futile: Mapping[str, float] = field(default_factory=dict)
    """By pod: until when it drives nothing."""
    returning: tuple[int, ...] = ()
    """The next bounds of a return."""


class Step(NamedTuple):
    """One decision."""

    state: LawState
    rule: int
    """1 to 4; 0: none applies."""
    reason: str
    error: float | None = None
    """The largest one of the pods that drive; None: there is none."""
    driver: str = ""
    """Its pod."""


def floor_of(cpus: int, floor: int = 0) -> int:
    """Return F, in millicores: what BE pods keep in any case."""
    return max(LEAST_FLOOR, int(cpus * 1_000 * FLOOR_SHARE), floor)


def step_of(cpus: int) -> int:
    return max(LEAST_STEP, int(cpus * 1_000 * STEP_SHARE))


def cut_of(error: float) -> float:
    """Return by how much of itself the bound falls."""
    return min(max((error - 1) / 4, LEAST_CUT), MOST_CUT)


def decide(state: LawState, facts: Facts) -> Step:
    """Return the next bound; to be called once a second while pods have errors."""
    now_s = facts.now_s
    futile, settled = (
        {pod: until_s for pod, until_s in each.items() if now_s < until_s}
        for each in (state.futile, state.settled)
    )
    state = replace(state, futile=futile, settled=settled)
    if now_s - state.bad_s >= FORGOTTEN_S:
        state = replace(state, bad=None, wait_s=FIRST_WAIT_S, spare_wait_s=SPARE_S)
    driving = {pod: error for pod, error in facts.errors.items() if pod not in futile}
    driver = max(driving, key=lambda pod: (driving[pod], pod), default="")
    error = driving.get(driver)
    if error is not None and error > 1:
        return _tell(_over(state, facts, driving), error, driver)
    return _tell(
        _under(replace(state, decreases=(), effective=frozenset(), settled={}), facts, error), error, driver
    )


def _tell(step: Step, error: float | None, driver: str) -> Step:
    return step._replace(error=error, driver=driver)


def _over(state: LawState, facts: Facts, errors: Mapping[str, float]) -> Step:
    """Rules 1 and 3."""
    now_s, floor = facts.now_s, floor_of(facts.cpus, facts.floor)
    state = replace(state, over_s=now_s, calm_s=None, spare_s=None)
    pause_s = CPUS_PAUSE_S if facts.is_whole else PAUSE_S
    if now_s - state.decreased_s < pause_s:
        return Step(state, 1, f"waits {pause_s:g} s for the effect of the last decrease")
    over = {pod: each for pod, each in errors.items() if each > 1 and pod not in state.settled}
    if state.returning and not over:
        return _next_of_return(state)
    state = _with_effects(state, over)
    if len(state.decreases) == 2:
        first = state.decreases[0]
        useless = {pod for pod, each in over.items() if each > USELESS * first.errors.get(pod, each * 2)}
        futile = dict.fromkeys(useless - state.effective, now_s + FUTILE_S)
        settled = dict.fromkeys(useless & state.effective, now_s + FUTILE_S)
        state = replace(state, futile={**state.futile, **futile}, settled={**state.settled, **settled})
        over = {pod: each for pod, each in over.items() if pod not in useless}
        if useless and not over:
            return _returned(state, first.bound)
    if not over:
        return Step(state, 3, "less had no effect: it stays")
    error = max(over.values())
    if facts.be_used <= LEAST_BE_SHARE * facts.cpus * 1_000:
        return Step(state, 0, f"BE pods use {facts.be_used:.0f}m: they are not what others wait for")
    state = replace(state, returning=())
    if state.bound is None and now_s - state.spared_s < 2 * FIRST_WAIT_S:
        wait_s = min(state.spare_wait_s * 2, MOST_SPARE_S)
        state = replace(state, spare_wait_s=wait_s, spared_s=float("-inf"))
    before = state.bound if state.bound is not None else max(int(facts.be_asked), floor)
    if state.bound is not None and before <= floor:
        return _at_floor(replace(state, decreased_s=now_s), floor, over)
    cut = cut_of(error)
    after = max(floor, int(before * (1 - cut)))
    if facts.is_whole:
        # A decrease that takes no whole CPU would have no effect, and look futile.
        after = max(floor, min(after, before // 1_000 * 1_000 - 1))
    failed = state.bad is not None and before > NEAR_BAD * state.bad and state.above_bad_s is not None
    state = replace(
        state,
        bound=after,
        bad=before,
        bad_s=now_s,
        wait_s=min(state.wait_s * 2, MOST_WAIT_S) if failed else state.wait_s,
        above_bad_s=None,
        decreased_s=now_s,
        decreases=(*state.decreases, Decrease(before, over))[-2:],
    )
    return Step(state, 1, f"{before}m less {cut:.0%}, at least {floor}m = {after}m")


def _with_effects(state: LawState, over: Mapping[str, float]) -> LawState:
    found = {
        pod
        for pod, error in over.items()
        if any(error <= USELESS * each.errors.get(pod, 0.0) for each in state.decreases)
    }
    return replace(state, effective=state.effective | found)


def _at_floor(state: LawState, floor: int, over: Mapping[str, float]) -> Step:
    """The bound cannot fall: without an effect so far, time at the floor is compared like a decrease."""
    if over.keys() <= state.effective:
        state = replace(state, decreases=())
        return Step(state, 1, f"the bound is at its floor of {floor}m, which has an effect")
    state = replace(state, decreases=(*state.decreases, Decrease(floor, over))[-2:])
    return Step(state, 1, f"the bound is at its floor of {floor}m")


def _returned(state: LawState, bound: int) -> Step:
    """Rule 3: the first step back to where it was."""
    now = state.bound if state.bound is not None else bound
    steps = tuple(now + (bound - now) * number // RETURN_STEPS for number in range(1, RETURN_STEPS + 1))
    state = replace(state, bound=steps[0], returning=steps[1:], decreases=(), bad=None, above_bad_s=None)
    return Step(state, 3, f"two decreases had no effect: back to {bound}m; it waits, but not behind BE pods")


def _next_of_return(state: LawState) -> Step:
    bound, *rest = state.returning
    state = replace(state, bound=bound, returning=tuple(rest))
    return Step(state, 3, f"back to where it was, now {bound}m")


def _under(state: LawState, facts: Facts, error: float | None) -> Step:
    """Rules 2 and 4, and what is left of a return."""
    now_s = facts.now_s
    if state.bound is None:
        return Step(replace(state, calm_s=None, spare_s=None, returning=()), 0, "nothing is bounded")
    if state.returning:
        return _next_of_return(state)
    spare_s = (
        (state.spare_s if state.spare_s is not None else now_s) if _is_spare(state.bound, facts) else None
    )
    state = _judged(replace(state, spare_s=spare_s), now_s)
    if state.spare_s is not None and now_s - state.spare_s >= state.spare_wait_s:
        asked = f"{SPARE:g} x {facts.be_asked:.0f}m"
        reason = f"{state.bound}m is more than {asked} for {state.spare_wait_s:g} s: no bound"
        return Step(replace(_unbounded(state), spared_s=now_s), 4, reason)
    if error is not None and error >= CALM:
        return Step(replace(state, calm_s=None), 2, f"{state.bound}m is right: it stays")
    calm_s = state.calm_s if state.calm_s is not None else now_s
    state = replace(state, calm_s=calm_s)
    if now_s - calm_s < CALM_S:
        return Step(state, 2, f"calm for {now_s - calm_s:.0f} of {CALM_S:g} s")
    step = step_of(facts.cpus)
    after = state.bound + step  # type: ignore[operator]  # it has one
    if state.bad is not None and after > NEAR_BAD * state.bad and now_s - state.over_s < state.wait_s:
        left_s = state.wait_s - (now_s - state.over_s)
        return Step(
            state, 2, f"{after}m was too much before, at {state.bad}m: {left_s:.0f} s more without waits"
        )
    if after >= facts.cpus * 1_000:
        return Step(_unbounded(state), 2, f"{after}m are all CPUs: no bound")
    if state.bad is not None and after > NEAR_BAD * state.bad and state.above_bad_s is None:
        state = replace(state, above_bad_s=now_s)
    return Step(
        replace(state, bound=after, calm_s=now_s), 2, f"calm for {CALM_S:g} s: {step}m more = {after}m"
    )


def _is_spare(bound: int, facts: Facts) -> bool:
    is_sated = facts.be_waits is None or facts.be_waits <= SATED
    return is_sated and bound > SPARE * facts.be_asked


def _judged(state: LawState, now_s: float) -> LawState:
    """A rise above the bad bound that has held halves the wait of the next one."""
    if state.above_bad_s is None or now_s - state.above_bad_s < FIRST_WAIT_S:
        return state
    return replace(state, above_bad_s=None, bad=None, wait_s=max(state.wait_s / 2, FIRST_WAIT_S))


def _unbounded(state: LawState) -> LawState:
    return replace(state, bound=None, calm_s=None, spare_s=None, above_bad_s=None, returning=())


def given_back(state: LawState, now_s: float, blind_s: float, cpus: int) -> tuple[LawState, str]:
    """Return the state of a guard that has been blind since `blind_s`, and what it does: hold, then steps."""
    state = replace(state, decreases=(), returning=(), spare_s=None, above_bad_s=None)
    if state.bound is None:
        return state, "nothing is bounded"
    if now_s - blind_s < BLIND_HOLD_S:
        return replace(
            state, calm_s=None
        ), f"{state.bound}m is held for {BLIND_HOLD_S - (now_s - blind_s):.0f} s more"
    calm_s = state.calm_s if state.calm_s is not None else now_s - CALM_S
    if now_s - calm_s < CALM_S:
        return state, f"{state.bound}m is given back in steps"
    after = state.bound + step_of(cpus)
    if after >= cpus * 1_000:
        return _unbounded(state), "the bound is given back"
    return replace(state, bound=after, calm_s=now_s), f"given back in steps: {after}m"


def probed(state: LawState, cpus: int, floor: int) -> int:
    """Return the bound of a probe: the floor, or less than that if it is bounded below."""
    least = floor_of(cpus, floor)
    return least if state.bound is None else min(state.bound, least)
