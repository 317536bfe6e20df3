"""The daemon's own gRPC server behind the relay, for health, reflection and the API: socket and lifetime."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import shutil
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from concurrent.futures import Executor

    import grpc.aio

    from runtimeproxy.service.api.loading import Load

PREFIX: Final = "koord-runtime-proxy-"
"""Begins the directories' names; the kernel releases the lock in each when its process ends."""

RESERVED_DESCRIPTORS: Final = 8
"""File descriptors that gRPC's core opens when it begins to serve (seen with grpcio 1.85: 7). Without them it
aborts the process: "Eventfd wakeup fd is not supported"."""

_UNLOCKED_PREFIX: Final = ".koord-runtime-proxy-"
_LOCK: Final = "lock"


class LocalServer:
    """Serves on a socket in a directory that only this user can enter.

    It reserves the file descriptors that it needs at once, so that no number of clients takes them.

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
        self._starting: asyncio.Task[grpc.aio.Server] | None = None
        self._reserved: list[int] = []
        try:
            for _ in range(RESERVED_DESCRIPTORS):
                self._reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            self._directory, self._lock_fd = _make_directory(parent)
        except OSError:
            self._release_descriptors()
            raise
        self.socket_path = str(self._directory / "own.sock")

    async def start(
        self,
        executor: Executor,
        probe: Callable[[], Awaitable[bool]],
        stopping: asyncio.Event,
        api: Mapping[str, Load] = MappingProxyType({}),
    ) -> None:
        """Loads grpcio in a thread, so that relaying goes on meanwhile, and serves.

        Args:
            executor: the thread.
            probe: whether the runtime answers.
            stopping: set when the daemon drains.
            api: what loads each service of the API, by full name.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(executor, importlib.import_module, "runtimeproxy.service.local_services")
        # grpcio does not survive a cancelled start, so `stop` waits for its end.
        self._starting = loop.create_task(self._serve(probe, stopping, api))
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """Ends the server and removes its directory; calls in progress are cut."""
        if self._starting is not None:
            server = await self._starting
            await server.stop(None)
            self._starting = None
        self._release_descriptors()
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    async def _serve(
        self, probe: Callable[[], Awaitable[bool]], stopping: asyncio.Event, api: Mapping[str, Load]
    ) -> grpc.aio.Server:
        from runtimeproxy.service.local_services import make_server

        # No client is accepted between this and the server's own use of them.
        self._release_descriptors()
        server = make_server(self.socket_path, probe, stopping, api)
        await server.start()
        return server

    def _release_descriptors(self) -> None:
        while self._reserved:
            os.close(self._reserved.pop())


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
    """Removes the directories of this user's instances that have ended."""
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = directory.lstat()
            if about.st_uid == os.geteuid() and directory.is_dir() and not _is_locked(directory / _LOCK):
                shutil.rmtree(directory, ignore_errors=True)


def _is_locked(path: Path) -> bool:
    """Whether a process holds the lock; raises OSError if there is none."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
