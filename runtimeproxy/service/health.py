"""gRPC health on the kubelet's socket: serving only while the runtime answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

SERVICES: Final = ("", "runtime.v1.RuntimeService", "runtime.v1.ImageService")
"""Names that can be asked for; the empty one means the whole daemon."""
WATCH_INTERVAL_S: Final = 1.0
"""How often a Watch looks again. Source: the kubelet's own Status interval is 5 s."""


class RuntimeHealth(health_pb2_grpc.HealthServicer):
    """Answers each check by asking the runtime.

    Args:
        probe: asks the runtime something cheap; returns whether it answered in time. Never raises.
        stopping: set when the daemon drains: from then on nothing is serving.
    """

    def __init__(self, probe: Callable[[], Awaitable[bool]], stopping: asyncio.Event) -> None:
        self._probe = probe
        self._stopping = stopping

    async def Check(  # noqa: N802  # the method's name in the service
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> health_pb2.HealthCheckResponse:
        """Whether a service is serving now; NOT_FOUND for names that this daemon does not know."""
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=await self._status())

    async def Watch(  # noqa: N802  # the method's name in the service
        self,
        request: health_pb2.HealthCheckRequest,
        context: ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Sends the status now and whenever it changes."""
        last: int | None = None
        while True:
            if request.service in SERVICES:
                status = await self._status()
            else:
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            try:
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue
            if last != health_pb2.HealthCheckResponse.NOT_SERVING:
                yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)
            return

    async def _status(self) -> int:
        if not self._stopping.is_set() and await self._probe():
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING
