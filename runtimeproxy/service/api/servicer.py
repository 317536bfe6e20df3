"""The calls of the service RuntimeProxy. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from runtimeproxy.service.api.explain import Explainer
from runtimeproxy.service.api.pods import AmbiguousPodError, UnknownPodError
from runtimeproxy.service.api.status import Look, read_memory, status_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from cri_api.runtimeproxy.v1 import api_pb2
    from runtimeproxy.service.api.handlers import Context
    from runtimeproxy.service.api.sources import ApiSources


class RuntimeProxyServicer:
    """Answers from what the daemon has at the moment.

    Args:
        sources: The daemon's parts.
        executor: A thread for files.
    """

    def __init__(self, sources: ApiSources, executor: Executor) -> None:
        self._sources = sources
        self._executor = executor
        self._explainer = Explainer(sources.engine, executor)

    async def GetStatus(  # noqa: N802  # the method's name in the service
        self, _request: api_pb2.GetStatusRequest, _context: Context
    ) -> api_pb2.GetStatusResponse:
        run = asyncio.get_running_loop().run_in_executor
        runtime = await self._sources.engine.runtime_version()
        memory_bytes = await run(self._executor, read_memory)
        return status_of(self._sources, Look(runtime, memory_bytes))

    async def Explain(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.ExplainRequest, context: Context
    ) -> api_pb2.ExplainResponse:
        if not request.pod:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no pod is given")
        try:
            return await self._explainer.explain(request.pod, request.container)
        except UnknownPodError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except AmbiguousPodError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
