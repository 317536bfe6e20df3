"""grpcio's client before runtimes with habits: a call ends the same way direct and through the relay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.frontends.cri_proxy.relay.playbook import HELD, PASSING
from tests.frontends.cri_proxy.relay.sockets.quirks import ANSWER, HABITS, MESSAGE_BYTES, Habit
from tests.frontends.cri_proxy.relay.sockets.stage import Stage
from tests.peers.aio import soon

DEADLINE_S = 20.0
"""Longer than any call here takes, except where the runtime hangs."""
SHORT_S = 1.5
"""The call reaches the runtime in it, also on a machine that is busy."""


def outcome(socket: Path, path: str, deadline_s: float) -> tuple[str, bytes]:
    """What a client gets; blocks."""
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Callable[..., bytes] = channel.unary_unary(path)
        try:
            return "OK", call(bytes(MESSAGE_BYTES), timeout=deadline_s)
        except grpc.RpcError as error:
            return error.code().name, b""


@pytest.mark.parametrize(("habit", "status"), HABITS.values(), ids=HABITS.keys())
@pytest.mark.parametrize("way", ["direct", "passing", "held", "changed"])
async def test_a_call_ends_the_same_way(stage: Stage, habit: Habit, status: str, way: str) -> None:
    changed = b"\0" + MESSAGE_BYTES.to_bytes(4, "big") + b"y" * MESSAGE_BYTES
    stage.decide(lambda call, _: call.reply.forward(changed if way == "changed" else None))
    socket = stage.runtime.path if way == "direct" else stage.path
    path = PASSING if way == "passing" else HELD
    deadline_s = SHORT_S if status == "DEADLINE_EXCEEDED" else DEADLINE_S
    calling = asyncio.ensure_future(asyncio.to_thread(outcome, socket, path, deadline_s))
    peer = await stage.runtime.peer()
    serving = asyncio.ensure_future(habit(peer))
    try:
        assert await soon(calling) == (status, ANSWER if status == "OK" else b"")
        await soon(serving)
    finally:
        serving.cancel()
        await asyncio.gather(serving, calling, return_exceptions=True)
