"""Which upstream serves which call."""

from __future__ import annotations

from functools import partial
from typing import Final

from runtimeproxy.relay.presence import Presence
from runtimeproxy.relay.readiness import answers_calls
from runtimeproxy.relay.state import Upstream

OWN_PREFIXES: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Calls that the daemon's own server answers."""
IMAGE_PREFIXES: Final = ("/runtime.v1.ImageService/", "/runtime.v1alpha2.ImageService/")


class Routes:
    """The runtime, the image service if it lives elsewhere, or the daemon's own server.

    Args:
        runtime_socket: the runtime's socket.
        image_socket: the image service's; empty when it is the runtime.
        own_socket: the daemon's own server's; empty leaves health and reflection to the runtime.
    """

    def __init__(self, *, runtime_socket: str, image_socket: str = "", own_socket: str = "") -> None:
        presence = Presence(partial(answers_calls, runtime_socket))
        self.runtime = Upstream("runtime", runtime_socket, is_intercepted=True, presence=presence)
        self._prefixes: list[tuple[tuple[str, ...], Upstream]] = []
        if own_socket:
            self._prefixes.append((OWN_PREFIXES, Upstream("own services", own_socket, is_intercepted=False)))
        if image_socket and image_socket != runtime_socket:
            image = Upstream("image service", image_socket, is_intercepted=False)
            self._prefixes.append((IMAGE_PREFIXES, image))

    def __call__(self, path: str) -> Upstream:
        """Returns the upstream of a call by its `:path`."""
        for prefixes, upstream in self._prefixes:
            if path.startswith(prefixes):
                return upstream
        return self.runtime
