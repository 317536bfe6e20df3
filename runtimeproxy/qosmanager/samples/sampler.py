"""Samples the node and its cgroups once a second, and answers with windows of them.

What a plugin needs is read in each pass, or as often as the plugin says. All else is read every 30 passes, a
thirtieth of the cgroups in each, so that no pass is much longer than the others. Counters become rates over
the time that really passed between two reads of the same file. Where Malachite is used, its values take the
place of reads while they are fresh.
"""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from runtimeproxy.cgroups.mounts import Mount
from runtimeproxy.qosmanager.plugin import Need
from runtimeproxy.qosmanager.samples.cycles import TURN_PASSES, CycleCounters, perf_event_folder
from runtimeproxy.qosmanager.samples.kernel_files import (
    FileGroup,
    ImplausibleError,
    Numbers,
    Values,
    cgroup_sources,
    node_sources,
)
from runtimeproxy.qosmanager.samples.reader import FileReading, Loss, PassReader, SourceFiles
from runtimeproxy.qosmanager.samples.waits import Delay, RunDelays, pressure_problem, process_folder
from runtimeproxy.qosmanager.samples.windows import Ring, mean_of, summarize
from runtimeproxy.qosmanager.snapshot import (
    NO_FRESH_SAMPLE,
    NODE_CGROUP,
    Level,
    Measured,
    Metric,
    Window,
)
from runtimeproxy.vocabulary import MetricsSource

if TYPE_CHECKING:
    from runtimeproxy.qosmanager.samples.malachite import MalachiteSource

REST_PASSES: Final = 30
"""Metrics that no plugin needs are read once in so many passes."""
REST_WINDOW_S: Final = 300.0
"""How long samples that no plugin needs are kept."""
_PERIODS: Final = [each for each in range(REST_PASSES, 0, -1) if REST_PASSES % each == 0]
"""In passes: how often a series can be read."""
_REST_SAMPLES: Final = int(REST_WINDOW_S / REST_PASSES) + 2
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
    """Figures of one pass."""

    files: int
    samples: int
    losses: Mapping[Loss, int]
    """By reason, how many sources gave no sample."""


