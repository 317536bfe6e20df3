"""One relayed HTTP/2 connection without sockets: bytes in from either side, bytes out to both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtimeproxy.frontends.cri_proxy.relay.request import RequestDirection
from runtimeproxy.frontends.cri_proxy.relay.response import ResponseDirection
from runtimeproxy.frontends.cri_proxy.relay.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtimeproxy.frontends.cri_proxy.relay.streams import RelayOptions
    from runtimeproxy.frontends.cri_proxy.relay.upstream import Upstream


class H2Relay(Streams):
    """The HTTP/2 side of one client connection and its runtime connection.

    The owner feeds `request.receive` and `response.receive`, writes `to_client.chunks` and
    `to_runtime.chunks` after each call (to the runtime only once `on_upstream_opened` was called), and
    reports the events of the transports. A `PeerError` out of any of these calls means `fail` and the end.
    """

    def __init__(
        self, options: RelayOptions, open_upstream: Callable[[Upstream], None], wake: Callable[[], None]
    ) -> None:
        super().__init__(options, open_upstream, wake)
        self.request = RequestDirection(self)
        self.response = ResponseDirection(self)
