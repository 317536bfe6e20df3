"""What policies do, counted."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks import ContainerView, Hook, Mode, PodView
from runtimeproxy.hooks.audit import AuditKind, PolicyRun, Subject
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.counts import MAX_LEFT_OUT, EntryKey, LeftOutFields, PolicyCounts, field_label
from runtimeproxy.hooks.workers import Workers
from tests.hooks.asking import decide, until
from tests.hooks.policy_classes import nothing, raising, scripted, shares

CREATE = Hook.PRE_CREATE_CONTAINER


@pytest.mark.parametrize(
    ("field", "label"),
    [
        ("resources.cpu_shares", "resources.cpu_shares"),
        ("resources.unified[memory.high]", "resources.unified"),
        ("cgroup[cpu.cfs_burst_us]", "cpu.cfs_burst_us"),
        ("cgroup[my.file]", "other"),
        ("cgroups[/host/nginx/cpu.bvt_warp_ns]", "cpu.bvt_warp_ns"),
        ("cgroups[/host/nginx/x]", "other"),
        ("sysctl[kernel.sched_core]", "sysctl"),
        ("labels[pod-chosen]", "labels"),
        ("annotations[a\nb]", "annotations"),
        ("env[TOKEN]", "env"),
        ("mounts[/x]", "mounts"),
        ("cgroup_parent", "cgroup_parent"),
        ("", ""),
        ("resources.nonsense", "other"),
        ("whatever[a]", "other"),
        ("labels[cut...", "other"),
    ],
)
def test_a_fields_label_has_no_key_that_pods_choose(field: str, label: str) -> None:
    assert field_label(field) == label


async def test_runs_changes_and_failures_are_counted_by_policy(workers: Workers) -> None:
    counts = PolicyCounts()
    policies = [scripted("a", shares(100)), scripted("b", nothing), scripted("c", raising)]
    chain = Chain(policies, workers, counts=counts, sink=counts.count_entry)
    await decide(chain)
    await decide(chain)
    await until(lambda: len(counts.durations) == 3 and sum(counts.entries.values()) == 4)
    assert {key: sum(each.counts) for key, each in counts.durations.items()} == {
        ("a", CREATE): 2,
        ("b", CREATE): 2,
        ("c", CREATE): 2,
    }
    assert counts.failures == {("c", CREATE, "failed"): 2}
    assert counts.entries == {
        EntryKey(AuditKind.CHANGED, "a", CREATE, Mode.ENFORCE, "resources.cpu_shares"): 2,
        EntryKey(AuditKind.FAILED, "c", CREATE, Mode.ENFORCE, ""): 2,
    }


async def test_policies_for_which_no_time_is_left_are_skipped(workers: Workers) -> None:
    chain = Chain([scripted("a", nothing)], workers)
    await decide(chain, budget_s=0)
    assert chain.counts.failures == {("a", CREATE, "skipped"): 1}
    assert not chain.counts.durations


def test_a_field_that_cannot_be_used_is_one_until_the_policy_answers_without_it() -> None:
    counts = LeftOutFields()

    def decide(hook: Hook, *kinds: AuditKind, uid: str = "u1", field: str = "env[A]") -> None:
        subject = Subject(hook, ContainerView(name="main", pod=PodView(uid=uid)), time_s=1.0)
        entries = [subject.entry(kind, "p", "bad")._replace(field=field) for kind in kinds]
        counts.on_decision(subject, [PolicyRun("p", 0.0, 0.0)], entries)

    def last() -> str | None:
        found = counts.last("p", {"u1"})
        return found.field if found is not None else None

    decide(Hook.PRE_CREATE_CONTAINER, AuditKind.LEFT_OUT, uid="u2")
    assert last() is None  # no pod that is there
    decide(Hook.PRE_CREATE_CONTAINER, AuditKind.LEFT_OUT)
    assert last() == "env[A]"
    # An update has no environment, and a policy that fails says nothing.
    decide(Hook.PRE_UPDATE_CONTAINER_RESOURCES)
    decide(Hook.EVALUATE_CONTAINER, AuditKind.FAILED, field="")
    assert last() == "env[A]"
    decide(Hook.EVALUATE_CONTAINER, AuditKind.CHANGED)
    assert last() is None
    decide(Hook.PRE_UPDATE_CONTAINER_RESOURCES, AuditKind.LEFT_OUT, field="resources.cpu_shares")
    decide(Hook.PRE_UPDATE_CONTAINER_RESOURCES)
    assert last() is None
    for number in range(MAX_LEFT_OUT + 1):
        decide(Hook.PRE_CREATE_CONTAINER, AuditKind.LEFT_OUT, uid=f"v{number}")
    assert counts.last("p", {"v0"}) is None
    assert counts.last("p", {f"v{MAX_LEFT_OUT}"}) is not None
