"""Which containers have a start-up boost, how much of it, and when it ends. Pure: times are given.

A boost begins with the start of a container, and is given when and as far as the node has idle CPUs: all
boosts together have half of these at most. It ends with the first of: the container is ready, it has used
less than its own limit for a while, its time is over, a pod beside it waits for CPUs because of it (only
where a guard says so), or the container is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

QUIET_S: Final = 10.0
"""How long a container uses less than `QUIET_PERCENT` of its own limit before its boost ends."""
QUIET_PERCENT: Final = 80
QUIET_FROM_S: Final = 5.0
"""From its start on: what it uses before that does not matter."""
MOST_GAP_S: Final = 3.0
"""Between two samples of usage: what was used in a longer time tells nothing of its seconds."""
MOST_BOOSTS: Final = 3
"""Of one container in `WITHIN_S`, so that one in a crash loop has not more than its limit for good. With a
`maxSeconds` of 200 and more it may have."""
WITHIN_S: Final = 600.0
MOST_S: Final = 600.0
"""The longest `maxSeconds` of a strategy."""
LEAST_CPUS: Final = 0.05
"""Less than that is not given: it would not be felt, and others may need it soon."""
SHARE_OF_IDLE: Final = 0.5
MOST_KEPT: Final = 4_096
"""Containers whose boosts are remembered for `WITHIN_S`, by pod and name."""


class End(StrEnum):
    """Why a boost has ended; the names are those of a metric."""

    READY = "ready"
    QUIET = "quiet"
    TIME = "time"
    PRESSURE = "pressure"
    GONE = "gone"
    WITHDRAWN = "withdrawn"
    """The strategy, the annotation or the policy is gone, or the container has another limit."""


class NoBoost(StrEnum):
    """Why a container that is to be boosted is not; the names are those of a metric."""

    OFTEN = "often"
    """It has had `MOST_BOOSTS`, unless one of them becomes old in its time."""
    NO_ROOM = "no-room"
    """It waits until other boosts have ended, or CPUs are idle."""
    UNKNOWN_IDLE = "unknown-idle"
    """It waits until the node's idle CPUs are known."""
    PRESSURE = "pressure"
    """It waits until no other pod waits for CPUs."""


class Amounts(NamedTuple):
    """What is asked for one container."""

    quota_us: int
    period_us: int
    amount_us: int

    @property
    def cpus(self) -> float:
        return self.amount_us / self.period_us

    @property
    def limit_cpus(self) -> float:
        return self.quota_us / self.period_us


@dataclass(slots=True)
class Boost:
    """The boost of one container, given or waiting."""

    container: str
    uid: str
    """Of the pod."""
    name: str
    """Of the container."""
    asked: Amounts
    begun_s: float
    """When the container started, by the clock of boosts."""
    end_s: float
    reason: str = ""
    given_us: int = 0
    """0: it waits."""
    waits: NoBoost | None = None
    quiet_since_s: float | None = None
    last_usage: tuple[float, int] | None = None
    """When its usage was read last, and the microseconds."""

    @property
    def cpus(self) -> float:
        return self.given_us / self.asked.period_us


def given_us(asked: Amounts, room_cpus: float) -> int:
    """Return how much of a boost the node can give; 0 for nothing yet.

    A boost that is smaller than `LEAST_CPUS` itself is given whole or not at all.
    """
    if room_cpus >= asked.cpus:
        return asked.amount_us
    return int(room_cpus * asked.period_us) if room_cpus >= LEAST_CPUS else 0


