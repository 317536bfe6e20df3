"""The successor's side of an upgrade: the process before this one."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Self

from runtimeproxy.frontends.cri_proxy.handover.protocol import Channel, Inheritance, Message, PeerGoneError
from runtimeproxy.listener import Listener


class Predecessor:
    """The process that started this one; its early end stands for the message that was due.

    Attributes:
        listener: its listening socket, not owned until `report_serving`.
        bypass: the operator's choice there, see `Bypass.chosen`.
    """

    def __init__(self, channel: Channel, listener: Listener, *, bypass: bool | None = None) -> None:
        self._channel = channel
        self.listener = listener
        self.bypass = bypass
        self.is_draining = True

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Self | None:
        """The predecessor that the environment names; None if this process is not a successor.

        Raises:
            ConfigError: the variable cannot be used.
        """
        given = Inheritance.take(environ)
        if given is None:
            return None
        return cls(Channel(given.control()), given.listener(), bypass=given.bypass)

    async def report_loaded(self) -> None:
        """Reports that this process can serve; waits until the predecessor has saved and accepts no more."""
        await self._channel.open()
        await self._exchange(Message.LOADED, Message.GO)

    async def report_serving(self) -> None:
        # Until the service manager knows the new main process.
        await self._exchange(Message.SERVING, Message.MAIN)

    async def wait_until_drained(self) -> None:
        try:
            await self._channel.receive(Message.DRAINED)
        except PeerGoneError:
            pass
        finally:
            self.is_draining = False
        await self._channel.close()

    def report_stopping(self) -> None:
        # So the predecessor does not serve again.
        self._channel.send(Message.STOPPING)

    async def _exchange(self, sent: Message, expected: Message) -> None:
        self._channel.send(sent)
        try:
            await self._channel.receive(expected)
        except PeerGoneError:
            self.is_draining = False
