"""A plugin that raises, hangs or returns nonsense is left out, reported, and tried again."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import Any, cast

import pytest

from runtimeproxy.logs import FailureLog
from runtimeproxy.qosmanager.framework import PluginRunner, decision_problem
from runtimeproxy.qosmanager.plugin import (
    Change,
    Claim,
    Decision,
    Eviction,
    EvictionOutcome,
    EvictionResult,
    Mode,
    Plugin,
    PluginContext,
    Role,
    Target,
)
from runtimeproxy.qosmanager.snapshot import Level, Snapshot

BE = Target(Level.QOS_CLASS, "BestEffort")
QUOTA = Claim(BE, "cpu.cfs_quota_us", Role.AT_MOST, 100_000, reason="half")
SNAPSHOT = Snapshot(now_s=1.0)
FIRST = (1, 1, 1)


class Scripted(Plugin[int]):
    """Counts its runs, and does what the test says."""

    name = "scripted"
    gates = ("CPUBurst",)

    def __init__(self, answer: Callable[[int], Any] | None = None) -> None:
        self.answer = answer or (lambda state: Decision(state + 1, (QUOTA,)))
        self.is_wanted = True
        self.contexts: list[PluginContext] = []
        self.changes: list[frozenset[Change]] = []
        self.results: list[Sequence[EvictionResult]] = []

    def setup(self, context: PluginContext) -> int:
        self.contexts.append(context)
        return 0

    def is_enabled(self, snapshot: Snapshot) -> bool:
        return self.is_wanted

    def run(self, snapshot: Snapshot, state: int) -> Decision[int]:
        return cast("Decision[int]", self.answer(state))

    def on_changed(self, changes: frozenset[Change], snapshot: Snapshot, state: int) -> int:
        self.changes.append(changes)
        return state

    def on_evictions(self, results: Sequence[EvictionResult], snapshot: Snapshot, state: int) -> int:
        self.results.append(results)
        return state


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Running:
    """A plugin in its runner."""

    def __init__(self, answer: Callable[[int], Any] | None = None) -> None:
        self.plugin = Scripted(answer)
        self.clock = Clock()
        failures = FailureLog(clock=self.clock)
        self.runner = PluginRunner(self.plugin, failures, self.clock, time_limit_s=30.0)
        self.runner.configure(Mode.ENFORCE, {"CPUBurst": True}, None)

    async def run(self, versions: tuple[int, int, int] = FIRST, **more: Any) -> Any:
        result = await self.runner.run(SNAPSHOT, versions, **more)
        return None if result is None else result.decision


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.runner.close()


async def test_the_state_of_a_run_is_that_of_the_next(running: Running) -> None:
    assert [(await running.run()).state for _ in range(3)] == [1, 2, 3]
    assert len(running.plugin.contexts) == 1


async def test_the_first_state_is_made_with_the_claims_in_the_daemon(running: Running) -> None:
    await running.run(held=(QUOTA,))
    (context,) = running.plugin.contexts
    assert (context.held, context.gates, context.options) == ((QUOTA,), {"CPUBurst": True}, None)


async def test_what_has_changed_since_the_last_run_is_said_before_the_next(running: Running) -> None:
    for versions in ((1, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 2), (3, 2, 2)):
        await running.run(versions)
    assert running.plugin.changes == [{Change.PODS}, {Change.PODS, Change.STRATEGIES}, {Change.NODE}]


async def test_changes_of_failed_runs_are_not_lost(running: Running) -> None:
    await running.run()
    good, running.plugin.answer = running.plugin.answer, lambda _: 1 / 0
    assert await running.run((2, 1, 1)) is None
    running.plugin.answer = good
    await running.run((2, 2, 1))
    assert running.plugin.changes == [{Change.PODS}, {Change.PODS, Change.NODE}]


async def test_a_plugin_that_the_strategies_do_not_want_claims_nothing_and_begins_anew(
    running: Running,
) -> None:
    await running.run()
    running.plugin.is_wanted = False
    decision = await running.run()
    assert (decision.claims, running.runner.is_enabled) == ((), False)
    running.plugin.is_wanted = True
    assert (await running.run()).state == 1
    assert len(running.plugin.contexts) == 2


async def test_results_of_evictions_reach_the_next_run_once(running: Running) -> None:
    result = EvictionResult(Eviction("u", "too much"), EvictionOutcome.EVICTED)
    await running.run()
    running.runner.note_evictions([result])
    await running.run()
    await running.run()
    assert running.plugin.results == [(result,)]


@pytest.mark.parametrize(
    ("mode", "gates", "expected"),
    [
        (Mode.ENFORCE, {"CPUBurst": True}, Mode.ENFORCE),
        (Mode.DRY_RUN, {"CPUBurst": True}, Mode.DRY_RUN),
        (Mode.OFF, {"CPUBurst": True}, Mode.OFF),
        (Mode.ENFORCE, {"CPUBurst": False}, Mode.OFF),
        (Mode.ENFORCE, {}, Mode.OFF),
    ],
)
def test_the_mode_follows_from_configuration_and_gates(
    running: Running, mode: Mode, gates: dict[str, bool], expected: Mode
) -> None:
    running.runner.configure(mode, gates, None)
    assert running.runner.mode is expected
    assert running.runner.is_due(running.clock.now_s) is (expected is not Mode.OFF)


async def test_other_options_begin_with_a_new_state(running: Running) -> None:
    await running.run()
    running.runner.configure(Mode.DRY_RUN, {"CPUBurst": True}, None)
    assert running.runner.has_state
    running.runner.configure(Mode.DRY_RUN, {"CPUBurst": True}, "other")
    assert not running.runner.has_state


async def test_a_plugin_begins_anew_after_a_dry_run(running: Running) -> None:
    running.runner.configure(Mode.DRY_RUN, {"CPUBurst": True}, None)
    await running.run()
    running.runner.configure(Mode.DRY_RUN, {"CPUBurst": True}, None)
    assert running.runner.has_state
    running.runner.configure(Mode.ENFORCE, {"CPUBurst": True}, None)
    assert not running.runner.has_state


def raises(error: BaseException) -> Callable[[int], Any]:
    def run(_: int) -> Any:
        raise error

    return run


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raises(ValueError("no samples")), "ValueError: no samples"),
        (raises(SystemExit(3)), "SystemExit: 3"),
        (raises(TimeoutError("own")), "TimeoutError: own"),
        (raises(asyncio.CancelledError()), "CancelledError"),
        (lambda _: None, "its decision cannot be used: it is NoneType, not Decision"),
        (lambda state: (state, ()), "its decision cannot be used: it is tuple, not Decision"),
    ],
)
async def test_a_failed_run_is_reported_once_and_tried_again_with_pauses(
    running: Running, caplog: pytest.LogCaptureFixture, answer: Callable[[int], Any], reason: str
) -> None:
    good, running.plugin.answer = running.plugin.answer, answer
    pauses: list[float] = []
    for _ in range(8):
        assert await running.run() is None
        started_s = running.clock.now_s
        while not running.runner.is_due(running.clock.now_s):
            running.clock.now_s += 0.5
        pauses.append(running.clock.now_s - started_s)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert running.runner.problem == reason
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    # The pauses are 63 s and longer together: once a minute.
    assert lines[0] == f"scripted: left out for 1 s: {reason}"
    assert len(lines) < 5
    running.plugin.answer = good
    assert (await running.run()).claims == (QUOTA,)
    assert running.runner.problem == ""
    assert await running.run() is not None


async def test_a_run_that_hangs_is_given_up_and_not_made_twice() -> None:
    release, begun = threading.Event(), []

    def hang(state: int) -> Decision[int]:
        begun.append(state)
        release.wait(30)
        return Decision(state + 1)

    running = Running(hang)
    running.runner._time_limit_s = 0.01
    assert await running.run() is None
    assert running.runner.problem == "no decision within 0.01 s"
    assert await running.run() is None
    assert running.runner.problem == "it still hangs"
    hanging = running.runner._hanging
    assert hanging is not None
    release.set()
    await asyncio.wrap_future(hanging)
    assert begun == [0]
    running.runner._time_limit_s = 30.0
    # What the late run returned does not count: the state is that of before.
    assert (await running.run()).state == 1
    running.runner.close()


NONSENSE: list[tuple[Any, str]] = [
    (Decision(1, None), "claims is NoneType, not a sequence"),  # type: ignore[arg-type]
    (Decision(1, "QUOTA"), "claims is str, not a sequence"),  # type: ignore[arg-type]
    (Decision(1, (1,)), "claims has int, not Claim"),  # type: ignore[arg-type]
    (Decision(1, (), (QUOTA,)), "evictions has Claim, not Eviction"),  # type: ignore[arg-type]
    (Decision(1, (), (Eviction("", "why"),)), "an eviction has no uid or no reason"),
    (Decision(1, (), (Eviction("u", ""),)), "an eviction has no uid or no reason"),
    (Decision(1, explanation=5), "explanation is not a text"),  # type: ignore[arg-type]
    (
        Decision(1, (QUOTA, QUOTA._replace(value=1_000))),
        "two claims for cpu.cfs_quota_us of qos_class BestEffort with the role at_most",
    ),
    (Decision(1, (QUOTA._replace(target=("pod", "1")),)), "a claim has the target ('pod', '1')"),  # type: ignore[arg-type]
    (
        Decision(1, (QUOTA._replace(target=Target(Level.NODE)),)),
        "a claim has the target <ClaimLevel.NODE: 'node'> ''",
    ),
    (
        Decision(1, (QUOTA._replace(role="at_most"),)),  # type: ignore[arg-type]
        "'cpu.cfs_quota_us' of qos_class BestEffort has no field, role or reason",
    ),
    (
        Decision(1, (QUOTA._replace(role=Role.SCALE),)),
        "'cpu.cfs_quota_us' of qos_class BestEffort has no field, role or reason",
    ),
    (
        Decision(1, (QUOTA._replace(value=1.5),)),  # type: ignore[arg-type]
        "'cpu.cfs_quota_us' of qos_class BestEffort is 1.5",
    ),
    (
        Decision(1, (QUOTA._replace(value=True),)),
        "'cpu.cfs_quota_us' of qos_class BestEffort is True",
    ),
    (
        Decision(1, (QUOTA._replace(ceiling=5),)),
        "'cpu.cfs_quota_us' of qos_class BestEffort has the ceiling 5, and the role at_most",
    ),
    (Decision(1, (QUOTA,) * 10_001), "claims has 10001 entries, at most 10000 are possible"),
    (
        Decision(1, (), (Eviction("u", "why"),) * 65),
        "evictions has 65 entries, at most 64 are possible",
    ),
    (Decision(1, (), (Eviction("u\n", "why"),)), "an eviction has no uid or no reason"),
    (Decision(1, (), (Eviction("u", "why", -1),)), "an eviction has the grace period -1"),
    (Decision(1, (), (Eviction("u", "why", nan),)), "an eviction has the grace period nan"),
    (Decision(1, (), (Eviction("u", "why", 3_601),)), "an eviction has the grace period 3601"),
    (Decision(1, left_out=()), "left_out is no mapping of at most 16 texts"),  # type: ignore[arg-type]
    (
        Decision(1, left_out=dict.fromkeys("abcdefghijklmnopq", ())),
        "left_out is no mapping of at most 16 texts",
    ),
    (Decision(1, left_out={"": ()}), "left_out has a key that is no text"),
    (Decision(1, pod_notes={"w 1.0": "uid"}), "pod_notes has no uids of pods"),
    (Decision(1, left_out={"why": "uid"}), "left_out has no uids of pods"),
    (Decision(1, left_out={"why": [1]}), "left_out has no uids of pods"),  # type: ignore[list-item]
    (
        Decision(1, (QUOTA._replace(value=1 << 63),)),
        "'cpu.cfs_quota_us' of qos_class BestEffort is 9223372036854775808",
    ),
    (
        Decision(1, (QUOTA._replace(value="0" * 4_097),)),
        f"'cpu.cfs_quota_us' of qos_class BestEffort is '{'0' * 99}",
    ),
    (
        Decision(1, (QUOTA._replace(target=Target(Level.POD, "\x1b[2J")),)),
        "a claim has the target <ClaimLevel.POD: 'pod'> '\\x1b[2J'",
    ),
    (
        # Neither can be sent, and the log would have it.
        Decision(1, (QUOTA._replace(reason="\ud800"),)),
        "'cpu.cfs_quota_us' of qos_class BestEffort has no field, role or reason",
    ),
    (
        Decision(1, (QUOTA._replace(role=Role.ADD, ceiling=1 << 64),)),
        "'cpu.cfs_quota_us' of qos_class BestEffort has the ceiling 18446744073709551616, and the role add",
    ),
]


@pytest.mark.parametrize(("answer", "problem"), NONSENSE, ids=[problem for _, problem in NONSENSE])
def test_what_is_wrong_with_a_decision_is_named(answer: Any, problem: str) -> None:
    assert decision_problem(answer) == problem


def test_a_decision_may_have_everything() -> None:
    add = Claim(Target(Level.CONTAINER, "c"), "cpu.cfs_quota_us", Role.ADD, 5_000, 20_000)
    decision = Decision(None, [QUOTA, add], [Eviction("u", "why")], "because")
    assert decision_problem(decision) == ""


def test_a_claim_that_is_there_twice_among_thousands_is_found_at_once() -> None:
    many = [QUOTA._replace(target=Target(Level.POD, f"p{number}")) for number in range(10_000)]
    assert decision_problem(Decision(1, many)) == ""
    many[-1] = many[-2]
    assert decision_problem(Decision(1, many)).startswith("two claims for cpu.cfs_quota_us of pod p9998")
