"""Profiling: expected peaks, what batch and mid pods may be given, and pods that suffer from neighbours.

Claims nothing. The arithmetic is in `runtimeproxy.qosmanager.profiling`; here samples become its input, and
its results a file and metrics. Unlike other plugins it writes files in `run`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from runtimeproxy.documents.files import replace_file
from runtimeproxy.qos import DEFAULT_PRIORITY_CLASSES, PriorityClass
from runtimeproxy.qosmanager.listening import MetricsListener, place_problems
from runtimeproxy.qosmanager.plugin import Decision, Mode, Need, Plugin, PluginContext
from runtimeproxy.qosmanager.profiling.interference import Interference, PodHistory, Signal, judged
from runtimeproxy.qosmanager.profiling.node_metric import (
    AggregatedUsage,
    ApplicationProfile,
    PodProfile,
    Profile,
    ProfileCollector,
    node_metric,
)
from runtimeproxy.qosmanager.profiling.prediction import Models, pod_key, with_margin
from runtimeproxy.qosmanager.profiling.reclaimable import (
    NOTHING,
    NodeUse,
    PodUse,
    ResourceAmounts,
    batch_resources,
    is_degraded,
    is_to_publish,
    mid_resources,
    published_batch,
    summed,
    third_party_batch,
)
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Snapshot
from runtimeproxy.slo.schema import MemoryCollectPolicy
from runtimeproxy.state.state_file import StateFile

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

TRAINING_S: Final = 60.0
"""Models learn once a minute, the mean of that minute. Source: Koordinator pkg/koordlet/prediction."""
SAVING_S: Final = 600.0
"""Models are saved this often: a crash costs as many samples."""
AGGREGATIONS_S: Final = (300.0, 600.0, 1_800.0)
"""Source: Koordinator pkg/util/sloconfig/colocation_config.go, metricAggregatePolicy."""
_MODELS_FILE: Final = "prediction.json"
_NODE_METRIC_FILE: Final = "node-metric.json"
_NODE_METRIC_PATH: Final = "/node-metric"
_SIGNALS: Final[Mapping[Signal, Metric]] = {
    Signal.CPU_USAGE: Metric.CPU_USAGE,
    Signal.CYCLES_PER_INSTRUCTION: Metric.CYCLES_PER_INSTRUCTION,
    Signal.CPU_PRESSURE: Metric.CPU_PRESSURE,
    Signal.MEMORY_PRESSURE: Metric.MEMORY_PRESSURE,
    Signal.IO_PRESSURE: Metric.IO_PRESSURE,
    Signal.CPU_THROTTLED: Metric.CPU_THROTTLED,
}
_MILLI: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilingOptions:
    """`[plugins.profiling.options]`."""

    folder: str = ""
    """Where the models are saved (`prediction.json`) and the last NodeMetric is written (`node-metric.json`);
    empty: nowhere, and the models begin anew with the process."""
    metrics_listen: str = ""
    """Address such as `127.0.0.1:9446` on which metrics are served for Prometheus, and the last NodeMetric at
    `/node-metric` as JSON; empty: none."""
    node_name: str = ""
    """Name of the NodeMetric; empty: the node's label kubernetes.io/hostname, or the host's name."""


@dataclass(slots=True)
class ProfilingState:
    """Models and histories, and the last results."""

    models: Models
    histories: dict[str, PodHistory] = field(default_factory=dict)
    """By pod uid."""
    saved_s: float | None = None
    """Monotonic, when the models were saved; None: not yet."""
    problem: str = ""
    """Why models were not restored."""
    profile: Profile | None = None
    published: tuple[ResourceAmounts, ResourceAmounts] | None = None
    """Batch and mid resources as they were given out last; they change in steps."""
    published_s: float = 0.0
    """Monotonic."""
    third_party: ResourceAmounts = NOTHING
    """Batch resources that other schedulers have given away, as they could be read last."""


class Profiling(Plugin[ProfilingState]):
    """Computes what the node has to give, and reports."""

    name: ClassVar[str] = "profiling"
    default_mode: ClassVar[Mode] = Mode.OFF
    has_claims: ClassVar[bool] = False
    needs: ClassVar[frozenset[Need]] = frozenset(
        {
            Need(Level.NODE, Metric.CPU_USAGE, AGGREGATIONS_S[-1]),
            Need(Level.NODE, Metric.MEMORY_USAGE, AGGREGATIONS_S[-1]),
            Need(Level.NODE, Metric.MEMORY_WITH_CACHE, AGGREGATIONS_S[0]),
            *(
                Need(level, metric, AGGREGATIONS_S[0])
                for level in (Level.POD, Level.HOST_APPLICATION)
                for metric in (Metric.CPU_USAGE, Metric.MEMORY_USAGE, Metric.MEMORY_WITH_CACHE)
            ),
            *(Need(Level.POD, metric, TRAINING_S) for metric in _SIGNALS.values()),
        }
    )
    interval_s: ClassVar[float] = TRAINING_S
    options_type: ClassVar[type[ProfilingOptions]] = ProfilingOptions

    def __init__(self) -> None:
        self._options = ProfilingOptions()
        self.collector = ProfileCollector()
        self.metrics = MetricsListener(
            self.collector, lambda metrics: partial(_answer, self.collector, metrics)
        )

    def option_problems(self, options: ProfilingOptions) -> Sequence[tuple[str, str]]:
        return place_problems(options.folder, options.metrics_listen)

    def setup(self, context: PluginContext) -> ProfilingState:
        self._options = context.options or ProfilingOptions()
        self.metrics.listen(self._options.metrics_listen)
        if not self._options.folder:
            return ProfilingState(Models())
        file = _models_file(self._options.folder)
        models = file.load(lambda saved: Models.restored(saved, time.time()))
        return ProfilingState(models or Models(), problem=file.unusable)

    def is_enabled(self, snapshot: Snapshot) -> bool:
        # The mode says whether it is wanted.
        return True

    def run(self, snapshot: Snapshot, state: ProfilingState) -> Decision[ProfilingState]:
        now = node_use(snapshot, TRAINING_S)
        usual = node_use(snapshot, float(snapshot.strategies.colocation.metric_aggregate_duration_seconds))
        if now is None or usual is None:
            return Decision(state, explanation=self._take_back(snapshot, state))
        # In place: a copy of all models each minute would cost more than their training.
        state.models.train(now, snapshot.wall_s)
        problems = [state.problem] if state.problem else []
        try:
            state.third_party = third_party_batch(snapshot.node.annotations)
        except ValueError as error:
            problems.append(str(error))
        profile = self._profile(snapshot, state, now, usual)
        state.profile = self.collector.profile = profile
        problems += self._write(snapshot, state, profile)
        suffering = sum(pod.interference is not None for pod in profile.pods)
        explanation = (
            f"batch {_shown(profile.batch)}, mid {_shown(profile.mid)}, prod reclaimable "
            f"{_shown(profile.prod_reclaimable)}; {suffering} of {len(profile.pods)} pods suffer"
        )
        return Decision(state, explanation="; ".join([explanation, *problems]))

    def _take_back(self, snapshot: Snapshot, state: ProfilingState) -> str:
        """Takes batch and mid resources back after long without samples; returns the reason."""
        last = state.profile
        missing = "usage or size of the node is not known"
        if last is None or not is_degraded(snapshot.wall_s - last.wall_s, snapshot.strategies.colocation):
            return missing
        profile = replace(last, batch=NOTHING, mid=NOTHING)
        state.profile = self.collector.profile = profile
        state.published = None
        problems = self._write(snapshot, state, profile)
        return "; ".join([f"{missing}: batch and mid resources are taken back", *problems])

    def _profile(self, snapshot: Snapshot, state: ProfilingState, now: NodeUse, usual: NodeUse) -> Profile:
        strategy = snapshot.strategies.colocation
        ages_s = {
            pod.uid: snapshot.wall_s - pod.created_s for pod in snapshot.pods if pod.created_s is not None
        }
        reclaimable = state.models.prod_reclaimable(now, ages_s)
        found = _judge(snapshot, state)
        usages = {pod.uid: pod.usage for pod in now.pods}
        batch, mid = _published(
            snapshot,
            state,
            published_batch(
                batch_resources(usual, strategy), snapshot.node.normalization_ratio, state.third_party
            ),
            mid_resources(usual, reclaimable, strategy),
        )
        return Profile(
            wall_s=snapshot.wall_s,
            node_name=self._node_name(snapshot),
            usage=usual.usage,
            system_usage=usual.system_usage,
            aggregated=_aggregated(snapshot),
            pods=tuple(
                PodProfile(
                    pod=pod,
                    usage=usages[pod.uid],
                    peak=with_margin(state.models.percentiles(pod_key(pod.uid))),
                    interference=found.get(pod.uid),
                )
                for pod in snapshot.pods
            ),
            applications=_applications(snapshot, TRAINING_S),
            prod_reclaimable=reclaimable,
            batch=batch,
            mid=mid,
        )

    def _node_name(self, snapshot: Snapshot) -> str:
        label = snapshot.node.labels.get("kubernetes.io/hostname", "")
        return self._options.node_name or label or os.uname().nodename

    def _write(self, snapshot: Snapshot, state: ProfilingState, profile: Profile) -> list[str]:
        """Writes the files that are due; returns problems."""
        if not self._options.folder:
            return []
        folder = Path(self._options.folder)
        is_saving = state.saved_s is None or snapshot.now_s - state.saved_s >= SAVING_S
        if not folder.is_dir():
            return [f"{folder} cannot be written: there is no such folder"]
        try:
            text = json.dumps(node_metric(profile), indent=1) + "\n"
            replace_file(folder / _NODE_METRIC_FILE, text.encode(), mode=0o644)
            if is_saving:
                _models_file(self._options.folder).save(state.models.saved())
                state.saved_s = snapshot.now_s
        except OSError as error:
            return [f"{folder} cannot be written: {error.strerror}"]
        return []


def node_use(snapshot: Snapshot, length_s: float) -> NodeUse | None:
    """The node and its pods with their mean usage; None if size or usage of the node are not known."""
    usage, capacity = _usage(snapshot, NODE_CGROUP, length_s), _amounts(snapshot.node.capacity)
    if usage is None or not all(capacity):
        return None
    applications = _applications(snapshot, length_s)
    return NodeUse(
        capacity=capacity,
        allocatable=_amounts(snapshot.node.allocatable) if snapshot.node.allocatable else capacity,
        reserved=_amounts(snapshot.node.reserved),
        usage=usage,
        pods=tuple(
            PodUse(
                uid=pod.uid,
                priority_class=pod.priority_class,
                qos=pod.qos,
                request=summed(_amounts(container.requests) for container in pod.containers),
                usage=_usage(snapshot, pod.cgroup, length_s) if pod.cgroup else None,
            )
            for pod in snapshot.pods
        ),
        applications=summed(each.usage for each in applications),
        high_priority_applications=summed(
            each.usage
            for each in applications
            if each.priority_class not in (PriorityClass.BATCH, PriorityClass.FREE)
        ),
    )


def _published(
    snapshot: Snapshot, state: ProfilingState, batch: ResourceAmounts, mid: ResourceAmounts
) -> tuple[ResourceAmounts, ResourceAmounts]:
    """Batch and mid resources as they are given out: those of before as long as they differ little."""
    strategy = snapshot.strategies.colocation
    age_s = snapshot.now_s - state.published_s
    before = state.published
    if before is not None and not any(
        is_to_publish(old, age_s, new, strategy) for old, new in zip(before, (batch, mid), strict=True)
    ):
        return before
    state.published, state.published_s = (batch, mid), snapshot.now_s
    return batch, mid


def _amounts(resources: Mapping[str, int]) -> ResourceAmounts:
    return ResourceAmounts(float(resources.get("cpu", 0)), float(resources.get("memory", 0)))


def _usage(snapshot: Snapshot, cgroup: str, length_s: float) -> ResourceAmounts | None:
    with_cache = (
        snapshot.strategies.colocation.metric_memory_collect_policy is MemoryCollectPolicy.WITH_PAGE_CACHE
    )
    memory_metric = Metric.MEMORY_WITH_CACHE if with_cache else Metric.MEMORY_USAGE
    cpu = snapshot.metrics.window(cgroup, Metric.CPU_USAGE, length_s)
    memory = snapshot.metrics.window(cgroup, memory_metric, length_s)
    return None if cpu is None or memory is None else ResourceAmounts(cpu.avg * _MILLI, memory.avg)


def _applications(snapshot: Snapshot, length_s: float) -> tuple[ApplicationProfile, ...]:
    return tuple(
        ApplicationProfile(
            name=each.name,
            priority_class=each.priority_class or DEFAULT_PRIORITY_CLASSES[each.qos],
            qos=each.qos,
            usage=usage,
        )
        for each in snapshot.strategies.host_applications
        if each.cgroup and (usage := _usage(snapshot, each.cgroup, length_s)) is not None
    )


def _judge(snapshot: Snapshot, state: ProfilingState) -> dict[str, Interference]:
    """Judges all pods by their histories, and forgets the pods that went."""
    histories: dict[str, PodHistory] = {}
    found: dict[str, Interference] = {}
    for pod in snapshot.pods:
        windows = {
            signal: snapshot.metrics.window(pod.cgroup, metric, TRAINING_S)
            for signal, metric in _SIGNALS.items()
            if pod.cgroup
        }
        values = {signal: window.avg for signal, window in windows.items() if window is not None}
        histories[pod.uid], interference = judged(state.histories.get(pod.uid, PodHistory()), values)
        if interference is not None:
            found[pod.uid] = interference
    state.histories = histories
    return found


def _aggregated(snapshot: Snapshot) -> tuple[AggregatedUsage, ...]:
    """Usage of the node over the times with enough samples."""
    found: list[AggregatedUsage] = []
    for duration_s in AGGREGATIONS_S:
        cpu = snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, duration_s)
        memory = snapshot.metrics.window(NODE_CGROUP, Metric.MEMORY_USAGE, duration_s)
        if cpu is not None and memory is not None and min(cpu.count, memory.count) >= duration_s / 2:
            by_kind = {
                kind: ResourceAmounts(getattr(cpu, kind) * _MILLI, getattr(memory, kind))
                for kind in ("avg", "p50", "p90", "p95", "p99")
            }
            found.append(AggregatedUsage(duration_s=duration_s, by_kind=by_kind))
    return tuple(found)


def _shown(amounts: ResourceAmounts) -> str:
    return f"{amounts.cpu_millicores / _MILLI:.2f} CPUs and {amounts.memory_bytes / (1 << 20):.0f} MiB"


def _models_file(folder: str) -> StateFile:
    return StateFile(Path(folder) / _MODELS_FILE, "predictions begin anew")


def _answer(
    collector: ProfileCollector, metrics: WSGIApplication, environ: WSGIEnvironment, start: StartResponse
) -> Iterable[bytes]:
    """A WSGI application: the last NodeMetric at `/node-metric`, metrics at all other paths."""
    if environ["PATH_INFO"] != _NODE_METRIC_PATH:
        return metrics(environ, start)
    if environ["REQUEST_METHOD"] != "GET":
        start("405 Method Not Allowed", [("Allow", "GET")])
        return []
    if collector.profile is None:
        start("503 Service Unavailable", [("Retry-After", str(int(TRAINING_S)))])
        return []
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(node_metric(collector.profile)).encode()]
