"""One hook server as one policy of the chain. Used in the event loop's thread."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from cri_api.parsing import TooManyPartsError
from runtimeproxy.errors import StatusCode
from runtimeproxy.hooks.decision import FailureKind, ServerError
from runtimeproxy.hooks.loaded import MAX_PRIORITY, Cancellable, LoadedPolicy, OnResponse
from runtimeproxy.hooks.policy import HOOKS_BEFORE, FailurePolicy, Hook, Policy
from runtimeproxy.hooks.remote.protocol import EXCHANGES, NO_SUCH_METHOD, Exchange
from runtimeproxy.hooks.remote.server_state import ServerCounts
from runtimeproxy.hooks.selector import PodSelector, PodTraits
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.http2.client import (
    AnsweredError,
    GrpcClient,
    LateError,
    RpcError,
    UnreachableError,
    UnusableError,
    request_block,
)

if TYPE_CHECKING:
    from runtimeproxy.hooks.changes import CgroupChange
    from runtimeproxy.hooks.remote.registrations import Registration

logger = logging.getLogger(__name__)

PRIORITY: Final = MAX_PRIORITY + 1
"""After all policies of this process."""
ENOUGH_S: Final = 0.5
"""A server that has not responded in this time has failed, even if its own timeout is longer."""
MAX_ENTRIES: Final = 1_000
"""Of maps that one response may change: each is merged and audited. Koordlet's hooks change about ten."""
FAILURES_TO_OPEN: Final = 3
PROBE_INTERVAL_S: Final = 0.5
"""Between two probes."""
SHORT_PROBE_S: Final = 2.0
"""Deadline of probes: with the interval between them, a server is back in use within 3 s."""

