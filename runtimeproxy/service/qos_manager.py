"""Whether a QoS manager runs where the strategies of this node ask for one. Used in the event loop's thread.

`koord-qos-manager` reports to the daemon every few seconds. Another process that renews the claims of a
plugin counts as that plugin, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.config.validation import feature_gates
from runtimeproxy.hooks.owners import BUILT_IN
from runtimeproxy.katalyst.eviction_config import OF_PLUGINS, asked_evictions
from runtimeproxy.ledger import leases
from runtimeproxy.ledger.upkeep import KOORDLETS_CLAIMS
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.koordlet import koordlets
from runtimeproxy.node.snapshot import Input, InputState
from runtimeproxy.pods.record_views import recorded_pod
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.slo.dynamic import GATES, asked_plugins, is_gated_on
from runtimeproxy.vocabulary import Mode, PluginReport

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.pods.records import PodRecord
    from runtimeproxy.service.configuration import CurrentConfiguration
    from runtimeproxy.slo.schema import CpuBurstPolicy

logger = logging.getLogger(__name__)
_failures: Final = FailureLog()

MANAGER: Final = "koord-qos-manager"
START: Final = f"systemctl start {MANAGER}"
TICK_S: Final = 2.0
"""How often it is looked at whether one is missing."""
KOORDLET_S: Final = 30.0
"""How long a look for koordlet's process counts."""


def reports_s() -> float:
    # Three times while one report counts.
    return leases.LEASE_S / 3


class State(StrEnum):
    """Whether a QoS manager runs, and has to."""

    NOT_WANTED = "not-wanted"
    """No strategy asks for it, and none runs."""
    RUNNING = "running"
    STARTING = "starting"
    """It is missing for less than `leases.LEASE_S`: a report may be on its way."""
    MISSING = "missing"
    LEFT = "left"
    """Koordlet does it, or the configuration says that no process does."""


class ManagerReport(NamedTuple):
    """What a manager says of itself."""

    version: str
    pid: int
    started_s: float
    """Since the epoch."""
    plugins: tuple[PluginReport, ...] = ()
    metrics_source: str = ""
    """A `MetricsSource`; empty if it does not say."""
    metrics_problem: str = ""
    """Why not all samples came from where the configuration says."""


class NodeResource(NamedTuple):
    """What a manager reports of the node."""

    json: str = ""
    """A CustomNodeResource of Katalyst's; empty: there is none."""
    problems: tuple[str, ...] = ()
    wall_s: float | None = None
    """When it came, in seconds since the epoch; None: none ever came."""


class Situation(NamedTuple):
    """What is known when it is looked at."""

    wanted: frozenset[str] = frozenset()
    """The plugins that strategies, feature gates and modes ask for."""
    left: Mapping[str, str] = {}
    """Of them, those that are not this node's QoS manager's, each with the reason."""
    is_heard: bool = False
    """Whether a report counts."""
    run: frozenset[str] = frozenset()
    """The plugins that run: by a report, or as their claims are renewed."""
    is_new: bool = False
    """Whether something has been missing for a moment only."""


class Verdict(NamedTuple):
    """Whether something is missing, and what to say."""

    state: State
    missing: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    note: str = ""
    """For people; a problem if something is missing, and neutral otherwise."""


def verdict(found: Situation) -> Verdict:
    """Whether a QoS manager is missing. Pure."""
    left = tuple(sorted(found.wanted & found.left.keys()))
    missing = tuple(sorted(found.wanted - found.left.keys() - found.run))
    if not found.is_heard and not found.run.isdisjoint(GATES):
        # A manager of an earlier version, which does not report: what else it would do is not known.
        missing = ()
    if missing and not found.is_new:
        return Verdict(State.MISSING, missing, left, _missing_text(missing, is_heard=found.is_heard))
    note = ""
    if left:
        reasons = "; ".join(dict.fromkeys(found.left[each] for each in left))
        note = f"The strategies ask for {', '.join(left)}, which {MANAGER} leaves alone: {reasons}."
    if found.is_heard or found.run:
        return Verdict(State.RUNNING, missing, left, note)
    if missing:
        return Verdict(State.STARTING, missing, left, note)
    return Verdict(State.LEFT if left else State.NOT_WANTED, (), left, note)


