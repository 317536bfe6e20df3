"""GetStatus: the daemon, the runtime, policies, hook servers, values and inputs, and all problems."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cri_api.runtime.v1 import api_pb2 as cri_pb2
from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy import __version__
from runtimeproxy.api_names import MODES
from runtimeproxy.cgroups.writer import FAILURES, WriteOutcome
from runtimeproxy.core.eviction import PodEvictionOutcome
from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.claimants import parse_claimant
from runtimeproxy.hooks.decision import FailureKind, missing_features, unmet_on
from runtimeproxy.hooks.fields import KERNEL_SETTINGS, SYSCTL
from runtimeproxy.hooks.policy import Mode
from runtimeproxy.hooks.ways import left_undone, shown_name
from runtimeproxy.http2.server import EarlyEnd
from runtimeproxy.katalyst.levels import disagreement
from runtimeproxy.ledger import unapplied as unapplied_values
from runtimeproxy.ledger.unapplied import UnappliedCause
from runtimeproxy.logs import dropped_lines
from runtimeproxy.node.koordlet import HOOKS
from runtimeproxy.node.snapshot import FIELDS, Input, InputState
from runtimeproxy.pods.records import ContainerRecord, Level, PodRecord
from runtimeproxy.service.api.claims import EVICTIONS, owner_message
from runtimeproxy.service.api.katalyst import notes_of_pools, pools_status, problems_of_pools
from runtimeproxy.service.api.nri import notes_of_nri, nri_status, problems_of_nri
from runtimeproxy.service.api.qos_manager import notes_of_manager, problems_of_manager, qos_manager_status
from runtimeproxy.service.api.starts import starts_message
from runtimeproxy.service.api.strategies import target_messages
from runtimeproxy.service.api.unapplied import unapplied_messages, unapplied_of
from runtimeproxy.service.api.values import (
    FAILURE_POLICIES,
    duration,
    selector_message,
    timestamp,
)
from runtimeproxy.service.bypass import MOST_FAILURES, Bypass, Cause

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.audit import AuditQueues
    from runtimeproxy.core.eviction import Evictor
    from runtimeproxy.core.modes import ModeOverrides
    from runtimeproxy.core.policies import PolicySet
    from runtimeproxy.core.state import SavedState
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.frontends.cri_proxy.front_end import CriProxy
    from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
    from runtimeproxy.hooks.audit import AuditEntry
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.chain import Chain
    from runtimeproxy.hooks.counts import PolicyCounts
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.loading import LateLoad, LoadProblem
    from runtimeproxy.hooks.policy import Policy
    from runtimeproxy.hooks.remote.server_state import Server
    from runtimeproxy.http2.server import Budget
    from runtimeproxy.ledger.evaluate import Evaluator
    from runtimeproxy.ledger.leased import LeasedClaims
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.ledger.upkeep import Upkeep
    from runtimeproxy.node.koordlet import Koordlet
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.store import PodStore
    from runtimeproxy.service.audit_file import AuditFile
    from runtimeproxy.service.configuration import CurrentConfiguration
    from runtimeproxy.service.kubernetes_link import KubernetesLink
    from runtimeproxy.service.parts import Parts
    from runtimeproxy.service.pod_names import NamesByPod
    from runtimeproxy.service.tracing.traces import Traces

HANGS_S: Final = 5.0
"""A look at the node's inputs that takes longer than this hangs; one takes some milliseconds."""

SHORT_S: Final = 300.0
"""How long it is a problem that calls of own services had too little memory."""

MOST_UNEVALUATED: Final = 20
"""Of pods that cannot be evaluated, how many are named."""

MAX_NAMES: Final = 20
"""Misspelled names of pods that are listed: a Deployment's pods have the same ones."""

_CAUSES: Final = {
    Cause.CONFIGURATION: api_pb2.Bypass.CAUSE_CONFIGURATION,
    Cause.COMMAND: api_pb2.Bypass.CAUSE_COMMAND,
    Cause.SIGNAL: api_pb2.Bypass.CAUSE_SIGNAL,
    Cause.BREAKER: api_pb2.Bypass.CAUSE_BREAKER,
    Cause.PREDECESSOR: api_pb2.Bypass.CAUSE_PREDECESSOR,
}
_INPUT_STATES: Final = {
    InputState.UNKNOWN: api_pb2.NodeInput.STATE_UNKNOWN,
    InputState.KNOWN: api_pb2.NodeInput.STATE_KNOWN,
    InputState.WITHDRAWN: api_pb2.NodeInput.STATE_WITHDRAWN,
}


class StatusReading(NamedTuple):
    """What has to be asked or read for a status."""

    runtime: bytes | None
    """The runtime's response to Version; None if it does not answer."""
    memory_bytes: int
    """0 if it is not known."""
    misspelled: NamesByPod
    koordlets: Sequence[Koordlet] = ()


