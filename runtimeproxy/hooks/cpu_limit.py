"""A limit on the CPU time of code in the event loop's thread."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

ResultT = TypeVar("ResultT")

CPU_LIMIT_S: Final = 0.02
"""For all quick policies of one call together, which take 0.1 ms; passing calls wait meanwhile."""


class OverCpuLimitError(BaseException):
    """The code has used its CPU time. Not an `Exception`, which the code itself may catch."""


class CpuLimit:
    """Interrupts code that computes for too long; made in the thread where it is used.

    SIGPROF comes each time that the process has used `limit_s` of CPU time. Python handles signals in the
    main thread, between two steps of the code that runs there: so the interruption cannot come late and hit
    other code. It does not end one long step, such as the search of a regular expression, and no code that
    waits.

    Attributes:
        is_usable: whether this is the main thread; if not, `run` must not be called.
    """

    def __init__(self, limit_s: float = CPU_LIMIT_S) -> None:
        self._limit_s = limit_s
        self.is_usable = threading.current_thread() is threading.main_thread()
        if self.is_usable:
            signal.signal(signal.SIGPROF, _on_signal)

    def run(self, code: Callable[..., ResultT], *arguments: Any) -> ResultT:  # noqa: ANN401 - any function's
        """Calls a function. Raises OverCpuLimitError if it has used its CPU time."""
        global _until_s  # noqa: PLW0603 - a process has one main thread, and one such timer
        try:
            _until_s = time.thread_time() + self._limit_s
            signal.setitimer(signal.ITIMER_PROF, self._limit_s, self._limit_s)
            return code(*arguments)
        finally:
            _until_s = math.inf
            signal.setitimer(signal.ITIMER_PROF, 0.0)


_until_s = math.inf
"""When the code that runs has used its CPU time, by the main thread's clock; infinite while none runs."""


def _on_signal(_: int, __: FrameType | None) -> None:
    global _until_s  # noqa: PLW0603
    # Other threads may have used the CPU time that the timer counts.
    if time.thread_time() >= _until_s:
        # Once: just after the code nothing else may be hit.
        _until_s = math.inf
        raise OverCpuLimitError
