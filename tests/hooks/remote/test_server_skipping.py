"""A hook server that does not answer is skipped, until it answers again."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks.decision import FailureKind, ServerError
from runtimeproxy.hooks.remote.server import HookServer
from tests.hooks.asking import until
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server import HookServing
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.hooks.remote.servers import (
    POD,
    POST,
    POST_POD,
    PRE,
    PROBE_INTERVAL_S,
    TIMEOUT_S,
    answers,
    ask,
    concerns,
    fail,
    registration,
)

HASTY = pytest.mark.parametrize("timeout_s", [TIMEOUT_S], ids=["hasty"])


async def test_errors_of_the_server_do_not_open_the_breaker(
    ignored: HookServer, serving: HookServing
) -> None:
    serving.behave(Behaviour(kind="error"))
    await fail(ignored, 5)
    assert concerns(ignored)
    assert not ignored.trouble


@HASTY
async def test_a_server_that_is_skipped(
    ignored: HookServer, serving: HookServing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    serving.behave(Behaviour(kind="hang"))
    await fail(ignored, 2)
    assert concerns(ignored)
    await fail(ignored, 1)
    assert not concerns(ignored)
    assert "no answer within" in ignored.trouble
    asked = len(serving.asked.splitlines())
    begun_s = time.monotonic()
    assert [await ask(ignored) for _ in range(100)] == [None] * 100
    took_s = time.monotonic() - begun_s
    assert took_s < 50 * TIMEOUT_S, "100 if each is waited for"
    # The probes, one or two in each timeout.
    assert len(serving.asked.splitlines()) - asked <= 5 + 3 * took_s / TIMEOUT_S
    serving.behave(Behaviour())
    await until(lambda: concerns(ignored))
    await answer_of(ignored)
    messages = [record.message for record in caplog.records if record.name.endswith("remote.server")]
    skipped, back, *_ = messages
    assert skipped == (
        "hook server koordlet.json is skipped until it answers again:"
        " DEADLINE_EXCEEDED: no answer within 0.2 s"
    )
    assert back.startswith("hook server koordlet.json answers again after ")


@HASTY
async def test_a_strict_server_that_is_skipped(strict: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang"))
    await fail(strict, 3)
    assert concerns(strict)
    for hook in (PRE, POST):
        with pytest.raises(ServerError) as caught:
            await ask(strict, hook)
        assert (caught.value.kind, caught.value.code) == (FailureKind.SKIPPED, StatusCode.UNAVAILABLE)
        assert caught.value.text.startswith("not called since 20")
        assert caught.value.text.endswith("Z: DEADLINE_EXCEEDED: no answer within 0.2 s")
    serving.behave(Behaviour())
    await until(lambda: not strict.trouble)
    await answer_of(strict)


@HASTY
async def test_a_server_whose_hooks_hang_is_not_believed(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang", hooks=("PreCreateContainerHook",)))
    await fail(ignored, 3)
    asked = len(serving.asked.splitlines())
    await until(lambda: len(serving.asked.splitlines()) > asked + 1)
    assert not concerns(ignored)


@HASTY
async def test_a_server_of_which_only_post_hooks_failed(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang"))
    await fail(ignored, 3, POST_POD, POD)
    await until(lambda: concerns(ignored))
    # A question may come there after its time is over.
    assert len(serving.asked.splitlines()) <= 3, "what has happened is not told twice"


async def test_an_undecodable_answer_does_not_close_the_breaker(
    ignored: HookServer, serving: HookServing
) -> None:
    serving.behave(Behaviour(kind="undecodable"))
    await fail(ignored, 3)
    asked = len(serving.asked.splitlines())
    await until(lambda: len(serving.asked.splitlines()) > asked + 1)
    assert not concerns(ignored)


async def test_a_slow_server_closes_the_breaker(
    folder: Path, made: list[HookServer], serving: HookServing
) -> None:
    slow = HookServer(
        registration(folder, timeout_s=10.0), short_probe_s=0.05, probe_interval_s=PROBE_INTERVAL_S
    )
    made.append(slow)
    serving.behave(Behaviour(kind="undecodable"))
    await fail(slow, 3)
    serving.behave(Behaviour(kind="late", seconds=0.2))
    await until(lambda: concerns(slow))


async def test_a_server_that_crashes_and_comes_back(folder: Path, ignored: HookServer) -> None:
    with HookServerProcess(folder / "hook.sock", Behaviour(kind="crash")) as process:
        with pytest.raises(ServerError):
            await ask(ignored)
        assert process.wait() == 3
        await fail(ignored, 2)
        assert not concerns(ignored)
    with HookServerProcess(folder / "hook.sock") as process:
        await until(lambda: concerns(ignored))
        assert await ask(ignored) is None
        assert {each.hook for each in process.asked()} == {"PreCreateContainerHook"}


async def test_closing_ends_the_probes(ignored: HookServer) -> None:
    await fail(ignored, 3)
    assert is_probed(ignored)
    ignored.close()
    assert not is_probed(ignored)


def is_probed(server: HookServer) -> bool:
    return server._prober.is_running


async def answer_of(server: HookServer) -> None:
    """Waits until it answers; with little time it does not always on a busy machine."""
    for _ in range(30):
        if await answers(server):
            return
    pytest.fail("no answer")
