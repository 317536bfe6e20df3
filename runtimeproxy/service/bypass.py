"""Whether new calls pass unheld: an operator's word, or the daemon's own breaker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtimeproxy.service.breaker import PassBreaker

if TYPE_CHECKING:
    from runtimeproxy.service.gate import Gate

logger = logging.getLogger(__name__)


class Bypass:
    """Sets the gate.

    Args:
        gate: where calls are held.
        failures: returns how many errors there have been in the proxy's own code since the start.
        is_forced: whether calls pass from the start, as the configuration says.
        on_held_again: called when calls are held after a time in which nobody saw them.

    Attributes:
        switched: an operator's last word; None if the configuration says the same, or has changed since.
    """

    def __init__(
        self, gate: Gate, failures: Callable[[], int], is_forced: bool, on_held_again: Callable[[], None]
    ) -> None:
        self._gate = gate
        self._failures = failures
        self._breaker = PassBreaker(failures)
        self._breaker.forced = is_forced
        self._on_held_again = on_held_again
        self._configured = is_forced
        self.switched: bool | None = None
        gate.bypass = self._breaker.passes()

    def switch(self, passes: bool) -> None:
        """An operator lets all new calls pass unheld, or has them held again, even if the breaker is open."""
        self.switched = passes if passes != self._configured else None
        self._force(passes)

    def configure(self, passes: bool) -> None:
        """The configuration says so now."""
        self._configured = passes
        self.switched = None
        self._force(passes)

    def _force(self, passes: bool) -> None:
        if not passes:
            self._breaker = PassBreaker(self._failures)
        self._breaker.forced = passes
        logger.warning("held calls are switched %s", "off" if passes else "on", extra={"bypass": passes})
        self.look()

    def look(self) -> None:
        """Asks the breaker; to be called from time to time."""
        before, self._gate.bypass = self._gate.bypass, self._breaker.passes()
        if before and not self._gate.bypass:
            self._on_held_again()
