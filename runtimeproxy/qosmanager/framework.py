"""Runs one plugin: in a thread of its own, with a time limit, and with growing pauses after failures.

A plugin that raises, hangs, or returns something else than a decision is left out, reported and tried again;
the others go on, as they have threads of their own. Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.errors import described
from runtimeproxy.qosmanager.plugin import (
    MOST_GRACE_S,
    AnyPlugin,
    Change,
    Claim,
    Decision,
    Eviction,
    EvictionResult,
    Mode,
    NodeReport,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.snapshot import Level
from runtimeproxy.units import MAX_INT64
from runtimeproxy.vocabulary import MOST_LEFT_OUT_REASONS, MOST_TARGET, MOST_VALUE

if TYPE_CHECKING:
    from runtimeproxy.logs import FailureLog
    from runtimeproxy.qosmanager.snapshot import Snapshot

logger = logging.getLogger(__name__)

TIME_LIMIT_S: Final = 3.0
"""How long one run may take: a fifth of the lease of its claims."""
MOST_CLAIMS: Final = 10_000
"""Of one decision: more would keep the other plugins from running."""
MOST_EVICTIONS: Final = 64
"""Of one decision; the daemon carries them out one by one."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""After a failure; each one in a row doubles the pause."""


class PluginFailedError(Exception):
    """A run without a decision; the text says why, and no traceback is logged."""


class PluginRun(NamedTuple):
    """The result of one run."""

    decision: Decision[Any]
    is_enabled: bool
    """Whether the strategies want the plugin. If not, the decision is empty."""


