"""What is noted of a traced call, in all the ways in which it can end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.frontends.cri_proxy.calls.call_trace import CallTrace
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.intercepted_call import InterceptedCall
from runtimeproxy.frontends.cri_proxy.calls.traced_call import open_traced
from runtimeproxy.frontends.cri_proxy.interception import CallHead, Outcome
from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.traceparent import TraceParent
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import SHARES, with_container
from tests.frontends.cri_proxy.calls.scripted import (
    CONTAINER_ID,
    POD_ID,
    SERVICE,
    HeldForTest,
    RecordedReply,
    Surroundings,
    create,
    policy,
    server,
    waited,
)
from tests.frontends.cri_proxy.calls.test_garbage_free import leaves_nothing

TRACE, SPAN = "ab" * 16, "12" * 8
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
CREATED = api_pb2.CreateContainerResponse(container_id=CONTAINER_ID)


class Sink:
    """Keeps traces."""

    def __init__(self) -> None:
        self.traces: list[CallTrace] = []
        self.is_lucky = False
        self._taken = asyncio.Event()

    def samples(self) -> bool:
        return self.is_lucky

    def take(self, trace: CallTrace) -> None:
        self.traces.append(trace)
        self._taken.set()

    async def one(self) -> CallTrace:
        async with asyncio.timeout(30):
            await self._taken.wait()
        (trace,) = self.traces
        return trace


@pytest.fixture
def sink() -> Sink:
    return Sink()


def traced(
    desk: Surroundings, sink: Sink, method: str, request: Message, traceparent: str = SAMPLED
) -> HeldForTest:
    """A call whose request has come."""
    frame, reply = frame_message(request.SerializeToString()), RecordedReply()
    head = CallHead(
        f"/{SERVICE}/{method}", 120.0, "identity", encoded_traceparent=b"p" + traceparent.encode()
    )
    handler = open_traced(sink, desk.services, head, reply)
    handler.on_message(frame)
    return HeldForTest(handler, reply, frame)


async def test_a_changed_call(desk: Surroundings, sink: Sink) -> None:
    await desk.load(policy(container=SHARES), policy("second", container=None))
    await desk.run_pod(pod_sandbox_config(), POD_ID)
    request = create()
    call = traced(desk, sink, "CreateContainer", request)
    await call.succeeded(CREATED)
    trace = await sink.one()
    assert (trace.path, trace.parent) == (f"/{SERVICE}/CreateContainer", TraceParent(TRACE, SPAN, True))
    assert (trace.outcome, trace.is_changed, trace.code) == ("succeeded", True, None)
    pod = request.sandbox_config.metadata
    assert (trace.namespace, trace.pod, trace.uid) == (pod.namespace, pod.name, pod.uid)
    assert (trace.container, trace.sandbox_id) == ("main", POD_ID)
    assert trace.message_s is not None
    assert trace.decided_s is not None
    assert trace.began_s <= trace.message_s <= trace.decided_s <= trace.ended_s
    (decision,) = trace.decisions
    assert decision.hook is Hook.PRE_CREATE_CONTAINER
    assert [run.policy for run in decision.runs] == ["second", "test"]
    assert all(trace.message_s <= run.ended_s <= trace.decided_s for run in decision.runs)
    assert [(entry.kind, entry.field) for entry in decision.entries] == [
        (AuditKind.CHANGED, "resources.cpu_shares")
    ]
    # The audit names the same trace.
    assert {entry.trace_id for entry in desk.audit if entry.call == "CreateContainer"} == {TRACE}


@pytest.mark.parametrize("traceparent", ["", UNSAMPLED, "nonsense"])
async def test_calls_that_are_not_sampled_have_their_handler_alone(
    desk: Surroundings, sink: Sink, traceparent: str
) -> None:
    await desk.load()
    head = CallHead(
        f"/{SERVICE}/CreateContainer", None, "identity", encoded_traceparent=b"p" + traceparent.encode()
    )
    assert type(open_traced(sink, desk.services, head, RecordedReply())) is InterceptedCall


async def test_without_a_parent_chance_decides(desk: Surroundings, sink: Sink) -> None:
    await desk.load()
    sink.is_lucky = True
    call = traced(desk, sink, "RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()), "")
    await call.succeeded(api_pb2.RunPodSandboxResponse(pod_sandbox_id=POD_ID))
    trace = await sink.one()
    assert (trace.parent, trace.is_changed, trace.pod) == (None, False, pod_sandbox_config().metadata.name)
    sink.traces.clear()
    # The client's decision counts in any case.
    traced(desk, sink, "StopPodSandbox", api_pb2.StopPodSandboxRequest(pod_sandbox_id=POD_ID), UNSAMPLED)
    await desk.idle()
    assert not sink.traces


def _refused(_: ContainerView) -> None:
    raise RefusalError("not here", code=StatusCode.PERMISSION_DENIED)


async def test_a_refused_call(desk: Surroundings, sink: Sink) -> None:
    await desk.load(policy(container=_refused))
    await traced(desk, sink, "CreateContainer", create()).reply.done()
    trace = await sink.one()
    assert (trace.outcome, trace.code) == ("refused", StatusCode.PERMISSION_DENIED)
    assert "not here" in trace.reason
    (decision,) = trace.decisions
    assert [entry.kind for entry in decision.entries] == [AuditKind.REFUSED]


async def test_a_cancelled_call(desk: Surroundings, sink: Sink) -> None:
    let_go = threading.Event()
    await desk.load(policy(container=lambda _: waited(let_go)))
    call = traced(desk, sink, "CreateContainer", create())
    call.handler.on_cancelled()
    let_go.set()
    trace = await sink.one()
    assert (trace.outcome, trace.decided_s, trace.decisions) == ("cancelled", None, [])


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
async def test_other_ends(desk: Surroundings, sink: Sink, outcome: Outcome) -> None:
    await desk.load()
    await traced(desk, sink, "CreateContainer", create()).ended(outcome)
    assert (await sink.one()).outcome == outcome.value


async def test_names_of_a_container_come_from_its_record_and_post_hooks_from_nowhere(
    desk: Surroundings, sink: Sink
) -> None:
    await desk.load(server({Hook.POST_STOP_CONTAINER: None}))
    await with_container(desk)
    stop = api_pb2.StopContainerRequest(container_id=CONTAINER_ID)
    await traced(desk, sink, "StopContainer", stop).succeeded(api_pb2.StopContainerResponse())
    await desk.idle()
    trace = await sink.one()
    assert (trace.pod, trace.uid, trace.container) == ("web", "u1", "main")
    assert (trace.sandbox_id, trace.container_id) == (POD_ID, CONTAINER_ID)
    assert not trace.decisions


@pytest.mark.parametrize("answer", [SHARES, _refused], ids=["changed", "refused"])
async def test_nothing_of_a_call_is_left(desk: Surroundings, answer: Callable[[ContainerView], None]) -> None:
    await desk.load(policy(container=answer))
    await desk.run_pod(pod_sandbox_config(), POD_ID)

    async def one_call() -> None:
        sink = Sink()
        call = traced(desk, sink, "CreateContainer", create())
        await call.reply.done()
        if not call.reply.refused:
            await call.succeeded(CREATED)
        await sink.one()
        sink.traces.clear()
        await desk.idle()

    await leaves_nothing(one_call)
