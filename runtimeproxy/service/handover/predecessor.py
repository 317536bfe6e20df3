"""The process before this one, as its successor knows it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Self

from runtimeproxy.relay.listener import Listener
from runtimeproxy.service.handover.protocol import Channel, Inheritance, Message, PeerGoneError


class Predecessor:
    """Gives this process all that it serves with; its early end counts as the message that was due.

    Attributes:
        listener: its listening socket, not owned until `serving`.
        bypass: the operator's choice there, see `Bypass.chosen`.
        is_draining: whether calls still run there.
    """

    def __init__(self, channel: Channel, listener: Listener, *, bypass: bool | None = None) -> None:
        self._channel = channel
        self.listener = listener
        self.bypass = bypass
        self.is_draining = True

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Self | None:
        """The predecessor that the environment names; None after a start of another kind.

        Raises:
            ConfigError: the variable cannot be used.
        """
        given = Inheritance.take(environ)
        if given is None:
            return None
        return cls(Channel(given.control()), given.listener(), bypass=given.bypass)

    async def loaded(self) -> None:
        """All that may fail has worked: waits until the predecessor has stopped accepting and saved."""
        await self._channel.open()
        await self._exchange(Message.LOADED, Message.GO)

    async def serving(self) -> None:
        """This process accepts clients: waits until the service manager knows it."""
        await self._exchange(Message.SERVING, Message.MAIN)

    async def drained(self) -> None:
        """Waits until no call runs there any more."""
        try:
            await self._channel.receive(Message.DRAINED)
        except PeerGoneError:
            pass
        finally:
            self.is_draining = False
        await self._channel.close()

    def stopping(self) -> None:
        """This process was asked to end: the predecessor shall not serve again."""
        self._channel.send(Message.STOPPING)

    async def _exchange(self, sent: Message, expected: Message) -> None:
        self._channel.send(sent)
        try:
            await self._channel.receive(expected)
        except PeerGoneError:
            self.is_draining = False