class Boosts:
    """All boosts of a node.

    Attributes:
        active: By id of the container, in the order of their starts.
        given: How many have been given.
        ended: How many given ones have ended, by cause.
        denied: How many containers never had theirs, by cause.
    """

    def __init__(self) -> None:
        self.active: dict[str, Boost] = {}
        # By pod and name: when a boost was given, and to which container.
        self._history: dict[tuple[str, str], list[tuple[float, str]]] = {}
        self.given = 0
        self.ended: dict[End, int] = dict.fromkeys(End, 0)
        self.denied: dict[NoBoost, int] = dict.fromkeys(NoBoost, 0)

    def begin(self, boost: Boost, now_s: float) -> bool:
        """A container has started; returns whether its boost waits to be given now."""
        past = self._past(boost, now_s)
        if boost.container in self.active or any(each == boost.container for _, each in past):
            return False
        self.active[boost.container] = boost
        return True

    def _past(self, boost: Boost, now_s: float) -> list[tuple[float, str]]:
        found = self._history.get((boost.uid, boost.name), [])
        return [each for each in found if now_s - each[0] < WITHIN_S]

    def give(
        self,
        now_s: float,
        idle_cpus: float | None,
        is_pressed: Callable[[str], bool] = lambda uid: False,
    ) -> list[Boost]:
        """Gives boosts that wait, those that began first, as far as there is room; returns these.

        Args:
            now_s: By the clock of boosts.
            idle_cpus: Of the node, with all boosts in effect; None: not known.
            is_pressed: As of `end`.
        """
        given: list[Boost] = []
        given_cpus, most_cpus = self.cpus, 0.0 if idle_cpus is None else idle_cpus * SHARE_OF_IDLE
        for boost in self.active.values():
            if boost.given_us:
                continue
            past = self._past(boost, now_s)
            may_have = len(past) < MOST_BOOSTS and not is_pressed(boost.uid)
            boost.given_us = given_us(boost.asked, most_cpus - given_cpus) if may_have else 0
            if boost.given_us:
                given_cpus += boost.cpus
                self._history[boost.uid, boost.name] = [*past, (now_s, boost.container)]
                boost.waits = None
                self.given += 1
                given.append(boost)
            elif len(past) >= MOST_BOOSTS:
                boost.waits = NoBoost.OFTEN
            elif not may_have:
                boost.waits = NoBoost.PRESSURE
            else:
                boost.waits = NoBoost.UNKNOWN_IDLE if idle_cpus is None else NoBoost.NO_ROOM
        return given

    @property
    def cpus(self) -> float:
        """What all boosts add together."""
        return sum(boost.cpus for boost in self.active.values())

    def note_usage(self, container: str, now_s: float, usage_us: int) -> None:
        """Takes what a container has used since it began, in microseconds."""
        boost = self.active.get(container)
        if boost is None:
            return
        last, boost.last_usage = boost.last_usage, (now_s, usage_us)
        is_sample = last is not None and 0 < now_s - last[0] <= MOST_GAP_S and usage_us >= last[1]
        if last is None or not is_sample or last[0] < boost.begun_s + QUIET_FROM_S:
            boost.quiet_since_s = None
            return
        used_cpus = (usage_us - last[1]) / ((now_s - last[0]) * 1_000_000)
        if used_cpus * 100 >= boost.asked.limit_cpus * QUIET_PERCENT:
            boost.quiet_since_s = None
        elif boost.quiet_since_s is None:
            boost.quiet_since_s = last[0]

    def end(
        self,
        now_s: float,
        *,
        ready: Collection[str] = (),
        gone: Collection[str] = (),
        withdrawn: Collection[str] = (),
        is_pressed: Callable[[str], bool] = lambda uid: False,
    ) -> list[tuple[Boost, End]]:
        """Ends what is over; returns these boosts, those that were waiting included.

        Args:
            now_s: By the clock of boosts.
            ready: Ids of containers.
            gone: The same.
            withdrawn: The same.
            is_pressed: Whether a pod other than that of this uid waits for CPUs.
        """
        ended: list[tuple[Boost, End]] = []
        for boost in list(self.active.values()):
            why = _why_ended(boost, now_s, ready, gone, withdrawn, is_pressed)
            if why is not None:
                del self.active[boost.container]
                ended.append((boost, why))
                if boost.given_us:
                    self.ended[why] += 1
                elif boost.waits is not None:
                    self.denied[boost.waits] += 1
        return ended

    def next_s(self) -> float | None:
        """When the next boost ends by its time, or as it is quiet; None without any."""
        return min((_last_s(boost) for boost in self.active.values()), default=None)

    # --- what is saved -----------------------------------------------------------------------------------

    def as_document(self, now_s: float) -> dict[str, Any]:
        """What outlives the process: what is given or waits, and what was given in `WITHIN_S`."""
        self._forget_old(now_s)
        return {
            "boosts": [
                {
                    "container": boost.container,
                    "uid": boost.uid,
                    "name": boost.name,
                    "asked": list(boost.asked),
                    "begun_s": boost.begun_s,
                    "end_s": boost.end_s,
                    "given_us": boost.given_us,
                    "reason": boost.reason,
                }
                for boost in self.active.values()
            ],
            "given": [
                [uid, name, time_s, container]
                for (uid, name), past in self._history.items()
                for time_s, container in past
            ],
        }

    def take_document(self, document: Mapping[str, Any], now_s: float) -> None:
        """Takes what a process before this one has saved, in the same boot.

        Args:
            document: Of `as_document`.
            now_s: By the clock of boosts.

        Raises:
            One of `UNLIKE_OURS`: it is none; nothing is taken then.
        """
        found = [_boost_of(saved, now_s) for saved in document["boosts"]]
        history: dict[tuple[str, str], list[tuple[float, str]]] = {}
        for uid, name, time_s, container in document["given"]:
            given = _past_s(time_s, now_s), str(container)
            history.setdefault((str(uid), str(name)), []).append(given)
        self.active, self._history = {each.container: each for each in found}, history

    def _forget_old(self, now_s: float) -> None:
        left = {
            key: kept
            for key, past in self._history.items()
            if (kept := [each for each in past if now_s - each[0] < WITHIN_S])
        }
        # The oldest go first.
        self._history = dict(list(left.items())[-MOST_KEPT:])


