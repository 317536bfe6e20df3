"""Policies that raise, hang, refuse or answer nonsense."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import MESSAGE_PREFIX, RefusalError, StatusCode
from runtimeproxy.hooks import ContainerChange, FailurePolicy, Hook, PodChange, ResourceChange
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.decision import REFUSAL_PREFIX, FailureKind, ServerError
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import SHARES
from tests.frontends.cri_proxy.calls.scripted import (
    CONTAINER_ID,
    POD_ID,
    Surroundings,
    TablePolicy,
    create,
    policy,
    server,
    waited,
)

FAIL = PolicySettings(failure_policy=FailurePolicy.FAIL)


def raising(_: object) -> None:
    raise ValueError("secret-value")


NO_ANSWER = [
    pytest.param(raising, id="raises"),
    pytest.param("nonsense", id="no-change-at-all"),
    pytest.param(PodChange(), id="change-of-another-kind"),
]
BAD_FIELD = [
    pytest.param(ContainerChange(resources=ResourceChange(cpu_shares=-5)), id="negative-share"),
    pytest.param(ContainerChange(resources=ResourceChange(cpuset_cpus="0-x")), id="bad-cpuset"),
    pytest.param(ContainerChange(env={"A": "\ud800"}), id="no-utf-8"),
]


@pytest.mark.conformance(92, 93)
@pytest.mark.parametrize("answer", [*NO_ANSWER, *BAD_FIELD])
async def test_a_policy_that_answers_nonsense_is_ignored(desk: Surroundings, answer: ContainerChange) -> None:
    await desk.load(policy("bad", container=answer), policy("good", container=SHARES))
    call = desk.call("CreateContainer", create())
    sent = await call.sent(api_pb2.CreateContainerRequest)
    expected = create()
    assert sent.config.linux.resources.cpu_shares == 2048
    assert sent.config.envs == expected.config.envs


@pytest.mark.parametrize("answer", BAD_FIELD)
async def test_a_bad_field_refuses_no_call(desk: Surroundings, answer: ContainerChange) -> None:
    good = replace(answer, annotations={"good": "1"})
    await desk.load(policy("bad", container=good), bad=FAIL)
    call = desk.call("CreateContainer", create())
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert sent.config.annotations["good"] == "1"
    assert sent.config.linux.resources == create().config.linux.resources
    assert sent.config.envs == create().config.envs


@pytest.mark.conformance(90, 91, 93)
@pytest.mark.parametrize("answer", NO_ANSWER)
async def test_or_the_call_is_refused(desk: Surroundings, answer: ContainerChange) -> None:
    await desk.load(policy("bad", container=answer), bad=FAIL)
    call = desk.call("CreateContainer", create())
    await call.reply.done()
    ((code, text),) = call.reply.refused
    assert text.startswith(f"{MESSAGE_PREFIX}bad: ")
    assert code not in (StatusCode.OK, StatusCode.NOT_FOUND)
    assert "secret" not in text
    assert not call.reply.forwarded


def refusing(code: StatusCode) -> Callable[[object], None]:
    def refuse(_: object) -> None:
        raise RefusalError("not on this node", code)

    return refuse


def failing(code: StatusCode) -> Callable[[object], None]:
    def fail(_: object) -> None:
        raise ServerError(FailureKind.FAILED, code, "not on this node")

    return fail


@pytest.mark.conformance(33)
@pytest.mark.parametrize("method", ["CreateContainer", "StartContainer", "UpdateContainerResources"])
@pytest.mark.parametrize("code", [StatusCode.RESOURCE_EXHAUSTED, StatusCode.NOT_FOUND])
async def test_a_refusal_keeps_its_code_but_for_not_found(
    desk: Surroundings, method: str, code: StatusCode
) -> None:
    hooks = (Hook.PRE_START_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES)
    strict = policy("strict", container=refusing(code))
    await desk.load(strict, server(dict.fromkeys(hooks, failing(code)), FailurePolicy.FAIL))
    pod = pod_sandbox_config()
    await desk.run_pod(pod, POD_ID)
    if method == "CreateContainer":
        call = desk.call(method, create())
    else:
        desk.store.containers.put(ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID, state=Lifecycle.RUNNING))
        call = desk.call(method, getattr(api_pb2, f"{method}Request")(container_id=CONTAINER_ID))
    await call.reply.done()
    ((found, text),) = call.reply.refused
    assert found == (StatusCode.FAILED_PRECONDITION if code is StatusCode.NOT_FOUND else code)
    refused_by = "strict" if method == "CreateContainer" else f"server.json: {REFUSAL_PREFIX[:-2]}"
    assert text == f"{MESSAGE_PREFIX}{refused_by}: not on this node"
    await desk.idle()
    assert desk.waiting_keys == 0


async def test_a_policy_refuses_only_what_does_not_exist_yet(desk: Surroundings) -> None:
    strict = policy("strict", container=refusing(StatusCode.INTERNAL), on_started=raising, on_stopped=raising)
    await desk.load(strict, strict=FAIL)
    desk.store.pods.put(PodRecord(id=POD_ID, uid="u1"))
    desk.store.containers.put(ContainerRecord(id=CONTAINER_ID, pod_id=POD_ID))
    for method in ("StartContainer", "UpdateContainerResources", "StopContainer", "RemoveContainer"):
        request = getattr(api_pb2, f"{method}Request")(container_id=CONTAINER_ID)
        call = desk.call(method, request)
        await call.succeeded(getattr(api_pb2, f"{method}Response")())
        await desk.idle()
        assert call.reply.forwarded == [None]
    assert {(entry.hook, entry.kind) for entry in desk.audit} == {
        (Hook.PRE_UPDATE_CONTAINER_RESOURCES, AuditKind.FAILED),
        (Hook.POST_START_CONTAINER, AuditKind.FAILED),
        (Hook.POST_STOP_CONTAINER, AuditKind.FAILED),
    }


async def test_a_long_refusal_is_cut(desk: Surroundings) -> None:
    def refuse(_: object) -> None:
        raise RefusalError("x" * 100_000)

    await desk.load(policy(container=refuse))
    call = desk.call("CreateContainer", create())
    await call.reply.done()
    assert len(call.reply.refused[0][1]) < 1100


@asynccontextmanager
async def hanging() -> AsyncIterator[TablePolicy]:
    """A policy whose first call hangs until the end of the block."""
    free = threading.Event()
    found = policy("a-slow", container=lambda _: waited(free))
    found.timeout_s = 0.1  # type: ignore[misc]
    yield found
    free.set()


@pytest.mark.conformance(89)
async def test_a_policy_that_hangs_is_left_behind(desk: Surroundings) -> None:
    async with hanging() as slow:
        await desk.load(slow, policy("good", container=SHARES))
        call = desk.call("CreateContainer", create())
        sent = await call.sent(api_pb2.CreateContainerRequest)
        assert sent.config.linux.resources.cpu_shares == 2048


@pytest.mark.conformance(44, 89)
async def test_a_quarter_of_the_deadline_is_all_that_policies_get(desk: Surroundings) -> None:
    async with hanging() as slow:
        slow.timeout_s = 60  # type: ignore[misc]
        await desk.load(slow)
        begun = asyncio.get_running_loop().time()
        call = desk.call("CreateContainer", create(), timeout_s=0.4)
        await call.reply.done()
        assert call.reply.forwarded == [None]
        assert asyncio.get_running_loop().time() - begun < 5


@pytest.mark.conformance(49)
async def test_a_cancelled_call_is_not_decided_any_more(desk: Surroundings) -> None:
    async with hanging() as slow:
        await desk.load(slow)
        for _ in range(2):
            call = desk.call("CreateContainer", create())
            call.handler.on_cancelled()
            await desk.idle()
            assert not call.reply.is_done
        assert desk.waiting_keys == 0


async def test_a_call_cancelled_in_mid_decision_leaves_its_place(desk: Surroundings) -> None:
    async with hanging() as slow:
        await desk.load(slow)
        call = desk.call("CreateContainer", create())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.handler.on_cancelled()
        await desk.idle()
        assert not call.reply.is_done
        assert desk.waiting_keys == 0


async def test_cgroup_values_that_the_kernel_refuses_do_not_stop_the_call(desk: Surroundings) -> None:
    desk.ledger.error = "EBUSY: no"
    await desk.load(policy(pod=PodChange(labels={"a": "b"}, cgroup={"cpu.shares": 5})))
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    assert (await call.sent(api_pb2.RunPodSandboxRequest)).config.labels["a"] == "b"


async def test_unless_their_policy_must_not_fail(desk: Surroundings) -> None:
    desk.ledger.error = "EBUSY: no"
    await desk.load(policy(pod=PodChange(cgroup={"cpu.shares": 5})), test=FAIL)
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    await call.reply.done()
    ((_, text),) = call.reply.refused
    assert text.startswith(f"{MESSAGE_PREFIX}test: ")
