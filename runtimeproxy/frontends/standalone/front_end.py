"""Stand-alone: no socket of the kubelet; it follows what runs, and writes values by file only.

It never writes before runc: a pod is decided on once the runtime knows its sandbox, a container once its
program runs, as its cgroup's first process or the runtime says, whichever is the earlier.
What only a message at the creation could carry is reported as not applicable in this mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runtimeproxy.frontends.cgroup_tree import CgroupTree
from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.frontends.lock import take_host, unlock_host
from runtimeproxy.frontends.standalone.classes import ClassesOnly

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

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._follower: Follower | None = None
        self._lock_fd = -1

    @classmethod
    def carried_fields(cls) -> CarriedFields:
        # No message, and no policy is asked before something is created.
        from runtimeproxy.hooks.carried import CarriedFields

        return CarriedFields(cls.mode, {})

    @property
    def summaries(self) -> tuple[str, str]:
        follower = self._follower
        is_followed = follower is not None and follower.events.is_followed
        sources = ["events of the runtime" if is_followed else "lists of the runtime"]
        if follower is not None and follower.tree.is_followed:
            sources.insert(0, "the cgroup tree")
        problem = follower.tree.problem if follower is not None else ""
        before = "; ".join(filter(None, ("stand-alone", "bypass is on" if self.bypass else "")))
        return before, "; ".join(filter(None, (" and ".join(sources), problem)))

    def open(self, settings: Settings, own_socket: str) -> None:
        self._lock_fd, self.listener = take_host(settings, self._environ)

    async def join(
        self, core: Core, client: GrpcRuntimeClient, settings: Settings, threads: ThreadPools, spawn: Spawn
    ) -> None:
        from runtimeproxy.frontends.mode_begin import begun_s
        from runtimeproxy.frontends.standalone.follower import Follower

        run = asyncio.get_running_loop().run_in_executor
        since_s = await run(threads.background, begun_s, Path(settings.state.dir), self.mode)
        follower = Follower(core.inventory, core.upkeep, client, spawn, since_s, core.starts.openings)
        has_runtime = bool(settings.proxy.runtime_endpoint)
        listener = follower if has_runtime else ClassesOnly(core.store, core.upkeep.evaluator)
        follower.tree = CgroupTree(Path(settings.cgroups.root), listener, threads.make("cgroup-tree"))
        core.upkeep.sees_writes = lambda: follower.tree.is_followed
        self._follower = follower

    def decide(self) -> None:
        if self._follower is not None:
            self._follower.start()

    async def end(self) -> None:
        # Another front end may run now.
        unlock_host(self._lock_fd)
