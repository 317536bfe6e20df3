"""Errors in the relay's or the handlers' code: they end one connection, are counted, and let calls pass."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.frontends.cri_proxy.interception import CallHandler, CallHead, Outcome, Reply
from runtimeproxy.frontends.cri_proxy.relay import streams
from runtimeproxy.service.bypass import Bypass
from tests.frontends.cri_proxy.relay.playbook import HELD, ScriptedCall
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import until
from tests.peers.wire import (
    DATA,
    GOAWAY,
    HEADERS,
    INTERNAL_ERROR,
    PROTOCOL_ERROR,
    data,
    goaway,
    message,
    ping,
)


class DefectiveInterceptor:
    """Holds, and raises in one place."""

    def __init__(self, where: str) -> None:
        self._where = where

    def intercepts(self, path: str) -> bool:
        return path == HELD

    def open(self, head: CallHead, reply: Reply) -> CallHandler:
        self._raise_in("open")
        return DefectiveHandler(self._where, reply)

    def _raise_in(self, where: str) -> None:
        if where == self._where:
            raise RuntimeError(f"a defect in {where}")


class DefectiveHandler:
    """Forwards, and raises in one place."""

    def __init__(self, where: str, reply: Reply) -> None:
        self._where = where
        self._reply = reply

    def on_message(self, data: bytes) -> None:
        self._raise_in("message")
        self._reply.forward(None)

    def on_cancelled(self) -> None:
        self._raise_in("cancelled")

    def on_response(self, outcome: Outcome, data: bytes) -> None:
        self._raise_in("responded")

    def _raise_in(self, where: str) -> None:
        if where == self._where:
            raise RuntimeError(f"a defect in {where}")


@pytest.mark.parametrize("where", ["open", "message", "responded"])
async def test_an_exception_in_own_code_ends_that_connection_alone_with_internal_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    async with Stage(tmp_path, DefectiveInterceptor(where)) as stage:
        bystander, other_runtime = await stage.pair()
        client, runtime = await stage.pair()
        client.send(client.call(3, HELD), data(3, message(b"x"), end=True))
        if where == "responded":
            await runtime.next_of(DATA, stream_id=3)
            runtime.send(runtime.trailers(3))
        last = (await client.rest())[-1]
        assert (last.type_, last.payload[4:]) == (GOAWAY, INTERNAL_ERROR.to_bytes(4, "big"))
        await runtime.ended()
        bystander.send(ping())
        assert await other_runtime.next_of(ping().type_) == ping()
        assert stage.server.defect_count == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert f"a defect in {where}" in record.getMessage()


async def test_a_defect_at_the_end_of_a_connection_does_not_keep_it_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(tmp_path, DefectiveInterceptor("cancelled")) as stage:
        client, runtime = await stage.pair()
        client.send(client.call(3, HELD))
        await runtime.next_of(HEADERS, stream_id=3)
        await client.close()
        await runtime.ended()
        await until(lambda: stage.server.connection_count == 0)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_defect_that_the_end_of_a_connection_sets_off_is_reported_like_any_other(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call's memory goes to the others of its connection, whose handlers fail."""
    stage.budget.limit_bytes, stage.budget.small_bytes = 1000, 0
    client, runtime = await stage.pair()

    def fail(call: ScriptedCall, _: bytes) -> None:
        if call is not stage.held[0]:
            raise RuntimeError("a defect")

    stage.decide(fail)
    for stream_id in (3, 5, 7):
        client.send(client.call(stream_id, HELD), data(stream_id, message(bytes(900)), end=True))
    await stage.message()
    await until(lambda: len(stage.held) == 3)
    client.send(data(0))
    endings = [frame for frame in await client.rest() if frame.type_ == GOAWAY]
    assert endings[0].payload[4:] == PROTOCOL_ERROR.to_bytes(4, "big")
    await runtime.ended()
    await until(lambda: stage.server.connection_count == 0)
    assert {record.name for record in caplog.records} == {streams.logger.name}


async def test_a_defect_while_the_runtime_stays_away_keeps_no_client_from_its_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interceptor = DefectiveInterceptor("cancelled")
    async with Stage(tmp_path, interceptor, has_runtime=False, upstream_wait_s=0.0) as stage:
        client = await stage.client()
        client.begin()
        client.send(client.call(1, HELD), client.call(3))
        first, second, last = [frame for frame in await client.rest() if frame.type_ in (HEADERS, GOAWAY)]
        assert (first.stream_id, second.stream_id, last) == (1, 3, goaway(3))
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


async def test_many_defects_turn_the_bypass_on(tmp_path: Path) -> None:
    async with Stage(tmp_path, DefectiveInterceptor("message")) as stage:
        gate = CallInterceptor(CallSettings(budget_s=2.0))
        bypass = Bypass(gate, lambda: stage.server.defect_count, False, lambda *_: None)
        while not gate.bypass:
            defects = stage.server.defect_count
            client, _ = await stage.pair()
            client.send(client.call(3, HELD), data(3, message(b"x"), end=True))
            await client.ended()
            assert stage.server.defect_count == defects + 1
            bypass.update()
