"""The calls of the service Admin: they change what the daemon does. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import MODE_OF
from runtimeproxy.background import ShieldedTasks
from runtimeproxy.core.eviction import MOST_GRACE_S
from runtimeproxy.errors import PolicyLoadError, StatusCode
from runtimeproxy.hooks.modes import MOST_OVERRIDES, Override, with_override, without
from runtimeproxy.hooks.selector import EVERY_POD, selector_problems
from runtimeproxy.ledger.leased import LeasedClaims, UnknownOwnerError
from runtimeproxy.record.recorder import TOO_SLOW, Recorder
from runtimeproxy.service.api.claims import (
    OUTCOMES,
    evict_response,
    failed_message,
    owned_messages,
    request_of,
    response_of,
    session_problem,
)
from runtimeproxy.service.api.qos_manager import node_resource_of, report_of
from runtimeproxy.service.api.status import bypass_of, owner_mode_of, policies_of
from runtimeproxy.service.api.values import duration, selector_from
from runtimeproxy.service.bypass import Cause
from runtimeproxy.service.qos_manager import reports_s
from runtimeproxy.vocabulary import MOST_EVICTION_REASON_BYTES

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.service.api.handlers import Context
    from runtimeproxy.service.parts import Parts

logger = logging.getLogger(__name__)

LEAST_S: Final = 1.0
MOST_S: Final = 30 * 86_400.0
"""Bounds of the time of a mode: a longer one belongs into the configuration."""
MOST_REASON: Final = 256
"""Characters of a reason."""
_ResultT = TypeVar("_ResultT")
_ENDS: Final = "this process ends; call again"


class AdminServicer:
    """Changes the bypass, and the modes of policies; records calls.

    Args:
        parts: The daemon's.
        executor: A thread for long work.
    """

    def __init__(self, parts: Parts, executor: Executor) -> None:
        self._parts = parts
        self._executor = executor
        self._changes = ShieldedTasks()

    async def SetBypass(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.SetBypassRequest, context: Context
    ) -> api_pb2.SetBypassResponse:
        await self._check(request.reason, context)
        self._parts.bypass.choose(request.is_on, Cause.COMMAND, request.reason)
        return api_pb2.SetBypassResponse(bypass=bypass_of(self._parts.bypass))

    async def SetPolicyMode(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.SetPolicyModeRequest, context: Context
    ) -> api_pb2.SetPolicyModeResponse:
        await self._check(request.reason, context)
        core = self._parts.core
        policies, leased, node, store = core.policies, core.leased, core.node, core.store
        async with self._parts.life.changing:
            # An upgrade may have held the lock.
            await self._check(request.reason, context)
            if not policies.is_loaded:
                await context.abort(StatusCode.UNAVAILABLE, "the policies are not loaded yet")
            found = policies.loaded
            names = sorted({each.name for each in found.policies} | {each.name for each in found.classes})
            owners = [str(each.owner.claimant) for each in leased.owners.values()]
            if request.policy not in (*names, *owners):
                text = f"no policy is named {request.policy}; there are: {', '.join((*names, *owners))}"
                await context.abort(StatusCode.NOT_FOUND, text)
            if request.policy in owners and request.HasField("selector"):
                text = f"the mode of {request.policy} is for all that it claims, not for some pods"
                await context.abort(StatusCode.INVALID_ARGUMENT, text)
            try:
                change = policies.change_modes(lambda present: changed(present, request, time.time()))
                # What is on disk is to be in effect, too, when the client goes away.
                await self._changes.run(change)
            except ValueError as error:
                await context.abort(StatusCode.INVALID_ARGUMENT, str(error))
            except OSError as error:
                text = f"the mode cannot be saved, and is not changed: {error.strerror}"
                await context.abort(StatusCode.UNAVAILABLE, text)
            except PolicyLoadError as error:
                await context.abort(StatusCode.UNAVAILABLE, f"the policy cannot be loaded: {error}")
        about = {"policy": request.policy, "reason": request.reason}
        if request.mode == api_pb2.MODE_UNSPECIFIED:
            logger.warning("policy %s: its mode was reset by command", request.policy, extra=about)
        else:
            mode = api_pb2.Mode.Name(request.mode).removeprefix("MODE_").lower().replace("_", "-")
            logger.warning("policy %s: mode %s was set by command", request.policy, mode, extra=about)
        if request.policy in owners:
            return api_pb2.SetPolicyModeResponse(policy=owner_mode_of(leased, policies.modes, request.policy))
        uids = {pod.uid for pod in store.pods}
        states = {each.name: each for each in policies_of(policies, core.audit, node.latest, uids)}
        return api_pb2.SetPolicyModeResponse(policy=states.get(request.policy))

    async def SetClaims(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.SetClaimsRequest, context: Context
    ) -> api_pb2.SetClaimsResponse:
        leased = await self._leased(context)
        if problem := session_problem(request.session):
            await context.abort(StatusCode.INVALID_ARGUMENT, problem)
        try:
            owner = leased.owned(request.owner).owner
            # Before any of them is read: a worker thread that reads 100,000 of them slows all others down.
            if max(len(request.claims), len(request.ended)) > owner.most_claims:
                text = f"the request has more than {owner.most_claims} claims, the bound of {owner.name}"
                await context.abort(StatusCode.RESOURCE_EXHAUSTED, text)
            has_claims = bool(request.claims or request.ended)
            work = partial(request_of, request, owner)
            return response_of(await leased.set(await self._in_worker(work) if has_claims else work()))
        except UnknownOwnerError as error:
            await context.abort(StatusCode.NOT_FOUND, str(error))

    async def ReleaseClaims(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.ReleaseClaimsRequest, context: Context
    ) -> api_pb2.ReleaseClaimsResponse:
        leased = await self._leased(context)
        try:
            answer, released, failed = await leased.release(request.owner, request.session)
        except UnknownOwnerError as error:
            await context.abort(StatusCode.NOT_FOUND, str(error))
        return api_pb2.ReleaseClaimsResponse(
            released=released, failed=map(failed_message, failed), outcome=OUTCOMES[answer]
        )

    async def GetClaims(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.GetClaimsRequest, context: Context
    ) -> api_pb2.GetClaimsResponse:
        leased = await self._leased(context)
        problem = session_problem(request.session) if request.session else ""
        if request.session and not request.owner:
            problem = "a session takes over the claims of one owner, and none is given"
        if problem:
            await context.abort(StatusCode.INVALID_ARGUMENT, problem)
        try:
            if request.session:
                await leased.take_over(request.owner, request.session)
            owners = [leased.owned(request.owner)] if request.owner else list(leased.owners.values())
        except UnknownOwnerError as error:
            await context.abort(StatusCode.NOT_FOUND, str(error))
        # Claims change in this thread meanwhile.
        copies = [replace(owned, claims=dict(owned.claims)) for owned in owners]
        messages = await self._in_worker(partial(owned_messages, copies, leased.now_s()))
        return api_pb2.GetClaimsResponse(owners=messages)

    async def Evict(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.EvictRequest, context: Context
    ) -> api_pb2.EvictResponse:
        await self._check("", context)
        core = self._parts.core
        leased, evictor, inventory = core.leased, core.evictor, core.inventory
        grace_s = request.grace_period.seconds + request.grace_period.nanos / 1e9
        if not 0 <= grace_s <= MOST_GRACE_S:
            text = f"a grace period of {grace_s:g} s is not in 0 to {MOST_GRACE_S:g} s"
            await context.abort(StatusCode.INVALID_ARGUMENT, text)
        if len(request.reason.encode()) > MOST_EVICTION_REASON_BYTES:
            text = f"the reason has more than {MOST_EVICTION_REASON_BYTES} bytes"
            await context.abort(StatusCode.INVALID_ARGUMENT, text)
        if not inventory.recovered.is_set():
            await context.abort(StatusCode.UNAVAILABLE, "the pods are not known yet; call again")
        try:
            owner = leased.owned(request.owner).owner
        except UnknownOwnerError as error:
            await context.abort(StatusCode.NOT_FOUND, str(error))
        pod = evictor.find(request.pod_uid)
        if pod is None:
            text = f"no pod has the uid {request.pod_uid[:64]}"
            await context.abort(StatusCode.NOT_FOUND, text)
        result = await evictor.evict(
            pod, owner, request.reason, is_dry_run=request.is_dry_run, grace_s=grace_s
        )
        return evict_response(result)

    async def ReportQosManager(  # noqa: N802  # the method's name in the service
        self, request: api_pb2.ReportQosManagerRequest, context: Context
    ) -> api_pb2.ReportQosManagerResponse:
        await self._check("", context)
        self._parts.qos_manager.take(report_of(request.report), node_resource_of(request))
        return api_pb2.ReportQosManagerResponse(interval=duration(reports_s()))

    async def _in_worker(self, work: Callable[[], _ResultT]) -> _ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _leased(self, context: Context) -> LeasedClaims:
        """The claims; ends the call where there are none yet, or none at all."""
        await self._check("", context)
        if not self._parts.configuration.settings.cgroups.enabled:
            await context.abort(StatusCode.FAILED_PRECONDITION, "cgroups.enabled is false")
        leased = self._parts.core.leased
        if not leased.ready.is_set():
            await context.abort(StatusCode.UNAVAILABLE, "claims are not read yet; call again")
        return leased

    async def Record(  # noqa: N802  # the method's name in the service
        self, _request: api_pb2.RecordRequest, context: Context
    ) -> AsyncIterator[api_pb2.RecordResponse]:
        await self._check("", context)
        policies, proxy = self._parts.core.policies, self._parts.proxy
        if proxy is None:
            why = f"in mode {self._parts.front_end.mode} there are no calls"
            await context.abort(StatusCode.FAILED_PRECONDITION, why)
        services = proxy.services
        if services is None or not policies.is_loaded:
            await context.abort(StatusCode.UNAVAILABLE, "the policies are not loaded yet; call again")
        if services.recorder is not None:
            await context.abort(StatusCode.ALREADY_EXISTS, "another recording goes on; end it first")
        recorder = Recorder(services)
        ending = asyncio.ensure_future(self._end_with_process(recorder))
        try:
            # Closed at once when the client is gone: then calls are recorded no more.
            async with aclosing(recorder.lines(self._executor)) as lines:
                async for each in lines:
                    yield api_pb2.RecordResponse(lines=each)
        finally:
            ending.cancel()
        is_slow = recorder.problem == TOO_SLOW
        code = StatusCode.RESOURCE_EXHAUSTED if is_slow else StatusCode.UNAVAILABLE
        await context.abort(code, recorder.problem)

    async def _end_with_process(self, recorder: Recorder) -> None:
        waiting = [
            asyncio.ensure_future(each.wait())
            for each in (self._parts.life.stopping, self._parts.life.retired)
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            recorder.end(_ENDS)
        finally:
            for each in waiting:
                each.cancel()

    async def _check(self, reason: str, context: Context) -> None:
        """Ends the call if this process decides on no calls any more, or the reason is too long."""
        if len(reason) > MOST_REASON:
            text = f"the reason has {len(reason)} characters, at most {MOST_REASON} are possible"
            await context.abort(StatusCode.INVALID_ARGUMENT, text)
        if self._parts.life.stopping.is_set() or self._parts.life.retired.is_set():
            await context.abort(StatusCode.UNAVAILABLE, _ENDS)


def changed(
    overrides: tuple[Override, ...], request: api_pb2.SetPolicyModeRequest, now_s: float
) -> tuple[Override, ...]:
    """The modes after a request. Raises ValueError if it cannot be used; says why."""
    selector = selector_from(request.selector) if request.HasField("selector") else EVERY_POD
    for place, reason in selector_problems(selector.namespaces or (), selector.labels):
        raise ValueError(f"selector: {'.'.join(place)}: {reason}")
    if request.mode == api_pb2.MODE_UNSPECIFIED:
        return without(overrides, request.policy, selector if request.HasField("selector") else None)
    if request.mode not in MODE_OF:
        raise ValueError(f"mode {request.mode} is not known")
    until_s = None
    if request.HasField("duration"):
        time_s = request.duration.seconds + request.duration.nanos / 1e9
        if not LEAST_S <= time_s <= MOST_S:
            raise ValueError(
                f"a time of {time_s:g} s is not in {LEAST_S:g} s to {MOST_S / 86_400:g} days; without a time "
                "the mode stays until it is reset"
            )
        until_s = now_s + time_s
    after = with_override(
        overrides,
        Override(request.policy, MODE_OF[request.mode], selector, now_s, until_s, request.reason),
    )
    if len(after) > MOST_OVERRIDES:
        raise ValueError(f"{MOST_OVERRIDES} modes are set already: take some back")
    return after
