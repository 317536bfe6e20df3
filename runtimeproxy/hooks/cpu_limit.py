"""A limit on the CPU time of code in the event loop's thread."""

from __future__ import annotations

import _weakrefset
import gc
import math
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

ResultT = TypeVar("ResultT")

CPU_LIMIT_S: Final = 0.02
"""For all quick policies of one call together, which take 0.1 ms; passing calls wait meanwhile."""
_AGAIN_S: Final = 0.02
"""After an interruption: the next one, of code that has caught it."""
_WEAK: Final = frozenset({weakref.__file__, _weakrefset.__file__})
"""Modules of which functions in functions are callbacks of weak references."""


class OverCpuLimitError(BaseException):
    """The code has used its CPU time. Not an `Exception`, which the code itself may catch."""


class CpuLimit:
    """Interrupts code that computes for too long; made in the thread where it is used.

    SIGPROF comes each time that the process has used `limit_s` of CPU time. Python handles signals in the
    main thread, between two steps of the code that runs there: so the interruption cannot come late and hit
    other code. It does not end one long step, such as the search of a regular expression, and no code that
    waits. Code in which an exception would be lost, such as `__del__`, goes on until the next signal.

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
            try:
                _until_s = time.thread_time() + self._limit_s
                signal.setitimer(signal.ITIMER_PROF, self._limit_s, self._limit_s)
                return code(*arguments)
            finally:
                _until_s = math.inf
        finally:
            # Again: an interruption may have come just before that.
            _until_s = math.inf
            signal.setitimer(signal.ITIMER_PROF, 0.0)


_until_s = math.inf
"""When the code that runs has used its CPU time, by the main thread's clock; infinite while none runs."""


def _on_signal(_: int, frame: FrameType | None) -> None:
    global _until_s  # noqa: PLW0603
    # Other threads may have used the CPU time that the timer counts.
    now_s = time.thread_time()
    if now_s >= _until_s and not _loses_exceptions(frame):
        # Not at once again, for the code is just ending; but it may have caught this.
        _until_s = now_s + _AGAIN_S
        raise OverCpuLimitError


def _loses_exceptions(frame: FrameType | None) -> bool:
    """Whether this runs below a finalizer, or a callback of weak references or of the search for garbage.

    The interpreter calls them in the middle of other code, and prints and drops what they raise. After a long
    search for garbage a signal that has come meanwhile is handled in the first of them.
    """
    callbacks = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None and frame.f_code is not CpuLimit.run.__code__:
        code = frame.f_code
        is_weak = code.co_filename in _WEAK and "<locals>" in code.co_qualname
        if is_weak or code.co_name == "__del__" or code in callbacks:
            return True
        frame = frame.f_back
    return False
