"""The wiring of intercepted calls: records, runtime client, checkpoint, policies, hook servers, cgroups.

It imports most of the code, protobuf included, so the daemon imports it when it already serves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, FileText, WriteOutcome, WriteResult
from runtimeproxy.config.validation import owners_of, places_of
from runtimeproxy.core.events import container_cgroup, take_due_writes, write_due
from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import InterceptedCall
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices, CallSettings, OpenCall, Spawn
from runtimeproxy.frontends.cri_proxy.calls.long_work import LongWork
from runtimeproxy.hooks.allocator import SharePools
from runtimeproxy.hooks.audit import AuditLog, AuditQueue, AuditRing
from runtimeproxy.hooks.chain import REPORT_S, Chain
from runtimeproxy.hooks.counts import PolicyCounts
from runtimeproxy.hooks.decision import unmet_on
from runtimeproxy.hooks.loading import LoadProblem, PolicyLoader, PolicySources, is_enabled
from runtimeproxy.hooks.modes import Override, needed, present, with_modes, with_owner_modes
from runtimeproxy.hooks.remote.servers import HookServers
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.ledger.allocations import NodeAllocations, allocation_file
from runtimeproxy.ledger.change_log import ClaimAudit
from runtimeproxy.ledger.checkpoint import CheckpointSync
from runtimeproxy.ledger.claim_places import ClaimPlaces
from runtimeproxy.ledger.journal import Journal, read_boot_id
from runtimeproxy.ledger.leased import LeasedClaims
from runtimeproxy.ledger.leases import Phase
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.sysctls import Sysctls
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.logs import FailureLog
from runtimeproxy.node.api_server import ApiServerInputs
from runtimeproxy.node.inputs import name_of_node
from runtimeproxy.node.snapshot import Input, InputState
from runtimeproxy.node.sources import NodeSources
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import Level, Lifecycle
from runtimeproxy.pods.recovery import Recovery, RecoverySettings
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient, RuntimeUnavailableError
from runtimeproxy.pods.store import PodStore
from runtimeproxy.process import give_back_memory
from runtimeproxy.service.eviction import OF_API_SERVER, Bounds, EvictionMethod, Evictor, PodEvictionOutcome
from runtimeproxy.service.eviction import Result as EvictionResult
from runtimeproxy.service.eviction_history import EvictionHistory
from runtimeproxy.service.koordlet import koordlets
from runtimeproxy.service.mode_file import ModeFile
from runtimeproxy.service.pod_names import MisspelledNames
from runtimeproxy.service.qos_manager import QosManagerWatch, left_plugins, wanted_plugins
from runtimeproxy.vocabulary import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from runtimeproxy.config.settings import KubernetesSettings, Settings
    from runtimeproxy.hooks.audit import AuditEntry, AuditSink
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.kubernetes.source import KubernetesSource
    from runtimeproxy.pods.records import PodRecord

logger = logging.getLogger(__name__)

RUNTIME_WATCH_INTERVAL_S: Final = 30.0
"""Between two Version calls of the daemon's own. Source: the kubelet's own Status interval is 5 s."""
PROBE_TIMEOUT_S: Final = 1.0
"""How long the runtime may take to answer a health probe."""
LONG_REQUEST_THREADS: Final = 2
"""One thread computes at a time; the second is for the connection after a slow one."""


class Engine:
    """Everything that intercepted calls need. Used in the event loop's thread.

    Args:
        settings: those that do not change; `load_policies` and `use` take the rest.
        executor: threads for loading, lists and cgroup files; policies and long requests have their own.
        spawn: starts background tasks.
        is_standby: whether the bypass is on or a successor serves: cgroups are left alone between calls.
        loader: finds and makes the policies; None for the usual one.
        sinks: get the audit entries, beside the log.

    Attributes:
        open_call: makes the handlers of intercepted calls; to be used once records and policies are loaded.
        has_policies: whether the policies are loaded.
        policies: those that are loaded, without hook servers.
        problems: policies and settings that could not be loaded.
        services: what calls share; `services.chain` has the policies in use, hook servers included.
        store: the records.
        pod_names: names in them that are probably misspelled.
        ledger: the values of cgroups.
        leased: claims of owners outside of this process.
        evictor: evicts pods for them.
        qos_manager: whether one runs, and has to.
        allocations: CPUs that pods have for themselves; None where pools are not computed.
        client: the runtime, for calls of the daemon's own.
        audit: gathers the audit entries of a moment.
        audit_ring: the last audit entries, and numbers of failures.
        classes: all classes of policies that were found; disabled ones, too.
        disabled: policies that the configuration disables; some may be loaded for an override.
        overrides: the modes that operators have set, oldest first.
        changed_code: imported code that differs from the installed code.
        runtime_away_since_s: since when the runtime does not answer, in seconds since the epoch; None if it
            does, as far as known.
        boot_id: of this boot of the kernel; empty if it is not known.
        recovery, checkpoint, journal, node, servers, upkeep, workers, sysctls: for the API and metrics, which
            look at them only.
        counts: what policies have done.
        kubernetes: the API server; None without it, and before its client is imported.
    """

    def __init__(
        self,
        settings: Settings,
        executor: Executor,
        spawn: Spawn,
        is_standby: Callable[[], bool],
        loader: PolicyLoader | None = None,
        sinks: Sequence[AuditSink] = (),
    ) -> None:
        self._executor = executor
        self._spawn = spawn
        self._is_standby = is_standby
        self._settings = settings
        self.runtime_away_since_s: float | None = None
        self.audit_ring = AuditRing()
        self.counts = PolicyCounts()
        self._audit_log = AuditLog()
        readers = (self.counts.count_entry, self.audit_ring, self._audit_log, self._report_event)
        self.audit = AuditQueue((*readers, *sinks))
        # Values of what runs have lines of their own in the log, and metrics.
        self._change_audit = AuditQueue((self.audit_ring, *sinks))
        self._claim_audit = AuditQueue((self.audit_ring, self._audit_log, self._report_event, *sinks))
        # Records
        self.store = PodStore()
        self.client = GrpcRuntimeClient(_client_settings(settings), executor, FailureLog())
        self.boot_id = boot_id = read_boot_id()
        self.journal = Journal(Path(settings.state.dir), boot_id)
        self.ledger = Ledger(
            CgroupWriter(Path(settings.cgroups.root)) if settings.cgroups.enabled else NoCgroups(),
            self.journal,
            boot_id,
        )
        self.recovery = Recovery(
            self.store,
            self.client,
            RecoverySettings(interval_s=settings.state.resync_interval_s),
            on_compared=self._on_compared,
        )
        self._checkpoint_thread = BackgroundThreads(1, "checkpoint")
        self.checkpoint = CheckpointSync(
            Path(settings.state.dir),
            self.store,
            self.ledger,
            self.recovery,
            self._checkpoint_thread,
            is_standby,
        )
        # Policies and hook servers
        self.workers = Workers(settings.hooks.worker_threads)
        # The node
        self._node_thread = BackgroundThreads(1, "node")
        self.kubernetes: KubernetesSource | None = None
        self._api_server: ApiServerInputs | None = None
        if settings.kubernetes.enabled:
            self._api_server = ApiServerInputs("API server", settings.slo.start_spread_s)
        self.node = NodeSources(places_of(settings), self._node_thread, api_server=self._api_server)
        self.pod_names = MisspelledNames(self.store.pods, self.node)
        self._following_node: asyncio.Task[None] | None = None
        self.loader = loader or PolicyLoader()
        self._loop = asyncio.get_running_loop()
        self.loader.on_late = partial(_in_loop, self._loop, self._load_again)
        self._loading = asyncio.Lock()
        self.policies: tuple[LoadedPolicy, ...] = ()
        self._mode_file = ModeFile(Path(settings.state.dir))
        self._has_modes = False
        self._ending_modes: asyncio.Task[None] | None = None
        self.overrides: tuple[Override, ...] = ()
        self.disabled: frozenset[str] = frozenset()
        self.problems: tuple[LoadProblem, ...] = ()
        self.classes: tuple[type[Policy], ...] = ()
        self.changed_code: tuple[str, ...] = ()
        self.has_policies = False
        self._servers_thread = BackgroundThreads(1, "hook-servers")
        self.servers = HookServers(
            Path(settings.hooks.server_config_dir),
            settings.hooks.server_timeout_s,
            self._servers_thread,
            self._use_servers,
        )
        self._following: asyncio.Task[None] | None = None
        # Calls
        self._long_requests = BackgroundThreads(LONG_REQUEST_THREADS, "long-requests")
        self.services = CallServices(
            settings=CallSettings.of(settings),
            chain=self._chain(settings),
            store=self.store,
            lookups=Lookups(self.store, self.client),
            ledger=self.ledger,
            executor=executor,
            long_work=LongWork(self._long_requests, give_back_memory),
            spawn=spawn,
            on_unsettled=self.compare_soon,
        )
        self.open_call: OpenCall = partial(InterceptedCall, self.services)
        self.sysctls = Sysctls(Path(settings.state.dir), boot_id) if settings.cgroups.enabled else None
        self.upkeep = Upkeep(
            self.store,
            self.ledger,
            lambda: self.services.chain,
            partial(container_cgroup, self.services),
            executor,
            lambda: not self.has_policies or is_standby(),
            self.sysctls,
            self._change_audit,
        )
        self.upkeep.configure(settings.ledger)
        self.services.evaluator = self.upkeep.evaluator
        self.leased = LeasedClaims(
            self.ledger,
            ClaimPlaces(self.store, partial(container_cgroup, self.services), self._host_cgroup),
            self.upkeep.in_worker,
            lambda: not self.has_policies or is_standby(),
            ClaimAudit(self._claim_audit),
            Path(settings.state.dir),
            boot_id,
        )
        self.leased.configure(owners_of(settings))
        history = EvictionHistory(Path(settings.state.dir), boot_id, self._checkpoint_thread)
        self.evictor = Evictor(self.store, self.client, self._claim_audit, _bounds(settings), history)
        self.qos_manager = QosManagerWatch(
            self._wanted_plugins, self._left_plugins, self._leased_owners, self._find_koordlet
        )
        if settings.kubernetes.enabled and settings.kubernetes.evictions:
            self.evictor.by_api = self._evict_by_api
        self.upkeep.on_observed = self._on_observed
        self.node.on_change = self.upkeep.on_node_changed
        self.node.on_pods_changed = self.upkeep.on_pods_changed
        self.allocations: NodeAllocations | None = None
        if settings.node.shared_pools == "computed":
            self.services.allocations = self.allocations = NodeAllocations(
                SharePools(lambda: self.node.latest.facts.last_cpu),
                allocation_file(Path(settings.state.dir), boot_id),
                self.node,
                self.upkeep.evaluator.leave,
                self._checkpoint_thread,
            )

    @property
    def internal_errors(self) -> int:
        """Number of errors in the proxy's own code since the start."""
        return self.services.internal_errors

    def in_loop(self, work: Callable[[], None]) -> None:
        """Has the event loop's thread do something, unless the loop has ended; in any thread."""
        _in_loop(self._loop, work)

    @property
    def skip_label(self) -> tuple[str, str] | None:
        """Key and value of the label of pods that policies leave alone; None for none."""
        return self._settings.hooks.rules.skip_label

    @property
    def recovered(self) -> asyncio.Event:
        """Set once the records are those of the runtime."""
        return self.recovery.recovered

    @property
    def summary(self) -> str:
        """One line for `systemctl status`: policies, hook servers, records, values and the node."""
        policies = f"{len(self.policies)} policies" if self.has_policies else "policies are loading"
        found = {each.name: unmet_on(each, self.node.latest) for each in self.policies}
        notes = [
            f"{name} {'is off' if unmet.is_off else 'in part'}: {unmet}"
            for name, unmet in found.items()
            if unmet is not None
        ]
        if self.problems:
            notes.append(f"{', '.join(each.name for each in self.problems)}: not loaded, see the log")
        if notes:
            policies += f" ({'; '.join(notes)})"
        servers = f", {self.servers.summary}" if self.servers.summary else ""
        recovered = "" if self.recovery.recovered.is_set() else ", waiting for the runtime's lists"
        recovered += ", which are not saved" if self.checkpoint.problem else ""
        records = f"{len(self.store.pods)} pods, {len(self.store.containers)} containers"
        more = "".join(f"; {each}" for each in self._summaries() if each)
        return f"{policies}{servers}; {records}{recovered}{more}"

    def _summaries(self) -> Iterator[str]:
        yield self.journal.problem
        if self.allocations is not None:
            yield self.allocations.summary
            yield self.allocations.problem
        yield self.upkeep.summary
        yield self.node.summary
        if self.kubernetes is not None:
            yield self.kubernetes.summary

    async def load_policies(self, settings: Settings) -> None:
        """Loads the policies in a thread, for their imports may hang, and runs them from now on.

        The first time, it waits for the hook servers that are registered already.

        Raises:
            PolicyLoadError: a policy cannot be loaded, and `on_load_error` is "stop"; the old ones stay.
        """
        async with self._loading:
            await self._load_policies(settings)

    async def _load_policies(self, settings: Settings) -> None:
        if self._following is None:
            self._following = self._spawn(self.servers.run())
            self._following_node = self._spawn(self.node.run())
            if self._api_server is not None:
                self._spawn(self._watch_api_server(self._api_server))
        thread = BackgroundThreads(1, "policy-loading")
        hooks = settings.hooks
        sources = PolicySources(hooks.third_party, hooks.policies_dir, hooks.load_timeout_s)
        try:
            run = asyncio.get_running_loop().run_in_executor
            if not self._has_modes:
                self.overrides = present(await run(thread, self._mode_file.load), time.time())
                self._has_modes = True
                self._configure_owners(settings)
            wanted = needed(settings.policies, self.overrides)
            result = await run(thread, self.loader.load, sources, wanted)
        finally:
            thread.shutdown()
        # That an operator once set the mode of a policy which is gone now is no problem of the configuration.
        known = {each.name for each in result.classes} | settings.policies.keys()
        of_modes = {each.policy for each in self.overrides} - known
        result = result._replace(
            problems=tuple(each for each in result.problems if each.name not in of_modes)
        )
        if result.problems and hooks.on_load_error == "stop":
            raise PolicyLoadError("; ".join(map(str, result.problems)))
        for problem in result.problems:
            logger.error("policy not loaded: %s", problem, extra={"policy": problem.name})
        for changed in result.changed_code:
            logger.warning("%s; `koord-runtime-proxy upgrade` takes the new code into use", changed)
        await self.servers.read()
        await self.node.read()
        self.loader.use(result)
        self._settings, self.policies, self.problems = settings, result.policies, result.problems
        self.classes, self.changed_code = result.classes, result.changed_code
        self.disabled = frozenset(
            each.name
            for each in result.classes
            if not is_enabled(each, settings.policies.get(each.name, PolicySettings()))
        )
        # Calls that are being decided keep the old chain.
        self.services.chain = self._chain(settings)
        self.has_policies = True
        self.upkeep.on_policies(problem.name for problem in result.problems)
        self.upkeep.on_servers([policy.name for policy in self.servers.policies])
        logger.info("policies loaded", extra={"policies": [policy.name for policy in self.policies]})

    async def _watch_api_server(self, inputs: ApiServerInputs) -> None:
        """Imports the client in a worker thread, and starts its threads."""
        inputs.on_change = partial(_in_loop, self._loop, self.node.look_soon)
        name = name_of_node(self._settings.node.name)
        make = partial(_kubernetes_source, self._settings.kubernetes, name, inputs)
        self.kubernetes = await self._loop.run_in_executor(self._executor, make)
        self.kubernetes.start()

    async def _evict_by_api(self, pod: PodRecord, reason: str) -> EvictionResult:
        """Evicts a pod by the API server, which honours disruption budgets."""
        if self.kubernetes is None:
            return EvictionResult(PodEvictionOutcome.FAILED, "the client of the API server is not loaded yet")
        done = await self.kubernetes.evict(pod.namespace, pod.name, pod.uid)
        outcome, method = OF_API_SERVER[done.outcome.value], EvictionMethod.EVICTION_API
        return EvictionResult(outcome, done.reason, method=method, retry_s=done.retry_s)

    def _report_event(self, entry: AuditEntry) -> None:
        if self.kubernetes is not None:
            self.kubernetes.on_audit(entry)

    @property
    def unusable_files(self) -> list[str]:
        """The files of the state folder that could not be used at the start, and why."""
        of_values = (self.journal, self.sysctls, self.allocations, self.leased)
        files = (*of_values, self._mode_file, self.evictor.history)
        return [each.unusable for each in files if each is not None and each.unusable]

    def configured(self, policy: str) -> PolicySettings:
        """What the configuration says of a policy."""
        return self._settings.policies.get(policy, PolicySettings())

    async def set_modes(self, overrides: tuple[Override, ...]) -> None:
        """Replaces the modes that operators have set, on disk first.

        What leaves enforce mode is given back as other changes of running pods: many at a bounded rate.

        Raises:
            OSError: They cannot be saved: nothing has changed.
            PolicyLoadError: A policy that the configuration disables cannot be loaded.
        """
        run = asyncio.get_running_loop().run_in_executor
        await run(self._executor, self._mode_file.save, overrides)
        self.overrides = overrides
        self._configure_owners(self._settings)
        self._spawn(self.leased.sync_all())
        loaded = {each.name for each in self.policies}
        found = {each.name for each in self.classes}
        if any(each.mode is not Mode.OFF for each in overrides if each.policy in found - loaded):
            await self.load_policies(self._settings)
            return
        async with self._loading:
            self.services.chain = self._chain(self._settings)
            self.upkeep.on_policies(problem.name for problem in self.problems)

    def _configure_owners(self, settings: Settings) -> None:
        self.leased.configure(with_owner_modes(owners_of(settings), self.overrides))

    def end_modes(self) -> None:
        """Ends modes whose time is over; cheap, to be called about every second."""
        left = present(self.overrides, time.time())
        if len(left) < len(self.overrides) and (self._ending_modes is None or self._ending_modes.done()):
            self._ending_modes = self._spawn(self._end_modes(left))

    async def _end_modes(self, left: tuple[Override, ...]) -> None:
        for each in self.overrides:
            if each not in left:
                text = "policy %s: the mode %s that was set by command has ended"
                logger.warning(text, each.policy, each.mode, extra={"policy": each.policy})
        try:
            await self.set_modes(left)
        except (OSError, PolicyLoadError) as error:
            # The next second tries again.
            logger.warning("modes of policies cannot be ended: %s", error)

    def _in_use(self) -> tuple[LoadedPolicy, ...]:
        """The policies with the modes that operators have set, and the hook servers."""
        return (*with_modes(self.policies, self.overrides, self.disabled), *self.servers.policies)

    def _chain(self, settings: Settings) -> Chain:
        hooks = settings.hooks
        return Chain(
            self._in_use(),
            self.workers,
            sink=self.audit,
            rule=hooks.conflicts,
            node=self.node,
            skip_label=hooks.rules.skip_label,
            counts=self.counts,
            report_s=REPORT_S,
        )

    def _load_again(self) -> None:
        """The import of a policy has ended after its time limit: loads the policies again."""
        self._spawn(self._load_late())

    async def _load_late(self) -> None:
        with suppress(PolicyLoadError):  # with "stop" those in use stay
            async with self._loading:
                await self._load_policies(self._settings)

    async def use(self, settings: Settings) -> None:
        """Takes changed settings.

        Raises:
            PolicyLoadError: a policy cannot be loaded; the old settings stay.
        """
        await self.load_policies(settings)
        self.upkeep.configure(settings.ledger)
        self._configure_owners(settings)
        self._spawn(self.leased.sync_all())
        self.evictor.bounds = _bounds(settings)
        self.services.settings = CallSettings.of(settings)
        self.servers.configure(settings.hooks.server_timeout_s)

    async def load_state(self, *, is_successor: bool = False) -> None:
        """Reads the checkpoint; to be awaited before the first intercepted call.

        Args:
            is_successor: whether the process before this one has handed over its leases.
        """
        await self.checkpoint.load()
        await self._load_allocations()
        await self.evictor.history.load()
        await self.leased.load(is_successor=is_successor)

    async def merge_state(self) -> None:
        """Reads the checkpoint again, for ids without an event in this process since."""
        await self.checkpoint.merge()

    async def take_back_state(self) -> None:
        """Reads the checkpoint of a successor that has failed; to be awaited before calls are accepted."""
        await self.checkpoint.take_back()
        self.upkeep.on_taken_back()
        await self._load_allocations()
        await self.evictor.history.load()
        await self.leased.reload()
        self.compare_soon()

    async def _load_allocations(self) -> None:
        if self.allocations is not None:
            await self.allocations.load()

    async def flush_state(self) -> bool:
        """Writes all changes of the records, and the leases; returns whether the records are on disk now.

        Evictions are refused from now on, until `take_back_state`.
        """
        self.evictor.history.is_handed_over = True
        run = asyncio.get_running_loop().run_in_executor
        try:
            await run(self._executor, self.leased.hand_over)
        except OSError as error:
            # The successor takes their values from the files.
            logger.warning("leases cannot be handed over: %s", error.strerror)
        return await self.checkpoint.flush()

    def start(self) -> None:
        """Starts the background work: checkpoint, recovery, the watch on the runtime."""
        self._spawn(self.checkpoint.run())
        self._spawn(self.checkpoint.follow())
        self._spawn(self.recovery.run())
        self._spawn(self.upkeep.run())
        self._spawn(self.leased.run())
        self._spawn(self.qos_manager.run())
        self._spawn(self.upkeep.verify((Level.NODE, Level.QOS_CLASS)))
        self._spawn(self.upkeep.verify((Level.POD, Level.CONTAINER)))
        self._spawn(self._watch_runtime())

    def flush_audit(self) -> None:
        """Hands on the audit entries that are gathered."""
        self.services.chain.flush()
        self.audit.flush()
        self._change_audit.flush()
        self._claim_audit.flush()

    def _host_cgroup(self, name: str) -> str:
        """The cgroup of a host application of the strategies; empty if there is none, or it is not known."""
        from policies.host_applications import host_application_cgroup

        node = self.node.latest
        for each in node.strategies.host_applications:
            if each.name == name:
                with suppress(ValueError):
                    return host_application_cgroup(each, node.cgroup_driver)
        return ""

    def _wanted_plugins(self) -> frozenset[str]:
        node = self.node.latest
        if node.state_of(Input.STRATEGIES) is InputState.UNKNOWN or self._is_standby():
            return frozenset()
        pods = (pod for pod in self.store.pods if pod.state is Lifecycle.RUNNING)
        return wanted_plugins(self._settings, node, pods)

    def _left_plugins(self, wanted: Collection[str], has_process: bool) -> Mapping[str, str]:
        return left_plugins(wanted, self._settings, has_koordlet=has_process or self.upkeep.has_koordlet)

    def _leased_owners(self) -> frozenset[str]:
        owners = self.leased.owners.items()
        return frozenset(name for name, owned in owners if owned.claims and owned.phase is Phase.LEASED)

    async def _find_koordlet(self) -> bool:
        """Whether a process of this node is a koordlet, which need not be registered as a hook server."""
        find = partial(koordlets, Path("/proc"))
        return await self._loop.run_in_executor(self._executor, lambda: any(True for _ in find()))

    def _on_observed(self, fields: Mapping[str, str]) -> None:
        """Koordlet is registered, or is not any more."""
        if fields != self.leased.unwritten:
            self.leased.unwritten = fields
            self._spawn(self.leased.sync_all())

    def compare_soon(self) -> None:
        """Compares records and values with the runtime now: calls have passed without records."""
        self.recovery.confirm(container.id for container in self.store.containers)
        self.recovery.compare_soon()

    def prune(self) -> None:
        """Forgets cgroups of pods and containers that are gone; cheap, to be called about every second."""
        parents = (pod.cgroup_parent for pod in self.store.pods)
        self.ledger.prune(parents, (container.id for container in self.store.containers))
        if self.allocations is not None and self.recovery.recovered.is_set() and not self._is_standby():
            saving = self.allocations.follow(self.store.pods)
            if saving is not None:
                self._spawn(saving)

    async def runtime_answers(self) -> bool:
        """Whether the runtime answers a Version call; for health probes."""
        return await self.runtime_version(PROBE_TIMEOUT_S) is not None

    async def runtime_version(self, timeout_s: float = PROBE_TIMEOUT_S) -> bytes | None:
        """The runtime's response to a Version call; None if it does not answer in time."""
        try:
            response = await self.client.version(timeout_s)
        except RuntimeUnavailableError:
            if self.runtime_away_since_s is None:
                self.runtime_away_since_s = time.time()
            return None
        self.runtime_away_since_s = None
        return response

    async def _watch_runtime(self) -> None:
        """Calls Version at an interval, so that a hanging runtime is logged even without client calls."""
        timeout_s = self._settings.proxy.runtime_call_timeout_s
        while True:
            await asyncio.sleep(RUNTIME_WATCH_INTERVAL_S)
            await self.runtime_version(timeout_s)

    async def close(self) -> None:
        """Closes the runtime client and the checkpoint, and ends the threads."""
        self.flush_audit()
        self._audit_log.flush()
        self.workers.close()
        if self.kubernetes is not None:
            await self._loop.run_in_executor(self._executor, self.kubernetes.close)
        self._servers_thread.shutdown(cancel_futures=True)
        self._node_thread.shutdown(cancel_futures=True)
        self._long_requests.shutdown(cancel_futures=True)
        await self.client.close()
        await self.checkpoint.close()
        self.journal.close()
        self._checkpoint_thread.shutdown(cancel_futures=True)

    def _use_servers(self) -> None:
        """The hook servers have changed; they run after the policies of this process."""
        if self.has_policies:
            self.services.chain.use(self._in_use())
            self.upkeep.on_servers([policy.name for policy in self.servers.policies])

    async def _on_compared(self) -> None:
        """Called after each comparison of the records: updates the runtime's name and the cgroups."""
        run = asyncio.get_running_loop().run_in_executor
        # Of pods whose records are newer than what the API server said.
        self.upkeep.revise(self.node.latest, self.node.latest.live_pods)
        try:
            self.services.runtime_name = await self.client.runtime_name()
        except RuntimeUnavailableError as error:
            logger.info("the runtime's name is not known", extra={"cause": str(error)})
        if not self._is_standby():
            await self.upkeep.on_compared()
            for due in take_due_writes(self.services):
                await write_due(self.services, due)
        # The runtime's lists take much memory, and are read once in minutes.
        await run(self._executor, give_back_memory)


