"""The worker's part of a run, without threads: which is first, the thread or the one that gives up."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.audit import Subject
from runtimeproxy.hooks.chain import Chain, ChainRun
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision, FailureKind, Progress
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.workers import Stage, WorkerRun, Workers, WorkerTask
from tests.hooks.policy_classes import nothing, raising, scripted, shares

VIEW = ContainerView()


def worker_run(
    *policies: LoadedPolicy,
    apply: Callable[[Decision], None] | None = None,
    hung: tuple[str, ...] = (),
    until_s: float | None = None,
) -> WorkerRun:
    subject = Subject(Hook.PRE_CREATE_CONTAINER, VIEW, 0.0)
    chain = Chain(policies, Workers())
    for policy in policies:
        if policy.name in hung:
            chain.workers.give_up(WorkerTask(int, None, str), policy)
    until_s = time.monotonic() + 100 if until_s is None else until_s
    run = ChainRun(chain, subject, apply, lambda _: False, lambda _: None, until_s, True)
    progress = Progress(Merged(VIEW))
    return WorkerRun(run, subject, chain.node, chain.is_hung, policies, (), apply, progress, until_s)


def test_it_runs_to_its_end() -> None:
    applied: list[Decision] = []
    done = worker_run(scripted("a", shares(5)), scripted("b", nothing), apply=applied.append)
    done.run()
    assert done.stage is Stage.ENDED
    assert done.index == 2
    assert applied == [done.decision]
    assert done.failures == []


def test_given_up_before_a_thread_took_it_it_does_nothing() -> None:
    ran: list[object] = []
    late = worker_run(scripted("a", ran.append))
    assert late.give_up()
    late.run()
    assert (ran, late.stage, late.decision) == ([], Stage.WAITING, None)


def test_given_up_while_a_policy_runs_it_keeps_the_state_before_that_policy() -> None:
    applied: list[Decision] = []
    runs: list[WorkerRun] = []

    def slow(container: ContainerView) -> object:
        assert runs[0].give_up()
        return shares(9)(container)

    later: list[object] = []
    policies = (
        scripted("a", shares(5)),
        scripted("bad", raising),
        scripted("slow", slow),
        scripted("c", later.append),
    )
    runs.append(worker_run(*policies, apply=applied.append))
    runs[0].run()
    assert runs[0].index == 2
    assert [each.owners for each in runs[0].progress.enforced.fields.values()] == [(Claimant("a"),)]
    assert [(failure.policy.name, failure.kind) for failure in runs[0].failures] == [
        ("bad", FailureKind.FAILED)
    ]
    assert (runs[0].decision, applied, later) == (None, [], [])


def test_writes_that_have_begun_cannot_be_given_up() -> None:
    given_up: list[bool] = []
    writing: list[WorkerRun] = []
    writing.append(
        worker_run(scripted("a", shares(5)), apply=lambda _: given_up.append(writing[0].give_up()))
    )
    writing[0].run()
    assert given_up == [False]
    assert writing[0].stage is Stage.ENDED


def test_a_policy_that_hangs_elsewhere_is_skipped() -> None:
    skipping = worker_run(scripted("a", shares(5)), scripted("b", shares(6)), hung=("a",))
    skipping.run()
    assert [(failure.policy.name, failure.kind) for failure in skipping.failures] == [
        ("a", FailureKind.SKIPPED)
    ]
    assert skipping.decision is not None
    assert skipping.decision.owners == {"resources.cpu_shares": (Claimant("b"),)}


@pytest.mark.parametrize(
    ("after_s", "is_overdue"),
    [
        pytest.param(0.0, False, id="new"),
        pytest.param(0.9, False, id="longer-than-the-timeout"),
        pytest.param(1.5, True, id="longer-than-the-budget"),
    ],
)
def test_without_a_thread_it_may_wait_for_the_whole_budget(after_s: float, is_overdue: bool) -> None:
    now_s = time.monotonic()
    waiting = worker_run(scripted("a", nothing, timeout_s=0.2), until_s=now_s + 1)
    assert waiting.is_overdue(now_s + after_s) is is_overdue
    assert waiting.is_given_up is is_overdue


@pytest.mark.parametrize(("timeout_s", "is_overdue"), [(0.5, True), (5.0, False)])
def test_a_policy_may_take_its_timeout(timeout_s: float, is_overdue: bool) -> None:
    found: list[bool] = []
    running: list[WorkerRun] = []

    def slow(_: ContainerView) -> None:
        found.append(running[0].is_overdue(time.monotonic() + 1))

    running.append(worker_run(scripted("a", slow, timeout_s=timeout_s)))
    running[0].run()
    assert found == [is_overdue]
    assert running[0].is_given_up is is_overdue


def test_a_pause_moves_all_deadlines() -> None:
    now_s = time.monotonic()
    waiting = worker_run(scripted("a", nothing), until_s=now_s + 1)
    waiting.postpone(10)
    assert not waiting.is_overdue(now_s + 10.5)
    assert waiting.is_overdue(now_s + 11)
