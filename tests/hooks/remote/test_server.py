"""A hook server as a policy: what it is asked, what it answers, how it fails."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.hooks import ContainerView, Hook, Mode
from runtimeproxy.hooks.chain import SMALL_BYTES, Chain
from runtimeproxy.hooks.changes import CLEAR, ContainerChange, PodChange, ResourceChange
from runtimeproxy.hooks.decision import FailureKind, Refusal, ServerError
from runtimeproxy.hooks.loaded import MAX_PRIORITY
from runtimeproxy.hooks.remote import server as server_module
from runtimeproxy.hooks.remote.protocol import EXCHANGES
from runtimeproxy.hooks.remote.registrations import HOOK_NAMES
from runtimeproxy.hooks.remote.server import FAILURES_TO_OPEN, MAX_ENTRIES, HookServer
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.node.snapshot import Node
from tests.hooks.asking import container_change, decide, until
from tests.hooks.remote.behaviours import OVERLAY, Behaviour
from tests.hooks.remote.hook_server import HookServing
from tests.hooks.remote.servers import PATIENT_S, POD, POST, PRE, TIMEOUT_S, VIEW, ask, concerns, registration


def with_overlay(text: str) -> ContainerView:
    return replace(VIEW, pod=replace(POD, annotations={OVERLAY: text}))


def test_the_policy_of_a_server(folder: Path, ignored: HookServer) -> None:
    loaded = ignored.as_policy()
    assert (loaded.name, loaded.origin) == ("koordlet.json", str(folder / "hook.sock"))
    assert loaded.priority > MAX_PRIORITY
    assert loaded.timeout_s == PATIENT_S
    assert not loaded.refuses_on_failure
    assert set(loaded.remote_hooks) == set(HOOK_NAMES.values())
    assert not loaded.methods


def test_only_its_hooks(folder: Path, made: list[HookServer]) -> None:
    made.append(HookServer(registration(folder, hooks=frozenset({POST}))))
    assert set(made[-1].as_policy().remote_hooks) == {POST}


async def test_koordlet_clears_a_cpuset(ignored: HookServer, serving: HookServing) -> None:
    change = await ask(ignored, view=with_overlay('{"cpuset_cpus": "", "env": {"GPU": "0"}}'))
    assert change == ContainerChange(resources=ResourceChange(cpuset_cpus=CLEAR), env={"GPU": "0"})


async def test_a_partial_server(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="partial"))
    assert await ask(ignored, view=with_overlay('{"cpu_shares": 100}')) == ContainerChange(
        resources=ResourceChange(cpu_shares=100)
    )


async def test_a_pod(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(overlay={"labels": {"l": "1"}}))
    assert await ask(ignored, Hook.PRE_RUN_POD_SANDBOX, POD) == PodChange(labels={"l": "1"})


async def test_post_hooks_change_nothing(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="nonsense"))
    assert await ask(ignored, POST) is None
    serving.behave(Behaviour(kind="undecodable"))
    assert await ask(ignored, POST) is None
    assert concerns(ignored)


KINDS = {
    "an error": ("error", FailureKind.FAILED, PATIENT_S),
    "hanging": ("hang", FailureKind.TIMED_OUT, TIMEOUT_S),
    "undecodable": ("undecodable", FailureKind.FAILED, PATIENT_S),
}


@pytest.mark.parametrize(("kind", "failed", "timeout_s"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("hook", [PRE, POST])
async def test_how_it_failed(
    ignored: HookServer, serving: HookServing, kind: str, failed: FailureKind, hook: Hook
) -> None:
    serving.behave(Behaviour(kind=kind))
    if kind == "undecodable" and hook is POST:
        assert await ask(ignored, hook) is None
        return
    with pytest.raises(ServerError) as caught:
        await ask(ignored, hook)
    assert caught.value.kind is failed


async def refusal_by(server: HookServer, workers: Workers, hook: Hook = PRE) -> tuple[StatusCode, str] | None:
    decision = await decide(Chain([server.as_policy()], workers), hook, view=VIEW, budget_s=PATIENT_S)
    refusal: Refusal | None = decision.refusal
    return (refusal.code, refusal.text) if refusal is not None else None


async def test_a_refusal_keeps_code_and_text(
    strict: HookServer, serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(kind="error", code="RESOURCE_EXHAUSTED", text="no CPU left"))
    text = "koordlet.json: hook server err: no CPU left"
    assert await refusal_by(strict, workers) == (StatusCode.RESOURCE_EXHAUSTED, text)


class WatchedNode:
    """A node whose facts are old: it notes which thread reads them."""

    fresh_until_s = 0.0

    def __init__(self) -> None:
        self.latest = Node()
        self.readers: set[threading.Thread] = set()

    def snapshot(self) -> Node:
        self.readers.add(threading.current_thread())
        return self.latest


async def test_no_file_is_read_in_the_loops_thread_for_an_answer(
    ignored: HookServer, serving: HookServing, workers: Workers
) -> None:
    node = WatchedNode()
    chain = Chain([ignored.as_policy()], workers, node=node)
    decision = await decide(chain, view=with_overlay('{"cpu_shares": 100}'), budget_s=PATIENT_S)
    assert decision.change == ContainerChange(resources=ResourceChange(cpu_shares=100))
    assert node.readers
    assert threading.current_thread() not in node.readers


async def test_a_server_whose_answers_are_read_elsewhere_is_skipped_and_comes_back(
    ignored: HookServer, serving: HookServing, workers: Workers
) -> None:
    chain = Chain([ignored.as_policy()], workers, node=WatchedNode())
    serving.behave(Behaviour(kind="undecodable"))
    for _ in range(FAILURES_TO_OPEN):
        await decide(chain, view=VIEW, budget_s=PATIENT_S)
    await until(lambda: not concerns(ignored))
    serving.behave(Behaviour())
    await until(lambda: concerns(ignored))


async def test_what_has_happened_is_not_refused(
    strict: HookServer, serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(kind="error"))
    assert await refusal_by(strict, workers, POST) is None


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S], ids=["hasty"])
async def test_a_strict_server_that_is_late(
    strict: HookServer, serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(kind="hang"))
    text = "koordlet.json: hook server err: no answer within 0.2 s"
    assert await refusal_by(strict, workers) == (StatusCode.UNAVAILABLE, text)


async def test_a_server_in_dry_run_refuses_nothing(
    strict: HookServer, serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(kind="error"))
    policy = replace(strict.as_policy(), mode=Mode.DRY_RUN)
    decision = await decide(Chain([policy], workers), view=VIEW, budget_s=PATIENT_S)
    assert decision.refusal is None
    assert [each.kind for each in decision.audit] == ["failed"]


@pytest.mark.parametrize("left_s", [0.05, 0.0, -5.0], ids=["a little", "none", "less than none"])
async def test_a_call_whose_time_is_nearly_up_is_cut_short_and_no_failure_of_the_server(
    ignored: HookServer, serving: HookServing, workers: Workers, left_s: float
) -> None:
    serving.behave(Behaviour(kind="hang"))
    chain = Chain([ignored.as_policy()], workers)
    for _ in range(FAILURES_TO_OPEN):
        await decide(chain, view=VIEW, budget_s=left_s)
    await until(lambda: not chain.hung)
    assert concerns(ignored)


async def test_one_that_hangs_is_skipped_though_its_own_timeout_is_longer_than_a_call_has(
    folder: Path,
    made: list[HookServer],
    serving: HookServing,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "ENOUGH_S", 0.05)
    serving.behave(Behaviour(kind="hang"))
    server = HookServer(registration(folder, timeout_s=60.0))
    made.append(server)
    chain = Chain([server.as_policy()], workers)
    # A busy machine may leave an RPC less time than enough, and then that call counts for nothing.
    for _ in range(10 * FAILURES_TO_OPEN):
        if concerns(server):
            await decide(chain, view=VIEW, budget_s=0.15)
            await until(lambda: not chain.hung)
    assert not concerns(server)


async def test_an_error_does_not_tell_secrets(
    ignored: HookServer, serving: HookServing, strict: HookServer
) -> None:
    serving.behave(Behaviour(kind="error", text="bad TOKEN=secret-value on port 80"))
    for server in (ignored, strict):
        with pytest.raises(RuntimeProxyError) as caught:
            await ask(server)
        assert "bad TOKEN=*** on port 80" in str(caught.value)


SECRETS = {
    "one in another": ({"A": b"password", "B": b"password-of-b"}, "bad password-of-b", "bad ***"),
    "lines with escaped ends": (
        {"KEY": b"first line\nsecond line\n"},
        r"'first line\nsecond line\n'",
        r"'***\n***\n'",
    ),
    "longer than what is told": ({"KEY": b"k" * 2_000}, "bad " + "k" * 2_000, "bad ***"),
    "cut again and again": (
        {"A": b"a" * 1_000, "B": b"bbbbbbbb"},
        ("a" * 1_000 + "bbbbbbbb") * 10,
        "******" * 4 + "***",
    ),
    "where the text is cut": ({"KEY": b"k" * 100}, "x" * 1_000 + "k" * 100, "x" * 1_000 + "***"),
}


@pytest.mark.parametrize(("env", "text", "told"), SECRETS.values(), ids=SECRETS)
async def test_no_part_of_a_secret_is_told(
    ignored: HookServer, serving: HookServing, env: dict[str, bytes], text: str, told: str
) -> None:
    serving.behave(Behaviour(kind="error", text=text))
    with pytest.raises(ServerError) as caught:
        await ask(ignored, view=replace(VIEW, env=env))
    assert caught.value.text == told


@pytest.mark.parametrize(
    ("env", "text_length", "is_long"),
    [
        pytest.param({"TOKEN": b"secret-value"}, 30_000, False, id="long-text"),
        pytest.param(
            {f"V{number}": b"%08d" % number for number in range(3_000)}, 100, False, id="short-text"
        ),
        pytest.param(
            {f"V{number}": b"%08d" % number for number in range(3_000)}, 30_000, True, id="both-long"
        ),
        pytest.param({"NOT_UTF8": b"\xff" * 1_000_000}, 30_000, True, id="not-in-the-request"),
    ],
)
async def test_a_long_error_is_compared_with_many_variables_in_a_worker_thread(
    ignored: HookServer, serving: HookServing, env: dict[str, bytes], text_length: int, is_long: bool
) -> None:
    serving.behave(Behaviour(kind="error", text="x" * text_length))
    came: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    request = ignored.as_policy().remote_hooks[PRE](replace(VIEW, env=env))
    request.send(PATIENT_S, lambda _, is_long: came.set_result(is_long))
    assert await came is is_long


async def test_a_long_text_is_compared_in_a_moment(ignored: HookServer, serving: HookServing) -> None:
    env = {f"V{number}": b"%015d" % number for number in range(100_000)}
    serving.behave(Behaviour(kind="error", text="x" * 60_000))
    began_s = time.thread_time()
    with pytest.raises(ServerError):
        await ask(ignored, view=replace(VIEW, env=env))
    assert time.thread_time() - began_s < 1.5


async def test_a_long_error_is_cut(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(kind="error", text="x" * 5_000))
    with pytest.raises(ServerError) as caught:
        await ask(ignored)
    assert len(str(caught.value)) < 1_100


async def test_no_server(ignored: HookServer) -> None:
    with pytest.raises(ServerError):
        await ask(ignored)


async def test_closing_waits_for_calls(folder: Path, made: list[HookServer], serving: HookServing) -> None:
    server = HookServer(registration(folder, timeout_s=30.0))
    made.append(server)
    serving.behave(Behaviour(kind="hang"))
    answer = asyncio.ensure_future(ask(server))
    await until(lambda: bool(serving.asked))
    server.close()
    serving.behave(Behaviour())
    assert await answer is None
    assert await ask(server) is None, "a call that began with the old policies may still come"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each question that is made and each answer that is read, the thread."""
    seen: list[str] = []
    exchange = EXCHANGES[PRE]

    def request(view: ContainerView) -> object:
        seen.append(threading.current_thread().name)
        return exchange.request(view)

    def response(data: bytes) -> object:
        seen.append(threading.current_thread().name)
        return exchange.response(data)

    watched = replace(exchange, request=request, response=response)
    monkeypatch.setattr(server_module, "EXCHANGES", {**EXCHANGES, PRE: watched})
    return seen


