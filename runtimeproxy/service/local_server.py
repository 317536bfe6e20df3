"""The daemon's own gRPC server behind the relay, for health, reflection and the API: socket and lifetime."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.listener import is_locked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from concurrent.futures import Executor

    from runtimeproxy.http2.server import Budget, GrpcServer
    from runtimeproxy.service.api.loading import Load

PREFIX: Final = "koord-runtime-proxy-"
"""Begins the directories' names; the kernel releases the lock in each when its process ends."""

_UNLOCKED_PREFIX: Final = ".koord-runtime-proxy-"
_LOCK: Final = "lock"


class LocalServer:
    """Serves on a socket in a directory that only this user can enter.

    Args:
        parent: where the directory is made; None for the system's temporary directory. Directories of killed
            instances are removed.

    Attributes:
        socket_path: where the relay connects to the server; the file exists once `start` has returned.

    Raises:
        OSError: the directory cannot be made, or there are no file descriptors.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        _remove_stale(parent)
        self._server: GrpcServer | None = None
        self._listeners: list[asyncio.Server] = []
        # At once, so that no number of clients takes the descriptor.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._directory, self._lock_fd = _make_directory(parent)
        except OSError:
            self._socket.close()
            raise
        self.socket_path = str(self._directory / "own.sock")
        try:
            self._socket.bind(self.socket_path)
        except OSError:
            self._socket.close()
            self._remove()
            raise

    async def start(
        self,
        executor: Executor,
        probe: Callable[[], Awaitable[bool]],
        stopping: asyncio.Event,
        api: Mapping[str, Load] = MappingProxyType({}),
        budget: Budget | None = None,
        public: socket.socket | None = None,
    ) -> None:
        """Loads protobuf in a thread, so that relaying goes on meanwhile, and serves.

        Args:
            executor: the thread.
            probe: whether the runtime answers.
            stopping: set when the daemon drains.
            api: what loads each service of the API, by full name.
            budget: of all such servers together; None for one of its own.
            public: a socket on which it serves, too; None for none.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(executor, importlib.import_module, "runtimeproxy.service.local_services")
        from runtimeproxy.service.local_services import make_server

        self._server = server = make_server(probe, stopping, api, budget)
        self._listeners = [await loop.create_unix_server(server.protocol, sock=self._socket)]
        if public is not None:
            # Of systemd's socket Python 3.13 would remove the file at the end.
            keep: dict[str, Any] = {} if sys.version_info < (3, 13) else {"cleanup_socket": False}
            serving = loop.create_unix_server(server.protocol, sock=public.dup(), **keep)
            self._listeners.append(await serving)

    async def stop(self) -> None:
        """Ends the server and removes its directory; calls in progress are cut."""
        for listener in self._listeners:
            listener.close()
        if self._server is not None:
            await self._server.stop()
        self._socket.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _make_directory(parent: Path) -> tuple[Path, int]:
    """Makes a directory that gets its name once its lock is held, so that no instance removes it as stale."""
    fresh = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=parent))
    try:
        lock_fd = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        fresh.rmdir()
        raise
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    return fresh.rename(parent / (PREFIX + fresh.name.removeprefix(_UNLOCKED_PREFIX))), lock_fd


def _remove_stale(parent: Path) -> None:
    # Those of this user's instances that have ended.
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = directory.lstat()
            if about.st_uid == os.geteuid() and directory.is_dir() and not is_locked(directory / _LOCK):
                shutil.rmtree(directory, ignore_errors=True)
