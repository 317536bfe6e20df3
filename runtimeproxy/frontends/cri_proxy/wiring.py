"""Joins the relay to the rest of the daemon: its listening socket, and the options of all connections."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.config.parsing import is_same_socket, socket_mode_bits
from runtimeproxy.config.validation import owner_ids
from runtimeproxy.errors import ConfigError
from runtimeproxy.frontends.cri_proxy.calls.methods import NAMES
from runtimeproxy.frontends.cri_proxy.relay.budget import MemoryBudget
from runtimeproxy.frontends.cri_proxy.relay.connection import ConnectionOptions
from runtimeproxy.frontends.cri_proxy.relay.counts import RelayCounts
from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream, answers_calls
from runtimeproxy.listener import Listener, inherited, listen
from runtimeproxy.sdnotify import listen_sockets

if TYPE_CHECKING:
    from runtimeproxy.config.settings import ProxySettings
    from runtimeproxy.frontends.cri_proxy.interception import Interceptor

logger = logging.getLogger(__name__)

OWN_PREFIXES: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.", "/runtimeproxy.v1.RuntimeProxy/")
"""Calls to the daemon's own server."""
IMAGE_PREFIXES: Final = ("/runtime.v1.ImageService/", "/runtime.v1alpha2.ImageService/")


def listener_of(proxy: ProxySettings, environ: Mapping[str, str]) -> Listener:
    """Takes the socket that systemd passed, or makes one.

    `proxy`: where the socket is made if systemd passed none.

    Raises:
        ConfigError: the passed descriptor is not a listening Unix socket, or is the runtime's own socket.
        SocketInUseError: another instance serves there.
        SocketPathError: the path cannot be used.
    """
    passed = listen_sockets(environ)
    if not passed:
        uid, gid = owner_ids(proxy)
        return listen(proxy.endpoint, mode=socket_mode_bits(proxy.socket_mode), uid=uid, gid=gid)
    for surplus in passed[1:]:
        # Its clients wait for ever: systemd keeps it open.
        logger.warning("%s was passed as a second socket and is not served", surplus.getsockname())
        surplus.close()
    try:
        _refuse_loop(proxy, passed[0].getsockname())
    except ConfigError:
        passed[0].close()
        raise
    return inherited(passed[0])


def check_handed_over(listener: Listener, proxy: ProxySettings) -> None:
    """Refuses a predecessor's socket that is not the one of the settings.

    Raises:
        ConfigError: the settings name another socket, or the runtime's leads back to it.
    """
    if listener.path is not None and not is_same_socket(listener.path, proxy.endpoint):
        reason = f"{proxy.endpoint} is not {listener.path}: a new socket needs a restart"
        raise ConfigError("upgrade", "proxy.endpoint", reason)
    _refuse_loop(proxy, listener.address)


def _refuse_loop(proxy: ProxySettings, own_path: str) -> None:
    for key in ("runtime_endpoint", "image_endpoint"):
        path = getattr(proxy, key)
        if path and is_same_socket(path, own_path):
            reason = f"{path} is the socket that was passed: the proxy would forward to itself"
            raise ConfigError("environment", f"proxy.{key}", reason)


class Routes:
    """The runtime, the image service if it lives elsewhere, or the daemon's own server.

    Args:
        runtime_socket: the runtime's socket.
        image_socket: the image service's; empty when it is the runtime.
        own_socket: the daemon's own server's; empty leaves health and reflection to the runtime.
    """

    def __init__(self, *, runtime_socket: str, image_socket: str = "", own_socket: str = "") -> None:
        probe = partial(answers_calls, runtime_socket)
        self.runtime = Upstream("runtime", runtime_socket, is_intercepted=True, probe=probe)
        self._prefixes: list[tuple[tuple[str, ...], Upstream]] = []
        if own_socket:
            self._prefixes.append((OWN_PREFIXES, Upstream("own services", own_socket, is_intercepted=False)))
        if image_socket and image_socket != runtime_socket:
            image = Upstream("image service", image_socket, is_intercepted=False)
            self._prefixes.append((IMAGE_PREFIXES, image))

    def __call__(self, path: str) -> Upstream:
        for prefixes, upstream in self._prefixes:
            if path.startswith(prefixes):
                return upstream
        return self.runtime


def connection_options(
    proxy: ProxySettings, interceptor: Interceptor, own_socket: str = ""
) -> ConnectionOptions:
    """The options that the relay's connections share.

    `own_socket`: of the server that answers health and reflection; empty leaves them to the runtime.
    """
    routes = Routes(
        runtime_socket=proxy.runtime_endpoint, image_socket=proxy.image_endpoint, own_socket=own_socket
    )
    budget = MemoryBudget(proxy.held_budget_bytes)
    relay = RelayOptions(routes, interceptor, budget, proxy.max_message_bytes, counts=RelayCounts(NAMES))
    return ConnectionOptions(relay, routes.runtime, proxy.upstream_wait_s)