def _last_s(boost: Boost) -> float:
    quiet_since_s = boost.quiet_since_s
    return boost.end_s if quiet_since_s is None else min(boost.end_s, quiet_since_s + QUIET_S)


def _why_ended(
    boost: Boost,
    now_s: float,
    ready: Collection[str],
    gone: Collection[str],
    withdrawn: Collection[str],
    is_pressed: Callable[[str], bool],
) -> End | None:
    def causes() -> Iterator[tuple[End, bool]]:
        yield End.GONE, boost.container in gone
        yield End.WITHDRAWN, boost.container in withdrawn
        yield End.READY, boost.container in ready
        yield End.TIME, now_s >= boost.end_s
        quiet_since_s = boost.quiet_since_s
        yield End.QUIET, quiet_since_s is not None and now_s - quiet_since_s >= QUIET_S
        # One that waits goes on to wait.
        yield End.PRESSURE, boost.given_us > 0 and is_pressed(boost.uid)

    return next((end for end, is_so in causes() if is_so), None)


def _past_s(saved: Any, now_s: float) -> float:  # noqa: ANN401 - JSON
    """A time that was saved: without this check one that is never reached would be waited for."""
    time_s = float(saved)
    if not time_s <= now_s:
        raise ValueError("a time that is not past")
    return time_s


def _boost_of(saved: Mapping[str, Any], now_s: float) -> Boost:
    quota_us, period_us, amount_us = map(int, saved["asked"])
    if min(quota_us, period_us, amount_us) <= 0 or not 0 <= int(saved["given_us"]) <= amount_us:
        raise ValueError("not a boost")
    begun_s = _past_s(saved["begun_s"], now_s)
    return Boost(
        str(saved["container"]),
        str(saved["uid"]),
        str(saved["name"]),
        Amounts(quota_us, period_us, amount_us),
        begun_s,
        min(begun_s + MOST_S, float(saved["end_s"])),
        str(saved["reason"]),
        int(saved["given_us"]),
    )
