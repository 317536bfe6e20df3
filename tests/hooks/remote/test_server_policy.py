"""A hook server as a policy: what it is asked, what it answers, how it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.call import Order
from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.changes import CLEAR, ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.loaded import MAX_PRIORITY
from runtimeproxy.hooks.remote.breaker import FAILURES_TO_OPEN
from runtimeproxy.hooks.remote.client import AnsweredError, LateError, UndecodableError, UnreachableError
from runtimeproxy.hooks.remote.registration import HOOK_NAMES
from runtimeproxy.hooks.remote.server_policy import ENOUGH_S, HookServer
from runtimeproxy.hooks.workers import Workers
from tests.hooks.asking import until
from tests.hooks.remote.behaviours import OVERLAY, Behaviour
from tests.hooks.remote.hook_server import HookServing
from tests.hooks.remote.servers import PATIENT_S, POD, POST, PRE, TIMEOUT_S, VIEW, ask, concerns, registration
from tests.lab.deadline import wait_until


def with_overlay(text: str) -> ContainerView:
    return replace(VIEW, pod=replace(POD, annotations={OVERLAY: text}))


def test_the_policy_of_a_server(folder: Path, ignored: HookServer) -> None:
    loaded = ignored.loaded()
    assert (loaded.name, loaded.origin) == ("koordlet.json", str(folder / "hook.sock"))
    assert loaded.priority > MAX_PRIORITY
    assert PATIENT_S < loaded.timeout_s < PATIENT_S + 1
    assert loaded.blocks
    assert not loaded.refuses_on_failure
    assert set(loaded.methods) == set(HOOK_NAMES.values())


def test_only_its_hooks(folder: Path, made: list[HookServer]) -> None:
    made.append(HookServer(registration(folder, hooks=frozenset({POST}))))
    assert set(made[-1].loaded().methods) == {POST}


def test_koordlet_clears_a_cpuset(ignored: HookServer, serving: HookServing) -> None:
    change = ask(ignored, view=with_overlay('{"cpuset_cpus": "", "env": {"GPU": "0"}}'))
    assert change == ContainerChange(resources=ResourceChange(cpuset_cpus=CLEAR), env={"GPU": "0"})


def test_a_partial_server(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="partial"))
    assert ask(ignored, view=with_overlay('{"cpu_shares": 100}')) == ContainerChange(
        resources=ResourceChange(cpu_shares=100)
    )


def test_a_pod(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(overlay={"labels": {"l": "1"}}))
    assert ask(ignored, Hook.PRE_RUN_POD_SANDBOX, POD) == PodChange(labels={"l": "1"})


def test_post_hooks_change_nothing(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="nonsense"))
    assert ask(ignored, POST) is None
    serving.behave(Behaviour(kind="undecodable"))
    assert ask(ignored, POST) is None
    assert concerns(ignored)


KINDS = {
    "an error": ("error", AnsweredError, PATIENT_S),
    "hanging": ("hang", LateError, TIMEOUT_S),
    "undecodable": ("undecodable", UndecodableError, PATIENT_S),
}


@pytest.mark.parametrize(("kind", "error", "timeout_s"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("hook", [PRE, POST])
def test_failures_that_are_ignored(
    ignored: HookServer, serving: HookServing, kind: str, error: type[Exception], hook: Hook
) -> None:
    serving.behave(Behaviour(kind=kind))
    if kind == "undecodable" and hook is POST:
        assert ask(ignored, hook) is None
        return
    with pytest.raises(error):
        ask(ignored, hook)


def test_a_refusal_keeps_code_and_text(strict: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="error", code="RESOURCE_EXHAUSTED", text="no CPU left"))
    with pytest.raises(RefusalError) as caught:
        ask(strict)
    assert (caught.value.code, caught.value.text) == (
        StatusCode.RESOURCE_EXHAUSTED,
        "hook server err: no CPU left",
    )


def test_what_has_happened_is_not_refused(strict: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="error"))
    with pytest.raises(AnsweredError):
        ask(strict, POST)


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S], ids=["hasty"])
def test_a_strict_server_that_is_late(strict: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="hang"))
    with pytest.raises(RefusalError) as caught:
        ask(strict)
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert caught.value.text == "hook server err: no answer within 1 s"


@pytest.mark.parametrize("left_s", [0.3, 0.0, -5.0], ids=["a little", "none", "less than none"])
async def test_a_call_whose_time_is_nearly_up_is_cut_short_and_no_failure_of_the_server(
    ignored: HookServer, serving: HookServing, workers: Workers, left_s: float
) -> None:
    serving.behave(Behaviour(kind="hang"))
    chain = Chain([ignored.loaded()], workers)
    for _ in range(FAILURES_TO_OPEN):
        await chain.decide(Order(PRE, VIEW, left_s))
    await until(lambda: not chain.hung)
    assert concerns(ignored)


async def test_one_that_hangs_is_skipped_though_its_own_timeout_is_longer_than_a_call_has(
    folder: Path, made: list[HookServer], serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(kind="hang"))
    server = HookServer(registration(folder, timeout_s=60.0))
    made.append(server)
    chain = Chain([server.loaded()], workers)
    # A busy machine may leave an RPC less time than enough, and then that call counts for nothing.
    for _ in range(10 * FAILURES_TO_OPEN):
        if concerns(server):
            await chain.decide(Order(PRE, VIEW, ENOUGH_S + 0.3))
            await until(lambda: not chain.hung)
    assert not concerns(server)


def test_an_error_does_not_tell_secrets(
    ignored: HookServer, serving: HookServing, strict: HookServer
) -> None:
    serving.behave(Behaviour(kind="error", text="bad TOKEN=secret-value on port 80"))
    for server in (ignored, strict):
        with pytest.raises(RuntimeProxyError) as caught:
            ask(server)
        assert "bad TOKEN=*** on port 80" in str(caught.value)


SECRETS = {
    "one in another": ({"A": b"password", "B": b"password-of-b"}, "bad password-of-b", "bad ***"),
    "lines with escaped ends": (
        {"KEY": b"first line\nsecond line\n"},
        r"'first line\nsecond line\n'",
        r"'***\n***\n'",
    ),
    "longer than what is told": ({"KEY": b"k" * 2_000}, "bad " + "k" * 2_000, "bad ***"),
    "where the text is cut": ({"KEY": b"k" * 100}, "x" * 1_000 + "k" * 100, "x" * 1_000 + "***"),
}


@pytest.mark.parametrize(("env", "text", "told"), SECRETS.values(), ids=SECRETS)
def test_no_part_of_a_secret_is_told(
    ignored: HookServer, serving: HookServing, env: dict[str, bytes], text: str, told: str
) -> None:
    serving.behave(Behaviour(kind="error", text=text))
    with pytest.raises(AnsweredError) as caught:
        ask(ignored, view=replace(VIEW, env=env))
    assert caught.value.text == told


def test_a_long_error_is_cut(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="error", text="x" * 5_000))
    with pytest.raises(AnsweredError) as caught:
        ask(ignored)
    assert len(str(caught.value)) < 1_100


def test_no_server(ignored: HookServer) -> None:
    with pytest.raises(UnreachableError):
        ask(ignored)


def test_closing_waits_for_calls(folder: Path, made: list[HookServer], serving: HookServing) -> None:
    server = HookServer(registration(folder, timeout_s=30.0))
    made.append(server)
    serving.behave(Behaviour(kind="hang"))
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(ask(server)))
    thread.start()
    wait_until(lambda: serving.asked, "the call is under way")
    server.close()
    serving.behave(Behaviour())
    thread.join(30)
    assert answers == [None]
    assert ask(server) is None, "a call that began with the old policies may still come"


def test_many_threads(ignored: HookServer, serving: HookServing) -> None:
    errors: list[RuntimeProxyError] = []
    threads = [threading.Thread(target=_collect(errors, lambda: ask(ignored))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors


def _collect(errors: list[RuntimeProxyError], call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        try:
            for _ in range(20):
                call()
        except RuntimeProxyError as error:
            errors.append(error)

    return run
