"""Whether an upstream that was away is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Presence:
    """What all connections to one upstream know of it. Used in the event loop's thread.

    A runtime that starts listens before it answers: containerd refuses every call until it has loaded its
    containers. Clients that were waiting would be told so at once, and some give up after a few refusals.

    Args:
        is_ready: asks an upstream that was away whether it answers again, within a bound of time and
            without raising; None for one that is back as soon as it accepts connections.
    """

    def __init__(self, is_ready: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._is_ready = is_ready
        self._was_lost = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether the upstream has to be asked before clients are connected to it."""
        return self._was_lost

    def lost(self) -> None:
        """A connection to it has ended, or could not be made."""
        self._was_lost = self._is_ready is not None

    def back(self) -> None:
        """It answers, or has been waited for long enough."""
        self._was_lost = False

    async def answers(self) -> bool:
        """Asks it; from a yes on nobody has to ask again."""
        if self._is_ready is None or not await self._is_ready():
            return False
        self.back()
        return True
