"""Feeds systemd's watchdog, by a call through the daemon's own socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from runtimeproxy.http2.frames import ACK, EMPTY_SETTINGS, FRAME_HEADER, HEADER_BYTES, PING, PREFACE, ping

logger = logging.getLogger(__name__)

_OPAQUE: Final = b"watchdog"


async def answers_ping(socket_path: str, timeout_s: float) -> bool:
    """Whether the relay accepts a client on its own socket and answers an HTTP/2 PING.

    The relay answers PINGs itself as long as no call has chosen an upstream, so this shows that the
    listener and the loop work, whatever the runtime does: restarting a proxy mends no runtime.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket_path)
            try:
                writer.write(PREFACE + EMPTY_SETTINGS + ping(_OPAQUE))
                await _ping_ack(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    return True


async def _ping_ack(reader: asyncio.StreamReader) -> None:
    while True:
        high, low, type_, flags, _ = FRAME_HEADER.unpack(await reader.readexactly(HEADER_BYTES))
        payload = await reader.readexactly(high << 8 | low)
        if type_ == PING and flags & ACK and payload == _OPAQUE:
            return


async def feed_watchdog(
    interval_s: float, is_alive: Callable[[float], Awaitable[bool]], feed: Callable[[], object]
) -> None:
    """Feeds the watchdog twice per interval as long as the daemon answers; runs until it is cancelled.

    Args:
        interval_s: after how long without food systemd kills the daemon.
        is_alive: asks the daemon through its own socket, within the seconds given.
        feed: tells systemd.
    """
    pause_s = interval_s / 2
    while True:
        if await is_alive(pause_s):
            feed()
        else:
            logger.error("the own socket does not answer: the watchdog is not fed")
        await asyncio.sleep(pause_s)
