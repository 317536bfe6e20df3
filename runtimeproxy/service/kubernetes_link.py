"""The API server for the core: its client is imported, and its threads are started, in the background."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING

from runtimeproxy.core.eviction import OF_API_SERVER, EvictionMethod, PodEvictionOutcome, Result
from runtimeproxy.node.api_server import ApiServerInputs
from runtimeproxy.node.inputs import name_of_node
from runtimeproxy.node.objects import KATALYST_KINDS, Kind

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.eviction import EvictByApi
    from runtimeproxy.hooks.audit import AuditEntry
    from runtimeproxy.kubernetes.source import KubernetesSource
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.records import PodRecord


class KubernetesLink:
    """Used in the event loop's thread.

    Args:
        settings: Those at the start.

    Attributes:
        inputs: What the API server says.
        source: Its client; None before that is imported.
        is_started: Whether it is imported, or being imported.
        evict: Evicts pods, honouring disruption budgets; None if that is off.
    """

    def __init__(self, settings: Settings) -> None:
        kinds = frozenset(Kind) if settings.kubernetes.katalyst_targets else frozenset(Kind) - KATALYST_KINDS
        self.inputs = ApiServerInputs("API server", settings.slo.start_spread_s, kinds=kinds)
        self.source: KubernetesSource | None = None
        self.evict: EvictByApi | None = self._evict if settings.kubernetes.evictions else None
        self.is_started = False
        self._settings = settings

    async def start(self, node: NodeSources, executor: Executor) -> None:
        """Imports the client in a worker thread, and has the node read what it finds."""
        self.is_started = True
        loop = asyncio.get_running_loop()

        def look_soon() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(node.look_soon)

        self.inputs.on_change = look_soon
        self.source = await loop.run_in_executor(executor, self._make)
        self.source.start()

    async def close(self, executor: Executor) -> None:
        if self.source is not None:
            await asyncio.get_running_loop().run_in_executor(executor, self.source.close)

    def on_audit(self, entry: AuditEntry) -> None:
        # The entry may become an Event.
        if self.source is not None:
            self.source.on_audit(entry)

    def _make(self) -> KubernetesSource:
        from runtimeproxy.kubernetes.source import KubernetesSource  # with the HTTP library: 6 MiB

        name = name_of_node(self._settings.node.name)
        return KubernetesSource(self._settings.kubernetes, name, self.inputs)

    async def _evict(self, pod: PodRecord, reason: str) -> Result:
        if self.source is None:
            return Result(PodEvictionOutcome.FAILED, "the client of the API server is not loaded yet")
        done = await self.source.evict(pod.namespace, pod.name, pod.uid)
        outcome, method = OF_API_SERVER[done.outcome.value], EvictionMethod.EVICTION_API
        return Result(outcome, done.reason, method=method, retry_s=done.retry_s)