def wanted_plugins(settings: Settings, node: Node, pods: Iterable[PodRecord]) -> frozenset[str]:
    """The plugins that strategies, feature gates and modes ask for. Pure.

    Args:
        settings: Of the configuration, which a manager reads, too.
        node: With the strategies; if these are not known, none of them asks for anything.
        pods: Those that run.
    """
    chosen = chosen_plugins(settings) | asked_evictions(node.katalyst.eviction)
    if node.state_of(Input.STRATEGIES) is InputState.UNKNOWN:
        return chosen
    own, gates = settings.plugins, feature_gates(settings.qosmanager.feature_gates)
    is_on = {name: name not in own or own[name].mode != "off" for name in GATES}
    bursts: Iterable[CpuBurstPolicy] = ()
    if is_on["cpu-burst"]:
        bursts = (node.strategy_for(recorded_pod(pod)).cpu_burst.policy for pod in pods)
    strategies = node.strategies
    asked = asked_plugins(
        has_thresholds=strategies.threshold.enable, bursts=bursts, has_guard=strategies.cpu_guard.enable
    )
    gated_on = {name for name in asked if is_on[name] and is_gated_on(name, gates)}
    return chosen | gated_on


def chosen_plugins(settings: Settings) -> frozenset[str]:
    """The plugins that no strategy asks for, and that the configuration switches on. Pure."""
    names = settings.plugins.keys() & BUILT_IN.keys() - GATES.keys()
    return frozenset(name for name in names if settings.plugins[name].mode not in (None, "off"))


def left_plugins(wanted: Iterable[str], settings: Settings, *, has_koordlet: bool) -> dict[str, str]:
    """The wanted plugins that this node's QoS manager does not run, each with the reason. Pure.

    Args:
        wanted: Names of plugins.
        settings: Of the configuration.
        has_koordlet: Whether koordlet is on this node.
    """
    if settings.qosmanager.mode == "none":
        return dict.fromkeys(wanted, '[qosmanager] mode is "none"')
    if not settings.cgroups.enabled:
        return dict.fromkeys(wanted, "cgroups.enabled is false")
    found: dict[str, str] = {}
    for name in OF_PLUGINS.keys() & set(wanted):
        own = settings.plugins.get(name)
        if own is None or own.mode in (None, "off"):
            # What Katalyst's configuration asks for is not done before this node's says so.
            found[name] = f"[plugins.{name}] mode is off"
    taken = set(settings.ledger.take_from_koordlet)
    for name in GATES.keys() & set(wanted) if has_koordlet else ():
        fields = {rule.partition(" ")[0] for rule in BUILT_IN[name].allow}
        if not fields or (fields & KOORDLETS_CLAIMS.keys()) - taken:
            gate = (GATES[name] or GATES["cpu-suppress"])[0]
            found[name] = f"koordlet is on this node, and does it (feature gate {gate})"
    return found


def _missing_text(missing: Collection[str], *, is_heard: bool) -> str:
    names, asker = ", ".join(missing), _asker(missing)
    if is_heard:
        return (
            f"{MANAGER} runs without {names}, which {asker} for: "
            f"systemctl reload {MANAGER} has it read the configuration again."
        )
    return (
        f"{asker[:1].upper()}{asker[1:]} for {names}, and no QoS manager runs: start {MANAGER} ({START}), "
        'or set [qosmanager] mode = "none".'
    )


def _asker(missing: Collection[str]) -> str:
    asked = [each in GATES for each in missing]
    if all(asked):
        return "the strategies of this node ask"
    return "strategies and configuration of this node ask" if any(asked) else "the configuration asks"


class _Heard(NamedTuple):
    """The last report."""

    report: ManagerReport
    at_s: float
    """By the watch's clock."""
    wall_s: float
    """Since the epoch."""