def read_memory() -> int:
    # Source: proc_pid_statm(5).
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - no object for a path is needed
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def status_of(parts: Parts, look: StatusReading) -> api_pb2.GetStatusResponse:
    """The whole status.

    Args:
        parts: The daemon's.
        look: What was read for it.
    """
    core, proxy, settings = parts.core, parts.proxy, parts.configuration.settings
    policies, node = core.policies, core.node
    servers = policies.servers
    store = core.store
    uids = {pod.uid for pod in store.pods}
    status = api_pb2.GetStatusResponse(
        daemon=_daemon(parts, core.state, look.memory_bytes, is_loaded=policies.is_loaded),
        runtime=_runtime(parts, core.inventory, look.runtime),
        policies=policies_of(policies, core.audit, node.latest, uids),
        hook_servers=[_hook_server(each, policies.chain) for each in servers.servers.values()],
        registration_problems=servers.present_problems,
        records=_records(core.inventory, core.state, look.misspelled),
        ledger=_ledger(
            core.ledger,
            store,
            core.upkeep,
            core.leased,
            core.state,
            node.latest,
            settings,
            starts_message(core.starts, store),
        ),
        node=_node(node, policies.chain.policies, settings),
        last_reload=_reload(parts.configuration, policies.loaded.changed_code),
        clients=_clients(proxy.server, parts.servers.budget) if proxy is not None else None,
        calls=_calls(proxy) if proxy is not None else None,
        upgrade=_upgrade(proxy) if proxy is not None else None,
        audit_file=_audit_file(parts.audit_file),
        tracing=_tracing(parts.traces),
        recording=_recording(proxy.services) if proxy is not None else None,
        kubernetes=_kubernetes(parts.kubernetes),
        claim_owners=_claim_owners(core.leased),
        evictions=_evictions(core.evictor),
        qos_manager=qos_manager_status(parts.qos_manager),
        nri=nri_status(parts.nri, settings.nri) if parts.nri is not None else None,
        cpu_pools=pools_status(core.pools, settings.daemon.mode),
        left_undone=_left_undone(parts.front_end.carried_fields(), policies.chain.policies, core.upkeep),
    )
    in_use = [each.name for each in policies.chain.policies if each.mode is Mode.ENFORCE]
    status.koordlets.extend(
        api_pb2.KoordletProcess(pid=each.pid, is_nri_plugin=each.uses_nri, policies=each.shared(in_use))
        for each in look.koordlets
    )
    status.bypass.CopyFrom(bypass_of(parts.bypass))
    status.breaker.CopyFrom(_breaker(parts.bypass))
    status.hook_servers.extend(api_pb2.HookServer(name=name, is_unused=True) for name in servers.unused)
    status.notes.extend((*notes_of_manager(status.qos_manager), *notes_of_nri(status.nri)))
    status.notes.extend(notes_of_pools(status.cpu_pools))
    status.notes.extend(_notes_of_koordlets(status))
    problems = level_problems(store.pods)
    status.katalyst_problems.extend(problems[:MOST_UNEVALUATED])
    status.katalyst_problem_pods = len(problems)
    status.problems.extend(problems_of(status))
    return status


def _left_undone(
    carried: CarriedFields, policies: Iterable[LoadedPolicy], upkeep: Upkeep
) -> list[api_pb2.LeftUndone]:
    """What policies say that they set, or have set, and the mode does not apply."""
    found = {
        each.name: dict.fromkeys(left_undone(carried, each.policy.sets_fields))
        for each in policies
        if each.methods
    }
    for value in upkeep.unapplied():
        if value.cause is UnappliedCause.NOT_CARRIED:
            name = shown_name("pod" if value.target.level is Level.POD else "", value.field.partition("[")[0])
            for owner in value.owners:
                found.setdefault(str(owner), {})[name] = None
    return [api_pb2.LeftUndone(policy=name, fields=fields) for name, fields in found.items() if fields]


def _claim_owners(leased: LeasedClaims) -> list[api_pb2.ClaimOwner]:
    return [owner_message(owned, leased.now_s()) for owned in leased.owners.values()]


def _evictions(evictor: Evictor) -> api_pb2.EvictionStatus:
    counts: Counter[PodEvictionOutcome] = Counter()
    for (_, outcome), number in evictor.counts.read().items():
        counts[outcome] += number
    return api_pb2.EvictionStatus(
        evicted=counts[PodEvictionOutcome.EVICTED],
        dry_run=counts[PodEvictionOutcome.DRY_RUN],
        refused=counts[PodEvictionOutcome.REFUSED],
        failed=counts[PodEvictionOutcome.FAILED],
        recent=[
            api_pb2.Eviction(
                time=timestamp(each.time_s),
                owner=each.owner,
                pod=each.pod,
                pod_uid=each.uid,
                outcome=EVICTIONS[each.result.outcome],
                reason=each.result.reason,
            )
            for each in reversed(evictor.recent)
        ],
        problem=evictor.problem,
    )


def bypass_of(bypass: Bypass) -> api_pb2.Bypass:
    state = bypass.status
    is_breaker = state.cause is Cause.BREAKER
    return api_pb2.Bypass(
        is_on=state.is_on,
        cause=api_pb2.Bypass.CAUSE_UNSPECIFIED if state.cause is None else _CAUSES[state.cause],
        since=timestamp(state.since_s),
        until=timestamp(state.open_until_s) if is_breaker else None,
        reason=state.reason,
    )


def policies_of(
    policies: PolicySet, audit: AuditQueues, node: Node, uids: Set[str]
) -> list[api_pb2.PolicyStatus]:
    """All policies that are loaded, cannot be, or were and still have a thread."""
    result = policies.loaded
    problems = {each.name: each for each in result.problems}
    found = [
        _policy(policies, audit, each, node, problems.pop(each.name, None), uids) for each in result.policies
    ]
    loaded = {each.name for each in result.policies} | problems.keys()
    found += [_disabled(policies, each) for each in result.classes if each.name not in loaded]
    failed = [
        api_pb2.PolicyStatus(name=each.name, state=api_pb2.PolicyStatus.STATE_FAILED, reason=each.text)
        for each in problems.values()
    ]
    return _with_replaced(policies, [*found, *failed])


def _with_replaced(policies: PolicySet, found: Sequence[api_pb2.PolicyStatus]) -> list[api_pb2.PolicyStatus]:
    """The policies with the threads that load them, or hang in what a reload has replaced or removed."""
    by_name = {each.name: each for each in found}
    present = {id(each.policy) for each in policies.loaded.policies}
    for key, each in policies.workers.hanging.items():
        if key not in present:
            policy = by_name.setdefault(each.policy.name, _removed(each.policy))
            _add_replaced(policy, each.threads, each.since_s)
    for late in policies.loader.late:
        policy = by_name.setdefault(late.name, _removed(late))
        if _is_not_replaced(policy):
            policy.hanging_threads += 1
        else:
            _add_replaced(policy, 1, late.since_s)
    removed = by_name.keys() - {each.name for each in found}
    return [*found, *(by_name[name] for name in sorted(removed))]


