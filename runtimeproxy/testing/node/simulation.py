"""A simulated node: pods on a simulated kernel, plugins of the QoS manager, the ledger's rules between them.

```python
node = SimulatedNode(cpus=16, plugins=[CpuSuppress()])
node.strategies = Strategies(threshold=Threshold(enable=True))
web = SimulatedContainer(workload=Workload(cores=lambda at_s: 4 + 3 * math.sin(at_s / 3600)))
node.add_pod(SimulatedPod(name="web", qos=QoSClass.LS, containers=[web]))
node.watch("web", lambda: node.used_cores("web"))
node.advance(24 * 3600, step_s=10)
```

Each step lets the workloads run, takes samples, asks each plugin, resolves the claims by the algebra of
`runtimeproxy.hooks.algebra`, fits the values to the tree of cgroups by `runtimeproxy.ledger.tree`, and writes
them in the order of `runtimeproxy.cgroups.order`. So a decision is tested with all that becomes of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

from runtimeproxy.cgroups.order import Key, write_steps
from runtimeproxy.config.settings import FEATURE_GATES
from runtimeproxy.fields.formats import Value
from runtimeproxy.hooks import algebra
from runtimeproxy.hooks.claimants import Claimant
from runtimeproxy.ledger.tree import TreeRules, TreeValue, fit
from runtimeproxy.qos import QOS_CLASS_LABEL, KubeQoSClass, QoSClass, priority_class_with_default
from runtimeproxy.qosmanager import plugin as manager
from runtimeproxy.qosmanager.snapshot import (
    NODE_CGROUP,
    Container,
    Cpu,
    HostApplication,
    KatalystTraits,
    Level,
    Metric,
    Metrics,
    Node,
    Pod,
    PodEviction,
    Snapshot,
    Strategies,
    Window,
)
from runtimeproxy.slo.schema import PodCpuBurst, PodCpuGuard
from runtimeproxy.testing.node.kernel import (
    BURST,
    CPUS,
    IDLE,
    MEMORY_LIMIT,
    PERIOD,
    QUOTA,
    SHARES,
    Cgroup,
    CgroupPath,
    Kernel,
    Workload,
)
from runtimeproxy.units import (
    CPU_PERIOD_US,
    UNLIMITED,
    cpu_quota_us_from_millicores,
    cpu_shares_from_millicores,
    format_cpu_list,
)

CLASS_PATHS: Final[Mapping[KubeQoSClass, CgroupPath]] = {
    KubeQoSClass.GUARANTEED: ("kubepods",),
    KubeQoSClass.BURSTABLE: ("kubepods", "burstable"),
    KubeQoSClass.BEST_EFFORT: ("kubepods", "besteffort"),
}
"""As the kubelet lays them out with the driver cgroupfs."""
BE_SHARES: Final = 2
"""Of the class BestEffort. Source: kubelet pkg/kubelet/cm/qos_container_manager_linux.go."""
_MANAGED: Final = (QUOTA, PERIOD, BURST, CPUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedContainer:
    """A container, as a pod's manifest and its program make it."""

    name: str = "main"
    workload: Workload = field(default_factory=Workload)
    requests: Mapping[str, int] = field(default_factory=dict)
    """By resource: `cpu` and `kubernetes.io/batch-cpu` in millicores, all else in bytes."""
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPod:
    """A pod, as its manifest makes it."""

    name: str
    containers: Sequence[SimulatedContainer] = ()
    qos: QoSClass = QoSClass.LS
    kube_qos: KubeQoSClass | None = None
    """None: BestEffort for BE pods, Guaranteed for LSE and LSR, else Burstable."""
    priority: int | None = None
    cpus: frozenset[int] = frozenset()
    """CPUs of its own."""
    cpu_burst: PodCpuBurst = field(default_factory=PodCpuBurst)
    eviction: PodEviction = field(default_factory=PodEviction)
    katalyst: KatalystTraits | None = None
    cpu_guard: PodCpuGuard = field(default_factory=PodCpuGuard)


