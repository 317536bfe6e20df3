"""Policies that answer within a moment: the call goes on in the turn in which it came."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import ContainerChange, ContainerView
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.calls.one_container import SHARES
from tests.calls.scripted import CONTAINER_ID, POD_ID, Surroundings, create, policy
from tests.garbage import collected

PATIENT_MS = 30_000
"""No machine is so slow that these policies take longer."""


@pytest.fixture
async def quick() -> AsyncIterator[Surroundings]:
    """The loop waits for policies once they have been quick."""
    surroundings = Surroundings(patience_ms=PATIENT_MS)
    yield surroundings
    await surroundings.close()


def shares_or_refusal(view: ContainerView) -> ContainerChange | None:
    if "refuse" in view.annotations:
        raise RefusalError("not here", code=StatusCode.PERMISSION_DENIED)
    return None if "keep" in view.annotations else SHARES


async def asked_once(quick: Surroundings) -> None:
    """The first call waits for a thread to start; from now on policies are known to be quick."""
    await quick.load(policy(pre_create_container=shares_or_refusal))
    await quick.run_pod(pod_sandbox_config(), POD_ID)
    call = quick.call("CreateContainer", create())
    assert not call.reply.is_done
    await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
    await quick.idle()


async def test_a_change_is_made_in_the_same_turn(quick: Surroundings) -> None:
    await asked_once(quick)
    call = quick.call("CreateContainer", create())
    assert call.reply.is_done
    sent = call.reply.sent(api_pb2.CreateContainerRequest, call.frame)
    assert sent.config.linux.resources.cpu_shares == 2048
    assert (quick.lanes, quick.tasks) == (0, 0)


async def test_what_stays_as_it_came_goes_on_in_the_same_turn(quick: Surroundings) -> None:
    await asked_once(quick)
    call = quick.call("CreateContainer", create(annotations={"keep": "yes"}))
    assert call.reply.forwarded == [None]
    assert (quick.lanes, quick.tasks) == (0, 0)


async def test_a_refusal_comes_in_the_same_turn(quick: Surroundings) -> None:
    await asked_once(quick)
    call = quick.call("CreateContainer", create(annotations={"refuse": "yes"}))
    ((code, text),) = call.reply.refused
    assert code == StatusCode.PERMISSION_DENIED
    assert "not here" in text
    assert (quick.lanes, quick.tasks) == (0, 0)


async def test_a_cancel_after_the_decision_finds_nothing_to_stop(quick: Surroundings) -> None:
    await asked_once(quick)
    chain = await quick.load(policy(pre_create_container=SHARES))
    call = quick.call("CreateContainer", create())
    assert call.reply.is_done
    call.handler.cancelled()
    assert chain.stats.cancelled == 0
    later = quick.call("CreateContainer", create())
    await later.reply.done()


async def test_a_call_whose_pod_must_be_looked_up_first_goes_on_later(quick: Surroundings) -> None:
    await asked_once(quick)
    request = create()
    request.pod_sandbox_id = POD_ID[::-1]
    call = quick.call("CreateContainer", request)
    assert not call.reply.is_done
    await call.reply.done()
    assert not call.reply.refused


@pytest.mark.parametrize(
    "annotations", [{}, {"keep": "yes"}, {"refuse": "yes"}], ids=["changed", "kept", "refused"]
)
async def test_nothing_of_a_call_is_left_for_the_collector(
    quick: Surroundings, annotations: dict[str, str]
) -> None:
    await asked_once(quick)

    async def one_call() -> None:
        call = quick.call("CreateContainer", create(annotations=annotations))
        await call.reply.done()
        if not call.reply.refused:
            await call.succeeded(api_pb2.CreateContainerResponse(container_id=CONTAINER_ID))
        await quick.idle()

    with collected() as names:
        for _ in range(20):
            await one_call()
    assert names == []
