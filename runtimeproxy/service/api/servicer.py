"""The calls of the service RuntimeProxy. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from runtimeproxy.documents.reading import InputError
from runtimeproxy.errors import StatusCode
from runtimeproxy.node.koordlet import KoordletLook
from runtimeproxy.service.api.audit_feed import AuditFeed
from runtimeproxy.service.api.explain import Explainer
from runtimeproxy.service.api.node import NodeFeed
from runtimeproxy.service.api.pod_feed import PodFeed
from runtimeproxy.service.api.pods import AmbiguousPodError, PodMessages, UnknownPodError
from runtimeproxy.service.api.qos_manager import node_resource, pod_notes
from runtimeproxy.service.api.resctrl import resctrl_reading
from runtimeproxy.service.api.simulate import LongSimulationError, Simulator
from runtimeproxy.service.api.status import StatusReading, read_memory, status_of
from runtimeproxy.service.api.watching import SlowWatcherError, WatchEndedError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from cri_api.runtimeproxy.v1 import api_pb2
    from runtimeproxy.service.api.handlers import Context
    from runtimeproxy.service.parts import Parts


ResponseT = TypeVar("ResponseT")


class RuntimeProxyServicer:
    """Answers from what the daemon has at the moment.

    Args:
        parts: The daemon's.
        executor: A thread for files.

    Attributes:
        parts: See above.
        pods: All watchers of pods.
        node: What is known of the node.
        explainer: Says why a pod's values are what they are.
    """

    def __init__(self, parts: Parts, executor: Executor) -> None:
        self.parts = parts
        self._executor = executor
        core, audit = parts.core, parts.core.audit
        messages = PodMessages(core.inventory, core.ledger, core.node)
        self.explainer = Explainer(
            messages,
            core.policies,
            core.leased,
            executor,
            parts.nri,
            lambda uid: pod_notes(parts.qos_manager, uid),
        )
        self._simulator = Simulator(core.policies, core.node)
        self.pods = PodFeed(messages)
        self.node = NodeFeed(core.store, core.node, core.policies)
        self._flush = audit.flush
        self._audit = AuditFeed(audit.ring, audit.flush)
        self._koordlets = KoordletLook()
        # Watchers would keep a process whose successor serves, or that drains.
        self._ending = asyncio.get_running_loop().create_task(self._end_watches())

    async def _end_watches(self) -> None:
        ends = (self.parts.life.stopping, self.parts.life.retired)
        waiting = {asyncio.ensure_future(each.wait()) for each in ends}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        error = WatchEndedError("this process ends; call again")
        self.pods.watchers.end(error)
        self._audit.watchers.end(error)

    async def GetStatus(  # noqa: N802  # the method's name in the service
        self, _request: api_pb2.GetStatusRequest, _context: Context
    ) -> api_pb2.GetStatusResponse:
        run = asyncio.get_running_loop().run_in_executor
        runtime = await self.parts.runtime.version()
        memory_bytes = await run(self._executor, read_memory)
        misspelled = await run(self._executor, self.parts.pod_names.find)
        koordlets = await run(self._executor, self._koordlets.find)
        # The last failures are those of the audit.
        self._flush()
        status = status_of(self.parts, StatusReading(runtime, memory_bytes, misspelled, koordlets))
        status.clients.watchers = self.watchers
        return status

    @property
    def watchers(self) -> int:
        return len(self.pods.watchers) + len(self._audit.watchers)

    async def GetNode(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.GetNodeRequest, _context: Context
    ) -> api_pb2.GetNodeResponse:
        return self.node.response(request.known_generation, self.parts.configuration.settings)

    async def GetResctrl(  # noqa: N802  # the method's name in the service
        self, _request: api_pb2.GetResctrlRequest, _context: Context
    ) -> api_pb2.GetResctrlResponse:
        core = self.parts.core
        read = resctrl_reading(core.state, core.node, core.store)
        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    async def GetCustomNodeResource(  # noqa: N802  # the method's name in the service
        self, _request: api_pb2.GetCustomNodeResourceRequest, _context: Context
    ) -> api_pb2.GetCustomNodeResourceResponse:
        return node_resource(self.parts.qos_manager)

    async def WatchPods(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.WatchPodsRequest, context: Context
    ) -> AsyncIterator[api_pb2.WatchPodsResponse]:
        async for response in _watched(self.pods.watch(request), context):
            yield response

    async def WatchAudit(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.WatchAuditRequest, context: Context
    ) -> AsyncIterator[api_pb2.WatchAuditResponse]:
        async for response in _watched(self._audit.watch(request), context):
            yield response

    async def Simulate(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.SimulateRequest, context: Context
    ) -> bytes:
        try:
            return await self._simulator.simulate(request)
        except InputError as error:
            await context.abort(StatusCode.INVALID_ARGUMENT, str(error))
        except LongSimulationError as error:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def Explain(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.ExplainRequest, context: Context
    ) -> api_pb2.ExplainResponse:
        if not request.pod:
            await context.abort(StatusCode.INVALID_ARGUMENT, "no pod is given")
        try:
            return await self.explainer.explain(request.pod, request.container)
        except UnknownPodError as error:
            await context.abort(StatusCode.NOT_FOUND, str(error))
        except AmbiguousPodError as error:
            await context.abort(StatusCode.FAILED_PRECONDITION, str(error))


async def _watched(
    responses: AsyncGenerator[ResponseT, None], context: Context
) -> AsyncGenerator[ResponseT, None]:
    # The feed's errors end the call with a status.
    try:
        # Closed at once when the client is gone, so that nothing is gathered for it.
        async with aclosing(responses):
            async for response in responses:
                yield response
    except SlowWatcherError as error:
        await context.abort(StatusCode.RESOURCE_EXHAUSTED, str(error))
    except WatchEndedError as error:
        await context.abort(StatusCode.UNAVAILABLE, str(error))
