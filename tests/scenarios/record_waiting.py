"""Records what a real kernel shows of waiting for CPUs: `python -m tests.scenarios.record_waiting [NAME...]`.

As root, on a node with cgroup version 1 for `cpu`, `cpuacct` and `cpuset`, and a tree of version 2 beside it,
whose `cpu.pressure` needs no controller. Each run makes cgroups of its own, laid out as the kubelet's, and
removes them. A service's workers take requests by the clock, whether earlier ones have ended or not; they are
processes that compute for a fixed CPU time and note when they ended. Beside them run programs that never
sleep. The CPUs that others use go into the recording: on a busy machine its figures are theirs, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

RECORDINGS: Final = Path(__file__).parent / "waiting_runs"
CGROUPS: Final = Path("/sys/fs/cgroup")
FOLDER: Final = "waiting"
"""The cgroup of all runs, in each hierarchy."""
SHARES: Final = 65_536
"""Of that cgroup."""
PERIOD_US: Final = 100_000
DISTURBED: Final = 0.02
"""Share of the CPUs: if others use more, the recording shows them, too."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What runs beside each other, on all CPUs if nothing else is said.

    Attributes:
        load: Of the service, as a share of all CPUs; each worker has its own queue.
        spinning: Whether the workers never sleep, instead of taking requests.
        request_s: CPU time of a request.
        limit_millicores: Of the service; 0: none.
        be_threads: How many programs of the class BestEffort never sleep; None: as many as CPUs, twice.
        be_shares: Of the class.
        be_idle: Whether the class's pods have `cpu.idle`.
        be_bound_millicores: Of the class; 0: none.
        be_cpus: Of the class; 0: all.
    """

    name: str
    load: float = 0.4
    workers: int = 4
    spinning: bool = False
    request_s: float = 0.002
    limit_millicores: int = 0
    be_threads: int = 4
    be_shares: int = 2
    be_idle: bool = False
    be_bound_millicores: int = 0
    be_cpus: int = 0


RUNS: Final = (
    Run(name="alone", be_threads=0),
    Run(name="be-20", load=0.2),
    Run(name="be-40"),
    Run(name="be-60", load=0.6),
    Run(name="be-equal-shares", be_shares=1_024),
    Run(name="be-idle", be_idle=True),
    Run(name="be-500m", be_bound_millicores=500),
    Run(name="be-1000m", be_bound_millicores=1_000),
    Run(name="be-one-cpu", be_cpus=1),
    Run(name="long-requests", request_s=0.02),
    Run(name="own-limit", limit_millicores=900, be_idle=True),
    Run(name="many-threads", workers=20, spinning=True),
)
"""Made for 2 CPUs. Requests of 1,000 millicores each: shares of 1,024 for the service."""


class Sample(NamedTuple):
    """Counters since the start of a run; times in seconds.

    Of the service (`ls`) and of the class BestEffort (`be`): CPU time, run delay and turns of all threads, by
    `schedstat`; totals of pressure; periods, throttled periods and throttled time of `cpu.stat`.
    """

    at_s: float
    ls_run_s: float
    ls_delay_s: float
    ls_turns: int
    ls_some_s: float
    ls_full_s: float
    ls_periods: int
    ls_throttled: int
    ls_throttled_s: float
    be_run_s: float
    be_delay_s: float
    be_turns: int
    be_some_s: float
    be_full_s: float
    be_periods: int
    be_throttled: int
    be_throttled_s: float
    node_some_s: float
    others_s: float
    """CPU time of all other programs."""


@dataclass(frozen=True)
class Recording:
    """A run that has ended.

    Attributes:
        response_ms: Half, 90 and 99 % of the requests took at most so long, from when they were due.
        responses_ms: Half and 99 % of them, for each second.
    """

    run: Run
    cpus: int
    kernel: str
    samples: list[Sample]
    response_ms: tuple[float, ...]
    responses_ms: list[tuple[float, ...]]

    @property
    def mean(self) -> Sample:
        """The growth of all counters in a second, over the whole run."""
        first, last = self.samples[0], self.samples[-1]
        growth = ((now - then) / (last.at_s - first.at_s) for now, then in zip(last, first, strict=True))
        return Sample(*growth)  # type: ignore[arg-type]

    def per_second(self) -> Iterator[Sample]:
        """The growth of all counters, for each second of which there is a sample in time."""
        for before, after in pairwise(self.samples):
            length_s = after.at_s - before.at_s
            if not 0.5 <= length_s <= 2.0:
                continue
            growth = ((now - then) / length_s for now, then in zip(after[1:], before[1:], strict=True))
            yield Sample(after.at_s, *growth)  # type: ignore[arg-type]


def load(name: str, folder: Path = RECORDINGS) -> Recording:
    """Reads a recording from its file."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="ascii"))
    return Recording(
        Run(**found["run"]),
        found["cpus"],
        found["kernel"],
        [Sample(*each) for each in found["samples"]],
        tuple(found["response_ms"]),
        [tuple(each) for each in found["responses_ms"]],
    )


