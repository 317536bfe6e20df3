"""The process from start to end: rounds of samples and decisions, configuration, signals, notifications.

A round reads samples, makes a snapshot of the daemon's state, and has each plugin decide whose round
before has ended. Without the daemon there are no rounds. Claims in the daemon outlive this process:
nothing is released at its end, only when a plugin is switched off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pkgutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from runtimeproxy.background import BackgroundTasks, BackgroundThreads
from runtimeproxy.config.schema import make
from runtimeproxy.config.settings import PluginSettings, Settings
from runtimeproxy.config.validation import CombinedConfigError, Problem, admin_socket, feature_gates
from runtimeproxy.errors import ConfigError, RuntimeProxyError, described
from runtimeproxy.logs import FailureLog, flush_failures
from runtimeproxy.qosmanager.claims import ClaimSession, claim_text
from runtimeproxy.qosmanager.client import ClaimsRefusedError, DaemonAwayError, DaemonClient
from runtimeproxy.qosmanager.framework import PluginRun, PluginRunner
from runtimeproxy.qosmanager.plugin import (
    GUARD,
    AnyPlugin,
    Claim,
    EvictionOutcome,
    Mode,
    Need,
    NodeReport,
    Plugin,
    be_limit_cores,
)
from runtimeproxy.qosmanager.remote import RemoteOptions, RemotePlugin
from runtimeproxy.qosmanager.snapshot import Level, Metrics, Snapshot, sample_targets
from runtimeproxy.sdnotify import Notifier, watchdog_interval_s
from runtimeproxy.vocabulary import MetricsSource, PluginReport

if TYPE_CHECKING:
    from runtimeproxy.config.sources import SourceReading
    from runtimeproxy.qosmanager.client import DaemonConnection, Observed

logger = logging.getLogger(__name__)

_PLUGINS: Final = "runtimeproxy.qosmanager.plugins"
BUILT_IN: Final[Mapping[str, str]] = {
    "cpu-suppress": f"{_PLUGINS}.cpu_suppress:CpuSuppress",
    "cpu-burst": f"{_PLUGINS}.cpu_burst:CpuBurstPlugin",
    "cpu-evict": f"{_PLUGINS}.cpu_evict:CpuEvict",
    "memory-evict": f"{_PLUGINS}.memory_evict:MemoryEvict",
    "katalyst-cpu-suppression": f"{_PLUGINS}.katalyst_cpu_suppression:KatalystCpuSuppression",
    "katalyst-cpu-load": f"{_PLUGINS}.katalyst_cpu_load:KatalystCpuLoad",
    "katalyst-reclaimed-pressure": f"{_PLUGINS}.katalyst_reclaimed_pressure:KatalystReclaimedPressure",
    "katalyst-memory-pressure": f"{_PLUGINS}.katalyst_memory_pressure:KatalystMemoryPressure",
    "katalyst-rss-overuse": f"{_PLUGINS}.katalyst_rss_overuse:KatalystRssOveruse",
    "profiling": f"{_PLUGINS}.profiling:Profiling",
    "katalyst-advisor": f"{_PLUGINS}.katalyst_advisor:KatalystAdvisor",
    "katalyst-reporter": f"{_PLUGINS}.katalyst_reporter:KatalystReporter",
    "cpu-guard": f"{_PLUGINS}.cpu_guard:CpuGuardPlugin",
}
"""The class of each plugin; its module is imported at the start."""
SAMPLES_S: Final = 2.0
"""How long a pass of samples may take before the round goes on without it."""
REPORT_S: Final = 5.0
"""How long the daemon may take for a report."""
MOST_NODE_REPORT_BYTES: Final = 768 << 10
"""Of the node's CustomNodeResource; the daemon takes a little more in one call."""
NO_NODE_REPORT: Final = NodeReport("")
REFUSED_PAUSE_S: Final = 10.0
"""How long a plugin waits whose claims the daemon does not take."""
EXPLAIN_S: Final = 10.0
"""Least time between two lines about the claims of a plugin in dry-run."""
MOST_EXPLAINED: Final = 5
"""Claims in one such line."""
CLOSING_S: Final = 1.0
"""How long tasks may take to end."""
_TOLD_OUTCOMES: Final = (EvictionOutcome.EVICTED, EvictionOutcome.DRY_RUN)
"""Plugins propose few of them in a minute; what a bound refuses may come in each round."""
_QUIET_S: Final = 10.0
"""A loop without a round for so long, apart from its interval, hangs: the watchdog is not fed."""