LONG = {f"annotation-{number}": "" for number in range(4_000)}
"""Short texts, but many."""


@pytest.mark.parametrize("place", ["pod's annotations", "pod's labels", "annotations", "message"])
async def test_long_questions_are_made_and_their_answers_read_in_a_worker_thread(
    ignored: HookServer, serving: HookServing, workers: Workers, threads: list[str], place: str
) -> None:
    overlay = {OVERLAY: '{"cpu_shares": 100}'}
    view = replace(VIEW, pod=replace(POD, annotations=overlay))
    if place == "pod's annotations":
        view = replace(view, pod=replace(POD, annotations={**LONG, **overlay}))
    elif place == "pod's labels":
        view = replace(view, pod=replace(POD, annotations=overlay, labels=LONG))
    elif place == "annotations":
        view = replace(view, annotations=LONG)
    else:
        view = replace(view, env={**VIEW.env, "LONG": bytes(SMALL_BYTES).replace(b"\0", b"x")})
    chain = Chain([ignored.as_policy()], workers)
    decision = await decide(chain, view=view, budget_s=PATIENT_S, is_short=place != "message")
    assert container_change(decision) == ContainerChange(resources=ResourceChange(cpu_shares=100))
    assert [each.startswith("policies-") for each in threads] == [True, True]
    threads.clear()
    await decide(chain, view=VIEW, budget_s=PATIENT_S)
    assert threads == [threading.current_thread().name] * 2


