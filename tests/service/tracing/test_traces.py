"""The way of traces to the sender: bounded, in a thread of its own, and with an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from runtimeproxy.config.settings import TracingSettings
from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace
from runtimeproxy.logs import FailureLog
from runtimeproxy.service.tracing import traces
from runtimeproxy.service.tracing.traces import MOST_AT_ONCE, MOST_QUEUED, Traces
from tests.hooks.asking import until

SETTINGS = TracingSettings(endpoint="/nothing")


class ScriptedSender:
    """Fails, or waits, as scripted."""

    def __init__(self, answer: bool | Exception = True) -> None:
        self.answer = answer
        self.may_send = threading.Event()
        self.may_send.set()
        self.batches: list[int] = []
        self.closed = 0

    def made(self, endpoint: str, failures: FailureLog) -> ScriptedSender:
        assert endpoint == SETTINGS.endpoint
        return self

    def send(self, traces: Sequence[CallTrace]) -> bool:
        self.batches.append(len(traces))
        self.may_send.wait(30)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed += 1
        self.may_send.set()


def started(sender: ScriptedSender) -> Traces:
    made = Traces(SETTINGS, sender.made, gather_s=0.0)
    made.start()
    return made


def a_trace(sink: Traces) -> CallTrace:
    return CallTrace("/runtime.v1.RuntimeService/StopContainer", None, sink)


async def test_those_of_one_moment_are_sent_together() -> None:
    sender = ScriptedSender()
    found = started(sender)
    for _ in range(MOST_AT_ONCE + 1):
        found.take(a_trace(found))
    await until(lambda: found.sent == MOST_AT_ONCE + 1)
    assert sender.batches == [MOST_AT_ONCE, 1]
    found.take(a_trace(found))
    found.close()
    assert (found.sent, found.lost, sender.closed) == (MOST_AT_ONCE + 2, 0, 1)


@pytest.mark.parametrize("answer", [False, ValueError("a bug")])
async def test_those_that_cannot_be_sent_are_counted(answer: bool | Exception) -> None:
    found = started(ScriptedSender(answer))
    for count in (1, 2):
        found.take(a_trace(found))
        await until(lambda count=count: found.lost == count)  # type: ignore[misc]
    found.close()
    assert found.sent == 0


async def test_a_library_that_cannot_be_used_costs_the_spans(caplog: pytest.LogCaptureFixture) -> None:
    def fails(endpoint: str, failures: FailureLog) -> ScriptedSender:
        raise ImportError("no such module")

    found = Traces(SETTINGS, fails, gather_s=0.0)
    found.start()
    found.take(a_trace(found))
    await until(lambda: found.lost == 1)
    found.close()
    assert "traces cannot be sent to /nothing" in caplog.text


async def test_the_queue_has_an_end_and_so_has_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "CLOSE_S", 0.05)
    sender = ScriptedSender()
    sender.may_send.clear()
    found = started(sender)
    for _ in range(MOST_QUEUED + 7):
        found.take(a_trace(found))
        await asyncio.sleep(0)
    assert found.lost == 7
    found.close()
    assert sender.closed == 1


async def test_an_end_before_the_start() -> None:
    found = Traces(SETTINGS, ScriptedSender().made)
    found.close()


async def test_the_ratio_counts_at_once() -> None:
    found = Traces(SETTINGS, ScriptedSender().made)
    assert all(found.samples() for _ in range(100))
    found.configure(TracingSettings(endpoint=SETTINGS.endpoint, ratio=0.0))
    assert not any(found.samples() for _ in range(100))
