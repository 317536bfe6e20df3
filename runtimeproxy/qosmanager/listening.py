"""Metrics of a plugin for Prometheus, on an address of its own: the daemon's have what it knows itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtimeproxy.config.parsing import TcpAddress, parse_listen

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import WSGIApplication


def place_problems(folder: str, metrics_listen: str) -> list[tuple[str, str]]:
    """Return what is wrong with a plugin's options `folder` and `metrics_listen`; an empty one is none."""
    problems: list[tuple[str, str]] = []
    if folder and not Path(folder).is_absolute():
        problems.append(("folder", "is not an absolute path"))
    try:
        tcp_address(metrics_listen)
    except ValueError as error:
        problems.append(("metrics_listen", str(error)))
    return problems


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
            # Takes long to import, and is off by default.
            from prometheus_client import make_wsgi_app, start_http_server
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
