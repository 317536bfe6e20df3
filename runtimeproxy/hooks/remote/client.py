"""The connection to one hook server, and what its failures mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from runtimeproxy.errors import RuntimeProxyError, StatusCode

if TYPE_CHECKING:
    import grpc

MAX_BACKOFF_MS: Final = 500
"""How long a server that has come back may go unnoticed by the connection."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", MAX_BACKOFF_MS),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
)
"""Without an authority of its own gRPC sends the socket's escaped path, which some servers refuse."""

_TRANSPORT_CODES: Final = frozenset(
    {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED}
)
_NO_ANSWER: Final = ("Stream removed", "No status received")
"""How gRPC's core reports streams that were reset or went with their connection; the code may be any."""


class HookServerError(RuntimeProxyError):
    """A call of a hook server that failed.

    Attributes:
        code: the status code.
        text: why, in the server's words; gRPC bounds it to some KiB.
    """

    def __init__(self, code: StatusCode, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code.name}: {self.text}")


class AnsweredError(HookServerError):
    """The server itself answered with an error: it lives."""


class UnreachableError(HookServerError):
    """There is no connection to the server, or it broke."""


class LateError(HookServerError):
    """The server did not answer in time."""


class UndecodableError(HookServerError):
    """The server answered something that is not the message of the protocol."""


def failure_of(code: StatusCode, text: str, timeout_s: float) -> HookServerError:
    """Return the error of an RPC that ended with this status: the server's own, or the connection's."""
    if code is StatusCode.DEADLINE_EXCEEDED:
        return LateError(code, f"no answer within {timeout_s:g} s")
    if code in _TRANSPORT_CODES or text.startswith(_NO_ANSWER):
        return UnreachableError(code, text)
    return AnsweredError(code, text)


class HookClient:
    """Calls one hook server. Its methods may be used in any thread.

    The connection comes to be with the first call, and again by itself. It outlives `close` while calls
    are under way, so that replacing a registration cuts no call short.
    """

    def __init__(self, endpoint: str) -> None:
        self._target = f"unix:{quote(endpoint)}"
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._calls = 0
        self._is_closed = False

    def call(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Make one RPC and return the answer's bytes.

        Raises:
            HookServerError: it failed; the type says how.
        """
        import grpc

        with self._connected() as channel:
            rpc: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
            try:
                return rpc(request, timeout=timeout_s, wait_for_ready=False)
            except grpc.RpcError as error:
                code = StatusCode(error.code().value[0])
                raise failure_of(code, error.details() or "", timeout_s) from None

    def close(self) -> None:
        """Let go of the connection once no call is under way."""
        with self._lock:
            self._is_closed = True
            channel = self._unused()
        if channel is not None:
            channel.close()

    @contextmanager
    def _connected(self) -> Iterator[grpc.Channel]:
        import grpc

        with self._lock:
            self._calls += 1
            if self._channel is None:
                self._channel = grpc.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
            channel = self._channel
        try:
            yield channel
        finally:
            with self._lock:
                self._calls -= 1
                unused = self._unused()
            if unused is not None:
                unused.close()

    def _unused(self) -> grpc.Channel | None:
        """Return the channel if it is no longer needed; the caller, who holds the lock, closes it after."""
        if not self._is_closed or self._calls:
            return None
        channel, self._channel = self._channel, None
        return channel
