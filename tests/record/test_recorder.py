"""A recorder that is not read in time ends, and holds nothing up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.frontends.cri_proxy.calls.grpc_framing import frame_message
from runtimeproxy.frontends.cri_proxy.calls.methods import CallKind
from runtimeproxy.frontends.cri_proxy.interception import Outcome
from runtimeproxy.record.recorder import ENDED, TOO_SLOW, Recorder
from tests.frontends.cri_proxy.calls.scripted import Surroundings

FRAME = frame_message(api_pb2.StopContainerRequest(container_id="c" * 64, timeout=3).SerializeToString())


@pytest.fixture
async def around() -> AsyncIterator[Surroundings]:
    surroundings = Surroundings()
    yield surroundings
    await surroundings.close()


def decide(recorder: Recorder, frame: bytes = FRAME) -> None:
    recorder.begin(CallKind.STOP_CONTAINER, frame, "identity").on_decided()


@pytest.mark.parametrize("limits", [{"max_waiting": 2}, {"max_waiting_bytes": 2 * len(FRAME)}])
async def test_one_that_is_not_read_ends(around: Surroundings, limits: dict[str, int]) -> None:
    services = around.services
    recorder = Recorder(services, **limits)
    with ThreadPoolExecutor(1) as executor:
        async with aclosing(recorder.lines(executor)) as lines:
            assert b'{"header"' in await anext(lines)
            decide(recorder)
            decide(recorder)
            assert recorder.problem == ""
            decide(recorder)
            assert recorder.problem == TOO_SLOW
            assert services.recorder is None
            # Calls that had begun go on.
            decide(recorder)
            assert [each async for each in lines] == []


async def test_one_that_is_read_goes_on(around: Surroundings) -> None:
    services = around.services
    recorder = Recorder(services, max_waiting=2)
    with ThreadPoolExecutor(1) as executor:
        async with aclosing(recorder.lines(executor)) as lines:
            await anext(lines)
            for number in range(1, 6):
                call = recorder.begin(CallKind.STOP_CONTAINER, FRAME, "identity")
                call.on_response(Outcome.SUCCEEDED, b"")  # of a call that is not decided
                call.on_decided()
                found = await anext(lines)
                assert f'"number":{number},'.encode() in found
                assert b'"timeout":"3"' in found
                call.on_response(Outcome.FAILED, b"")
                assert b'"outcome":"failed"' in await anext(lines)
            # Of a long request only the decisions are recorded.
            decide(recorder, frame_message(bytes([0x0A, 0x80, 0x80, 0x20]) + bytes(512 * 1024)))
            assert b'"decisions":[]}' in await anext(lines)
            # A request that cannot be read is left out.
            decide(recorder, b"\0\0\0\0\1\xff")
            decide(recorder)
            assert b'"number":8,' in await anext(lines)
        assert recorder.problem == ENDED
        assert services.recorder is None
