"""One hook server as one policy of the chain."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.errors import RefusalError, RuntimeProxyError, StatusCode
from runtimeproxy.hooks.concern import Concern, PodTraits
from runtimeproxy.hooks.leg import time_left_s
from runtimeproxy.hooks.loaded import MAX_PRIORITY, LoadedPolicy
from runtimeproxy.hooks.policy import FailurePolicy, Hook, Policy
from runtimeproxy.hooks.remote.breaker import Breaker, Prober
from runtimeproxy.hooks.remote.client import (
    AnsweredError,
    HookClient,
    HookServerError,
    LateError,
    UndecodableError,
)
from runtimeproxy.hooks.remote.exchanges import EXCHANGES, NO_SUCH_METHOD, Exchange
from runtimeproxy.hooks.views import ContainerView, PodView

if TYPE_CHECKING:
    from runtimeproxy.hooks.changes import CgroupChange
    from runtimeproxy.hooks.remote.registration import Registration

logger = logging.getLogger(__name__)

REFUSAL_PREFIX: Final = "hook server err: "
"""Stands before a hook server's text. Source: Koordinator pkg/runtimeproxy/server/cri/criserver.go."""
PRIORITY: Final = MAX_PRIORITY + 1
"""After all policies of this process."""
THREAD_GRACE_S: Final = 0.25
"""How much longer a hook may take than its RPC, so that the RPC's own deadline frees the thread."""
CHAIN_SLACK_S: Final = 0.02
"""How much earlier an RPC ends than the time for all policies: nobody then waits for its thread."""
ENOUGH_S: Final = 0.5
"""A server that has not answered in this time has failed, even if its own timeout is longer."""
SHORTEST_CALL_S: Final = 0.001
"""Even if the time for a call's policies is up: a deadline in the past is none to gRPC."""
SHORT_PROBE_S: Final = 2.0
"""Deadline of probes: with the interval between them, a server is back in use within 3 s."""

_MAX_TEXT_LENGTH: Final = 1_024
"""How much of a server's error text goes on: a status message has to fit into one header block."""
_MIN_SECRET_LENGTH: Final = 8
"""Values of variables that are as short as `true` or `8080` are no secret, and occur in any text."""


class SkippedError(RuntimeProxyError):
    """The server is not asked because it has not answered lately."""


class _Probe(NamedTuple):
    """What to ask a server to find out whether it answers."""

    path: str
    request: bytes
    exchange: Exchange | None
    """None: of an RPC that does not exist, for which any answer will do."""


