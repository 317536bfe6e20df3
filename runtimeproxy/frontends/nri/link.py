"""Keeps the plugin registered with the runtime: connects, registers, answers, and begins again."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from cri_api.nri.v1alpha1 import api_pb2
from runtimeproxy.errors import RuntimeProxyError, StatusCode
from runtimeproxy.frontends.nri.connection import NriConnection, connect, launched, use_inherited
from runtimeproxy.frontends.nri.plugin import (
    EVENTS,
    EVENTS_WITH_OWNERS,
    FIRST_EVENTS,
    Plugin,
    event_mask,
    refusal_text,
)
from runtimeproxy.frontends.nri.services import RefusedError
from runtimeproxy.frontends.nri.ttrpc import Request, Side

if TYPE_CHECKING:
    from runtimeproxy.config.settings import NriSettings
    from runtimeproxy.frontends.nri.services import EventServices

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
"""Before the second attempt to connect; it doubles."""
LONGEST_PAUSE_S: Final = 1.0
REGISTRATION_S: Final = 5.0
"""How long the runtime may take to accept the registration. Source: NRI, DefaultPluginRegistrationTimeout."""
REQUEST_S: Final = 2.0
"""The runtime's time for a request if it does not say. Source: NRI, DefaultPluginRequestTimeout."""
NRI_VERSION: Final = "v0.12.5"
"""The version of the protocol that the plugin speaks."""
_OLD: Final = re.compile(r"v?(1\.|2\.[01]([.-]|$))")
"""Versions of containerd whose NRI ends a plugin's connection if it asks for newer events."""


