"""Metrics of a plugin for Prometheus, on an address of its own: the daemon's have what it knows itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runtimeproxy.config.parsing import TcpAddress, parse_listen

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import WSGIApplication


def listen_problem(text: str) -> str:
    """Return why a text is no address to listen on; empty if it is one, or none."""
    try:
        tcp_address(text)
    except ValueError as error:
        return str(error)
    return ""


def tcp_address(text: str) -> TcpAddress | None:
    """The address to listen on; None for an empty text. Raises ValueError."""
    address = parse_listen(text)
    if address is None or isinstance(address, TcpAddress):
        return address
    raise ValueError(f"{text!r} is not an address and a port")


class MetricsListener:
    """Serves what a collector has; outlives the plugin's state.

    Args:
        collector: Of the library prometheus_client.
        other_pages: Wraps the application that answers with metrics, for pages beside them.
    """

    def __init__(
        self,
        collector: Any,  # noqa: ANN401 - the library is imported late
        other_pages: Callable[[WSGIApplication], WSGIApplication] | None = None,
    ) -> None:
        self._collector = collector
        self._other_pages = other_pages
        self._address = ""
        self._server: WSGIServer | None = None

    def listen(self, address: str) -> None:
        """Serves at this address only; nowhere if it is empty. Raises ValueError or OSError."""
        if address == self._address and self._server is not None:
            return
        self.close()
        parsed = tcp_address(address)
        if parsed is not None:
            from prometheus_client import (
                make_wsgi_app,
                start_http_server,
            )  # Takes long to import, and is off by default.
            from prometheus_client.core import CollectorRegistry

            registry = CollectorRegistry()
            registry.register(self._collector)
            server, _ = start_http_server(parsed.port, parsed.host, registry)
            if self._other_pages is not None:
                server.set_app(self._other_pages(make_wsgi_app(registry)))
            self._server, self._address = server, address

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