def save(recording: Recording, folder: Path = RECORDINGS) -> Path:
    """Writes a recording to its file."""
    content = {
        "run": asdict(recording.run),
        "cpus": recording.cpus,
        "kernel": recording.kernel,
        "samples": [[round(number, 4) for number in each] for each in recording.samples],
        "response_ms": recording.response_ms,
        "responses_ms": recording.responses_ms,
    }
    file = folder / f"{recording.run.name}.json"
    file.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="ascii")
    return file


def _compute(seconds: float, end_s: float) -> None:
    """Uses CPU time, until a moment at the latest."""
    target_s = time.thread_time() + seconds
    while time.thread_time() < target_s and time.monotonic() < end_s:
        pass


def _serve(run: Run, rate_per_s: float, seed: int, begin_s: float, end_s: float, file: Path) -> None:
    """A worker: requests come by the clock, at random."""
    randomness = random.Random(seed)
    responses = []
    due_s = begin_s
    while (due_s := due_s + randomness.expovariate(rate_per_s)) < end_s:
        time.sleep(max(due_s - time.monotonic(), 0.0))
        _compute(run.request_s, end_s)
        if (now_s := time.monotonic()) < end_s:
            responses.append((due_s - begin_s, now_s - due_s))
    file.write_text(json.dumps(responses), encoding="ascii")


class _Group(NamedTuple):
    """A pod's container in all hierarchies."""

    path: str
    """Below each hierarchy of version 1."""
    pressure: Path
    """Its folder in the tree of version 2."""
    tasks: list[int]

    def sample(self) -> Iterator[float]:
        schedstats = [_schedstat(pid) for pid in self.tasks]
        yield from (sum(each) for each in zip(*schedstats, strict=True)) if schedstats else (0.0, 0.0, 0)
        totals = [int(line.rpartition("=")[2]) for line in _lines(self.pressure / "cpu.pressure")]
        yield from (total / 1e6 for total in totals)

    def throttling(self, cgroup: str) -> Iterator[float]:
        stat = dict(line.split() for line in _lines(CGROUPS / "cpu" / cgroup / "cpu.stat"))
        yield from (int(stat["nr_periods"]), int(stat["nr_throttled"]), int(stat["throttled_time"]) / 1e9)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="ascii").splitlines()


def _schedstat(pid: int) -> tuple[float, float, int]:
    ran, waited, turns = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(ran) / 1e9, int(waited) / 1e9, int(turns)


def _busy_s() -> float:
    """CPU time of all programs."""
    fields = list(map(int, _lines(Path("/proc/stat"))[0].split()[1:]))
    return sum(fields[index] for index in (0, 1, 2, 5, 6)) / os.sysconf("SC_CLK_TCK")


def _make(path: str, cpus: str, **values: int) -> None:
    for hierarchy in ("cpu", "cpuset"):
        (CGROUPS / hierarchy / path).mkdir()
    (CGROUPS / "cpuset" / path / "cpuset.mems").write_text("0", encoding="ascii")
    (CGROUPS / "cpuset" / path / "cpuset.cpus").write_text(cpus, encoding="ascii")
    for name, value in values.items():
        (CGROUPS / "cpu" / path / f"cpu.{name}").write_text(str(value), encoding="ascii")


@contextlib.contextmanager
def _cgroups(run: Run, cpus: int) -> Iterator[tuple[_Group, _Group]]:
    """Makes the cgroups of a run; in the end they are removed."""
    every = f"0-{cpus - 1}"
    burstable, besteffort = f"{FOLDER}/burstable", f"{FOLDER}/besteffort"
    groups = [
        _Group(f"{parent}/pod/c", CGROUPS / "unified" / FOLDER / name, [])
        for parent, name in ((burstable, "ls"), (besteffort, "be"))
    ]
    quota = run.limit_millicores * PERIOD_US // 1_000 or -1
    bound = run.be_bound_millicores * PERIOD_US // 1_000 or -1
    try:
        # Other programs of the machine get little. With still more shares the kernel's own threads would
        # hold locks for seconds, such as those of pressure.
        _make(FOLDER, every, shares=SHARES)
        _make(burstable, every, shares=1_024)
        _make(f"{burstable}/pod", every, cfs_quota_us=quota)
        _make(f"{burstable}/pod/c", every, cfs_quota_us=quota)
        be_cpus = f"{cpus - run.be_cpus}-{cpus - 1}" if run.be_cpus else every
        _make(besteffort, be_cpus, shares=run.be_shares, cfs_quota_us=bound)
        _make(f"{besteffort}/pod", be_cpus, **({"idle": 1} if run.be_idle else {}))
        _make(f"{besteffort}/pod/c", be_cpus)
        if run.be_idle:
            # Siblings only are compared: of the class, too, as the kubelet sets it.
            (CGROUPS / "cpu" / besteffort / "cpu.idle").write_text("1", encoding="ascii")
        for group in groups:
            group.pressure.mkdir(parents=True)
        yield groups[0], groups[1]
    finally:
        _remove(groups)


