"""Quick policies run in the loop's thread; one that is not quick after all goes to a worker thread."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from runtimeproxy.cgroups.writer import WriteOutcome, WriteResult
from runtimeproxy.hooks import ContainerView
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.chain import OVER_CPU_LIMIT, Chain
from runtimeproxy.hooks.cpu_limit import CpuLimit, OverCpuLimitError
from runtimeproxy.hooks.decision import Decision
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.loading import built_in
from runtimeproxy.hooks.workers import Workers
from tests.hooks.asking import decide, shares_of, until
from tests.hooks.policy_classes import Hanging, cgroup, scripted, shares


def quick(name: str, answer: Callable[[ContainerView], object]) -> LoadedPolicy:
    return replace(scripted(name, answer), is_quick=True)


@pytest.fixture(autouse=True)
def no_search_for_garbage() -> Iterator[None]:
    """One of this process's whole memory takes longer than quick policies may."""
    gc.disable()
    yield
    gc.enable()


class Threads:
    """Answers like another function, and notes the threads in which it is asked."""

    def __init__(self, answer: Callable[[ContainerView], object]) -> None:
        self.answer = answer
        self.names: list[str] = []

    def __call__(self, container: ContainerView) -> object:
        self.names.append(threading.current_thread().name)
        return self.answer(container)


def busy_beside(answer: Callable[[ContainerView], object], cpu_s: float) -> Callable[[ContainerView], object]:
    """Compute for some CPU time in the loop's thread, and for none elsewhere."""

    def compute(container: ContainerView) -> object:
        until_s = time.thread_time() + cpu_s
        while threading.current_thread() is threading.main_thread() and time.thread_time() < until_s:
            pass
        return answer(container)

    return compute


def exiting(_: ContainerView) -> object:
    raise SystemExit(1)


def is_here(names: list[str]) -> bool:
    return set(names) == {threading.main_thread().name}


def test_all_built_in_policies_are_quick_and_no_others() -> None:
    assert all(bind(each()).is_quick for each in built_in() if each.options_type is None)
    assert not scripted("of-an-author", shares(5)).is_quick


async def test_quick_policies_need_no_worker_thread(workers: Workers) -> None:
    first, second = Threads(shares(5)), Threads(cgroup(cpu_cfs_burst_us=5))
    applied: list[str] = []

    def apply(_: Decision) -> None:
        applied.append(threading.current_thread().name)

    chain = Chain([quick("a", first), quick("b", second)], workers)
    decision = await decide(chain, apply=apply, has_writes=lambda _: False)
    assert shares_of(decision) == 5
    assert is_here(first.names + second.names + applied)
    assert workers.threads == 0


async def test_values_that_wait_are_no_changes_in_the_audit(workers: Workers) -> None:
    waiting = WriteResult("", "cpu.cfs_burst_us", 5, WriteOutcome.PENDING)
    chain = Chain([quick("a", cgroup(cpu_cfs_burst_us=5))], workers)
    decision = await decide(chain, apply=lambda _: {waiting.name: waiting}, has_writes=lambda _: False)
    assert [(each.field, each.kind) for each in decision.audit] == [
        ("cgroup[cpu.cfs_burst_us]", AuditKind.PENDING)
    ]


async def test_writes_of_quick_policies_take_a_worker_thread(workers: Workers) -> None:
    applied: list[str] = []

    def apply(_: Decision) -> None:
        applied.append(threading.current_thread().name)

    await decide(Chain([quick("a", cgroup(cpu_cfs_burst_us=5))], workers), apply=apply)
    assert applied == ["policies-1"]


async def test_beside_another_policy_all_run_in_a_worker_thread(workers: Workers) -> None:
    first = Threads(shares(5))
    await decide(Chain([quick("a", first), scripted("b", shares(7))], workers))
    assert first.names == ["policies-1"]


async def test_a_policy_that_raises_costs_itself_only(workers: Workers) -> None:
    chain = Chain([quick("a", exiting), quick("b", shares(7))], workers)
    decision = await decide(chain)
    assert shares_of(decision) == 7
    assert decision.without_answer == {"a"}


