"""The front end before the runtime: relays the kubelet's calls, and holds those that policies may change.

Cheap to import: it relays before protobuf and the policies are loaded.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.frontends.cri_proxy.handover.predecessor import Predecessor
from runtimeproxy.frontends.cri_proxy.handover.upgrade import TAKEN_OVER, Program, Serving, Upgrade, note
from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
from runtimeproxy.frontends.cri_proxy.wiring import check_handed_over, connection_options, listener_of
from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.frontends.lock import lock_host, unlock_host

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cri_proxy.calls.call_trace import TraceSink
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallServices
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.listener import Listener
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient

MakeServing = Callable[["Listener", RelayServer], Serving]
"""Completes what is handed over to a successor."""


class CriProxy(FrontEnd):
    """One proxy, from its socket to the end of the last call. Used in the event loop's thread.

    Args:
        environ: The service manager's variables, and those of a predecessor.
        make_serving: Completes what is handed over to a successor.
        traces: Gets the spans of calls; None without a collector.
        on_unseen: Called when calls have passed without records.

    Attributes:
        interceptor: Decides which calls are held; its `bypass` lets all pass.
        predecessor: The process before this one; None if this is no upgrade.
        is_open: Whether `open` has set the next three.
        listener: The socket that the kubelet uses.
        upgrade: Hands over to a successor.
        services: What calls share; None before `join`.
        is_runtime_away: Whether the runtime was lost and does not answer yet.
    """

    mode = "proxy"
    serves_kubelet = True
    server: RelayServer
    upgrade: Upgrade

    def __init__(
        self,
        settings: Settings,
        environ: MutableMapping[str, str],
        make_serving: MakeServing,
        traces: TraceSink | None,
        on_unseen: Callable[[], None],
    ) -> None:
        self._environ = environ
        # With the variables that the next line takes away.
        program = Program.this(environ)
        self.predecessor = Predecessor.of(environ)

        def make_upgrade() -> Upgrade:
            return Upgrade(program, make_serving(self.listener, self.server), self.predecessor)

        self._make_upgrade = make_upgrade
        self.interceptor = CallInterceptor(CallSettings.of(settings), on_unseen)
        self.is_open = False
        self._lock_fd = -1
        self.services: CallServices | None = None
        self.is_runtime_away = False
        self._traces = traces

    @classmethod
    def carried_fields(cls) -> CarriedFields:
        from runtimeproxy.hooks.carried import BY_CALLS

        return BY_CALLS

    @property
    def switch(self) -> CallInterceptor:
        return self.interceptor

    @property
    def is_standby(self) -> bool:
        # The bypass is on, or a successor serves.
        return self.interceptor.bypass or (self.is_open and self.upgrade.has_moved)

    @property
    def internal_errors(self) -> int:
        """How many errors there have been in the proxy's own code since the start."""
        of_calls = self.services.core.problems.internal_errors if self.services is not None else 0
        return of_calls + (self.server.defect_count if self.is_open else 0)

    @property
    def problems(self) -> Counter[tuple[str, str]]:
        """How many calls went on without what they should have had, by kind of call and cause."""
        found = Counter(dict(self.services.core.problems.counts) if self.services is not None else {})
        for kind, number in dict(self.interceptor.late).items():
            found[kind, "not_loaded"] += number
        return found

    @property
    def summaries(self) -> tuple[str, str]:
        """What goes before and behind all else in the line for `systemctl status`."""
        bypass = "bypass is on" if self.interceptor.bypass else ""
        trouble = "the runtime is away" if self.is_runtime_away else ""
        count = self.server.connection_count if self.is_open else 0
        clients = "1 connection" if count == 1 else f"{count} connections"
        return "; ".join(filter(None, (trouble, bypass))), clients

    @property
    def upgradable(self) -> CriProxy:
        return self

    def open(self, settings: Settings, own_socket: str) -> None:
        # Or takes the predecessor's socket; without a socket of its own it leaves health to the runtime.
        self._lock_fd = lock_host(settings.daemon.lock, alone=False)
        proxy = settings.proxy
        if self.predecessor is None:
            self.listener = listener_of(proxy, self._environ)
        else:
            self.listener = self.predecessor.listener
            check_handed_over(self.listener, proxy)
        options = connection_options(proxy, self.interceptor, own_socket)
        self.server = RelayServer(options, proxy.allowed_uids, proxy.max_connections_per_process)
        self.upgrade = self._make_upgrade()
        self.is_open = True

    async def accept(self) -> None:
        await self.server.start(self.listener)
        if self.predecessor is not None:
            self.listener.own(note(TAKEN_OVER))
            await self.predecessor.report_serving()

    async def join(
        self,
        core: Core,
        client: GrpcRuntimeClient,
        settings: Settings,
        threads: ThreadPools,
        spawn: Spawn,
    ) -> None:
        run = asyncio.get_running_loop().run_in_executor
        module = "runtimeproxy.frontends.cri_proxy.core_calls"
        await run(threads.background, importlib.import_module, module)
        from runtimeproxy.frontends.cri_proxy.core_calls import call_services

        self.services = call_services(core.services, client, settings, threads)

    def decide(self) -> None:
        # From now on intercepted calls are decided, those that wait for it first.
        assert self.services is not None  # noqa: S101 - joined before
        from runtimeproxy.frontends.cri_proxy.core_calls import open_call

        self.interceptor.start(open_call(self.services, self._traces))

    def use(self, settings: Settings) -> None:
        if self.services is not None:
            self.services.settings = CallSettings.of(settings)

    async def update(self) -> None:
        # About every second.
        self.is_runtime_away = await self.server.is_runtime_away()

    async def stop_accepting(self) -> None:
        """Accepts no more clients; a successor that does not serve yet is given up."""
        await self.upgrade.stop()
        if self.predecessor is not None:
            self.predecessor.report_stopping()
        self.server.stop_accepting()

    @property
    def upgrade_problem(self) -> str:
        return self.upgrade.last[1] if self.is_open and self.upgrade.last is not None else ""

    async def hand_over(self, changing: asyncio.Lock) -> None:
        if self.is_open:
            await self.upgrade.run(changing)

    async def drain(self, most_s: float) -> None:
        await self.server.drain(most_s)

    async def end(self) -> None:
        """Reports to a successor that no call runs here any more and all records are written."""
        await self.upgrade.send_drained()
        unlock_host(self._lock_fd)
