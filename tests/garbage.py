"""What is left for the interpreter's collector, which stops everything while it looks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[list[str]]:
    """Gives the names of the proxy's own types whose objects only the collector could free.

    The list is filled when the block is left.
    """
    names: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield names
        gc.collect()
        names.extend(
            type(each).__qualname__
            for each in gc.garbage
            if type(each).__module__.startswith(("runtimeproxy", "policies"))
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