def _add_replaced(policy: api_pb2.PolicyStatus, threads: int, since_s: float) -> None:
    before_s = policy.replaced_since.ToNanoseconds() / 1e9
    more = api_pb2.PolicyStatus(
        hanging_threads=policy.hanging_threads + threads,
        replaced_threads=policy.replaced_threads + threads,
        replaced_since=timestamp(min(since_s, before_s or since_s)),
    )
    policy.MergeFrom(more)


def _is_not_replaced(policy: api_pb2.PolicyStatus) -> bool:
    # A thread that loads the policy is why its present version is not in use.
    return policy.is_kept or policy.state == api_pb2.PolicyStatus.STATE_FAILED


def _removed(policy: LoadedPolicy | LateLoad) -> api_pb2.PolicyStatus:
    return api_pb2.PolicyStatus(
        name=policy.name,
        state=api_pb2.PolicyStatus.STATE_REMOVED,
        origin=policy.origin,
        priority=getattr(policy, "priority", 0),
        mode=api_pb2.MODE_OFF,
    )


def _disabled(policies: PolicySet, policy: type[Policy]) -> api_pb2.PolicyStatus:
    """A policy that the configuration disables, or that is so by default."""
    is_configured = policies.configured(policy.name).enabled is False
    source = api_pb2.MODE_SOURCE_CONFIGURATION if is_configured else api_pb2.MODE_SOURCE_DEFAULT
    return api_pb2.PolicyStatus(
        name=policy.name,
        state=api_pb2.PolicyStatus.STATE_DISABLED,
        reason="disabled by the configuration" if is_configured else "disabled by default",
        origin=f"{policy.__module__}:{policy.__qualname__}",
        priority=policy.priority,
        mode=api_pb2.MODE_OFF,
        mode_source=source,
        configured_mode=api_pb2.MODE_OFF,
        overrides=overrides_of(policies.modes, policy.name),
    )


def owner_mode_of(leased: LeasedClaims, modes: ModeOverrides, claimant: str) -> api_pb2.PolicyStatus:
    """The mode of an owner of claims, by its name in the ledger; `ClaimOwner` has all else."""
    overrides = overrides_of(modes, claimant)
    mode = MODES[leased.owned(parse_claimant(claimant).name).owner.mode]
    is_off = mode == api_pb2.MODE_OFF
    state = api_pb2.PolicyStatus.STATE_DISABLED if is_off else api_pb2.PolicyStatus.STATE_LOADED
    source = api_pb2.MODE_SOURCE_COMMAND if overrides else api_pb2.MODE_SOURCE_CONFIGURATION
    until = overrides[-1].until if overrides and overrides[-1].HasField("until") else None
    return api_pb2.PolicyStatus(
        name=claimant, state=state, mode=mode, mode_source=source, mode_until=until, overrides=overrides
    )


def overrides_of(modes: ModeOverrides, policy: str) -> list[api_pb2.ModeOverride]:
    return [
        api_pb2.ModeOverride(
            mode=MODES[each.mode],
            selector=None if each.is_for_all else selector_message(each.selector),
            set_at=timestamp(each.set_s),
            until=timestamp(each.until_s),
            reason=each.reason,
        )
        for each in modes.present
        if each.policy == policy
    ]


def _policy(
    policies: PolicySet,
    audit: AuditQueues,
    policy: LoadedPolicy,
    node: Node,
    problem: LoadProblem | None,
    uids: Set[str],
) -> api_pb2.PolicyStatus:
    ring, inputs = audit.ring, (*policy.inputs, *policy.optional_inputs)
    unknown = [each for each in inputs if node.state_of(each) is InputState.UNKNOWN]
    state, reasons = api_pb2.PolicyStatus.STATE_LOADED, [] if problem is None else [str(problem)]
    if unmet := unmet_on(policy, node):
        state = api_pb2.PolicyStatus.STATE_OFF if unmet.is_off else api_pb2.PolicyStatus.STATE_PARTIAL
        reasons.append(str(unmet))
    overrides = overrides_of(policies.modes, policy.name)
    configured = api_pb2.MODE_OFF if policy.name in policies.disabled else MODES[policy.mode]
    is_default = policy.mode is Mode.ENFORCE and policies.configured(policy.name).enabled is None
    source = api_pb2.MODE_SOURCE_DEFAULT if is_default else api_pb2.MODE_SOURCE_CONFIGURATION
    mode, until = configured, None
    for each in overrides:
        if not each.HasField("selector"):
            mode, source = each.mode, api_pb2.MODE_SOURCE_COMMAND
            until = each.until if each.HasField("until") else None
    if mode == api_pb2.MODE_OFF and all(each.mode == api_pb2.MODE_OFF for each in overrides):
        state = api_pb2.PolicyStatus.STATE_DISABLED
    failures, entries = _counts(audit.counts, policy.name)
    hanging = policies.workers.hanging.get(id(policy.policy))
    return api_pb2.PolicyStatus(
        name=policy.name,
        state=state,
        reason="; ".join(reasons),
        origin=policy.origin,
        priority=policy.priority,
        mode=mode,
        mode_source=source,
        mode_until=until,
        configured_mode=configured,
        overrides=overrides,
        failure_policy=FAILURE_POLICIES[policy.failure_policy],
        timeout=duration(policy.timeout_s),
        inputs=map(str, inputs),
        unknown_inputs=[str(each) for each in unknown if each not in _OF_PODS],
        missing_features=sorted(missing_features(policy.features | policy.optional_features, node)),
        runs=_runs(audit.counts, policy.name),
        failures=api_pb2.FailureCounts(
            raised=failures[FailureKind.FAILED],
            invalid=failures[FailureKind.INVALID],
            timed_out=failures[FailureKind.TIMED_OUT],
            skipped=failures[FailureKind.SKIPPED],
            refused=entries[AuditKind.REFUSED],
            left_out=entries[AuditKind.LEFT_OUT],
        ),
        last_failure=_failure(ring.last_failures.get(policy.name)),
        last_left_out=_failure(audit.counts.left_out.last(policy.name, uids)),
        hanging_threads=hanging.threads if hanging is not None else 0,
        is_kept=problem is not None and problem.is_kept,
    )


