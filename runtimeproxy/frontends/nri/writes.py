"""What others write to cgroups of containers and pods, of which no event tells, is written over.

An update that another plugin makes unasked reaches no plugin; the runtime writes all values of its own
specification then, which are older than those that were written by file since. Before containerd 2.3 no event
tells of the kubelet's updates of a pod either.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.frontends.repeated import Repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.frontends.cgroup_tree import ContainerCgroup
    from runtimeproxy.ledger.upkeep import Upkeep

WRITES_S: Final = 0.1
"""How long writes to a cgroup are gathered: an update writes a dozen files."""
SECOND_LOOK_S: Final = 1.0
"""Until a second look: the kubelet updates a pod's containers one after another."""


class OtherWrites:
    """Hears of writes (a `CgroupListener`). Used in the event loop's thread."""

    def __init__(self, upkeep: Upkeep, spawn: Spawn) -> None:
        self._upkeep = upkeep
        self._spawn = spawn
        self._written = Repeated()

    def on_written(self, cgroup: str, container: ContainerCgroup | None) -> None:
        if self._written.add(cgroup):
            self._spawn(self._written.run(cgroup, partial(self._look_at, cgroup, container is not None)))

    async def _look_at(self, cgroup: str, is_container: bool) -> None:
        await asyncio.sleep(WRITES_S)
        if await self._upkeep.is_in_force(cgroup):
            return
        # The runtime has updated a container; others write to a pod.
        await self._upkeep.repair(cgroup, is_explained=is_container)
        await asyncio.sleep(SECOND_LOOK_S)
        await self._upkeep.repair(cgroup, is_explained=is_container)

    # All else is told by the runtime.

    def on_scanned(self, found: Sequence[ContainerCgroup]) -> None:
        pass

    def on_made(self, container: ContainerCgroup) -> None:
        pass

    def on_started(self, container: ContainerCgroup) -> None:
        pass

    def on_removed(self, container: ContainerCgroup) -> None:
        pass
