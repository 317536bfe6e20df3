"""What others write to cgroups of containers and pods, of which no event tells, is written over.

An update that another plugin makes unasked reaches no plugin; the runtime writes all values of its own
specification then, which are older than those that were written by file since. Before containerd 2.3 no event
tells of the kubelet's updates of a pod either.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.frontends.cgroup_tree import CgroupListener
from runtimeproxy.frontends.repeated import Repeated
from runtimeproxy.pods.records import Lifecycle

if TYPE_CHECKING:
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cgroup_tree import ContainerCgroup
    from runtimeproxy.ledger.upkeep import Upkeep
    from runtimeproxy.pods.store import PodStore

WRITES_S: Final = 0.1
"""How long writes to a cgroup are gathered: an update writes a dozen files."""
SECOND_CHECK_S: Final = 1.0
"""Until a second comparison: the kubelet updates a pod's containers one after another."""


class OtherWrites(CgroupListener):
    """Hears of writes. Used in the event loop's thread."""

    def __init__(self, store: PodStore, upkeep: Upkeep, spawn: Spawn) -> None:
        self._store = store
        self._upkeep = upkeep
        self._spawn = spawn
        self._written = Repeated()

    def on_written(self, cgroup: str, container: ContainerCgroup | None) -> None:
        if self._written.add(cgroup):
            self._spawn(self._written.run(cgroup, partial(self._compare, cgroup, container is not None)))

    async def _compare(self, cgroup: str, is_container: bool) -> None:
        await asyncio.sleep(WRITES_S)
        if await self._upkeep.is_in_force(cgroup):
            return
        # The runtime has updated a container; others write to a pod.
        await self._upkeep.repair(cgroup, is_explained=is_container)
        await asyncio.sleep(SECOND_CHECK_S)
        await self._upkeep.repair(cgroup, is_explained=is_container)

    def is_running(self, container: ContainerCgroup) -> bool:
        # The runtime tells when it starts; a sandbox is no container.
        known = self._store.containers.get(container.id)
        return known is None or known.state is not Lifecycle.CREATED
