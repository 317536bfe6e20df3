"""Follows the kubelet's cgroup tree: containers that come, run their program, are written to, and go.

The kernel reports each folder that is made or removed. It reports no execve, so the first process of a new
container is looked at every few milliseconds, until it is the container's program. Used in the event loop's
thread; folders and files are read in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from runtimeproxy.folder_events import open_inotify
from runtimeproxy.frontends.processes import runs_program

if TYPE_CHECKING:
    from inotify_simple import Event, INotify

logger = logging.getLogger(__name__)

RENEW_S: Final = 60.0
"""How often folders are read without an event while the kubelet's is not known: a prefix of `--cgroup-root`
is watched only once it is in it."""
KNOWN_RENEW_S: Final = 600.0
"""The same once the kubelet's folder is known."""
GATHER_S: Final = 0.002
"""How long events are gathered: runc makes a folder and writes to its files at once."""
POLL_S: Final = 0.01
"""Shortest time between two checks of the first processes of containers that are about to start."""
SLOWER_AFTER: Final = 50
"""A container of a certain age is looked at after a fiftieth of it: one that is started a second after its
creation 20 ms late."""
LONGEST_POLL_S: Final = 0.5
MOST_WAIT_S: Final = 120.0
"""How long a container is looked at. Source: the kubelet waits 2 minutes for a call of the CRI."""
KUBEPODS: Final = "kubepods"
"""Begins, behind the prefix of `--cgroup-root`, the name of the kubelet's outermost folder, or is it."""
MOST_LEVELS: Final = 6
"""From the mount to a pod: a prefix, kubepods, the QoS class, the pod."""
WEIGHTS: Final = ("cpu.shares", "cpu.weight")
"""Each update of a container's resources writes this file, version 1 or 2, and nothing else does.
Source: runc libcontainer/cgroups, (fs.CpuGroup).Set and fs2.setCPU; the kubelet always gives shares."""
CONTROLLERS: Final = ("cpu", "memory", "cpuset")
"""Of version 1: whose files of pods are watched; the first one has the containers."""

_POD: Final = re.compile(r"(?:^|-)pod([^-].*?)(?:\.slice)?$")
"""`podUID`, or a slice `...-podUID.slice`, whose UID has underscores. Source: kubelet,
pkg/kubelet/cm/cgroup_manager_linux.go."""
_CONTAINER: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
"""An id, with the runtime's prefix or without; a scope with the systemd driver."""
_NOT_A_CONTAINER: Final = "conmon"
"""CRI-O's process beside each container."""


class ContainerCgroup(NamedTuple):
    """A folder below a pod's: of its sandbox or of a container."""

    id: str
    pod_uid: str
    cgroup: str
    """Its path below the controller's mount."""


class CgroupListener:
    """Takes what happens in the tree, which is nothing by default; called in the event loop's thread."""

    def on_scanned(self, found: Sequence[ContainerCgroup]) -> None:
        """The whole tree was read for the first time; what is there already is not told one by one."""

    def on_kubelet(self, cgroup: str) -> None:
        """The kubelet's outermost cgroup is this one now; empty: it is gone."""

    def is_running(self, container: ContainerCgroup) -> bool:
        """Whether it is known to have started, so that its first process need not be read."""
        return False

    def on_made(self, container: ContainerCgroup) -> None:
        """A cgroup was made; the runtime writes its values next."""

    def on_started(self, container: ContainerCgroup) -> None:
        """Its first process is the container's program: the runtime has written all its values."""

    def on_removed(self, container: ContainerCgroup) -> None:
        """The cgroup is gone."""

    def on_written(self, cgroup: str, container: ContainerCgroup | None) -> None:
        """Somebody, maybe this process, has written to a container that runs, or to a pod (None)."""


Report: TypeAlias = Callable[[], None]
"""A call of the listener, made in the event loop's thread."""


