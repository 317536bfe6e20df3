"""What a caller has seen of the restarts: pure functions over its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.restarts.lines import Call, Created


@dataclass(frozen=True)
class Window:
    """One restart on the monotonic clock: from the signal until the new process serves."""

    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def unary(calls: Iterable[Call]) -> list[Call]:
    """All but event streams."""
    return [call for call in calls if not call.is_stream]


def failed(calls: Iterable[Call]) -> list[Call]:
    """The calls that did not succeed."""
    return [call for call in calls if not call.is_ok]


def reasons(calls: Iterable[Call]) -> Counter[str]:
    """Failed calls by code and text."""
    return Counter(f"{call.code}: {call.message}" for call in failed(calls))


def during(calls: Iterable[Call], window: Window) -> list[Call]:
    """The calls that were on their way at some moment of a restart."""
    return [call for call in calls if call.begun < window.ended and call.ended > window.begun]


def by_restart(calls: Iterable[Call], windows: Sequence[Window]) -> list[list[Call]]:
    """The calls that ended after the begin of each restart and before that of the next one."""
    ends = [window.begun for window in windows[1:]] + [float("inf")]
    listed = list(calls)
    return [
        [call for call in listed if window.begun <= call.ended < end]
        for window, end in zip(windows, ends, strict=True)
    ]


def outage_s(calls: Iterable[Call], window: Window) -> float:
    """The longest time without a successful end of a call, of those times that touch a restart.

    Counts also calls that wait and succeed later; 0 if there are no two successful calls around it.
    """
    ends = sorted(call.ended for call in calls if call.is_ok)
    return max(
        (
            after - before
            for before, after in pairwise(ends)
            if before < window.ended and after > window.begun
        ),
        default=0.0,
    )


def wrong_containers(created: Iterable[Created], cpu_shares: int) -> list[Created]:
    """Containers that are not there exactly once with their values, or more than once after a failure."""
    return [one for one in created if not _is_right(one, cpu_shares)]


def _is_right(one: Created, cpu_shares: int) -> bool:
    if one.code != "OK":
        return one.listed <= 1
    return one.listed == 1 and one.cpu_shares == cpu_shares
