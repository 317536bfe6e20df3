"""Expected peaks from the past: of each pod, of each priority class, and of the rest of the system.

Source: Koordinator pkg/koordlet/prediction, predict_server.go and peak_predictor.go. The models are the
state; saved as one JSON text, they outlive the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtimeproxy.qos import PriorityClass
from runtimeproxy.qosmanager.profiling.histogram import CPU_BUCKETS, MEMORY_BUCKETS, UsageHistogram
from runtimeproxy.qosmanager.profiling.reclaimable import NOTHING, NodeUse, ResourceAmounts, is_prod, summed

CPU_SHARE: Final = 0.95
MEMORY_SHARE: Final = 0.98
"""Percentiles that are taken for peaks."""
SAFETY_MARGIN: Final = 1.1
"""A peak is expected to be this much higher."""
COLD_START_S: Final = 24 * 3_600.0
"""Nothing is reclaimable of a younger pod."""
EXPIRY_S: Final = 24 * 3_600.0
"""A model without samples for so long is dropped, as its pod has gone."""
_MILLI: Final = 1_000
_FORMAT: Final = 1

SYSTEM: Final = "system"
ALL_PODS: Final = "pods"
NODE: Final = "node"


def pod_key(uid: str) -> str:
    return f"pod/{uid}"


def class_key(priority_class: PriorityClass) -> str:
    return f"class/{priority_class.value}"


class Model:
    """The usage of one pod, class or the system over time."""

    __slots__ = ("cpu", "memory", "updated_s")

    def __init__(self) -> None:
        self.cpu = UsageHistogram(CPU_BUCKETS)
        self.memory = UsageHistogram(MEMORY_BUCKETS)
        self.updated_s = 0.0
        """Wall clock."""

    def add(self, usage: ResourceAmounts, wall_s: float) -> None:
        self.cpu.add(usage.cpu_millicores / _MILLI, wall_s)
        self.memory.add(usage.memory_bytes, wall_s)
        self.updated_s = wall_s

    def follow_clock(self, wall_s: float) -> None:
        # If the clock was set back, the last sample is of now: else those of a time to come never fade.
        if (back_s := wall_s - self.updated_s) < 0:
            self.cpu.shift(back_s)
            self.memory.shift(back_s)
            self.updated_s = wall_s

    @property
    def percentiles(self) -> ResourceAmounts | None:
        """Seldom exceeded; without safety margin. None without samples."""
        cores, memory_bytes = self.cpu.percentile(CPU_SHARE), self.memory.percentile(MEMORY_SHARE)
        if cores is None or memory_bytes is None:
            return None
        return ResourceAmounts(cores * _MILLI, memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPod:
    """A prod pod, as far as its prediction needs it; None: not known."""

    request: ResourceAmounts
    peak: ResourceAmounts | None
    """With the safety margin; None: there is no prediction."""
    age_s: float | None
    is_ending: bool = False

    @property
    def unreclaimable(self) -> ResourceAmounts:
        return self.request if self.peak is None else self.peak

    @property
    def reclaimable(self) -> ResourceAmounts:
        """The unneeded part of its request; nothing of a pod that is young or terminates."""
        if self.peak is None or self.is_ending or self.age_s is None or self.age_s <= COLD_START_S:
            return NOTHING
        return self.request.minus(self.peak).at_least(NOTHING)


def with_margin(peak: ResourceAmounts | None) -> ResourceAmounts | None:
    return None if peak is None else peak.times(SAFETY_MARGIN, SAFETY_MARGIN)


def reclaimable_by_pods(allocatable: ResourceAmounts, pods: Iterable[PredictedPod]) -> ResourceAmounts:
    """Resources that prod pods leave, by the peak of each."""
    known = tuple(pods)
    rest = allocatable.minus(summed(pod.unreclaimable for pod in known))
    return rest.at_most(summed(pod.reclaimable for pod in known)).at_least(NOTHING)


def reclaimable_by_class(
    allocatable: ResourceAmounts, requested: ResourceAmounts, system: ResourceAmounts, prod: ResourceAmounts
) -> ResourceAmounts:
    """Resources that prod pods leave, by the peak of all of them together.

    `system` and `prod` are percentiles, `prod` of all prod pods together; `requested` leaves out pods that
    terminate.
    """
    peak = system.plus(prod).times(SAFETY_MARGIN, SAFETY_MARGIN)
    unneeded = requested.minus(peak).at_least(NOTHING)
    return allocatable.minus(peak).at_most(unneeded).at_least(NOTHING)


class Models:
    """All models by key. A sample of each is taken once a minute."""

    def __init__(self) -> None:
        self.by_key: dict[str, Model] = {}

    def train(self, node: NodeUse, wall_s: float) -> None:
        """Adds the present usage, and drops the models of pods that went long ago."""
        for model in self.by_key.values():
            model.follow_clock(wall_s)
        for key, usage in _usages(node).items():
            self.by_key.setdefault(key, Model()).add(usage, wall_s)
        for key in [key for key, model in self.by_key.items() if wall_s - model.updated_s > EXPIRY_S]:
            del self.by_key[key]

    def percentiles(self, key: str) -> ResourceAmounts | None:
        """See `Model.percentiles`; None without a model."""
        model = self.by_key.get(key)
        return None if model is None else model.percentiles

    def prod_reclaimable(self, node: NodeUse, ages_s: Mapping[str, float | None]) -> ResourceAmounts:
        """Unneeded requests of prod pods: the smaller of both predictions."""
        system = self.percentiles(SYSTEM)
        if system is None:
            return NOTHING
        prod = [pod for pod in node.pods if is_prod(pod.priority_class)]
        peaks = [with_margin(self.percentiles(pod_key(pod.uid))) for pod in prod]
        pods = [
            PredictedPod(request=pod.request, peak=peak, age_s=ages_s.get(pod.uid))
            for pod, peak in zip(prod, peaks, strict=True)
        ]
        classes = [self.percentiles(class_key(each)) or NOTHING for each in PriorityClass if is_prod(each)]
        requested = summed(pod.request for pod in prod)
        by_class = reclaimable_by_class(node.allocatable, requested, system, summed(classes))
        return reclaimable_by_pods(node.allocatable, pods).at_most(by_class)

    def saved(self) -> dict[str, Any]:
        """All models as JSON can hold them."""
        models = {
            key: {"updated_s": model.updated_s, "cpu": model.cpu.saved(), "memory": model.memory.saved()}
            for key, model in self.by_key.items()
        }
        return {"format": _FORMAT, "models": models}

    @classmethod
    def restored(cls, saved: Any, wall_s: float) -> Models:  # noqa: ANN401 - JSON
        """The models that `saved` gave, without those that have expired. Raises ValueError."""
        models = cls()
        try:
            if saved["format"] != _FORMAT:
                raise ValueError(f"format {saved['format']}, not {_FORMAT}")
            for key, each in saved["models"].items():
                model = _restored_model(each)
                model.follow_clock(wall_s)
                if wall_s - model.updated_s <= EXPIRY_S:
                    models.by_key[key] = model
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not saved models: {error!r}") from error
        return models


def _restored_model(saved: Mapping[str, Any]) -> Model:
    model = Model()
    model.cpu = UsageHistogram.restored(CPU_BUCKETS, saved["cpu"])
    model.memory = UsageHistogram.restored(MEMORY_BUCKETS, saved["memory"])
    model.updated_s = float(saved["updated_s"])
    if not math.isfinite(model.updated_s):
        raise ValueError("no time")
    return model


def _usages(node: NodeUse) -> dict[str, ResourceAmounts]:
    """Present usage by model. A class without pods uses nothing."""
    usages = {class_key(each): NOTHING for each in PriorityClass}
    usages[ALL_PODS] = NOTHING
    for pod in node.pods:
        if pod.usage is not None:
            usages[pod_key(pod.uid)] = pod.usage
            for key in (class_key(pod.priority_class), ALL_PODS):
                usages[key] = usages[key].plus(pod.usage)
    usages[NODE] = node.usage
    usages[SYSTEM] = node.usage.minus(usages[ALL_PODS]).at_least(NOTHING)
    return usages
