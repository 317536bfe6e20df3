"""Samples the node and its cgroups once a second, and answers with windows of them.

What a plugin needs is read in each pass. All else is read every tenth pass, a tenth of the cgroups in each,
so that no pass is much longer than the others. Counters become rates over the time that really passed
between two reads of the same file.
"""

from __future__ import annotations

import resource
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from types import MappingProxyType
from typing import Final

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples.cycles import TURN_PASSES, CycleCounters, perf_event_folder
from runtimeproxy.qosmanager.samples.kernel_files import (
    ImplausibleError,
    Numbers,
    Source,
    Values,
    cgroup_sources,
    node_sources,
)
from runtimeproxy.qosmanager.samples.reader import Loss, PassReader, Reading, SourceFiles
from runtimeproxy.qosmanager.samples.windows import Ring, summarize
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, Window

REST_PASSES: Final = 10
"""What no plugin needs is read once in so many passes."""
REST_WINDOW_S: Final = 300.0
"""How long samples that no plugin needs are kept."""
LONGEST_WINDOW_S: Final = 3_600.0
"""Windows are cut to this: the memory is bounded whatever a plugin asks for."""
_LEAST_ELAPSED_S: Final = 0.05
"""Two reads of a counter that are closer make no rate: the node's CPU time is counted in ticks of 10 ms."""
_MOST_KEPT_FILES: Final = 4_096
"""The kernel keeps a page for each open cgroup file that was read."""
_SPARE_DESCRIPTORS: Final = 256
"""Left to the rest of the process."""
_MOST_BACKOFF: Final = 32
"""A file that is not there is looked for again after 1, 2, 4 ... of its turns; at most after so many."""
_MOST_BACKOFF_PASSES: Final = 10
"""The same of a file that is read in each pass: a container's cgroup comes after its name is known."""
_MOST_BYTES: Final = 2.0**53
"""No machine has as much memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """What one pass did."""

    files: int
    """Number of sources that were read."""
    samples: int
    losses: Mapping[Loss, int]
    """By reason, how many sources gave no sample."""
    elapsed_s: float


class _Series:
    """One source of one cgroup: its files, its counters of before, and its samples."""

    __slots__ = ("at_s", "cgroup", "failures", "files", "metrics", "numbers", "resume_at", "rings", "turns")

    def __init__(self, cgroup: str, source: Source, paths: Sequence[Path]) -> None:
        self.cgroup = cgroup
        self.files = SourceFiles(source, paths)
        self.metrics = source.metrics
        self.turns = REST_PASSES
        """Read once in so many passes."""
        self.numbers: Numbers | None = None
        self.at_s = 0.0
        self.rings: list[Ring | None] = [None] * len(source.metrics)
        """For each metric, or of `MEMORY_NUMA` for each NUMA node; made with the first sample."""
        self.failures = 0
        """Since the last reading."""
        self.resume_at = 0
        """The pass from which on it is read again after failures."""

    def forget(self) -> None:
        """Forgets what was read of a cgroup that is another one now."""
        self.numbers = None
        self.rings = [None] * len(self.rings)


class Sampler:
    """Reads in one thread at a time; answers in any."""

    def __init__(
        self,
        mounts: Mapping[str, Mount],
        *,
        most_cpus: int,
        procfs: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
        reader: PassReader | None = None,
        cycles: CycleCounters | None = None,
        most_kept_files: int | None = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            mounts: the cgroup mounts by controller.
            most_cpus: the number of CPUs that the machine has; a usage far above is not believed.
            procfs: where procfs is mounted.
            sysfs: where sysfs is mounted.
            reader: reads the files.
            cycles: counts cycles and instructions.
            most_kept_files: descriptors that stay open; None: what the process may open, at most 4,096.
        """
        self._folders = {name: mount.folder for name, mount in mounts.items()}
        self._folders |= {"procfs": procfs, "sysfs": sysfs}
        self._sources = cgroup_sources(mounts)
        self._most_cpus = most_cpus
        self._reader = reader or PassReader()
        self._cycles = cycles or CycleCounters(perf_event_folder(mounts), most_cpus)
        self._cycles_rings: dict[str, Ring] = {}
        self._cycles_cgroups: Sequence[str] = ()
        self._most_kept_files = _kept_files() if most_kept_files is None else most_kept_files
        self._lock = threading.Lock()
        """Of series and rings: `read` changes them, queries come from other threads."""
        self._levels: dict[str, Level] = {}
        self._needs: frozenset[Need] = frozenset()
        self._windows_s: dict[tuple[Level, Metric], float] = {}
        self._series: dict[str, list[_Series]] = {}
        self._turns: list[list[_Series]] = [[] for _ in range(REST_PASSES)]
        """Of each pass in its turn, what is read."""
        self._passes = 0
        self._losses: Counter[Loss] = Counter()
        self._last_losses: dict[Loss, str] = {}
        self._add(NODE_CGROUP, Level.NODE, node_sources(_numa_nodes(sysfs)))
        self._schedule()

    def read(self, targets: Mapping[str, Level], needs: Iterable[Need]) -> PassReport:
        """Makes one pass; to be called once a second. Returns within two seconds even if files hang.

        Args:
            targets: the cgroups by their path below the mounts; `/`, the node, is always there.
            needs: what is read in this pass and how long it is kept; all else is read in turns.
        """
        began_s = time.monotonic()
        self._update(targets, frozenset(needs))
        turn = self._turns[self._passes % REST_PASSES]
        self._passes += 1
        # A list that another thread does not touch: it is made anew by `_schedule` only, in this thread.
        due = [series for series in turn if series.resume_at <= self._passes and not series.files.is_stuck]
        readings = self._reader.read([series.files for series in due])
        ratios = self._cycles.step(self._cycles_cgroups)
        losses: Counter[Loss] = Counter()
        samples = len(ratios)
        with self._lock:
            for cgroup, ratio in ratios:
                self._append_ratio(cgroup, ratio)
            for series, reading in zip(due, readings, strict=True):
                loss, made = self._store(series, reading)
                samples += made
                if loss is not None:
                    losses[loss] += 1
                    self._last_losses[loss] = series.files.files[0].path
            self._losses.update(losses)
        elapsed_s = time.monotonic() - began_s
        return PassReport(files=len(due), samples=samples, losses=losses, elapsed_s=elapsed_s)

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        """The samples of the last `length_s` seconds; None: there are none, or the cgroup is not a target."""
        with self._lock:
            if metric is Metric.CYCLES_PER_INSTRUCTION:
                return self._window(self._cycles_rings.get(cgroup), length_s)
            for series in self._series.get(cgroup, ()):
                if metric in series.metrics:
                    return self._window(series.rings[series.metrics.index(metric)], length_s)
        return None

    def numa_windows(self, cgroup: str, length_s: float) -> Mapping[int, Window]:
        """Memory by NUMA node over the last `length_s` seconds; one without samples is left out."""
        with self._lock:
            for series in self._series.get(cgroup, ()):
                if Metric.MEMORY_NUMA in series.metrics:
                    found = {node: self._window(ring, length_s) for node, ring in enumerate(series.rings)}
                    return {node: window for node, window in found.items() if window is not None}
        return {}

    def losses(self) -> Mapping[Loss, tuple[int, str]]:
        """Since the start, how many samples were lost by reason, and the path of the last one."""
        with self._lock:
            return MappingProxyType(
                {loss: (count, self._last_losses[loss]) for loss, count in self._losses.items()}
            )

    @property
    def hanging_threads(self) -> int:
        """Threads that hang in a read of a file now."""
        return self._reader.hanging_threads

    @property
    def cycles_problem(self) -> str:
        """Why there are no cycles per instruction; empty if there are, or if no plugin needs them."""
        return self._cycles.problem if self._cycles_cgroups else ""

    def close(self) -> None:
        """Ends the reading, and closes all files."""
        self._reader.close()
        self._cycles.close()
        for each in self._series.values():
            for series in each:
                series.files.close()

    def _window(self, ring: Ring | None, length_s: float) -> Window | None:
        return None if ring is None else summarize(ring.values_after(self._reader.clock() - length_s))

    def _update(self, targets: Mapping[str, Level], needs: frozenset[Need]) -> None:
        """Takes over what is to be read; does nothing if it is as before."""
        wanted = {cgroup: level for cgroup, level in targets.items() if cgroup != NODE_CGROUP}
        wanted[NODE_CGROUP] = Level.NODE
        if wanted == self._levels and needs == self._needs:
            return
        with self._lock:
            for cgroup in [each for each, level in self._levels.items() if wanted.get(each) is not level]:
                del self._levels[cgroup]
                self._cycles_rings.pop(cgroup, None)
                for series in self._series.pop(cgroup):
                    series.files.close()
            for cgroup, level in wanted.items():
                if cgroup not in self._levels:
                    self._add(cgroup, level, self._sources)
            self._needs = needs
            self._windows_s = {}
            for need in needs:
                key = need.level, need.metric
                self._windows_s[key] = max(
                    self._windows_s.get(key, 0.0), min(need.longest_s, LONGEST_WINDOW_S)
                )
            self._schedule()

    def _add(self, cgroup: str, level: Level, sources: Sequence[Source]) -> None:
        below = cgroup.strip("/")
        self._levels[cgroup] = level
        self._series[cgroup] = [
            _Series(cgroup, source, [self._path(folder, file, below, level) for folder, file in source.files])
            for source in sources
        ]

    def _path(self, folder: str, file: str, cgroup: str, level: Level) -> Path:
        return self._folders[folder] / file if level is Level.NODE else self._folders[folder] / cgroup / file

    def _schedule(self) -> None:
        """Distributes the series over the turns, and the descriptors over the series."""
        counted = {level for level, metric in self._windows_s if metric is Metric.CYCLES_PER_INSTRUCTION}
        self._cycles_cgroups = [cgroup for cgroup, level in self._levels.items() if level in counted]
        self._turns = [[] for _ in range(REST_PASSES)]
        rest: list[_Series] = []
        kept = 0
        for index, (cgroup, each) in enumerate(self._series.items()):
            for series in each:
                windows_s = [self._windows_s.get((self._levels[cgroup], metric)) for metric in series.metrics]
                is_needed = any(window_s is not None for window_s in windows_s)
                series.turns = 1 if is_needed else REST_PASSES
                self._resize(series)
                if not is_needed:
                    self._turns[index % REST_PASSES].append(series)
                    rest.append(series)
                    continue
                for turn in self._turns:
                    turn.append(series)
                kept += len(series.files.files)
                series.files.keep(is_kept=kept <= self._most_kept_files)
        for series in rest:
            kept += len(series.files.files)
            series.files.keep(is_kept=kept <= self._most_kept_files)

    def _capacity(self, series: _Series, metric: Metric) -> int:
        """How many samples cover the longest window, with one to spare as passes are not exactly a second."""
        window_s = self._windows_s.get((self._levels[series.cgroup], metric), REST_WINDOW_S / REST_PASSES)
        return int(window_s) + 2 if series.turns == 1 else int(REST_WINDOW_S / REST_PASSES) + 2

    def _resize(self, series: _Series) -> None:
        for index, ring in enumerate(series.rings):
            capacity = self._capacity(series, series.metrics[min(index, len(series.metrics) - 1)])
            if ring is not None and ring.capacity != capacity:
                series.rings[index] = ring.resized(capacity)

    def _append_ratio(self, cgroup: str, ratio: float) -> None:
        level = self._levels.get(cgroup)
        if level is None or (level, Metric.CYCLES_PER_INSTRUCTION) not in self._windows_s:
            return  # It is no target any more since its turn began.
        ring = self._cycles_rings.get(cgroup)
        if ring is None:
            window_s = self._windows_s[level, Metric.CYCLES_PER_INSTRUCTION]
            ring = self._cycles_rings[cgroup] = Ring(int(max(window_s, REST_WINDOW_S) / TURN_PASSES) + 2)
        ring.append(self._reader.clock(), ratio)

    def _store(self, series: _Series, reading: Reading) -> tuple[Loss | None, int]:
        """Makes samples of a reading; the reason if it gives none for a failure, and their number."""
        at_s, numbers, loss, is_replaced = reading
        if loss is not None:
            self._back_off(series, loss)
            return loss, 0
        series.failures = 0
        if is_replaced:
            series.forget()
        source = series.files.source
        try:
            if source.gauge is not None:
                return None, self._append(series, at_s, source.gauge(numbers))
            before, before_s = series.numbers, series.at_s
            if before is not None and at_s - before_s < _LEAST_ELAPSED_S:
                return None, 0
            series.numbers, series.at_s = numbers, at_s
            if before is None or len(before) != len(numbers) or source.rate is None:
                return None, 0
            growth = tuple(map(sub, numbers, before))
            if min(growth) < 0:
                return Loss.COUNTER_BACK, 0
            return None, self._append(series, at_s, source.rate(growth, at_s - before_s))
        except ImplausibleError:
            # The next rate would be as wrong, the other way round.
            series.numbers = None
            return Loss.IMPLAUSIBLE, 0

    def _back_off(self, series: _Series, loss: Loss) -> None:
        """Reads a source less often that fails; after it was gone, what comes is another cgroup."""
        if loss is Loss.NOT_READ:
            return
        if loss is Loss.GONE:
            series.numbers = None
        series.failures += 1
        turns = min(2 ** min(series.failures - 1, 6), _MOST_BACKOFF)
        passes = turns * series.turns if series.turns > 1 else min(turns, _MOST_BACKOFF_PASSES)
        series.resume_at = self._passes + passes

    def _append(self, series: _Series, at_s: float, values: Values) -> int:
        """Adds samples up to the first that cannot be; their number. Raises ImplausibleError."""
        # Twice: the two reads may lie at other moments than their times say.
        limit = 2.0 * self._most_cpus + 1 if Metric.CPU_USAGE in series.metrics else _MOST_BYTES
        made = 0
        for index, value in enumerate(values):
            if value is None:
                continue
            if value > limit:
                raise ImplausibleError
            ring = series.rings[index] if index < len(series.rings) else None
            if ring is None:
                ring = self._new_ring(series, index)
            ring.append(at_s, value)
            made += 1
        return made

    def _new_ring(self, series: _Series, index: int) -> Ring:
        series.rings.extend([None] * (index + 1 - len(series.rings)))
        ring = Ring(self._capacity(series, series.metrics[min(index, len(series.metrics) - 1)]))
        series.rings[index] = ring
        return ring


def _kept_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(soft - _SPARE_DESCRIPTORS, _MOST_KEPT_FILES), 0)


def _numa_nodes(sysfs: Path) -> Sequence[int]:
    """The NUMA nodes, 0 to n; empty if that is not known, or if there are gaps between their numbers."""
    names = [each.name.removeprefix("node") for each in (sysfs / "devices/system/node").glob("node[0-9]*")]
    numbers = sorted(int(name) for name in names if name.isdecimal())
    return numbers if numbers == list(range(len(numbers))) else ()
