"""Keeps the process small: memory that is free goes back to the kernel. Only where the C library is glibc."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

MOST_ARENAS: Final = 2
"""Memory pools of the C library. One interpreter lock serves all threads, so more of them only cost memory.
Source: mallopt(3), which makes up to eight for each processor."""

_M_ARENA_MAX: Final = -8
"""Source: malloc.h of glibc."""


def limit_arenas() -> None:
    """Lets threads that are started from now on share memory pools."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def give_back() -> None:
    """Gives free memory back; takes milliseconds, so it is not for the event loop's thread."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
