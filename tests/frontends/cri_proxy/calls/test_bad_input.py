"""What bad input gets: a clear status or the call as it came, and never a crash."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import MESSAGE_PREFIX, StatusCode
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallSettings
from runtimeproxy.frontends.cri_proxy.calls.methods import METHODS, Method
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.hooks import ContainerChange, FailurePolicy
from runtimeproxy.hooks.policy import METHOD_HOOKS
from tests.frontends.cri_proxy.calls.one_container import SHARES
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, Surroundings, create, policy, server

UNREADABLE = [
    pytest.param(b"", "identity", id="nothing"),
    pytest.param(b"\0\0\0\0\1\xff", "identity", id="no-message"),
    pytest.param(b"\0\0\0\0\2\x0a\x05", "identity", id="cut-field"),
    pytest.param(b"\0\0\0\0\x04\x12\x02\x08", "identity", id="cut-frame"),
    pytest.param(b"\0\0\0\0\0" * 2, "identity", id="two-messages"),
    pytest.param(b"\1\0\0\0\1x", "identity", id="compressed-without-encoding"),
    pytest.param(b"\1\0\0\0\1x", "snappy", id="unknown-compression"),
    pytest.param(b"\1\0\0\0\1x", "gzip", id="broken-compression"),
    pytest.param(b"\7\0\0\0\0", "identity", id="unknown-flags"),
]


@asynccontextmanager
async def surroundings(found: CallSettings) -> AsyncIterator[Surroundings]:
    desk = Surroundings(found)
    yield desk
    await desk.close()


@pytest.mark.conformance(11)
@pytest.mark.parametrize(("frame", "encoding"), UNREADABLE)
async def test_what_cannot_be_read_is_forwarded_as_it_came(
    desk: Surroundings, frame: bytes, encoding: str
) -> None:
    await desk.load(policy(container=SHARES))
    call = desk.call("CreateContainer", frame, encoding=encoding)
    await call.reply.done()
    assert call.reply.forwarded == [None]
    await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
    assert len(desk.store.containers) == 0


@pytest.mark.conformance(11, 33)
@pytest.mark.parametrize(("frame", "encoding"), UNREADABLE)
async def test_what_cannot_be_read_is_refused_if_so_configured(frame: bytes, encoding: str) -> None:
    async with surroundings(CallSettings(budget_s=2.0, on_unparsable=FailurePolicy.FAIL)) as desk:
        await desk.load()
        call = desk.call("StopContainer", frame, encoding=encoding)
        await call.reply.done()
        assert not call.reply.forwarded
        assert call.reply.refused == [
            (StatusCode.INVALID_ARGUMENT, f"{MESSAGE_PREFIX}the request cannot be read")
        ]


@pytest.mark.conformance(16)
@pytest.mark.parametrize(
    ("frame", "encoding"),
    [
        pytest.param(frame_message(b"\x0a\x64" + b"x" * 100), "identity", id="plain"),
        pytest.param(b"\1" + frame_message(gzip.compress(b"x" * 10_000_000))[1:], "gzip", id="bomb"),
    ],
)
async def test_a_request_over_the_bound_is_refused(frame: bytes, encoding: str) -> None:
    async with surroundings(CallSettings(budget_s=2.0, max_message_bytes=100)) as desk:
        await desk.load()
        call = desk.call("StopContainer", frame, encoding=encoding)
        await call.reply.done()
        ((code, text),) = call.reply.refused
        assert code == StatusCode.RESOURCE_EXHAUSTED
        assert text.startswith(MESSAGE_PREFIX)


@pytest.mark.conformance(86)
async def test_a_compressed_request_is_changed_and_sent_uncompressed(desk: Surroundings) -> None:
    await desk.load(policy(container=SHARES))
    frame = b"\1" + frame_message(gzip.compress(create().SerializeToString()))[1:]
    call = desk.call("CreateContainer", frame, encoding="gzip")
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert call.reply.forwarded[0] is not None
    assert call.reply.forwarded[0][0] == 0
    assert sent.config.linux.resources.cpu_shares == 2048


@pytest.mark.conformance(86)
async def test_a_compressed_request_that_nobody_changes_stays_compressed(desk: Surroundings) -> None:
    await desk.load(policy(container=None))
    frame = b"\1" + frame_message(gzip.compress(create().SerializeToString()))[1:]
    call = desk.call("CreateContainer", frame, encoding="gzip")
    await call.reply.done()
    assert call.reply.forwarded == [None]


async def test_a_long_request_is_changed_too(desk: Surroundings) -> None:
    await desk.load(policy(container=SHARES))
    envs = {f"SERVICE_{number}": "x" * 100 for number in range(30_000)}
    call = desk.call("CreateContainer", create(envs=envs))
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert len(sent.config.envs) == 30_000
    assert sent.config.linux.resources.cpu_shares == 2048


@pytest.mark.conformance(5, 6)
async def test_an_environment_that_is_not_utf_8_survives(desk: Surroundings) -> None:
    await desk.load(policy(container=ContainerChange(env={"B": "new"})))
    request = create(envs={})
    for key, value in (("A", b"\xff\xfe"), ("B", b"old"), ("A", b"\x80")):
        request.config.envs.add(key=key, value=value)
    sent = await desk.call("CreateContainer", request).sent(api_pb2.CreateContainerRequest)
    found = [(variable.key, variable.value) for variable in sent.config.envs]
    assert found == [("A", b"\xff\xfe"), ("B", b"new"), ("A", b"\x80")]


async def test_calls_before_the_policies_are_loaded_wait_for_them(desk: Surroundings) -> None:
    call = desk.call("CreateContainer", create())
    await desk.load(policy(container=SHARES))
    assert (await call.sent(api_pb2.CreateContainerRequest)).config.linux.resources.cpu_shares == 2048


@pytest.mark.parametrize("on_failure", list(FailurePolicy))
async def test_policies_that_do_not_come(on_failure: FailurePolicy) -> None:
    # Enough for the message to be read before it ends, also on a busy machine.
    async with surroundings(CallSettings(budget_s=1.0, on_failure=on_failure)) as desk:
        call = desk.call("CreateContainer", create())
        await call.reply.done()
        if on_failure is FailurePolicy.IGNORE:
            assert call.reply.forwarded == [None]
        else:
            ((code, text),) = call.reply.refused
            assert (code, text) == (
                StatusCode.UNAVAILABLE,
                f"{MESSAGE_PREFIX}the policies are not loaded yet",
            )


async def test_a_runtime_that_hangs_costs_a_call_the_bound_of_a_look_up(desk: Surroundings) -> None:
    slow = Surroundings(lookup_timeout_s=0.05)
    await slow.load(policy(container=SHARES))
    slow.runtime.answers.clear()
    call = slow.call("CreateContainer", create())
    assert (await call.sent(api_pb2.CreateContainerRequest)).config.linux.resources.cpu_shares == 2048
    await slow.close()


@pytest.mark.parametrize("annotations", [{"a": ""}, {"scheduling.koordinator.sh/resource-status": "{"}])
async def test_malformed_annotations_pass_unharmed(desk: Surroundings, annotations: dict[str, str]) -> None:
    await desk.load(policy(container=SHARES))
    call = desk.call("CreateContainer", create(annotations=annotations))
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert annotations.items() <= dict(sent.config.annotations).items()


async def test_bypass_holds_nothing_back(desk: Surroundings) -> None:
    assert desk.interceptor.intercepts("/runtime.v1alpha2.RuntimeService/CreateContainer")
    assert not desk.interceptor.intercepts("/runtime.v1.RuntimeService/Version")
    desk.interceptor.bypass = True
    assert not desk.interceptor.intercepts("/runtime.v1.RuntimeService/CreateContainer")


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.sampled_from(METHODS), st.binary(max_size=80), st.binary(max_size=40))
def test_garbage_never_crashes_a_handler(method: Method, body: bytes, answer: bytes) -> None:
    async def run(found: Method) -> None:
        desk = Surroundings(CallSettings(budget_s=5))
        hooks = (*found.before, *found.after)
        methods: dict[str, Any] = {
            name: None for name, its in METHOD_HOOKS.items() if not set(hooks).isdisjoint(its)
        }
        await desk.load(policy(**methods), server(dict.fromkeys(hooks)))
        call = desk.call(found.kind, frame_message(body))
        await call.reply.done()
        assert call.reply.forwarded == [None]
        call.handler.on_response(Outcome.SUCCEEDED, frame_message(answer))
        await desk.close()

    asyncio.run(run(method))