async def test_one_that_computes_for_long_is_asked_again_in_a_worker_thread(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """Those before it are not asked twice, those after it follow it, and the next calls try it here again."""
    first, slow, last = Threads(shares(5)), Threads(busy_beside(shares(6), 60.0)), Threads(shares(7))
    chain = Chain([quick("a", first), quick("b", slow), quick("c", last)], workers)
    main = threading.main_thread().name
    for _ in range(OVER_CPU_LIMIT):
        first.names.clear()
        slow.names.clear()
        last.names.clear()
        assert shares_of(await decide(chain)) == 7
        assert is_here(first.names)
        assert [each == main for each in slow.names] == [True, False]
        assert not is_here(last.names)
    slow.names.clear()
    assert shares_of(await decide(chain)) == 7
    assert main not in slow.names
    assert chain.over_cpu_limit == {"b": OVER_CPU_LIMIT}
    lines = [each.getMessage() for each in caplog.records if "CPU time" in each.getMessage()]
    assert ["worker threads" in each for each in lines] == [False, True]


async def test_one_that_hangs_elsewhere_is_left_out_here(workers: Workers, hanging: Hanging) -> None:
    """An evaluation runs in a worker thread."""
    late = replace(scripted("a-late", hanging, timeout_s=0.05), is_quick=True)
    chain = Chain([late, quick("b", shares(7))], workers)
    evaluated = await chain.evaluate(ContainerView())
    assert shares_of(evaluated) == 7
    assert dict(chain.hung) == {"a-late": 1}
    assert shares_of(await decide(chain)) == 7
    hanging.released.set()
    await until(lambda: not chain.hung)


def test_a_limit_ends_code_that_computes_and_nothing_else() -> None:
    limit = CpuLimit(0.01)

    def compute(cpu_s: float) -> str:
        until_s = time.thread_time() + cpu_s
        while time.thread_time() < until_s:
            pass
        return "done"

    assert limit.run(compute, 0.0) == "done"
    with pytest.raises(OverCpuLimitError):
        limit.run(compute, 60.0)
    # Nothing interrupts what follows.
    assert compute(0.05) == "done"
    assert limit.run(compute, 0.0) == "done"


def busy(cpu_s: float) -> None:
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


def in_a_finalizer() -> None:
    class Slow:
        def __del__(self) -> None:
            busy(0.1)

    Slow()


def after_a_long_search_for_garbage() -> None:
    def on_searched(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            busy(0.1)

    gc.callbacks.append(on_searched)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(on_searched)


def in_a_callback_of_a_weak_reference() -> None:
    class Kept:
        pass

    one = Kept()
    every = weakref.WeakSet([one])
    values = itertools.chain(range(3_000_000), [one])
    del one
    # One long step, at the end of which the object goes.
    deque(values, 0)
    assert not every


def with_all_caught() -> None:
    with contextlib.suppress(BaseException):
        busy(60.0)


@pytest.mark.parametrize(
    "code",
    [in_a_finalizer, after_a_long_search_for_garbage, in_a_callback_of_a_weak_reference, with_all_caught],
)
def test_an_interruption_is_not_lost(code: Callable[[], None]) -> None:
    """As Python loses it in callbacks, which a long search for garbage calls: the limit held no longer."""

    def compute() -> None:
        code()
        busy(60.0)

    with pytest.raises(OverCpuLimitError):
        CpuLimit(0.01).run(compute)
    busy(0.05)


def test_cpu_time_of_other_threads_does_not_count() -> None:
    limit, is_over = CpuLimit(0.01), threading.Event()

    def compute() -> None:
        until_s = time.thread_time() + 0.1
        while time.thread_time() < until_s:
            pass
        is_over.set()

    thread = threading.Thread(target=compute)
    thread.start()
    assert limit.run(is_over.wait, 60.0)
    thread.join()


def test_it_is_of_use_in_the_main_thread_only() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(CpuLimit().is_usable))
    thread.start()
    thread.join()
    assert found == [False]
    assert CpuLimit().is_usable
