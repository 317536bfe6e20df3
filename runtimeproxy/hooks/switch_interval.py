"""How long a thread may keep the interpreter while others wait for it.

Short turns keep a policy that computes for long from holding up the calls that pass. But a policy that takes
half a millisecond better ends before the loop goes on, for each change of turns costs two wake-ups: with
short turns a changed CreateContainer takes half as long again. So turns are short only while a call lasts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Set
from typing import Final

SHORT_S: Final = 0.00001
"""Below that, calls beside a policy that computes take longer again; measured with the bench's."""
LOOK_S: Final = 0.005
"""A call that is under way at two looks lasts."""


class SwitchInterval:
    """The interpreter's switch interval: the shortest that anybody asks for. Used in one thread."""

    def __init__(self) -> None:
        self._asked_s: list[float] = []
        self._usual_s = 0.0

    def shorten(self, length_s: float) -> None:
        """Asks for turns of this length at most; to be taken back with `restore`."""
        if not self._asked_s:
            self._usual_s = sys.getswitchinterval()
        self._asked_s.append(length_s)
        self._set()

    def restore(self, length_s: float) -> None:
        """Takes one `shorten` back."""
        self._asked_s.remove(length_s)
        self._set()

    def _set(self) -> None:
        sys.setswitchinterval(min(self._usual_s, *self._asked_s) if self._asked_s else self._usual_s)


SWITCH_INTERVAL: Final = SwitchInterval()
"""Of this process: the interpreter has only one."""


class Turns:
    """Makes turns short while a call lasts or a thread hangs. Used in one event loop's thread.

    Args:
        under_way: the calls that policies are asked about: a live set.
        hangs: whether some thread has not come back from a policy that was given up.
    """

    def __init__(self, under_way: Set[object], hangs: Callable[[], bool]) -> None:
        self._under_way = under_way
        self._hangs = hangs
        self._before: Set[object] = frozenset()
        self._is_short = False
        self._is_looking = False

    def begin(self) -> None:
        """A call has come; it is looked at until none is under way."""
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        hangs = self._hangs()
        self._shorten(hangs or not self._before.isdisjoint(self._under_way))
        self._before = frozenset(self._under_way)
        self._is_looking = hangs or bool(self._before)
        if self._is_looking:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _shorten(self, is_short: bool) -> None:
        if is_short and not self._is_short:
            SWITCH_INTERVAL.shorten(SHORT_S)
        elif self._is_short and not is_short:
            SWITCH_INTERVAL.restore(SHORT_S)
        self._is_short = is_short