class CgroupTree:
    """Watches the folders of QoS classes and pods.

    Args:
        executor: A thread that reads folders.
        proc: Where procfs is mounted.

    Attributes:
        problem: Why the kernel does not report all changes; empty if it does.
        is_followed: Whether it does so now.
        sees_processes: Whether processes are visible from here.
        kubelet_root: The kubelet's outermost cgroup; empty as long as there is none.
    """

    def __init__(
        self, root: Path, listener: CgroupListener, executor: Executor, proc: Path = Path("/proc")
    ) -> None:
        self._bases = [root / each for each in CONTROLLERS if (root / each).is_dir()] or [root]
        self._base = self._bases[0]
        self._weight = WEIGHTS[self._base == root]
        self._listener = listener
        self._executor = executor
        self._proc = proc
        self.problem = ""
        self.is_followed = False
        self.sees_processes = True
        self.kubelet_root = ""
        # In the worker thread.
        self._watched: dict[int, Path] = {}
        self._watches: dict[Path, int] = {}
        self._containers: dict[Path, ContainerCgroup] = {}
        self._made_s: dict[Path, float] = {}
        self._scanned_s: float | None = None

    async def run(self) -> None:
        """Follows the tree until it is cancelled; returns where the kernel reports nothing."""
        loop = asyncio.get_running_loop()
        try:
            inotify = await loop.run_in_executor(self._executor, open_inotify)
        except (OSError, ImportError) as error:
            self.problem = str(error)
            logger.warning("changes of cgroups are not reported, and lists are read instead: %s", error)
            self._listener.on_scanned(())
            return
        try:
            while True:
                is_running = self._listener.is_running
                running = {each for each in self._made_s if is_running(self._containers[each])}
                reports = await loop.run_in_executor(self._executor, self._read, inotify, running)
                self.is_followed = not self.problem
                for report in reports:
                    report()
                await _readable(inotify.fileno(), self._rest_s())
                await asyncio.sleep(GATHER_S)
        finally:
            self.is_followed = False
            inotify.close()

    def _rest_s(self) -> float:
        """How long nothing is read without an event."""
        if not self._made_s:
            return self._renew_s
        age_s = time.monotonic() - max(self._made_s.values())
        return min(max(POLL_S, age_s / SLOWER_AFTER), LONGEST_POLL_S)

    @property
    def _renew_s(self) -> float:
        return KNOWN_RENEW_S if self.kubelet_root else RENEW_S

    # In the worker thread.

    def _read(self, inotify: INotify, running: Set[Path]) -> list[Report]:
        """Takes the events, and checks containers that are about to start.

        `running`: those that have started, as others say.
        """
        from inotify_simple import flags

        reports: list[Report] = []
        events, now_s = inotify.read(timeout=0), time.monotonic()
        is_overflow = any(event.mask & flags.Q_OVERFLOW for event in events)
        is_whole = self._scanned_s is None or is_overflow or now_s >= self._scanned_s + self._renew_s
        # Those of before an overflow count, too: of a container that was written to, nothing else tells.
        for event in events:
            is_whole = not self._take(inotify, event, reports) or is_whole
        if is_whole:
            self._scan(inotify, reports)
            self._scanned_s = now_s
        for folder, made_s in tuple(self._made_s.items()):
            has_started = folder in running or self._runs_program(folder)
            if has_started or not self.sees_processes or time.monotonic() >= made_s + MOST_WAIT_S:
                self._end_start(inotify, folder, reports, has_started=has_started)
        return reports

    def _take(self, inotify: INotify, event: Event, reports: list[Report]) -> bool:
        """Takes an event; returns whether it was understood: if not, the whole tree is read."""
        from inotify_simple import flags

        if event.mask & flags.IGNORED:
            folder = self._watched.pop(event.wd, None)
            if folder is not None and self._watches.get(folder) == event.wd:
                del self._watches[folder]
            return True
        if (folder := self._watched.get(event.wd)) is None:
            return True
        if event.mask & flags.MODIFY:
            cgroup = folder.parent if folder.name == self._weight else folder
            container = self._containers.get(cgroup)
            reports.append(partial(self._listener.on_written, self._path(cgroup), container))
            return True
        if not event.mask & flags.ISDIR or not folder.is_relative_to(self._base):
            return True
        is_made = bool(event.mask & (flags.CREATE | flags.MOVED_TO))
        return self._take_folder(inotify, folder / event.name, is_made, reports)

    def _take_folder(self, inotify: INotify, folder: Path, is_made: bool, reports: list[Report]) -> bool:
        if pod_uid(folder.parent.name):
            (self._add if is_made else self._drop)(inotify, folder, reports)
        elif not pod_uid(folder.name):
            return False
        elif not is_made:
            self._drop_pod(inotify, folder, reports)
        elif KUBEPODS in self._path(folder):
            self._add_pod(inotify, folder, reports)
        return True

    def _scan(self, inotify: INotify, reports: list[Report]) -> None:
        """Reads the whole tree."""
        is_first = self._scanned_s is None
        self.problem = "" if self._base.is_dir() else f"{self._base}: no such folder"
        told = [] if is_first else reports
        found: set[Path] = set()
        kubelet_root = ""
        for folder in kubelet_folders(self._base):
            found.add(folder)
            if folder != self._base and not kubelet_root and KUBEPODS in folder.name:
                kubelet_root = self._path(folder)
            if pod_uid(folder.name):
                found.update(self._add_pod(inotify, folder, told))
            else:
                self._watch(inotify, folder)
        for folder in [each for each in self._containers if each not in found]:
            self._drop(inotify, folder, told)
        for path in list(self._watches):
            if found.isdisjoint((path, path.parent, self._base / self._path(path)[1:])):
                self._unwatch(inotify, path)
        if is_first:
            reports.append(partial(self._listener.on_scanned, tuple(self._containers.values())))
        if kubelet_root != self.kubelet_root:
            self.kubelet_root = kubelet_root
            reports.append(partial(self._listener.on_kubelet, kubelet_root))

    def _add_pod(self, inotify: INotify, folder: Path, reports: list[Report]) -> list[Path]:
        """Watches a pod, then takes the containers that are in it."""
        for each in self._same(folder):
            self._watch(inotify, each)
        found = [folder / name for name in folders_in(folder)]
        for each in found:
            self._add(inotify, each, reports)
        return found

    def _add(self, inotify: INotify, folder: Path, reports: list[Report]) -> None:
        identity, uid = container_id(folder.name), pod_uid(folder.parent.name)
        if not identity or folder in self._containers:
            return
        container = ContainerCgroup(identity, uid, self._path(folder))
        self._containers[folder] = container
        self._made_s[folder] = time.monotonic()
        reports.append(partial(self._listener.on_made, container))

    def _runs_program(self, folder: Path) -> bool:
        try:
            found = runs_program(folder, self._proc)
        except (OSError, ValueError):
            return False  # it is gone, as an event says soon
        self.sees_processes = found is not None
        return bool(found)

    def _end_start(self, inotify: INotify, folder: Path, reports: list[Report], *, has_started: bool) -> None:
        del self._made_s[folder]
        # From here on it is not the runtime's start that writes.
        self._watch(inotify, folder / self._weight)
        if has_started:
            reports.append(partial(self._listener.on_started, self._containers[folder]))

    def _drop_pod(self, inotify: INotify, pod: Path, reports: list[Report]) -> None:
        for folder in [each for each in self._containers if each.parent == pod]:
            self._drop(inotify, folder, reports)
        for each in self._same(pod):
            self._unwatch(inotify, each)

    def _drop(self, inotify: INotify, folder: Path, reports: list[Report]) -> None:
        self._unwatch(inotify, folder / self._weight)
        self._made_s.pop(folder, None)
        container = self._containers.pop(folder, None)
        if container is not None:
            reports.append(partial(self._listener.on_removed, container))

    def _watch(self, inotify: INotify, path: Path) -> None:
        """Watches a folder, of a pod with its files, or one file."""
        from inotify_simple import flags

        mask = flags.ONLYDIR | flags.CREATE | flags.DELETE | flags.MOVED_TO | flags.MOVED_FROM
        if path.name == self._weight:
            mask = flags.MODIFY
        elif pod_uid(path.name):
            mask |= flags.MODIFY
        try:
            # The same watch as before, if there is one.
            watch = inotify.add_watch(path, mask)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if not self.problem:
                logger.warning("changes of some cgroups are not reported: %s: %s", path, error)
            self.problem = f"{path}: {error}; see fs.inotify.max_user_watches"
            return
        if self._watches.get(path, watch) != watch:
            # It was removed and made again.
            self._unwatch(inotify, path)
        self._watched[watch], self._watches[path] = path, watch

    def _unwatch(self, inotify: INotify, path: Path) -> None:
        # The kernel keeps the watch of a cgroup that is gone.
        watch = self._watches.pop(path, None)
        if watch is not None:
            self._watched.pop(watch, None)
            with suppress(OSError):
                inotify.rm_watch(watch)

    def _path(self, folder: Path) -> str:
        base = next(each for each in self._bases if folder.is_relative_to(each))
        return f"/{folder.relative_to(base)}"

    def _same(self, pod: Path) -> list[Path]:
        """The folders of a pod in all controllers."""
        return [base / pod.relative_to(self._base) for base in self._bases]


