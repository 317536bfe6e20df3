"""Runs of a simulated node, each with the load that a plugin is made for."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from runtimeproxy.katalyst.pools import PoolSettings
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.qosmanager.plugin import AnyPlugin
from runtimeproxy.qosmanager.plugins.cpu_burst import CpuBurstPlugin
from runtimeproxy.qosmanager.plugins.cpu_guard import CpuGuardPlugin
from runtimeproxy.qosmanager.plugins.cpu_suppress import CpuSuppress
from runtimeproxy.qosmanager.plugins.katalyst_advisor import KatalystAdvisor, KatalystAdvisorOptions
from runtimeproxy.qosmanager.plugins.memory_evict import MemoryEvict
from runtimeproxy.qosmanager.snapshot import Strategies
from runtimeproxy.slo.schema import (
    CpuBurstPolicy,
    CpuGuard,
    CpuSuppressPolicy,
    PodCpuBurst,
    PodCpuGuard,
    Threshold,
)
from runtimeproxy.slo.schema import CpuBurstStrategy as BurstStrategy
from runtimeproxy.testing.node.kernel import CPUS, QUOTA, SHARES, OverTime, Workload, constant
from runtimeproxy.testing.node.pools import SimulatedPools
from runtimeproxy.testing.node.simulation import (
    CLASS_PATHS,
    SimulatedContainer,
    SimulatedNode,
    SimulatedPod,
)
from runtimeproxy.units import CPU_PERIOD_US, parse_cpu_list


@dataclass(frozen=True)
class Scenario:
    """A run that has ended, and what to draw of it."""

    title: str
    node: SimulatedNode
    panels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Series by the label of their axis."""
    compared: SimulatedNode | None = None
    """The same load without the plugins, or by Koordinator's rule."""
    compared_name: str = ""

    def series(self, name: str) -> list[float]:
        return self.node.series[name]


def noisy(cores: OverTime, share: float, seed: int) -> OverTime:
    """A load that differs in each second by up to a share; the same in each run."""

    def at(elapsed_s: float) -> float:
        return cores(elapsed_s) * (1 + share * random.Random(f"{seed}:{int(elapsed_s)}").uniform(-1, 1))

    return at


def between(low: float, high: float, start_s: float, end_s: float) -> OverTime:
    """A load that is high for some time."""
    return lambda elapsed_s: high if start_s <= elapsed_s < end_s else low


def latency_sensitive(
    name: str,
    cores: OverTime,
    limit: int | None = None,
    *,
    cpu_burst: PodCpuBurst | None = None,
    priority: int | None = None,
    request: int = 2_000,
) -> SimulatedPod:
    limits = {"cpu": limit} if limit is not None else {}
    workload = Workload(cores=cores, backlog_s=2.0)
    container = SimulatedContainer(workload=workload, requests={"cpu": request}, limits=limits)
    return SimulatedPod(
        name=name,
        qos=QoSClass.LS,
        priority=priority,
        cpu_burst=cpu_burst or PodCpuBurst(),
        containers=[container],
    )


def best_effort(name: str, cores: float, batch_cpu: int = 8_000) -> SimulatedPod:
    amounts = {"kubernetes.io/batch-cpu": batch_cpu}
    container = SimulatedContainer(workload=Workload(cores=constant(cores)), requests=amounts, limits=amounts)
    return SimulatedPod(name=name, qos=QoSClass.BE, priority=5_500, containers=[container])


def watch_suppression(node: SimulatedNode) -> None:
    node.watch("LS used", lambda: node.used_cores("web"))
    node.watch("LS wanted", lambda: node.cgroup("web", 0).wanted_cores / Workload().peak)
    node.watch("BE used", node.used_cores)
    node.watch(
        "BE quota",
        lambda: min(int(node.value(QUOTA)) / CPU_PERIOD_US, 16.0) if node.value(QUOTA) != -1 else 16.0,
    )
    node.watch("BE CPUs", lambda: len(parse_cpu_list(str(node.value(CPUS)))) or 16)


