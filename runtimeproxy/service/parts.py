"""The parts of a daemon that has loaded everything: what its API, its metrics and its page show.

It imports most of the code, protobuf included, so the daemon imports it when it already serves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy import __version__
from runtimeproxy.core.core import Core
from runtimeproxy.frontends.cri_proxy.front_end import CriProxy
from runtimeproxy.frontends.nri.front_end import NriPlugin
from runtimeproxy.frontends.runtime_link import RuntimeLink
from runtimeproxy.hooks.audit import AuditKind
from runtimeproxy.hooks.remote.servers import HookServers
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.runtime_client import runtime_client
from runtimeproxy.service.kubernetes_link import KubernetesLink
from runtimeproxy.service.pod_names import MisspelledNames
from runtimeproxy.service.qos_manager import QosManagerWatch, watch_of

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.front_end import FrontEnd
    from runtimeproxy.frontends.nri.state import NriState
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.loading import PolicyLoader
    from runtimeproxy.service.audit_file import AuditFile
    from runtimeproxy.service.bypass import Bypass, Cause
    from runtimeproxy.service.configuration import CurrentConfiguration
    from runtimeproxy.service.lifetime import Lifetime
    from runtimeproxy.service.own_servers import OwnServers
    from runtimeproxy.service.tracing.traces import Traces


_PROCESS: Final = f"version {__version__}, process {os.getpid()}"
_PARENT: Final = os.getppid()
"""The process that an upgrade replaces; it may end before this one tells that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts. Used in the event loop's thread.

    Attributes:
        core: Decides.
        runtime: The container runtime.
        kubernetes: The API server; None without it.
        pod_names: Names in records that are probably misspelled.
        qos_manager: Whether one runs, and has to.
        front_end: Where pods and containers come from.
        bypass: On or off, and why.
        life: Start and end of the process.
        configuration: The settings in effect.
        audit_file: The file of the audit, which may be off.
        traces: Spans of calls; None without a collector.
        servers: The daemon's own servers.
    """

    core: Core
    runtime: RuntimeLink
    kubernetes: KubernetesLink | None
    pod_names: MisspelledNames
    qos_manager: QosManagerWatch
    front_end: FrontEnd
    bypass: Bypass
    life: Lifetime
    configuration: CurrentConfiguration
    audit_file: AuditFile
    traces: Traces | None
    servers: OwnServers

    @property
    def proxy(self) -> CriProxy | None:
        # For what no other front end has to show; None if another one runs.
        return self.front_end if isinstance(self.front_end, CriProxy) else None

    @property
    def nri(self) -> NriState | None:
        # None in other modes.
        return self.front_end.state if isinstance(self.front_end, NriPlugin) else None

    @property
    def summary(self) -> str:
        """One line for `systemctl status`: policies, hook servers, records, values and the node."""
        source = self.kubernetes.source if self.kubernetes is not None else None
        more = source.summary if source is not None else ""
        return f"{self.core.summary}; {more}" if more else self.core.summary

    async def load_policies(self, threads: ThreadPools, spawn: Spawn) -> None:
        """Loads the policies, unless they are.

        Raises:
            PolicyLoadError: One cannot be loaded, and `on_load_error` is "stop".
        """
        if self.kubernetes is not None and not self.kubernetes.is_started:
            spawn(self.kubernetes.start(self.core.node, threads.background))
        await self.core.load_policies(self.configuration.settings)

    def start(self, spawn: Spawn) -> None:
        self.core.start()
        self.runtime.start(spawn)
        spawn(self.qos_manager.run())

    def audit_start(self, *, is_successor: bool) -> None:
        """Audits the start, and the bypass if it is on."""
        reason, audit = f"{_PROCESS}, mode {self.front_end.mode}", self.core.audit
        if is_successor:
            audit.add_event(AuditKind.UPGRADE, f"{reason}: it serves in place of process {_PARENT}")
        else:
            audit.add_event(AuditKind.START, reason)
        status = self.bypass.status
        if status.is_on and status.cause is not None:
            self.audit_bypass(True, status.cause, status.reason)

    def audit_upgrade_problem(self, problem: str) -> None:
        audit = self.core.audit
        audit.add_event(AuditKind.UPGRADE, f"not upgraded, {_PROCESS} goes on: {problem}")

    def audit_bypass(self, is_on: bool, by: Cause, reason: str) -> None:
        audit, (old, new) = self.core.audit, ("off", "on") if is_on else ("on", "off")
        why = f"by {by}: {reason}" if reason else f"by {by}"
        audit.add_event(AuditKind.BYPASS, why, field="bypass", old=old, new=new)

    async def close(self, threads: ThreadPools) -> None:
        """Tells and writes the rest, and closes connections."""
        audit = self.core.audit
        if not self.life.retired.is_set():
            audit.add_event(AuditKind.STOP, _PROCESS)
        if self.kubernetes is not None:
            await self.kubernetes.close(threads.background)
        await self.runtime.client.close()
        await self.core.close()


def make_parts(
    configuration: CurrentConfiguration,
    front_end: FrontEnd,
    bypass: Bypass,
    life: Lifetime,
    audit_file: AuditFile,
    traces: Traces | None,
    servers: OwnServers,
    threads: ThreadPools,
    spawn: Spawn,
    loader: PolicyLoader | None,
    sinks: Sequence[AuditSink],
) -> Parts:
    """Makes the core with all around it; nothing is read or started yet."""
    settings = configuration.settings
    kubernetes = KubernetesLink(settings) if settings.kubernetes.enabled else None
    proxy = settings.proxy
    client = runtime_client(
        proxy.runtime_endpoint, proxy.runtime_call_timeout_s, threads.background, FailureLog()
    )

    def is_standby() -> bool:
        return front_end.is_standby

    hooks = settings.hooks
    folder, thread = Path(hooks.server_config_dir), threads.make("hook-servers")  # files may hang
    hook_servers = HookServers(folder, hooks.server_timeout_s, thread)
    carried = front_end.carried_fields()
    core = Core(
        settings, threads, spawn, is_standby, client, hook_servers, carried, kubernetes, loader, sinks
    )
    store = core.store
    return Parts(
        core=core,
        runtime=RuntimeLink(client, core.inventory, settings, threads.background),
        kubernetes=kubernetes,
        pod_names=MisspelledNames(store.pods, core.node),
        qos_manager=watch_of(core, configuration, is_standby, threads.background),
        front_end=front_end,
        bypass=bypass,
        life=life,
        configuration=configuration,
        audit_file=audit_file,
        traces=traces,
        servers=servers,
    )