class NriLink:
    """The plugin's connection with the runtime. Used in the event loop's thread.

    Args:
        environ: Names the connection, the name and the index of a plugin that the runtime has launched.

    Attributes:
        is_ending: Whether the daemon ends, and no new connection is begun.
    """

    def __init__(
        self, settings: NriSettings, plugin: Plugin, services: EventServices, environ: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._plugin = plugin
        self._services = services
        self._launch = launched(environ)
        self._connection: NriConnection | None = None
        self._closed: asyncio.Future[str] | None = None
        self._request_s = REQUEST_S
        self._answering: set[asyncio.Future[None]] = set()
        # What the last Configure was answered with, until its Synchronize.
        self._unconfirmed: tuple[int, ...] = ()
        self._events = EVENTS_WITH_OWNERS if settings.learn_owners else EVENTS
        self._has_been_connected = False
        self.is_ending = False
        services.state.learns_owners = settings.learn_owners

    @staticmethod
    def own_name(settings: NriSettings, environ: Mapping[str, str]) -> str:
        """The plugin's name as the runtime gives it to others."""
        launch = launched(environ)
        name, index = (launch.name, launch.index) if launch is not None else ("", "")
        return f"{index or settings.plugin_index}-{name or settings.plugin_name}"

    async def run(self) -> None:
        """Stays connected until it is cancelled; one that the runtime has launched connects once."""
        pause_s = FIRST_PAUSE_S
        while not self.is_ending:
            began_s = time.monotonic()
            was_connected = await self._connect_once()
            if self._launch is not None:
                return
            if was_connected or time.monotonic() - began_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _connect_once(self) -> bool:
        """Serves one connection to its end; returns whether the runtime had taken the plugin."""
        state, closed = self._services.state, asyncio.get_running_loop().create_future()
        connection = NriConnection(Side.PLUGIN, self._on_request, closed.set_result)
        self._connection, self._closed = connection, closed
        try:
            await self._open(connection)
            await self._register(connection)
            reason = await closed
        except (OSError, RuntimeProxyError, TimeoutError) as error:
            reason = self._reason_of(error)
            connection.close(reason)
        finally:
            self._connection = None
        was_connected, state.is_connected = state.is_connected, False
        state.connected_since_s = None
        self._plugin.forget_pieces()
        if self._unconfirmed not in ((), FIRST_EVENTS):
            # A runtime that does not know an event ends the connection without a word.
            self._events = FIRST_EVENTS
        self._unconfirmed = ()
        if self.is_ending:
            return was_connected
        state.problem = reason
        if was_connected:
            state.lost_connections += 1
        self._services.core.problems.failures.report(
            "NRI", reason, f"not connected with the runtime: {reason}"
        )
        return was_connected

    async def _open(self, connection: NriConnection) -> None:
        if self._launch is not None:
            await use_inherited(self._launch.descriptor, connection)
        else:
            await connect(Path(self._settings.socket), connection)

    async def _register(self, connection: NriConnection) -> None:
        launch, settings = self._launch, self._settings
        request = api_pb2.RegisterPluginRequest(
            plugin_name=(launch.name if launch is not None else "") or settings.plugin_name,
            plugin_idx=(launch.index if launch is not None else "") or settings.plugin_index,
            NRI_version=NRI_VERSION,
        )
        await connection.call("RegisterPlugin", request.SerializeToString(), REGISTRATION_S)

    def _reason_of(self, error: Exception) -> str:
        path = self._settings.socket
        if isinstance(error, FileNotFoundError):
            return f"{path}: no such socket; is NRI enabled in the runtime?"
        if isinstance(error, ConnectionRefusedError):
            return f"{path}: no process listens there"
        if isinstance(error, TimeoutError):
            return f"{path}: no answer within {REGISTRATION_S:g} s"
        return f"{path}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)

    # --- requests ------------------------------------------------------------------------------------------

    def _on_request(self, request: Request) -> None:
        connection = self._connection
        if connection is None:
            return
        if request.method == "Configure":
            self._configure(connection, request)
        elif request.method == "Shutdown":
            connection.respond(request, b"")
            # What follows is the end of the connection, which is said.
            logger.debug("the runtime shuts its plugins down")
        elif request.method in self._plugin.methods:
            answering = self._services.core.spawn(self._answer(connection, request))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)
        else:
            connection.refuse(request, StatusCode.UNIMPLEMENTED, f"unknown method {request.method[:100]}")

    def _configure(self, connection: NriConnection, request: Request) -> None:
        state = self._services.state
        try:
            message = api_pb2.ConfigureRequest.FromString(request.payload)
        except DecodeError:
            connection.refuse(request, StatusCode.INVALID_ARGUMENT, "the request cannot be read")
            return
        state.runtime_name, state.runtime_version = message.runtime_name, message.runtime_version
        state.nri_version = message.NRI_version
        self._services.core.inventory.runtime_name = message.runtime_name
        self._request_s = message.request_timeout / 1000 if message.request_timeout > 0 else REQUEST_S
        events = self._events
        if (
            message.runtime_name == "containerd"
            and not message.NRI_version
            and _OLD.match(message.runtime_version)
        ):
            events = FIRST_EVENTS
        self._unconfirmed = events
        # A plugin that is late is dropped, as by older runtimes, and connects again: while it hangs, one that
        # is kept would hold each event of the node up for the whole time of a request.
        policy = api_pb2.FailurePolicy(fail_request=False, keep_connected=False)
        reply = api_pb2.ConfigureResponse(events=event_mask(events), failure_policy=policy)
        connection.respond(request, reply.SerializeToString())

    async def _answer(self, connection: NriConnection, request: Request) -> None:
        is_inventory, store = request.method == "Synchronize", self._services.core.store
        if is_inventory:
            self._unconfirmed = ()
        is_whole, known = False, len(store.containers)
        try:
            payload = await self._plugin.answer(request, self._request_s / 2)
            if is_inventory:
                is_whole = not api_pb2.SynchronizeResponse.FromString(payload).more
                if self._has_been_connected:
                    self._services.state.undecided_containers += max(0, len(store.containers) - known)
            connection.respond(request, payload)
        except RefusedError as error:
            connection.refuse(request, error.code, refusal_text(error))
        if is_whole:
            self._on_connected()

    def _on_connected(self) -> None:
        state = self._services.state
        state.is_connected, state.problem = True, ""
        state.connected_since_s = time.time()
        self._has_been_connected = True
        about = {"runtime": state.runtime, "nri_version": state.nri_version}
        logger.info("registered with the runtime as an NRI plugin", extra=about)

    # --- the end -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begins no new connection."""
        self.is_ending = True

    async def drain(self, most_s: float) -> None:
        """Ends the connection once the runtime's requests are answered."""
        self.is_ending = True
        if self._answering:
            await asyncio.wait(tuple(self._answering), timeout=most_s)
        if self._connection is not None and self._closed is not None:
            self._connection.close("the daemon ends")
            await asyncio.wait({self._closed}, timeout=most_s)