def surge(policy: CpuSuppressPolicy, seconds: int = 300) -> Scenario:
    """LS load rises from 2 to 9 cores of 16 for two minutes; BE pods would use all that they can get."""
    node = SimulatedNode(16, plugins=[CpuSuppress()])
    node.strategies = Strategies(threshold=Threshold(enable=True, cpu_suppress_policy=policy))
    node.add_pod(latency_sensitive("web", noisy(between(2.0, 9.0, 60, 180), 0.02, 1), request=8_000))
    node.add_pod(best_effort("batch", 8.0))
    node.add_pod(best_effort("crawler", 8.0))
    watch_suppression(node)
    node.advance(seconds)
    bound = "BE quota" if policy is CpuSuppressPolicy.CFS_QUOTA else "BE CPUs"
    panels = {"cores": ("LS used", "BE used", bound)}
    return Scenario(f"A surge of LS load, BE squeezed and given back ({policy})", node, panels)


AUTO = BurstStrategy(policy=CpuBurstPolicy.AUTO)


def burst_node(plugin: CpuBurstPlugin, strategy: BurstStrategy = AUTO) -> SimulatedNode:
    node = SimulatedNode(16, plugins=[plugin])
    node.strategies = Strategies(cpu_burst=strategy)
    return node


def buckets() -> Scenario:
    """Two containers want 1.5 times their limit: one has idled before, the other has used its tokens up."""
    strategy = PodCpuBurst(policy=CpuBurstPolicy.AUTO, cfs_quota_burst_period_seconds=60)
    node = burst_node(CpuBurstPlugin())
    node.add_pod(latency_sensitive("rested", between(0.4, 3.0, 300, 1_200), 2_000, cpu_burst=strategy))
    node.add_pod(
        latency_sensitive(
            "busy", lambda at_s: 4.0 if at_s < 290 else 1.6 if at_s < 300 else 3.0, 2_000, cpu_burst=strategy
        )
    )
    for name in ("rested", "busy"):
        node.watch(f"{name} quota", partial(quota_cores, node, name))
        node.watch(f"{name} used", partial(node.used_cores, name))
    node.advance(1_200)
    panels = {
        "cores (full bucket)": ("rested quota", "rested used"),
        "cores (empty bucket)": ("busy quota", "busy used"),
    }
    return Scenario("Burst of the quota with a full and an empty token bucket", node, panels)


def quota_cores(node: SimulatedNode, pod: str) -> float:
    return int(node.value(QUOTA, pod, 0)) / CPU_PERIOD_US


FLAPPING = ("gold", "silver", "bronze")


