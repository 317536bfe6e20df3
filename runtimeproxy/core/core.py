"""Composes what decides about pods and containers, and what keeps the decisions.

It imports most of the code, protobuf included, so the daemon imports it when it already serves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runtimeproxy.cgroups.resctrl import FOLDER as RESCTRL
from runtimeproxy.cgroups.resctrl import ResctrlGroups
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, FileText, WriteOutcome, WriteResult
from runtimeproxy.config.validation import owners_of, places_of
from runtimeproxy.core.audit import AuditQueues
from runtimeproxy.core.audit_events import StrategyAudit, audit_configured_modes
from runtimeproxy.core.audit_history import AuditHistory
from runtimeproxy.core.cpu_moves import CpuMoves
from runtimeproxy.core.events import write_missed
from runtimeproxy.core.eviction import Bounds, ContainerStopper, Evictor
from runtimeproxy.core.eviction_history import EvictionHistory
from runtimeproxy.core.network import NetworkUpkeep, PodClient
from runtimeproxy.core.policies import PolicyEvent, PolicySet, Spawn
from runtimeproxy.core.services import CoreServices
from runtimeproxy.core.state import SavedState
from runtimeproxy.hooks.allocator import SharePools, UsesCpuPools
from runtimeproxy.hooks.boost import BoostsStarts
from runtimeproxy.hooks.levels import levels_in_force
from runtimeproxy.hooks.loading import PolicyLoader
from runtimeproxy.hooks.modes import with_owner_modes
from runtimeproxy.katalyst.levels import LevelRules, OnError
from runtimeproxy.ledger.allocations import NodeAllocations, allocation_file
from runtimeproxy.ledger.answer_audit import AnswerAudit
from runtimeproxy.ledger.boosts import OWNER as BOOSTS
from runtimeproxy.ledger.boosts import StartupBoosts
from runtimeproxy.ledger.change_log import ClaimAudit
from runtimeproxy.ledger.checkpoint import CheckpointSync
from runtimeproxy.ledger.claim_places import ClaimPlaces
from runtimeproxy.ledger.journal import Journal, read_boot_id
from runtimeproxy.ledger.kernel_settings import KernelSettings
from runtimeproxy.ledger.leased import LeasedClaims
from runtimeproxy.ledger.ledger import Ledger
from runtimeproxy.ledger.network import network_control
from runtimeproxy.ledger.openings import ClassOpenings, Starts
from runtimeproxy.ledger.pools import POOL_INPUTS, NodePools, PoolConfiguration, pools_file
from runtimeproxy.ledger.starts import PodStarts
from runtimeproxy.ledger.upkeep import Upkeep
from runtimeproxy.node.idle_cpus import IdleCpus
from runtimeproxy.node.snapshot import Feature, Input
from runtimeproxy.node.sources import NodeSources
from runtimeproxy.pods.checkpoint.codec import RowKind
from runtimeproxy.pods.inventory import Inventory
from runtimeproxy.pods.records import Level
from runtimeproxy.pods.store import PodStore
from runtimeproxy.slo.host_applications import host_application_cgroup
from runtimeproxy.vocabulary import Mode

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.eviction import EvictByApi
    from runtimeproxy.hooks.audit import AuditEntry, AuditSink
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.remote.server_state import Servers
    from runtimeproxy.katalyst.dynamic_config import KatalystConfig
    from runtimeproxy.node.api_server import ApiServerInputs
    from runtimeproxy.node.snapshot import Node


class Runtime(ContainerStopper, PodClient, Protocol):
    """What is asked of the runtime; see `GrpcRuntimeClient`."""


class ApiServer(Protocol):
    """The API server, where it is configured."""

    @property
    def inputs(self) -> ApiServerInputs:
        """What it says of the node."""

    @property
    def evict(self) -> EvictByApi | None:
        """Evicts a pod; None if that is off."""

    def on_audit(self, entry: AuditEntry) -> None:
        """Takes an entry that may become an Event."""


class Core:
    """Everything that decides. Used in the event loop's thread.

    A front end tells it what is about to be created, was created, started, updated, or ended, and carries its
    decisions.

    Args:
        settings: Those that do not change; `use` takes the rest.
        threads: For cgroup files; makes others.
        is_standby: Whether the bypass is on or a successor serves: cgroups are left alone then.
        servers: Their policies run after those of this process.
        carried: What the front end carries.
        api_server: None without it.
        loader: Finds and makes the policies; None for the usual one.
        sinks: Get the audit entries, beside the log.

    Attributes:
        inventory: Keeps the records those of what runs.
        audit: Where decisions are told.
        upkeep: Keeps the values of what runs.
        leased: Claims of owners outside of this process.
        evictor: Evicts pods for them.
        services: For front ends that carry decisions.
        state: What survives this process.
    """

    def __init__(
        self,
        settings: Settings,
        threads: ThreadPools,
        spawn: Spawn,
        is_standby: Callable[[], bool],
        runtime: Runtime,
        servers: Servers,
        carried: CarriedFields,
        api_server: ApiServer | None = None,
        loader: PolicyLoader | None = None,
        sinks: Sequence[AuditSink] = (),
    ) -> None:
        self._spawn = spawn
        self._is_standby = is_standby
        folder, boot_id, disk = Path(settings.state.dir), read_boot_id(), threads.make("checkpoint")
        self.inventory = Inventory(PodStore())
        inputs = api_server.inputs if api_server is not None else None
        self.node = NodeSources(places_of(settings), threads.make("node"), api_server=inputs)
        self.audit = AuditQueues(sinks, (api_server.on_audit,) if api_server is not None else ())
        self.policies = PolicySet(settings, loader or PolicyLoader(), self.node, self.audit, servers, carried)
        pools = ConfiguredPools(self.policies, self.node)
        self.policies.on_event.append(self._on_policies)
        journal = Journal(folder, boot_id)
        groups = ResctrlGroups(Path(settings.node.sysfs_root) / RESCTRL)
        network = network_control(settings)
        writer: CgroupWriter = NoCgroups()
        if settings.cgroups.enabled:
            writer = CgroupWriter(Path(settings.cgroups.root), resctrl=groups, of_cgroups=network)
        self.ledger = Ledger(writer, journal, boot_id)
        self.ledger.books.starts_as_requested = not carried.asks_about_creation(is_container=True)
        sysctls: KernelSettings | None = None
        if settings.cgroups.enabled:
            node = settings.node
            sysctls = KernelSettings(
                folder,
                boot_id,
                Path(node.procfs_root) / "sys",
                sysfs=Path(node.sysfs_root),
                groups=groups,
                network=network,
            )
        answers = AnswerAudit(
            self.audit.claims,
            self.audit.decisions,
            lambda cgroup, values: self.upkeep.present_values(cgroup, values),  # noqa: PLW0108 - made below
        )
        self.audit.ring.followers[answers] = answers.on_entry
        self.upkeep = Upkeep(
            self.store,
            self.ledger,
            lambda: self.policies.chain,
            self.inventory.cgroup_of,
            threads.background,
            self._is_idle,
            carried,
            sysctls,
            self.audit.changes,
            answers,
            network,
        )
        network_upkeep: NetworkUpkeep | None = None
        if network is not None:
            network_upkeep = NetworkUpkeep(
                network,
                self.store,
                runtime,
                self.ledger.books.resolved,
                threads.make("network"),
                lambda: self._is_idle() or not self.upkeep.evaluator.has_evaluated,
            )
        self.leased = LeasedClaims(
            self.ledger,
            ClaimPlaces(
                self.store,
                self.inventory.cgroup_of,
                self._host_cgroup,
                lambda pool, field: self.pools.pool_problem(pool, field),  # noqa: PLW0108 - made below
                lambda: Feature.CLASS_IDLE in self.node.latest.features,
            ),
            self.upkeep.in_worker,
            self._is_idle,
            ClaimAudit(self.audit.claims),
            folder,
            boot_id,
        )
        openings = ClassOpenings(
            self.ledger,
            self.store,
            self.upkeep.in_worker,
            self._is_idle,
            self.leased.ready.is_set,
            folder,
            boot_id,
        )
        boosts = StartupBoosts(
            self.ledger,
            self.leased,
            self.store,
            lambda: self.node.latest,
            FoundPolicy(self.policies, BoostsStarts),
            self.inventory.cgroup_of,
            self.upkeep.in_worker,
            self._is_idle,
            self.inventory.recovered.is_set,
            IdleCpus(Path(settings.node.procfs_root)),
            folder,
            boot_id,
        )
        boosts.is_pressed, self.leased.on_waiting = self.leased.is_pressed, boosts.look_soon
        self.starts = PodStarts(openings, boosts)
        history = EvictionHistory(folder, boot_id, disk)
        self.evictor = Evictor(self.store, runtime, self.audit.claims, _bounds(settings), history)
        if api_server is not None:
            self.evictor.by_api = api_server.evict
        allocations: NodeAllocations | None = None
        if settings.node.shared_pools == "computed":
            allocations = NodeAllocations(
                SharePools(lambda: self.node.latest.facts.last_cpu),
                allocation_file(folder, boot_id),
                self.node,
                self.upkeep.evaluator.move_off,
                disk,
            )
        self.pools = NodePools(
            self.store,
            self.node,
            pools_file(folder, boot_id),
            pools.configuration,
            lambda: pools.policy() is not None,
            self.inventory.recovered.is_set,
            self._is_idle,
            self.upkeep.evaluator.evaluate_now,
            threads.make("pools"),
            advisors=self.leased.advisors,
        )
        self.leased.on_pool_claims = self.pools.look_soon
        self.services = CoreServices(
            chain=self.policies.chain,
            inventory=self.inventory,
            ledger=self.ledger,
            executor=threads.background,
            spawn=spawn,
            evaluator=self.upkeep.evaluator,
            allocations=allocations,
            pools=self.pools,
            network=network_upkeep,
            starts=self.starts,
        )
        self.state = SavedState(
            CheckpointSync(folder, self.inventory, self.ledger, disk, is_standby),
            journal,
            allocations,
            self.pools,
            sysctls,
            history,
            self.leased,
            self.starts,
            self.policies.modes,
            AuditHistory(
                folder, self.audit, disk, self._configured_modes, has_file=bool(settings.audit.file)
            ),
            boot_id,
        )
        self.state.checkpoint.on_loaded = self._on_books_loaded
        self.upkeep.configure(settings.ledger)
        self._configure_owners()
        self.starts.openings.starts = Starts(settings.ledger.openings)
        self.upkeep.on_observed = self._on_observed
        self.node.on_change = StrategyAudit(self.audit, self.node, self._on_node_changed)
        note_record = self.store.on_change

        def on_record(kind: RowKind, identity: str, is_observed: bool) -> None:
            if note_record is not None:
                note_record(kind, identity, is_observed)
            self.pools.on_record(identity)
            if kind is RowKind.CONTAINER:
                openings.on_container(identity)
                boosts.on_container(identity)

        self.store.on_change = on_record
        moves = CpuMoves(self.store, self.node, self.upkeep, allocations, self._is_idle, spawn)

        def on_pods_changed(node: Node, uids: Iterable[str]) -> None:
            moves.on_pods_changed(node, uids)
            boosts.look_soon()

        self.node.on_pods_changed = on_pods_changed
        self.inventory.on_complete += (moves.on_inventory, self._on_inventory, self._write_missed)

    @property
    def store(self) -> PodStore:
        return self.inventory.store

    def needs_devices(self) -> bool:
        """Whether records have to tell which devices a container has."""
        return self.node.may_have_claims()

    @property
    def summary(self) -> str:
        """One line for `systemctl status`: policies, hook servers, records, values and the node."""
        recovered = "" if self.inventory.recovered.is_set() else ", waiting for the runtime's lists"
        recovered += ", which are not saved" if self.state.checkpoint.writer.problem else ""
        records = f"{len(self.store.pods)} pods, {len(self.store.containers)} containers"
        more = "".join(f"; {each}" for each in self._summaries() if each)
        return f"{self.policies.summary}; {records}{recovered}{more}"

    def _summaries(self) -> Iterator[str]:
        yield self.state.journal.problem
        if (allocations := self.state.allocations) is not None:
            yield allocations.summary
            yield allocations.problem
        yield self.pools.summary
        yield self.upkeep.summary
        yield self.node.summary

    async def load_policies(self, settings: Settings) -> None:
        """Loads the policies unless they are, and follows what they depend on from then on.

        Raises:
            PolicyLoadError: A policy cannot be loaded, and `on_load_error` is "stop".
        """
        if self.policies.is_loaded:
            return
        self._spawn(self.policies.servers.run())
        self._spawn(self.node.run())
        await self.policies.load(settings)

    async def use(self, settings: Settings) -> None:
        """Takes changed settings.

        Raises:
            PolicyLoadError: A policy cannot be loaded; the old settings stay.
        """
        before = self._configured_modes()
        await self.policies.load(settings)
        self.upkeep.configure(settings.ledger)
        self._configure_owners()
        self.starts.openings.starts = Starts(settings.ledger.openings)
        audit_configured_modes(self.audit, before, self._configured_modes())
        self._spawn(self.leased.sync_all())
        self.evictor.bounds = _bounds(settings)
        self.policies.servers.configure(settings.hooks.server_timeout_s)

    def audit_modes(self) -> None:
        """Audits the modes that the configuration has changed since the process before this one."""
        audit_configured_modes(self.audit, self.state.audit.modes_before, self._configured_modes())

    async def take_back_state(self) -> None:
        """Takes over from a successor that has failed; to be awaited before anything is decided."""
        try:
            await self.state.take_back()
        finally:
            self.upkeep.on_taken_back()
            self.inventory.confirm_all()

    def start(self) -> None:
        """Starts the background work; the front end sees to the inventory."""
        checkpoint = self.state.checkpoint
        self._spawn(checkpoint.writer.run())
        self._spawn(checkpoint.follow())
        self._spawn(self.state.audit.run())
        self._spawn(self.policies.run())
        self._spawn(self.upkeep.run())
        if self.services.network is not None:
            self._spawn(self.services.network.run())
        self._spawn(self.pools.run())
        self._spawn(self.leased.run())
        self.starts.run(self._spawn)
        self._spawn(self.upkeep.verify((Level.NODE, Level.QOS_CLASS)))
        self._spawn(self.upkeep.verify((Level.POD, Level.CONTAINER)))

    def prune(self) -> None:
        """Forgets cgroups of pods and containers that are gone; cheap, to be called about every second."""
        parents = (pod.cgroup_parent for pod in self.store.pods)
        self.ledger.prune(parents, (container.id for container in self.store.containers))
        if self.services.network is not None:
            self.services.network.look()
        allocations = self.state.allocations
        if allocations is not None and self.inventory.recovered.is_set() and not self._is_standby():
            saving = allocations.follow(self.store.pods)
            if saving is not None:
                self._spawn(saving)

    async def close(self) -> None:
        self.audit.close()
        self.policies.workers.close()
        await self.state.close()

    def _is_idle(self) -> bool:
        return not self.policies.is_loaded or self._is_standby()

    def _on_node_changed(self, node: Node, changed: frozenset[Input]) -> None:
        if Input.KATALYST in changed and self.policies.is_loaded:
            self.store.use_levels(levels_in_force(self.policies.chain.policies, node))
        self.upkeep.on_node_changed(node, changed)
        if changed & POOL_INPUTS:
            self.pools.look_soon()
        self.starts.boosts.look_soon()

    async def _on_inventory(self) -> None:
        if not self._is_standby():
            self._take_known()
            await self.upkeep.on_compared()

    def _on_books_loaded(self) -> None:
        self.leased.on_books_loaded()
        self._take_known()

    def _take_known(self) -> None:
        if self.services.network is not None:
            self.services.network.take_known()

    async def _write_missed(self) -> None:
        if not self._is_standby():
            await write_missed(self.services)

    def _on_policies(self, event: PolicyEvent) -> None:
        if event is PolicyEvent.MODES:
            self._configure_owners()
            if self.policies.is_loaded:
                self._spawn(self.leased.sync_all())
            return
        if event is PolicyEvent.CHAIN:
            self.store.use_levels(levels_in_force(self.policies.chain.policies, self.node.latest))
            self.services.chain = self.policies.chain
            self.pools.look()
            self._configure_owners()
            self.upkeep.on_policies(problem.name for problem in self.policies.loaded.problems)
        self.upkeep.on_servers([policy.name for policy in self.policies.servers.policies])

    def _configured_modes(self) -> dict[str, Mode]:
        """By policy and owner; empty before the policies are loaded."""
        if not self.policies.is_loaded:
            return {}
        owners = owners_of(self.policies.settings).values()
        return self.policies.configured_modes() | {str(each.claimant): each.mode for each in owners}

    def _configure_owners(self) -> None:
        owners = owners_of(self.policies.settings)
        boosting = self.starts.boosts.policy()
        if boosting is not None and boosting.mode is Mode.DRY_RUN:
            # What the policy leads to is claimed by this owner.
            owners[BOOSTS] = owners[BOOSTS]._replace(mode=Mode.DRY_RUN)
        self.leased.configure(with_owner_modes(owners, self.policies.modes.present))

    def _on_observed(self, fields: Mapping[str, str]) -> None:
        # Koordlet is registered, or is not any more.
        if fields != self.leased.unwritten:
            self.leased.unwritten = fields
            self._spawn(self.leased.sync_all())

    def _host_cgroup(self, name: str) -> str:
        """The cgroup of a host application of the strategies; empty if there is none, or it is not known."""
        node = self.node.latest
        for each in node.strategies.host_applications:
            if each.name == name:
                with suppress(ValueError):
                    return host_application_cgroup(each, node.cgroup_driver)
        return ""


class FoundPolicy:
    """The policy of a kind, kept: each call asks for it, and checks of a protocol are slow."""

    def __init__(self, policies: PolicySet, kind: type) -> None:
        self._policies = policies
        self._kind = kind
        # What it was looked for in comes first.
        self._found: tuple[object, LoadedPolicy | None] = (None, None)

    def __call__(self) -> LoadedPolicy | None:
        """Returns it; None if it is not loaded, or off."""
        policies = self._policies.chain.policies
        if policies is not self._found[0]:
            found = (each for each in policies if isinstance(each.policy, self._kind))
            self._found = policies, next(found, None)
        return self._found[1]


class ConfiguredPools:
    """What is configured of Katalyst's pools: each call asks for it."""

    def __init__(self, policies: PolicySet, node: NodeSources) -> None:
        self.policy = FoundPolicy(policies, UsesCpuPools)
        self._node = node
        # What it was made of comes first.
        self._configuration: tuple[tuple[object, ...], PoolConfiguration] = (
            (None, None, None),
            PoolConfiguration(),
        )

    def configuration(self) -> PoolConfiguration:
        node, loaded = self._node.latest, self.policy()
        made_of = node.levels, node.katalyst, loaded
        if any(map(operator.is_not, made_of, self._configuration[0])):
            self._configuration = made_of, pool_configuration(*made_of)
        return self._configuration[1]


def pool_configuration(
    levels: LevelRules | None, dynamic: KatalystConfig, loaded: LoadedPolicy | None
) -> PoolConfiguration:
    """Return what is configured of pools.

    `levels`: None: not known. `loaded`: the policy of the pools; None: there is none.
    """
    rules = levels or LevelRules()
    if loaded is None or not isinstance(loaded.policy, UsesCpuPools):
        return PoolConfiguration(rules=rules)
    # A policy that changes nothing refuses nothing either.
    on_error = OnError(dynamic.on_error) if dynamic.on_error else rules.on_error
    is_rejecting = on_error is OnError.REJECT and loaded.mode is Mode.ENFORCE
    settings = loaded.policy.pool_settings._replace(**dynamic.pool_settings())
    return PoolConfiguration(settings, rules, is_rejecting)


def _bounds(settings: Settings) -> Bounds:
    eviction = settings.eviction
    return Bounds(eviction.most_pods, eviction.interval_s, eviction.same_pod_s)


class NoCgroups(CgroupWriter):
    """In place of the writer if `cgroups.enabled` is false."""

    def look(self, path: tuple[str, ...], names: Iterable[str]) -> dict[str, FileText]:
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
