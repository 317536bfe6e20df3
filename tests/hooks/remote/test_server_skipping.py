"""A hook server that does not answer is skipped, until it answers again."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks.remote.client import UnreachableError
from runtimeproxy.hooks.remote.server_policy import HookServer, SkippedError
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server import HookServing
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.hooks.remote.servers import (
    POD,
    POST,
    POST_POD,
    TIMEOUT_S,
    answers,
    ask,
    concerns,
    fail,
    registration,
)
from tests.lab.deadline import time_s, wait_until

HASTY = pytest.mark.parametrize("timeout_s", [TIMEOUT_S], ids=["hasty"])


def test_errors_of_the_server_do_not_open_the_breaker(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="error"))
    fail(ignored, 5)
    assert concerns(ignored)
    assert not ignored.trouble


@HASTY
def test_a_server_that_is_skipped(
    ignored: HookServer, serving: HookServing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    serving.behave(Behaviour(kind="hang"))
    fail(ignored, 2)
    assert concerns(ignored)
    fail(ignored, 1)
    assert not concerns(ignored)
    assert "no answer within" in ignored.trouble
    asked = len(serving.asked.splitlines())
    took_s = time_s(lambda: [ask(ignored) for _ in range(100)])
    assert took_s < 50 * TIMEOUT_S, "100 if each is waited for"
    # The probes, one or two a second.
    assert len(serving.asked.splitlines()) - asked <= 5 + 3 * took_s
    serving.behave(Behaviour())
    wait_until(lambda: concerns(ignored), "the server is used again")
    wait_until(lambda: answers(ignored), "an answer")
    messages = [record.message for record in caplog.records if record.name.endswith("server_policy")]
    skipped, back, *_ = messages
    assert skipped == (
        "hook server koordlet.json is skipped until it answers again: DEADLINE_EXCEEDED: no answer within 1 s"
    )
    assert back.startswith("hook server koordlet.json answers again after ")


@HASTY
def test_a_strict_server_that_is_skipped(strict: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang"))
    fail(strict, 3)
    assert concerns(strict)
    with pytest.raises(RefusalError) as caught:
        ask(strict)
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert caught.value.text.startswith("hook server err: not asked since 20")
    assert caught.value.text.endswith("Z: DEADLINE_EXCEEDED: no answer within 1 s")
    with pytest.raises(SkippedError):
        ask(strict, POST)
    serving.behave(Behaviour())
    wait_until(lambda: not strict.trouble, "the server is used again")
    wait_until(lambda: answers(strict), "an answer")


@HASTY
def test_a_server_whose_hooks_hang_is_not_believed(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang", hooks=("PreCreateContainerHook",)))
    fail(ignored, 3)
    asked = len(serving.asked.splitlines())
    wait_until(lambda: len(serving.asked.splitlines()) > asked + 1, "two probes")
    assert not concerns(ignored)


@HASTY
def test_a_server_of_which_only_post_hooks_failed(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang"))
    fail(ignored, 3, POST_POD, POD)
    asked = serving.asked
    wait_until(lambda: concerns(ignored), "the server lives")
    assert serving.asked == asked, "what has happened is not told twice"


def test_an_undecodable_answer_does_not_close_the_breaker(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="undecodable"))
    fail(ignored, 3)
    asked = len(serving.asked.splitlines())
    wait_until(lambda: len(serving.asked.splitlines()) > asked + 1, "two probes")
    assert not concerns(ignored)


def test_a_slow_server_closes_the_breaker(folder: Path, made: list[HookServer], serving: HookServing) -> None:
    slow = HookServer(registration(folder, timeout_s=10.0), short_probe_s=0.2)
    made.append(slow)
    serving.behave(Behaviour(kind="undecodable"))
    fail(slow, 3)
    serving.behave(Behaviour(kind="late", seconds=0.6))
    wait_until(lambda: concerns(slow), "the slow server is used again")


def test_a_server_that_crashes_and_comes_back(folder: Path, ignored: HookServer) -> None:
    with HookServerProcess(folder / "hook.sock", Behaviour(kind="crash")) as process:
        with pytest.raises(UnreachableError):
            ask(ignored)
        assert process.wait() == 3
        fail(ignored, 2)
        assert not concerns(ignored)
    with HookServerProcess(folder / "hook.sock") as process:
        wait_until(lambda: concerns(ignored), "the server is used again")
        assert ask(ignored) is None
        assert {each.hook for each in process.asked()} == {"PreCreateContainerHook"}


def test_closing_ends_the_probes(ignored: HookServer) -> None:
    fail(ignored, 3)
    assert _probes()
    ignored.close()
    wait_until(lambda: not _probes(), "the end of the probes")


def _probes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "probe-koordlet.json"]
