"""The services of the API by name, and what loads them at their first calls; cheap to import."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from concurrent.futures import Executor

READ_SERVICE: Final = "runtimeproxy.v1.RuntimeProxy"
ADMIN_SERVICE: Final = "runtimeproxy.v1.Admin"
MOST_CALLS: Final = {"Simulate": 5, "Explain": 64, "WatchPods": 64, "WatchAudit": 64}
"""Calls of a method that are served or wait at a time, on each socket: one of `Simulate` has up to 4 MiB."""
SMALL_BYTES: Final = 64 * 1024
"""Of a request of most methods: names, a reason, a selector."""
MOST_BYTES: Final = {"SetClaims": 2 << 20, "Simulate": 4 << 20, "ReportQosManager": 1 << 20}
"""Of a request of others; of `SetClaims` twice the claims that an owner may have by default. Parsed, small
claims take fifty times the memory. A report has some KiB, with a CustomNodeResource up to 768."""
METHODS: Final = {
    READ_SERVICE: (
        "GetStatus",
        "WatchPods",
        "GetNode",
        "GetResctrl",
        "GetCustomNodeResource",
        "Explain",
        "Simulate",
        "WatchAudit",
    ),
    ADMIN_SERVICE: (
        "SetPolicyMode",
        "SetBypass",
        "Record",
        "SetClaims",
        "ReleaseClaims",
        "GetClaims",
        "Evict",
        "ReportQosManager",
    ),
}

Load = Callable[[], Awaitable[Any]]
"""Returns the servicer; imports it where that is needed."""


def loader(executor: Executor, module: str, make: Callable[[Any], Any]) -> Load:
    """Returns what imports a module in a worker thread and makes a servicer of it, once.

    `module`: its full name. `make`: gets the module.
    """
    made: list[Any] = []
    lock = asyncio.Lock()

    async def load() -> Any:  # noqa: ANN401 - a servicer
        async with lock:
            if not made:
                run = asyncio.get_running_loop().run_in_executor
                made.append(make(await run(executor, importlib.import_module, module)))
        return made[0]

    return load
