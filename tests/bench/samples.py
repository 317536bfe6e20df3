"""The row of the QoS manager's samples: 250 pods with two containers each, a pass a second.

As a program it is the process that samples: `python -m tests.bench.samples VERSION PODS FOLDER` makes cgroups
(of version 1 real ones, of version 2 plain files in the folder), takes turns between the sampler and a loop
that opens, reads and closes each file, and prints the figures as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT, Mount, find_mounts
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples.kernel_files import cgroup_sources
from runtimeproxy.qosmanager.samples.sampler import REST_PASSES, Sampler
from runtimeproxy.qosmanager.snapshot import Level, Metric
from tests.bench import names
from tests.bench.procfs import rss_bytes

if TYPE_CHECKING:
    from tests.bench.bench import Bench

_CONTROLLERS = ("cpu", "cpuacct", "memory")
_WINDOW_S = 300
"""The longest that a plugin asks for; all samples have the memory of it from the first one on."""
NEEDS = [
    *(Need(Level.NODE, metric, _WINDOW_S) for metric in (Metric.CPU_USAGE, Metric.MEMORY_USAGE)),
    Need(Level.QOS_CLASS, Metric.CPU_USAGE, _WINDOW_S),
    *(Need(Level.POD, metric, _WINDOW_S) for metric in (Metric.CPU_USAGE, Metric.MEMORY_USAGE)),
    *(Need(Level.CONTAINER, metric, _WINDOW_S) for metric in (Metric.CPU_USAGE, Metric.CPU_THROTTLED)),
]
"""What CPU suppress, CPU burst, CPU evict and memory evict decide by."""
_PASSES = 3 * REST_PASSES
_PAUSE_S = 0.1
"""Between two passes; a rate needs some time."""
_FIRST_PASSES = 2 * REST_PASSES
"""In these files are opened and memory is taken; they do not count."""
_MEMORY_STAT = (
    *("anon", "file", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"),
    *(f"other_{number}" for number in range(40)),
)
V2_FILES = {
    "cpu.stat": "usage_usec 1\nuser_usec 1\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
    "memory.current": "0\n",
    "memory.stat": "".join(f"{key} 0\n" for key in _MEMORY_STAT),
    "memory.numa_stat": "anon N0=0\nfile N0=0\n",
    **{
        f"{each}.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        for each in ("cpu", "memory", "io")
    },
}
_MIB = 1024 * 1024


def rows(bench: Bench, turn: int) -> None:
    """Measures both versions in the first turn."""
    from tests.bench.stands import PROXY  # Not in the process whose memory is measured.

    if turn > 0:
        return
    for version in (1, 2):
        if version == 1 and not has_v1():
            continue
        folder = bench.folder / f"samples{version}"
        command = [sys.executable, "-m", "tests.bench.samples", str(version), str(bench.options.storm_pods)]
        ran = subprocess.run([*command, str(folder)], stdout=subprocess.PIPE, check=True)
        figures: dict[str, float] = json.loads(ran.stdout)
        for figure, value in figures.items():
            bench.results.add(names.SAMPLES, PROXY, {f"{figure}, version {version}": value})


def has_v1() -> bool:
    """Whether cgroups of version 1 can be made here."""
    mounts = find_mounts()
    return os.geteuid() == 0 and all(each in mounts and mounts[each].version == 1 for each in _CONTROLLERS)


def main(version: int, pods: int, folder: Path) -> None:
    """Measures, and prints the figures."""
    top = f"bench-{os.getpid()}"
    paths = [top, *(f"{top}/pod{pod}" for pod in range(pods))]
    paths += [f"{top}/pod{pod}/{container}" for pod in range(pods) for container in "ab"]
    levels = {0: Level.QOS_CLASS, 1: Level.POD, 2: Level.CONTAINER}
    targets = {f"/{path}": levels[path.count("/")] for path in paths}
    with cgroups(version, paths, folder) as mounts:
        sampler = Sampler(mounts, most_cpus=os.cpu_count() or 1)
        for _ in range(_FIRST_PASSES):
            sampler.read(targets, NEEDS)
            time.sleep(_PAUSE_S)
        memory_bytes = rss_bytes(os.getpid())
        naive = Naive(mounts, targets)
        sampler_s: list[float] = []
        naive_s: list[float] = []
        for _ in range(_PASSES):
            began_s = time.process_time()
            sampler.read(targets, NEEDS)
            between_s = time.process_time()
            naive.read()
            naive_s.append(time.process_time() - between_s)
            sampler_s.append(between_s - began_s)
            time.sleep(_PAUSE_S)
        losses = sampler.losses()
        figures = {
            "CPU ms/pass": median(sampler_s) * 1_000,
            "CPU ms/pass, best": min(sampler_s) * 1_000,
            "CPU ms/pass, naive loop": median(naive_s) * 1_000,
            "CPU ms/pass, naive loop, best": min(naive_s) * 1_000,
            "MiB": memory_bytes / _MIB,
            "samples lost": sum(count for loss, (count, _) in losses.items() if loss != "gone"),
        }
        sampler.close()
    print(json.dumps(figures))


@contextlib.contextmanager
def cgroups(version: int, paths: list[str], folder: Path) -> Iterator[Mapping[str, Mount]]:
    """Cgroups as long as the block runs: real ones, or plain files in a folder that is not there yet."""
    if version == 2:
        for path in paths:
            (folder / path).mkdir(parents=True)
            for name, text in V2_FILES.items():
                (folder / path / name).write_text(text)
        yield {name: Mount(2, folder) for name in ("cpu", "memory")}
        shutil.rmtree(folder)
        return
    made: list[Path] = []
    try:
        for controller in _CONTROLLERS:
            for path in paths:
                each = DEFAULT_ROOT / controller / path
                each.mkdir()
                made.append(each)
        yield find_mounts()
    finally:
        for each in reversed(made):
            each.rmdir()


class Naive:
    """The same files and the same turns, as a loop would read them."""

    def __init__(self, mounts: Mapping[str, Mount], targets: Mapping[str, Level]) -> None:
        self._mounts = mounts
        self._targets = targets
        self._needed = {(need.level, need.metric) for need in NEEDS}
        self._sources = cgroup_sources(mounts)
        self._passes = 0
        self.values: dict[tuple[str, str], list[dict[str, str]]] = {}

    def read(self) -> None:
        for index, (cgroup, level) in enumerate(self._targets.items()):
            for source in self._sources:
                is_needed = any((level, metric) in self._needed for metric in source.metrics)
                if is_needed or index % REST_PASSES == self._passes % REST_PASSES:
                    for controller, file in source.files:
                        self._read_file(cgroup, controller, file)
        self._passes += 1

    def _read_file(self, cgroup: str, controller: str, file: str) -> None:
        try:
            with open(f"{self._mounts[controller].folder}{cgroup}/{file}") as opened:  # noqa: PTH123
                lines = opened.read().splitlines()
        except OSError:
            return
        kept = self.values.setdefault((cgroup, file), [])
        kept.append({key: value for key, _, value in (line.partition(" ") for line in lines)})
        del kept[:-5]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
