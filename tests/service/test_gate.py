"""Calls that come before the real interceptor is there."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from runtimeproxy.calls.methods import BY_PATH
from runtimeproxy.interception import CallHandler, CallHead, Outcome, Reply
from runtimeproxy.service.gate import HELD_PATHS, Gate
from tests.peers.aio import until

PATH = "/runtime.v1.RuntimeService/CreateContainer"
HEAD = CallHead(PATH, None, "identity")


@dataclass
class Answers:
    """A relay's end of one call."""

    given: list[object] = field(default_factory=list)
    is_given: asyncio.Event = field(default_factory=asyncio.Event)

    def forward(self, data: bytes | None) -> None:
        self.given.append(("forward", data))
        self.is_given.set()

    def refuse(self, code: int, text: str) -> None:
        self.given.append(("refuse", code, text))
        self.is_given.set()

    def reserve(self, size_bytes: int, on_granted: Callable[[], None]) -> None:
        on_granted()


class Real:
    """An interceptor that notes what it is told and forwards every call with one byte more."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.heads: list[CallHead] = []

    def holds(self, path: str) -> bool:
        return True

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        self.told.append(("open", head.path))
        self.heads.append(head)
        return RealCall(self, reply)


@dataclass
class RealCall:
    real: Real
    reply: Reply

    def message(self, data: bytes) -> None:
        self.real.told.append(("message", data))
        self.reply.forward(data + b"!")

    def cancelled(self) -> None:
        self.real.told.append("cancelled")

    def responded(self, outcome: Outcome, data: bytes) -> None:
        self.real.told.append(("responded", outcome, data))


@pytest.fixture
async def gate() -> Gate:
    return Gate(5.0)


def test_it_holds_the_calls_that_the_real_one_holds() -> None:
    assert BY_PATH.keys() == HELD_PATHS


async def test_other_calls_and_all_calls_of_a_bypass_pass(gate: Gate) -> None:
    assert gate.holds(PATH)
    assert not gate.holds("/runtime.v1.RuntimeService/Version")
    gate.bypass = True
    assert not gate.holds(PATH)


async def test_a_message_waits_and_is_handed_over(gate: Gate) -> None:
    answers, real = Answers(), Real()
    call = gate.open(HEAD, answers)
    call.message(b"create")
    assert answers.given == []
    gate.hand_over(real)
    assert answers.given == [("forward", b"create!")]
    call.responded(Outcome.SUCCEEDED, b"id")
    assert real.told == [("open", PATH), ("message", b"create"), ("responded", Outcome.SUCCEEDED, b"id")]


@pytest.mark.parametrize(
    ("refuses", "expected"),
    [
        pytest.param(False, ("forward", None), id="forward"),
        pytest.param(
            True, ("refuse", 14, "koord-runtime-proxy: the policies are not loaded yet"), id="refuse"
        ),
    ],
)
async def test_a_call_that_nobody_can_decide_on_in_time(refuses: bool, expected: object) -> None:
    answers = Answers()
    Gate(0.01, refuses=refuses).open(HEAD, answers).message(b"create")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    assert answers.given == [expected]


async def test_a_call_whose_message_comes_later(gate: Gate) -> None:
    answers, real = Answers(), Real()
    call = gate.open(HEAD, answers)
    gate.hand_over(real)
    assert real.told == [("open", PATH)]
    call.message(b"create")
    assert answers.given == [("forward", b"create!")]
    call.cancelled()
    assert real.told[-1] == "cancelled"


async def test_calls_keep_their_order(gate: Gate) -> None:
    real = Real()
    for number in range(3):
        gate.open(HEAD, Answers()).message(b"%d" % number)
    gate.hand_over(real)
    assert [told for told in real.told if told[0] == "message"] == [  # type: ignore[index]
        ("message", b"0"),
        ("message", b"1"),
        ("message", b"2"),
    ]


async def test_a_cancelled_call_is_not_handed_over(gate: Gate) -> None:
    real = Real()
    call = gate.open(HEAD, Answers())
    call.message(b"create")
    call.cancelled()
    gate.hand_over(real)
    assert real.told == []


async def test_later_calls_go_straight_to_the_real_one(gate: Gate) -> None:
    gate.hand_over(Real())
    assert isinstance(gate.open(HEAD, Answers()), RealCall)


@pytest.mark.parametrize(("budget_s", "timeout_s"), [(0.01, None), (600.0, 0.04)])
async def test_a_call_waits_no_longer_than_its_budget(budget_s: float, timeout_s: float | None) -> None:
    gate, answers, real = Gate(budget_s), Answers(), Real()
    call = gate.open(CallHead(PATH, timeout_s, "identity"), answers)
    call.message(b"create")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    assert answers.given == [("forward", None)]
    gate.hand_over(real)
    call.responded(Outcome.SUCCEEDED, b"id")
    assert real.told == []


async def test_the_real_one_learns_how_long_a_call_has_waited(gate: Gate) -> None:
    real, loop = Real(), asyncio.get_running_loop()
    opened_s = loop.time()
    gate.open(HEAD, Answers()).message(b"create")
    began_s = loop.time()
    await until(lambda: loop.time() >= began_s + 0.01)
    gate.hand_over(real)
    (head,) = real.heads
    assert 0.01 <= head.waited_s <= loop.time() - opened_s
    assert (head.path, head.timeout_s, head.encoding) == (HEAD.path, HEAD.timeout_s, HEAD.encoding)


async def test_a_call_whose_message_has_not_come_has_not_waited(gate: Gate) -> None:
    real = Real()
    gate.open(HEAD, Answers())
    gate.hand_over(real)
    assert real.heads == [HEAD]


@pytest.mark.parametrize("end", ["cancelled", "passed", "handed-over"])
async def test_calls_that_have_ended_are_forgotten(end: str) -> None:
    gate, answers = Gate(0.001 if end == "passed" else 5.0), Answers()
    call = gate.open(HEAD, answers)
    call.message(b"create")
    if end == "cancelled":
        call.cancelled()
    elif end == "passed":
        await asyncio.wait_for(answers.is_given.wait(), 30)
    else:
        gate.hand_over(Real())
    left = weakref.ref(answers)
    del call, answers
    # The timer that ran is the loop's for one more turn.
    await asyncio.sleep(0)
    gc.collect()
    assert left() is None


@pytest.mark.parametrize(
    ("outcome", "times"), [(Outcome.SUCCEEDED, 1), (Outcome.UNKNOWN, 1), (Outcome.FAILED, 0)]
)
async def test_a_call_that_was_forwarded_from_here_is_told(outcome: Outcome, times: int) -> None:
    gate, answers = Gate(0.01), Answers()
    told: list[None] = []
    gate.on_unseen = lambda: told.append(None)
    call = gate.open(HEAD, answers)
    call.message(b"create")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    gate.hand_over(Real())
    call.responded(outcome, b"")
    assert len(told) == times
