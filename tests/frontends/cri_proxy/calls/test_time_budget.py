"""One time budget per call: before it was opened here, while it is read, and while it is decided on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallSettings
from runtimeproxy.frontends.cri_proxy.interception import CallHead
from runtimeproxy.hooks import FailurePolicy
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.frontends.cri_proxy.calls.scripted import SERVICE, RecordedReply, Surroundings

PATH = f"/{SERVICE}/RunPodSandbox"
LONG_S = 60.0
"""Longer than any test waits."""
LARGE = "x" * 70_000


def run(log_directory: str = "/logs") -> bytes:
    """The frame of a request that the policies are asked about."""
    config = pod_sandbox_config()
    config.log_directory = log_directory
    return frame_message(api_pb2.RunPodSandboxRequest(config=config).SerializeToString())


@contextlib.contextmanager
def hung(desk: Surroundings) -> Iterator[None]:
    """All worker threads hang for the length of a block."""
    over = threading.Event()
    for _ in range(2):
        desk._executor.submit(over.wait)
    try:
        yield
    finally:
        over.set()


@pytest.fixture
async def brief(request: pytest.FixtureRequest) -> AsyncIterator[Surroundings]:
    """A desk that holds calls for 50 ms."""
    policy = getattr(request, "param", FailurePolicy.IGNORE)
    surroundings = Surroundings(CallSettings(budget_s=0.05, on_failure=policy))
    yield surroundings
    await surroundings.close()


@pytest.fixture
async def patient() -> AsyncIterator[Surroundings]:
    """A desk that holds calls for longer than any test waits; its policies never come."""
    surroundings = Surroundings(CallSettings(budget_s=LONG_S))
    yield surroundings
    await surroundings.close()


@pytest.mark.parametrize("timeout_s", [None, 4 * LONG_S, 8 * LONG_S])
async def test_what_a_call_has_waited_before_counts(patient: Surroundings, timeout_s: float | None) -> None:
    reply = RecordedReply()
    patient.interceptor.open(CallHead(PATH, timeout_s, "identity", waited_s=LONG_S), reply).on_message(run())
    await reply.done()
    assert (reply.forwarded, reply.refused) == ([None], [])


async def test_a_deadline_counts_from_the_beginning_too(patient: Surroundings) -> None:
    reply = RecordedReply()
    patient.interceptor.open(CallHead(PATH, 4.0, "identity", waited_s=5.0), reply).on_message(run())
    await reply.done()
    assert reply.forwarded == [None]


FOLLOWED = [
    pytest.param(FailurePolicy.IGNORE, [None], False, id="ignore"),
    pytest.param(FailurePolicy.FAIL, [], True, id="fail"),
]
REASONS = {True: "the request could not be read in time", False: "the policies are not loaded yet"}


@pytest.mark.parametrize(("brief", "forwarded", "is_refused"), FOLLOWED, indirect=["brief"])
@pytest.mark.parametrize("is_loaded", [True, False], ids=["reading", "loading"])
async def test_a_request_that_no_thread_reads_follows_on_failure(
    brief: Surroundings,
    is_loaded: bool,
    forwarded: list[bytes | None],
    is_refused: bool,
) -> None:
    if is_loaded:
        await brief.load()
    with hung(brief):
        call = brief.call("RunPodSandbox", run(LARGE))
        await call.reply.done()
    await brief.idle()
    refused = [(14, f"koord-runtime-proxy: {REASONS[is_loaded]}")] if is_refused else []
    assert (call.reply.forwarded, call.reply.refused) == (forwarded, refused)


async def test_a_call_that_ends_meanwhile_gets_no_answer(brief: Surroundings) -> None:
    await brief.load()
    with hung(brief):
        call = brief.call("RunPodSandbox", run(LARGE))
        call.handler.on_cancelled()
        await brief.idle()
    assert not call.reply.is_done
