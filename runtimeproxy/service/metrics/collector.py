"""Reads all numbers when metrics are asked for, and writes them in Prometheus' text formats.

Importing `prometheus_client` takes long, so this module is imported in a thread, and only if metrics are
served. Everything runs in a worker thread: what is read there are single numbers, frozen objects and copies
that the interpreter makes in one step.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder

from runtimeproxy import __version__
from runtimeproxy.cgroups.resctrl import LLC_OCCUPANCY
from runtimeproxy.counts import Histogram
from runtimeproxy.errors import StatusCode
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.counts import OTHER
from runtimeproxy.hooks.decision import unmet_on
from runtimeproxy.hooks.owners import BUILT_IN
from runtimeproxy.http2.server import EarlyEnd
from runtimeproxy.katalyst.transition import pool_sizes
from runtimeproxy.ledger.boost_rules import End, NoBoost
from runtimeproxy.ledger.openings import NotOpened
from runtimeproxy.ledger.pools import PoolCause
from runtimeproxy.logs import dropped_lines
from runtimeproxy.pods.records import Level
from runtimeproxy.service.metrics.table import METRICS, PREFIX
from runtimeproxy.service.qos_manager import State

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from runtimeproxy.cgroups.resctrl import GroupCounters
    from runtimeproxy.core.eviction import Evictor
    from runtimeproxy.core.policies import PolicySet
    from runtimeproxy.core.state import SavedState
    from runtimeproxy.frontends.cri_proxy.front_end import CriProxy
    from runtimeproxy.frontends.cri_proxy.relay.counts import RelayCounts
    from runtimeproxy.frontends.nri.state import NriState
    from runtimeproxy.hooks.counts import PolicyCounts
    from runtimeproxy.hooks.remote.server_state import Servers
    from runtimeproxy.kubernetes.source import KubernetesSource
    from runtimeproxy.ledger.leased import LeasedClaims
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.ledger.pools import NodePools
    from runtimeproxy.ledger.starts import PodStarts
    from runtimeproxy.ledger.upkeep import Upkeep
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.inventory import Inventory
    from runtimeproxy.pods.records import Book
    from runtimeproxy.pods.store import PodStore
    from runtimeproxy.service.parts import Parts
    from runtimeproxy.service.qos_manager import QosManagerWatch

_ENTRIES: Final = {
    AuditKind.CONFLICT: "policy_conflicts_total",
    AuditKind.LEFT_OUT: "policy_fields_left_out_total",
    AuditKind.VOID: "policy_void_claims_total",
}
"""Audit entries that are counted by policy and field."""

_MOST_POOLS: Final = 50
"""Pools with a time series of their own: authors of pods name them."""


class Sample(NamedTuple):
    """One time series at one moment."""

    name: str
    """In `METRICS`."""
    value: float | Histogram
    labels: tuple[str, ...] = ()
    """In the order of the metric's labels."""


Received: TypeAlias = tuple[int, int]
"""Bytes of all clients and of all upstreams, read in the loop's thread."""


class Exposition(NamedTuple):
    """The answer to one request."""

    content_type: str
    data: bytes


def exposition(parts: Parts, received: Received, accept: str = "") -> Exposition:
    """Reads everything, in a worker thread.

    Args:
        parts: the daemon's.
        received: bytes of all connections, which only the loop's thread can sum.
        accept: the request's header field, which chooses between Prometheus' text and OpenMetrics.
    """
    encode, content_type = choose_encoder(accept)
    return Exposition(content_type, encode(_Registry(samples(parts, received))))


