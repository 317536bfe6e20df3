"""The bypass: all calls pass without policies, by an operator's choice or by the daemon's own breaker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from runtimeproxy.frontends.front_end import BypassSwitch

logger = logging.getLogger(__name__)

MOST_FAILURES: Final = 10
"""Errors in the proxy's own code within the window that open the breaker."""
WINDOW_S: Final = 60.0
COOL_DOWN_S: Final = 300.0
"""How long the breaker stays open."""


class Cause(StrEnum):
    """Why calls pass without policies."""

    CONFIGURATION = "configuration"
    COMMAND = "command"
    """Through the API."""
    SIGNAL = "signal"
    BREAKER = "breaker"
    PREDECESSOR = "predecessor"
    """It was chosen in the process before this one, which an upgrade replaced."""


OnTurned: TypeAlias = Callable[[bool, Cause, str], None]


class BypassStatus(NamedTuple):
    """The bypass and the breaker; times are seconds since the epoch."""

    is_on: bool
    cause: Cause | None
    """None if it is off."""
    since_s: float | None
    """None if it is off."""
    reason: str
    """As an operator gave it; empty for none."""
    opened_s: float | None
    """When the breaker opened; None if it is closed."""
    open_until_s: float | None
    """None if it is closed."""
    recent_errors: int
    """Within the window."""


class _Choice(NamedTuple):
    """How an operator has chosen."""

    by: Cause = Cause.SIGNAL
    reason: str = ""
    """For people."""


class Bypass:
    """Sets `interceptor.bypass`.

    Args:
        interceptor: decides while its bypass is off.
        failures: returns how many errors there have been in the proxy's own code since the start.
        is_configured: whether the configuration asks for the bypass.
        on_turned: called when it is turned on or off: whether it is on, by what, and the operator's reason.
            When it is off calls are intercepted again, after calls that no record has seen.
        clock: a monotonic time in seconds.
        wall_clock: seconds since the epoch.

    Attributes:
        openings: how often the breaker has opened.
        chosen: the operator's choice; None if it is what the configuration says, or the configuration has
            changed since.
    """

    def __init__(
        self,
        interceptor: BypassSwitch,
        failures: Callable[[], int],
        is_configured: bool,
        on_turned: OnTurned,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._interceptor = interceptor
        self._failures = failures
        self._on_turned = on_turned
        self._clock = clock
        self._wall_clock = wall_clock
        self._is_configured = is_configured
        self.chosen: bool | None = None
        self.openings = 0
        self._choice = _Choice()
        self._since_s: float | None = None
        self._reset_breaker()
        self.update()

    @property
    def cause(self) -> str:
        """Why the bypass is on: `breaker`, `operator` or `configuration`; empty while it is off."""
        cause = self.status.cause
        if cause is None:
            return ""
        return str(cause) if cause in (Cause.BREAKER, Cause.CONFIGURATION) else "operator"

    @property
    def status(self) -> BypassStatus:
        """As of the last update."""
        is_on, is_open = self._interceptor.bypass, self._clock() < self._open_until_s
        cause: Cause | None = None
        if is_on and is_open:
            cause = Cause.BREAKER
        elif is_on:
            cause = self._choice.by if self.chosen else Cause.CONFIGURATION
        until_s = self._wall_clock() + self._open_until_s - self._clock()
        return BypassStatus(
            is_on,
            cause,
            self._since_s if is_on else None,
            self._choice.reason if is_on else "",
            until_s - COOL_DOWN_S if is_open else None,
            until_s if is_open else None,
            self._seen[-1][1] - self._seen[0][1] if self._seen else 0,
        )

    def choose(self, is_on: bool, by: Cause = Cause.SIGNAL, reason: str = "") -> None:
        """An operator turns the bypass on, or off even if the breaker is open.

        Args:
            is_on: the choice.
            by: how it was made.
            reason: for people.
        """
        self.chosen = is_on if is_on != self._is_configured else None
        self._choice = _Choice(by, reason)
        self._apply(is_on, by)

    def configure(self, is_on: bool) -> None:
        """The configuration has changed; an earlier choice of an operator is forgotten."""
        self._is_configured = is_on
        self.chosen, self._choice = None, _Choice()
        self._apply(is_on, Cause.CONFIGURATION)

    def update(self, by: Cause = Cause.BREAKER) -> None:
        """Counts the failures since the last update; to be called about every second.

        `by`: what may have turned it on or off; of itself only the breaker does.
        """
        was_on = self._interceptor.bypass
        is_open = self._is_breaker_open()
        self._interceptor.bypass = is_open or (self._is_configured if self.chosen is None else self.chosen)
        if self._interceptor.bypass and (not was_on or self._since_s is None):
            self._since_s = self._wall_clock()
        if was_on != self._interceptor.bypass:
            self._on_turned(not was_on, by, self._choice.reason if by is self._choice.by else "")

    def _apply(self, is_on: bool, by: Cause) -> None:
        if not is_on:
            self._reset_breaker()
        reason = self._choice.reason
        about = {"bypass": is_on, "reason": reason} if reason else {"bypass": is_on}
        logger.warning("bypass is %s", "on" if is_on else "off", extra=about)
        self.update(by)

    def _reset_breaker(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._open_until_s = 0.0

    def _is_breaker_open(self) -> bool:
        now_s, total = self._clock(), self._failures()
        while self._seen and self._seen[0][0] < now_s - WINDOW_S:
            self._seen.popleft()
        before = self._seen[0][1] if self._seen else total
        self._seen.append((now_s, total))
        if now_s >= self._open_until_s and total - before >= MOST_FAILURES:
            self._open_until_s = now_s + COOL_DOWN_S
            self.openings += 1
            self._seen.clear()
            logger.error(
                "the proxy keeps failing: bypass is on for %d s",
                COOL_DOWN_S,
                extra={"failures": total - before},
            )
        return now_s < self._open_until_s
