"""The calls of the service Admin: they change what the daemon does. Used in the event loop's thread."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

import grpc

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.modes import MOST_OVERRIDES, Override, with_override, without
from runtimeproxy.hooks.selector import EVERY_POD, selector_problems
from runtimeproxy.service.api.status import bypass_of, policies_of
from runtimeproxy.service.api.values import SET_MODES, selector_from
from runtimeproxy.service.bypass import Cause

if TYPE_CHECKING:
    from runtimeproxy.service.api.handlers import Context
    from runtimeproxy.service.api.sources import ApiSources

logger = logging.getLogger(__name__)

LEAST_S: Final = 1.0
MOST_S: Final = 30 * 86_400.0
"""Bounds of the time of a mode: a longer one belongs into the configuration."""
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

    async def SetPolicyMode(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.SetPolicyModeRequest, context: Context
    ) -> api_pb2.SetPolicyModeResponse:
        await self._check(request.reason, context)
        sources, engine = self._sources, self._sources.engine
        async with sources.changing:
            # An upgrade may have held the lock.
            await self._check(request.reason, context)
            if not engine.has_policies:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the policies are not loaded yet")
            names = sorted({each.name for each in engine.policies} | {each.name for each in engine.classes})
            if request.policy not in names:
                text = f"no policy is named {request.policy}; there are: {', '.join(names)}"
                await context.abort(grpc.StatusCode.NOT_FOUND, text)
            try:
                overrides = changed(engine.overrides, request, time.time())
            except ValueError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            try:
                await engine.set_modes(overrides)
            except OSError as error:
                text = f"the mode cannot be saved, and is not changed: {error.strerror}"
                await context.abort(grpc.StatusCode.UNAVAILABLE, text)
            except PolicyLoadError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"the policy cannot be loaded: {error}")
        about = {"policy": request.policy, "reason": request.reason}
        mode = api_pb2.Mode.Name(request.mode).removeprefix("MODE_").lower().replace("_", "-")
        logger.warning("policy %s: mode %s was set by command", request.policy, mode, extra=about)
        found = {each.name: each for each in policies_of(engine)}
        return api_pb2.SetPolicyModeResponse(policy=found.get(request.policy))

    async def _check(self, reason: str, context: Context) -> None:
        """Ends the call if this process decides on no calls any more, or the reason is too long."""
        if len(reason) > MOST_REASON:
            text = f"the reason has {len(reason)} characters, at most {MOST_REASON} are possible"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if self._sources.stopping.is_set() or self._sources.upgrade.has_moved:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this process ends; call again")


def changed(
    overrides: tuple[Override, ...], request: api_pb2.SetPolicyModeRequest, now_s: float
) -> tuple[Override, ...]:
    """The modes after a request.

    Raises:
        ValueError: It cannot be used; says why.
    """
    selector = selector_from(request.selector) if request.HasField("selector") else EVERY_POD
    for place, reason in selector_problems(selector.namespaces or (), selector.labels):
        raise ValueError(f"selector: {'.'.join(place)}: {reason}")
    if request.mode == api_pb2.MODE_UNSPECIFIED:
        return without(overrides, request.policy, selector if request.HasField("selector") else None)
    modes = {number: mode for mode, number in SET_MODES.items()}
    if request.mode not in modes:
        raise ValueError(f"mode {request.mode} is not known")
    until_s = None
    if request.HasField("duration"):
        time_s = request.duration.seconds + request.duration.nanos / 1e9
        if not LEAST_S <= time_s <= MOST_S:
            raise ValueError(f"a time of {time_s:g} s is not in {LEAST_S:g} to {MOST_S:g} s")
        until_s = now_s + time_s
    after = with_override(
        overrides,
        Override(request.policy, modes[request.mode], selector, now_s, until_s, request.reason),
    )
    if len(after) > MOST_OVERRIDES:
        raise ValueError(f"{MOST_OVERRIDES} modes are set already: take some back")
    return after
