"""What a pod may wait: by strategy, by annotation within bounds, else by what it waits without BE pods. Pure.

What is learnt belongs to a workload, not to a pod: pods come and go. It is learnt by load, as more load waits
more without any neighbour.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runtimeproxy.qosmanager.guard.signal import WaitKind
from runtimeproxy.qosmanager.profiling.histogram import Buckets, UsageHistogram


class TargetLimits(NamedTuple):
    """Of targets that are learnt, in thousandths."""

    default: float
    """Until enough is known."""
    least: float
    most: float


LIMITS: Final[Mapping[WaitKind, TargetLimits]] = {
    WaitKind.PRESSURE: TargetLimits(20.0, 5.0, 50.0),
    WaitKind.RUN_DELAY: TargetLimits(200.0, 50.0, 400.0),
}
MARGIN: Final = 1.3
"""Over what is usual."""
LEAST_MARGIN: Final = 1.1
"""The same where the most that is allowed would be less: no bound on BE pods could reach that."""
USUAL: Final = 0.75
"""The percentile of quiet seconds."""
ENOUGH_S: Final = 60
"""Quiet seconds of one load before they count."""
QUIET_SHARE: Final = 0.03
"""Of the node's CPUs: a second in which BE pods use less is quiet."""
UNPROBED_S: Final = 1_800.0
"""Without a quiet second for so long, a probe makes some."""
PROBE_S: Final = 5.0
PROBE_PAUSE_S: Final = 600.0
MOST_WORKLOADS: Final = 512
"""Those that were seen last are kept: about 4 MB."""
_LOADS: Final = 12
"""Usage in powers of two: from 1/16 of a CPU to 128 CPUs."""
_FIRST_LOAD: Final = -4
_BUCKETS: Final = Buckets(0.5, 1.15, 1_000.0, 24 * 3_600.0)
"""Thousandths; weights lose half in a day."""


def load_of(used_cores: float) -> int:
    """Return the number of the load, 0 to 11."""
    return min(max(math.floor(math.log2(max(used_cores, 1e-6))) - _FIRST_LOAD, 0), _LOADS - 1)


class WaitTarget(NamedTuple):
    """A target, in thousandths."""

    waited: float
    source: str
    """For people."""


class _Quiet:
    """Quiet seconds of one workload at one load."""

    __slots__ = ("histogram", "seconds", "updated_s")

    def __init__(self) -> None:
        self.histogram = UsageHistogram(_BUCKETS)
        self.seconds = 0
        """At most `ENOUGH_S`."""
        self.updated_s = 0.0
        """Wall clock."""

    def add(self, waited: float, wall_s: float) -> None:
        # If the clock was set back, the last second is of now: else those of a time to come never fade.
        if (back_s := wall_s - self.updated_s) < 0:
            self.histogram.shift(back_s)
        self.updated_s = wall_s
        self.histogram.add(waited, wall_s)
        self.seconds = min(self.seconds + 1, ENOUGH_S)

    def saved(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "updated_s": self.updated_s, **self.histogram.saved()}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> _Quiet:
        """What `saved` gave. Raises ValueError, KeyError, TypeError or AttributeError."""
        quiet = cls()
        quiet.histogram = UsageHistogram.restored(_BUCKETS, saved)
        quiet.seconds = min(max(int(saved["seconds"]), 0), ENOUGH_S)
        # Files of before have no such member; no time in them is after that of the last second.
        quiet.updated_s = max(float(saved.get("updated_s", 0.0)), float(saved["reference_s"]))
        if not math.isfinite(quiet.updated_s):
            raise ValueError("no time")
        return quiet


