"""The chain of policies in time: late policies, spent budgets, lost threads, cancelled calls."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from functools import partial

import pytest

from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks import ContainerView, FailurePolicy
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.workers import Workers
from tests.hooks.asking import VIEW, decide, kinds, shares_of, until
from tests.hooks.policy_classes import Hanging, cgroup, nothing, raising, scripted, shares

FAIL = FailurePolicy.FAIL
BUDGET_S = 30.0


async def test_a_late_policy_is_left_behind_and_disabled_until_it_returns(
    workers: Workers, hanging: Hanging
) -> None:
    chain = Chain(
        [scripted("a", shares(5)), scripted("a-late", hanging, timeout_s=0.05), scripted("c", nothing)],
        workers,
    )
    decision = await decide(chain)
    assert shares_of(decision) == 5
    assert ("a-late", AuditKind.FAILED) in kinds(decision)
    assert dict(chain.hung) == {"a-late": 1}
    assert workers.hung == 1

    again = await decide(chain)
    assert shares_of(again) == 5
    assert [entry.reason for entry in again.audit if entry.policy == "a-late"] == [
        "still hangs from an earlier call"
    ]

    hanging.released.set()
    await until(lambda: not chain.hung)
    assert workers.hung == 0
    # Its time is short, so that a busy machine makes it late once more.
    async with asyncio.timeout(30):
        while shares_of(await decide(chain)) != 999:
            await until(lambda: not chain.hung)


async def test_a_thread_that_hangs_counts_whatever_chain_is_used(workers: Workers, hanging: Hanging) -> None:
    late = scripted("a-late", hanging, timeout_s=0.05)
    await decide(Chain([late], workers))
    # As after a change of modes, and after a reload that has made the policy again.
    same, other = Chain([late], workers), Chain([scripted("a-late", shares(5))], workers)
    assert (same.hung, other.hung) == ({"a-late": 1}, {})
    assert shares_of(await decide(same)) is None
    assert shares_of(await decide(other)) == 5
    (found,) = workers.hanging.values()
    assert (found.policy, found.threads) == (late, 1)
    hanging.released.set()
    await until(lambda: not workers.hanging)
    assert not same.hung


async def test_policies_after_a_late_one_run_in_another_thread(workers: Workers, hanging: Hanging) -> None:
    finished: list[Decision] = []
    chain = Chain([scripted("a-late", hanging, timeout_s=0.05), scripted("b", shares(7))], workers)
    decision = await decide(chain, apply=finished.append)
    assert shares_of(decision) == 7
    assert finished == [decision]


async def test_a_late_result_is_discarded(workers: Workers, hanging: Hanging) -> None:
    entries: list[AuditEntry] = []
    finished: list[Decision] = []
    chain = Chain([scripted("a-late", hanging, timeout_s=0.05)], workers, sink=entries.append)
    decision = await decide(chain, apply=finished.append)
    hanging.released.set()
    await until(lambda: not chain.hung)
    assert decision.change is None
    assert finished == []
    assert [entry.kind for entry in entries] == [AuditKind.FAILED]


async def test_a_late_policy_refuses_if_so_configured_and_goes_on_refusing(
    workers: Workers, hanging: Hanging
) -> None:
    chain = Chain([scripted("a-late", hanging, timeout_s=0.05, failure_policy=FAIL)], workers)
    for reason in ("a-late: no answer within 0.05 s", "a-late: still hangs from an earlier call"):
        decision = await decide(chain)
        assert decision.refusal is not None
        assert (decision.refusal.code, decision.refusal.text) == (StatusCode.UNAVAILABLE, reason)


async def spend_budget(chain: Chain, hanging: Hanging) -> None:
    """Let the time of all runs be over as soon as one hangs."""
    await until(lambda: hanging.entered.acquire(blocking=False))
    for run in chain.timer.runs:
        run.postpone(-BUDGET_S)


async def test_a_spent_budget_leaves_the_rest_out(workers: Workers, hanging: Hanging) -> None:
    finished: list[Decision] = []
    chain = Chain(
        [scripted("a", cgroup(cpu_shares=2)), scripted("a-late", hanging), scripted("c", shares(7))], workers
    )
    deciding = asyncio.ensure_future(decide(chain, budget_s=BUDGET_S, apply=finished.append))
    await spend_budget(chain, hanging)
    decision = await deciding
    assert finished == [decision]
    assert decision.owners == {"cgroup[cpu.shares]": (Claimant("a"),)}
    assert kinds(decision)[1:] == [("a-late", AuditKind.FAILED), ("c", AuditKind.FAILED)]


async def test_a_spent_budget_refuses_if_a_policy_left_out_has_to_be_asked(
    workers: Workers, hanging: Hanging
) -> None:
    chain = Chain([scripted("a-late", hanging), scripted("c", nothing, failure_policy=FAIL)], workers)
    decision = await decide(chain, budget_s=0.05)
    assert decision.refusal is not None
    assert decision.refusal.policy == "c"
    assert decision.refusal.code is StatusCode.UNAVAILABLE


async def exhaust(workers: Workers, hanging: Hanging, calls: int) -> list[Decision]:
    """Make that many calls at once, which all hang, each in a policy of its own."""
    chains = [Chain([scripted("a-late", hanging, timeout_s=0.05)], workers) for _ in range(calls)]
    return await asyncio.gather(*(decide(chain) for chain in chains))


@pytest.mark.parametrize(("failure_policy", "is_refused"), [(FailurePolicy.IGNORE, False), (FAIL, True)])
async def test_without_a_thread_the_failure_policy_decides_at_once(
    workers: Workers, hanging: Hanging, failure_policy: FailurePolicy, is_refused: bool
) -> None:
    await exhaust(workers, hanging, 3)
    assert workers.hung == workers.threads == 3

    chain = Chain([scripted("a", shares(2), failure_policy=failure_policy)], workers)
    decision = await decide(chain)
    assert decision.change is None
    assert (decision.refusal is not None) is is_refused
    assert decision.refusal is None or decision.refusal.code is StatusCode.UNAVAILABLE
    assert [entry.reason for entry in decision.audit][-1:] == ["no worker thread is left"]

    hanging.released.set()
    await until(lambda: workers.hung == 0)
    assert shares_of(await decide(chain)) == 2
    assert workers.threads == workers.size


async def test_calls_that_wait_for_a_thread_are_let_go_when_the_last_one_hangs(
    workers: Workers, hanging: Hanging
) -> None:
    decisions = await exhaust(workers, hanging, 10)
    assert all(decision.change is None and decision.refusal is None for decision in decisions)
    assert workers.hung == 3


async def test_busy_threads_are_waited_for(workers: Workers) -> None:
    chain = Chain([scripted("a", shares(3))], workers)
    decisions = await asyncio.gather(*(decide(chain) for _ in range(50)))
    assert {shares_of(decision) for decision in decisions} == {3}
    assert workers.threads == 2


async def test_cancelling_begins_no_writes(workers: Workers, hanging: Hanging) -> None:
    entries: list[AuditEntry] = []
    finished: list[Decision] = []
    chain = Chain([scripted("a-slow", hanging), scripted("b", shares(2))], workers, sink=entries.append)
    call = asyncio.ensure_future(decide(chain, apply=finished.append))
    await asyncio.to_thread(hanging.entered.acquire)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    hanging.released.set()
    await decide(Chain([scripted("b", shares(2))], workers))
    await until(lambda: not chain.timer.runs)
    assert (finished, entries) == ([], [])


async def test_a_thread_that_hangs_is_found_after_its_call_was_cancelled(
    workers: Workers, hanging: Hanging
) -> None:
    chain = Chain([scripted("a-late", hanging, timeout_s=0.05)], workers)
    call = asyncio.ensure_future(decide(chain))
    await asyncio.to_thread(hanging.entered.acquire)
    call.cancel()
    await until(lambda: "a-late" in chain.hung)
    hanging.released.set()
    await until(lambda: not chain.hung)


async def test_writes_that_hang_hold_the_call_no_longer_than_the_budget(
    workers: Workers, hanging: Hanging
) -> None:
    def stuck(_: Decision) -> None:
        hanging(VIEW)

    chain = Chain([scripted("a", cgroup(cpu_shares=2))], workers)
    deciding = asyncio.ensure_future(decide(chain, budget_s=BUDGET_S, apply=stuck))
    await spend_budget(chain, hanging)
    decision = await deciding
    assert decision.change is not None
    assert decision.unwritten == "the cgroup writes take too long"
    assert workers.hung == 1
    assert not chain.hung


async def test_after_the_pool_is_closed_calls_pass(workers: Workers) -> None:
    chain = Chain([scripted("a", shares(5))], workers)
    workers.close()
    assert (await decide(chain)).change is None


async def test_many_calls_with_policies_that_hang_raise_and_are_cancelled_all_end(hanging: Hanging) -> None:
    """Whatever happens to single calls, each ends once, and nothing is left over."""
    pool = Workers(2, spares=2)
    turns = itertools.count()

    def erratic(container: ContainerView) -> object:
        turn = next(turns)
        if turn % 40 == 39:
            return hanging(container)
        return raising(container) if turn % 3 == 0 else cgroup(cpu_shares=2)(container)

    finished: Counter[int] = Counter()
    chain = Chain([scripted("a", shares(5)), scripted("erratic", erratic, timeout_s=0.02)], pool)
    calls: list[asyncio.Future[Decision]] = []
    for number in range(200):
        finish = partial(lambda number, _: finished.update([number]), number)
        calls.append(asyncio.ensure_future(decide(chain, apply=finish)))
        if number % 7 == 0:
            await asyncio.sleep(0)
            calls[number // 2].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, Decision | asyncio.CancelledError) for result in results)
    assert max(finished.values()) == 1
    hanging.released.set()
    await until(lambda: not chain.hung and pool.hung == 0 and not chain.timer.runs)
    assert pool.threads <= pool.size
    pool.close()


async def test_no_policy_is_late_for_the_time_in_which_the_loop_did_not_run(
    workers: Workers, hanging: Hanging
) -> None:
    """As it does not while the process is stopped; see also `test_workers`."""
    chain = Chain([scripted("a-slow", hanging, timeout_s=1.0)], workers)
    deciding = asyncio.ensure_future(decide(chain, budget_s=1.0))
    await until(lambda: hanging.entered.acquire(blocking=False))
    # Longer than the policy's timeout and the chain's budget; nothing is computed meanwhile.
    threading.Event().wait(1.2)
    # The timer looks first, and then the policy comes back.
    asyncio.get_running_loop().call_later(0.1, hanging.released.set)
    decision = await deciding
    assert shares_of(decision) == 999
    assert ("a-slow", AuditKind.FAILED) not in kinds(decision)