_LIFE_SIGN: Final = _Probe(NO_SUCH_METHOD, b"", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reachable(Concern):
    """Every pod, as long as the breaker is closed: an open one then costs a call nothing."""

    breaker: Breaker

    def matches(self, view: PodTraits | ContainerView) -> bool:
        """Return whether the server is asked about anything just now."""
        return not self.breaker.is_open


class HookServer:
    """A registered hook server: its connection, its breaker and the policy that stands for it.

    To be made outside the event loop's thread: with it, gRPC is loaded.

    Args:
        registration: what its file says.
        short_probe_s: the deadline of probes that soon find a server that is back; those of slow servers have
            the server's own.
    """

    def __init__(self, registration: Registration, short_probe_s: float = SHORT_PROBE_S) -> None:
        import grpc  # noqa: F401 - so that no call waits for it

        self.registration = registration
        self._client = HookClient(registration.endpoint)
        self._breaker = Breaker(time.time)
        deadlines_s = frozenset({registration.timeout_s, min(registration.timeout_s, short_probe_s)})
        self._prober = Prober(f"probe-{registration.name}", self._probe, deadlines_s)
        self._lock = threading.Lock()
        self._failed: _Probe | None = None

    @property
    def trouble(self) -> str:
        """Since when and why the server is skipped; empty while it is in use."""
        if not self._breaker.is_open:
            return ""
        opened_s, cause = self._breaker.opened
        since = datetime.fromtimestamp(opened_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"not asked since {since}: {cause}"

    def loaded(self) -> LoadedPolicy:
        """Return the server as a policy of the chain."""
        registration = self.registration
        concern = Concern() if self._is_strict else _Reachable(breaker=self._breaker)
        policy = type("HookServerPolicy", (Policy,), {"name": registration.name, "concern": concern})
        return LoadedPolicy(
            concern=concern,
            name=registration.name,
            origin=registration.endpoint,
            policy=policy(),
            priority=PRIORITY,
            timeout_s=registration.timeout_s + THREAD_GRACE_S,
            failure_policy=registration.failure_policy,
            methods=MappingProxyType({hook: partial(self._ask, hook) for hook in registration.hooks}),
            is_remote=True,
            blocks=True,
        )

    def close(self) -> None:
        """Let go of the server; calls under way come to their end."""
        self._prober.close()
        self._client.close()
        self._failed = None

    @property
    def _is_strict(self) -> bool:
        return self.registration.failure_policy is FailurePolicy.FAIL

    def _ask(self, hook: Hook, view: PodView | ContainerView) -> CgroupChange | None:
        """A hook of the policy.

        Raises:
            RefusalError: the server fails, and its failure policy is to refuse.
            RuntimeProxyError: the server fails, and it is ignored or too late to refuse.
        """
        if self._breaker.is_open:
            self._skip(hook)
            return None
        exchange = EXCHANGES[hook]
        request = exchange.request(view)
        probe = _Probe(exchange.method, request.SerializeToString(), exchange)
        timeout_s = self.registration.timeout_s
        allowed_s = min(timeout_s, max(time_left_s() - CHAIN_SLACK_S, SHORTEST_CALL_S))
        try:
            answer = self._call(probe, allowed_s)
        except HookServerError as error:
            failure = _to_be_told(error, view)
            was_cut_short = isinstance(failure, LateError) and allowed_s < min(timeout_s, ENOUGH_S)
            if not (isinstance(failure, AnsweredError) or was_cut_short):
                self._note_failure(probe if _is_refusable(hook) else _LIFE_SIGN, failure)
            raise self._raised(hook, failure) from None
        if exchange.change is None:
            return None
        return exchange.change(request, answer, self.registration.answers)

    def _skip(self, hook: Hook) -> None:
        if not self._is_strict:
            return
        trouble = self.trouble or "not asked just now"
        if _is_refusable(hook):
            raise RefusalError(f"{REFUSAL_PREFIX}{trouble}", StatusCode.UNAVAILABLE)
        raise SkippedError(trouble)

    def _call(self, probe: _Probe, timeout_s: float) -> object:
        """Make an RPC, parse its answer, and note that the server answered if it did.

        Raises:
            HookServerError: it failed.
        """
        try:
            data = self._client.call(probe.path, probe.request, timeout_s)
            answer = _parsed(probe.exchange, data)
        except AnsweredError:
            self._note_answer()
            raise
        self._note_answer()
        return answer

    def _note_answer(self) -> None:
        with self._lock:
            self._failed = None
            skipped_s = self._breaker.answered()
            if skipped_s is not None:
                self._prober.stop()
        if skipped_s is not None:
            name = self.registration.name
            logger.info(
                "hook server %s answers again after %.1f s",
                name,
                skipped_s,
                extra={"server": name, "skipped_s": round(skipped_s, 1)},
            )

    def _note_failure(self, probe: _Probe, error: HookServerError) -> None:
        with self._lock:
            if self._failed is None or probe is not _LIFE_SIGN:
                self._failed = probe
            has_opened = self._breaker.failed(str(error)) and self._probes()
        if has_opened:
            name = self.registration.name
            logger.warning(
                "hook server %s is skipped until it answers again: %s",
                name,
                error,
                extra={"server": name, "cause": str(error)},
            )

    def _probes(self) -> bool:
        """Begins to probe; without a thread for that the server stays in use, and later ones try again."""
        try:
            self._prober.start()
        except RuntimeError:
            self._prober.stop()
            self._breaker.answered()
            return False
        return True

    def _probe(self, deadline_s: float) -> None:
        """Repeat what failed last; the answer counts for nothing but that there is one."""
        try:
            self._call(self._failed or _LIFE_SIGN, deadline_s)
        except HookServerError:
            return

    def _raised(self, hook: Hook, error: HookServerError) -> RuntimeProxyError:
        """Return what the chain gets of a failure."""
        if not self._is_strict or not _is_refusable(hook):
            return error
        code = error.code if isinstance(error, AnsweredError) else StatusCode.UNAVAILABLE
        return RefusalError(f"{REFUSAL_PREFIX}{error.text}", code)


def _parsed(exchange: Exchange | None, data: bytes) -> object:
    """An answer without effect need not be read."""
    from google.protobuf.message import DecodeError

    if exchange is None or exchange.change is None:
        return None
    try:
        answer: object = exchange.response(data)
    except DecodeError:
        text = f"the answer to {exchange.method} cannot be decoded"
        raise UndecodableError(StatusCode.INTERNAL, text) from None
    return answer


def _is_refusable(hook: Hook) -> bool:
    return hook.startswith("pre_")


def _to_be_told(error: HookServerError, view: PodView | ContainerView) -> HookServerError:
    """Return the error for logs and events: without environment values, which it may quote, and cut.

    Values of several lines are looked for by line, for texts that quote them often escape their ends.
    """
    values = view.env.values() if isinstance(view, ContainerView) else ()
    lines = {line for value in values for line in value.decode(errors="replace").splitlines()}
    text = error.text
    # The longest first: what is left of one of which another is a part would be told.
    for secret in sorted((line for line in lines if len(line) >= _MIN_SECRET_LENGTH), key=len, reverse=True):
        text = text.replace(secret, "***")
    return type(error)(error.code, text[:_MAX_TEXT_LENGTH])
