"""The registered hook servers, as policies of the chain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Hook
from runtimeproxy.hooks.remote.registrations import Registration
from runtimeproxy.hooks.remote.server_state import Server
from runtimeproxy.hooks.remote.watcher import FolderWatchSettings, RegistrationWatcher

logger = logging.getLogger(__name__)

MAX_SERVERS: Final = 64
"""Hook servers in use; a node has one or two."""
FIRST_READ_S: Final = 10.0
"""How long policies wait for the first reading of the folder, because a file system may hang."""


class _Used(NamedTuple):
    server: Server
    policy: LoadedPolicy


def make_server(registration: Registration) -> Server:
    """Makes a hook server; loads protobuf's messages, so not in the event loop's thread."""
    from runtimeproxy.hooks.remote.server import HookServer

    return HookServer(registration)


class HookServers:
    """Keeps a server for each registration. Used in the event loop's thread.

    A changed registration makes a new server; an unchanged one keeps its connection and its breaker.

    Args:
        default_timeout_s: The time for one call of a server whose file has none.
        executor: A thread that reads the files and makes the servers; it may hang.
        make: Makes a server, in the executor's thread.
        watching: How the folder is watched; None for the defaults.

    Attributes:
        policies: The servers as policies, by file name.
        on_change: Called after `policies` has changed, and before the old servers are closed.
    """

    def __init__(
        self,
        folder: Path,
        default_timeout_s: float,
        executor: Executor,
        make: Callable[[Registration], Server] = make_server,
        watching: FolderWatchSettings | None = None,
    ) -> None:
        self._executor = executor
        self.on_change: Callable[[], None] = lambda: None
        self._make = make
        self._used: dict[str, _Used] = {}
        self._unused: list[str] = []
        self._watcher = RegistrationWatcher(
            folder, default_timeout_s, executor, self._on_registrations, watching
        )
        self.policies: tuple[LoadedPolicy, ...] = ()

    @property
    def summary(self) -> str:
        """For people: the number of servers, and which of them are skipped; empty for none."""
        if not self._used:
            return ""
        troubles = [
            f"{name} {used.server.trouble}" for name, used in self._used.items() if used.server.trouble
        ]
        count = f"{len(self._used)} hook server{'s' if len(self._used) > 1 else ''}"
        if self._unused:
            troubles.append(f"{len(self._unused)} more are registered and not used")
        return f"{count} ({'; '.join(troubles)})" if troubles else count

    @property
    def servers(self) -> Mapping[str, Server]:
        return {name: used.server for name, used in self._used.items()}

    @property
    def unused(self) -> tuple[str, ...]:
        # Registered beyond `MAX_SERVERS`.
        return tuple(self._unused)

    @property
    def present_problems(self) -> tuple[str, ...]:
        return self._watcher.present_problems

    @property
    def problems(self) -> int:
        # Of registrations, since the start.
        return self._watcher.problems

    def configure(self, default_timeout_s: float) -> None:
        self._watcher.configure(default_timeout_s)

    async def run(self) -> None:
        try:
            await self._watcher.run()
        finally:
            used, self._used, self.policies = self._used, {}, ()
            for each in used.values():
                each.server.close()

    async def read(self) -> None:
        try:
            async with asyncio.timeout(FIRST_READ_S):
                await self._watcher.settled.wait()
        except TimeoutError:
            logger.warning("hook server registrations cannot be read in time: calls go on without them")

    async def _on_registrations(self, registrations: tuple[Registration, ...]) -> None:
        old = self._used
        self._report_unused(registrations)
        kept: dict[str, _Used] = {}
        new: list[Registration] = []
        for each in registrations[:MAX_SERVERS]:
            used = old.get(each.name)
            if used is not None and used.server.registration == each:
                kept[each.name] = used
            else:
                new.append(each)
        made = await asyncio.get_running_loop().run_in_executor(self._executor, self._make_all, new)
        self._used = dict(sorted({**kept, **made}.items()))
        self.policies = tuple(used.policy for used in self._used.values())
        self.on_change()
        for used in made.values():
            _log_use(used.server.registration)
        for name, used in old.items():
            if name not in self._used:
                logger.info("hook server %s is no longer used", name, extra={"server": name})
            if name not in kept:
                used.server.close()

    def _report_unused(self, registrations: tuple[Registration, ...]) -> None:
        more = [each.name for each in registrations[MAX_SERVERS:]]
        if more and more != self._unused:
            logger.warning(
                "hook server registrations: %d of %d are not used, from %s on: the limit is %d servers",
                len(more),
                len(registrations),
                more[0],
                MAX_SERVERS,
                extra={"unused": len(more), "first": more[0]},
            )
        self._unused = more

    def _make_all(self, registrations: Iterable[Registration]) -> dict[str, _Used]:
        """In the executor's thread: makes servers."""
        made: dict[str, _Used] = {}
        for each in registrations:
            try:
                server = self._make(each)
                made[each.name] = _Used(server, server.as_policy())
            except Exception:  # a server that cannot be made must not affect the others
                logger.exception("hook server %s cannot be used", each.name)
        return made


def _log_use(registration: Registration) -> None:
    hooks = [hook.value for hook in Hook if hook in registration.hooks]
    logger.info(
        "hook server %s is used: %s for %s, failure policy %s",
        registration.name,
        registration.endpoint,
        ", ".join(hooks) or "nothing",
        registration.failure_policy,
        extra={
            "server": registration.name,
            "endpoint": registration.endpoint,
            "hooks": hooks,
            "failure_policy": str(registration.failure_policy),
            "timeout_s": registration.timeout_s,
        },
    )