class SampleSource(Metrics, Protocol):
    """Where samples come from."""

    @property
    def cycles_problem(self) -> str:
        """Why there are no cycles per instruction; empty if there are, or if no plugin needs them."""

    @property
    def metrics_source(self) -> tuple[MetricsSource, str]:
        """Where the values of the last pass came from, and why not from where they should."""

    def read(self, targets: Mapping[str, Level], needs: Iterable[Need]) -> object:
        """Makes one pass; in one thread at a time."""

    def use_malachite(self, url: str) -> None:
        """Asks Malachite from now on, at `http://host:port`; an empty text: only the kernel's files."""

    def close(self) -> None:
        """Closes all files."""


class PluginConfiguration(NamedTuple):
    """The configuration of one plugin."""

    mode: Mode
    options: Any


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration, checked."""

    settings: Settings
    gates: Mapping[str, bool]
    plugins: Mapping[str, PluginConfiguration]
    """By name; each plugin is in it."""


def configured(reading: SourceReading, plugins: Iterable[AnyPlugin]) -> Configuration:
    """Checks plugins' options and the admin socket, which the daemon does not. Raises CombinedConfigError."""
    settings, errors = reading.settings, list(reading.errors)
    if not settings.api.admin_socket:
        reason = "is empty: koord-qos-manager sets its values through the daemon's admin socket"
        errors.append(reading.error(("api", "admin_socket"), reason))
    by_name: dict[str, PluginConfiguration] = {}
    for plugin in plugins:
        own = settings.plugins.get(plugin.name, PluginSettings())
        options: Any = None
        problems: list[Problem] = []
        if plugin.options_type is not None:
            options, problems = make(plugin.options_type, own.options)
            problems += [
                (tuple(key.split(".", 1)), reason) for key, reason in plugin.option_problems(options)
            ]
        elif isinstance(plugin, RemotePlugin):
            options = RemoteOptions(own.endpoint, own.options)
        elif own.options and not own.endpoint:
            problems = [((key,), "unknown key; this plugin has no options") for key in own.options]
        errors += (
            reading.error(("plugins", plugin.name, "options", *key), reason) for key, reason in problems
        )
        default_mode = Mode.DRY_RUN if own.reference else plugin.default_mode
        mode = Mode(own.mode) if own.mode is not None else default_mode
        if settings.qosmanager.mode == "dry-run" and mode is Mode.ENFORCE:
            mode = Mode.DRY_RUN
        if plugin.name not in BUILT_IN and not (own.endpoint or own.reference):
            # It is not in the configuration any more: its claims are released.
            mode = Mode.OFF
        if settings.qosmanager.mode == "none":
            mode = Mode.OFF
        by_name[plugin.name] = PluginConfiguration(mode, options)
    if errors:
        raise CombinedConfigError(errors)
    return Configuration(settings, feature_gates(settings.qosmanager.feature_gates), by_name)


def built_in_plugins() -> list[AnyPlugin]:
    return [pkgutil.resolve_name(reference)() for reference in BUILT_IN.values()]


def all_plugins(reading: SourceReading) -> list[AnyPlugin]:
    """Makes all plugins; raises CombinedConfigError for references, and for all problems of the reading."""
    made, errors = built_in_plugins(), list[ConfigError]()
    for name, own in sorted(reading.settings.plugins.items()):
        if own.endpoint:
            made.append(RemotePlugin(name))
        if not own.reference:
            continue
        try:
            made.append(_imported(name, own.reference))
        except Exception as error:  # noqa: BLE001 - code of others
            errors.append(reading.error(("plugins", name, "reference"), described(error)))
    if errors:
        raise CombinedConfigError([*reading.errors, *errors])
    return made


