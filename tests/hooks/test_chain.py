"""The chain of policies: order, merging, failures, dry-run, effects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal

import pytest

from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import (
    AtMost,
    ContainerChange,
    ContainerView,
    FailurePolicy,
    Hook,
    Mode,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
)
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.settings import ConflictRule, PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import FixedNode, Node
from tests.hooks.asking import VIEW, container_change, decide, kinds, shares_of, until
from tests.hooks.policy_classes import cgroup, nothing, raising, scripted, shares

FAIL = FailurePolicy.FAIL


async def test_policies_see_requested_values_only(workers: Workers) -> None:
    seen: list[int | None] = []

    def watcher(container: ContainerView) -> None:
        seen.extend((container.requested.cpu_shares, container.current.cpu_shares))

    chain = Chain([scripted("a", shares(100)), scripted("b", watcher), scripted("c", nothing)], workers)
    decision = await decide(chain)
    assert seen == [None, None]
    assert shares_of(decision) == 100
    assert decision.owners == {"resources.cpu_shares": (Claimant("a"),)}
    assert isinstance(decision.view, ContainerView)
    assert decision.view.current.cpu_shares == 100


async def test_a_call_that_no_policy_changes_has_no_change(workers: Workers) -> None:
    decision = await decide(Chain([scripted("a", nothing)], workers))
    assert decision == Decision(hook=Hook.PRE_CREATE_CONTAINER, merged=Merged(VIEW))
    assert decision.view is VIEW


async def test_a_hook_that_no_policy_wants_starts_no_thread(workers: Workers) -> None:
    chain = Chain([scripted("a", nothing)], workers)
    assert Hook.PRE_CREATE_CONTAINER in chain.hooks
    assert Hook.PRE_RUN_POD_SANDBOX not in chain.hooks
    assert not chain.policies_for(Hook.PRE_RUN_POD_SANDBOX, VIEW.pod)
    assert (await decide(chain, Hook.PRE_RUN_POD_SANDBOX)).change is None
    assert workers.threads == 0


async def test_one_call_hops_to_one_thread_once(workers: Workers) -> None:
    threads: list[str] = []

    def noting(_: object) -> None:
        threads.append(threading.current_thread().name)

    def last(container: ContainerView) -> object:
        noting(container)
        return shares(2)(container)

    chain = Chain([scripted("a", noting), scripted("b", last)], workers)
    await decide(chain, apply=noting)
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threading.current_thread().name not in threads


async def test_finish_runs_once_with_the_decision_before_it_is_returned(workers: Workers) -> None:
    finished: list[Decision] = []
    decision = await decide(Chain([scripted("a", cgroup(cpu_shares=2))], workers), apply=finished.append)
    assert finished == [decision]
    assert decision.unwritten == ""


@pytest.mark.parametrize("answer", [nothing, shares(2)], ids=["no-change", "refused"])
async def test_finish_does_not_run_without_a_change_or_when_refused(workers: Workers, answer: object) -> None:
    def refuse(_: ContainerView) -> object:
        raise RefusalError("no")

    policies = (
        [scripted("a", answer)] if answer is nothing else [scripted("a", shares(2)), scripted("b", refuse)]
    )
    finished: list[Decision] = []
    await decide(Chain(policies, workers), apply=finished.append)
    assert finished == []


async def test_a_refusal_keeps_its_code_and_names_the_policy(workers: Workers) -> None:
    def refuse(_: ContainerView) -> object:
        raise RefusalError("too many", StatusCode.RESOURCE_EXHAUSTED)

    later: list[object] = []
    chain = Chain([scripted("a", shares(2)), scripted("b", refuse), scripted("c", later.append)], workers)
    decision = await decide(chain)
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.refusal.text) == (StatusCode.RESOURCE_EXHAUSTED, "b: too many")
    assert (decision.change, decision.owners, decision.view) == (None, {}, VIEW)
    assert kinds(decision) == [("b", AuditKind.REFUSED)]
    assert later == []


def exiting(_: ContainerView) -> object:
    raise SystemExit(3)


@pytest.mark.parametrize("bad", [raising, exiting, lambda _: "nonsense"], ids=["raises", "exits", "type"])
async def test_a_failing_policy_is_ignored_by_default(
    workers: Workers, bad: Callable[[ContainerView], object]
) -> None:
    decision = await decide(Chain([scripted("bad", bad), scripted("c", shares(7))], workers))
    assert shares_of(decision) == 7
    assert kinds(decision)[0] in (("bad", AuditKind.FAILED), ("bad", AuditKind.INVALID))
    assert decision.owners == {"resources.cpu_shares": (Claimant("c"),)}
    assert decision.without_answer == {"bad"}


@pytest.mark.parametrize("bad", [raising, lambda _: "nonsense"], ids=["raises", "type"])
async def test_a_failing_policy_refuses_the_call_if_so_configured(
    workers: Workers, bad: Callable[[ContainerView], object]
) -> None:
    decision = await decide(Chain([scripted("bad", bad, failure_policy=FAIL)], workers))
    assert decision.refusal is not None
    assert decision.refusal.code is StatusCode.INTERNAL
    assert decision.refusal.text.startswith("bad: ")


@pytest.mark.parametrize("failure_policy", FailurePolicy)
async def test_a_field_that_cannot_be_used_costs_no_other_and_no_call(
    workers: Workers, failure_policy: FailurePolicy
) -> None:
    def answer(_: ContainerView) -> ContainerChange:
        resources = ResourceChange(cpu_shares=-1, cpuset_cpus=",0", cpu_quota_us=834)
        return ContainerChange(resources=resources, env={"A": "1"}, reason="why")

    chain = Chain([scripted("a", answer, failure_policy=failure_policy)], workers)
    decision = await decide(chain)
    assert decision.refusal is None
    change = container_change(decision)
    assert change is not None
    assert change.resources == ResourceChange(cpuset_cpus="0", cpu_quota_us=1_000)
    assert change.env == {"A": "1"}
    lost = [entry for entry in decision.audit if entry.kind is AuditKind.LEFT_OUT]
    assert [(entry.field, entry.new, entry.pod_uid) for entry in lost] == [
        ("resources.cpu_shares", "-1", "u1")
    ]
    assert "262144" in lost[0].reason
    (quota,) = (entry for entry in decision.audit if entry.field == "resources.cpu_quota_us")
    assert (quota.kind, quota.new, quota.reason) == (AuditKind.CHANGED, "1000", "why")
    assert quota.note.startswith("834 is not in 1000 to ")


async def test_answers_suit_the_node(workers: Workers) -> None:
    node = FixedNode(Node(facts=NodeFacts(online_cpus=frozenset({0, 1}))))

    def answer(_: ContainerView) -> ContainerChange:
        return ContainerChange(resources=ResourceChange(cpu_shares=7, cpuset_cpus="0-999"))

    chain = Chain([scripted("a", answer)], workers, node=node)
    decision = await decide(chain)
    assert shares_of(decision) == 7
    assert kinds(decision) == [("a", AuditKind.LEFT_OUT), ("a", AuditKind.CHANGED)]


async def test_failures_are_logged_once(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    chain = Chain([scripted("bad", raising)], workers)
    for _ in range(3):
        assert kinds(await decide(chain)) == [("bad", AuditKind.FAILED)]
    assert len(caplog.records) == 1
    assert "ValueError: boom (policy_classes.py:" in caplog.text


async def test_environment_values_reach_neither_log_nor_audit(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    def leaking(container: ContainerView) -> object:
        raise ValueError(container.env["TOKEN"].decode())

    entries: list[AuditEntry] = []
    chain = Chain([scripted("bad", leaking)], workers, sink=entries.append)
    view = ContainerView(env={"TOKEN": b"hunter2"})
    await decide(chain, view=view)
    assert "bad" in caplog.text
    assert "hunter2" not in caplog.text + repr(entries)


async def test_writes_that_fail_are_reported(workers: Workers) -> None:
    def broken(_: Decision) -> None:
        raise OSError("read-only")

    decision = await decide(Chain([scripted("a", cgroup(cpu_shares=2))], workers), apply=broken)
    assert decision.unwritten.startswith("OSError: read-only")
    assert kinds(decision) == [("a", AuditKind.FAILED)]
    assert decision.audit[0].field == "cgroup[cpu.shares]"
    assert decision.change is not None


@pytest.mark.parametrize("owner", ["a", "a+b"])
async def test_writes_that_fail_refuse_if_a_policy_of_the_value_says_so(workers: Workers, owner: str) -> None:
    def broken(_: Decision) -> None:
        raise OSError("read-only")

    policies = [scripted("a", cgroup(cpu_shares=20), failure_policy=FAIL)]
    if owner == "a+b":
        policies.append(scripted("b", lambda _: ContainerChange(cgroup={"cpu.shares": AtMost(10)})))
    decision = await decide(Chain(policies, workers), apply=broken)
    assert decision.refusal is not None
    assert decision.refusal.text.startswith(f"{owner}: cpu.shares: OSError: read-only")
    assert decision.change is None


async def test_only_later_dry_run_policies_see_the_labels_that_a_dry_run_policy_would_change(
    workers: Workers,
) -> None:
    seen: dict[str, str | None] = {}

    class Labelling(Policy):
        def pod(self, pod: PodView, node: Node) -> PodChange:
            seen[self.name] = pod.labels.get("by")
            return PodChange(labels={"by": self.name})

    def labelling(name: str, mode: Literal[Mode.ENFORCE, Mode.DRY_RUN]) -> LoadedPolicy:
        named: type[Policy] = type("Named", (Labelling,), {"name": name})
        return bind(named(), PolicySettings(mode=mode))

    policies = [
        labelling("a-dry", Mode.DRY_RUN),
        labelling("b-enforcing", Mode.ENFORCE),
        labelling("c-dry", Mode.DRY_RUN),
        labelling("d-enforcing", Mode.ENFORCE),
    ]
    decision = await decide(Chain(policies, workers), Hook.PRE_RUN_POD_SANDBOX, view=VIEW.pod)
    assert seen == {
        "a-dry": None,
        "b-enforcing": None,
        "c-dry": "b-enforcing",
        "d-enforcing": "b-enforcing",
    }
    assert decision.owners == {"labels[by]": (Claimant("d-enforcing"),)}


async def test_a_dry_run_policy_refuses_nothing_and_fails_nothing(workers: Workers) -> None:
    def refuse(_: ContainerView) -> object:
        raise RefusalError("no")

    policies = [
        scripted("a", refuse, mode=Mode.DRY_RUN, failure_policy=FAIL),
        scripted("b", raising, mode=Mode.DRY_RUN, failure_policy=FAIL),
        scripted("c", shares(2)),
    ]
    decision = await decide(Chain(policies, workers))
    assert shares_of(decision) == 2
    assert kinds(decision)[:2] == [("a", AuditKind.REFUSED), ("b", AuditKind.FAILED)]


@pytest.mark.parametrize("failure_policy", FailurePolicy)
async def test_a_refusal_counts_at_creation_only(
    workers: Workers, failure_policy: FailurePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: ContainerView) -> object:
        raise RefusalError("too late")

    policies = [scripted("a", shares(5)), scripted("b", refuse, failure_policy=failure_policy)]
    chain = Chain(policies, workers)
    for hook in (
        Hook.PRE_UPDATE_CONTAINER_RESOURCES,
        Hook.EVALUATE_CONTAINER,
    ):
        decision = await decide(chain, hook)
        assert decision.refusal is None
        assert shares_of(decision) == 5
        assert kinds(decision)[1:] == [("b", AuditKind.FAILED)]
        assert decision.without_answer == {"b"}
    assert "counts when a pod or container is created only: too late" in caplog.text
    assert (await decide(chain)).refusal is not None


@pytest.mark.parametrize("failure_policy", FailurePolicy)
async def test_effects_change_nothing_and_refuse_nothing(
    workers: Workers, failure_policy: FailurePolicy
) -> None:
    def refuse(_: ContainerView) -> object:
        raise RefusalError("too late")

    policies = [
        scripted("a", cgroup(cpu_shares=2), failure_policy=failure_policy),
        scripted("b", refuse, failure_policy=failure_policy),
        scripted("c", raising, failure_policy=failure_policy),
        scripted("d", nothing),
    ]
    decision = await decide(Chain(policies, workers), Hook.POST_START_CONTAINER)
    assert (decision.refusal, decision.change, decision.owners) == (None, None, {})
    assert kinds(decision) == [("a", AuditKind.INVALID), ("b", AuditKind.FAILED), ("c", AuditKind.FAILED)]


async def test_effects_are_left_out_in_dry_run(workers: Workers) -> None:
    ran: list[object] = []
    chain = Chain([scripted("a", ran.append, mode=Mode.DRY_RUN), scripted("b", nothing)], workers)
    decision = await decide(chain, Hook.POST_STOP_CONTAINER)
    assert ran == []
    assert kinds(decision) == [("a", AuditKind.WOULD_CHANGE)]


@pytest.mark.parametrize(("rule", "expected"), [(ConflictRule.LATER, 7), (ConflictRule.EARLIER, 5)])
async def test_conflicts_are_reported_and_settled_by_the_rule(
    workers: Workers, rule: ConflictRule, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    chain = Chain([scripted("a", shares(5)), scripted("b", shares(7))], workers, rule=rule)
    decision = await decide(chain)
    assert shares_of(decision) == expected
    assert ("b", AuditKind.CONFLICT) in kinds(decision)
    await until(lambda: bool(caplog.records))
    assert "also set by a" in caplog.text


async def test_the_audit_says_who_what_and_why(workers: Workers) -> None:
    entries: list[AuditEntry] = []
    chain = Chain([scripted("a", shares(5, "because"))], workers, sink=entries.append)
    decision = await decide(chain)
    (entry,) = entries
    assert decision.audit == (entry,)
    assert (entry.pod_namespace, entry.pod_name, entry.pod_uid, entry.container) == (
        "ns",
        "pod",
        "u1",
        "main",
    )
    assert (entry.policy, entry.field, entry.old, entry.new) == ("a", "resources.cpu_shares", "", "5")
    assert (entry.reason, entry.mode, entry.hook) == ("because", Mode.ENFORCE, Hook.PRE_CREATE_CONTAINER)
    assert entry.time_s > 0


async def test_the_audit_waits_for_the_answer_of_the_call(workers: Workers) -> None:
    """Entries of something else come behind those of decisions that wait."""
    entries: list[AuditEntry] = []
    chain = Chain([scripted("a", shares(5))], workers, sink=entries.append, report_s=30.0)
    first, second = await decide(chain), await decide(chain)
    assert entries == []
    late = first.audit[0]._replace(reason="late")
    chain.audit(late)
    assert entries == [*first.audit, *second.audit, late]


async def test_the_audit_comes_without_another_call(workers: Workers) -> None:
    told = asyncio.Event()
    chain = Chain([scripted("a", shares(5))], workers, sink=lambda _: told.set(), report_s=0.001)
    await decide(chain)
    async with asyncio.timeout(30):
        await told.wait()


async def test_an_audit_sink_that_raises_fails_no_call(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: AuditEntry) -> None:
        raise OSError("disk full")

    chain = Chain([scripted("a", shares(5)), scripted("b", raising)], workers, sink=broken)
    assert shares_of(await decide(chain)) == 5
    assert "the sink raised OSError" in caplog.text