_OF_PODS: Final = frozenset({Input.PRIORITY, Input.POD_REQUESTS})
"""Known or not for each pod."""


def _runs(counts: PolicyCounts, policy: str) -> int:
    durations = counts.durations.items()
    return sum(sum(each.counts) for (name, _), each in durations if name == policy)


def _counts(counts: PolicyCounts, policy: str) -> tuple[Counter[str], Counter[AuditKind]]:
    """The failures of a policy by kind, and its audit entries by kind."""
    failures: Counter[str] = Counter()
    entries: Counter[AuditKind] = Counter()
    for (name, _, kind), number in counts.failures.items():
        if name == policy:
            failures[kind] += number
    for key, number in counts.entries.items():
        if key.policy == policy:
            entries[key.kind] += number
    return failures, entries


def _failure(entry: AuditEntry | None) -> api_pb2.PolicyFailure | None:
    if entry is None:
        return None
    return api_pb2.PolicyFailure(
        time=timestamp(entry.time_s),
        pod=entry.target or f"{entry.pod_namespace}/{entry.pod_name}",
        container=entry.container,
        hook=entry.hook,
        field=entry.field,
        reason=entry.reason,
    )


def _daemon(parts: Parts, saved: SavedState, memory_bytes: int, *, is_loaded: bool) -> api_pb2.Daemon:
    states, front_end, admin = api_pb2.Daemon, parts.front_end, parts.servers.admin
    state = states.STATE_SERVING if is_loaded else states.STATE_LOADING
    if parts.life.stopping.is_set():
        state = states.STATE_DRAINING
    elif parts.life.retired.is_set():
        state = states.STATE_RETIRED
    return api_pb2.Daemon(
        version=__version__,
        pid=os.getpid(),
        started_at=timestamp(parts.life.started_s),
        state=state,
        python=platform.python_version(),
        endpoint=front_end.listener.address,
        admin_endpoint=admin.path if admin is not None else "",
        admin_problem=admin.problem if admin is not None else "",
        config_path=parts.configuration.path,
        internal_errors=front_end.internal_errors,
        lost_log_lines=dropped_lines(),
        memory_bytes=memory_bytes,
        boot_id=saved.boot_id,
        mode=front_end.mode,
    )


def _breaker(bypass: Bypass) -> api_pb2.Breaker:
    state = bypass.status
    return api_pb2.Breaker(
        is_open=state.opened_s is not None,
        opened_at=timestamp(state.opened_s),
        open_until=timestamp(state.open_until_s),
        recent_errors=state.recent_errors,
        most_errors=MOST_FAILURES,
    )


def _runtime(parts: Parts, inventory: Inventory, response: bytes | None) -> api_pb2.Runtime:
    settings, proxy = parts.configuration.settings.proxy, parts.proxy
    about = cri_pb2.VersionResponse.FromString(response) if response is not None else None
    return api_pb2.Runtime(
        endpoint=settings.runtime_endpoint,
        image_endpoint=settings.image_endpoint,
        name=inventory.runtime_name if about is None else about.runtime_name,
        version="" if about is None else about.runtime_version,
        answers=about is not None and bool(settings.runtime_endpoint),
        refused_calls=proxy.server.counts.without_upstream if proxy is not None else 0,
        away_since=None if about is not None else timestamp(parts.runtime.away_since_s),
    )


def _hook_server(server: Server, chain: Chain) -> api_pb2.HookServer:
    about, counts = server.registration, server.counts
    uncarried = chain.counts.uncarried.of(about.name)
    return api_pb2.HookServer(
        name=about.name,
        endpoint=about.endpoint,
        failure_policy=FAILURE_POLICIES[about.failure_policy],
        timeout=duration(about.timeout_s),
        hooks=sorted(about.hooks),
        is_breaker_open=counts.opened_s is not None,
        breaker_opened_at=timestamp(counts.opened_s),
        calls=counts.calls,
        failures=counts.failures,
        last_error=counts.last_error,
        last_error_at=timestamp(counts.last_error_s) if counts.last_error else None,
        hooks_not_asked=sorted(each for each in about.hooks if not chain.carried.asks_at(each)),
        not_carried=[f"{hook}: {', '.join(fields)}" for hook, fields in uncarried.items()],
    )


def _records(inventory: Inventory, saved: SavedState, misspelled: NamesByPod) -> api_pb2.Records:
    store, checkpoint = inventory.store, saved.checkpoint
    names = (f"{pod}: {problem}" for pod, problems in misspelled.items() for problem in problems)
    refused = [_refused(*each) for each in inventory.refused()]
    return api_pb2.Records(
        misspelled_names=islice(names, MAX_NAMES),
        misspelled_pods=len(misspelled),
        pods=len(store.pods),
        containers=len(store.containers),
        recovered_pods=sum(each.recovered for each in store.pods),
        recovered_containers=sum(each.recovered for each in store.containers),
        is_recovered=inventory.recovered.is_set(),
        checkpoint_problem=checkpoint.writer.problem,
        checkpoint_set_aside=checkpoint.writer.aside,
        unreadable_rows=checkpoint.unreadable,
        unusable_files=saved.unusable_files,
        checkpoint_lost=checkpoint.writer.lost,
        kept_bytes=store.kept_bytes,
        max_bytes=store.max_bytes,
        trimmed=store.trimmed,
        refused=refused[:MAX_NAMES],
        refused_records=len(refused),
    )


