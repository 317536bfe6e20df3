"""The guard's numbers as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

    from runtimeproxy.qosmanager.guard.signal import WaitKind

_PREFIX = "koord_qos_manager_cpu_guard_"


class PodFigures(NamedTuple):
    """One guarded pod."""

    namespace: str
    pod: str
    kind: WaitKind
    waited: float
    """w, in thousandths; see `signal`."""
    target: float
    """t."""
    is_futile: bool = False
    is_settled: bool = False


class Figures(NamedTuple):
    """One decision; millicores, and None for what there is not."""

    is_blind: bool
    rule: int
    error: float | None
    """E."""
    bound: int | None
    """B."""
    bad: int | None
    """B_bad."""
    floor: int
    """F."""
    pods: Sequence[PodFigures] = ()


class GuardCollector:
    """The last decision; register it with a `CollectorRegistry`."""

    def __init__(self) -> None:
        self.figures: Callable[[], Figures] | None = None
        """Made only when they are asked for; None: there was no decision yet."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily  # Takes long to import, and is off by default.

        if self.figures is None:
            return
        figures = self.figures()
        for name, text, value in (
            ("blind", "1 while no guarded pod has a sample.", float(figures.is_blind)),
            ("rule", "The rule of the last decision, 1 to 4; 0: none applies.", figures.rule),
            ("error", "The largest wait over its target, of the pods that drive.", figures.error),
            ("bound_millicores", "The bound on all BE pods.", figures.bound),
            ("bad_bound_millicores", "The bound before the last decrease.", figures.bad),
            ("floor_millicores", "What BE pods keep in any case.", figures.floor),
        ):
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text)
            if value is not None:
                family.add_metric((), value)
            yield family
        labels = ("namespace", "pod", "kind")
        waits = GaugeMetricFamily(f"{_PREFIX}pod_wait_ratio", "What the pod waits for CPUs.", labels=labels)
        targets = GaugeMetricFamily(f"{_PREFIX}pod_target_ratio", "What it may wait.", labels=labels)
        useless = GaugeMetricFamily(
            f"{_PREFIX}pod_ineffective",
            "Pods for which a lower bound has no effect: futile, or settled after decreases that had one.",
            labels=("namespace", "pod", "state"),
        )
        for each in figures.pods:
            waits.add_metric((each.namespace, each.pod, each.kind), each.waited / 1_000)
            targets.add_metric((each.namespace, each.pod, each.kind), each.target / 1_000)
            for state, is_so in (("futile", each.is_futile), ("settled", each.is_settled)):
                if is_so:
                    useless.add_metric((each.namespace, each.pod, state), 1)
        yield from (waits, targets, useless)