def _remove(groups: Iterable[_Group]) -> None:
    for group in groups:
        for pid in group.tasks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in group.tasks:
            os.waitpid(pid, 0)
    for hierarchy in ("cpu", "cpuset", "unified"):
        folders = sorted((CGROUPS / hierarchy / FOLDER).rglob("*/"), reverse=True)
        for folder in (*folders, CGROUPS / hierarchy / FOLDER):
            if folder.is_dir():
                folder.rmdir()


def _start(group: _Group, work: Callable[[], None]) -> None:
    """Starts a process within a group."""
    pid = os.fork()
    if pid:
        group.tasks.append(pid)
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        for folder in (CGROUPS / "cpu" / group.path, CGROUPS / "cpuset" / group.path, group.pressure):
            (folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        work()
    finally:
        os._exit(0)


def record(run: Run, folder: Path, seconds: int = 15) -> Recording:
    """Makes a run and returns its counters, one sample a second, without the first second."""
    cpus = os.cpu_count() or 1
    begin_s = time.monotonic() + 0.5
    # Two more than are shown: the first second is left out, and no worker ends before the last sample.
    end_s = begin_s + seconds + 2
    rate_per_s = run.load * cpus / run.request_s / run.workers
    files = [folder / f"{run.name}.{number}" for number in range(run.workers)]
    with _cgroups(run, cpus) as (service, batch):
        for number, file in enumerate(files):
            if run.spinning:
                _start(service, lambda: _compute(float("inf"), end_s))
            else:
                _start(
                    service,
                    lambda number=number, file=file: _serve(  # type: ignore[misc]
                        run, rate_per_s, number, begin_s, end_s, file
                    ),
                )
        for _ in range(run.be_threads):
            _start(batch, lambda: _compute(float("inf"), end_s))
        samples = []
        for second in range(1, seconds + 2):
            time.sleep(max(begin_s + second - time.monotonic(), 0.0))
            samples.append(_sample(begin_s, service, batch))
        if not run.spinning:
            for pid in service.tasks:
                os.waitpid(pid, 0)
            service.tasks.clear()
    responses = [] if run.spinning else [each for file in files for each in json.loads(file.read_bytes())]
    for file in files:
        file.unlink(missing_ok=True)
    within = [each for each in responses if samples[0].at_s <= each[0] < samples[-1].at_s]
    return Recording(run, cpus, os.uname().release, samples, *_summary(within, samples[0].at_s))


def _summary(
    responses: list[tuple[float, float]], begin_s: float
) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
    """Percentiles of all responses, and for each second."""
    by_second: dict[int, list[float]] = {}
    for at_s, took_s in responses:
        by_second.setdefault(int(at_s - begin_s), []).append(took_s)
    seconds = [_percentiles(by_second[second], 0.5, 0.99) for second in sorted(by_second)]
    return _percentiles([took_s for _, took_s in responses], 0.5, 0.9, 0.99), seconds


def _percentiles(values: list[float], *parts: float) -> tuple[float, ...]:
    """Of the nearest rank, in milliseconds."""
    ranked = sorted(values)
    last = len(ranked) - 1
    return tuple(round(ranked[min(int(len(ranked) * part), last)] * 1_000, 2) for part in parts if ranked)


def _sample(begin_s: float, service: _Group, batch: _Group) -> Sample:
    counters = [
        *service.sample(),
        *service.throttling(f"{FOLDER}/burstable/pod"),
        *batch.sample(),
        *batch.throttling(f"{FOLDER}/besteffort"),
        int(_lines(Path("/proc/pressure/cpu"))[0].rpartition("=")[2]) / 1e6,
    ]
    others_s = _busy_s() - counters[0] - counters[8]
    return Sample(time.monotonic() - begin_s, *counters, others_s)  # type: ignore[call-arg,arg-type]


def main(names: list[str]) -> None:
    """Records the runs with these names, or all."""
    if not (CGROUPS / "cpu").is_dir() or not (CGROUPS / "unified/cpu.pressure").exists():
        sys.exit("cgroup version 1 for cpu, and a tree of version 2 with PSI beside it, are needed")
    # Samples are taken in time, whatever runs.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    for run in RUNS:
        if names and run.name not in names:
            continue
        recording = record(run, RECORDINGS)
        others = recording.mean.others_s
        warning = ": other programs disturb it" if others > DISTURBED * recording.cpus else ""
        print(f"{save(recording)}: others used {others:.2f} CPUs{warning}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