def flapping_node(plugin: CpuBurstPlugin, seconds: int) -> SimulatedNode:
    """Pods that are throttled all the time, beside one that moves the shared CPUs around the threshold."""
    node = burst_node(plugin)
    steady = noisy(lambda at_s: 2.2 + 0.6 * ((int(at_s) // 45) % 2), 0.1, 2)
    node.add_pod(latency_sensitive("steady", steady))
    for number, name in enumerate(FLAPPING):
        load = noisy(constant(2.6), 0.05, 10 + number)
        node.add_pod(
            latency_sensitive(
                name, load, 1_000, cpu_burst=AUTO, priority=9_000 - number * 1_000, request=1_000
            )
        )
        node.watch(f"{name} quota", partial(quota_cores, node, name))
        node.watch(f"{name} used", partial(node.used_cores, name))
    node.watch("used", lambda: sum(node.used_cores(name) for name in ("steady", *FLAPPING)))
    node.watch("threshold", lambda: 8.0)
    node.advance(seconds)
    return node


def flapping(upstream: Callable[[], CpuBurstPlugin], seconds: int = 900) -> Scenario:
    node, other = flapping_node(CpuBurstPlugin(), seconds), flapping_node(upstream(), seconds)
    panels = {
        "quota in cores": tuple(f"{name} quota" for name in FLAPPING),
        "used cores": ("used", "threshold"),
    }
    return Scenario("A node around the threshold of CPU burst", node, panels, other, "Koordinator's rule")


GIB = 1 << 30


def growing(mib_per_s: float) -> OverTime:
    return lambda elapsed_s: (1 + elapsed_s * mib_per_s / 1_024) * GIB


def memory_pressure(*, is_enforced: bool = True, seconds: int = 900) -> Scenario:
    """Three BE pods grow at different speeds on a node with 64 GiB; an LS pod uses 24 GiB."""
    name = MemoryEvict.name
    node = SimulatedNode(
        16,
        memory_bytes=64 * GIB,
        plugins=[MemoryEvict()],
        gates={"BEMemoryEvict": True},
        dry_run=() if is_enforced else (name,),
    )
    node.strategies = Strategies(threshold=Threshold(enable=True, memory_evict_threshold_percent=80))
    web = Workload(cores=constant(4.0), memory_bytes=constant(24.0 * GIB), cache_bytes=constant(20.0 * GIB))
    node.add_pod(SimulatedPod(name="web", containers=[SimulatedContainer(workload=web)]))
    for number, mib_per_s in enumerate((40, 60, 20)):
        workload = Workload(cores=constant(1.0), memory_bytes=growing(mib_per_s))
        node.add_pod(
            SimulatedPod(
                name=f"batch{number}",
                qos=QoSClass.BE,
                priority=5_500,
                containers=[SimulatedContainer(workload=workload)],
            )
        )
    node.watch("used", lambda: node.memory_bytes() / GIB)
    node.watch("threshold", lambda: 0.8 * 64)
    node.watch("BE pods", lambda: len(node.pods) - 1)
    node.advance(seconds)
    panels = {"GiB": ("used", "threshold"), "pods": ("BE pods",)}
    return Scenario("Memory pressure, with the evictions of BEMemoryEvict", node, panels)


def day(step_s: float = 30.0) -> Scenario:
    """24 hours: LS load follows the hour, with noise; BE pods use what is left; an LSE pod comes and goes."""
    node = SimulatedNode(16, plugins=[CpuSuppress(), CpuBurstPlugin()])
    node.strategies = Strategies(
        threshold=Threshold(enable=True, cpu_suppress_policy=CpuSuppressPolicy.CPUSET), cpu_burst=AUTO
    )
    hour = 3_600.0
    node.add_pod(
        latency_sensitive("web", noisy(lambda at_s: 4.5 - 3.5 * math.cos(at_s / hour * math.pi / 12), 0.1, 5))
    )
    node.add_pod(latency_sensitive("api", noisy(constant(1.2), 0.4, 6), 1_000, cpu_burst=AUTO, request=1_000))
    node.add_pod(best_effort("batch", 8.0))
    node.add_pod(best_effort("crawler", 8.0))
    watch_suppression(node)
    node.watch("api quota", partial(quota_cores, node, "api"))
    lse = replace(latency_sensitive("lse", constant(1.5)), qos=QoSClass.LSE, cpus=frozenset({4, 5}))
    node.advance(9 * hour, step_s)
    node.add_pod(lse)
    node.advance(8 * hour, step_s)
    node.remove_pod("lse")
    node.advance(7 * hour, step_s)
    panels = {"cores": ("LS used", "BE used", "BE CPUs"), "quota in cores": ("api quota",)}
    return Scenario("24 hours", node, panels)


def service(name: str, cores: OverTime, *, request: int, threads: int = 32) -> SimulatedPod:
    """An LS pod that takes requests of 2 ms at random times."""
    workload = Workload(cores=cores, threads=threads, request_s=0.002, backlog_s=2.0)
    container = SimulatedContainer(workload=workload, requests={"cpu": request})
    return SimulatedPod(name=name, qos=QoSClass.LS, containers=[container])


def watch_waits(node: SimulatedNode, pod: str) -> None:
    """What a service feels: run delay, pressure, and its responses."""
    before = [0.0, 0.0, 0.0]

    def delay() -> float:
        cgroup = node.cgroup(pod, 0)
        ran_us, waited_us = cgroup.usage_us - before[0], cgroup.delay_us - before[1]
        before[:2] = cgroup.usage_us, cgroup.delay_us
        return 1_000 * waited_us / (ran_us + waited_us) if ran_us + waited_us > 0 else 0.0

    def full() -> float:
        total_us = node.cgroup(pod).pressure.totals_us[1]
        grown_us, before[2] = total_us - before[2], total_us
        return grown_us / 1_000

    node.watch("run delay", delay)
    node.watch("pressure, full", full)
    node.watch("p50", lambda: node.response_ms(0.5, pod))
    node.watch("p99", lambda: node.response_ms(0.99, pod))


def waits_node(
    plugins: Sequence[AnyPlugin], shares: int, seconds: int, *, has_pressure: bool = True
) -> SimulatedNode:
    """A service of 5 CPUs, then of 7, on 16 CPUs; BE pods that would use all come after two minutes."""
    node = SimulatedNode(16, plugins=plugins, waits=True, has_pressure=has_pressure)
    node.strategies = Strategies(
        threshold=Threshold(enable=True, cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA),
        cpu_guard=CpuGuard(enable=True, idle_pods=False),
    )
    node.add_pod(service("web", noisy(between(5.0, 7.0, 240, 300), 0.02, 9), request=8_000))
    node.kernel.write(node.cgroup().path, SHARES, shares)
    node.watch("LS used", lambda: node.used_cores("web"))
    node.watch("BE used", node.used_cores)
    watch_waits(node, "web")
    node.advance(120)
    node.add_pod(best_effort("batch", 8.0))
    node.add_pod(best_effort("crawler", 8.0))
    node.advance(seconds - 120)
    return node


def guard(seconds: int = 480, shares: int = 512, *, has_pressure: bool = True) -> Scenario:
    """What the CPU guard leaves BE pods, beside CPU suppress alone."""
    panels = {
        "cores": ("LS used", "BE used"),
        "ms": ("p50", "p99"),
        "thousandths": ("run delay", "pressure, full"),
    }
    node = waits_node([CpuGuardPlugin(), CpuSuppress()], shares, seconds, has_pressure=has_pressure)
    other = waits_node([CpuSuppress()], shares, seconds, has_pressure=has_pressure)
    title = f"The CPU guard by {'pressure' if has_pressure else 'run delay'}, BE pods at 6 % of the weight"
    return Scenario(title, node, panels, other, "CPU suppress")


def guarded_node(
    cpus: int = 16,
    *,
    plugins: Sequence[AnyPlugin] | None = None,
    has_pressure: bool = True,
    policy: str = "none",
    strategy: CpuGuard | None = None,
    system: float = 0.2,
) -> SimulatedNode:
    """A node with guard and CPU suppress, and a strategy for both; BE pods keep their weight."""
    own: Sequence[AnyPlugin] = [CpuGuardPlugin(), CpuSuppress()] if plugins is None else plugins
    node = SimulatedNode(cpus, plugins=own, waits=True, has_pressure=has_pressure)
    node.facts = replace(node.facts, cpu_manager_policy=policy)
    node.strategies = Strategies(
        threshold=Threshold(enable=True, cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA),
        cpu_guard=strategy or CpuGuard(enable=True, idle_pods=False),
    )
    node.kernel.system_cores = constant(system)
    return node


def greedy(node: SimulatedNode, cores: float, weight: float, pods: int = 2) -> None:
    """Starts BE pods that want so much together; their class has this share of the weight of Burstable."""
    for number in range(pods):
        node.add_pod(best_effort(f"batch{number}", cores / pods, len(node.facts.cpus) * 1_000))
    shares = int(node.kernel.value(CLASS_PATHS[KubeQoSClass.BURSTABLE], SHARES))
    node.kernel.write(node.cgroup().path, SHARES, max(int(shares * weight), 2))


GUARD_PANELS: Mapping[str, tuple[str, ...]] = {
    "wait in ms/s": ("w", "t"),
    "error": ("E", "1"),
    "cores": ("B", "B_bad", "F", "BE used"),
    "rule": ("rule",),
    "ms": ("p50", "p99"),
}


def watch_guard(node: SimulatedNode, pod: str) -> None:
    """What the guard says of its last decision, and what one service feels. Without a value: the last one."""
    cpus = len(node.facts.cpus)
    kept: dict[str, float] = {}

    def number(name: str, pattern: str, unit: float = 1.0, without: float | None = None) -> None:
        def last() -> float:
            found = re.search(pattern, node.explanation(CpuGuardPlugin.name))
            if found is not None:
                kept[name] = float(found[1]) * unit
            elif without is not None:
                kept[name] = without
            return kept.get(name, 0.0)

        node.watch(name, last)

    before = [0.0]

    def full() -> float:
        total_us = node.cgroup(pod).pressure.totals_us[1]
        grown_us, before[0] = total_us - before[0], total_us
        return grown_us / 1_000

    node.watch("w", full)
    number("t", rf"default/{pod}: w [0-9.]+, t ([0-9.]+)")
    number("E", r"; E ([0-9.]+)", without=0.0)
    number("B", r", B ([0-9]+)m", 1e-3, without=float(cpus))
    number("B_bad", r", B_bad ([0-9]+)m", 1e-3, without=float(cpus))
    number("F", r", F ([0-9]+)m", 1e-3)
    number("rule", r"rule ([0-9])", without=0.0)
    node.watch("1", lambda: 1.0)
    node.watch("BE used", node.used_cores)
    node.watch("p50", lambda: node.response_ms(0.5, pod))
    node.watch("p99", lambda: node.response_ms(0.99, pod))


def guard_surge(seconds: int = 900) -> Scenario:
    """A service of 5 CPUs of 16, of 10 for two minutes, beside BE pods that would use all."""
    node = guarded_node()
    node.add_pod(service("web", noisy(between(5.0, 10.0, 300, 420), 0.02, 9), request=8_000))
    watch_guard(node, "web")
    node.advance(120)
    greedy(node, 16.0, 0.06)
    node.advance(seconds - 120)
    return Scenario("The CPU guard: a service, greedy BE pods, a surge", node, GUARD_PANELS)


def guard_equal_weights(seconds: int = 600) -> Scenario:
    """BE pods weigh as much as the service: what it waits falls with what they use, down to their floor."""
    node = guarded_node()
    node.add_pod(service("web", noisy(constant(5.0), 0.02, 9), request=8_000))
    watch_guard(node, "web")
    node.advance(120)
    greedy(node, 16.0, 1.0)
    node.advance(seconds - 120)
    return Scenario("The CPU guard: BE pods of the same weight", node, GUARD_PANELS)


def guard_throttled(seconds: int = 240) -> Scenario:
    """A service that its own limit stops in most periods: none of its seconds is a sample."""
    node = guarded_node()
    workload = Workload(cores=constant(2.4), threads=32, request_s=0.002, backlog_s=2.0)
    container = SimulatedContainer(workload=workload, requests={"cpu": 2_000}, limits={"cpu": 2_000})
    node.add_pod(SimulatedPod(name="web", containers=[container]))
    watch_guard(node, "web")
    greedy(node, 16.0, 0.002)
    node.advance(seconds)
    return Scenario("The CPU guard: a pod throttled by its own limit", node, GUARD_PANELS)


def guard_own_threads(seconds: int = 240) -> Scenario:
    """A pod with ten times more threads than CPUs, all of which want to run."""
    node = guarded_node()
    workload = Workload(cores=constant(160.0), threads=160)
    container = SimulatedContainer(workload=workload, requests={"cpu": 8_000})
    node.add_pod(SimulatedPod(name="web", containers=[container]))
    watch_guard(node, "web")
    greedy(node, 16.0, 0.002)
    node.advance(seconds)
    return Scenario("The CPU guard: ten times more threads than CPUs", node, GUARD_PANELS)


def guard_from_the_first_second(seconds: int = 300) -> Scenario:
    """BE pods take all from the first second on: nothing is known of quiet seconds."""
    node = guarded_node()
    node.add_pod(service("web", noisy(constant(5.0), 0.02, 9), request=8_000))
    watch_guard(node, "web")
    greedy(node, 16.0, 0.25)
    node.advance(seconds)
    return Scenario("The CPU guard: greedy BE pods from the first second", node, GUARD_PANELS)


def guard_unreachable(seconds: int = 400) -> Scenario:
    """A target that cannot be reached: the service waits behind a pod that is neither guarded nor BE."""
    node = guarded_node()
    pod = service("web", noisy(constant(3.0), 0.02, 9), request=2_000)
    node.add_pod(replace(pod, cpu_guard=PodCpuGuard(target_pressure_milliseconds=5)))
    threads = Workload(cores=constant(10.0), threads=10)
    other = SimulatedContainer(name="other", workload=threads, requests={"cpu": 4_000})
    node.add_pod(SimulatedPod(name="other", qos=QoSClass.NONE, containers=[other]))
    watch_guard(node, "web")
    node.advance(120)
    greedy(node, 16.0, 0.002)
    node.advance(seconds - 120)
    return Scenario("The CPU guard: a target that cannot be reached", node, GUARD_PANELS)


def waits(seconds: int = 360, shares: int = 8_192) -> Scenario:
    """What a service feels of BE pods that weigh as much as it does, with CPU suppress and without."""
    panels = {
        "cores": ("LS used", "BE used"),
        "ms": ("p50", "p99"),
        "thousandths": ("run delay", "pressure, full"),
    }
    node, other = waits_node([CpuSuppress()], shares, seconds), waits_node([], shares, seconds)
    title = "What a service feels of BE pods of the same weight"
    return Scenario(title, node, panels, other, "nothing")


HOUR_S = 3_600.0


def watch_pools(node: SimulatedNode, pools: SimulatedPools) -> None:
    node.watch("share needs", lambda: pools.size("share"))
    node.watch("share used", lambda: node.used_cores("web") + node.used_cores("api"))
    node.watch("headroom", pools.headroom_cores)
    node.watch("reclaimed used", node.used_cores)
    node.watch("idle", lambda: len(node.facts.cpus) - (node.kernel.used_cores - node.used_cores()))
    node.watch("BE quota", lambda: min(quota_cores_of_class(node), len(node.facts.cpus)))


def quota_cores_of_class(node: SimulatedNode) -> float:
    quota = int(node.value(QUOTA))
    return quota / CPU_PERIOD_US if quota > 0 else float("inf")


def service_day(
    policy: str = "canonical", step_s: float = 30.0, hours: float = 24.0, *, folder: str = ""
) -> Scenario:
    """24 hours: a service's load follows the hour, with noise; reclaimed pods use what the pools leave."""
    options = KatalystAdvisorOptions(
        policy="dynamic-quota" if policy == "dynamic-quota" else "canonical",
        window_s=max(10.0, step_s),
        hold_s=max(300.0, 4 * step_s),
        record_folder=folder,
    )
    node = SimulatedNode(32, plugins=[KatalystAdvisor()], options={KatalystAdvisor.name: options})
    pools = SimulatedPools(
        node, PoolSettings(reserved_count=2, enable_reclaim=True, overlap=policy == "dynamic-quota")
    )
    load = noisy(lambda at_s: 10.0 - 8.0 * math.cos(at_s / HOUR_S * math.pi / 12), 0.05, 7)
    node.add_pod(latency_sensitive("web", load, request=20_000))
    node.add_pod(latency_sensitive("api", noisy(constant(1.2), 0.2, 8), request=2_000))
    node.add_pod(best_effort("batch", 16.0))
    node.add_pod(best_effort("crawler", 16.0))
    watch_pools(node, pools)
    pools.advance(hours * HOUR_S, step_s)
    panels = {
        "cores of share": ("share needs", "share used"),
        "cores of reclaim": ("idle", "headroom", "reclaimed used"),
    }
    return Scenario(f"24 hours of Katalyst's pools by usage ({policy})", node, panels)
