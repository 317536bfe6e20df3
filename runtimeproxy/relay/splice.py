"""A client that does not speak HTTP/2: its bytes go to the default upstream and back, unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtimeproxy.relay.early import EARLY_BYTES
from runtimeproxy.relay.side import Pause

if TYPE_CHECKING:
    from runtimeproxy.relay.side import Side


class Splice:
    """Hands the bytes of two sides on; back-pressure and the end are the connection's.

    Args:
        client: the accepted side; its reads go through here from now on.
        early: its bytes so far.
    """

    __slots__ = ("_client", "_early")

    def __init__(self, client: Side, early: bytes) -> None:
        self._client = client
        self._early = bytearray(early)
        client.receive_with(self._keep)

    def _keep(self, data: bytes) -> None:
        """Bytes before the upstream is open."""
        self._early += data
        if len(self._early) > EARLY_BYTES:
            self._client.pause(Pause.EARLY_FULL)

    def upstream_opened(self, runtime: Side) -> None:
        """The upstream is open."""

        def to_runtime(data: bytes) -> None:
            if runtime.transport is not None:
                runtime.transport.write(data)

        self._client.receive_with(to_runtime)
        # First, because the write may find the runtime's buffer full and pause the client again.
        self._client.resume(Pause.EARLY_FULL)
        to_runtime(bytes(self._early))
        self._early.clear()

    def from_runtime(self, data: bytes) -> None:
        """Takes what the upstream's transport read."""
        if self._client.transport is not None:
            self._client.transport.write(data)
