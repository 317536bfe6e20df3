"""A plugin of the QoS manager that says how many passes it has seen; small, as its process is measured."""

from __future__ import annotations

from typing import ClassVar

from runtimeproxy.qosmanager.plugin import Decision, Plugin, PluginContext
from runtimeproxy.qosmanager.snapshot import Snapshot


class PassCounter(Plugin[int]):
    """Claims nothing."""

    name: ClassVar[str] = "pass-counter"
    has_claims: ClassVar[bool] = False
    # Each pass is at least so much later than the one before.
    interval_s: ClassVar[float] = 0.01

    def setup(self, context: PluginContext) -> int:
        return 0

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return True

    def run(self, snapshot: Snapshot, state: int) -> Decision[int]:
        return Decision(state + 1, explanation=str(state + 1))
