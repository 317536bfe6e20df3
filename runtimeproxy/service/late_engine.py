"""The engine as the daemon knows it: loaded after the proxy serves, so each question has an answer before."""

from __future__ import annotations

import asyncio
import importlib
from concurrent.futures import Executor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.calls.desk import Spawn
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.loading import PolicyLoader
    from runtimeproxy.service.engine import Engine


class LateEngine:
    """Holds the engine once it is made.

    Args:
        loader: finds and makes the policies; None for the usual one.
        sink: gets the audit entries, beside the log.

    Attributes:
        engine: None before `make`.
    """

    def __init__(self, loader: PolicyLoader | None = None, sink: AuditSink | None = None) -> None:
        self._loader = loader
        self._sink = sink
        self.engine: Engine | None = None

    async def make(
        self, settings: Settings, executor: Executor, spawn: Spawn, is_passive: Callable[[], bool]
    ) -> Engine:
        """Loads its code in a worker thread, and makes it."""
        run = asyncio.get_running_loop().run_in_executor
        await run(executor, importlib.import_module, "runtimeproxy.service.engine")
        from runtimeproxy.service.engine import Engine

        self.engine = Engine(settings, executor, spawn, is_passive, self._loader, self._sink)
        return self.engine

    @property
    def internal_errors(self) -> int:
        """How many errors there have been in its own code."""
        return self.engine.internal_errors if self.engine is not None else 0

    @property
    def summary(self) -> str:
        """What it has, for the status."""
        return self.engine.summary if self.engine is not None else "loading"

    async def use(self, settings: Settings) -> None:
        """Takes settings that have changed; raises RuntimeProxyError if it cannot, and keeps the old ones."""
        if self.engine is not None:
            await self.engine.load_policies(settings)
            self.engine.configure(settings)

    async def flush_state(self) -> None:
        """Writes what a successor is to know."""
        if self.engine is not None:
            await self.engine.flush_state()

    async def take_back_state(self) -> None:
        """Takes what a successor has done that is gone."""
        if self.engine is not None:
            await self.engine.take_back_state()

    def compare_soon(self) -> None:
        """Calls have passed that nobody saw."""
        if self.engine is not None:
            self.engine.compare_soon()

    async def close(self) -> None:
        """Ends it."""
        if self.engine is not None:
            await self.engine.close()
