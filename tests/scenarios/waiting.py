"""Waits for CPUs: recorded runs of a real kernel, and the simulated one's at the same load.

`python -m tests.scenarios.waiting [FOLDER]` says how they differ. A disturbed recording is compared with a
simulated node on which other programs run, too, that take what is left.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.testing.node.kernel import CPUS, IDLE, QUOTA, SHARES, CgroupPath, Kernel, Workload, constant
from tests.scenarios import record_waiting
from tests.scenarios.record_waiting import DISTURBED, RECORDINGS, RUNS, Recording, Run, Sample, load

_OVERHEAD_S: Final = 50e-6
"""CPU time of a request beside what it computes."""
_DISTURBING_TASKS: Final = 4
POD: Final[CgroupPath] = ("waiting", "burstable", "pod", "c")
BATCH: Final[CgroupPath] = ("waiting", "besteffort", "pod", "c")


class Figures(NamedTuple):
    """What a run shows: of the service, then of the class BestEffort. Shares are of 1."""

    used: float
    """CPUs."""
    wait: float
    """Run delay, of run delay and run time."""
    some: float
    full: float
    throttled: float
    """Share of the periods."""
    p50_ms: float
    p99_ms: float
    be_used: float
    be_wait: float
    be_some: float
    be_full: float
    be_throttled: float


class Second(NamedTuple):
    """One second of a run."""

    wait: float
    full: float
    p50_ms: float
    p99_ms: float


def _share(of: float, beside: float) -> float:
    return of / (of + beside) if of + beside > 0 else 0.0


def _figures(total: Sample, response_ms: tuple[float, ...]) -> Figures:
    return Figures(
        total.ls_run_s,
        _share(total.ls_delay_s, total.ls_run_s),
        total.ls_some_s,
        total.ls_full_s,
        total.ls_throttled / 10,
        response_ms[0] if response_ms else 0.0,
        response_ms[-1] if response_ms else 0.0,
        total.be_run_s,
        _share(total.be_delay_s, total.be_run_s),
        total.be_some_s,
        total.be_full_s,
        total.be_throttled / 10,
    )


def recorded(recording: Recording) -> tuple[Figures, list[Second]]:
    """The figures of a recording, and its seconds."""
    seconds = list(recording.per_second())
    responses = recording.responses_ms or [(0.0, 0.0)] * len(seconds)
    return _figures(recording.mean, recording.response_ms), [
        Second(_share(each.ls_delay_s, each.ls_run_s), each.ls_full_s, *response)
        for each, response in zip(seconds, responses, strict=False)
    ]


def kernel_of(run: Run, cpus: int, others: float = 0.0) -> Kernel:
    """A simulated kernel with the cgroups and the load of a run, beside others that use so many CPUs."""
    kernel = Kernel(range(cpus), version=1, waits=True)
    if run.spinning:
        service = Workload(cores=constant(float(run.workers)), threads=run.workers)
    else:
        service = Workload(
            cores=constant(run.load * cpus * (1 + _OVERHEAD_S / run.request_s)),
            threads=run.workers,
            request_s=run.request_s + _OVERHEAD_S,
            backlog_s=2.0,
        )
    kernel.make(POD, service)
    if others > DISTURBED * cpus:
        disturbing = Workload(cores=constant(float(_DISTURBING_TASKS)), threads=_DISTURBING_TASKS)
        kernel.make(("others",), disturbing)
        kernel.write(("others",), SHARES, 2)
    batch = Workload(cores=constant(float(run.be_threads)), threads=max(run.be_threads, 1))
    kernel.make(BATCH, batch)
    kernel.write(POD[:1], SHARES, record_waiting.SHARES)
    kernel.write(BATCH[:2], SHARES, run.be_shares)
    if run.limit_millicores:
        for path in (POD[:3], POD):
            kernel.write(path, QUOTA, run.limit_millicores * 100)
    if run.be_bound_millicores:
        kernel.write(BATCH[:2], QUOTA, run.be_bound_millicores * 100)
    if run.be_idle:
        for path in (BATCH[:2], BATCH[:3]):
            kernel.write(path, IDLE, 1)
    for path in kernel.cgroups:
        first = cpus - run.be_cpus if run.be_cpus and path[:2] == BATCH[:2] else 0
        kernel.write(path, CPUS, f"{first}-{cpus - 1}")
    return kernel


def simulated(recording: Recording) -> tuple[Figures, list[Second]]:
    """The figures of the same run on the simulated kernel, and its seconds."""
    run, cpus = recording.run, recording.cpus
    kernel = kernel_of(run, cpus, recording.mean.others_s)
    service = kernel.cgroups[POD]
    kernel.advance(1.0)
    samples = [_counters(kernel)]
    responses_ms: list[tuple[float, ...]] = []
    for _ in recording.samples[1:]:
        kernel.advance(1.0)
        samples.append(_counters(kernel))
        if not run.spinning:
            responses_ms.append(tuple(service.response_s(part) * 1_000 for part in (0.5, 0.99)))
    response_ms = tuple(sum(column) / len(column) for column in zip(*responses_ms, strict=True))
    return recorded(Recording(run, cpus, "", samples, response_ms, responses_ms))


def _counters(kernel: Kernel) -> Sample:
    numbers: list[float] = [kernel.now_s]
    for leaf, bounded in ((POD, POD[:3]), (BATCH, BATCH[:2])):
        cgroup, above = kernel.cgroups[leaf], kernel.cgroups[bounded]
        numbers += [cgroup.usage_us / 1e6, cgroup.delay_us / 1e6, cgroup.turns]
        numbers += [total / 1e6 for total in cgroup.pressure.totals_us]
        numbers += [above.periods, above.throttled_periods, above.throttled_us / 1e6]
    numbers += [kernel.pressure.totals_us[0] / 1e6, 0.0]
    return Sample(*numbers)  # type: ignore[arg-type]


def recordings(folder: Path = RECORDINGS) -> list[Recording]:
    """All that there are, in the order of the runs."""
    return [load(run.name, folder) for run in RUNS if (folder / f"{run.name}.json").exists()]


SHOWN: Final[Mapping[str, str]] = {
    "used": "CPUs",
    "wait": "w",
    "some": "some",
    "full": "full",
    "throttled": "throttled",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "be_used": "BE CPUs",
    "be_wait": "BE w",
    "be_some": "BE some",
    "be_full": "BE full",
    "be_throttled": "BE throttled",
}


def table(found: Iterable[Recording]) -> str:
    """Recorded and simulated figures of each run as a table in Markdown."""
    lines = ["| run | " + " | ".join(SHOWN.values()) + " |", "| --- |" + " --- |" * len(SHOWN)]
    for recording in found:
        real, simulation = recorded(recording)[0], simulated(recording)[0]
        cells = [f"{before:.3g} / {after:.3g}" for before, after in zip(real, simulation, strict=True)]
        lines.append(f"| {recording.run.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(recordings(*map(Path, sys.argv[1:]))))