async def test_a_short_answer_to_a_long_question_is_compared_in_a_worker_thread(
    ignored: HookServer, serving: HookServing, workers: Workers, threads: list[str]
) -> None:
    serving.behave(Behaviour(kind="partial"))
    view = replace(VIEW, env={"LONG": b"x" * SMALL_BYTES})
    await decide(Chain([ignored.as_policy()], workers), view=view, budget_s=PATIENT_S, is_short=False)
    assert [each.startswith("policies-") for each in threads] == [True, True]


class Busy:
    """Keeps a worker thread."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def run(self) -> None:
        self.released.wait()

    def on_done(self) -> None:
        pass

    def on_dropped(self) -> None:
        pass


async def test_a_long_question_that_no_thread_makes_in_time_holds_the_call_no_longer_than_the_budget(
    ignored: HookServer, serving: HookServing, threads: list[str]
) -> None:
    workers, busy = Workers(1, spares=0), Busy()
    workers.submit(busy)
    chain = Chain([ignored.as_policy()], workers)
    async with asyncio.timeout(PATIENT_S):
        decision = await decide(chain, view=replace(VIEW, annotations=LONG), budget_s=0.1)
    (entry,) = decision.audit
    assert "the time for this call's policies is spent" in entry.reason
    busy.released.set()
    # The thread finds that the call no longer waits for the request.
    await decide(chain, view=VIEW, budget_s=PATIENT_S)
    workers.close()
    assert len(threads) == 2


async def test_an_answer_with_too_many_entries_is_a_failure_of_the_call_alone(
    ignored: HookServer, serving: HookServing
) -> None:
    serving.behave(Behaviour(overlay={"env": dict.fromkeys(map(str, range(MAX_ENTRIES)), "")}))
    assert isinstance(await ask(ignored), ContainerChange)
    serving.behave(Behaviour(overlay={"env": dict.fromkeys(map(str, range(MAX_ENTRIES + 1)), "")}))
    for _ in range(2 * FAILURES_TO_OPEN):
        with pytest.raises(ServerError, match="changes 1001 entries, at most 1000 are taken"):
            await ask(ignored)
    assert concerns(ignored)


async def test_a_long_answer_of_tiny_parts_is_not_read(ignored: HookServer, serving: HookServing) -> None:
    serving.behave(Behaviour(overlay={"env": dict.fromkeys(map(str, range(450_000)), "")}))
    with pytest.raises(ServerError, match="too many annotations, variables and the like"):
        await ask(ignored)
    serving.behave(Behaviour(overlay={"env": {"LONG": "x" * 8_000_000}}))
    assert isinstance(await ask(ignored), ContainerChange)


async def test_an_answer_counts_though_the_breaker_has_opened_meanwhile(
    ignored: HookServer, serving: HookServing, workers: Workers
) -> None:
    serving.behave(Behaviour(kind="hang"))
    chain = Chain([ignored.as_policy()], workers)
    view = with_overlay('{"cpu_shares": 100}')
    asked = asyncio.ensure_future(decide(chain, view=view, budget_s=PATIENT_S))
    await until(lambda: bool(serving.asked))
    for _ in range(FAILURES_TO_OPEN):
        ignored._breaker.on_failure("others")
    assert not concerns(ignored)
    serving.behave(Behaviour())
    assert container_change(await asked) == ContainerChange(resources=ResourceChange(cpu_shares=100))
    assert concerns(ignored)


async def test_many_calls_at_once(ignored: HookServer, serving: HookServing) -> None:
    assert await asyncio.gather(*(ask(ignored) for _ in range(100))) == [None] * 100
