"""Calls that are decided are gone, without a collector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import ContainerChange, ContainerView
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.frontends.cri_proxy.calls.one_container import SHARES
from tests.frontends.cri_proxy.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, create, policy
from tests.garbage import collected
from tests.hooks.asking import until


def shares_or_refusal(view: ContainerView) -> ContainerChange | None:
    if "refuse" in view.annotations:
        raise RefusalError("not here", code=StatusCode.PERMISSION_DENIED)
    return None if "keep" in view.annotations else SHARES


@pytest.mark.parametrize(
    "annotations", [{}, {"keep": "yes"}, {"refuse": "yes"}], ids=["changed", "kept", "refused"]
)
async def test_nothing_of_a_call_is_left(desk: Surroundings, annotations: dict[str, str]) -> None:
    await desk.load(policy(container=shares_or_refusal))
    await desk.run_pod(pod_sandbox_config(), POD_ID)

    async def one_call() -> None:
        call = desk.call("CreateContainer", create(annotations=annotations))
        await call.reply.done()
        if not call.reply.refused:
            await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
        await desk.idle()

    await leaves_nothing(one_call)


async def test_nothing_of_a_cancelled_call_is_left(desk: Surroundings) -> None:
    let_go = threading.Event()

    def waiting(_: ContainerView) -> None:
        let_go.wait(30)

    chain = await desk.load(policy(container=waiting))
    await desk.run_pod(pod_sandbox_config(), POD_ID)

    async def one_call() -> None:
        let_go.clear()
        call = desk.call("CreateContainer", create())
        call.handler.on_cancelled()
        let_go.set()
        await desk.idle()
        await until(lambda: not chain.timer.runs)

    await leaves_nothing(one_call)


async def test_nothing_of_a_call_without_a_thread_is_left(desk: Surroundings) -> None:
    """It is decided before its question is put."""
    await desk.load(policy(container=SHARES))
    await desk.run_pod(pod_sandbox_config(), POD_ID)
    desk.workers.close()

    async def one_call() -> None:
        call = desk.call("CreateContainer", create())
        assert call.reply.forwarded == [None]
        await asyncio.sleep(0)  # what is left to do in the next turn is done
        await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
        await desk.idle()

    await leaves_nothing(one_call)


async def leaves_nothing(one_call: Callable[[], Awaitable[None]]) -> None:
    await one_call()
    with collected() as names:
        for _ in range(20):
            await one_call()
    assert names == []
