"""The process before this one, as its successor knows it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Self

from runtimeproxy.relay.listener import Listener
from runtimeproxy.service.handover.channel import Channel, PeerGoneError, Word
from runtimeproxy.service.handover.inherited_fds import Inheritance


class Predecessor:
    """Gives this process all that it serves with. A predecessor that ends early is one that has said it all.

    Attributes:
        listener: its listening socket, not owned until `serving`.
        switched: whether an operator has switched held calls off there, or on; None if nobody has.
        is_draining: whether calls still run there.
    """

    def __init__(self, channel: Channel, listener: Listener, *, switched: bool | None = None) -> None:
        self._channel = channel
        self.listener = listener
        self.switched = switched
        self.is_draining = True

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Self | None:
        """The predecessor that the environment tells of; None for a start of another kind.

        Raises:
            ConfigError: the variable makes no sense.
        """
        given = Inheritance.take(environ)
        if given is None:
            return None
        return cls(Channel(given.control()), given.listener(), switched=given.switched)

    async def loaded(self) -> None:
        """All that may fail has worked: waits until the predecessor takes no clients and has written all."""
        await self._channel.open()
        await self._answer(Word.LOADED, Word.GO)

    async def serving(self) -> None:
        """This process accepts clients: waits until the service manager knows it."""
        await self._answer(Word.SERVING, Word.MAIN)

    async def drained(self) -> None:
        """Waits until no call runs there any more."""
        try:
            await self._channel.hear(Word.DRAINED)
        except PeerGoneError:
            pass
        finally:
            self.is_draining = False
        await self._channel.close()

    def stopping(self) -> None:
        """This process ends for good, and not for the predecessor to serve again."""
        self._channel.say(Word.STOPPING)

    async def _answer(self, said: Word, expected: Word) -> None:
        self._channel.say(said)
        try:
            await self._channel.hear(expected)
        except PeerGoneError:
            # It has died: whatever it would have said, this process is the one that is left.
            self.is_draining = False
