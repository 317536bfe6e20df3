"""The daemon's own gRPC servers: behind the relay, and on the admin socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from runtimeproxy.http2.server import Budget
from runtimeproxy.service.api.admin_socket import AdminSocket
from runtimeproxy.service.api.loading import READ_SERVICE
from runtimeproxy.service.local_server import LocalServer

if TYPE_CHECKING:
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.service.api.loading import Load

logger = logging.getLogger(__name__)


class OwnServers:
    """Used in the event loop's thread.

    Args:
        admin_path: Of the admin socket; empty for none.

    Attributes:
        admin: The admin socket; None for none.
        budget: Of calls of all these servers.
    """

    def __init__(self, admin_path: str) -> None:
        self.admin = AdminSocket(admin_path) if admin_path else None
        self.budget = Budget()
        self._local: LocalServer | None = None
        self._admin_server: LocalServer | None = None

    def open(self) -> str:
        """Makes the socket of the server behind the relay; returns its path, empty if that fails."""
        try:
            self._local = LocalServer()
        except OSError as error:
            logger.error("health and reflection are left to the runtime: %s", error)  # noqa: TRY400
            return ""
        return self._local.socket_path

    def start(
        self,
        executor: Executor,
        probe: Callable[[], Awaitable[bool]],
        stopping: asyncio.Event,
        services: Mapping[str, Load],
        spawn: Spawn,
        *,
        replaces: bool,
        public: socket.socket | None = None,
    ) -> None:
        """Serves.

        Args:
            executor: A thread.
            probe: Whether the runtime answers.
            stopping: Set when the daemon drains.
            services: What loads each service, by full name; the admin socket has all of them.
            spawn: Starts background tasks.
            replaces: Whether the admin socket may be another process's.
            public: Where the server serves that is else behind the relay; None for the relay.
        """
        if self._local is not None or public is not None:
            self._local = self._local or LocalServer()
            reads = {READ_SERVICE: services[READ_SERVICE]}
            spawn(self._local.start(executor, probe, stopping, reads, self.budget, public))
        if self.admin is None:
            return
        lock = asyncio.Lock()

        async def start_admin() -> str:
            async with lock:
                if self._admin_server is None:
                    server = LocalServer()
                    await server.start(executor, probe, stopping, services, self.budget)
                    self._admin_server = server
                return self._admin_server.socket_path

        self.admin.start = start_admin
        spawn(self.admin.publish(replaces=replaces))

    async def publish_again(self) -> None:
        # A successor that has failed has the admin socket, or its remains are there.
        if self.admin is not None:
            await self.admin.publish(replaces=True)

    async def close_admin(self) -> None:
        # Another process can take clients there then.
        if self.admin is not None:
            await self.admin.stop()

    async def stop(self) -> None:
        # Calls in progress are cut.
        for server in (self._local, self._admin_server):
            if server is not None:
                await server.stop()