def _imported(name: str, reference: str) -> AnyPlugin:
    made = pkgutil.resolve_name(reference)()
    if not isinstance(made, Plugin):
        raise TypeError(f"{reference} is not a subclass of runtimeproxy.qosmanager.plugin.Plugin")
    if made.name != name:
        raise ValueError(f"the name of {reference} is {made.name!r}")
    return made


def external_plugins(settings: Settings) -> dict[str, str]:
    return {name: own.reference for name, own in settings.plugins.items() if own.endpoint or own.reference}


class _PluginEntry:
    """One plugin: what runs it, its claims, and its round."""

    def __init__(self, runner: PluginRunner, session: ClaimSession) -> None:
        self.runner = runner
        self.session = session
        self.round: asyncio.Task[None] | None = None
        self.refused = ""
        """Why the daemon does not take its claims; empty if it does."""
        self.refused_until_s = 0.0
        self.would_claim: list[Claim] = []
        """What was logged last, without reasons; nothing at first, which is not logged."""
        self.has_run = False
        self._node_report: NodeReport | None = None
        self.explained_s = 0.0
        self.threads_of: Sequence[str] = ()
        self.is_guarding = False
        self.problem = ""
        """Why it cannot do what it is for, as it says itself; empty if it can."""

    @property
    def report(self) -> PluginReport:
        """For the daemon."""
        runner = self.runner
        return PluginReport(
            runner.plugin.name,
            runner.mode,
            # One that has never decided may be wanted.
            bool(runner.is_enabled) or (runner.is_enabled is None and bool(runner.problem)),
            len(self.session.claims),
            runner.problem or self.refused or self.problem,
            runner.explanation,
            runner.left_out,
            runner.pod_notes,
        )

    @property
    def guards(self) -> bool:
        """Whether it bounds BE pods, and not just says that it would."""
        is_right = not self.runner.problem and not self.refused
        return self.is_guarding and is_right and self.runner.mode is Mode.ENFORCE

    @property
    def followed_threads(self) -> Sequence[str]:
        return self.threads_of if self.runner.mode is not Mode.OFF else ()

    @property
    def node_report(self) -> NodeReport | None:
        """The last one; without a document while the plugin is left out, and None if it reports nothing."""
        if self._node_report is None or self.runner.mode is Mode.OFF:
            return None
        problem = self.runner.problem
        return NodeReport("", (problem,)) if problem else self._node_report

    def note_run(self, result: PluginRun | None) -> None:
        self.has_run = True
        if result is not None:
            self._node_report = result.decision.node_report
        self.threads_of = result.decision.threads_of if result is not None else ()
        self.is_guarding = result is not None and result.decision.is_guarding
        self.problem = result.decision.problem if result is not None else ""

    @property
    def state(self) -> str:
        """For people."""
        runner = self.runner
        if runner.mode is Mode.OFF:
            return "off"
        if problem := runner.problem or self.refused:
            return problem
        if runner.is_enabled is False:
            return "not wanted by the strategies"
        if runner.mode is Mode.DRY_RUN:
            claims = "dry-run"
        else:
            claims = f"{len(self.session.claims)} claims" if runner.plugin.has_claims else ""
        return ", ".join(filter(None, (claims, runner.explanation)))


