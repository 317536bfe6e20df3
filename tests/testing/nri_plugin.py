"""An NRI plugin for tests of the runtime's side: it answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from cri_api.nri.v1alpha1 import api_pb2 as nri
from runtimeproxy.errors import StatusCode
from runtimeproxy.frontends.nri.connection import NriConnection, connect
from runtimeproxy.frontends.nri.ttrpc import Request, Side

Answer = Callable[[Any], Message | str | None]
"""From the request to the reply; a text refuses, None never answers."""


class NriPluginDouble:
    """One plugin.

    Attributes:
        answers: By method; without one an event is answered with nothing, and an unknown method refused.
        asked: Each request with its method.
        events: The mask of `Configure`.
        reason: Why the connection has ended.
    """

    def __init__(self, name: str = "double", index: str = "10", events: int = 0) -> None:
        self.name = name
        self.index = index
        self.events = events
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, Any]] = []
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.connection = NriConnection(Side.PLUGIN, self._on_request, self.reason.set_result)

    async def register(self, path: Path, timeout_s: float = 10) -> None:
        await connect(path, self.connection)
        request = nri.RegisterPluginRequest(plugin_name=self.name, plugin_idx=self.index)
        await self.connection.call("RegisterPlugin", request.SerializeToString(), timeout_s)

    async def update(self, *updates: nri.ContainerUpdate) -> list[str]:
        """Asks for updates; returns the ids of those that failed."""
        request = nri.UpdateContainersRequest(update=updates)
        payload = await self.connection.call("UpdateContainers", request.SerializeToString(), 10)
        return [each.container_id for each in nri.UpdateContainersResponse.FromString(payload).failed]

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]

    def _on_request(self, request: Request) -> None:
        method = request.method
        name = {"StateChange": "StateChangeEvent", "Shutdown": "Empty"}.get(method, f"{method}Request")
        message = getattr(nri, name).FromString(request.payload)
        self.asked.append((method, message))
        answer: Message | str | None
        if method in self.answers:
            answer = self.answers[method](message)
        elif method == "Configure":
            answer = nri.ConfigureResponse(events=self.events)
        elif method == "Synchronize":
            answer = nri.SynchronizeResponse(more=message.more)
        else:
            answer = nri.Empty()
        if isinstance(answer, str):
            code = StatusCode.UNIMPLEMENTED if answer == "unimplemented" else StatusCode.UNKNOWN
            self.connection.refuse(request, code, answer)
        elif answer is not None:
            self.connection.respond(request, answer.SerializeToString())


@asynccontextmanager
async def registered(
    path: Path, name: str = "double", index: str = "10", events: int = 0
) -> AsyncIterator[NriPluginDouble]:
    plugin = NriPluginDouble(name, index, events)
    await plugin.register(path)
    try:
        yield plugin
    finally:
        plugin.connection.close()
        await plugin.reason
