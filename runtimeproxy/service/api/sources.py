"""What the API looks at: parts of the daemon, in the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor
    from runtimeproxy.frontends.cri_proxy.handover.upgrade import Upgrade
    from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
    from runtimeproxy.http2.server import Budget
    from runtimeproxy.service.api.admin_socket import AdminSocket
    from runtimeproxy.service.audit_file import AuditFile
    from runtimeproxy.service.bypass import Bypass
    from runtimeproxy.service.engine import Engine
    from runtimeproxy.service.tracing.traces import Traces


class Reloaded(NamedTuple):
    """The last reload of the configuration."""

    time_s: float
    """Since the epoch."""
    error: str = ""
    """Why it failed; empty if it did not."""
    need_restart: tuple[str, ...] = ()
    """Changed keys that take effect after a restart only."""


@dataclass(slots=True, kw_only=True)
class ApiSources:
    """The parts of a daemon.

    Attributes:
        engine: records, policies, values.
        server: the relay.
        own_budget: of calls of the daemon's own services.
        interceptor: calls that wait for the policies.
        bypass: on or off, and why.
        upgrade: the last one.
        audit_file: the file of the audit, which may be off.
        traces: spans of calls; None without a collector.
        settings: those in effect.
        endpoint: the socket that the kubelet uses.
        started_s: when the process started, since the epoch.
        config_path: the configuration file; empty for none.
        stopping: set when it ends.
        last_reload: the last reload of the configuration; None if there was none.
        admin: the socket of the service Admin; None for none.
        changing: held by reloads, upgrades and changes of modes: one at a time.
        has_predecessor: whether calls still run in the process before this one.
    """

    engine: Engine
    server: RelayServer
    own_budget: Budget
    interceptor: CallInterceptor
    bypass: Bypass
    upgrade: Upgrade
    audit_file: AuditFile
    traces: Traces | None
    settings: Callable[[], Settings]
    endpoint: str
    started_s: float
    stopping: asyncio.Event
    config_path: str = ""
    last_reload: Callable[[], Reloaded | None] = lambda: None
    admin: AdminSocket | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    has_predecessor: Callable[[], bool] = lambda: False
