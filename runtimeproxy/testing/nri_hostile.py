"""Runtimes that do not keep to the protocol of NRI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import cast

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.frontends.nri.ttrpc import FRAME_HEADER, PLUGIN_CONNECTION, Session, Side


class Hostile(Enum):
    """What a runtime that is none does with a connection."""

    CLOSED = "ends it at once"
    GARBAGE = "sends bytes that are no frames"
    HALF_FRAME = "sends half a frame, and ends it"
    LONG_FRAME = "sends the header of a frame of 4 GiB, and bytes without an end"
    FLOOD = "sends a million empty frames"
    SILENT = "takes all and answers nothing"
    UNREAD = "sends requests without an end, and reads none of the answers"


class HostilePeer(asyncio.Protocol):
    """A runtime that does not keep to the protocol."""

    def __init__(self, what: Hostile, on_closed: Callable[[HostilePeer], None]) -> None:
        self._what = what
        self._on_closed = on_closed
        self._session = Session(Side.RUNTIME)
        self._transport: asyncio.Transport | None = None
        self._may_write = True

    def close(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Does what it does."""
        self._transport = cast("asyncio.Transport", transport)
        match self._what:
            case Hostile.CLOSED:
                self._transport.close()
            case Hostile.GARBAGE:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
            case Hostile.HALF_FRAME:
                self._transport.write(FRAME_HEADER.pack(PLUGIN_CONNECTION, 100) + b"half")
                self._transport.close()
            case Hostile.LONG_FRAME:
                self._transport.write(FRAME_HEADER.pack(PLUGIN_CONNECTION, 2**32 - 1))
                self._write_on()
            case Hostile.FLOOD:
                self._transport.write(FRAME_HEADER.pack(PLUGIN_CONNECTION, 0) * 1_000_000)
            case Hostile.UNREAD:
                self._transport.pause_reading()
                self._write_on()
            case Hostile.SILENT:
                pass

    def pause_writing(self) -> None:
        """Waits until the plugin has read."""
        self._may_write = False

    def resume_writing(self) -> None:
        """Goes on."""
        self._may_write = True
        self._write_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Says that it is gone."""
        self._transport = None
        self._on_closed(self)

    def _write_on(self) -> None:
        """Writes until the plugin does not read any more."""
        if self._what not in {Hostile.UNREAD, Hostile.LONG_FRAME}:
            return
        while self._may_write and self._transport is not None and not self._transport.is_closing():
            if self._what is Hostile.UNREAD:
                self._session.send_request("StateChange", nri.StateChangeEvent().SerializeToString())
                self._transport.write(self._session.take_output())
            else:
                self._transport.write(bytes(65_536))
