"""Words over the socket pair."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from runtimeproxy.service.handover.channel import (
    LINE_LIMIT_BYTES,
    Channel,
    PeerGoneError,
    StrangeWordError,
    Word,
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


async def test_words_arrive_in_order(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    there.sendall(b"loaded\nserv")
    assert await channel.hear(Word.LOADED) is Word.LOADED
    there.sendall(b"ing\n")
    assert await channel.hear(Word.SERVING, Word.STOPPING) is Word.SERVING
    channel.say(Word.GO)
    channel.say(Word.MAIN)
    assert there.recv(100) == b"go\nmain\n"


@pytest.mark.parametrize(
    "said", [b"go\n", b"\xff\xfe\n", b"x" * (LINE_LIMIT_BYTES * 4) + b"\n"], ids=["other", "binary", "long"]
)
async def test_what_is_not_expected(pair: tuple[Channel, socket.socket], said: bytes) -> None:
    channel, there = pair
    there.sendall(said)
    with pytest.raises(StrangeWordError):
        await channel.hear(Word.LOADED)


async def test_an_end(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    there.close()
    with pytest.raises(PeerGoneError, match="hung up"):
        await channel.hear(Word.LOADED)
    for _ in range(3):
        channel.say(Word.GO)


async def test_an_end_in_the_middle_of_a_word(pair: tuple[Channel, socket.socket]) -> None:
    channel, there = pair
    there.sendall(b"load")
    there.close()
    with pytest.raises(PeerGoneError):
        await channel.hear(Word.LOADED)


async def test_one_that_was_never_opened() -> None:
    here, there = socket.socketpair()
    with there:
        channel = Channel(here)
        channel.say(Word.GO)
        with pytest.raises(PeerGoneError):
            await channel.hear(Word.GO)
        await channel.close()
        assert there.recv(1) == b""
