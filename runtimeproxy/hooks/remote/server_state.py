"""What the rest of the program sees of hook servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.remote.registrations import Registration


@dataclass(slots=True)
class ServerCounts:
    """Calls of one hook server since it is registered; times are seconds since the epoch."""

    calls: int = 0
    failures: int = 0
    last_error: str = ""
    """Of the last failure; empty if there was none."""
    last_error_s: float = 0.0
    opened_s: float | None = None
    """Since when it is skipped; None while it is not."""


class Server(Protocol):
    """A hook server in use; see `HookServer`."""

    @property
    def registration(self) -> Registration: ...

    @property
    def trouble(self) -> str: ...

    @property
    def openings(self) -> int: ...

    @property
    def counts(self) -> ServerCounts: ...

    def as_policy(self) -> LoadedPolicy: ...

    def close(self) -> None: ...


class Servers(Protocol):
    """All of them; see `HookServers`."""

    on_change: Callable[[], None]

    @property
    def policies(self) -> tuple[LoadedPolicy, ...]: ...

    @property
    def summary(self) -> str: ...

    @property
    def servers(self) -> Mapping[str, Server]: ...

    @property
    def unused(self) -> tuple[str, ...]: ...

    @property
    def present_problems(self) -> tuple[str, ...]: ...

    @property
    def problems(self) -> int: ...

    def configure(self, default_timeout_s: float) -> None: ...

    async def run(self) -> None: ...

    async def read(self) -> None:
        """Waits, for a bounded time, for the servers that are registered already."""