async def _readable(descriptor: int, most_s: float) -> None:
    """Waits until a descriptor is readable; the loop watches it only meanwhile."""
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, is_readable.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)


def kubelet_folders(folder: Path, levels: int = MOST_LEVELS, *, is_inside: bool = False) -> Iterator[Path]:
    """A folder and the kubelet's below it, down to those of pods; each before its children are read.

    Args:
        folder: At first the mount of a controller.
        levels: How many more levels are read.
        is_inside: Whether all children are the kubelet's.
    """
    yield folder
    if not levels:
        return
    is_top = levels == MOST_LEVELS
    for name in folders_in(folder):
        is_kubelets = is_inside or KUBEPODS in name
        if is_kubelets and not pod_uid(name):
            yield from kubelet_folders(folder / name, levels - 1, is_inside=True)
        elif is_kubelets:
            yield folder / name
        elif is_top and any(KUBEPODS in each for each in folders_in(folder / name)):
            # The prefix of `--cgroup-root`.
            yield from kubelet_folders(folder / name, levels - 1)


def folders_in(folder: Path) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    return []


def pod_uid(name: str) -> str:
    """The uid of the pod whose folder has this name; empty if it is no pod's."""
    found = _POD.search(name)
    return found[1].replace("_", "-") if found is not None else ""


def container_id(name: str) -> str:
    """The runtime's id of the container or sandbox whose folder has this name; empty if it is none's."""
    found = _CONTAINER.fullmatch(name)
    return found[1] if found is not None and _NOT_A_CONTAINER not in name else ""
