"""A small client of the API server: bounded requests, and responses that are read piece by piece.

On urllib3, because it is small, blocks in a thread of its own, and leaves retries to its caller. The official
client takes 26 MiB and a second to be imported for its thousands of models, of which five objects need none.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from runtimeproxy import __version__
from runtimeproxy.documents.reading import InputError, mapping_of, parse_json, shortened
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.kubernetes.access import Access, AccessError

PIECE_BYTES: Final = 64 * 1024
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Largest answer that is read as a whole: one object, or an error."""
MAX_RETRY_AFTER_S: Final = 300.0
_MAX_CONNECTIONS: Final = 8

_SOCKET_OPTIONS: Final = [
    *HTTPConnection.default_socket_options,
    # A server whose machine is gone is noticed within half a minute.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]


class ApiError(RuntimeProxyError):
    """A request without the wanted answer; the status is 0 if there was no answer at all."""

    def __init__(
        self,
        text: str,
        status: int = 0,
        retry_after_s: float | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s
        self.causes = causes


class Timeouts(NamedTuple):
    """Of requests."""

    connect_s: float = 5.0
    response_s: float = 30.0
    """How long a response may pause."""
    total_s: float = 120.0
    """How long a whole response may take that is not a watch."""


USUAL_TIMEOUTS: Final = Timeouts()


class ApiResponse:
    """A successful response, to be read in one thread and closed in any; `total_s` is None for a watch."""

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        total_s: float | None,
        on_closed: Callable[[ApiResponse], None],
    ) -> None:
        self._response = response
        self._until_s = None if total_s is None else time.monotonic() + total_s
        self._on_closed = on_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._on_closed(self)
        self._response.close()

    def pieces(self) -> Iterator[bytes]:
        # Pieces have up to `PIECE_BYTES`. Raises ApiError.
        while True:
            try:
                # Not `read`: that waits until it has all the bytes, and a watch has no end.
                piece = self._response.read1(PIECE_BYTES, decode_content=False)
            except (HTTPError, OSError, ValueError) as error:
                raise ApiError(_reason(error)) from None
            if not piece:
                return
            if self._until_s is not None and time.monotonic() > self._until_s:
                raise ApiError("the answer takes too long")
            yield piece

    def stop(self) -> None:
        # Another thread may be reading.
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):  # it has just ended
            return


