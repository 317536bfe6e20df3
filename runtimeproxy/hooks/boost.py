"""Start-up boost: what a policy says of a container that starts.

The boost is no value of the container: it is added to its quota for a time, by file and with a lease
(`ledger.boosts`), and neither the message of its creation nor the runtime's book has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from runtimeproxy.hooks.reasons import Reason
from runtimeproxy.hooks.views import ContainerView
from runtimeproxy.node.snapshot import Node


class WantedBoost(NamedTuple):
    """A larger quota for a container that starts."""

    quota_us: int
    """That it asks for, above 0."""
    period_us: int
    amount_us: int
    """To be added, in the same period; above 0."""
    max_s: float
    """How long at most, from its start."""
    reason: Reason


@runtime_checkable
class BoostsStarts(Protocol):
    """The policy that boosts starts: while it is loaded, there are boosts."""

    wanted_boost: Callable[[ContainerView, Node], WantedBoost | None]
    """Pure and quick; None for no boost."""
