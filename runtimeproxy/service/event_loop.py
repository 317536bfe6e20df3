"""The event loop that the daemon runs on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping


def loop_factory(environ: Mapping[str, str] = os.environ) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop where it is there; None for asyncio's own loop, which does the same work with more CPU time."""
    if environ.get("KOORD_RUNTIMEPROXY_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
