"""The daemon's own gRPC server behind the relay: health and reflection."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import grpc.aio


class OwnServer:
    """Serves on a socket in a directory that only this user can enter.

    Attributes:
        socket_path: where the relay reaches the server; the file is there once `start` has returned.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="koord-runtime-proxy-"))
        self.socket_path = str(self._directory / "own.sock")
        self._server: grpc.aio.Server | None = None

    async def start(self, probe: Callable[[], Awaitable[bool]], stopping: asyncio.Event) -> None:
        """Loads grpcio in a thread, so that relaying goes on meanwhile, and serves.

        Args:
            probe: whether the runtime answers.
            stopping: set when the daemon drains.
        """
        await asyncio.to_thread(_load)
        self._server = await _serve(self.socket_path, probe, stopping)

    async def stop(self) -> None:
        """Ends the server and removes its directory; calls in progress are cut."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        shutil.rmtree(self._directory, ignore_errors=True)


def _load() -> None:
    from runtimeproxy.ops import health, reflection  # noqa: F401  # the import is the purpose


async def _serve(
    socket_path: str, probe: Callable[[], Awaitable[bool]], stopping: asyncio.Event
) -> grpc.aio.Server:
    import grpc.aio
    from grpc_health.v1 import health_pb2_grpc

    from runtimeproxy.ops import reflection
    from runtimeproxy.ops.health import RuntimeHealth

    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(RuntimeHealth(probe, stopping), server)
    reflection.add_to(server)
    server.add_insecure_port(f"unix:{socket_path}")
    await server.start()
    return server
