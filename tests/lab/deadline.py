"""Waiting for something outside this process, with an end; and measuring how long something takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_PACE_S = 0.02


def wait_until(
    condition: Callable[[], Result | None], what: str, timeout_s: float = 60.0, pace_s: float = _PACE_S
) -> Result:
    """Asks again and again until the answer is true, and returns it.

    Args:
        pace_s: Between two answers; more where each of them is dear.

    Raises:
        TimeoutError: the answer stayed false for `timeout_s` seconds.
    """
    end = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(pace_s)


def time_s(action: Callable[[], object]) -> float:
    """How long something takes, in seconds of the wall clock."""
    began_s = time.monotonic()
    action()
    return time.monotonic() - began_s


def quickest_s(measure: Callable[[], float], enough_s: float, tries: int = 3) -> float:
    """Measures until one try takes less than `enough_s` seconds, and returns the least of all tries.

    The machine may be busy with something else; one try shows what the program can do.
    """
    least_s = measure()
    for _ in range(tries - 1):
        if least_s < enough_s:
            break
        least_s = min(least_s, measure())
    return least_s
