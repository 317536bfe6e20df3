"""Changes of many pods: one after the other, at a bounded rate, and to an end when too many of them fail."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

PodT = TypeVar("PodT")

FEW_PODS: Final = 10
"""A change of fewer pods is never a large one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRates:
    """How changes of running pods are made.

    Attributes:
        pods_per_s: How many pods a large change may touch in a second.
        large_percent: From this share of the running pods on a change is a large one.
        failed_percent: A large change ends when the values of more than this share of its pods cannot be
            written.
        lowers_memory: Whether a new answer may lower the memory limit of a running pod or container.
    """

    pods_per_s: float = 50.0
    large_percent: float = 10.0
    failed_percent: float = 10.0
    lowers_memory: bool = False


class Ongoing(NamedTuple):
    """A change of running pods that is being made."""

    name: str
    pods: int
    done: int
    failed: int


class Changes:
    """Makes changes of running pods. Used in the event loop's thread.

    Attributes:
        rates: How they are made.
        ongoing: The one that is being made; None for none.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._now_s = clock
        self._sleep = sleep
        self._problems: dict[str, str] = {}
        self.rates = ChangeRates()
        self.ongoing: Ongoing | None = None

    @property
    def problem(self) -> str:
        return "; ".join(self._problems.values())

    async def make(
        self, name: str, pods: Sequence[PodT], write: Callable[[PodT], Awaitable[bool | None]], *, of: int
    ) -> bool:
        """Writes the values of one pod after the other.

        `write`: writes the values of one; returns whether none of them has failed, and None for nothing to
        write. `of`: number of running pods.

        Returns:
            Whether it came to the end: not too many have failed.
        """
        self._problems.pop(name, None)
        try:
            return await self._make(name, pods, write, of)
        finally:
            self.ongoing = None

    async def _make(
        self, name: str, pods: Sequence[PodT], write: Callable[[PodT], Awaitable[bool | None]], of: int
    ) -> bool:
        is_large = len(pods) > max(FEW_PODS, of * self.rates.large_percent / 100)
        failed, done, begun_s = 0, 0, self._now_s()
        for position, pod in enumerate(pods, 1):
            self.ongoing = Ongoing(name, len(pods), done, failed)
            if is_large:
                await self._sleep(max(0.0, begun_s + done / self.rates.pods_per_s - self._now_s()))
            is_written = await write(pod)
            if is_written is None:
                continue
            done, failed = done + 1, failed + (not is_written)
            if is_large and done > FEW_PODS and failed * 100 > done * self.rates.failed_percent:
                left = len(pods) - position
                problem = f"{name} ended: {failed} of {done} pods failed, {left} are left"
                self._problems[name] = problem
                logger.error(problem, extra={"failed": failed, "done": done, "left": left})
                return False
        return True
