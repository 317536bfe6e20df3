"""What every front end has: the daemon calls these methods, and knows no more of it.

In this order, at a start:

1. `open`: nothing but the settings is loaded; with `hooks.on_load_error = "stop"` the policies are, too.
2. `accept`, without a predecessor.
3. `join`: the core is made, and has no records yet.
4. The saved records are read, the lists of the runtime are asked for, and the policies are loaded.
5. `decide`: the policies are loaded. Lists may still be missing, until `Inventory.recovered` is set.

One that takes over from a predecessor accepts last, after `decide`. At the end come `stop_accepting`, the
release of `listener`, `drain`, and `end` when the core is closed, also if the daemon ends before `accept`.
"""

# ruff: noqa: B027 - empty methods are the default on purpose

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.listener import Listener
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient


class BypassSwitch(Protocol):
    """Decides only while its bypass is off."""

    bypass: bool


class EarlierProcess(Protocol):
    """The process that an upgrade replaces."""

    bypass: bool | None
    """The operator's choice there; None for none."""

    async def report_loaded(self) -> None:
        """Reports that this process can serve; waits until the other has saved and accepts no more."""

    async def wait_until_drained(self) -> None:
        """Waits until no call runs there any more."""


class Upgradable(Protocol):
    """A front end that a successor takes over from, without a gap."""

    @property
    def predecessor(self) -> EarlierProcess | None:
        """The process before this one; None if this is no upgrade."""

    @property
    def upgrade_problem(self) -> str:
        """Why the last attempt to hand over was refused or failed; empty if it was not, or there was none."""

    async def hand_over(self, changing: asyncio.Lock) -> None:
        """Hands over to a successor; nothing happens before `FrontEnd.open`.

        Args:
            changing: Held while both processes must stay as they are.
        """


class FrontEnd(ABC):
    """Tells the core what is created, runs and ends, and carries its decisions.

    Methods that are not abstract do nothing, for front ends without calls. Used in the event loop's thread.

    Attributes:
        mode: As `daemon.mode` has it.
        serves_kubelet: Whether kubelets use its socket as their runtime's; if not, the API is served there.
        listener: The socket, since `open`.
        bypass: Whether it lets everything pass, where it is its own `switch`.
    """

    mode: ClassVar[str]
    serves_kubelet: ClassVar[bool]
    listener: Listener
    bypass: bool = False

    @classmethod
    @abstractmethod
    def carried_fields(cls) -> CarriedFields:
        """Returns which fields it carries, and when: all that the core knows of that.

        It imports what most of the code does, unlike the front end itself.
        """

    @property
    def switch(self) -> BypassSwitch:
        """Lets everything pass while its `bypass` is set."""
        return self

    @property
    def is_standby(self) -> bool:
        """Whether this process decides on nothing: the bypass is on, or a successor serves."""
        return self.bypass

    @property
    @abstractmethod
    def summaries(self) -> tuple[str, str]:
        """What goes before and behind all else in the line for `systemctl status`."""

    @property
    def internal_errors(self) -> int:
        """How many errors there have been in its own code since the start."""
        return 0

    @property
    def upgradable(self) -> Upgradable | None:
        """None if a restart is as good as an upgrade."""
        return None

    @abstractmethod
    def open(self, settings: Settings, own_socket: str) -> None:
        """Takes the lock of this host, and its socket.

        Args:
            settings: At the start.
            own_socket: Of the daemon's own server; empty for none.

        Raises:
            RuntimeProxyError: Another front end runs, or the socket cannot be used.
        """

    async def accept(self) -> None:
        """Serves, in place of the predecessor if there is one."""

    @abstractmethod
    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        """Gets the core, which has no records yet: callbacks for the first inventory can be added here."""

    @abstractmethod
    def decide(self) -> None:
        """Begins to ask the policies, which are loaded."""

    def use(self, settings: Settings) -> None:
        """Takes changed settings."""

    async def update(self) -> None:
        """Called about every second."""

    async def stop_accepting(self) -> None:
        """Takes no more clients."""

    async def drain(self, most_s: float) -> None:
        """Lets calls in progress end."""

    @abstractmethod
    async def end(self) -> None:
        """Gives the lock back: everything is written, and no call runs any more."""
