"""Messages over the socket pair."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.frontends.cri_proxy.handover.protocol import (
    LINE_LIMIT_BYTES,
    Channel,
    Message,
    PeerGoneError,
    UnexpectedMessageError,
)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Channel, socket.socket]]:
    here, there = socket.socketpair()
    channel = Channel(here)
    await channel.open()
    with there:
        there.settimeout(30)
        yield channel, there
        await channel.close()


async def test_messages_arrive_in_order(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    there.sendall(b"loaded\nserv")
    await channel.receive(Message.LOADED)
    there.sendall(b"ing\n")
    await channel.receive(Message.SERVING)
    channel.send(Message.GO)
    channel.send(Message.MAIN)
    assert there.recv(100) == b"go\nmain\n"


@pytest.mark.parametrize(
    "said", [b"go\n", b"\xff\xfe\n", b"x" * (LINE_LIMIT_BYTES * 4) + b"\n"], ids=["other", "binary", "long"]
)
async def test_what_is_not_expected(pair: tuple[Channel, socket.socket], said: bytes) -> None:
    channel, there = pair
    there.sendall(said)
    with pytest.raises(UnexpectedMessageError):
        await channel.receive(Message.LOADED)


async def test_an_end(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    there.close()
    with pytest.raises(PeerGoneError, match="closed the channel"):
        await channel.receive(Message.LOADED)
    for _ in range(3):
        channel.send(Message.GO)


async def test_an_end_in_the_middle_of_a_message(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    there.sendall(b"load")
    there.close()
    with pytest.raises(PeerGoneError):
        await channel.receive(Message.LOADED)


async def test_one_that_was_never_opened() -> None:
    here, there = socket.socketpair()
    with there:
        channel = Channel(here)
        channel.send(Message.GO)
        with pytest.raises(PeerGoneError):
            await channel.receive(Message.GO)
        await channel.close()
        assert there.recv(1) == b""
