"""Calls that are decided are gone, without a collector."""

from __future__ import annotations

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import ContainerChange, ContainerView
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.calls.one_container import SHARES
from tests.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, create, policy
from tests.garbage import collected


def shares_or_refusal(view: ContainerView) -> ContainerChange | None:
    if "refuse" in view.annotations:
        raise RefusalError("not here", code=StatusCode.PERMISSION_DENIED)
    return None if "keep" in view.annotations else SHARES


@pytest.mark.parametrize(
    "annotations", [{}, {"keep": "yes"}, {"refuse": "yes"}], ids=["changed", "kept", "refused"]
)
async def test_nothing_of_a_call_is_left(desk: Surroundings, annotations: dict[str, str]) -> None:
    await desk.load(policy(pre_create_container=shares_or_refusal))
    await desk.run_pod(pod_sandbox_config(), POD_ID)

    async def one_call() -> None:
        call = desk.call("CreateContainer", create(annotations=annotations))
        await call.reply.done()
        if not call.reply.refused:
            await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
        await desk.idle()

    await one_call()
    with collected() as names:
        for _ in range(20):
            await one_call()
    assert names == []
