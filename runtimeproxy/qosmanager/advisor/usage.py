"""What pods of a pool use and want of the CPUs, by samples."""

from __future__ import annotations

from runtimeproxy.qosmanager.snapshot import Metric, Snapshot


def load_or_usage(snapshot: Snapshot, cgroup: str, length_s: float) -> float | None:
    """Return how many tasks of a cgroup run or wait, on average; None: nothing is known.

    The load where a source of samples has it. The kernel itself tells it of no cgroup: then what is used and,
    as at least one task waits for so long, the share of time under pressure (PSI).
    """
    load = snapshot.metrics.window(cgroup, Metric.CPU_LOAD, length_s)
    if load is not None:
        return load.avg
    usage = snapshot.metrics.window(cgroup, Metric.CPU_USAGE, length_s)
    if usage is None:
        return None
    pressure = snapshot.metrics.window(cgroup, Metric.CPU_PRESSURE, length_s)
    return usage.avg + (pressure.avg if pressure is not None else 0.0)