class QosManager:
    """One running manager; made in its event loop. `reload` raises ConfigError."""

    def __init__(
        self,
        configuration: Configuration,
        reload: Callable[[], Configuration],
        plugins: Iterable[AnyPlugin],
        sampler: SampleSource,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._configuration = configuration
        self._reload = reload
        self._sampler = sampler
        self._environ = environ
        self._failures = FailureLog(output=logger)
        self._notifier = Notifier(environ.get("NOTIFY_SOCKET"))
        self._client = DaemonClient(admin_socket(configuration.settings), self._failures)
        self._entries = [
            _PluginEntry(PluginRunner(each, self._failures), ClaimSession(each.name, self._failures))
            for each in plugins
        ]
        self._external = external_plugins(configuration.settings)
        """The external plugins that were made."""
        self._use(configuration)
        self._samples = BackgroundThreads(1, "samples")
        self._pass: asyncio.Future[object] | None = None
        self._cycles_problem = ""
        self._targets: tuple[tuple[int, int, int], dict[str, Level]] = (0, 0, 0), {}
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = BackgroundTasks(self.finish)
        self._last_round_s = time.monotonic()
        self._status = ""
        self._started_s = time.time()

    async def serve(self) -> None:
        # Until `finish`, whose error it raises.
        try:
            self._tasks.spawn(self._client.run(), is_vital=True)
            self._tasks.spawn(self._run_rounds(), is_vital=True)
            self._tasks.spawn(self._keep_status(), is_vital=True)
            self._tasks.spawn(self._keep_reporting(), is_vital=True)
            if (interval_s := watchdog_interval_s(self._environ)) is not None:
                self._tasks.spawn(self._feed_watchdog(interval_s), is_vital=True)
            self._notify()
            await self._end
        finally:
            self._notifier.stopping()
            await self._tasks.cancel(CLOSING_S)
            for entry in self._entries:
                entry.runner.close()
            self._samples.shutdown(cancel_futures=True)
            logger.info("stopped")

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the process, once; `serve` raises the error."""
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def handle_signals(self) -> None:
        """Has SIGTERM and SIGINT end it, and SIGHUP reload the configuration; in the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.finish)
        loop.add_signal_handler(signal.SIGHUP, self.reload)

    # Configuration

    def reload(self) -> None:
        """Reads the configuration again; an invalid one changes nothing."""
        self._notifier.reloading()
        try:
            configuration = self._reload()
        except RuntimeProxyError as error:
            reason = "; ".join(str(error).splitlines())
            logger.error("configuration not changed: %s", reason)  # noqa: TRY400  # the message says it all
        else:
            old, new = self._configuration.settings, configuration.settings
            if admin_socket(old) != admin_socket(new) or old.cgroups != new.cgroups:
                logger.warning("api.admin_socket, proxy.endpoint or cgroups changed; restart to apply")
            if not external_plugins(new).items() <= self._external.items():
                logger.warning("plugins were added, or have another reference; restart to apply")
            self._use(configuration)
            logger.info("configuration reloaded")
        self._status = ""
        self._notify()

    def _use(self, configuration: Configuration) -> None:
        self._configuration = configuration
        for entry in self._entries:
            own = configuration.plugins[entry.runner.plugin.name]
            entry.runner.configure(own.mode, configuration.gates, own.options)
        metrics = configuration.settings.qosmanager
        self._sampler.use_malachite(metrics.malachite_url if metrics.metrics_source == "malachite" else "")
        logging.getLogger().setLevel(configuration.settings.log.level.upper())

    # Rounds

    async def _run_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            self._last_round_s = time.monotonic()
            observed, connection = self._client.observed, self._client.connection
            if observed is not None and connection is not None:
                await self._run_round(observed, connection)
            else:
                self._client.changed.clear()
                # At most as long as a round may take, for the watchdog.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._configuration.settings.qosmanager.interval_s):
                        await self._client.changed.wait()
            # A late round is not made up for.
            due_s = max(due_s + self._configuration.settings.qosmanager.interval_s, loop.time())
            await asyncio.sleep(due_s - loop.time())

    async def _run_round(self, observed: Observed, connection: DaemonConnection) -> None:
        for problem in observed.problems:
            self._failures.report("daemon", problem, problem)
        await self._sample(observed)
        snapshot = Snapshot(
            now_s=time.monotonic(),
            wall_s=time.time(),
            pods=observed.pods,
            node=observed.node,
            strategies=observed.strategies,
            metrics=self._sampler,
            cache_use=self._client.cache_use,
            be_limit_cores=be_limit_cores(
                claim
                for entry in self._entries
                if entry.runner.plugin.name != GUARD
                for claim in entry.session.claims
            ),
            is_guarded=any(entry.guards for entry in self._entries),
            source=observed.source,
        )
        for entry in self._entries:
            if entry.round is None or entry.round.done():
                work = self._run_plugin(entry, connection, snapshot, observed.versions)
                entry.round = self._tasks.spawn(work, is_vital=True)

    async def _sample(self, observed: Observed) -> None:
        """Makes one pass; one that hangs or fails leaves the round with the samples of before."""
        if self._pass is not None and not self._pass.done():
            self._failures.report("samples", "hang", "a pass has not ended yet: there are no new samples")
            return
        if self._targets[0] != observed.versions:
            targets = sample_targets(observed.pods, observed.node, observed.strategies)
            self._targets = observed.versions, targets
        running = [entry.runner for entry in self._entries if entry.runner.mode is not Mode.OFF]
        needs = frozenset(
            need for runner in running if runner.is_enabled is not False for need in runner.plugin.needs
        )
        self._sampler.follow_threads([each for entry in self._entries for each in entry.followed_threads])
        work = self._samples.submit(self._sampler.read, self._targets[1], needs)
        self._pass = asyncio.wrap_future(work)
        await asyncio.wait({self._pass}, timeout=SAMPLES_S)
        if self._pass.done() and (error := self._pass.exception()) is not None:
            self._failures.report(
                "samples", described(error), f"a pass failed: {described(error)}", error=error
            )
        if (problem := self._sampler.cycles_problem) != self._cycles_problem:
            self._cycles_problem = problem
            if problem:
                # A matter of the machine or of the unit's rights, which does not change by itself.
                logger.info("samples: no cycles per instruction: %s", problem)

    async def _run_plugin(
        self,
        entry: _PluginEntry,
        connection: DaemonConnection,
        snapshot: Snapshot,
        versions: tuple[int, int, int],
    ) -> None:
        if time.monotonic() < entry.refused_until_s:
            return
        try:
            await self._decide(entry, connection, snapshot, versions)
        except DaemonAwayError:
            return  # which the client reports
        except ClaimsRefusedError as error:
            entry.refused, entry.refused_until_s = str(error), time.monotonic() + REFUSED_PAUSE_S
            name = entry.runner.plugin.name
            self._failures.report(name, entry.refused, f"claims nothing: {entry.refused}")
        else:
            entry.refused = ""

    async def _decide(
        self,
        entry: _PluginEntry,
        connection: DaemonConnection,
        snapshot: Snapshot,
        versions: tuple[int, int, int],
    ) -> None:
        runner, session = entry.runner, entry.session
        is_enforced = runner.mode is Mode.ENFORCE
        if not is_enforced:
            await session.release(connection)
        if not runner.is_due(time.monotonic()):
            return
        is_claiming = is_enforced and runner.plugin.has_claims
        held = await session.take_over(connection) if is_claiming else ()
        result = await runner.run(snapshot, versions, held)
        entry.note_run(result)
        if result is None:
            return
        claims, evictions = result.decision.claims, result.decision.evictions
        if is_claiming:
            await session.set(connection, claims, result.decision.waiting_pods)
        elif not is_enforced:
            self._explain(entry, claims)
        if evictions:
            is_dry_run = not is_enforced or result.decision.is_dry_run
            results = await session.evict(connection, evictions, is_dry_run=is_dry_run)
            runner.note_evictions(results)
            for each in results:
                level = logging.INFO if each.outcome in _TOLD_OUTCOMES else logging.DEBUG
                reason = "; ".join(filter(None, (each.eviction.reason, each.reason)))
                pod = each.eviction.pod_uid
                logger.log(level, "%s: %s: pod %s: %s", runner.plugin.name, each.outcome, pod, reason)

    def _explain(self, entry: _PluginEntry, claims: Sequence[Claim]) -> None:
        """Logs what a plugin in dry-run would claim, if that has changed."""
        now_s = time.monotonic()
        wanted = [claim._replace(reason="") for claim in claims]
        if wanted == entry.would_claim or now_s < entry.explained_s + EXPLAIN_S:
            return
        entry.would_claim, entry.explained_s = wanted, now_s
        shown = [f"{claim_text(each)} ({each.reason})" for each in claims[:MOST_EXPLAINED]]
        more = f" and {len(claims) - MOST_EXPLAINED} more" if len(claims) > MOST_EXPLAINED else ""
        logger.info(
            "%s: would claim %s%s: %s",
            entry.runner.plugin.name,
            ", ".join(shown) or "nothing",
            more,
            entry.runner.explanation,
        )

    # Status

    async def _keep_reporting(self) -> None:
        """Tells the daemon that this process runs, and how: without a report it reports one as missing."""
        told: DaemonConnection | None = None
        told_node: NodeReport | None = None
        told_source: MetricsSource | None = None
        told_states: list[tuple[Mode, bool, str]] = []
        due_s = 0.0
        while True:
            connection = self._client.connection
            source, _ = self._sampler.metrics_source
            reports = [entry.report for entry in self._entries]
            states = [(each.mode, each.is_wanted, each.problem) for each in reports]
            is_other = connection is not told or source is not told_source or states != told_states
            is_due = is_other or time.monotonic() >= due_s
            if connection is not None and is_due:
                node = self._node_report
                is_news = node is not None and (connection is not told or node != told_node)
                try:
                    due_s = time.monotonic() + await self._report(
                        connection, reports, node if is_news else None
                    )
                    told, told_node, told_source = connection, node if is_news else told_node, source
                    told_states = states
                except DaemonAwayError:
                    told = None  # which the client reports
            await asyncio.sleep(1.0)

    @property
    def _node_report(self) -> NodeReport | None:
        """What is reported of the node; None: plugins that may report it have not run yet."""
        reports = [report for entry in self._entries if (report := entry.node_report) is not None]
        if not reports:
            is_known = all(entry.has_run or entry.runner.mode is Mode.OFF for entry in self._entries)
            return NO_NODE_REPORT if is_known else None
        if (size := len(reports[0].document.encode())) > MOST_NODE_REPORT_BYTES:
            reason = f"it has {size} bytes, and the daemon takes at most {MOST_NODE_REPORT_BYTES}"
            return NodeReport("", (reason, *reports[0].problems))
        return reports[0]

    async def _report(
        self, connection: DaemonConnection, plugins: Iterable[PluginReport], node: NodeReport | None
    ) -> float:
        """Sends one report; returns in how many seconds the next one is due. Raises DaemonAwayError."""
        from cri_api.runtimeproxy.v1 import api_pb2
        from runtimeproxy.qosmanager.from_api import node_report_message, report_message

        report = report_message(os.getpid(), self._started_s, plugins, self._sampler.metrics_source)
        request = api_pb2.ReportQosManagerRequest(report=report)
        if node is not None:
            request.node_resource.CopyFrom(node_report_message(node))
        try:
            response = await connection.call(connection.admin.ReportQosManager, request, timeout=REPORT_S)
        except ClaimsRefusedError as error:
            self._failures.report("report", str(error), f"the daemon takes no reports: {error}")
            return REFUSED_PAUSE_S
        return response.interval.ToTimedelta().total_seconds()

    async def _keep_status(self) -> None:
        while True:
            flush_failures()
            self._notify()
            await asyncio.sleep(1.0)

    def _notify(self) -> None:
        # One line for `systemctl status`; again if the manager's queue is full.
        # Each has READY=1, which also ends a reload, and is ignored otherwise.
        if (text := self._status_text()) != self._status and self._notifier.ready(text):
            self._status = text

    def _status_text(self) -> str:
        if self._client.problem:
            return f"no daemon: {self._client.problem}"
        states = [f"{entry.runner.plugin.name}: {entry.state}" for entry in self._entries]
        source, problem = self._sampler.metrics_source
        if source is MetricsSource.MALACHITE or problem:
            states.append(f"samples: {problem or source}")
        return "; ".join(states)

    async def _feed_watchdog(self, interval_s: float) -> None:
        while True:
            quiet_s = time.monotonic() - self._last_round_s
            if quiet_s < self._configuration.settings.qosmanager.interval_s + _QUIET_S:
                self._notifier.watchdog()
            await asyncio.sleep(interval_s / 2)


def run(
    configuration: Configuration,
    reload: Callable[[], Configuration],
    plugins: Iterable[AnyPlugin],
    sampler: SampleSource,
) -> int:
    """Runs until SIGTERM; returns the exit code: 0, or 1 after an error."""

    async def serve() -> None:
        manager = QosManager(configuration, reload, plugins, sampler)
        manager.handle_signals()
        await manager.serve()

    try:
        asyncio.run(serve())
    except RuntimeProxyError as error:
        logger.error("cannot serve: %s", error)  # noqa: TRY400  # the message says it all
        return 2 if isinstance(error, ConfigError) else 1
    finally:
        sampler.close()
    return 0
