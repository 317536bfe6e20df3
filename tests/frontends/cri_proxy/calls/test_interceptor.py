"""Calls that arrive before records and policies are loaded."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH, METHODS_OF, NAMES
from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Outcome, Reply
from runtimeproxy.hooks import FailurePolicy
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

    def keep(self, size_bytes: int) -> bool:
        return True


class Real:
    """Makes handlers that note their calls and forward every message with one byte more."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.heads: list[CallHead] = []

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        self.told.append(("open", head.path))
        self.heads.append(head)
        return RealCall(self, reply)


@dataclass
class RealCall:
    real: Real
    reply: Reply

    def on_message(self, data: bytes) -> None:
        self.real.told.append(("message", data))
        self.reply.forward(data + b"!")

    def on_cancelled(self) -> None:
        self.real.told.append("cancelled")

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        self.real.told.append(("responded", outcome, data))


def interceptor_of(budget_s: float, on_unseen: Callable[[], None] | None = None) -> CallInterceptor:
    return CallInterceptor(CallSettings(budget_s=budget_s), on_unseen)


@pytest.fixture
async def interceptor() -> CallInterceptor:
    return interceptor_of(5.0)


def test_importing_it_loads_neither_protobuf_nor_policies() -> None:
    code = "import sys, runtimeproxy.frontends.cri_proxy.calls.interceptor; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"google.protobuf", "grpc", "runtimeproxy.hooks.chain", "runtimeproxy.pods.store"} & set(
        found.stdout.split()
    )


async def test_other_calls_and_all_calls_of_a_bypass_pass(interceptor: CallInterceptor) -> None:
    assert interceptor.intercepts(PATH)
    assert not interceptor.intercepts("/runtime.v1.RuntimeService/Version")
    interceptor.bypass = True
    assert not interceptor.intercepts(PATH)


async def test_a_message_waits_and_is_handed_over(interceptor: CallInterceptor) -> None:
    answers, real = Answers(), Real()
    call = interceptor.open(HEAD, answers)
    call.on_message(b"create")
    assert answers.given == []
    interceptor.start(real.open)
    assert answers.given == [("forward", b"create!")]
    call.on_response(Outcome.SUCCEEDED, b"id")
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
    policy = FailurePolicy.FAIL if refuses else FailurePolicy.IGNORE
    interceptor = CallInterceptor(CallSettings(budget_s=0.01, on_failure=policy))
    interceptor.open(HEAD, answers).on_message(b"create")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    assert answers.given == [expected]


async def test_a_call_whose_message_comes_later(interceptor: CallInterceptor) -> None:
    answers, real = Answers(), Real()
    call = interceptor.open(HEAD, answers)
    interceptor.start(real.open)
    assert real.told == [("open", PATH)]
    call.on_message(b"create")
    assert answers.given == [("forward", b"create!")]
    call.on_cancelled()
    assert real.told[-1] == "cancelled"


async def test_calls_keep_their_order(interceptor: CallInterceptor) -> None:
    real = Real()
    for number in range(3):
        interceptor.open(HEAD, Answers()).on_message(b"%d" % number)
    interceptor.start(real.open)
    assert [told for told in real.told if told[0] == "message"] == [  # type: ignore[index]
        ("message", b"0"),
        ("message", b"1"),
        ("message", b"2"),
    ]


async def test_a_cancelled_call_is_not_handed_over(interceptor: CallInterceptor) -> None:
    real = Real()
    call = interceptor.open(HEAD, Answers())
    call.on_message(b"create")
    call.on_cancelled()
    interceptor.start(real.open)
    assert real.told == []


async def test_a_call_that_ends_with_the_decision_on_an_earlier_one_is_not_handed_over(
    interceptor: CallInterceptor,
) -> None:
    """Its connection may break when the earlier one is forwarded."""
    real = Real()
    calls = [interceptor.open(HEAD, Answers()) for _ in range(2)]
    for call in calls:
        call.on_message(b"create")

    def open_call(head: CallHead, reply: Reply) -> CallHandler:
        calls[1].on_cancelled()
        return real.open(head, reply)

    interceptor.start(open_call)
    assert real.told == [("open", PATH), ("message", b"create")]


async def test_later_calls_go_straight_to_the_real_one(interceptor: CallInterceptor) -> None:
    interceptor.start(Real().open)
    assert isinstance(interceptor.open(HEAD, Answers()), RealCall)


@pytest.mark.parametrize(("budget_s", "timeout_s"), [(0.01, None), (600.0, 0.04)])
async def test_a_call_waits_no_longer_than_its_budget(budget_s: float, timeout_s: float | None) -> None:
    interceptor, answers, real = interceptor_of(budget_s), Answers(), Real()
    call = interceptor.open(CallHead(PATH, timeout_s, "identity"), answers)
    call.on_message(b"create")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    assert answers.given == [("forward", None)]
    interceptor.start(real.open)
    call.on_response(Outcome.SUCCEEDED, b"id")
    assert real.told == []


async def test_the_real_one_learns_how_long_a_call_has_waited(interceptor: CallInterceptor) -> None:
    real, loop = Real(), asyncio.get_running_loop()
    opened_s = loop.time()
    interceptor.open(HEAD, Answers()).on_message(b"create")
    began_s = loop.time()
    await until(lambda: loop.time() >= began_s + 0.01)
    interceptor.start(real.open)
    (head,) = real.heads
    assert 0.0099 <= head.waited_s <= loop.time() - opened_s
    assert (head.path, head.timeout_s, head.encoding) == (HEAD.path, HEAD.timeout_s, HEAD.encoding)


async def test_a_call_whose_message_has_not_come_has_not_waited(interceptor: CallInterceptor) -> None:
    real = Real()
    interceptor.open(HEAD, Answers())
    interceptor.start(real.open)
    assert real.heads == [HEAD]


@pytest.mark.parametrize("end", ["cancelled", "passed", "handed-over"])
async def test_calls_that_have_ended_are_forgotten(end: str) -> None:
    interceptor, answers = interceptor_of(0.001 if end == "passed" else 5.0), Answers()
    call = interceptor.open(HEAD, answers)
    call.on_message(b"create")
    if end == "cancelled":
        call.on_cancelled()
    elif end == "passed":
        await asyncio.wait_for(answers.is_given.wait(), 30)
    else:
        interceptor.start(Real().open)
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
    told: list[None] = []
    interceptor, answers = interceptor_of(0.01, lambda: told.append(None)), Answers()
    call = interceptor.open(HEAD, answers)
    call.on_message(b"create")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    interceptor.start(Real().open)
    call.on_response(outcome, b"")
    assert len(told) == times


async def test_stop_and_remove_wait_less() -> None:
    interceptor = CallInterceptor(CallSettings(budget_s=600.0, end_wait_s=0.01))
    answers = Answers()
    head = CallHead("/runtime.v1.RuntimeService/StopContainer", None, "identity")
    interceptor.open(head, answers).on_message(b"stop")
    async with asyncio.timeout(30):
        await answers.is_given.wait()
    assert answers.given == [("forward", None)]


def test_all_methods_of_the_cri_have_their_names() -> None:
    services = api_pb2.DESCRIPTOR.services_by_name
    assert {
        service: tuple(each.name for each in services[service].methods) for service in services
    } == METHODS_OF
    assert BY_PATH.keys() <= NAMES.keys()
    assert all(NAMES[path] == method.kind for path, method in BY_PATH.items())
