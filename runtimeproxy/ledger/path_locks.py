"""A lock for each cgroup that is being read and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock
from typing import Final

from runtimeproxy.cgroups.paths import cgroup_id
from runtimeproxy.ledger.tree import Path

MOST_WAIT_S: Final = 5.0
"""How long a batch waits for another one that writes to the same cgroup. Lower than the kubelet's and the
policies' limits, so that a write that hangs holds up threads for a short time only."""


class IsBusyError(Exception):
    """Another thread has not ended its write to a cgroup in time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.why = f"another write to {cgroup_id(path)} has not ended"


class PathLocks:
    """A lock for each cgroup that is being written; safe for all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[Path, tuple[RLock, int]] = {}

    @contextmanager
    def held(self, paths: Iterable[Path]) -> Iterator[None]:
        """Holds the locks of some cgroups; a thread may hold one twice.

        Raises:
            IsBusyError: Another thread holds one of them for long.
        """
        with ExitStack() as stack:
            # In one order, or two batches might wait for each other.
            for path in sorted(set(paths)):
                lock = self._take(path)
                stack.callback(self._drop, path)
                if not lock.acquire(timeout=MOST_WAIT_S):
                    raise IsBusyError(path)
                stack.callback(lock.release)
            yield

    def _take(self, path: Path) -> RLock:
        with self._lock:
            lock, users = self._found.get(path) or (RLock(), 0)
            self._found[path] = lock, users + 1
            return lock

    def _drop(self, path: Path) -> None:
        with self._lock:
            lock, users = self._found[path]
            if users > 1:
                self._found[path] = lock, users - 1
            else:
                del self._found[path]
