"""Every metric: its kind, its labels and what it says. `systemd/monitoring/README.md` has the same table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

PREFIX: Final = "koord_runtimeproxy_"


class Described(NamedTuple):
    """A metric."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str


def _counter(text: str, *labels: str) -> Described:
    return Described("counter", labels, text)


def _gauge(text: str, *labels: str) -> Described:
    return Described("gauge", labels, text)


def _histogram(text: str, *labels: str) -> Described:
    return Described("histogram", labels, text)


_RESCTRL: Final = ("namespace", "pod", "group", "cache")

_TABLE = {
    # The process
    "build_info": _gauge("Always 1", "version", "python"),
    "config_reload_successful": _gauge("1 if the last reading of the configuration succeeded"),
    "config_last_success_timestamp_seconds": _gauge("When the configuration was last read with success"),
    "event_loop_lag_seconds": _histogram("How late the event loop wakes up; measured every second"),
    "internal_errors_total": _counter("Errors in the proxy's own code"),
    "log_lines_dropped_total": _counter("Lines of the log that were lost: its reader is too slow"),
    "audit_lines_total": _counter("Lines of `audit.file`: `written`, `lost`", "outcome"),
    "spans_total": _counter("Spans for `tracing.endpoint`: `sent`, `lost`", "outcome"),
    "kubernetes_watch_up": _gauge(
        "1 while the watch of a kind of objects is up to date; only with `kubernetes.enabled`", "kind"
    ),
    "kubernetes_lists_total": _counter("How many times all objects of a kind were read", "kind"),
    "kubernetes_events_total": _counter("Reports of Events for the API server: `sent`, `lost`", "outcome"),
    "kubernetes_evictions_total": _counter(
        "Evictions by the API server: `evicted`, `blocked` (by a disruption budget), `gone`, `refused`,"
        " `failed`",
        "outcome",
    ),
    "upgrades_failed_total": _counter("Upgrades whose successor did not come up, or ended at once"),
    # Calls
    "calls_total": _counter("Calls of clients, intercepted ones included", "method"),
    "calls_without_upstream_total": _counter("Calls that ended with UNAVAILABLE as the runtime stayed away"),
    "intercepted_calls_total": _counter(
        "Intercepted calls that have ended: `succeeded`, `failed` (in the runtime), `unknown` (its"
        " answer was not seen), `cancelled` (before the runtime had it), `refused` (by the proxy)",
        "method",
        "outcome",
    ),
    "refusals_total": _counter("Intercepted calls that the proxy refused, by gRPC status", "method", "code"),
    "held_seconds": _histogram(
        "How long intercepted calls were held, from their whole message to the decision",
        "method",
    ),
    "call_problems_total": _counter(
        "Intercepted calls that could not be decided on, or not with all that belongs to it:"
        " `not_loaded`, `not_in_time`, `unreadable`, `too_large`, `internal_error`, `cpus_not_left`,"
        " `no_memory`",
        "method",
        "cause",
    ),
    "held_bytes": _gauge("Memory for messages of intercepted calls"),
    "held_budget_bytes": _gauge("The most of it (`proxy.held_budget_bytes`)"),
    "bypass": _gauge(
        "1 while all calls pass without policies: `breaker`, `operator`, `configuration`",
        "cause",
    ),
    "breaker_openings_total": _counter("How often the daemon's own breaker has opened the bypass"),
    # Connections
    "connections": _gauge("Clients that are connected"),
    "connections_total": _counter("Clients that were accepted"),
    "connections_refused_total": _counter(
        "Clients that were refused: `user`, `process`, `connections`, `descriptors`, `credentials`",
        "cause",
    ),
    "connections_ended_total": _counter(
        "Clients whose connection the proxy ended: `protocol_error`, `no_call`, `no_room`,"
        " `upstream_away`, `internal_error`",
        "cause",
    ),
    "own_calls_ended_total": _counter(
        "Calls of the daemon's own services that were ended before they were answered: `made_room` (for"
        " others), `no_room`, `request_late`, `response_unread`",
        "cause",
    ),
    "received_bytes_total": _counter("Bytes of HTTP/2 read from `client` and `upstream`", "peer"),
    "runtime_up": _gauge("0 while the runtime was lost and does not answer"),
    "nri_connected": _gauge("1 while the runtime asks the daemon as its plugin; only in mode `nri`"),
    "nri_connections_lost_total": _counter("Connections with the runtime's NRI that have ended"),
    "nri_late_replies_total": _counter(
        "Replies without a decision, as policies were not ready in time; their values go by file", "event"
    ),
    "nri_failed_creates_total": _counter("Containers that the runtime has not created after the reply"),
    "nri_undecided_containers_total": _counter(
        "Containers that were created without a decision: while the plugin was away, or with a late reply"
    ),
    "nri_conflicts_total": _counter("Fields that other plugins own, or that validators have rejected"),
    "nri_uncarried_fields": _gauge("Fields of replies that this runtime drops without a word"),
    "upstream_wait_seconds": _histogram(
        "How long new connections waited for the runtime, the image service or the daemon's own server",
        "upstream",
    ),
    "upstream_failures_total": _counter("Connections whose upstream stayed away", "upstream"),
    # Policies and hook servers
    "policy_state": _gauge(
        "1 for the state of each policy: `enforce`, `dry-run`, `off` (an input or a kernel feature is"
        " missing), `in_part`, `not_loaded`",
        "policy",
        "state",
    ),
    "policies_with_new_code": _gauge("Policies whose installed code is not the one in use"),
    "policy_duration_seconds": _histogram("How long policies and hook servers took", "policy", "hook"),
    "policy_failures_total": _counter(
        "Runs without an answer: `failed`, `invalid`, `timed_out`, `skipped`",
        "policy",
        "hook",
        "cause",
    ),
    "policy_hung_threads": _gauge(
        "Threads that hang in a policy, which is skipped or not loaded, or in what a reload has replaced",
        "policy",
    ),
    "policy_threads": _gauge("Threads that run policies, hung ones included"),
    "policy_changes_total": _counter(
        "Fields that policies changed in calls; `dry-run` for those that they would have changed",
        "policy",
        "field",
        "mode",
    ),
    "policy_conflicts_total": _counter("Fields that another policy set to another value", "policy", "field"),
    "policy_fields_left_out_total": _counter(
        "Fields of answers that runtime, kernel or node do not take",
        "policy",
        "field",
    ),
    "policy_void_claims_total": _counter("Claims without effect, or without the whole", "policy", "field"),
    "policy_refusals_total": _counter("Pods and containers that policies refused", "policy", "hook"),
    "policy_off_total": _counter("Pods for which a policy was off: an input was not known", "policy"),
    "hook_server_skipped": _gauge("1 while a hook server is skipped because it failed", "server"),
    "hook_server_breaker_openings_total": _counter("How often that began", "server"),
    "hook_server_registration_problems_total": _counter("Problems found in registration files"),
    # Values of what runs
    "ledger_cgroups": _gauge("Cgroups with values of ours", "level"),
    "ledger_claims": _gauge("Values that policies want there", "level", "owner"),
    "cgroup_writes_total": _counter(
        "Values for cgroup files: `written`, `unchanged`, `missing` (no such file), `invalid`,"
        " `refused`, `failed`",
        "parameter",
        "outcome",
    ),
    "sysctl_writes_total": _counter(
        "Values for sysctls and other settings of the kernel: `written`, `failed`", "sysctl", "outcome"
    ),
    "network_pods": _gauge("Pods that have a class of the link by `network-qos`"),
    "network_pods_left_out": _gauge("Pods that are to have one, and have not: see the status"),
    "network_changes_total": _counter(
        "Changes of the network, one process each, by program: `done`, `failed`", "program", "outcome"
    ),
    "ledger_repairs_total": _counter(
        "Values that were set again: found after an `event`, or by a `comparison`",
        "level",
        "found_by",
    ),
    "ledger_overwrites_total": _counter("Values of other programs that were found", "parameter"),
    "claims": _gauge("Claims with a lease that are taken, by owner", "owner"),
    "claim_lease_state": _gauge(
        "1 for the state of each owner's lease: `none`, `leased`, `held` (it has ended), `restored` (after a"
        " restart)",
        "owner",
        "state",
    ),
    "claim_requests_total": _counter(
        "Requests of owners: `taken`, `send-whole-set`, `taken-over`", "owner", "outcome"
    ),
    "claims_refused_total": _counter(
        "Claims that were refused: `not-allowed`, `unknown-target`, `invalid`, `too-many`",
        "owner",
        "cause",
    ),
    "claim_lapses_total": _counter("Leases that ended as no request renewed them", "owner"),
    "qos_manager_up": _gauge("1 while a QoS manager reports"),
    "qos_metrics_fallback": _gauge(
        "1 while a QoS manager reads from the kernel's files what Malachite is to give"
    ),
    "qos_plugin_missing": _gauge(
        "1 for each plugin of the QoS manager that strategies or modes ask for and nothing runs, unless"
        " koordlet does it, or `qosmanager.mode` is `none`",
        "plugin",
    ),
    "qos_plugin_failing": _gauge(
        "1 for each wanted plugin of a running QoS manager that cannot do its work", "plugin"
    ),
    "evictions_total": _counter(
        "Evictions that owners asked for: `evicted`, `dry-run`, `refused`, `failed`, `nothing-to-stop`",
        "owner",
        "outcome",
    ),
    "evictions_unsaved": _gauge("1 while evictions cannot be saved: their bounds end with the process"),
    "ledger_yielded_values": _gauge("Values that are left to other programs for a time"),
    "ledger_unapplied_values": _gauge(
        "Values of what runs that are wanted and not applied: `lower-limit`, `in-use`, `turn`, `next-start`,"
        " `not-in-mode`, `conflict`, `cpu-mode`, `kubelet`, `koordlet`, `once`, `no-file`, `no-cgroup`,"
        " `cgroup-unknown`, `base-unknown`, `foreign`, `invalid`, `refused`, `unreadable`, `hangs`,"
        " `change-ended`; `status` has each with the reason",
        "cause",
    ),
    "class_openings": _gauge("Pods that lift the bound of the best-effort class while they start"),
    "class_openings_total": _counter("Pods that have lifted it"),
    "class_openings_missed_total": _counter(
        "Pods that started below a bound without: `at-once`, `rate`", "cause"
    ),
    "startup_boosts": _gauge("Containers with a start-up boost"),
    "startup_boosts_waiting": _gauge(
        "Containers that wait for one: `no-room`, `unknown-idle`, `often`, `pressure`", "cause"
    ),
    "startup_boost_cores": _gauge("CPU that all start-up boosts add together"),
    "startup_boosts_total": _counter("Start-up boosts that were given"),
    "startup_boosts_ended_total": _counter(
        "Those that have ended: `ready`, `quiet`, `time`, `pressure`, `gone`, `withdrawn`", "cause"
    ),
    "startup_boosts_missed_total": _counter(
        "Containers that never had theirs: `often`, `no-room`, `unknown-idle`, `pressure`", "cause"
    ),
    "ledger_observed_parameters": _gauge("Parameters that koordlet writes, and that are only observed"),
    "ledger_left_alone_total": _counter(
        "Attempts at values that are left alone: `changed_since`, `unknown_original`, `unknown_base`,"
        " `not_in_range`",
        "reason",
    ),
    "ledger_unknown_originals": _gauge("Files with a value of ours whose original text is not known"),
    "ledger_given_back_total": _counter("Values that were given back", "level"),
    "ledger_renewed_cgroups_total": _counter("Cgroups that were made anew under their name", "level"),
    "ledger_limits_above_usage_total": _counter("Memory limits that could not fall at once", "level"),
    "ledger_evaluations_total": _counter("Evaluations of all running pods"),
    "ledger_change_ended": _gauge("1 after a large change that ended because of too many failures"),
    "ledger_unevaluated_pods": _gauge("Pods that cannot be evaluated, while others are"),
    "cpu_mode_blocked": _gauge("1 while the node cannot be brought to another CPU mode"),
    "ledger_hung_files": _gauge("Reads and writes of cgroup files that hang"),
    "ledger_recovered_cgroups_total": _counter("Cgroups known from the journal of a killed process"),
    "resctrl_llc_occupancy_bytes": _gauge(
        "Bytes of a pod in the last-level cache, by the group of its tasks and the id of the cache",
        *_RESCTRL,
    ),
    "resctrl_memory_bytes_total": _counter(
        "Bytes of a pod between a last-level cache and memory: `total`, `local` (of the same NUMA node)",
        *_RESCTRL,
        "scope",
    ),
    "resctrl_counters_missing": _gauge(
        "Counters of pods that the kernel does not show, such as `Unavailable`, `Error`", "counter", "reason"
    ),
    "cpu_owners": _gauge('Pods that own CPUs (`node.shared_pools = "computed"`)'),
    "cpu_owners_occupied": _gauge("Pods whose CPUs others have not left"),
    "cpu_owners_unsaved": _gauge("1 while the allocations of CPUs cannot be saved"),
    "cpu_pool_cpus": _gauge("CPUs of each of Katalyst's pools; `dedicated`: what pods have alone", "pool"),
    "cpu_pool_pods": _gauge("Pods in each of Katalyst's pools", "pool"),
    "cpu_pool_required_cpus": _gauge("CPUs that a pool of `shared_cores` needs by an advisor", "pool"),
    "cpu_pool_headroom_cores": _gauge("CPU that pods of `reclaimed_cores` can use by an advisor", "pool"),
    "cpu_pool_headroom_bytes": _gauge("Memory that pods of `reclaimed_cores` can use by an advisor", "pool"),
    "cpu_pools_advised": _gauge("1 while an advisor's claims count, 0 while sizes follow from requests"),
    "cpu_pools_off": _gauge("1 while there are no pools although the policy katalyst-pools is loaded"),
    "cpu_pools_unsaved": _gauge("1 while Katalyst's pools cannot be saved"),
    "cpu_pools_unwritten_pods": _gauge("Pods whose CPUs are not those of Katalyst's pools yet"),
    "cpu_pools_unplaced_pods": _gauge("Pods that have not what they asked Katalyst's pools for"),
    "cpu_pools_overlaps": _gauge("Pairs of pods one of which has not left what the other one has alone"),
    "cpu_pools_refusals_total": _counter(
        "Calls that Katalyst's pools refused, or that went on without what they need: `invalid`, `no_room`, "
        "`resize`, `not_ready`, `went_on`",
        "cause",
    ),
    # Records and the disk
    "records": _gauge("Pods and containers that are known: `pod`, `container`", "kind"),
    "records_bytes": _gauge("Memory of labels, annotations and other texts in records; at most 64 MiB"),
    "records_trimmed": _gauge("Records that lack labels or annotations for want of this memory"),
    "misspelled_pods": _gauge(
        "Pods with a label, an annotation or a field of one whose name is probably misspelled"
    ),
    "records_recovered": _gauge("1 once the records are those of the runtime"),
    "checkpoint_unsaved": _gauge("1 while records cannot be saved"),
    "checkpoint_set_aside_total": _counter(
        "Checkpoints that were damaged, foreign or newer, or that another program removed"
    ),
    "state_unusable": _gauge("Rows of the checkpoint and files of `state.dir` that could not be used"),
    "journal_unwritten": _gauge("1 while originals cannot be saved before values are written"),
    # The node
    "node_input_state": _gauge(
        "1 for the state of each input: `known`, `unknown`, `withdrawn`",
        "input",
        "state",
    ),
    "node_problems": _gauge("Problems in Kubernetes objects, strategies and the kubelet's files"),
    "node_polled": _gauge("1 while files are polled, as the kernel reports no changes of them"),
    "node_look_age_seconds": _gauge("Time since the inputs were last looked at"),
}

METRICS: Final[Mapping[str, Described]] = MappingProxyType(_TABLE)
"""By name, without `PREFIX`."""