_MAX_TEXT_LENGTH: Final = 1_024
"""Bound on a server's error text: a status message has to fit into one header block."""
_ON_LOOP_BYTES: Final = 64 * 1024
"""Longer responses, and those to longer requests, are read in a worker thread."""
_ON_LOOP_COMPARISONS: Final = 4 * 1024 * 1024
"""Characters of an error's text times bytes of variables: more are compared in a worker thread, as that many
take a millisecond."""
_MIN_SECRET_LENGTH: Final = 8
"""Values of variables that are as short as `true` or `8080` are not secret, and occur in any text."""
_REPLACED: Final = re.compile("\x01\0*")
_TRANSPORT_CODES: Final = frozenset(
    {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
)
"""A status with one of these says only that something on the way to the hooks failed."""

_HEADERS: Final = {hook: request_block(exchange.method) for hook, exchange in EXCHANGES.items()}
"""Header blocks of the hooks' methods."""
_LIFE_SIGN: Final = request_block(NO_SUCH_METHOD)


class Breaker:
    """Counts failures in a row: open means that the server is skipped.

    Attributes:
        is_open: Whether the server is skipped.
        opened: Time of the last opening, by the clock, and its cause.
        openings: How often it has opened.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self.opened = (0.0, "")
        self.openings = 0
        self.is_open = False

    def on_failure(self, cause: str) -> bool:
        """Counts a failure; returns whether it opened the breaker."""
        self._failures += 1
        if self.is_open or self._failures < FAILURES_TO_OPEN:
            return False
        self.opened = self._clock(), cause
        self.openings += 1
        self.is_open = True
        return True

    def on_response(self) -> float | None:
        """Counts a response; returns for how long the server was skipped if this closed the breaker."""
        self._failures = 0
        if not self.is_open:
            return None
        self.is_open = False
        return max(self._clock() - self.opened[0], 0.0)


class Prober:
    """Probes a server again and again, from `start` to `stop`.

    Args:
        probe: Sends one request with a deadline in seconds, and calls back when it has ended.
        deadlines_s: Each has probes of its own: those with a short deadline find soon that the server is
            back, those with a long one let a slow server respond.
        interval_s: Between two probes.
    """

    def __init__(
        self,
        probe: Callable[[float, Callable[[], None]], None],
        deadlines_s: frozenset[float],
        interval_s: float = PROBE_INTERVAL_S,
    ) -> None:
        self._probe = probe
        self._deadlines_s = deadlines_s
        self._interval_s = interval_s
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return bool(self._timers)

    def start(self) -> None:
        if not (self._timers or self._is_closed):
            for deadline_s in self._deadlines_s:
                self._wait(deadline_s)

    def stop(self) -> None:
        """Ends; the result of a probe under way still counts."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        """Ends for good."""
        self._is_closed = True
        self.stop()

    def _wait(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[deadline_s] = loop.call_later(self._interval_s, self._send, deadline_s)

    def _send(self, deadline_s: float) -> None:
        self._probe(deadline_s, partial(self._on_end, deadline_s, self._timers[deadline_s]))

    def _on_end(self, deadline_s: float, timer: asyncio.TimerHandle) -> None:
        # There is another timer, or none, if it was stopped meanwhile.
        if self._timers.get(deadline_s) is timer:
            self._wait(deadline_s)


@dataclass(frozen=True, slots=True)
class _HookRequest:
    """A request to a server; a `RemoteRequest`."""

    server: HookServer
    hook: Hook
    view: PodView | ContainerView
    exchange: Exchange
    message: Any
    data: bytes
    """The message's bytes."""

    def send(self, timeout_s: float, on_response: OnResponse, /) -> Cancellable:
        return self.server.send(self, timeout_s, on_response)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reachable(PodSelector):
    """Every pod while the breaker is closed: an open one then costs a call nothing."""

    breaker: Breaker

    def matches(self, pod: PodTraits) -> bool:
        return not self.breaker.is_open


class HookServer:
    """A registered hook server: its connection, its breaker and the policy that stands for it.

    Args:
        short_probe_s: Deadline of the probes that soon find a server that is back; for slow servers there are
            probes with the server's own timeout.
        probe_interval_s: Between two probes.
    """

    def __init__(
        self,
        registration: Registration,
        short_probe_s: float = SHORT_PROBE_S,
        probe_interval_s: float = PROBE_INTERVAL_S,
    ) -> None:
        self.registration = registration
        self._client = GrpcClient(registration.endpoint)
        self._breaker = Breaker(time.time)
        deadlines_s = frozenset({registration.timeout_s, min(registration.timeout_s, short_probe_s)})
        self._prober = Prober(self._probe, deadlines_s, probe_interval_s)
        self._failed: _HookRequest | None = None
        self._counts = ServerCounts()

    @property
    def counts(self) -> ServerCounts:
        self._counts.opened_s = self._breaker.opened[0] if self._breaker.is_open else None
        return self._counts

    @property
    def openings(self) -> int:
        # How often the server was skipped because it failed.
        return self._breaker.openings

    @property
    def trouble(self) -> str:
        """Since when and why the server is skipped; empty while it is in use."""
        if not self._breaker.is_open:
            return ""
        opened_s, cause = self._breaker.opened
        since = datetime.fromtimestamp(opened_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"not called since {since}: {cause}"

    @property
    def is_strict(self) -> bool:
        return self.registration.failure_policy is FailurePolicy.FAIL

    def as_policy(self) -> LoadedPolicy:
        registration = self.registration
        selector = PodSelector() if self.is_strict else _Reachable(breaker=self._breaker)
        policy = type("HookServerPolicy", (Policy,), {"name": registration.name, "selector": selector})
        return LoadedPolicy(
            selector=selector,
            name=registration.name,
            origin=registration.endpoint,
            policy=policy(),
            priority=PRIORITY,
            timeout_s=registration.timeout_s,
            failure_policy=registration.failure_policy,
            remote_hooks=MappingProxyType(
                {hook: partial(self._request, hook) for hook in registration.hooks}
            ),
        )

    def close(self) -> None:
        """Closes the connection; calls in progress complete."""
        self._prober.close()
        self._client.close()
        self._failed = None

    def send(self, request: _HookRequest, timeout_s: float, on_response: OnResponse) -> Cancellable:
        """Sends a request, unless the server is skipped."""
        if self._breaker.is_open:
            return asyncio.get_running_loop().call_soon(on_response, self._skip, False)
        self._counts.calls += 1
        on_end = partial(self._on_end, request, timeout_s, on_response)
        return self._client.call(_HEADERS[request.hook], request.data, timeout_s, on_end)

    def _request(self, hook: Hook, view: PodView | ContainerView) -> _HookRequest:
        exchange = EXCHANGES[hook]
        message = exchange.request(view)
        return _HookRequest(self, hook, view, exchange, message, message.SerializeToString())

    def _skip(self, _: object) -> None:
        if self.is_strict:
            trouble = self.trouble or "not called just now"
            raise ServerError(FailureKind.SKIPPED, StatusCode.UNAVAILABLE, trouble)

    def _on_end(
        self, request: _HookRequest, timeout_s: float, on_response: OnResponse, outcome: bytes | RpcError
    ) -> None:
        # A short response is compared with the whole request, and an error's text with all variables.
        if isinstance(outcome, bytes):
            is_long = max(len(request.data), len(outcome)) > _ON_LOOP_BYTES
        else:
            is_long = len(outcome.text) * sum(map(len, _env(request.view).values())) > _ON_LOOP_COMPARISONS
        loop = asyncio.get_running_loop()
        on_response(partial(self._read, request, timeout_s, outcome, loop), is_long)

    def _read(
        self,
        request: _HookRequest,
        timeout_s: float,
        outcome: bytes | RpcError,
        loop: asyncio.AbstractEventLoop,
        _: object,
    ) -> CgroupChange | None:
        """Reads the outcome in any thread; its meaning for the breaker is noted in the loop's."""
        exchange = request.exchange
        try:
            response = _parsed(exchange, outcome, timeout_s)
        except RpcError as error:
            failure = _without_secrets(error, request.view)
            _call_in(loop, self._count_failure, str(failure))
            was_cut_short = timeout_s < min(self.registration.timeout_s, ENOUGH_S)
            if isinstance(failure, AnsweredError):
                _call_in(loop, self._note_response)
            elif not (isinstance(failure, LateError) and was_cut_short):
                _call_in(loop, self._note_failure, request, failure)
            raise _server_error(failure) from None
        _call_in(loop, self._note_response)
        if exchange.change is None:
            return None
        change = exchange.change(request.message, response, self.registration.answers)
        count = 0 if change is None else _entry_count(change)
        if count > MAX_ENTRIES:
            text = f"the answer changes {count} entries, at most {MAX_ENTRIES} are taken"
            _call_in(loop, self._count_failure, text)
            raise ServerError(FailureKind.FAILED, StatusCode.UNAVAILABLE, text)
        return change

    def _count_failure(self, text: str) -> None:
        counts = self._counts
        counts.failures += 1
        counts.last_error, counts.last_error_s = text, time.time()

    def _note_response(self) -> None:
        self._failed = None
        skipped_s = self._breaker.on_response()
        if skipped_s is not None:
            self._prober.stop()
            about = {"server": self.registration.name, "skipped_s": round(skipped_s, 1)}
            logger.info("hook server %s answers again after %.1f s", about["server"], skipped_s, extra=about)

    def _note_failure(self, request: _HookRequest, error: RpcError) -> None:
        # Probes repeat this request twice a second, so a long one is not kept.
        if request.hook in HOOKS_BEFORE and len(request.data) <= _ON_LOOP_BYTES:
            self._failed = request
        if self._breaker.on_failure(str(error)):
            self._prober.start()
            about = {"server": self.registration.name, "cause": str(error)}
            logger.warning(
                "hook server %s is skipped until it answers again: %s", about["server"], error, extra=about
            )

    def _probe(self, deadline_s: float, on_end: Callable[[], None]) -> None:
        """Repeats the last failed request; the response is not applied."""
        request = self._failed
        # A post hook is not repeated, so any response is a sign of life.
        exchange = request.exchange if request is not None else None

        def on_outcome(outcome: bytes | RpcError) -> None:
            # A long response counts as a good one, unread.
            is_long = isinstance(outcome, bytes) and len(outcome) > _ON_LOOP_BYTES
            with suppress(UnreachableError, LateError, UnusableError):
                with suppress(AnsweredError):
                    _parsed(None if is_long else exchange, outcome, deadline_s)
                self._note_response()
            on_end()

        headers, data = (_HEADERS[request.hook], request.data) if request is not None else (_LIFE_SIGN, b"")
        self._client.call(headers, data, deadline_s, on_outcome)


def _server_error(error: RpcError) -> ServerError:
    """Only an error that the server itself answers has its own code."""
    code = error.code if isinstance(error, AnsweredError) else StatusCode.UNAVAILABLE
    kind = FailureKind.TIMED_OUT if isinstance(error, LateError) else FailureKind.FAILED
    return ServerError(kind, code, error.text)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    # At once, if this is the loop's thread.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.call_soon_threadsafe(function, *arguments)
    else:
        function(*arguments)


def _parsed(exchange: Exchange | None, outcome: bytes | RpcError, timeout_s: float) -> object:
    """The response's message; None if it has no effect, so that it need not be parsed.

    Raises:
        RpcError: There is no usable response; the type says whose failure that is.
    """
    if isinstance(outcome, RpcError):
        if isinstance(outcome, AnsweredError) and outcome.code in _TRANSPORT_CODES:
            if outcome.code is StatusCode.DEADLINE_EXCEEDED:
                # Both ends have the deadline, and the server's own text says no more than that.
                raise LateError(outcome.code, f"no answer within {timeout_s:g} s")
            raise UnreachableError(outcome.code, outcome.text)
        raise outcome
    if exchange is None or exchange.change is None:
        return None
    try:
        response: object = exchange.response(outcome)
    except TooManyPartsError:
        text = f"the answer to {exchange.method} has too many annotations, variables and the like"
        raise UnusableError(StatusCode.RESOURCE_EXHAUSTED, text) from None
    except DecodeError:
        text = f"the answer to {exchange.method} cannot be decoded"
        raise UnusableError(StatusCode.INTERNAL, text) from None
    return response


def _entry_count(change: CgroupChange) -> int:
    resources = getattr(change, "resources", None)
    count = len(resources.unified) if resources is not None else 0
    return count + sum(len(getattr(change, name, ())) for name in ("labels", "annotations", "env"))


def _without_secrets(error: RpcError, view: PodView | ContainerView) -> RpcError:
    """The error for logs and events: shortened, and without environment values that it may quote.

    Values of several lines are looked for by line, because texts that quote them often escape their ends.
    """
    values = _env(view).values()
    lines = {line for value in values for line in value.decode(errors="replace").splitlines()}
    # The longest first: a secret that contains another one would otherwise be replaced in part only.
    secrets = sorted((line for line in lines if len(line) >= _MIN_SECRET_LENGTH), key=len, reverse=True)
    longest = len(secrets[0]) if secrets else 1
    most = 4 * _MAX_TEXT_LENGTH + longest
    text = error.text[:most]
    for secret in secrets:
        # As long as the secret, so that the places of all else stay.
        text = text.replace(secret, "\x01".ljust(len(secret), "\0"))
    if len(error.text) > most:
        # A secret that is cut is not found.
        text = text[: 1 - longest or None]
    text = _REPLACED.sub("***", text)
    return type(error)(error.code, text[:_MAX_TEXT_LENGTH])


def _env(view: PodView | ContainerView) -> Mapping[str, bytes]:
    return view.env if isinstance(view, ContainerView) else {}
