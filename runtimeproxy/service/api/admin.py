"""The calls of the service Admin: they change what the daemon does. Used in the event loop's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.service.api.status import bypass_of
from runtimeproxy.service.bypass import Cause

if TYPE_CHECKING:
    from runtimeproxy.service.api.handlers import Context
    from runtimeproxy.service.api.sources import ApiSources

MOST_REASON: Final = 256
"""Characters of a reason."""


class AdminServicer:
    """Changes the bypass, and the modes of policies.

    Args:
        sources: The daemon's parts.
    """

    def __init__(self, sources: ApiSources) -> None:
        self._sources = sources

    async def SetBypass(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.SetBypassRequest, context: Context
    ) -> api_pb2.SetBypassResponse:
        await self._check(request.reason, context)
        self._sources.bypass.choose(request.is_on, Cause.COMMAND, request.reason)
        return api_pb2.SetBypassResponse(bypass=bypass_of(self._sources))

    async def _check(self, reason: str, context: Context) -> None:
        """Ends the call if this process decides on no calls any more, or the reason is too long."""
        if len(reason) > MOST_REASON:
            text = f"the reason has {len(reason)} characters, at most {MOST_REASON} are possible"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if self._sources.stopping.is_set() or self._sources.upgrade.has_moved:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this process ends; call again")
