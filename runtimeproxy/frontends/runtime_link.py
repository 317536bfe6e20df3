"""The container runtime as front ends ask it themselves: its lists, and whether it answers."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from runtimeproxy.pods.inventory import RuntimeUnavailableError
from runtimeproxy.pods.recovery import Recovery, RecoverySettings
from runtimeproxy.process import give_back_memory

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S: Final = 30.0
"""Between two Version calls of the daemon's own. Source: the kubelet's own Status interval is 5 s."""
PROBE_TIMEOUT_S: Final = 1.0
"""How long the runtime may take to answer a health probe."""


class RuntimeLink:
    """Keeps the inventory that of the runtime's lists. Used in the event loop's thread.

    Args:
        inventory: Gets the lists.
        settings: Intervals and times.

    Attributes:
        away_since_s: Since when the runtime does not answer, in seconds since the epoch; None if it does, as
            far as known.
    """

    def __init__(
        self, client: GrpcRuntimeClient, inventory: Inventory, settings: Settings, executor: Executor
    ) -> None:
        self.client = client
        self.away_since_s: float | None = None
        self._inventory = inventory
        self._timeout_s = settings.proxy.runtime_call_timeout_s
        self._executor = executor
        interval_s = settings.state.resync_interval_s
        self._recovery = Recovery(inventory, client, RecoverySettings(interval_s=interval_s))
        # First of all: the cgroups of containers depend on it.
        inventory.on_complete.insert(0, self._read_name)

    def start(self, spawn: Spawn) -> None:
        # The lists take much memory, and are read once in minutes.
        self._inventory.on_complete.append(self._give_back_memory)
        spawn(self._recovery.run())
        spawn(self._watch())

    async def answers(self) -> bool:
        return await self.version() is not None

    async def version(self, timeout_s: float = PROBE_TIMEOUT_S) -> bytes | None:
        """The runtime's response to a Version call; None if it does not answer in time."""
        try:
            response = await self.client.version(timeout_s)
        except RuntimeUnavailableError:
            if self.away_since_s is None:
                self.away_since_s = time.time()
            return None
        self.away_since_s = None
        return response

    async def _watch(self) -> None:
        # So a hanging runtime is logged even without client calls.
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self.version(self._timeout_s)

    async def _read_name(self) -> None:
        try:
            self._inventory.runtime_name = await self.client.runtime_name()
        except RuntimeUnavailableError as error:
            logger.info("the runtime's name is not known", extra={"cause": str(error)})

    async def _give_back_memory(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, give_back_memory)
