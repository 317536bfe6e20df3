"""Serves metrics and the node page over HTTP, on TCP or on a Unix socket, from the daemon's event loop.

What is served is read and written out in a thread of its own, one request after the other. A client has a few
seconds for its request and for reading the response, and only so many clients are served at a time: one that
has not sent its request yet, or does not read its response, makes room for a newer one. Requests that come
while the numbers are read share them.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.config.parsing import TcpAddress
from runtimeproxy.listener import publish, unlink_own
from runtimeproxy.service.http import PAGE_PATH, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.service.api.loading import Load
    from runtimeproxy.service.metrics.collector import Exposition
    from runtimeproxy.service.page.page import NodePage
    from runtimeproxy.service.parts import Parts

logger = logging.getLogger(__name__)

FOLLOW_S: Final = 1.0
"""How often it is looked at whether this process should listen, and whether it can."""

PATH: Final = "/metrics"
MOST_CLIENTS: Final = 128
"""Prometheus opens one connection, a browser up to six. The others are for a client that floods: so many of
its connections come before one is cut off whose request is on its way."""
MOST_READINGS: Final = 4
"""By different `Accept` headers at a time; there are two formats."""
REQUEST_S: Final = 5.0
"""How long a request may take to come. Source: the default scrape timeout of Prometheus is 10 s."""
RESPONSE_S: Final = 10.0
"""How long a response may take, from its numbers to its last byte."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Of a request's line and header fields; Prometheus sends some hundred bytes."""
_BACKLOG: Final = 1024
"""A full one costs a scrape a second, after which the kernel of its client tries again."""


Read = Callable[[str], Awaitable["Exposition"]]
"""Reads all numbers, for an `Accept` header."""
Page = Callable[[HttpRequest], Awaitable[HttpResponse]]
"""Answers a request for the page."""