class PluginRunner:
    """One plugin with its thread and state."""

    def __init__(
        self,
        plugin: AnyPlugin,
        failures: FailureLog,
        clock: Callable[[], float] = time.monotonic,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self.plugin = plugin
        self.mode = plugin.default_mode
        self.is_enabled: bool | None = None
        """Whether the strategies want it; None: not known yet."""
        self.problem = ""
        """Why it is left out now; empty if it is not."""
        self.explanation = ""
        self.left_out: Mapping[str, tuple[str, ...]] = {}
        """By reason: the pods that it left out in its last run."""
        self.pod_notes: Mapping[str, Sequence[str]] = {}
        """By text: the pods that it said this of in its last run."""
        self._failures = failures
        self._clock = clock
        self._time_limit_s = time_limit_s
        self._thread = BackgroundThreads(1, f"plugin-{plugin.name}")
        self._hanging: Future[Any] | None = None
        self._pause_s = 0.0
        self._next_s = -float("inf")
        self._gates: Mapping[str, bool] = {}
        self._options: Any = None
        self._state: Any = None
        self.has_state = False
        """Whether it goes on from its own state; if not, it begins with the claims that the daemon has."""
        self._beginnings = 0
        """How often it had to begin anew: a run that is under way then leaves no state."""
        self._results: tuple[EvictionResult, ...] = ()
        self._versions: tuple[int, int, int] | None = None

    def configure(self, mode: Mode, gates: Mapping[str, bool], options: Any) -> None:  # noqa: ANN401
        """Sets what the configuration says; other gates or options begin with a new state.

        So does the end of a dry run, whose decisions were never in force.
        """
        is_on = not self.plugin.gates or any(gates.get(gate, False) for gate in self.plugin.gates)
        before, self.mode = self.mode, mode if is_on else Mode.OFF
        is_dry_run_over = before is Mode.DRY_RUN and self.mode is Mode.ENFORCE
        is_other = (gates, options) != (self._gates, self._options)
        if self.mode is Mode.OFF or is_dry_run_over or is_other:
            self.forget()
        self._gates, self._options = gates, options

    def forget(self) -> None:
        """Has the plugin begin anew."""
        self._state, self.has_state, self._results, self.is_enabled = None, False, (), None
        self.left_out, self.pod_notes = {}, {}
        self._beginnings += 1

    def is_due(self, now_s: float) -> bool:
        return self.mode is not Mode.OFF and now_s >= self._next_s

    def note_evictions(self, results: Sequence[EvictionResult]) -> None:
        self._results = (*self._results, *results)

    async def run(
        self, snapshot: Snapshot, versions: tuple[int, int, int], held: Sequence[Claim] = ()
    ) -> PluginRun | None:
        """Has the plugin decide; None after a reported failure. `held` are its claims in the daemon."""
        now_s, beginnings = self._clock(), self._beginnings
        # A round that comes a little early is not left out.
        self._next_s = now_s + self.plugin.interval_s * 0.9
        changes = self._changes(versions)
        work = partial(self._decide, snapshot, changes, tuple(held), self._results)
        try:
            result = await self._call(work)
        except PluginFailedError as error:
            self._fail(str(error), error.__cause__)
            return None
        if beginnings != self._beginnings:
            # It has decided by what the configuration said before.
            return None
        self._versions, self._results = versions, ()
        self._state, self.has_state = result.decision.state, result.is_enabled
        self.is_enabled = result.is_enabled
        self.explanation = result.decision.explanation
        self.left_out = {reason: tuple(uids) for reason, uids in result.decision.left_out.items()}
        self.pod_notes = result.decision.pod_notes
        if self._pause_s:
            logger.info("%s: decides again", self.plugin.name)
        self.problem, self._pause_s = "", 0.0
        return result

    def _changes(self, versions: tuple[int, int, int]) -> frozenset[Change]:
        if self._versions is None or not self.has_state:
            return frozenset()
        pairs = zip(Change, self._versions, versions, strict=True)
        return frozenset(change for change, before, now in pairs if before != now)

    def _decide(
        self,
        snapshot: Snapshot,
        changes: frozenset[Change],
        held: Sequence[Claim],
        results: Sequence[EvictionResult],
    ) -> PluginRun:
        """In the plugin's thread."""
        plugin, state = self.plugin, self._state
        if not plugin.is_enabled(snapshot):
            return PluginRun(Decision(None, explanation="the strategies of this node do not want it"), False)
        if not self.has_state:
            state = plugin.setup(PluginContext(gates=self._gates, options=self._options, held=held))
        if results:
            state = plugin.on_evictions(results, snapshot, state)
        if changes:
            state = plugin.on_changed(changes, snapshot, state)
        decision = plugin.run(snapshot, state)
        if problem := decision_problem(decision):
            raise PluginFailedError(f"its decision cannot be used: {problem}")
        return PluginRun(decision, True)

    async def _call(self, work: Callable[[], PluginRun]) -> PluginRun:
        if self._hanging is not None and not self._hanging.done():
            raise PluginFailedError("it still hangs")
        self._hanging = self._thread.submit(work)
        running = asyncio.wrap_future(self._hanging)
        # A late error has been reported as the time limit's.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({running}, timeout=self._time_limit_s)
        if not running.done():
            raise PluginFailedError(f"no decision within {self._time_limit_s:g} s")
        error = running.exception()
        if error is None or isinstance(error, PluginFailedError):
            result: PluginRun = running.result()
            return result
        raise PluginFailedError(described(error)) from error

    def _fail(self, reason: str, cause: BaseException | None) -> None:
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._next_s = self._clock() + self._pause_s
        self.problem = reason
        text = f"left out for {self._pause_s:g} s: {reason}"
        self._failures.report(self.plugin.name, reason, text, level=logging.ERROR, error=cause)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def decision_problem(answer: object) -> str:
    """Why an answer of a plugin is no decision; empty if it is one. Pure."""
    if not isinstance(answer, Decision):
        return f"it is {type(answer).__name__}, not Decision"
    # Plugins are third-party code: their types are not to be relied on.
    decision: Any = answer
    if not isinstance(decision.explanation, str):
        return "explanation is not a text"
    report = decision.node_report
    if report is not None and not (isinstance(report, NodeReport) and isinstance(report.document, str)):
        return "node_report is not a NodeReport"
    for name, kind, most in (("claims", Claim, MOST_CLAIMS), ("evictions", Eviction, MOST_EVICTIONS)):
        if problem := _entries_problem(name, getattr(decision, name), kind, most):
            return problem
    if problem := next((text for claim in decision.claims if (text := _claim_problem(claim))), ""):
        return problem
    keys = Counter(claim.key for claim in decision.claims)
    for (target, field, role), count in keys.most_common(1):
        if count > 1:
            return f"two claims for {field} of {target.level.name.lower()} {target.id} with the role {role}"
    problem = next((text for each in decision.evictions if (text := _eviction_problem(each))), "")
    return (
        problem
        or _by_text_problem("left_out", decision.left_out, MOST_LEFT_OUT_REASONS)
        or _by_text_problem("pod_notes", decision.pod_notes, MOST_CLAIMS)
    )


def _eviction_problem(eviction: Eviction) -> str:
    uid, reason, grace_s = tuple[Any, ...](eviction)
    if not (_is_name(uid) and _is_text(reason)):
        return "an eviction has no uid or no reason"
    is_grace = isinstance(grace_s, int | float) and 0 <= grace_s <= MOST_GRACE_S
    return "" if is_grace else f"an eviction has the grace period {grace_s!r:.50}"


def _by_text_problem(name: str, given: object, most: int) -> str:
    """Why this is no mapping of texts to uids of pods; empty if it is one."""
    if not isinstance(given, Mapping) or len(given) > most:
        return f"{name} is no mapping of at most {most} texts"
    if not all(map(_is_text, given)):
        return f"{name} has a key that is no text"
    for uids in given.values():
        if not isinstance(uids, Sequence) or isinstance(uids, str) or not all(map(_is_name, uids)):
            return f"{name} has no uids of pods"
    return ""


def _entries_problem(name: str, entries: object, kind: type, most: int) -> str:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return f"{name} is {type(entries).__name__}, not a sequence"
    if len(entries) > most:
        return f"{name} has {len(entries)} entries, at most {most} are possible"
    other = next((type(entry) for entry in entries if not isinstance(entry, kind)), None)
    return "" if other is None else f"{name} has {other.__name__}, not {kind.__name__}"


def _claim_problem(claim: Claim) -> str:
    fields: tuple[Any, ...] = tuple(claim)
    target, field, role, value, ceiling, reason = fields
    if not isinstance(target, Target):
        return f"a claim has the target {target!r:.100}"
    level, identity = tuple(target)
    if not isinstance(level, Level) or level is Level.NODE or not _is_name(identity):
        return f"a claim has the target {level!r:.50} {identity!r:.100}"
    name = str(field) if isinstance(field, str) else field
    place = f"{name!r:.50} of {level.name.lower()} {identity:.80}"
    is_role = isinstance(role, Role) and role is not Role.SCALE
    if not _is_name(field) or not is_role or not (reason == "" or _is_text(reason)):
        return f"{place} has no field, role or reason"
    if not _is_amount(value) and not (
        isinstance(value, str) and _is_text(value) and len(value) <= MOST_VALUE
    ):
        return f"{place} is {value!r:.100}"
    is_ceiling = ceiling is None or (_is_amount(ceiling) and role is Role.ADD)
    return "" if is_ceiling else f"{place} has the ceiling {ceiling!r:.50}, and the role {role}"


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -MAX_INT64 <= value <= MAX_INT64


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _is_text(value) and len(value) <= MOST_TARGET


def _is_text(value: object) -> bool:
    # It is logged and sent: no line breaks, no surrogates.
    return isinstance(value, str) and bool(value) and value.isprintable()