class QosManagerWatch:
    """Knows the last report, and looks from time to time whether something is missing.

    Args:
        wanted: The plugins that strategies, gates and modes ask for now.
        left: Of some plugins, those that something else does, with the reason; given whether a koordlet runs.
        leased: The owners whose claims are renewed now.
        find_koordlet: Whether a koordlet runs on this node, by its process; reads files in a worker thread.
        clock: Monotonic, in seconds.

    Attributes:
        wanted: The plugins that were asked for at the last look.
        node_resource: What was reported of the node last.
        last: The last verdict, for other threads.
    """

    def __init__(
        self,
        wanted: Callable[[], frozenset[str]],
        left: Callable[[Collection[str], bool], Mapping[str, str]],
        leased: Callable[[], frozenset[str]],
        find_koordlet: Callable[[], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._left = left
        self._leased = leased
        self._find_koordlet = find_koordlet
        self._now_s = clock
        self._heard: _Heard | None = None
        self._missing_since_s: float | None = None
        self._has_koordlet = False
        self._looked_for_koordlet_s = -float("inf")
        self._told = ""
        self.wanted: frozenset[str] = frozenset()
        self.node_resource = NodeResource()
        self.last = Verdict(State.NOT_WANTED)

    @property
    def is_heard(self) -> bool:
        return self._heard is not None and self._now_s() < self._heard.at_s + leases.LEASE_S

    @property
    def report(self) -> ManagerReport | None:
        return None if self._heard is None else self._heard.report

    @property
    def heard_s(self) -> float | None:
        # In seconds since the epoch.
        return None if self._heard is None else self._heard.wall_s

    def take(self, report: ManagerReport, node_resource: NodeResource | None = None) -> None:
        # None: as in the last report.
        if self.report is not None and self.report.pid != report.pid and self.is_heard:
            text = f"two QoS managers report: process {self.report.pid} and process {report.pid}"
            _failures.report(MANAGER, "", text)
        self._heard = _Heard(report, self._now_s(), time.time())
        if node_resource is not None:
            self.node_resource = node_resource._replace(wall_s=time.time())

    def failing(self) -> tuple[PluginReport, ...]:
        """The wanted plugins of a manager that runs which cannot do their work."""
        if self.report is None or not self.is_heard:
            return ()
        return tuple(
            each
            for each in self.report.plugins
            if each.problem and each.is_wanted and each.mode is not Mode.OFF
        )

    def look(self) -> Verdict:
        """Whether something is missing now."""
        self.wanted = self._wanted()
        reported = self.report.plugins if self.report is not None and self.is_heard else ()
        run = frozenset(each.name for each in reported if each.mode is not Mode.OFF) | self._leased()
        left = self._left(self.wanted, self._has_koordlet)
        if self.wanted - left.keys() - run:
            if self._missing_since_s is None:
                self._missing_since_s = self._now_s()
        else:
            self._missing_since_s = None
        is_new = self._missing_since_s is None or self._now_s() < self._missing_since_s + leases.LEASE_S
        self.last = verdict(Situation(self.wanted, left, self.is_heard, run, is_new))
        return self.last

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.check()
            except Exception:  # a bug costs this look, not the next one
                logger.exception("it could not be looked at whether a QoS manager runs")

    async def check(self) -> None:
        """Looks once; where something is missing, for a koordlet first."""
        found = self.look()
        is_due = self._now_s() >= self._looked_for_koordlet_s + KOORDLET_S
        if is_due and (found.missing or self._has_koordlet):
            self._looked_for_koordlet_s = self._now_s()
            self._has_koordlet = await self._find_koordlet()
            found = self.look()
        if found.note == self._told:
            return
        if found.state is State.MISSING:
            logger.warning(found.note, extra={"plugins": list(found.missing)})
        elif found.note:
            logger.info(found.note, extra={"plugins": list(found.left)})
        elif self._told:
            logger.info("nothing that strategies ask of a QoS manager is missing any more")
        self._told = found.note


def watch_of(
    core: Core, configuration: CurrentConfiguration, is_standby: Callable[[], bool], executor: Executor
) -> QosManagerWatch:
    """The watch of a daemon.

    Args:
        core: Has the strategies, the pods and the claims.
        configuration: Which a manager reads, too.
        is_standby: Whether another process decides.
        executor: A thread.
    """
    node, store, claims, upkeep = core.node, core.store, core.leased, core.upkeep

    def wanted() -> frozenset[str]:
        if is_standby():
            return frozenset()
        pods = (pod for pod in store.pods if pod.state is Lifecycle.RUNNING)
        return wanted_plugins(configuration.settings, node.latest, pods)

    def left(names: Collection[str], has_process: bool) -> Mapping[str, str]:
        has_koordlet = has_process or upkeep.has_koordlet
        return left_plugins(names, configuration.settings, has_koordlet=has_koordlet)

    def leased() -> frozenset[str]:
        return frozenset(
            name
            for name, owned in claims.owners.items()
            if owned.claims and owned.phase is leases.Phase.LEASED
        )

    async def find_koordlet() -> bool:
        """Whether a process of this node is a koordlet, which need not be registered as a hook server."""
        run = asyncio.get_running_loop().run_in_executor
        return await run(executor, lambda: any(True for _ in koordlets(Path("/proc"))))

    return QosManagerWatch(wanted, left, leased, find_koordlet)
