"""Waiting for something outside this process, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_PACE_S = 0.02


def wait_until(condition: Callable[[], Result | None], what: str, timeout_s: float = 10.0) -> Result:
    """Asks again and again until the answer is true, and returns it.

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
        time.sleep(_PACE_S)
