"""What pods and containers have while they start: openings of bounds, and start-up boosts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtimeproxy.ledger.boosts import StartupBoosts
    from runtimeproxy.ledger.openings import ClassOpenings
    from runtimeproxy.state.state_file import StateFile


class PodStarts:
    """Openings and boosts together: they follow the same records. Used in the event loop's thread.

    Attributes:
        openings: Lift bounds of classes.
        boosts: Add to quotas of containers.
        files: What outlives this process.
    """

    def __init__(self, openings: ClassOpenings, boosts: StartupBoosts) -> None:
        self.openings = openings
        self.boosts = boosts
        self.files: tuple[StateFile, ...] = (openings.file, boosts.file)

    async def load(self) -> None:
        """Reads what the process before this one has saved: to be awaited before anything is decided."""
        await self.openings.load()
        await self.boosts.load()

    def run(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        # Until they are cancelled.
        spawn(self.openings.run())
        spawn(self.boosts.run())
