"""Follows the kubelet's cgroup tree: a pod's folder that comes, goes or gets a child is a reason to look.

A runtime without events says only in its lists that something has started; the kernel says at once that a
cgroup was made. Used in the event loop's thread; folders are read in a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.folder_events import open_inotify

if TYPE_CHECKING:
    from inotify_simple import INotify

logger = logging.getLogger(__name__)

RENEW_S: Final = 60.0
"""How often folders are read without an event: the prefix of `--cgroup-root` is watched only once the
kubelet's folder is in it."""
GATHER_S: Final = 0.1
"""How long changes are gathered: a pod that starts makes a dozen."""
KUBEPODS: Final = "kubepods"
"""Begins, behind the prefix of `--cgroup-root`, the name of the kubelet's outermost folder, or is it."""
MOST_LEVELS: Final = 6
"""From the mount to a pod: a prefix, kubepods, the QoS class, the pod."""


class CgroupTree:
    """Watches the folders of QoS classes and pods.

    Args:
        on_change: Called when a folder has come or gone.
        executor: A thread that reads folders.

    Attributes:
        problem: Why the kernel does not report all changes; empty if it does.
    """

    def __init__(self, root: Path, on_change: Callable[[], None], executor: Executor) -> None:
        self._root = root
        self._on_change = on_change
        self._executor = executor
        self._changed = asyncio.Event()
        self.problem = ""

    async def run(self) -> None:
        """Follows the tree until it is cancelled; returns where the kernel reports nothing."""
        loop = asyncio.get_running_loop()
        try:
            inotify = await loop.run_in_executor(self._executor, open_inotify)
        except (OSError, ImportError) as error:
            self.problem = str(error)
            logger.warning("changes of cgroups are not reported, and lists are read instead: %s", error)
            return
        loop.add_reader(inotify.fileno(), self._changed.set)
        try:
            while True:
                self._changed.clear()
                if await loop.run_in_executor(self._executor, self._renew, inotify):
                    self._on_change()
                with suppress(TimeoutError):
                    async with asyncio.timeout(RENEW_S):
                        await self._changed.wait()
                await asyncio.sleep(GATHER_S)
        finally:
            loop.remove_reader(inotify.fileno())
            inotify.close()

    def _renew(self, inotify: INotify) -> bool:
        """Takes the events, and watches the folders that are there now; returns whether there were any.

        Where the kernel's queue has overflowed nothing more is to be done: all folders are read.
        """
        from inotify_simple import flags

        has_changed = bool(inotify.read(timeout=0))
        mask = flags.ONLYDIR | flags.CREATE | flags.DELETE | flags.MOVED_TO | flags.MOVED_FROM
        problem = ""
        base = self._root / "cpu" if (self._root / "cpu").is_dir() else self._root
        for folder in kubelet_folders(base):
            try:
                # Watched before its children are read; the same watch as before, if there is one.
                inotify.add_watch(folder, mask)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                problem = f"{folder}: {error}; see fs.inotify.max_user_watches"
        if problem and not self.problem:
            logger.warning("changes of some cgroups are not reported: %s", problem)
        self.problem = problem
        return has_changed


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
        if is_kubelets and not is_pod(name):
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


def is_pod(name: str) -> bool:
    # `podUID`, or a slice `...-podUID.slice`.
    return name.startswith("pod") or "-pod" in name
