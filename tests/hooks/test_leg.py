"""A worker thread's part of a call, without threads: who is first, the thread or the one who gives up."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.audit import Subject
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.evaluation import OutcomeKind, Progress
from runtimeproxy.hooks.leg import Leg, Stage, Work
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.merge import Fold
from runtimeproxy.hooks.settings import ConflictRule
from tests.hooks.policy_classes import nothing, scripted, shares

VIEW = ContainerView()


def ignore(_: Leg) -> None:
    """Nobody waits for the leg."""


def leg(
    *policies: LoadedPolicy,
    finish: Callable[[Decision], None] | None = None,
    hung: tuple[str, ...] = (),
    until_s: float | None = None,
) -> Leg:
    subject = Subject(Hook.PRE_CREATE_CONTAINER, VIEW, 0.0)
    work = Work(subject, ConflictRule.LATER, hung, finish, ignore, ignore)
    return Leg(work, policies, Progress(Fold(VIEW)), time.monotonic() + 100 if until_s is None else until_s)


def test_a_leg_runs_to_its_end() -> None:
    finished: list[Decision] = []
    done = leg(scripted("a", shares(5)), scripted("b", nothing), finish=finished.append)
    done.run()
    assert done.stage is Stage.ENDED
    assert finished == [done.decision]
    assert [outcome.kind for outcome, _ in done.outcomes] == [OutcomeKind.CHANGED, OutcomeKind.UNCHANGED]
    assert all(duration_s >= 0 for _, duration_s in done.outcomes)


def test_a_leg_given_up_before_a_thread_took_it_does_nothing() -> None:
    ran: list[object] = []
    late = leg(scripted("a", ran.append))
    assert late.give_up()
    late.run()
    assert (ran, late.stage, late.decision) == ([], Stage.WAITING, None)


def test_a_leg_given_up_while_a_policy_runs_keeps_what_was_before_it() -> None:
    finished: list[Decision] = []
    legs: list[Leg] = []

    def slow(container: ContainerView) -> object:
        assert legs[0].give_up()
        return shares(9)(container)

    later: list[object] = []
    policies = (scripted("a", shares(5)), scripted("slow", slow), scripted("c", later.append))
    legs.append(leg(*policies, finish=finished.append))
    legs[0].run()
    assert legs[0].index == 1
    assert legs[0].progress.real.owners == {"resources.cpu_shares": "a"}
    assert (legs[0].decision, finished, later) == (None, [], [])


def test_writes_that_have_begun_cannot_be_given_up() -> None:
    answers: list[bool] = []
    writing: list[Leg] = []
    writing.append(leg(scripted("a", shares(5)), finish=lambda _: answers.append(writing[0].give_up())))
    writing[0].run()
    assert answers == [False]
    assert writing[0].stage is Stage.ENDED


def test_a_policy_that_hangs_elsewhere_is_skipped() -> None:
    skipping = leg(scripted("a", shares(5)), scripted("b", nothing), hung=("a",))
    skipping.run()
    assert [outcome.kind for outcome, _ in skipping.outcomes] == [OutcomeKind.SKIPPED, OutcomeKind.UNCHANGED]


@pytest.mark.parametrize(
    ("after_s", "wait_s"),
    [
        pytest.param(0.0, 0.2, id="shortest-timeout"),
        pytest.param(0.9, 0.1, id="budget"),
        pytest.param(1.5, 0.0, id="overdue"),
    ],
)
def test_a_leg_without_a_thread_may_wait_for_the_budget(after_s: float, wait_s: float) -> None:
    now_s = time.monotonic()
    waiting = leg(scripted("a", nothing, timeout_s=0.2), until_s=now_s + 1)
    assert waiting.wait_s(now_s + after_s) == pytest.approx(wait_s, abs=0.01)
    assert waiting.given_up is (wait_s == 0)


@pytest.mark.parametrize(("timeout_s", "is_overdue"), [(0.5, True), (5.0, False)])
def test_a_policy_may_take_its_timeout(timeout_s: float, is_overdue: bool) -> None:
    waits_s: list[float] = []
    running: list[Leg] = []

    def slow(_: ContainerView) -> None:
        waits_s.append(running[0].wait_s(time.monotonic() + 1))

    running.append(leg(scripted("a", slow, timeout_s=timeout_s)))
    running[0].run()
    assert (waits_s == [0.0]) is is_overdue
    assert running[0].given_up is is_overdue
