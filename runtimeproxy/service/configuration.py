"""The settings in effect, and how the last reading of the configuration went."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple

from runtimeproxy.config.settings import reloaded
from runtimeproxy.errors import RuntimeProxyError

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings


class Reloaded(NamedTuple):
    """The last reload of the configuration."""

    time_s: float
    """Since the epoch."""
    error: str = ""
    """Why it failed; empty if it did not."""
    need_restart: tuple[str, ...] = ()
    """Changed keys that take effect after a restart only."""


class CurrentConfiguration:
    """Used in the event loop's thread.

    Args:
        settings: At the start.
        read: Reads them again.
        path: The file; empty for none.

    Attributes:
        settings: Those in effect.
        path: See above.
        last_reload: None if there was none.
        read_s: When a reading last succeeded, in seconds since the epoch.
    """

    def __init__(self, settings: Settings, read: Callable[[], Settings], path: str = "") -> None:
        self.settings = settings
        self.path = path
        self.last_reload: Reloaded | None = None
        self.read_s = time.time()
        self._read = read

    @property
    def is_read(self) -> bool:
        # The last reading succeeded.
        return self.last_reload is None or not self.last_reload.error

    async def read(self, executor: Executor) -> tuple[Settings, tuple[str, ...]]:
        """Reads the file; returns what may take effect, and the changed keys that need a restart.

        Raises:
            RuntimeProxyError: It cannot be used.
        """
        found = await asyncio.get_running_loop().run_in_executor(executor, self._read)
        settings, waiting = reloaded(self.settings, found)
        return settings, tuple(waiting)

    def use(self, settings: Settings, waiting: tuple[str, ...]) -> None:
        """These settings are in effect now."""
        self.settings = settings
        self.read_s = time.time()
        self.last_reload = Reloaded(self.read_s, need_restart=waiting)

    def refuse(self, error: RuntimeProxyError) -> str:
        """The old settings stay; returns the reason in one line."""
        reason = "; ".join(str(error).splitlines())
        self.last_reload = Reloaded(time.time(), reason)
        return reason