def _refused(pod: PodRecord | None, container: ContainerRecord | None, reason: str) -> api_pb2.PodProblem:
    names = [pod.namespace, pod.name] if pod is not None else []
    names += [container.name] if container is not None else []
    return api_pb2.PodProblem(
        pod="/".join(names), pod_uid=pod.uid if pod is not None else "", reason=" ".join(reason.split())
    )


def _ledger(
    ledger: Ledger,
    store: PodStore,
    upkeep: Upkeep,
    leased: LeasedClaims,
    saved: SavedState,
    node: Node,
    settings: Settings,
    starts: api_pb2.StartsStatus,
) -> api_pb2.LedgerStatus:
    counts, allocations, now_s = ledger.counts, saved.allocations, time.time()
    unapplied = unapplied_of(upkeep, leased)
    writes = counts.writes.read().items()
    return api_pb2.LedgerStatus(
        is_enabled=settings.cgroups.enabled,
        cgroups=len(ledger.books),
        values=ledger.books.value_count,
        yielded=[
            api_pb2.YieldedValue(
                cgroup="/" + "/".join(each.path),
                field=each.name,
                ours=str(each.ours),
                theirs=str(each.theirs),
                until=timestamp(now_s + each.left_s),
                target=_target(ledger, "/" + "/".join(each.path)),
            )
            for each in ledger.yielded()
        ],
        observed=sorted(ledger.books.observed),
        counts=api_pb2.LedgerCounts(
            writes=sum(number for (_, outcome), number in writes if outcome is WriteOutcome.WRITTEN),
            failed_writes=sum(number for (_, outcome), number in writes if outcome in FAILURES),
            repairs=sum(counts.repairs.read().values()),
            overwrites=sum(counts.overwrites.read().values()),
            given_back=sum(counts.given_back.read().values()),
            left_alone=sum(counts.left.read().values()),
            renewed=sum(counts.renewed.read().values()),
            recovered=counts.recovered,
            above_usage=sum(counts.above_usage.read().values()),
            evaluations=upkeep.evaluator.rounds,
        ),
        failed_writes=[
            api_pb2.FailedWrite(
                time=timestamp(each.time_s),
                cgroup=each.result.cgroup,
                field=each.result.name,
                value=str(each.result.value),
                error=each.result.error,
                target=_target(ledger, each.result.cgroup),
            )
            for each in reversed(tuple(ledger.failures.writes))
        ],
        left=[
            api_pb2.LeftValue(
                cgroup=each.cgroup,
                field=each.name,
                value=str(each.value),
                reason=each.error,
                target=_target(ledger, each.cgroup),
            )
            for each in ledger.failures.left
        ],
        journal_problem=saved.journal.problem,
        change_problem=upkeep.problem,
        hanging_files=upkeep.hung,
        change=_change(upkeep.evaluator),
        allocated_pods=len(node.allocations),
        allocation_problem=allocations.problem if allocations is not None else "",
        occupied_pods=allocations.occupied if allocations is not None else 0,
        cpu_mode_problem=upkeep.mode_problem,
        sysctl_problems=saved.sysctls.problems if saved.sysctls is not None else (),
        unknown_originals=sum(
            original.text is None for book in ledger.books for original in book.originals.values()
        ),
        unevaluated=_unevaluated(store, upkeep.evaluator),
        unevaluated_pods=len(upkeep.evaluator.unevaluated.reasons),
        unapplied=unapplied_messages(unapplied),
        unapplied_values=len(unapplied),
        starts=starts,
    )


def level_problems(pods: Iterable[PodRecord]) -> list[api_pb2.PodProblem]:
    """The pods that have not the level that their annotations ask for, or another one than by their label."""
    found = [
        api_pb2.PodProblem(pod=f"{pod.namespace}/{pod.name}", pod_uid=pod.uid, reason=reason)
        for pod in pods
        if pod.katalyst is not None
        and (reason := pod.katalyst.refusal or disagreement(pod.labels, pod.katalyst))
    ]
    return sorted(found, key=lambda each: (each.pod, each.pod_uid))


def _unevaluated(store: PodStore, evaluator: Evaluator) -> list[api_pb2.PodProblem]:
    reasons = evaluator.unevaluated.reasons
    found = [
        api_pb2.PodProblem(pod=f"{pod.namespace}/{pod.name}", pod_uid=pod.uid, reason=reasons[pod.id])
        for pod in store.pods
        if pod.id in reasons
    ]
    return sorted(found, key=lambda each: each.pod)[:MOST_UNEVALUATED]


def _target(ledger: Ledger, cgroup: str) -> str:
    target = ledger.books.target(cgroup)
    return target.name if target is not None else ""


def _change(evaluator: Evaluator) -> api_pb2.OngoingChange | None:
    change = evaluator.changes.ongoing
    if change is None:
        return None
    return api_pb2.OngoingChange(
        reasons=[change.name], pods=change.pods, done=change.done, failed=change.failed
    )


def _node(sources: NodeSources, policies: Iterable[LoadedPolicy], settings: Settings) -> api_pb2.NodeStatus:
    began_s = sources.look_began_s
    is_hanging = began_s is not None and time.time() - began_s > HANGS_S
    return api_pb2.NodeStatus(
        inputs=inputs_of(sources, policies, settings),
        problems=sources.problems,
        notes=sources.notes,
        hangs_since=timestamp(began_s) if is_hanging else None,
        strategy_problems=[
            api_pb2.StrategyProblem(path=each.file, key=each.key, reason=_reason(each.path, each.reason))
            for each in sources.strategy_problems
        ],
        polling_reason=sources.polling_reason,
        katalyst_targets=target_messages(sources.katalyst_targets),
    )


