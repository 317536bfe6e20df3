"""NRI: a plugin of the runtime, which asks it about containers and tells it of pods.

The kubelet keeps the runtime's socket. Values of pods go to their files when their sandbox is run, those of
containers into the runtime's messages and, before the container's program runs, to their files. Labels and
cgroup parents cannot be changed in this mode.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.frontends.lock import take_host, unlock_host
from runtimeproxy.frontends.nri.state import NriState

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cgroup_tree import CgroupTree
    from runtimeproxy.frontends.nri.link import NriLink
    from runtimeproxy.frontends.nri.services import EventServices
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient


class NriPlugin(FrontEnd):
    """Answers the runtime's requests; its own socket is that of the API. Used in the event loop's thread.

    Attributes:
        bypass: While it is set all requests are answered without a change, and nothing is written.
        state: How the plugin stands with its runtime.
    """

    mode = "nri"
    serves_kubelet = False

    _spawn: Spawn
    _tree: CgroupTree

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.state = NriState()
        self._environ = environ
        self._lock_fd = -1
        self._link: NriLink | None = None
        self._services: EventServices | None = None

    @classmethod
    def carried_fields(cls) -> CarriedFields:
        from runtimeproxy.hooks.carried import CarriedFields
        from runtimeproxy.hooks.fields import (
            ANNOTATIONS,
            CDI_DEVICES,
            DEVICES,
            ENV,
            MOUNTS,
            RESOURCES,
            UNIFIED,
        )
        from runtimeproxy.hooks.policy import Hook

        asked = (each for each in Hook if not each.startswith("evaluate_"))
        return CarriedFields(
            cls.mode,
            {
                **dict.fromkeys(asked, ()),
                Hook.PRE_CREATE_CONTAINER: {
                    RESOURCES,
                    UNIFIED,
                    ANNOTATIONS,
                    ENV,
                    MOUNTS,
                    DEVICES,
                    CDI_DEVICES,
                },
                Hook.PRE_UPDATE_CONTAINER_RESOURCES: {RESOURCES, UNIFIED},
            },
            files_before_start=True,
        )

    @property
    def summaries(self) -> tuple[str, str]:
        bypass = "bypass is on" if self.bypass else ""
        return "; ".join(filter(None, (self.state.summary, bypass))), ""

    @property
    def internal_errors(self) -> int:
        return self._services.core.problems.internal_errors if self._services is not None else 0

    def open(self, settings: Settings, own_socket: str) -> None:
        self._lock_fd, self.listener = take_host(settings, self._environ)

    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        run = asyncio.get_running_loop().run_in_executor
        await run(threads.background, importlib.import_module, "runtimeproxy.frontends.nri.link")
        from runtimeproxy.frontends.cgroup_tree import CgroupTree
        from runtimeproxy.frontends.mode_begin import begun_s
        from runtimeproxy.frontends.nri.link import NriLink
        from runtimeproxy.frontends.nri.plugin import Plugin
        from runtimeproxy.frontends.nri.services import EventServices, EventSettings
        from runtimeproxy.frontends.nri.writes import OtherWrites
        from runtimeproxy.pods.lookup import Lookups

        services = self._services = EventServices(
            core=core.services,
            state=self.state,
            lookups=Lookups(core.store, client),
            settings=EventSettings.of(settings),
            is_standby=lambda: self.is_standby,
            audit=core.audit.claims,
        )
        own_name = self.state.own_name = NriLink.own_name(settings.nri, self._environ)
        since_s = await run(threads.background, begun_s, Path(settings.state.dir), self.mode)
        plugin = Plugin(services, own_name, since_s)
        self._link = NriLink(settings.nri, plugin, services, self._environ)
        self._spawn = spawn
        # For another plugin, which does not ask us.
        core.ledger.books.updated_by_others = True
        root, executor = Path(settings.cgroups.root), threads.make("cgroup-tree")
        self._tree = CgroupTree(root, OtherWrites(core.store, core.upkeep, spawn), executor)

    def decide(self) -> None:
        # A runtime asks its plugins from the first moment on, so it has to wait for the policies.
        if self._link is not None:
            self._spawn(self._run(self._link))
            self._spawn(self._tree.run())

    async def _run(self, link: NriLink) -> None:
        await link.run()
        if not link.is_ending:
            # The runtime that has launched this plugin is gone; its successor launches another one.
            signal.raise_signal(signal.SIGTERM)

    def use(self, settings: Settings) -> None:
        if self._services is not None:
            from runtimeproxy.frontends.nri.services import EventSettings

            self._services.settings = EventSettings.of(settings)

    async def stop_accepting(self) -> None:
        if self._link is not None:
            self._link.stop()

    async def drain(self, most_s: float) -> None:
        if self._link is not None:
            await self._link.drain(most_s)

    async def end(self) -> None:
        # Another front end may run now.
        unlock_host(self._lock_fd)
