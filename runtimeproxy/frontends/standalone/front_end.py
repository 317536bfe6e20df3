"""Stand-alone: no socket of the kubelet; it follows what runs, and writes values by file only.

It never writes before runc: a pod is decided on once its sandbox is ready, a container once it has started.
What only a message at the creation could carry is reported as not applicable in this mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.frontends.lock import take_host, unlock_host
from runtimeproxy.frontends.standalone.cgroup_tree import CgroupTree

if TYPE_CHECKING:
    from runtimeproxy.background import ThreadPools
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.core import Core
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.standalone.follower import Follower
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.pods.runtime_client import GrpcRuntimeClient


class Standalone(FrontEnd):
    """Follows what runs; its socket is that of the API. Used in the event loop's thread.

    Attributes:
        bypass: While it is set nothing is evaluated or written.
    """

    mode = "standalone"
    serves_kubelet = False

    _spawn: Spawn

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._follower: Follower | None = None
        self._tree: CgroupTree | None = None
        self._lock_fd = -1

    @classmethod
    def carried_fields(cls) -> CarriedFields:
        # No message, and no policy is asked before something is created.
        from runtimeproxy.hooks.carried import CarriedFields

        return CarriedFields(cls.mode, {})

    @property
    def summaries(self) -> tuple[str, str]:
        is_followed = self._follower is not None and self._follower.events.is_followed
        source = "events of the runtime" if is_followed else "lists of the runtime"
        if self._tree is not None and self._tree.problem:
            source += f"; {self._tree.problem}"
        return "; ".join(filter(None, ("stand-alone", "bypass is on" if self.bypass else ""))), source

    def open(self, settings: Settings, own_socket: str) -> None:
        self._lock_fd, self.listener = take_host(settings, self._environ)

    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        from runtimeproxy.frontends.standalone.follower import Follower, begun_s

        run = asyncio.get_running_loop().run_in_executor
        since_s = await run(threads.background, begun_s, Path(settings.state.dir))
        evaluator = core.upkeep.evaluator
        follower = self._follower = Follower(core.inventory, evaluator, client, spawn, since_s)
        root = Path(settings.cgroups.root)
        self._spawn = spawn
        self._tree = CgroupTree(root, follower.on_cgroups_changed, threads.make("cgroup-tree"))

    def decide(self) -> None:
        if self._follower is not None and self._tree is not None:
            self._follower.start()
            self._spawn(self._tree.run())

    async def end(self) -> None:
        # Another front end may run now.
        unlock_host(self._lock_fd)