def _kubernetes_source(
    settings: KubernetesSettings, node_name: str, inputs: ApiServerInputs
) -> KubernetesSource:
    from runtimeproxy.kubernetes.source import KubernetesSource  # with the HTTP library: 6 MiB

    return KubernetesSource(settings, node_name, inputs)


def _bounds(settings: Settings) -> Bounds:
    eviction = settings.eviction
    return Bounds(eviction.most_pods, eviction.interval_s, eviction.same_pod_s)


def _client_settings(settings: Settings) -> ClientSettings:
    timeout_s = settings.proxy.runtime_call_timeout_s
    target = f"unix:{settings.proxy.runtime_endpoint}"
    return ClientSettings(target, list_timeout_s=timeout_s, status_timeout_s=timeout_s)


def _in_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Have the loop's thread do something, unless the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


class NoCgroups(CgroupWriter):
    """In place of the writer if `cgroups.enabled` is false."""

    def look(self, path: tuple[str, ...], names: Iterable[str]) -> dict[str, FileText]:
        """Finds nothing."""
        return {}

    def write_levels(self, levels: Sequence[Sequence[CgroupValues]]) -> tuple[WriteResult, ...]:
        """Writes nothing; each result has the reason."""
        why = "cgroups.enabled is false"
        return tuple(
            WriteResult(each.cgroup, name, value, WriteOutcome.MISSING, error=why)
            for level in levels
            for each in level
            for name, value in each.values.items()
        )
