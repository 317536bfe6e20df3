"""The CPU load of a cgroup, by samples."""

from __future__ import annotations

from runtimeproxy.qosmanager.snapshot import Metric, Snapshot


def load_or_usage(snapshot: Snapshot, cgroup: str, length_s: float) -> float | None:
    """Return how many tasks of a cgroup run or wait, the mean of the last `length_s`; None: no samples.

    The load where a source of samples has it. The kernel has none of a cgroup: then it is the usage in cores
    and the share of time under CPU pressure (PSI), in which at least one task waits.
    """
    load = snapshot.metrics.window(cgroup, Metric.CPU_LOAD, length_s)
    if load is not None:
        return load.avg
    usage = snapshot.metrics.window(cgroup, Metric.CPU_USAGE, length_s)
    if usage is None:
        return None
    pressure = snapshot.metrics.window(cgroup, Metric.CPU_PRESSURE, length_s)
    return usage.avg + (pressure.avg if pressure is not None else 0.0)
