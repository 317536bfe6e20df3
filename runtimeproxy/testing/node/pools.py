"""Katalyst's pools of a simulated node: what the daemon makes of an advisor's claims.

```python
node = SimulatedNode(16, plugins=[KatalystAdvisor()])
pools = SimulatedPools(node, PoolSettings(enable_reclaim=True))
node.add_pod(SimulatedPod(name="web", qos=QoSClass.LS, containers=[web]))
pools.advance(24 * 3600, step_s=10)
```

Pods of the class BE are of `reclaimed_cores`, those with CPUs of their own are left alone, and all others are
of `shared_cores` in the pool `share`, without ramp-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from runtimeproxy.cgroups.order import Key
from runtimeproxy.hooks import algebra
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.katalyst.advice import BoundedAdvice, PoolClaim, bounded_advice
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import RECLAIM, QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import LiveContainer, ObservedPod, configure, initial, reconcile
from runtimeproxy.katalyst.pools import PoolSettings, PoolState
from runtimeproxy.katalyst.rebuild import reclaim_reserve
from runtimeproxy.katalyst.topology import Topology, TopologyCpu
from runtimeproxy.katalyst.transition import pool_sizes
from runtimeproxy.qos import QoSClass
from runtimeproxy.qosmanager.snapshot import CpuPools, Level, Pod, PoolAdvice, PoolMember
from runtimeproxy.testing.node.kernel import CPUS
from runtimeproxy.testing.node.simulation import SimulatedNode
from runtimeproxy.units import format_cpu_list
from runtimeproxy.vocabulary import PoolField

_OWNER: Final = Claimant("katalyst-pools")


class SimulatedPools:
    """The pools of a node, made anew after each step.

    Attributes:
        state: The pools.
        advice: What counts of the advisor's claims.
        is_advised: Whether claims count; False: as if the lease had ended.
    """

    def __init__(
        self, node: SimulatedNode, settings: PoolSettings, advisor: str = "katalyst-advisor"
    ) -> None:
        self._node = node
        self._settings = settings
        self._advisor = advisor
        self.is_advised = True
        self.advice = BoundedAdvice()
        sizes = {each.numa_node: 0 for each in node.facts.cpus}
        memory = dict.fromkeys(sizes, node.kernel.memory_bytes // len(sizes))
        cpus = (
            TopologyCpu(each.id, each.core, each.socket, each.numa_node, each.socket)
            for each in node.facts.cpus
        )
        self._topology = Topology(tuple(cpus), memory)
        self.state: PoolState = initial(self._topology, settings)
        self.follow()

    def advance(self, seconds: float, step_s: float = 1.0) -> None:
        """Lets time pass; after each step the pools follow the claims."""
        self.follow()
        for _ in range(round(seconds / step_s)):
            self._node.advance(step_s, step_s)
            self.follow()

    def size(self, pool: str) -> int:
        """How many CPUs a pool has."""
        return len(self.state.pools.get(pool, ()))

    def headroom_cores(self) -> float:
        """By the advisor; 0 without one."""
        found = self.advice.pools.get(RECLAIM)
        return (found.headroom_millicpu or 0) / 1_000 if found is not None else 0.0

    def follow(self) -> None:
        """Takes pods and claims over, and has CPUs written in the next step."""
        pods = [pod for pod in self._node.pods if not pod.cpus]
        state = reconcile(self.state, map(_observed, pods))
        self.advice = bounded_advice(state, self._claims()) if self.is_advised else BoundedAdvice()
        state = configure(state, self._settings, self._topology, self.advice.sizes(state))
        self.state = state
        self._node.facts = replace(
            self._node.facts, cpu_pools=self._shown(), memory_bytes=dict(self._topology.memory_bytes)
        )
        self._write(pods)

    def _claims(self) -> Iterator[PoolClaim]:
        for each in self._node.claims(self._advisor):
            if each.target.level is Level.POOL:
                yield PoolClaim(
                    each.target.id, PoolField(each.field), int(each.value), self._advisor, each.reason
                )

    def _shown(self) -> CpuPools:
        state = self.state
        return CpuPools(
            pools={name: cpus for name, cpus, _ in pool_sizes(state)},
            members={
                uid: PoolMember(pod.level.value, pod.owner, pod.cpus, pod.dedicated, pod.numa_ids)
                for uid, pod in state.pods.items()
            },
            enable_reclaim=state.settings.enable_reclaim,
            overlap=state.settings.overlap,
            least_reclaim_cpus=reclaim_reserve(state.topology, state.settings),
            reserved_cpus=state.reserved,
            advice={name: PoolAdvice(*each[:4]) for name, each in self.advice.pools.items()},
        )

    def _write(self, pods: list[Pod]) -> None:
        policies = {key: claims for key, claims in self._node.policies.items() if key.name != CPUS}
        for pod in pods:
            placed = self.state.pods[pod.uid]
            claim = algebra.Claim(_OWNER, algebra.Role.SET, format_cpu_list(placed.cpus))
            for each in pod.containers:
                path = tuple(part for part in each.cgroup.split("/") if part)
                policies[Key(path, CPUS)] = (claim,)
        self._node.policies = policies


def _observed(pod: Pod) -> ObservedPod:
    is_reclaimed = pod.qos is QoSClass.BE
    qos = KatalystQos(level=QosLevel.RECLAIMED, pool=RECLAIM) if is_reclaimed else KatalystQos()
    millicpu = sum(each.requests.get("cpu", 0) for each in pod.containers)
    facts = PodFacts(pod.uid, qos, pod.namespace, pod.name, None if is_reclaimed else millicpu)
    containers = tuple(
        LiveContainer(each.name, each.id, each.requests.get("cpu", 0)) for each in pod.containers
    )
    return ObservedPod(facts, containers)