class ApiClient:
    """Requests to one API server, from any thread; `load` is called again when its files have changed."""

    def __init__(self, load: Callable[[], Access], timeouts: Timeouts = USUAL_TIMEOUTS) -> None:
        self._load = load
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._access: Access | None = None
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._prefix = ""
        self._open: set[ApiResponse] = set()
        self._is_closed = False

    @property
    def server(self) -> str:
        return self._access.server if self._access is not None else ""

    def get(
        self, path: str, query: Mapping[str, str], *, is_watch: bool = False, pause_s: float | None = None
    ) -> ApiResponse:
        """Begins to get something; only a watch may take any time. Raises ApiError."""
        response = self._request("GET", f"{path}?{urlencode(query)}" if query else path, pause_s=pause_s)
        opened = ApiResponse(response, None if is_watch else self._timeouts.total_s, self._forget)
        with self._lock:
            if self._is_closed:
                response.close()
                raise ApiError("the client is closed")
            self._open.add(opened)
        return opened

    def send(
        self, method: str, path: str, body: Mapping[str, Any], content_type: str = "application/json"
    ) -> Mapping[str, Any]:
        """Sends an object and returns the answer. Raises ApiError."""
        data = json.dumps(body).encode()
        response = self._request(method, path, data, content_type)
        with ApiResponse(response, self._timeouts.total_s, self._forget) as opened:
            return _object_of(_read_all(opened))

    def close(self) -> None:
        """Ends all reads, in other threads too; no request can be made any more."""
        with self._lock:
            self._is_closed = True
            opened, pool, self._pool = list(self._open), self._pool, None
        for response in opened:
            response.stop()
        if pool is not None:
            pool.close()

    def _forget(self, response: ApiResponse) -> None:
        with self._lock:
            self._open.discard(response)

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        content_type: str = "",
        *,
        pause_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        pool, access = self._connections()
        headers = {"Accept": "application/json", "User-Agent": f"koord-runtime-proxy/{__version__}"}
        if content_type:
            headers["Content-Type"] = content_type
        try:
            if token := access.token():
                headers["Authorization"] = f"Bearer {token}"
            response = pool.urlopen(
                method,
                self._prefix + target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(
                    connect=self._timeouts.connect_s, read=pause_s or self._timeouts.response_s
                ),
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            raise ApiError(_reason(error)) from None
        except AccessError as error:
            raise ApiError(str(error)) from None
        if not 200 <= response.status < 300:
            with ApiResponse(response, self._timeouts.total_s, self._forget) as opened:
                raise _error_of(opened, response)
        return response

    def _connections(self) -> tuple[urllib3.HTTPConnectionPool, Access]:
        # Others after the files have changed.
        with self._lock:
            if self._is_closed:
                raise ApiError("the client is closed")
            if self._pool is not None and self._access is not None and self._access.is_current:
                return self._pool, self._access
            try:
                access = self._load()
            except AccessError as error:
                raise ApiError(str(error)) from None
            if self._pool is not None:
                self._pool.close()
            self._access, self._pool = access, _pool_of(access)
            self._prefix = urlsplit(access.server).path
            return self._pool, access


def _pool_of(access: Access) -> urllib3.HTTPConnectionPool:
    parts = urlsplit(access.server)
    host = parts.hostname or ""
    # Nothing of a connection depends on the environment, no proxy either.
    if access.ssl_context is None:
        return urllib3.HTTPConnectionPool(
            host, parts.port or 80, maxsize=_MAX_CONNECTIONS, socket_options=_SOCKET_OPTIONS
        )
    return urllib3.HTTPSConnectionPool(
        host,
        parts.port or 443,
        maxsize=_MAX_CONNECTIONS,
        ssl_context=access.ssl_context,
        server_hostname=access.server_name,
        socket_options=_SOCKET_OPTIONS,
    )


def _read_all(response: ApiResponse) -> bytes:
    data = bytearray()
    for piece in response.pieces():
        data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise ApiError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(data)


def _object_of(data: bytes) -> Mapping[str, Any]:
    try:
        return mapping_of(parse_json(data))
    except InputError as error:
        raise ApiError(f"the answer {error}") from None


def _error_of(opened: ApiResponse, response: urllib3.BaseHTTPResponse) -> ApiError:
    """The error of an answer without success. Source: Kubernetes meta/v1, Status."""
    status, causes = response.status, frozenset[str]()
    try:
        about = _object_of(_read_all(opened))
        message = about.get("message")
        details = about.get("details")
        found = details.get("causes") if isinstance(details, dict) else None
        if isinstance(found, list):
            causes = frozenset(str(each.get("reason")) for each in found if isinstance(each, dict))
    except ApiError:
        message = None
    text = shortened(" ".join(message.split())) if isinstance(message, str) and message else response.reason
    return ApiError(f"{status}: {text}", status, _retry_after_s(response.headers.get("Retry-After")), causes)


def _retry_after_s(text: str | None) -> float | None:
    if text is None or not text.strip().isdecimal():
        return None
    return min(float(text.strip()[:9]), MAX_RETRY_AFTER_S)


def _reason(error: Exception) -> str:
    """A reason in words: those of the library show objects."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {cause.reason or 'fails'}"
        if isinstance(cause, socket.gaierror):
            return f"the server's name is not known: {cause.strerror}"
        if isinstance(cause, TimeoutError):
            return "no answer in time"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "no answer in time"
    # Such as an answer that is cut off, or none of HTTP.
    return shortened(f"{type(error).__name__}: {error}")