class NodeSampler(Metrics, Protocol):
    """The product's sampler, or another one."""

    def read(self, targets: Mapping[str, Level], needs: Iterable[manager.Need]) -> object:
        """Takes one sample of each cgroup."""


class SimulatedEviction(NamedTuple):
    """An eviction that a plugin has proposed."""

    at_s: float
    pod: str
    plugin: str
    reason: str
    is_done: bool
    """False in dry-run."""


class Write(NamedTuple):
    """A value that was written to a file."""

    at_s: float
    cgroup: str
    name: str
    value: Value


_KUBE_QOS: Final = {
    QoSClass.BE: KubeQoSClass.BEST_EFFORT,
    QoSClass.LSE: KubeQoSClass.GUARANTEED,
    QoSClass.LSR: KubeQoSClass.GUARANTEED,
}


class SimulatedNode:
    """A node with pods and plugins, in simulated time.

    Attributes:
        kernel: CPUs, memory and cgroups.
        facts: What plugins know of the node beside pods; may be replaced.
        strategies: Those of the node; may be replaced at any time.
        policies: Claims of policies by cgroup and parameter, such as the scale of CPU normalization; may be
            changed before a step.
        sampler: Where samples come from; None: from the kernel's counters. The product's own reads the
            files, see `targets`.
        evictions: All that were proposed.
        writes: All values that were written.
        times_s: Of the steps.
        series: What is watched, by name, one number per step.
    """

    def __init__(
        self,
        cpus: int | Sequence[Cpu] = 16,
        *,
        memory_bytes: int = 64 << 30,
        plugins: Iterable[manager.AnyPlugin] = (),
        gates: Mapping[str, bool] | None = None,
        options: Mapping[str, Any] | None = None,
        dry_run: Collection[str] = (),
        version: Literal[1, 2] = 2,
        folder: Path | None = None,
        waits: bool = False,
        has_pressure: bool = True,
    ) -> None:
        """Makes a node without pods.

        Args:
            cpus: how many (neighbours are threads of one core, all of one NUMA node), or which.
            memory_bytes: of the node.
            plugins: in the order in which they decide.
            gates: feature gates that differ from the defaults.
            options: of plugins, by name, where they are not the defaults.
            dry_run: names of plugins whose decisions are computed only.
            version: of the cgroup files.
            folder: stands for `/`, see `Kernel`; None: the files are in memory, which is faster.
            waits: whether tasks wait for CPUs, see `Kernel`.
            has_pressure: whether there are samples and files of pressure.
        """
        there = [Cpu(n, n // 2, 0, 0) for n in range(cpus)] if isinstance(cpus, int) else list(cpus)
        self.kernel = Kernel(
            (cpu.id for cpu in there),
            memory_bytes,
            version,
            folder,
            waits=waits,
            has_pressure=has_pressure,
        )
        self.facts = Node(
            cpus=tuple(there),
            capacity={"cpu": len(there) * 1_000, "memory": memory_bytes},
            cgroup_version=version,
            features=frozenset({"burst", "idle"} if waits else {"burst"}),
            qos_cgroups={qos: "/" + "/".join(path) for qos, path in CLASS_PATHS.items()},
            memory_bytes={0: memory_bytes},
        )
        self.strategies = Strategies()
        self.policies: dict[Key, tuple[algebra.Claim, ...]] = {}
        self.sampler: NodeSampler | None = None
        self.evictions: list[SimulatedEviction] = []
        self.writes: list[Write] = []
        self.times_s: list[float] = []
        self.series: dict[str, list[float]] = {}
        self._watched: dict[str, Callable[[], float]] = {}
        self._dry_run = frozenset(dry_run)
        self._gates = {**FEATURE_GATES, **(gates or {})}
        own = options or {}
        self._runs = [_PluginRun(each, self._gates, own.get(each.name)) for each in plugins]
        self._needs = frozenset(need for run in self._runs for need in run.plugin.needs)
        longest_s = max((need.longest_s for need in self._needs), default=10.0)
        self._samples = _Samples(self.kernel, longest_s, has_pressure=waits and has_pressure)
        self._values: dict[str, Value] = {QUOTA: UNLIMITED, PERIOD: CPU_PERIOD_US, BURST: 0}
        if waits:
            self._values[IDLE] = 0
        self._pods: dict[str, Pod] = {}
        self._paths: dict[manager.Target, CgroupPath] = {}
        self._base: dict[Key, Value] = {}
        self._resolved: Mapping[Key, tuple[algebra.Claim, ...]] | None = None
        self._made = 0
        for qos, path in CLASS_PATHS.items():
            self._make(path, None, {})
            self._paths[manager.Target(Level.QOS_CLASS, qos.value)] = path
        self.kernel.write(CLASS_PATHS[KubeQoSClass.BEST_EFFORT], SHARES, BE_SHARES)

    @property
    def now_s(self) -> float:
        """Simulated time."""
        return self.kernel.now_s

    @property
    def pods(self) -> tuple[Pod, ...]:
        """The pods that run, as plugins see them."""
        return tuple(self._pods.values())

    def add_pod(self, pod: SimulatedPod) -> None:
        """Starts a pod with all its containers; its name is its uid, too."""
        kube_qos = pod.kube_qos or _KUBE_QOS.get(pod.qos, KubeQoSClass.BURSTABLE)
        path = (*CLASS_PATHS[kube_qos], f"pod{pod.name}")
        limits = [
            each.limits.get("cpu", each.limits.get("kubernetes.io/batch-cpu", 0)) for each in pod.containers
        ]
        self._make(path, None, {QUOTA: _quota(sum(limits)) if all(limits) else UNLIMITED})
        containers = [self._add_container(each, path, pod) for each in pod.containers]
        self.kernel.write(
            path, SHARES, sum(int(self.kernel.value(each, SHARES)) for _, each in containers) or 2
        )
        self._paths[manager.Target(Level.POD, pod.name)] = path
        self._pods[pod.name] = Pod(
            sandbox_id=f"sandbox-{pod.name}",
            uid=pod.name,
            namespace="default",
            name=pod.name,
            qos=pod.qos,
            kube_qos=kube_qos,
            priority_class=priority_class_with_default({QOS_CLASS_LABEL: pod.qos}, pod.priority, kube_qos),
            priority=pod.priority,
            cgroup="/" + "/".join(path),
            containers=tuple(container for container, _ in containers),
            cpus=pod.cpus,
            cpu_burst=pod.cpu_burst,
            eviction=pod.eviction,
            created_s=self.now_s,
            katalyst=pod.katalyst,
            cpu_guard=pod.cpu_guard,
        )
        self._weigh_burstable()
        self._resolved = None

    def remove_pod(self, name: str) -> None:
        """Ends a pod."""
        pod = self._pods.pop(name)
        path = self._paths.pop(manager.Target(Level.POD, name))
        for container in pod.containers:
            del self._paths[manager.Target(Level.CONTAINER, container.id)]
        self.kernel.remove(path)
        self._base = {key: value for key, value in self._base.items() if key.path[: len(path)] != path}
        self._weigh_burstable()
        self._resolved = None

    def set_cpu_burst(self, strategy: PodCpuBurst) -> None:
        """Gives all pods another strategy, as a change of the node's does."""
        self._pods = {uid: replace(pod, cpu_burst=strategy) for uid, pod in self._pods.items()}

    def add_host_application(self, application: HostApplication, workload: Workload) -> None:
        """Starts a program of the host in a cgroup of its own, and adds it to the strategies."""
        path = tuple(part for part in application.cgroup.split("/") if part)
        self._make(path, workload, {})
        there = (*self.strategies.host_applications, application)
        self.strategies = replace(self.strategies, host_applications=there)

    def watch(self, name: str, amount: Callable[[], float]) -> None:
        """Adds a series: its number is asked for at the end of each step."""
        self._watched[name] = amount
        self.series[name] = []

    def advance(self, seconds: float, step_s: float = 1.0) -> None:
        """Lets time pass."""
        for _ in range(round(seconds / step_s)):
            self.kernel.advance(step_s)
            if self.sampler is None:
                self._samples.take(step_s)
            else:
                self.sampler.follow_threads([each for run in self._runs for each in run.threads_of])
                self.sampler.read(self.targets(), self._needs)
            self._decide()
            self.times_s.append(self.now_s)
            for name, amount in self._watched.items():
                self.series[name].append(amount())

    def targets(self) -> dict[str, Level]:
        """The cgroups of which there are samples."""
        return {"/" + "/".join(path): target.level for target, path in self._paths.items()}

    def snapshot(self) -> Snapshot:
        """What plugins decide by."""
        return Snapshot(
            now_s=self.now_s,
            wall_s=self.now_s,
            pods=self.pods,
            node=self.facts,
            strategies=self.strategies,
            metrics=self._samples if self.sampler is None else self.sampler,
            be_limit_cores=manager.be_limit_cores(
                claim
                for run in self._runs
                if run.plugin.name not in (*self._dry_run, manager.GUARD)
                for claim in run.claims
            ),
            is_guarded=any(run.is_guarding for run in self._runs if run.plugin.name not in self._dry_run),
        )

    def cgroup(self, pod: str = "", container: int | None = None) -> Cgroup:
        """The cgroup of a pod or of one of its containers; without a name that of the class BestEffort."""
        if not pod:
            return self.kernel.cgroups[CLASS_PATHS[KubeQoSClass.BEST_EFFORT]]
        if container is None:
            return self.kernel.cgroups[self._paths[manager.Target(Level.POD, pod)]]
        found = self._pods[pod].containers[container]
        return self.kernel.cgroups[self._paths[manager.Target(Level.CONTAINER, found.id)]]

    def value(self, name: str, pod: str = "", container: int | None = None) -> Value:
        """The value in a file of such a cgroup."""
        return self.kernel.value(self.cgroup(pod, container).path, name)

    def used_cores(self, pod: str = "") -> float:
        """What a pod, or the class BestEffort, got in the last step; 0 for a pod that has ended."""
        return self.cgroup(pod).used_cores if not pod or pod in self._pods else 0.0

    def response_ms(self, part: float, pod: str, container: int = 0) -> float:
        """With waits: within which time this part of a container's requests was answered in the last step."""
        return self.cgroup(pod, container).response_s(part) * 1_000

    def memory_bytes(self) -> float:
        """What all pods use, without page cache."""
        return sum(each.memory_bytes for path, each in self.kernel.cgroups.items() if len(path) == 1)

    def explanation(self, plugin: str) -> str:
        """What a plugin says of its last decision."""
        return next(run.explanation for run in self._runs if run.plugin.name == plugin)

    def claims(self, plugin: str) -> Sequence[manager.Claim]:
        """What a plugin wants since its last decision."""
        return next(run.claims for run in self._runs if run.plugin.name == plugin)

    def _add_container(
        self, container: SimulatedContainer, pod_path: CgroupPath, pod: SimulatedPod
    ) -> tuple[Container, CgroupPath]:
        self._made += 1
        container_id = f"c{self._made}"
        path = (*pod_path, container_id)
        limit = container.limits.get("cpu", container.limits.get("kubernetes.io/batch-cpu", 0))
        quota = _quota(limit) if limit else UNLIMITED
        own: dict[str, Value] = (
            {QUOTA: quota, CPUS: format_cpu_list(pod.cpus)} if pod.cpus else {QUOTA: quota}
        )
        self._make(path, container.workload, own)
        request = container.requests.get("cpu", container.requests.get("kubernetes.io/batch-cpu", 0))
        self.kernel.write(path, SHARES, cpu_shares_from_millicores(request))
        memory = container.limits.get("memory", container.limits.get("kubernetes.io/batch-memory"))
        if memory is not None:
            self.kernel.write(path, MEMORY_LIMIT, memory)
        self._paths[manager.Target(Level.CONTAINER, container_id)] = path
        made = Container(
            id=container_id,
            name=container.name,
            cgroup="/" + "/".join(path),
            requests=container.requests,
            limits=container.limits,
            cpu_quota_us=quota,
        )
        return made, path

    def _make(self, path: CgroupPath, workload: Workload | None, own: Mapping[str, Value]) -> None:
        self.kernel.make(path, workload)
        # A list of version 1 is never empty in a cgroup with tasks.
        cpus = format_cpu_list(self.kernel.cpus) if self.kernel.version == 1 else ""
        for name, value in {**self._values, CPUS: cpus, **own}.items():
            self._base[Key(path, name)] = value
            if value != "":
                self.kernel.write(path, name, value)

    def _weigh_burstable(self) -> None:
        """The class Burstable has the weight of its pods' requests, as the kubelet sets it."""
        shares = sum(
            int(self.kernel.value(self.cgroup(pod.name).path, SHARES))
            for pod in self.pods
            if pod.kube_qos is KubeQoSClass.BURSTABLE
        )
        self.kernel.write(CLASS_PATHS[KubeQoSClass.BURSTABLE], SHARES, max(shares, 2))

    def _decide(self) -> None:
        self._scale_quotas()
        snapshot = self.snapshot()
        for run in self._runs:
            for eviction in run.decide(snapshot):
                self._evict(run.plugin.name, eviction)
        claims = {key: tuple(each) for key, each in self._claims_by_key().items()}
        if claims != self._resolved:
            self._apply(claims)
            self._resolved = claims

    def _scale_quotas(self) -> None:
        """What policies make of the quotas: the value that burst is added to."""
        for uid, pod in self._pods.items():
            containers = []
            for each in pod.containers:
                key = Key(self._paths[manager.Target(Level.CONTAINER, each.id)], QUOTA)
                scaled = algebra.resolve(QUOTA, self._base[key], self.policies.get(key, ())).value
                assert isinstance(scaled, int), key  # noqa: S101 - a quota has a neutral value
                containers.append(replace(each, cpu_quota_us=scaled))
            if pod.containers != tuple(containers):
                self._pods[uid] = replace(pod, containers=tuple(containers))

    def _claims_by_key(self) -> dict[Key, list[algebra.Claim]]:
        claims: dict[Key, list[algebra.Claim]] = {key: list(each) for key, each in self.policies.items()}
        for run in self._runs:
            if run.plugin.name in self._dry_run:
                continue
            for each in run.claims:
                path = self._paths.get(each.target)
                if path is not None:
                    role = algebra.Role(each.role.value)
                    claim = algebra.Claim(Claimant(run.plugin.name), role, each.value, ceiling=each.ceiling)
                    claims.setdefault(Key(path, each.field), []).append(claim)
                    if each.role is manager.Role.ADD:
                        # A pod gets the sum of its containers' amounts.
                        claims.setdefault(Key(path[:-1], each.field), []).append(claim._replace(ceiling=None))
        return claims

    def _apply(self, claims: Mapping[Key, tuple[algebra.Claim, ...]]) -> None:
        values: dict[Key, TreeValue] = {}
        for key, base in self._base.items():
            resolved = algebra.resolve(key.name, base, claims.get(key, ()))
            assert isinstance(resolved.value, int | str), key  # noqa: S101 - all have a neutral value
            values[key] = TreeValue(resolved.value, key in claims, resolved.is_bounded)
        fitted = fit(values, TreeRules(cgroup_version=self.kernel.version)).values
        current: dict[Key, Value | None] = {key: self.kernel.value(*key) for key in fitted}
        depth = max(len(key.path) for key in fitted)
        levels = [
            {key: value for key, value in fitted.items() if len(key.path) == level and value != current[key]}
            for level in range(1, depth + 1)
        ]
        for step in write_steps(levels, current):
            self.kernel.write(step.key.path, step.key.name, step.value)
            if step.is_final:
                self.writes.append(
                    Write(self.now_s, "/" + "/".join(step.key.path), step.key.name, step.value)
                )

    def _evict(self, plugin: str, eviction: manager.Eviction) -> None:
        is_done = plugin not in self._dry_run and eviction.pod_uid in self._pods
        self.evictions.append(
            SimulatedEviction(self.now_s, eviction.pod_uid, plugin, eviction.reason, is_done)
        )
        if is_done:
            self.remove_pod(eviction.pod_uid)


def _quota(millicores: int) -> int:
    return cpu_quota_us_from_millicores(millicores)


class _PluginRun:
    """A plugin with its state, as the framework runs it."""

    def __init__(
        self,
        plugin: manager.AnyPlugin,
        gates: Mapping[str, bool],
        options: Any,  # noqa: ANN401 - of the plugin's own type
    ) -> None:
        self.plugin = plugin
        self._is_on = not plugin.gates or any(gates.get(gate, False) for gate in plugin.gates)
        if options is None and plugin.options_type is not None:
            options = plugin.options_type()
        self._context = manager.PluginContext(gates=gates, options=options)
        self._state: Any = None
        self._has_state = False
        self._strategies = Strategies()
        self.claims: Sequence[manager.Claim] = ()
        self.threads_of: Sequence[str] = ()
        self.is_guarding = False
        self.explanation = ""

    def decide(self, snapshot: Snapshot) -> Sequence[manager.Eviction]:
        if not self._is_on:
            return ()
        if not self.plugin.is_enabled(snapshot):
            self._has_state, self.claims, self.threads_of, self.is_guarding = False, (), (), False
            return ()
        if not self._has_state:
            self._state, self._has_state = self.plugin.setup(self._context), True
        elif snapshot.strategies != self._strategies:
            changes = frozenset({manager.Change.STRATEGIES})
            self._state = self.plugin.on_changed(changes, snapshot, self._state)
        self._strategies = snapshot.strategies
        decision = self.plugin.run(snapshot, self._state)
        self._state, self.claims = decision.state, decision.claims
        self.threads_of, self.is_guarding = decision.threads_of, decision.is_guarding
        self.explanation = decision.explanation
        return decision.evictions


class _Samples(Metrics):
    """Samples of all cgroups, one per step."""

    def __init__(self, kernel: Kernel, longest_s: float, *, has_pressure: bool) -> None:
        self._kernel = kernel
        self._has_pressure = has_pressure
        self._pressures: dict[str, tuple[float, ...]] = {}
        self._delays: dict[str, tuple[float, float]] = {}
        self._longest_s = longest_s
        self._counters: dict[str, tuple[float, float, float]] = {}
        self._found: dict[tuple[str, Metric], deque[tuple[float, float]]] = {}

    def take(self, seconds: float) -> None:
        memory = cache = 0.0
        counters: dict[str, tuple[float, float, float]] = {}
        for path, cgroup in self._kernel.cgroups.items():
            counters[cgroup.name] = now = cgroup.usage_us, cgroup.periods, cgroup.throttled_periods
            before = self._counters.get(cgroup.name, (0.0, 0.0, 0.0))
            self._add(cgroup.name, Metric.CPU_USAGE, (now[0] - before[0]) / (seconds * 1_000_000))
            if now[1] > before[1]:
                self._add(cgroup.name, Metric.CPU_THROTTLED, (now[2] - before[2]) / (now[1] - before[1]))
            self._add(cgroup.name, Metric.MEMORY_USAGE, cgroup.memory_bytes)
            self._add(cgroup.name, Metric.MEMORY_WITH_CACHE, cgroup.memory_bytes + cgroup.cache_bytes)
            if len(path) == 1:
                memory += cgroup.memory_bytes
                cache += cgroup.cache_bytes
        self._counters = counters
        if self._has_pressure:
            self._take_pressure(seconds)
        elif self._kernel.has_waits:
            self._take_run_delay()
        self._add(NODE_CGROUP, Metric.CPU_USAGE, self._kernel.used_cores)
        self._add(NODE_CGROUP, Metric.CPU_LOAD, self._kernel.load)
        self._add(NODE_CGROUP, Metric.MEMORY_USAGE, memory)
        self._add(NODE_CGROUP, Metric.MEMORY_WITH_CACHE, memory + cache)

    def _take_pressure(self, seconds: float) -> None:
        found = {each.name: tuple(each.pressure.totals_us) for each in self._kernel.cgroups.values()}
        found[NODE_CGROUP] = tuple(self._kernel.pressure.totals_us)
        for cgroup, totals_us in found.items():
            before = self._pressures.get(cgroup, (0.0, 0.0))
            shares = ((now - then) / (seconds * 1e6) for now, then in zip(totals_us, before, strict=True))
            for metric, share in zip((Metric.CPU_PRESSURE, Metric.CPU_PRESSURE_FULL), shares, strict=True):
                if (cgroup, metric) != (NODE_CGROUP, Metric.CPU_PRESSURE_FULL):
                    self._add(cgroup, metric, share)
        self._pressures = found

    def _take_run_delay(self) -> None:
        found: dict[CgroupPath, list[float]] = {}
        for path, cgroup in self._kernel.cgroups.items():
            if cgroup.workload is not None:
                for depth in range(1, len(path) + 1):
                    total = found.setdefault(path[:depth], [0.0, 0.0])
                    total[0] += cgroup.usage_us
                    total[1] += cgroup.delay_us
        delays: dict[str, tuple[float, float]] = {}
        for path, total in found.items():
            name = self._kernel.cgroups[path].name
            delays[name] = total[0], total[1]
            before = self._delays.get(name, (0.0, 0.0))
            ran_us, waited_us = total[0] - before[0], total[1] - before[1]
            if ran_us + waited_us > 0:
                self._add(name, Metric.CPU_RUN_DELAY, waited_us / (ran_us + waited_us))
        self._delays = delays

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        now_s = self._kernel.now_s
        values = [value for at_s, value in self._found.get((cgroup, metric), ()) if at_s > now_s - length_s]
        if not values:
            return None
        ranked = sorted(values)
        p50, p90, p95, p99 = (
            ranked[min(int(len(ranked) * part), len(ranked) - 1)] for part in (0.5, 0.9, 0.95, 0.99)
        )
        return Window(values[-1], sum(values) / len(values), p50, p90, p95, p99, len(values))

    def timed(self, cgroup: str, metric: Metric, length_s: float) -> Sequence[tuple[float, float]]:
        found = self._found.get((cgroup, metric), ())
        return [each for each in found if each[0] > self._kernel.now_s - length_s]

    def _add(self, cgroup: str, metric: Metric, value: float) -> None:
        found = self._found.setdefault((cgroup, metric), deque())
        found.append((self._kernel.now_s, value))
        while found[0][0] <= self._kernel.now_s - self._longest_s:
            found.popleft()


def changes_of_direction(values: Iterable[float]) -> int:
    """How often a series turns from rising to falling, or back: a measure of oscillation."""
    turns, direction = 0, 0
    for before, after in pairwise(values):
        now = (after > before) - (after < before)
        if now and direction and now != direction:
            turns += 1
        direction = now or direction
    return turns