class _Series:
    """One source of one cgroup: its files, its counters of before, and its samples."""

    __slots__ = (
        *("at_s", "capacity", "cgroup", "failures", "files", "is_fresh", "loss", "measured_s", "most"),
        *("numbers", "resume_at", "ring", "turns"),
    )

    def __init__(self, cgroup: str, source: FileGroup, folders: Sequence[str], most: float) -> None:
        self.cgroup = cgroup
        self.files = SourceFiles(source, folders)
        self.most = most
        """A larger value cannot be."""
        self.is_fresh = False
        """Whether it is read whatever Malachite has."""
        self.turns = REST_PASSES
        """Read once in so many passes."""
        self.capacity = _REST_SAMPLES
        """How many samples are kept."""
        self.numbers: Numbers | None = None
        self.at_s = 0.0
        self.ring: Ring | None = None
        """A column for each metric, NUMA node or CPU; made with the first sample."""
        self.measured_s = 0.0
        """When what the last sample says was measured."""
        self.failures = 0
        """Since the last reading."""
        self.loss: Loss | None = None
        """Why the last pass has no sample of it; None: it has one, or the first reading of counters."""
        self.resume_at = 0
        """The pass from which on it is read again after failures."""

    def forget(self) -> None:
        """Drops everything of a cgroup that was made anew."""
        self.numbers = None
        self.ring = None

    def take(self, at_s: float, values: Values, measured_s: float) -> bool:
        """Adds values that are not of the files; whether they have all that the ring has."""
        ring = self.ring
        if ring is None:
            ring = self.ring = Ring(self.capacity, len(values))
        if len(values) < ring.columns:
            return False
        # The next rate of the files counts from their next read.
        self.numbers = None
        self.loss = None
        self.measured_s = measured_s
        ring.append(at_s, values[: ring.columns])
        return True

    def resize(self, capacity: int) -> None:
        """Keeps so many samples from now on, as many of those before as fit."""
        self.capacity = capacity
        if self.ring is not None and self.ring.capacity != capacity:
            self.ring = self.ring.resized(capacity)


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

        A usage far above `most_cpus` is not believed. `most_kept_files` is by default what the process may
        open, at most 4,096.
        """
        self._roots = {name: str(mount.folder) for name, mount in mounts.items()}
        self._roots |= {"procfs": str(procfs), "sysfs": str(sysfs)}
        self._sources = cgroup_sources(mounts)
        numa_nodes = _numa_nodes(sysfs)
        self._node_sources = node_sources(numa_nodes)
        self._numa_nodes = len(numa_nodes)
        self._versions = {name: mount.version for name, mount in mounts.items()}
        self._places = _places(self._sources)
        self._node_places = _places(self._node_sources)
        # Twice: the two reads may lie at other moments than their times say.
        self._most_cores = 2.0 * most_cpus + 1
        self._reader = reader or PassReader()
        self._cycles = cycles or CycleCounters(perf_event_folder(mounts), most_cpus)
        self._cycles_rings: dict[str, Ring] = {}
        self._cycles_cgroups: Sequence[str] = ()
        self._procfs = procfs
        self._delay_rings: dict[str, Ring] = {}
        self._threads_of: Sequence[str] = ()
        self._most_kept_files = _kept_files() if most_kept_files is None else most_kept_files
        self._delays = RunDelays(
            process_folder(mounts),
            procfs,
            self._reader.clock,
            most_kept_files=max(_descriptors() - self._most_kept_files, 0),
        )
        self._lock = threading.Lock()
        """For series and rings: `read` changes them, queries come from other threads."""
        self._levels: dict[str, Level] = {}
        self._needs: frozenset[Need] = frozenset()
        self._windows_s: dict[tuple[Level, Metric], float] = {}
        self._every_s: dict[tuple[Level, Metric], float] = {}
        self._series: dict[str, list[_Series]] = {}
        self._turns: list[list[_Series]] = [[] for _ in range(REST_PASSES)]
        """The series to read, by the turn of the pass."""
        self._passes = 0
        self._malachite: MalachiteSource | None = None
        self._losses: Counter[Loss] = Counter()
        self._last_losses: dict[Loss, str] = {}
        self._add(NODE_CGROUP, Level.NODE)
        self._schedule()

    def read(self, targets: Mapping[str, Level], needs: Iterable[Need]) -> PassReport:
        """Makes one pass; to be called once a second. Returns within two seconds even if files hang.

        The metrics that are needed are read in this pass, all else in turns. The node is always a target.
        """
        self._update(targets, frozenset(needs))
        turn = self._turns[self._passes % REST_PASSES]
        self._passes += 1
        # A list that another thread does not touch: it is made anew by `_schedule` only, in this thread.
        due, given = self._given(turn)
        due = [series for series in due if series.resume_at <= self._passes and not series.files.is_stuck]
        readings = self._reader.read([series.files for series in due])
        ratios = self._cycles.step(self._cycles_cgroups)
        delays = self._delays.read(self._threads_of) if self._threads_of else ()
        losses: Counter[Loss] = Counter()
        samples = len(ratios) + len(delays) + given
        with self._lock:
            for cgroup, ratio in ratios:
                self._append_ratio(cgroup, ratio)
            for delay in delays:
                self._append_delay(delay)
            for series, reading in zip(due, readings, strict=True):
                loss, made = self._store(series, reading)
                series.loss = loss
                samples += made
                if loss is not None:
                    losses[loss] += 1
                    self._last_losses[loss] = series.files.files[0].path
            self._losses.update(losses)
        return PassReport(files=len(due), samples=samples, losses=losses)

    def use_malachite(self, url: str) -> None:
        """Asks Malachite from now on, at `http://host:port`; an empty text: only the files. In any thread."""
        before = self._malachite
        if (before.url if before is not None else "") == url:
            return
        source = self.malachite_source(url) if url else None
        self.take_from(source)
        if before is not None:
            before.close()
        if source is not None:
            source.start()

    def take_from(self, source: MalachiteSource | None) -> None:
        """Has the values of a source, which is started and closed elsewhere, take the place of reads."""
        with self._lock:
            self._malachite = source
            if source is not None:
                source.follow(self._levels, self._of_malachite(self._needs))

    def malachite_source(self, url: str) -> MalachiteSource:
        """A source of the groups of metrics that this sampler has; not started, nor in use."""
        # It loads Python's HTTP client, and that OpenSSL.
        from runtimeproxy.qosmanager.samples.malachite import Group, MalachiteSource

        groups = {
            each.metrics[0]: Group(each, self._versions[each.files[0][0]], self._most_of(each))
            for each in self._sources
        }
        node_groups = {each.metrics[0]: Group(each, 0, self._most_of(each)) for each in self._node_sources}
        return MalachiteSource(
            url, groups, node_groups, numa_nodes=self._numa_nodes, clock=self._reader.clock
        )

    def window(self, cgroup: str, metric: Metric, length_s: float) -> Window | None:
        """The samples of the last `length_s` seconds; None: there are none, or the cgroup is not a target."""
        return summarize(self._values(cgroup, metric, length_s))

    def mean(self, cgroup: str, metric: Metric, length_s: float) -> float | None:
        # Without the sorting that a window needs.
        values = self._values(cgroup, metric, length_s)
        return mean_of(values) if values else None

    def _values(self, cgroup: str, metric: Metric, length_s: float) -> Sequence[float]:
        with self._lock:
            found = self._find(cgroup, metric)
            if found is None:
                return ()
            ring, column = found
            return ring.values_after(self._reader.clock() - length_s, column)

    def last(self, cgroup: str, metric: Metric, length_s: float) -> float | None:
        # Much faster than a window.
        with self._lock:
            found = self._find(cgroup, metric)
            return None if found is None else found[0].last_after(self._reader.clock() - length_s, found[1])

    def measured(self, cgroup: str, metric: Metric, length_s: float) -> Measured | None:
        with self._lock:
            place = self._place(cgroup, metric)
            if place is None or (ring := place[0].ring) is None or place[1] >= ring.columns:
                return None
            value = ring.last_after(self._reader.clock() - length_s, place[1])
            return None if value is None else Measured(value, place[0].measured_s)

    def timed(self, cgroup: str, metric: Metric, length_s: float) -> Sequence[tuple[float, float]]:
        with self._lock:
            found = self._find(cgroup, metric)
            if found is None:
                return ()
            return found[0].timed_after(self._reader.clock() - length_s, found[1])

    def absence(self, cgroup: str, metric: Metric) -> str:
        if metric is Metric.CPU_RUN_DELAY:
            return self._delays.problem
        if metric is not Metric.CPU_PRESSURE_FULL:
            return ""
        place = self._places.get(metric)
        with self._lock:
            series = self._series.get(cgroup)
            folder = series[place[0]].files.files[0].folder if series and place is not None else ""
        return pressure_problem(Path(folder), self._procfs) if folder else ""

    def follow_threads(self, cgroups: Sequence[str]) -> None:
        self._threads_of = tuple(cgroups)

    def numa_windows(self, cgroup: str, length_s: float) -> Mapping[int, Window]:
        """Memory by NUMA node over the last `length_s` seconds; empty without samples."""
        return self._parts(cgroup, Metric.MEMORY_NUMA, length_s)

    def cpu_windows(self, length_s: float) -> Mapping[int, Window]:
        """Tasks that run or wait, by CPU of the node; empty without samples."""
        return self._parts(NODE_CGROUP, Metric.CPU_RUNNABLE, length_s)

    def _parts(self, cgroup: str, metric: Metric, length_s: float) -> Mapping[int, Window]:
        with self._lock:
            found = self._find(cgroup, metric)
            if found is None:
                return {}
            ring, after_s = found[0], self._reader.clock() - length_s
            windows = {part: summarize(ring.values_after(after_s, part)) for part in range(ring.columns)}
        return {part: window for part, window in windows.items() if window is not None}

    def missing_reason(self, cgroup: str, metric: Metric) -> str:
        # For people.
        with self._lock:
            place = self._place(cgroup, metric)
            if place is None:
                return NO_FRESH_SAMPLE
            series = place[0]
            source, path = series.files.source, series.files.files[0].path
            if series.loss is Loss.GONE and source.kernel_option:
                return f"the kernel has no {path} ({source.kernel_option})"
            if series.loss is not None:
                return f"{path}: {_LOSS_TEXTS[series.loss]}"
            if series.ring is None:
                return (
                    f"{path} has not been read twice yet" if source.rate else f"{path} has not been read yet"
                )
            return NO_FRESH_SAMPLE

    def losses(self) -> Mapping[Loss, tuple[int, str]]:
        # Since the start, by reason; with the path of the last one.
        with self._lock:
            return MappingProxyType(
                {loss: (count, self._last_losses[loss]) for loss, count in self._losses.items()}
            )

    @property
    def hanging_threads(self) -> int:
        return self._reader.hanging_threads

    @property
    def cycles_problem(self) -> str:
        return self._cycles.problem if self._cycles_cgroups else ""

    @property
    def metrics_source(self) -> tuple[MetricsSource, str]:
        """Where the values of the last pass came from, and why not from where they should."""
        source = self._malachite
        if source is None:
            return MetricsSource.KERNEL, ""
        is_used, problem = source.report()
        return MetricsSource.MALACHITE if is_used else MetricsSource.KERNEL, problem

    def close(self) -> None:
        """Ends the reading, and closes all files."""
        if self._malachite is not None:
            self._malachite.close()
        self._reader.close()
        self._cycles.close()
        self._delays.close()
        for each in self._series.values():
            for series in each:
                series.files.close()

    def _given(self, turn: Sequence[_Series]) -> tuple[Sequence[_Series], int]:
        """Takes the values that Malachite has; returns the series without, and how many have theirs."""
        source = self._malachite
        if source is None:
            return turn, 0
        whole, turn = turn, [series for series in turn if not series.is_fresh]
        found = source.values((series.cgroup, series.files.source.metrics[0]) for series in turn)
        at_s = self._reader.clock()
        rest = [series for series in whole if series.is_fresh]
        with self._lock:
            for series, given in zip(turn, found, strict=True):
                if given is None or not series.take(at_s, given.values, given.at_s):
                    rest.append(series)
        return rest, len(whole) - len(rest)

    def _of_malachite(self, needs: frozenset[Need]) -> frozenset[Need]:
        fresh = {(need.level, need.metric) for need in needs if need.is_fresh}
        return frozenset(need for need in needs if (need.level, need.metric) not in fresh)

    def _most_of(self, source: FileGroup) -> float:
        """No value of the group can be larger."""
        is_cores = source.metrics[0] in (Metric.CPU_USAGE, Metric.CPU_STEAL)
        return self._most_cores if is_cores else _MOST_BYTES

    def _find(self, cgroup: str, metric: Metric) -> tuple[Ring, int] | None:
        """The ring that has the samples, and their column in it."""
        if metric is Metric.CYCLES_PER_INSTRUCTION:
            ring = self._cycles_rings.get(cgroup)
            return None if ring is None else (ring, 0)
        if metric is Metric.CPU_RUN_DELAY:
            ring = self._delay_rings.get(cgroup)
            return None if ring is None else (ring, 0)
        place = self._place(cgroup, metric)
        if place is None:
            return None
        ring, column = place[0].ring, place[1]
        return (ring, column) if ring is not None and column < ring.columns else None

    def _place(self, cgroup: str, metric: Metric) -> tuple[_Series, int] | None:
        place = (self._node_places if cgroup == NODE_CGROUP else self._places).get(metric)
        every_series = self._series.get(cgroup)
        return None if place is None or every_series is None else (every_series[place[0]], place[1])

    def _update(self, targets: Mapping[str, Level], needs: frozenset[Need]) -> None:
        """Takes over targets and needs, if they have changed."""
        wanted = {cgroup: level for cgroup, level in targets.items() if cgroup != NODE_CGROUP}
        wanted[NODE_CGROUP] = Level.NODE
        if wanted == self._levels and needs == self._needs:
            return
        with self._lock:
            for cgroup in [each for each, level in self._levels.items() if wanted.get(each) is not level]:
                del self._levels[cgroup]
                self._cycles_rings.pop(cgroup, None)
                self._delay_rings.pop(cgroup, None)
                for series in self._series.pop(cgroup):
                    series.files.close()
            for cgroup, level in wanted.items():
                if cgroup not in self._levels:
                    self._add(cgroup, level)
            self._needs = needs
            self._windows_s, self._every_s = {}, {}
            for need in needs:
                key = need.level, need.metric
                self._every_s[key] = min(self._every_s.get(key, need.every_s), need.every_s)
                self._windows_s[key] = max(
                    self._windows_s.get(key, 0.0), min(need.longest_s, LONGEST_WINDOW_S)
                )
            self._schedule()
            if self._malachite is not None:
                self._malachite.follow(self._levels, self._of_malachite(needs))

    def _add(self, cgroup: str, level: Level) -> None:
        is_node = level is Level.NODE
        # One text for all files of a folder.
        folders = {
            root: root if is_node else f"{root}/{cgroup.strip('/')}" for root in set(self._roots.values())
        }
        self._levels[cgroup] = level
        self._series[cgroup] = [
            _Series(
                cgroup,
                source,
                [folders[self._roots[name]] for name, _ in source.files],
                self._most_of(source),
            )
            for source in (self._node_sources if is_node else self._sources)
        ]

    def _schedule(self) -> None:
        """Distributes the series over the turns, and the descriptors over the series."""
        counted = {level for level, metric in self._windows_s if metric is Metric.CYCLES_PER_INSTRUCTION}
        fresh = {(need.level, need.metric) for need in self._needs if need.is_fresh}
        self._cycles_cgroups = [cgroup for cgroup, level in self._levels.items() if level in counted]
        self._turns = [[] for _ in range(REST_PASSES)]
        rest: list[_Series] = []
        kept = 0
        for index, (cgroup, each) in enumerate(self._series.items()):
            for series in each:
                keys = [(self._levels[cgroup], metric) for metric in series.files.source.metrics]
                longest_s = max(
                    (self._windows_s[key] for key in keys if key in self._windows_s), default=None
                )
                series.is_fresh = any(key in fresh for key in keys)
                if longest_s is None and series.files.source.is_on_demand:
                    series.files.close()
                    series.forget()
                    continue
                if longest_s is None:
                    series.turns = REST_PASSES
                    series.resize(_REST_SAMPLES)
                    self._turns[index % REST_PASSES].append(series)
                    rest.append(series)
                    continue
                every_s = min(self._every_s[key] for key in keys if key in self._every_s)
                series.turns = next((each for each in _PERIODS if each <= every_s), 1)
                series.resize(_samples_of(longest_s / series.turns))
                for turn in self._turns[index % series.turns :: series.turns]:
                    turn.append(series)
                kept += len(series.files.files)
                series.files.is_kept = kept <= self._most_kept_files
        for series in rest:
            kept += len(series.files.files)
            series.files.is_kept = kept <= self._most_kept_files

    def _append_ratio(self, cgroup: str, ratio: float) -> None:
        level = self._levels.get(cgroup)
        if level is None or (level, Metric.CYCLES_PER_INSTRUCTION) not in self._windows_s:
            return  # It is no target any more since its turn began.
        ring = self._cycles_rings.get(cgroup)
        if ring is None:
            window_s = self._windows_s[level, Metric.CYCLES_PER_INSTRUCTION]
            ring = self._cycles_rings[cgroup] = Ring(_samples_of(max(window_s, REST_WINDOW_S) / TURN_PASSES))
        ring.append(self._reader.clock(), (ratio,))

    def _append_delay(self, delay: Delay) -> None:
        window_s = self._windows_s.get((Level.POD, Metric.CPU_RUN_DELAY))
        if delay.cgroup not in self._levels or window_s is None:
            return
        ring = self._delay_rings.get(delay.cgroup)
        if ring is None:
            ring = self._delay_rings[delay.cgroup] = Ring(_samples_of(window_s))
        ring.append(delay.at_s, (delay.share,))

    def _store(self, series: _Series, reading: FileReading) -> tuple[Loss | None, int]:
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
                return None, _append(series, at_s, source.gauge(numbers))
            before, before_s = series.numbers, series.at_s
            if before is not None and at_s - before_s < _LEAST_ELAPSED_S:
                return None, 0
            series.numbers, series.at_s = numbers, at_s
            if before is None or len(before) != len(numbers) or source.rate is None:
                return None, 0
            growth = tuple(map(sub, numbers, before))
            if min(growth) < 0:
                return Loss.COUNTER_BACK, 0
            return None, _append(series, at_s, source.rate(growth, at_s - before_s))
        except ImplausibleError:
            # The next rate would be as wrong, the other way round.
            series.numbers = None
            return Loss.IMPLAUSIBLE, 0

    def _back_off(self, series: _Series, loss: Loss) -> None:
        """Backs off a failing source; after it was gone, the next one is of another cgroup."""
        if loss is Loss.NOT_READ:
            return
        if loss is Loss.GONE:
            series.numbers = None
        series.failures += 1
        turns = min(2 ** min(series.failures - 1, 6), _MOST_BACKOFF)
        passes = turns * series.turns if series.turns > 1 else min(turns, _MOST_BACKOFF_PASSES)
        series.resume_at = self._passes + passes


def _append(series: _Series, at_s: float, values: Values) -> int:
    """Adds samples; their number. Raises ImplausibleError."""
    if max(values) > series.most:
        raise ImplausibleError
    ring = series.ring
    if ring is None or ring.columns != len(values):
        ring = series.ring = Ring(series.capacity, len(values))
    series.measured_s = at_s
    ring.append(at_s, values)
    return len(values)


_LOSS_TEXTS: Final[Mapping[Loss, str]] = {
    Loss.GONE: "there is no such file",
    Loss.UNREADABLE: "it cannot be read",
    Loss.GARBAGE: "its content is not that of such a file",
    Loss.COUNTER_BACK: "a counter is less than before",
    Loss.IMPLAUSIBLE: "its values cannot be",
    Loss.STUCK: "a read has not returned",
    Loss.NOT_READ: "it was not read, as others were stuck",
}


def _samples_of(seconds: float) -> int:
    # One to spare, as passes are not exactly a second apart.
    return int(seconds) + 2


def _places(sources: Sequence[FileGroup]) -> dict[Metric, tuple[int, int]]:
    return {
        metric: (index, column)
        for index, source in enumerate(sources)
        for column, metric in enumerate(source.metrics)
    }


def _descriptors() -> int:
    """How many may stay open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - _SPARE_DESCRIPTORS, 0)


def _kept_files() -> int:
    return min(_descriptors(), _MOST_KEPT_FILES)


def _numa_nodes(sysfs: Path) -> Sequence[int]:
    """The NUMA nodes, 0 to n; empty if that is not known, or if there are gaps between their numbers."""
    names = [each.name.removeprefix("node") for each in (sysfs / "devices/system/node").glob("node[0-9]*")]
    numbers = sorted(int(name) for name in names if name.isdecimal())
    return numbers if numbers == list(range(len(numbers))) else ()
