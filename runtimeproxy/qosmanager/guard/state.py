"""What the guard remembers from second to second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runtimeproxy.qosmanager.guard.law import LawState, LawStep
from runtimeproxy.qosmanager.guard.lever import Position
from runtimeproxy.qosmanager.guard.signal import NoSample, RecentWaits, WaitKind
from runtimeproxy.qosmanager.guard.target import QuietHistory, WaitTarget
from runtimeproxy.qosmanager.plugin import Claim

NEVER_S: Final = float("-inf")


class PodState(NamedTuple):
    """What is known of one guarded pod."""

    waits: RecentWaits
    seen_s: float = NEVER_S
    """Since when it is known, by the monotonic clock."""
    read_s: float = NEVER_S
    """The last second that was judged."""
    used_cores: float = 0.0
    missing: NoSample | None = NoSample.NOTHING_READ
    """Why the last second is no sample; None: it is one."""
    allowed: WaitTarget | None = None
    """Its target, since it has had a sample."""
    learnt: tuple[WaitKind, int, float | None, float] | None = None
    """The kind, the load and what the annotation asks for, of a target that is learnt or at least what is
    usual; and until when it stands."""
    kind: WaitKind = WaitKind.RUN_DELAY
    """By what the last second was judged."""
    workload: str = ""
    """Of its namespace, name and containers."""
    containers: int = -1
    """How many those were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardState:
    """What is remembered from second to second."""

    law: LawState = field(default_factory=LawState)
    position: Position = field(default_factory=Position)
    cpus: frozenset[int] = frozenset()
    """Those of the position."""
    pods: Mapping[str, PodState] = field(default_factory=dict)
    """By uid."""
    started_s: float | None = None
    sampled_s: float = NEVER_S
    """The last sample of any pod."""
    is_seeing: bool = False
    blind_s: float = NEVER_S
    """Since when it is blind; at its start that of the first process in a row that soon ended."""
    quiet_s: float = NEVER_S
    probed_s: float = NEVER_S
    saved_s: float = NEVER_S
    step: LawStep | None = None
    """The last decision; None while it is blind."""
    problem: str = ""
    """Why what was learnt before is not used."""
    history: QuietHistory = field(default_factory=QuietHistory, compare=False)
    """Changed in place."""
    claims: tuple[Claim, ...] = ()