class _Registry:
    """Stands for a registry: what is encoded once."""

    def __init__(self, found: Iterable[Sample]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        yield from families(self._found)
        # Memory, CPU time, open files and the start of this process.
        yield from ProcessCollector(registry=None).collect()


def families(found: Iterable[Sample]) -> Iterator[Metric]:
    """The samples as metrics, each with its text; those of one name together, in the order of the table."""
    by_name: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for sample in found:
        by_name[sample.name].append(sample)
    for name, described in METRICS.items():
        about = (PREFIX + name, described.text)
        if described.kind == "histogram":
            histogram = HistogramMetricFamily(*about, labels=described.labels)
            for each in by_name[name]:
                if isinstance(each.value, Histogram):
                    histogram.add_metric(each.labels, _buckets(each.value), each.value.total)
            yield histogram
            continue
        kind = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
        family = kind(*about, labels=described.labels)
        for each in by_name[name]:
            if not isinstance(each.value, Histogram):
                family.add_metric(each.labels, each.value)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [str(bound) for bound in histogram.bounds]
    return list(zip((*bounds, "+Inf"), accumulate(list(histogram.counts)), strict=True))


def samples(parts: Parts, received: Received) -> Iterator[Sample]:
    core = parts.core
    yield from _of_process(parts)
    if (proxy := parts.proxy) is not None:
        yield from _of_proxy(proxy, received)
    if parts.nri is not None:
        yield from of_nri(parts.nri)
    policies, audit, ledger = core.policies, core.audit, core.ledger
    yield from _of_loaded(policies, core.node)
    yield from of_policies(audit.counts)
    yield from _of_servers(policies.servers)
    yield from _of_ledger(ledger)
    yield from of_books(ledger.books)
    yield from _of_starts(core.starts)
    yield from _of_upkeep(core.upkeep, core.state)
    yield from _of_groups(core.state, core.store)
    yield from _of_claims(core.leased)
    yield from _of_qos_manager(parts.qos_manager)
    yield from _of_evictions(core.evictor)
    yield from _of_records(core.inventory, core.state)
    yield Sample("misspelled_pods", len(parts.pod_names.find()))
    yield from _of_node(core.node)


def _of_kubernetes(source: KubernetesSource) -> Iterator[Sample]:
    for watch in source.watches:
        # A kind that the server does not have is no trouble.
        is_up = watch.state in ("watching", "absent")
        yield Sample("kubernetes_watch_up", is_up, (watch.resource.kind,))
        yield Sample("kubernetes_lists_total", watch.lists, (watch.resource.kind,))
    if source.events is not None:
        yield Sample("kubernetes_events_total", source.events.sent, ("sent",))
        yield Sample("kubernetes_events_total", source.events.lost, ("lost",))
    if source.evictor is not None:
        for outcome, count in dict(source.evictor.outcomes).items():
            yield Sample("kubernetes_evictions_total", count, (outcome.value,))


def _of_process(parts: Parts) -> Iterator[Sample]:
    configuration, traces, bypass = parts.configuration, parts.traces, parts.bypass
    yield Sample("build_info", 1, (__version__, platform.python_version()))
    yield Sample("config_reload_successful", configuration.is_read)
    yield Sample("config_last_success_timestamp_seconds", configuration.read_s)
    yield Sample("event_loop_lag_seconds", parts.life.loop_lag)
    yield Sample("internal_errors_total", parts.front_end.internal_errors)
    yield Sample("log_lines_dropped_total", dropped_lines())
    yield Sample("audit_lines_total", parts.audit_file.written, ("written",))
    yield Sample("audit_lines_total", parts.audit_file.lost, ("lost",))
    if traces is not None:
        yield Sample("spans_total", traces.sent, ("sent",))
        yield Sample("spans_total", traces.lost, ("lost",))
    if parts.kubernetes is not None and parts.kubernetes.source is not None:
        yield from _of_kubernetes(parts.kubernetes.source)
    for end in EarlyEnd:
        yield Sample("own_calls_ended_total", parts.servers.budget.early_ends[end], (end,))
    cause = bypass.cause
    for each in ("breaker", "operator", "configuration"):
        yield Sample("bypass", each == cause, (each,))
    yield Sample("breaker_openings_total", bypass.openings)
    if parts.proxy is None:
        yield Sample("runtime_up", parts.runtime.away_since_s is None)


def of_nri(state: NriState) -> Iterator[Sample]:
    yield Sample("nri_connected", state.is_connected)
    yield Sample("nri_connections_lost_total", state.lost_connections)
    for event, count in state.late_replies.copy().items():
        yield Sample("nri_late_replies_total", count, (event,))
    yield Sample("nri_failed_creates_total", state.failed_creates)
    yield Sample("nri_undecided_containers_total", state.undecided_containers)
    yield Sample("nri_conflicts_total", state.conflict_count)
    yield Sample("nri_uncarried_fields", len(state.not_carried))


def _of_proxy(proxy: CriProxy, received: Received) -> Iterator[Sample]:
    yield from _of_calls(proxy)
    yield from of_relay(proxy.server.counts)
    yield Sample("connections", proxy.server.connection_count)
    for peer, number in zip(("client", "upstream"), received, strict=True):
        yield Sample("received_bytes_total", number, (peer,))
    yield Sample("upgrades_failed_total", proxy.upgrade.failures)
    yield Sample("runtime_up", not proxy.is_runtime_away)


def _of_calls(proxy: CriProxy) -> Iterator[Sample]:
    budget = proxy.server.budget
    yield Sample("held_bytes", budget.used_bytes)
    yield Sample("held_budget_bytes", budget.limit_bytes)
    for (kind, cause), number in proxy.problems.items():
        yield Sample("call_problems_total", number, (kind, cause))


def of_relay(counts: RelayCounts) -> Iterator[Sample]:
    """Calls and connections; methods that were never called are left out."""
    for method, each in counts.by_method.items():
        if each.begun:
            yield Sample("calls_total", each.begun, (method,))
        if not sum(each.held.counts) and not each.cancelled and not each.refused:
            continue
        refused = dict(each.refused)
        outcomes = {
            **{outcome.value: number for outcome, number in each.ended.items()},
            "cancelled": each.cancelled,
            "refused": sum(refused.values()),
        }
        for outcome, number in outcomes.items():
            yield Sample("intercepted_calls_total", number, (method, outcome))
        for code, number in refused.items():
            yield Sample("refusals_total", number, (method, StatusCode(code).name))
        yield Sample("held_seconds", each.held, (method,))
    yield Sample("calls_without_upstream_total", counts.without_upstream)
    yield Sample("connections_total", counts.accepted)
    for cause in ("user", "process", "connections", "descriptors", "credentials"):
        yield Sample("connections_refused_total", counts.refused[cause], (cause,))
    for cause in ("protocol_error", "no_call", "no_room", "upstream_away", "internal_error"):
        yield Sample("connections_ended_total", counts.ended[cause], (cause,))
    for upstream, waits in dict(counts.waits).items():
        yield Sample("upstream_wait_seconds", waits, (upstream,))
        yield Sample("upstream_failures_total", counts.upstream_failures[upstream], (upstream,))


def _of_loaded(policies: PolicySet, sources: NodeSources) -> Iterator[Sample]:
    node, loaded = sources.latest, policies.loaded
    for policy in loaded.policies:
        unmet = unmet_on(policy, node)
        state = str(policy.mode) if unmet is None else "off" if unmet.is_off else "in_part"
        yield Sample("policy_state", 1, (policy.name, state))
    for problem in loaded.problems:
        if not problem.is_kept:
            yield Sample("policy_state", 1, (problem.name, "not_loaded"))
    yield Sample("policies_with_new_code", len(loaded.changed_code))
    yield Sample("policy_threads", policies.workers.threads)
    hung: Counter[str] = Counter()
    for each in tuple(policies.workers.hanging.values()):
        hung[each.policy.name] += each.threads
    hung.update(each.name for each in policies.loader.late)
    for name, number in hung.items():
        yield Sample("policy_hung_threads", number, (name,))


def of_policies(counts: PolicyCounts) -> Iterator[Sample]:
    """Runs, failures and changes, by policy."""
    for (policy, hook), durations in dict(counts.durations).items():
        yield Sample("policy_duration_seconds", durations, (policy, hook))
    for (policy, hook, cause), number in dict(counts.failures).items():
        yield Sample("policy_failures_total", number, (policy, hook, cause))
    sums: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for key, number in dict(counts.entries).items():
        if key.kind in (AuditKind.CHANGED, AuditKind.WOULD_CHANGE):
            sums["policy_changes_total", (key.policy, key.field, key.mode)] += number
        elif key.kind in _ENTRIES:
            sums[_ENTRIES[key.kind], (key.policy, key.field)] += number
        elif key.kind is AuditKind.REFUSED:
            sums["policy_refusals_total", (key.policy, key.hook)] += number
        elif key.kind is AuditKind.OFF:
            sums["policy_off_total", (key.policy,)] += number
    for (name, labels), number in sums.items():
        yield Sample(name, number, labels)


def _of_servers(servers: Servers) -> Iterator[Sample]:
    for name, server in servers.servers.items():
        yield Sample("hook_server_skipped", bool(server.trouble), (name,))
        yield Sample("hook_server_breaker_openings_total", server.openings, (name,))
    yield Sample("hook_server_registration_problems_total", servers.problems)


def _of_ledger(ledger: Ledger) -> Iterator[Sample]:
    counts = ledger.counts
    writes: Counter[tuple[str, str]] = Counter()
    for (name, outcome), number in counts.writes.read().items():
        writes[name if name in PARAMETERS else OTHER, outcome] += number
    for labels, number in writes.items():
        yield Sample("cgroup_writes_total", number, labels)
    for (level, cause), number in counts.repairs.read().items():
        yield Sample("ledger_repairs_total", number, (level_label(level), cause))
    for name, number in counts.overwrites.read().items():
        yield Sample("ledger_overwrites_total", number, (name,))
    for reason, number in counts.left.read().items():
        yield Sample("ledger_left_alone_total", number, (reason,))
    for name, by_level in (
        ("ledger_given_back_total", counts.given_back),
        ("ledger_renewed_cgroups_total", counts.renewed),
        ("ledger_limits_above_usage_total", counts.above_usage),
    ):
        for level, number in by_level.read().items():
            yield Sample(name, number, (level_label(level),))
    yield Sample("ledger_recovered_cgroups_total", counts.recovered)
    yield Sample("ledger_yielded_values", len(ledger.yielded()))
    yield Sample("ledger_observed_parameters", len(ledger.books.observed))
    unapplied = Counter(each.cause for each in ledger.books.unapplied.values())
    for cause, number in unapplied.items():
        yield Sample("ledger_unapplied_values", number, (cause,))


def _of_starts(starts: PodStarts) -> Iterator[Sample]:
    openings, boosts = starts.openings.rules, starts.boosts.rules
    yield Sample("class_openings", len(openings.open_until_s()))
    yield Sample("class_openings_total", openings.opened)
    for not_opened in NotOpened:
        yield Sample("class_openings_missed_total", openings.not_opened[not_opened], (not_opened,))
    active = tuple(boosts.active.values())
    yield Sample("startup_boosts", sum(each.given_us > 0 for each in active))
    yield Sample("startup_boost_cores", sum(each.cpus for each in active))
    yield Sample("startup_boosts_total", boosts.given)
    for no_boost in NoBoost:
        waiting = sum(each.waits is no_boost for each in active)
        yield Sample("startup_boosts_waiting", waiting, (no_boost,))
        yield Sample("startup_boosts_missed_total", boosts.denied[no_boost], (no_boost,))
    for end in End:
        yield Sample("startup_boosts_ended_total", boosts.ended[end], (end,))


def of_books(books: Iterable[Book]) -> Iterator[Sample]:
    """The cgroups with values of ours, and the claims on them."""
    cgroups: Counter[str] = Counter()
    claims: Counter[tuple[str, str]] = Counter()
    unknown = 0
    for book in books:
        level = level_label(book.level)
        cgroups[level] += 1
        unknown += sum(original.text is None for original in book.originals.values())
        for entry in book.entries.values():
            for claim in entry.claims:
                claims[level, str(claim.owner)] += 1
    for level in map(level_label, Level):
        yield Sample("ledger_cgroups", cgroups[level], (level,))
    for labels, number in claims.items():
        yield Sample("ledger_claims", number, labels)
    yield Sample("ledger_unknown_originals", unknown)


def level_label(level: Level) -> str:
    return level.name.lower()


def _of_upkeep(upkeep: Upkeep, saved: SavedState) -> Iterator[Sample]:
    allocations, sysctls = saved.allocations, saved.sysctls
    yield Sample("ledger_evaluations_total", upkeep.evaluator.rounds)
    yield Sample("ledger_change_ended", bool(upkeep.evaluator.changes.problem))
    yield Sample("ledger_unevaluated_pods", len(upkeep.evaluator.unevaluated.reasons))
    yield Sample("cpu_mode_blocked", bool(upkeep.mode_problem))
    yield Sample("ledger_hung_files", upkeep.hung)
    if sysctls is not None:
        for (name, is_written), number in sysctls.writes.read().items():
            # The path of the file in which they are saved is not used as a label.
            label = OTHER if "/" in name else name
            yield Sample("sysctl_writes_total", number, (label, "written" if is_written else "failed"))
    if (network := upkeep.network) is not None:
        yield Sample("network_pods", network.pods)
        yield Sample("network_pods_left_out", len(network.left_out))
        for labels, number in network.tools.runs.read().items():
            yield Sample("network_changes_total", number, labels)
    if allocations is not None:
        yield Sample("cpu_owners", allocations.owners)
        yield Sample("cpu_owners_occupied", allocations.occupied)
        yield Sample("cpu_owners_unsaved", not allocations.is_saved)
    if saved.pools.is_wanted:
        yield from _of_pools(saved.pools)


def _of_pools(pools: NodePools) -> Iterator[Sample]:
    state = pools.state
    yield Sample("cpu_pools_off", not pools.is_on)
    yield Sample("cpu_pools_unsaved", bool(pools.problem))
    yield Sample("cpu_pools_unwritten_pods", pools.unwritten)
    yield Sample("cpu_pools_overlaps", len(pools.overlaps))
    for cause in PoolCause:
        yield Sample("cpu_pools_refusals_total", pools.counts[cause], (cause,))
    if state is None:
        return
    yield Sample("cpu_pools_unplaced_pods", sum(bool(pod.problem) for pod in state.pods.values()))
    yield Sample("cpu_pools_advised", bool(pools.advice.pools))
    for name, advice in sorted(pools.advice.pools.items())[:_MOST_POOLS]:
        if advice.required_cpus is not None:
            yield Sample("cpu_pool_required_cpus", advice.required_cpus, (name,))
        if advice.headroom_millicpu is not None:
            yield Sample("cpu_pool_headroom_cores", advice.headroom_millicpu / 1_000, (name,))
        if advice.headroom_bytes is not None:
            yield Sample("cpu_pool_headroom_bytes", advice.headroom_bytes, (name,))
    sizes = {OTHER: [0, 0]}
    for number, (name, cpus, pods) in enumerate(pool_sizes(state)):
        # Pods name pools: their number has a bound here.
        size = sizes.setdefault(name if number < _MOST_POOLS else OTHER, [0, 0])
        size[0] += len(cpus)
        size[1] += pods
    for name, (count, pods) in sizes.items():
        yield Sample("cpu_pool_cpus", count, (name,))
        yield Sample("cpu_pool_pods", pods, (name,))


def _of_groups(state: SavedState, store: PodStore) -> Iterator[Sample]:
    if state.sysctls is not None:
        names = {pod.uid: (pod.namespace, pod.name) for pod in tuple(store.pods)}
        yield from of_resctrl(state.sysctls.groups.counters(), names)


def of_resctrl(found: Iterable[GroupCounters], names: Mapping[str, tuple[str, str]]) -> Iterator[Sample]:
    """The counters of pods. `names`: namespace and name of pods by uid; others are left out."""
    missing: Counter[tuple[str, str]] = Counter()
    for pod in found:
        if (named := names.get(pod.uid)) is None:
            continue
        for each in pod.counters:
            labels = (*named, pod.group, str(each.cache))
            if each.value is None:
                missing[each.name, each.problem] += 1
            elif each.name == LLC_OCCUPANCY:
                yield Sample("resctrl_llc_occupancy_bytes", each.value, labels)
            else:
                scope = each.name.removeprefix("mbm_").removesuffix("_bytes")
                yield Sample("resctrl_memory_bytes_total", each.value, (*labels, scope))
    for counter, number in missing.items():
        yield Sample("resctrl_counters_missing", number, counter)


def _of_claims(leased: LeasedClaims) -> Iterator[Sample]:
    for name, owned in tuple(leased.owners.items()):
        yield Sample("claims", len(owned.claims), (name,))
        yield Sample("claim_lease_state", 1, (name, owned.phase))
        yield Sample("claim_lapses_total", owned.lapses, (name,))
        for answer, number in owned.requests.read().items():
            yield Sample("claim_requests_total", number, (name, answer))
        for cause, number in owned.refusals.read().items():
            yield Sample("claims_refused_total", number, (name, cause))


def _of_evictions(evictor: Evictor) -> Iterator[Sample]:
    for labels, number in evictor.counts.read().items():
        yield Sample("evictions_total", number, labels)
    yield Sample("evictions_unsaved", bool(evictor.history.problem))


def _of_qos_manager(watch: QosManagerWatch) -> Iterator[Sample]:
    yield Sample("qos_manager_up", watch.is_heard)
    report = watch.report if watch.is_heard else None
    yield Sample("qos_metrics_fallback", report is not None and bool(report.metrics_problem))
    found, failing = watch.last, {each.name for each in watch.failing()}
    missing = found.missing if found.state is State.MISSING else ()
    for name in sorted({*BUILT_IN, *missing, *failing}):
        yield Sample("qos_plugin_missing", name in missing, (name,))
        yield Sample("qos_plugin_failing", name in failing, (name,))


def _of_records(inventory: Inventory, saved: SavedState) -> Iterator[Sample]:
    store, checkpoint = inventory.store, saved.checkpoint
    yield Sample("records", len(store.pods), ("pod",))
    yield Sample("records", len(store.containers), ("container",))
    yield Sample("records_bytes", store.kept_bytes)
    yield Sample("records_trimmed", store.trimmed)
    yield Sample("records_recovered", inventory.recovered.is_set())
    yield Sample("checkpoint_unsaved", bool(checkpoint.writer.problem))
    yield Sample("checkpoint_set_aside_total", checkpoint.writer.set_aside + checkpoint.writer.lost)
    yield Sample("state_unusable", checkpoint.unreadable + len(saved.unusable_files))
    yield Sample("journal_unwritten", bool(saved.journal.problem))


def _of_node(node: NodeSources) -> Iterator[Sample]:
    for name, state in node.latest.states.items():
        yield Sample("node_input_state", 1, (name, state))
    yield Sample("node_problems", len(node.problems))
    yield Sample("node_polled", bool(node.polling_reason))
    if node.looked_s is not None:
        yield Sample("node_look_age_seconds", time.monotonic() - node.looked_s)