class QuietHistory:
    """What workloads wait while BE pods do nothing. Changed in place."""

    def __init__(self) -> None:
        self._by_workload: OrderedDict[str, dict[tuple[WaitKind, int], _Quiet]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_workload)

    def add(self, workload: str, kind: WaitKind, used_cores: float, waited: float, wall_s: float) -> None:
        """Learns from one quiet second."""
        loads = self._by_workload.setdefault(workload, {})
        self._by_workload.move_to_end(workload)
        if len(self._by_workload) > MOST_WORKLOADS:
            self._by_workload.popitem(last=False)
        loads.setdefault((kind, load_of(used_cores)), _Quiet()).add(waited, wall_s)

    def usual(self, workload: str, kind: WaitKind, used_cores: float) -> float | None:
        """Return what it waits at this load while BE pods are quiet, in thousandths; None: not known yet.

        Where this load is not known, it is that of the next smaller one that is: more load waits no less.
        Else of the next larger one: who waits uses less, and so seems to have less load.
        """
        load = load_of(used_cores)
        for each in (*range(load, -1, -1), load + 1):
            quiet = self._of(workload, kind, each)
            if quiet is not None and quiet.seconds >= ENOUGH_S:
                return quiet.histogram.percentile(USUAL) or 0.0
        return None

    def _of(self, workload: str, kind: WaitKind, load: int) -> _Quiet | None:
        return self._by_workload.get(workload, {}).get((kind, load))

    def target(self, workload: str, kind: WaitKind, used_cores: float) -> WaitTarget:
        """Return the target at this load; by another load it is not below the default."""
        limits = LIMITS[kind]
        usual = self.usual(workload, kind, used_cores)
        quiet = self._of(workload, kind, load_of(used_cores))
        known = quiet.seconds if quiet is not None else 0
        if usual is None or (known < ENOUGH_S and MARGIN * usual <= limits.default):
            return WaitTarget(limits.default, f"default: {known} of {ENOUGH_S} quiet seconds at this load")
        most = max(limits.most, LEAST_MARGIN * usual)
        target = min(max(MARGIN * usual, limits.least), most)
        margin = LEAST_MARGIN if target > limits.most else MARGIN
        where = "" if known >= ENOUGH_S else ", at another load"
        return WaitTarget(target, f"{margin:g} x {usual:.1f}, usual while BE pods are quiet{where}")

    def saved(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            workload: {f"{kind}/{load}": quiet.saved() for (kind, load), quiet in loads.items()}
            for workload, loads in self._by_workload.items()
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> QuietHistory:
        """The history that `saved` gave. Raises ValueError."""
        history = cls()
        try:
            for workload, loads in list(saved.items())[-MOST_WORKLOADS:]:
                found = history._by_workload.setdefault(workload, {})
                for name, each in loads.items():
                    kind, _, load = name.partition("/")
                    if not 0 <= int(load) < _LOADS:
                        raise ValueError(f"load {load}")
                    found[WaitKind(kind), int(load)] = _Quiet.restored(each)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a history: {error!r}") from error
        return history


def configured(
    kind: WaitKind, pressure_ms: float | None, run_delay_percent: float | None, source: str
) -> WaitTarget | None:
    """Return the target that strategy or annotation say for this kind, as it is; None: they say none."""
    if kind is WaitKind.PRESSURE:
        return None if pressure_ms is None else WaitTarget(pressure_ms, source)
    return None if run_delay_percent is None else WaitTarget(run_delay_percent * 10.0, source)


_UNITS: Final = {WaitKind.PRESSURE: "ms/s", WaitKind.RUN_DELAY: "permille"}


def annotated(kind: WaitKind, asked: float, usual: float | None) -> WaitTarget:
    """Return the target of a pod whose annotation asks for one: its author does not own the node.

    So it is never less than a learnt one may be, nor than what the pod waits without BE pods.

    Args:
        kind: Of both numbers.
        asked: In thousandths.
        usual: What the workload waits while BE pods are quiet; None: not known.
    """
    least, usual = LIMITS[kind].least, usual or 0.0
    if asked >= max(least, LEAST_MARGIN * usual):
        return WaitTarget(asked, "annotation")
    text = f"asks for {asked:g} {_UNITS[kind]}, at least"
    if LEAST_MARGIN * usual > least:
        reason = f"{text} {LEAST_MARGIN:g} x {usual:.1f}, usual while BE pods are quiet"
        return WaitTarget(LEAST_MARGIN * usual, reason)
    return WaitTarget(least, f"{text} {least:g} {_UNITS[kind]} by annotation")


def wants_probe(
    now_s: float, quiet_s: float, probed_s: float, waits: Mapping[str, tuple[float, float]]
) -> bool:
    """Return whether BE pods are to be quiet for a moment, so that something can be learnt.

    Args:
        now_s: Monotonic.
        quiet_s: The last quiet second, or the start.
        probed_s: The last probe.
        waits: By pod: what it waits, and its target.
    """
    if now_s - quiet_s < UNPROBED_S or now_s - probed_s < PROBE_PAUSE_S:
        return False
    return any(waited > target / 2 for waited, target in waits.values())