def _reason(place: str, reason: str) -> str:
    return f"{place} {reason}" if place else reason


def inputs_of(
    sources: NodeSources, policies: Iterable[LoadedPolicy], settings: Settings
) -> list[api_pb2.NodeInput]:
    """The inputs of the node, with their places and the policies that depend on each."""
    node, places, used = sources.latest, _places(settings), dict[Input, list[str]]()
    for policy in policies:
        for each in (*policy.inputs, *policy.optional_inputs):
            used.setdefault(each, []).append(policy.name)
    return [
        api_pb2.NodeInput(
            name=each,
            state=_INPUT_STATES[node.state_of(each)],
            generation=node.generations.get(each, 0),
            source=places.get(each, ""),
            problems=_problems_in(places.get(each, ""), sources.problems),
            policies=dict.fromkeys(used.get(each, ())),
        )
        for each in FIELDS
    ]


def _problems_in(source: str, problems: Iterable[str]) -> Iterator[str]:
    """Those of a folder, or of what is in it."""
    folder = source.rstrip("/")
    return (each for each in problems if folder and each.startswith((f"{folder}/", f"{folder}:")))


def _places(settings: Settings) -> dict[Input, str]:
    node = settings.node
    pools = "the pods of this node" if node.shared_pools == "computed" else node.objects_dir
    return {
        Input.CPUS: node.sysfs_root,
        Input.MEMORY: node.sysfs_root,
        Input.BLOCK_DEVICES: node.sysfs_root,
        Input.CGROUPS: settings.cgroups.root,
        Input.DEVICES: node.sysfs_root,
        Input.KUBELET: node.kubelet_dir,
        Input.POD_REQUESTS: node.kubelet_dir,
        Input.NODE_OBJECT: node.objects_dir,
        Input.STRATEGIES: node.objects_dir,
        Input.NORMALIZATION: node.objects_dir,
        Input.KATALYST: node.objects_dir,
        Input.POOLS: pools,
    }


def _reload(configuration: CurrentConfiguration, changed_code: Sequence[str]) -> api_pb2.Reload | None:
    last = configuration.last_reload
    if last is None and not changed_code:
        return None
    return api_pb2.Reload(
        time=timestamp(last.time_s) if last is not None else None,
        has_failed=bool(last and last.error),
        error=last.error if last is not None else "",
        need_restart=last.need_restart if last is not None else (),
        changed_code=changed_code,
    )


def _clients(server: RelayServer, own: Budget) -> api_pb2.Clients:
    streams, intercepted = server.stream_counts
    is_short = own.was_short_s is not None and time.time() - own.was_short_s < SHORT_S
    return api_pb2.Clients(
        connections=server.connection_count,
        streams=streams,
        intercepted_streams=intercepted,
        refused=sum(server.counts.refused.values()),
        protocol_errors=server.counts.ended["protocol_error"],
        silent=server.counts.ended["no_call"],
        held_bytes=server.budget.used_bytes,
        held_budget_bytes=server.budget.limit_bytes,
        own_calls_without_room=own.early_ends[EarlyEnd.MADE_ROOM] + own.early_ends[EarlyEnd.NO_ROOM],
        own_calls_without_room_at=timestamp(own.was_short_s) if is_short else None,
    )


def _calls(proxy: CriProxy) -> api_pb2.CallStatus:
    counts, services, problems = proxy.server.counts, proxy.services, Counter[str]()
    methods = counts.by_method.values()
    for (_, cause), number in proxy.problems.items():
        problems[cause] += number
    refused = Counter[int]()
    for each in methods:
        refused.update(each.refused)
    too_large = problems["too_large"] + counts.too_large
    return api_pb2.CallStatus(
        decided=sum(sum(each.held.counts) for each in methods),
        changed=services.changed if services is not None else 0,
        refused=refused.total(),
        unparsable=problems["unreadable"],
        too_large=too_large,
        no_memory=refused[StatusCode.RESOURCE_EXHAUSTED] - too_large,
        undecided=problems["not_loaded"] + problems["not_in_time"] + problems["internal_error"],
    )


def _upgrade(proxy: CriProxy) -> api_pb2.UpgradeStatus:
    upgrade, predecessor = proxy.upgrade, proxy.predecessor
    last = upgrade.last
    return api_pb2.UpgradeStatus(
        time=timestamp(last[0]) if last is not None else None,
        error=last[1] if last is not None else "",
        successor_pid=upgrade.successor_pid,
        has_predecessor=predecessor is not None and predecessor.is_draining,
    )


def _audit_file(file: AuditFile) -> api_pb2.AuditFileStatus | None:
    if not file.path:
        return None
    return api_pb2.AuditFileStatus(path=file.path, written=file.written, lost=file.lost, problem=file.problem)


def _tracing(traces: Traces | None) -> api_pb2.TracingStatus | None:
    if traces is None:
        return None
    return api_pb2.TracingStatus(
        endpoint=traces.endpoint, sent=traces.sent, lost=traces.lost, problem=traces.problem
    )


def _recording(services: CallServices | None) -> api_pb2.RecordingStatus | None:
    recorder = services.recorder if services is not None else None
    if recorder is None:
        return None
    return api_pb2.RecordingStatus(started_at=timestamp(recorder.started_s), calls=recorder.calls)


def _kubernetes(link: KubernetesLink | None) -> api_pb2.KubernetesStatus | None:
    source = link.source if link is not None else None
    if source is None:
        return None
    return api_pb2.KubernetesStatus(
        server=source.server,
        watches=[
            api_pb2.KubernetesWatch(
                kind=watch.resource.kind,
                state=api_pb2.KubernetesWatch.State.Value(f"STATE_{watch.state.upper()}"),
                problem=watch.problem,
                last_heard=timestamp(watch.heard_s),
                lists=watch.lists,
                events=watch.events,
            )
            for watch in source.watches
        ],
        problems=source.problems,
        waiting=source.inputs.waiting,
        pods=len(source.inputs.pods),
        events_sent=source.events.sent if source.events is not None else 0,
        events_lost=source.events.lost if source.events is not None else 0,
    )


