"""What the daemon asks of a front end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import TraceSink
    from runtimeproxy.frontends.cri_proxy.front_end import MakeServing
    from runtimeproxy.frontends.cri_proxy.handover.predecessor import Predecessor
    from runtimeproxy.listener import Listener
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient
    from runtimeproxy.service.bypass import BypassSwitch


class FrontEnd(Protocol):
    """Tells the core what is created, runs and ends, and carries its decisions."""

    @property
    def mode(self) -> str:
        """As `daemon.mode` has it."""

    @property
    def switch(self) -> BypassSwitch:
        """Lets everything pass while its `bypass` is set."""

    @property
    def listener(self) -> Listener:
        """The socket, once it is open."""

    @property
    def predecessor(self) -> Predecessor | None:
        """The process before this one; None if this is no upgrade."""

    @property
    def retired(self) -> asyncio.Event:
        """Set while a successor serves."""

    @property
    def is_open(self) -> bool:
        """Whether it has its socket."""

    @property
    def is_standby(self) -> bool:
        """Whether this process decides on nothing: the bypass is on, or a successor serves."""

    @property
    def internal_errors(self) -> int:
        """How many errors there have been in its own code since the start."""

    @property
    def summaries(self) -> tuple[str, str]:
        """What goes before and behind all else in the line for `systemctl status`."""

    def open(self, settings: Settings, own_socket: str, make_serving: MakeServing) -> None:
        """Takes its socket.

        Args:
            settings: At the start.
            own_socket: Of the daemon's own server; empty for none.
            make_serving: Completes what is handed over to a successor.

        Raises:
            RuntimeProxyError: The socket cannot be used.
        """

    async def accept(self) -> None:
        """Serves, in place of the predecessor if there is one."""

    def decide(self, traces: TraceSink | None, spawn: Spawn) -> None:
        """The policies are loaded."""

    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        """Gets the core."""

    def use(self, settings: Settings) -> None:
        """Takes changed settings."""

    async def update(self) -> None:
        """To be called about every second."""

    async def hand_over(self, changing: asyncio.Lock) -> None:
        """Hands over to a successor; the lock is held while both must stay as they are."""

    async def stop_accepting(self) -> None:
        """Takes no more clients."""

    async def drain(self, most_s: float) -> None:
        """Lets calls in progress end."""

    async def end(self) -> None:
        """Everything is written, and no call runs any more."""
