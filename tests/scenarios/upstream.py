"""Koordinator's rule for larger quotas, as a plugin, for comparison: all containers of a node move together.

As pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst.go does it: on overload every quota above the limit
shrinks by a fifth each second; below nine tenths of the threshold every throttled one grows by a fifth;
between the two nothing grows. It keeps no state but the quotas.
"""

from __future__ import annotations

from runtimeproxy.qosmanager.plugin import QUOTA, Claim, Decision, Role, Target
from runtimeproxy.qosmanager.plugins.cpu_burst import (
    CLASSES,
    BurstState,
    CpuBurstPlugin,
    Operation,
    PoolState,
    ceiling_us,
    operation,
    share_pool,
    stepped,
)
from runtimeproxy.qosmanager.snapshot import Level, Metric, Snapshot


class UpstreamBurst(CpuBurstPlugin):
    """Quota burst by Koordinator's rule, without the limiter."""

    def run(self, snapshot: Snapshot, state: BurstState) -> Decision[BurstState]:
        pool = share_pool(snapshot).state
        added: dict[str, int] = {}
        claims: list[Claim] = []
        for pod in snapshot.pods:
            for container in pod.containers:
                base = container.cpu_quota_us
                if pod.qos not in CLASSES or base is None or base <= 0:
                    continue
                throttled = snapshot.metrics.window(container.cgroup, Metric.CPU_THROTTLED, 3.0)
                op = operation(
                    pod.cpu_burst, throttled.last if throttled is not None else None, is_allowed=True
                )
                if op in (Operation.UP, Operation.REMAIN) and pool is PoolState.OVERLOAD:
                    op = Operation.DOWN
                elif op is Operation.UP and pool is not PoolState.IDLE:
                    op = Operation.REMAIN
                ceil = ceiling_us(base, pod.cpu_burst)
                quota = stepped(base + state.added_us.get(container.id, 0), base, ceil, op)
                if quota > base:
                    added[container.id] = quota - base
                    target = Target(Level.CONTAINER, container.id)
                    claims.append(Claim(target, QUOTA, Role.ADD, quota - base, ceiling=ceil))
        return Decision(BurstState(added_us=added), claims)
