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
from runtimeproxy.hooks import ContainerChange, FailurePolicy, PodChange, ResourceChange
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.pods.records import ContainerRecord, Lifecycle
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.calls.one_container import SHARES
from tests.calls.scripted import (
    CONTAINER_ID,
    POD_ID,
    HookPolicy,
    Surroundings,
    create,
    policy,
    policy_of,
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
    await desk.load(policy("bad", pre_create_container=answer), policy("good", pre_create_container=SHARES))
    call = desk.call("CreateContainer", create())
    sent = await call.sent(api_pb2.CreateContainerRequest)
    expected = create()
    assert sent.config.linux.resources.cpu_shares == 2048
    assert sent.config.envs == expected.config.envs


@pytest.mark.parametrize("answer", BAD_FIELD)
async def test_a_bad_field_refuses_no_call(desk: Surroundings, answer: ContainerChange) -> None:
    good = replace(answer, annotations={"good": "1"})
    await desk.load(policy("bad", pre_create_container=good), bad=FAIL)
    call = desk.call("CreateContainer", create())
    sent = await call.sent(api_pb2.CreateContainerRequest)
    assert sent.config.annotations["good"] == "1"
    assert sent.config.linux.resources == create().config.linux.resources
    assert sent.config.envs == create().config.envs


@pytest.mark.conformance(90, 91, 93)
@pytest.mark.parametrize("answer", NO_ANSWER)
async def test_or_the_call_is_refused(desk: Surroundings, answer: ContainerChange) -> None:
    await desk.load(policy("bad", pre_create_container=answer), bad=FAIL)
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


@pytest.mark.conformance(33)
@pytest.mark.parametrize("method", ["CreateContainer", "StopContainer", "RemoveContainer"])
@pytest.mark.parametrize("code", [StatusCode.RESOURCE_EXHAUSTED, StatusCode.NOT_FOUND])
async def test_a_refusal_keeps_its_code_but_for_not_found(
    desk: Surroundings, method: str, code: StatusCode
) -> None:
    hooks = ("pre_create_container", "pre_stop_container", "pre_remove_container")
    await desk.load(policy_of(dict.fromkeys(hooks, refusing(code)), "strict"))
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
    assert text == f"{MESSAGE_PREFIX}strict: not on this node"
    await desk.idle()
    assert desk.waiting_keys == 0


async def test_a_long_refusal_is_cut(desk: Surroundings) -> None:
    def refuse(_: object) -> None:
        raise RefusalError("x" * 100_000)

    await desk.load(policy(pre_create_container=refuse))
    call = desk.call("CreateContainer", create())
    await call.reply.done()
    assert len(call.reply.refused[0][1]) < 1100


@asynccontextmanager
async def hanging() -> AsyncIterator[HookPolicy]:
    """A policy whose first call hangs until the end of the block."""
    free = threading.Event()
    found = policy("slow", pre_create_container=lambda _: waited(free))
    found.timeout_s = 0.1  # type: ignore[misc]
    yield found
    free.set()


@pytest.mark.conformance(89)
async def test_a_policy_that_hangs_is_left_behind(desk: Surroundings) -> None:
    async with hanging() as slow:
        await desk.load(slow, policy("good", pre_create_container=SHARES))
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
    desk.writer.error = "EBUSY: no"
    await desk.load(policy(pre_run_pod_sandbox=PodChange(labels={"a": "b"}, cgroup={"cpu.shares": 5})))
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    assert (await call.sent(api_pb2.RunPodSandboxRequest)).config.labels["a"] == "b"


async def test_unless_their_policy_must_not_fail(desk: Surroundings) -> None:
    desk.writer.error = "EBUSY: no"
    await desk.load(policy(pre_run_pod_sandbox=PodChange(cgroup={"cpu.shares": 5})), test=FAIL)
    call = desk.call("RunPodSandbox", api_pb2.RunPodSandboxRequest(config=pod_sandbox_config()))
    await call.reply.done()
    ((_, text),) = call.reply.refused
    assert text.startswith(f"{MESSAGE_PREFIX}test: ")
