"""An NRI plugin with the connection of ours and a fixed answer, as a program: its argument is the socket."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from cri_api.nri.v1alpha1 import api_pb2
from runtimeproxy.frontends.nri.connection import NriConnection, connect
from runtimeproxy.frontends.nri.plugin import FIRST_EVENTS, event_mask
from runtimeproxy.frontends.nri.ttrpc import Request, Side

ADJUSTMENT = api_pb2.ContainerAdjustment(
    env=[api_pb2.KeyValue(key="BENCH", value=b"1")],
    linux=api_pb2.LinuxContainerAdjustment(
        resources=api_pb2.LinuxResources(
            cpu=api_pb2.LinuxCPU(shares=api_pb2.OptionalUInt64(value=512), cpus="0")
        )
    ),
)


class FixedPlugin:
    """Reads a request for a container, and answers the same each time."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.connection = NriConnection(Side.PLUGIN, self._on_request, self.closed.set_result)
        self._answers = {
            "Configure": api_pb2.ConfigureResponse(events=event_mask(FIRST_EVENTS)).SerializeToString(),
            "CreateContainer": api_pb2.CreateContainerResponse(adjust=ADJUSTMENT).SerializeToString(),
        }

    def _on_request(self, request: Request) -> None:
        if request.method == "CreateContainer":
            api_pb2.CreateContainerRequest.FromString(request.payload)
        self.connection.respond(request, self._answers.get(request.method, b""))


async def main(socket: Path) -> None:
    """Serves until the runtime ends the connection."""
    plugin = FixedPlugin()
    await connect(socket, plugin.connection)
    registration = api_pb2.RegisterPluginRequest(plugin_name="fixed", plugin_idx="10")
    await plugin.connection.call("RegisterPlugin", registration.SerializeToString(), 5.0)
    await plugin.closed


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(Path(sys.argv[1])))