class MetricsServer:
    """The listener; used in the event loop's thread.

    Args:
        address: an IP address and port, or the path of a Unix socket.
        read: makes the response for metrics.
        page: makes those for `/` and below `PAGE_PATH`; None if there is no page.
    """

    def __init__(self, address: TcpAddress | str, read: Read, page: Page | None = None) -> None:
        self._address = address
        self._read = read
        self._page = page
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._clients: set[asyncio.StreamWriter] = set()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Those of the clients whose request has not come yet, oldest first."""
        self._unread: dict[asyncio.StreamWriter, None] = {}
        """Those that have not read their response yet, oldest first."""
        self._readings: dict[str, asyncio.Task[Exposition]] = {}
        """Numbers that are being read, by `Accept` header."""
        self._problem = ""

    async def open(self) -> None:
        """Listens, if it does not yet. An error is logged once: the daemon serves without metrics."""
        if self._server is not None:
            return
        try:
            sock = self._listen()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._problem:
                self._problem = reason
                logger.error("metrics cannot be served on %s: %s", self._name, reason)  # noqa: TRY400
            return
        self._problem = ""
        is_unix = sock.family == socket.AF_UNIX
        start = asyncio.start_unix_server if is_unix else asyncio.start_server
        self._server = await start(self._serve, sock=sock, limit=MAX_HEAD_BYTES, backlog=_BACKLOG)
        logger.info("metrics are served on %s", self._name)

    def close(self) -> None:
        """Stops listening, so that another process can, and closes all connections."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for writer in list(self._clients):
            writer.transport.abort()
        if isinstance(self._address, str):
            unlink_own(self._address, self._inode)

    @property
    def _name(self) -> str:
        if isinstance(self._address, str):
            return self._address
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"http://{host}:{self._address.port}{PATH}"

    def _listen(self) -> socket.socket:
        """Returns a listening socket.

        Raises:
            OSError: it cannot be made, as when another process listens there.
        """
        if isinstance(self._address, str):
            Path(self._address).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            sock, self._inode = publish(self._address, 0o600)
            return sock
        family = socket.AF_INET6 if ":" in self._address.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(self._address)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        # asyncio does it again; a port in use is found out here.
        sock.listen(_BACKLOG)
        return sock

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request and closes the connection."""
        if len(self._clients) >= MOST_CLIENTS:
            # They would keep a scrape out; with none of them all are being answered.
            left = next(iter(self._silent), None) or next(iter(self._unread), writer)
            left.transport.abort()
            if left is writer:
                return
            self._forget(left)
        self._clients.add(writer)
        self._silent[writer] = None
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            self._silent.pop(writer, None)
            async with asyncio.timeout(RESPONSE_S):
                response = await self._response(head.decode("latin-1"))
                if writer.is_closing():
                    # The client has left; uvloop's transports raise RuntimeError then.
                    return
                self._unread[writer] = None
                writer.write(response)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        except Exception:  # a bug costs this response, not the daemon
            logger.exception("metrics cannot be read")
            writer.transport.abort()
        finally:
            self._forget(writer)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._clients.discard(writer)
        self._silent.pop(writer, None)
        self._unread.pop(writer, None)

    async def _response(self, head: str) -> bytes:
        line, *lines = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        if method not in ("GET", "HEAD"):
            return _encoded(
                HttpResponse("405 Method Not Allowed", "text/plain", b"Only GET is served here.\n")
            )
        split = (each.partition(":") for each in lines)
        request = HttpRequest(path, query, {name.strip().lower(): value.strip() for name, _, value in split})
        return _encoded(await self._answer(request), has_body=method == "GET")

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        is_of_page = request.path == "/" or (request.path + "/").startswith(f"{PAGE_PATH}/")
        if self._page is not None and is_of_page:
            return await self._page(request)
        if request.path != PATH:
            return HttpResponse("404 Not Found", "text/plain", f"Metrics are at {PATH}.\n".encode())
        content_type, data = await self._numbers(request.fields.get("accept", ""))
        return HttpResponse("200 OK", content_type, data)

    async def _numbers(self, accept: str) -> Exposition:
        while accept not in self._readings and len(self._readings) >= MOST_READINGS:
            await asyncio.wait(self._readings.values(), return_when=asyncio.FIRST_COMPLETED)
        reading = self._readings.get(accept)
        if reading is None:
            reading = self._readings[accept] = asyncio.ensure_future(self._read(accept))
            reading.add_done_callback(lambda _: self._readings.pop(accept))
        # One client that leaves does not end it for the others.
        return await asyncio.shield(reading)


async def serve_metrics(
    parts: Parts,
    address: TcpAddress | str,
    executor: Executor,
    stopping: asyncio.Event,
    load: Load | None = None,
) -> None:
    """Serves metrics until the daemon stops, but not while a successor does.

    Args:
        parts: the daemon's.
        address: see `MetricsServer`.
        executor: a thread that imports the library.
        stopping: set when the daemon is to end.
        load: returns the servicer of the API, for the page; None if there is to be no page.
    """
    run = asyncio.get_running_loop().run_in_executor
    await run(executor, importlib.import_module, "runtimeproxy.service.metrics.collector")
    from runtimeproxy.service.metrics.collector import exposition

    thread = BackgroundThreads(1, "metrics")

    async def read(accept: str) -> Exposition:
        proxy = parts.proxy
        received = proxy.server.received_bytes if proxy is not None else (0, 0)
        return await run(thread, exposition, parts, received, accept)

    page = await _page(load, executor, thread) if load is not None else None
    server = MetricsServer(address, read, page.respond if page is not None else None)
    try:
        while not stopping.is_set():
            if parts.life.retired.is_set():
                server.close()
                if page is not None:
                    page.close()
            else:
                await server.open()
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_S):
                    await stopping.wait()
    finally:
        server.close()
        if page is not None:
            page.close()
        thread.shutdown(cancel_futures=True)


async def _page(load: Load, executor: Executor, thread: Executor) -> NodePage:
    run = asyncio.get_running_loop().run_in_executor
    await run(executor, importlib.import_module, "runtimeproxy.service.page.page")
    from runtimeproxy.service.page.page import NodePage

    return NodePage(load, thread)


def _encoded(response: HttpResponse, *, has_body: bool = True) -> bytes:
    fields = (
        ("Content-Type", response.content_type),
        ("Content-Length", len(response.data)),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *response.fields,
    )
    lines = (f"HTTP/1.1 {response.status}", *(f"{name}: {value}" for name, value in fields), "", "")
    return "\r\n".join(lines).encode("latin-1") + (response.data if has_body else b"")
