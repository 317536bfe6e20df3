"""The results of profiling: in the shape of Koordinator's NodeMetric, and as Prometheus metrics.

Source of the shape: Koordinator apis/slo/v1alpha1/nodemetric_types.go. It has no place for batch and mid
resources, which koord-manager writes to the node's status: they are an annotation. Interference is an
extension of a pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.qos import PriorityClass, QoSClass
from runtimeproxy.qosmanager.profiling.interference import Interference
from runtimeproxy.qosmanager.profiling.reclaimable import ResourceAmounts
from runtimeproxy.qosmanager.snapshot import Pod

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

RECLAIMABLE_ANNOTATION: Final = "koord-runtime-proxy.io/reclaimable"
"""Batch and mid resources, as JSON with Kubernetes' names of the resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProfile:
    """Usage, expected peak and interference of one pod."""

    pod: Pod
    usage: ResourceAmounts | None
    peak: ResourceAmounts | None
    """Expected, with the safety margin; None: there is no prediction."""
    interference: Interference | None

    @property
    def labels(self) -> tuple[str, str]:
        return self.pod.namespace, self.pod.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatedUsage:
    """Usage of the node over a time."""

    duration_s: float
    by_kind: Mapping[str, ResourceAmounts]
    """By `avg`, `p50`, `p90`, `p95`, `p99`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationProfile:
    """A host application."""

    name: str
    priority_class: PriorityClass
    qos: QoSClass
    usage: ResourceAmounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The results of one run."""

    wall_s: float
    node_name: str
    usage: ResourceAmounts
    system_usage: ResourceAmounts
    aggregated: tuple[AggregatedUsage, ...]
    pods: tuple[PodProfile, ...]
    applications: tuple[ApplicationProfile, ...]
    prod_reclaimable: ResourceAmounts
    batch: ResourceAmounts
    mid: ResourceAmounts


def node_metric(profile: Profile) -> dict[str, Any]:
    info = {
        "nodeUsage": _resources(profile.usage),
        "systemUsage": _resources(profile.system_usage),
        "aggregatedNodeUsages": [
            {
                "duration": _duration(each.duration_s),
                "usage": {kind: _resources(amounts) for kind, amounts in each.by_kind.items()},
            }
            for each in profile.aggregated
        ],
    }
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {
            "name": profile.node_name,
            "annotations": {RECLAIMABLE_ANNOTATION: json.dumps(_reclaimable(profile))},
        },
        "status": {
            "updateTime": datetime.fromtimestamp(profile.wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "nodeMetric": info,
            "podsMetric": [_pod(each, each.usage) for each in profile.pods if each.usage is not None],
            "hostApplicationMetric": [
                {
                    "name": each.name,
                    "usage": _resources(each.usage),
                    "priority": each.priority_class.value,
                    "qos": each.qos.value,
                }
                for each in profile.applications
            ],
            "prodReclaimableMetric": {"resource": _resources(profile.prod_reclaimable)},
        },
    }


def _pod(profile: PodProfile, usage: ResourceAmounts) -> dict[str, Any]:
    extensions: dict[str, Any] = {}
    if profile.peak is not None:
        extensions["peak"] = _resources(profile.peak)
    if profile.interference is not None:
        extensions["interference"] = {
            "confidence": round(profile.interference.confidence, 3),
            "signals": [
                {
                    "signal": each.signal.value,
                    "value": round(each.value, 4),
                    "usual": round(each.usual, 4),
                    "confidence": round(each.confidence, 3),
                }
                for each in profile.interference.raised
            ],
        }
    return {
        "name": profile.pod.name,
        "namespace": profile.pod.namespace,
        "podUsage": _resources(usage),
        "priority": profile.pod.priority_class.value,
        "qos": profile.pod.qos.value,
        **({"extensions": extensions} if extensions else {}),
    }


def _reclaimable(profile: Profile) -> dict[str, str]:
    return {
        "kubernetes.io/batch-cpu": str(int(profile.batch.cpu_millicores)),
        "kubernetes.io/batch-memory": str(int(profile.batch.memory_bytes)),
        "kubernetes.io/mid-cpu": str(int(profile.mid.cpu_millicores)),
        "kubernetes.io/mid-memory": str(int(profile.mid.memory_bytes)),
    }


def _resources(amounts: ResourceAmounts) -> dict[str, Any]:
    cpu, memory = f"{int(amounts.cpu_millicores)}m", str(int(amounts.memory_bytes))
    return {"resources": {"cpu": cpu, "memory": memory}}


def _duration(seconds: float) -> str:
    """As Go writes a duration: `5m0s`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"


class ProfileCollector:
    """The last profile as Prometheus metrics; register it with a `CollectorRegistry`."""

    def __init__(self) -> None:
        self.profile: Profile | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        profile = self.profile
        if profile is None:
            return
        node = (
            ("node_usage", "Usage of the node", profile.usage),
            ("system_usage", "Usage of what is neither a pod nor a host application", profile.system_usage),
            (
                "prod_reclaimable",
                "Requested by prod pods and not expected to be used",
                profile.prod_reclaimable,
            ),
            ("batch_allocatable", "What batch pods may request", profile.batch),
            ("mid_allocatable", "What mid pods may request", profile.mid),
        )
        for name, text, amounts in node:
            yield from _families(name, text, (), [((), amounts)])
        labels = ("namespace", "pod")
        peaks = [(each.labels, each.peak) for each in profile.pods if each.peak is not None]
        yield from _families("pod_peak", "Expected peak of the pod, with a safety margin", labels, peaks)
        yield _interference(profile)


def _families(
    name: str, text: str, labels: Sequence[str], found: Sequence[tuple[Sequence[str], ResourceAmounts]]
) -> Iterator[GaugeMetricFamily]:
    from prometheus_client.core import GaugeMetricFamily  # Takes long to import, and is off by default.

    cpu = GaugeMetricFamily(f"koord_qos_manager_{name}_cpu_cores", f"{text}: CPU.", labels=labels)
    memory = GaugeMetricFamily(f"koord_qos_manager_{name}_memory_bytes", f"{text}: memory.", labels=labels)
    for values, amounts in found:
        cpu.add_metric(values, amounts.cpu_millicores / 1_000)
        memory.add_metric(values, amounts.memory_bytes)
    yield cpu
    yield memory


def _interference(profile: Profile) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily

    text = "Confidence, 0 to 1, that the pod suffers from its neighbours; only of signals that are raised."
    family = GaugeMetricFamily(
        "koord_qos_manager_pod_interference_confidence", text, labels=("namespace", "pod", "signal")
    )
    for each in profile.pods:
        for raised in each.interference.raised if each.interference is not None else ():
            family.add_metric((*each.labels, raised.signal.value), raised.confidence)
    return family
