"""From counts to Prometheus' text."""

from __future__ import annotations

from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest

from runtimeproxy.cgroups.resctrl import CounterValue, GroupCounters
from runtimeproxy.counts import Histogram
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.frontends.cri_proxy.relay.counts import RelayCounts
from runtimeproxy.hooks import Hook, Mode
from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.counts import EntryKey, PolicyCounts
from runtimeproxy.pods.records import Book, Entry, Level, Original
from runtimeproxy.service.metrics.collector import (
    Sample,
    families,
    of_books,
    of_policies,
    of_relay,
    of_resctrl,
)
from runtimeproxy.service.metrics.table import METRICS
from tests.daemon.scraping import Metrics, parsed

CREATE = Hook.PRE_CREATE_CONTAINER


def written(*samples: Sample) -> Metrics:
    """The samples as a scrape has them."""

    class Found:
        def collect(self) -> object:
            return families(samples)

    registry = CollectorRegistry()
    registry.register(Found())  # type: ignore[arg-type]
    return parsed(generate_latest(registry).decode())


def test_every_metric_has_its_series_under_its_labels() -> None:
    samples = [
        Sample(name, Histogram((0.5, 1.0)) if each.kind == "histogram" else 3, each.labels)
        for name, each in METRICS.items()
    ]
    found = written(*samples)
    for name, each in METRICS.items():
        labels = {label: label for label in each.labels}
        if each.kind == "histogram":
            assert found.of(f"{name}_count", **labels) == 0
            assert (f"{name}_bucket", tuple(sorted({**labels, "le": "+Inf"}.items()))) in found
        else:
            assert found[name, tuple(sorted(labels.items()))] == 3


def test_names_follow_the_conventions() -> None:
    for name, each in METRICS.items():
        assert name.endswith("_total") is (each.kind == "counter"), name
        assert each.kind != "histogram" or name.endswith("_seconds"), name
        assert name == name.lower()


def test_buckets_of_a_histogram_are_sums() -> None:
    histogram = Histogram((0.5, 1.0))
    for value in (0.1, 0.2, 0.7, 9.0):
        histogram.observe(value)
    found = written(Sample("held_seconds", histogram, ("X",)))
    buckets = {le: found.of("held_seconds_bucket", method="X", le=le) for le in ("0.5", "1.0", "+Inf")}
    assert buckets == {"0.5": 2, "1.0": 3, "+Inf": 4}
    assert found.of("held_seconds_sum", method="X") == 10.0


def test_methods_that_were_never_called_have_no_series() -> None:
    counts = RelayCounts({"/a/X": "X", "/a/Y": "Y"})
    counts.of("/a/X").begun = 2
    counts.of("/a/X").refused[8] = 1
    counts.of("/a/X").ended[Outcome.FAILED] += 1
    counts.of("/else").begun = 5
    found = written(*of_relay(counts))
    assert {key[1]: value for key, value in found.items() if key[0] == "calls_total"} == {
        (("method", "X"),): 2,
        (("method", "other"),): 5,
    }
    assert found.of("refusals_total", method="X", code="RESOURCE_EXHAUSTED") == 1
    assert found.of("intercepted_calls_total", method="X", outcome="failed") == 1
    assert found.of("intercepted_calls_total", method="other") == 0


def test_audit_entries_are_counted_by_what_an_operator_asks_for() -> None:
    counts = PolicyCounts()
    for kind, hook, mode, field, number in (
        (AuditKind.CHANGED, CREATE, Mode.ENFORCE, "env", 2),
        (AuditKind.CHANGED, Hook.PRE_RUN_POD_SANDBOX, Mode.ENFORCE, "env", 3),
        (AuditKind.WOULD_CHANGE, CREATE, Mode.DRY_RUN, "env", 4),
        (AuditKind.CONFLICT, CREATE, Mode.ENFORCE, "env", 5),
        (AuditKind.LEFT_OUT, CREATE, Mode.ENFORCE, "cpu.shares", 6),
        (AuditKind.REFUSED, CREATE, Mode.ENFORCE, "", 7),
        (AuditKind.OFF, CREATE, Mode.ENFORCE, "", 8),
        (AuditKind.VOID, CREATE, Mode.ENFORCE, "cpu.shares", 9),
        (AuditKind.FAILED, CREATE, Mode.ENFORCE, "", 99),
    ):
        counts.entries[EntryKey(kind, "p", hook, mode, field)] = number
    found = written(*of_policies(counts))
    assert found.of("policy_changes_total", policy="p", field="env", mode="enforce") == 5
    assert found.of("policy_changes_total", policy="p", field="env", mode="dry-run") == 4
    assert found.of("policy_conflicts_total", policy="p", field="env") == 5
    assert found.of("policy_fields_left_out_total", policy="p", field="cpu.shares") == 6
    assert found.of("policy_refusals_total", policy="p", hook=CREATE) == 7
    assert found.of("policy_off_total", policy="p") == 8
    assert found.of("policy_void_claims_total", policy="p", field="cpu.shares") == 9
    assert 99 not in found.values()


def test_claims_are_counted_by_level_and_owner() -> None:
    claims = (Claim(Claimant("a"), Role.SET, 1), Claim(Claimant("b"), Role.ADD, 1))
    books = [
        Book("/p1", Level.POD, {"cpu.shares": Entry(claims)}, {"cpu.weight": Original(None)}),
        Book("/p2", Level.POD, {"cpu.shares": Entry(claims[:1])}, {"cpu.weight": Original("1\n")}),
    ]
    found = written(*of_books(books))
    assert found.of("ledger_claims", level="pod", owner="a") == 2
    assert found.of("ledger_claims", level="pod", owner="b") == 1
    assert (found.of("ledger_cgroups", level="pod"), found.of("ledger_cgroups", level="container")) == (2, 0)
    assert found.of("ledger_unknown_originals") == 1


def test_counters_that_the_kernel_does_not_show_are_missing_and_not_zero() -> None:
    counters = (
        CounterValue(0, "llc_occupancy", 4096),
        CounterValue(1, "llc_occupancy", None, "Unavailable"),
        CounterValue(0, "mbm_local_bytes", 7),
    )
    of_gone = GroupCounters("pod-gone", "BE", counters)
    assert list(of_resctrl([GroupCounters("pod-u", "BE", counters), of_gone], {"u": ("jobs", "spark")})) == [
        Sample("resctrl_llc_occupancy_bytes", 4096, ("jobs", "spark", "BE", "0")),
        Sample("resctrl_memory_bytes_total", 7, ("jobs", "spark", "BE", "0", "local")),
        Sample("resctrl_counters_missing", 1, ("llc_occupancy", "Unavailable")),
    ]
