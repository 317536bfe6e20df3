"""Moves running pods to the CPUs that the API server says they have for themselves.

Others leave the new CPUs first, then the pod moves, then others get the ones that it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from runtimeproxy.node.derived import pod_cpus
from runtimeproxy.pods.records import Lifecycle, with_live

if TYPE_CHECKING:
    from runtimeproxy.core.policies import Spawn
    from runtimeproxy.ledger.allocations import NodeAllocations
    from runtimeproxy.ledger.upkeep import Upkeep
    from runtimeproxy.node.snapshot import Node
    from runtimeproxy.node.sources import NodeSources
    from runtimeproxy.pods.store import PodStore


class CpuMoves:
    """Takes what the API server changes of running pods, CPUs of their own apart from the rest.

    Args:
        allocations: None where pools are not computed: pods then change in one step.
        is_idle: Whether no policies are loaded, or another process decides.
    """

    def __init__(
        self,
        store: PodStore,
        node: NodeSources,
        upkeep: Upkeep,
        allocations: NodeAllocations | None,
        is_idle: Callable[[], bool],
        spawn: Spawn,
    ) -> None:
        self._store = store
        self._node = node
        self._upkeep = upkeep
        self._allocations = allocations
        self._is_idle = is_idle
        self._spawn = spawn
        # The uids of pods that move.
        self._moving: set[str] = set()

    async def on_inventory(self) -> None:
        # Of pods whose records are newer than what the API server said.
        self.on_pods_changed(self._node.latest, self._node.latest.live_pods)

    def on_pods_changed(self, node: Node, uids: Iterable[str]) -> None:
        """The API server says something else of pods; those with other CPUs of their own move in turn."""
        changed = frozenset(uids)
        moving = {uid for uid in changed if uid in self._moving or self._has_other_cpus(node, uid)}
        for uid in moving - self._moving:
            self._moving.add(uid)
            self._spawn(self._move(uid))
        self._upkeep.on_pods_changed(node, changed - moving)

    def _has_other_cpus(self, node: Node, uid: str) -> bool:
        """Whether a running pod has other CPUs for itself by the API server than by its records."""
        live, last_cpu = node.live_pods.get(uid), node.facts.last_cpu
        if live is None or self._allocations is None or self._is_idle():
            return False
        return any(
            pod_cpus(each.labels, with_live(each, live).annotations, last_cpu)
            != pod_cpus(each.labels, each.annotations, last_cpu)
            for each in self._store.pods.members(uid)
            if each.state is Lifecycle.RUNNING
        )

    async def _move(self, uid: str) -> None:
        """Moves a running pod to the CPUs that it has for itself by the API server."""
        node = self._node.latest
        live = node.live_pods.get(uid)
        records = [each for each in self._store.pods.members(uid) if each.state is Lifecycle.RUNNING]
        try:
            if self._allocations is not None and live is not None and records:
                annotations = with_live(records[-1], live).annotations
                cpus = pod_cpus(records[-1].labels, annotations, node.facts.last_cpu)
                async with self._allocations.moving(uid, cpus):
                    self._upkeep.revise(node, (uid,))
                    for each in records:
                        await self._upkeep.evaluator.evaluate_pod(each.id)
        finally:
            self._moving.discard(uid)
        # It may have changed again.
        self.on_pods_changed(self._node.latest, (uid,))