# --- problems ----------------------------------------------------------------------------------------------


def problems_of(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    """What needs an operator's attention, a sentence each."""
    yield from _problems_of_daemon(status)
    if status.HasField("nri"):
        yield from problems_of_nri(status.nri)
    yield from _problems_of_memory(status)
    yield from _problems_of_policies(status.policies)
    for server in status.hook_servers:
        if server.is_breaker_open:
            yield f"Hook server {server.name} is not called until it answers again: {server.last_error}."
        elif server.is_unused:
            yield f"Hook server {server.name} is registered beyond the limit and not used."
    yield from (f"Hook server registration: {each}." for each in status.registration_problems)
    yield from _problems_of_koordlets(status)
    yield from _problems_of_pods(status.ledger)
    yield from _problems_of_names(status.records)
    yield from _problems_of_refused(status.records)
    yield from _problems_of_levels(status)
    yield from _problems_of_values(status.ledger)
    yield from _problems_of_unapplied(status.ledger)
    yield from problems_of_pools(status.cpu_pools)
    yield from _problems_of_claims(status)
    yield from problems_of_manager(status.qos_manager)
    if status.node.HasField("hangs_since"):
        yield "Reading the node's inputs hangs: what was known before counts."
    if status.node.polling_reason:
        yield f"Node: the kernel reports no changes of files, which are polled: {status.node.polling_reason}."
    yield from (f"Node: {each}." for each in status.node.problems)


def _problems_of_levels(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    yield from (f"Pod {each.pod}: Katalyst's level: {each.reason}." for each in status.katalyst_problems)
    if more := status.katalyst_problem_pods - len(status.katalyst_problems):
        yield f"{more} more pods have such problems with Katalyst's level."


def _problems_of_koordlets(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    """Two plugins of one runtime: it fails the creation of a container for which both set other values."""
    for each in status.koordlets if status.daemon.mode == "nri" else ():
        if each.is_nri_plugin and not HOOKS.isdisjoint(each.policies):
            hooks = ", ".join(name for name in each.policies if name in HOOKS)
            text = f"Koordlet (process {each.pid}) is an NRI plugin, too, with the hooks of {hooks}"
            yield f"{text}: the runtime fails the creation of a container for which both set other values."


def _notes_of_koordlets(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    if any(_problems_of_koordlets(status)):
        return
    for each in status.koordlets:
        if each.policies:
            what = "is an NRI plugin, and sets" if each.is_nri_plugin else "sets"
            names = ", ".join(each.policies)
            yield f"Koordlet (process {each.pid}) {what} what these policies set, too: {names}."


def _problems_of_pods(ledger: api_pb2.LedgerStatus) -> Iterator[str]:
    for each in ledger.unevaluated:
        yield f"Pod {each.pod} cannot be evaluated: {each.reason}."
    if more := ledger.unevaluated_pods - len(ledger.unevaluated):
        yield f"{more} more pods cannot be evaluated."


def _problems_of_claims(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    for owner in status.claim_owners:
        if owner.state == api_pb2.ClaimOwner.STATE_HELD:
            yield f"{owner.name} does not renew its claims: some are held for a time, others have ended."
        if owner.refused:
            yield f"{owner.refused} claims of {owner.name} were refused, the last one as {owner.refusal}."
    if status.evictions.problem:
        yield f"Evictions: {status.evictions.problem}."
    for each in status.evictions.recent[:1]:
        if each.outcome == api_pb2.EvictResponse.OUTCOME_FAILED:
            yield f"The last eviction, of {each.pod}, failed: {each.reason}."


def _problems_of_daemon(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    if status.runtime.endpoint and not status.runtime.answers:
        yield f"The runtime does not answer on {status.runtime.endpoint}."
    if status.bypass.is_on:
        cause = api_pb2.Bypass.Cause.Name(status.bypass.cause).removeprefix("CAUSE_").lower()
        yield f"The bypass is on ({cause}): policies do not run."
    if status.daemon.internal_errors:
        yield f"There were {status.daemon.internal_errors} errors in the proxy's own code; the log has them."
    if status.daemon.admin_problem:
        yield f"The admin socket does not serve: {status.daemon.admin_problem}."
    yield from _problems_of_changes(status)
    records = status.records
    if records.checkpoint_problem:
        yield f"The records are not saved: {records.checkpoint_problem}."
    if records.checkpoint_set_aside:
        yield f"A checkpoint could not be used and is set aside as {records.checkpoint_set_aside}."
    if records.unreadable_rows:
        yield f"{records.unreadable_rows} rows of the checkpoint could not be read, and do not count."
    yield from (f"{each}." for each in records.unusable_files)
    if records.checkpoint_lost:
        yield f"The checkpoint was removed or replaced, times: {records.checkpoint_lost}; it is made anew."
    if not records.is_recovered:
        yield "The records have not been compared with the runtime yet."
    yield from _problems_of_sinks(status)


def _problems_of_sinks(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    if status.daemon.lost_log_lines:
        yield f"{status.daemon.lost_log_lines} log lines were lost."
    if status.audit_file.problem:
        lost = status.audit_file.lost
        yield f"The audit is not complete, {lost} lines of its file are lost: {status.audit_file.problem}."
    for problem in status.kubernetes.problems:
        yield f"The API server at {status.kubernetes.server or 'an unknown address'}: {problem}."
    if status.tracing.problem:
        yield f"{status.tracing.lost} spans are lost: {status.tracing.problem}."


def _problems_of_memory(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    records = status.records
    if records.trimmed or records.kept_bytes > records.max_bytes // 2:
        yield (
            f"Labels and annotations of pods take {records.kept_bytes} of at most {records.max_bytes} bytes; "
            f"{records.trimmed} records lack some of theirs."
        )
    if status.clients.HasField("own_calls_without_room_at"):
        yield (
            "Calls of the daemon's own services have too little memory, as clients do not end requests or do "
            f"not read responses: {status.clients.own_calls_without_room} were ended."
        )


def _problems_of_changes(status: api_pb2.GetStatusResponse) -> Iterator[str]:
    if status.last_reload.has_failed:
        yield f"The last reload failed, and the old configuration stays: {status.last_reload.error}."
    if status.last_reload.need_restart:
        yield f"Restart to apply {', '.join(status.last_reload.need_restart)}."
    yield from (f"{each}; an upgrade takes it into use." for each in status.last_reload.changed_code)
    if status.upgrade.error:
        yield f"The last upgrade failed: {status.upgrade.error}."


def _problems_of_policies(policies: Iterable[api_pb2.PolicyStatus]) -> Iterator[str]:
    for policy in policies:
        if policy.state == api_pb2.PolicyStatus.STATE_FAILED:
            yield f"Policy {policy.name} is not loaded: {policy.reason}."
        elif policy.is_kept:
            yield f"Policy {policy.name} is in use as it was loaded before: {policy.reason}."
        elif policy.unknown_inputs and policy.state == api_pb2.PolicyStatus.STATE_OFF:
            yield f"Policy {policy.name} is off: {policy.reason}."
        yield from _problems_of_threads(policy)
        failures, last = policy.failures, policy.last_failure
        if count := failures.raised + failures.invalid + failures.timed_out + failures.skipped:
            yield f"Policy {policy.name} failed {count} times, last for {last.pod}: {last.reason}."
        if policy.HasField("last_left_out"):
            last = policy.last_left_out
            what = f"{last.field} of {last.pod}" if last.field else last.pod
            yield f"A field of policy {policy.name} cannot be used, for {what}: {last.reason}."


def _problems_of_threads(policy: api_pb2.PolicyStatus) -> Iterator[str]:
    """Threads cannot be ended from outside; the process can, without a call lost."""
    if policy.hanging_threads > policy.replaced_threads and _is_not_replaced(policy):
        yield f"A thread hangs in policy {policy.name}; `koord-runtime-proxy upgrade` ends it."
    elif policy.hanging_threads > policy.replaced_threads:
        yield f"Policy {policy.name} hangs and is skipped; `koord-runtime-proxy upgrade` ends its thread."
    if count := policy.replaced_threads:
        threads = "1 thread hangs" if count == 1 else f"{count} threads hang"
        yield (
            f"{threads} in policy {policy.name} as it was before a reload, and may go on using a CPU; "
            "`koord-runtime-proxy upgrade` ends what hangs."
        )


def _problems_of_names(records: api_pb2.Records) -> Iterator[str]:
    yield from (f"Pod {each}." for each in records.misspelled_names)
    if len(records.misspelled_names) == MAX_NAMES:
        yield f"{records.misspelled_pods} pods have names that are probably misspelled."


def _problems_of_refused(records: api_pb2.Records) -> Iterator[str]:
    for each in records.refused:
        yield f"{each.pod}: the runtime does not tell its details: {each.reason}."
    if more := records.refused_records - len(records.refused):
        yield f"The runtime does not tell the details of {more} more pods and containers."


def _problems_of_starts(starts: api_pb2.StartsStatus) -> Iterator[str]:
    if starts.opening_problem:
        yield f"Bounds of classes cannot be moved for pods that start: {starts.opening_problem}."
    if starts.boost_problem:
        yield f"Start-up boosts are not applied: {starts.boost_problem}."


def _problems_of_values(ledger: api_pb2.LedgerStatus) -> Iterator[str]:
    for each in ledger.yielded:
        yield (
            f"{each.field} of {each.target or each.cgroup} is left to another program, which keeps writing "
            f"{each.theirs} in place of {each.ours}."
        )
    if ledger.failed_writes:
        last = ledger.failed_writes[0]
        yield (
            f"{ledger.counts.failed_writes} values could not be written, last {last.field} of "
            f"{last.target or last.cgroup}: {last.error}."
        )
    yield from _problems_of_starts(ledger.starts)
    if ledger.left:
        yield f"{len(ledger.left)} values are left as they are: {ledger.left[0].reason}."
    if ledger.journal_problem:
        yield _sentence(ledger.journal_problem)
    if ledger.change_problem:
        yield _sentence(ledger.change_problem)
    if ledger.hanging_files:
        yield f"{ledger.hanging_files} reads or writes of files hang."
    if ledger.allocation_problem:
        yield _sentence(ledger.allocation_problem)
    if ledger.occupied_pods:
        yield f"{ledger.occupied_pods} pods own CPUs that others have not left."
    yield from map(_sentence, ledger.sysctl_problems)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _problems_of_unapplied(ledger: api_pb2.LedgerStatus) -> Iterator[str]:
    """What has no line of its own: values that no kernel takes, and sysctls of other programs."""
    causes = unapplied_values.UnappliedCause
    for each in ledger.unapplied:
        if each.field.startswith((f"{SYSCTL}[", f"{KERNEL_SETTINGS}[")) and each.cause == causes.FOREIGN:
            yield f"{each.field} is not {each.wanted}: {each.reason}."
    if invalid := [each for each in ledger.unapplied if each.cause == causes.INVALID]:
        first = invalid[0]
        yield (
            f"{len(invalid)} values of what runs cannot be used, such as {first.field} of "
            f"{first.target or first.cgroup}: {first.reason}."
        )
