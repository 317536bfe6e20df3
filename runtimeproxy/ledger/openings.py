"""Openings: while a pod starts, the bound on the CPU of its class is lifted for a short time.

A bounded class of best-effort pods may have no CPU left for one that starts: its start would take minutes,
and the runtime's process in its cgroup is throttled with locks of the kernel that starts of all pods need. So
the daemon itself adds to the bound while the pod starts, without a round trip to who claims it. In the
algebra (`hooks.algebra`): s4 = min(s3, at_most + opening). Other values, such as `cpu.idle`, are not lifted.

A bound by CPUs (`cpuset.cpus`) is not lifted, either: nothing below it is throttled, so what holds a lock of
the kernel goes on to run; a guard uses it from two whole CPUs on; and another CPU would be a write to each
cgroup of the class on version 1, with its tasks moved, twice for each start.

`Openings` has the rules, and is pure: times are arguments. `ClassOpenings` follows the pods, and has the
values written. What is open is lost with the process; a restart gives the bound back as it was claimed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_id, cgroup_path
from runtimeproxy.errors import described
from runtimeproxy.fields.tables import QUOTA
from runtimeproxy.hooks.algebra import Role
from runtimeproxy.ledger.answers import class_cgroups
from runtimeproxy.ledger.tree import Path
from runtimeproxy.logs import FailureLog
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.qos import KubeQoSClass, kube_qos_class
from runtimeproxy.state.state_file import StateFile
from runtimeproxy.units import CPU_PERIOD_US

if TYPE_CHECKING:
    from runtimeproxy.ledger.book_store import Books
    from runtimeproxy.ledger.leased import InWorker
    from runtimeproxy.ledger.ledger import Ledger
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)

OPENING_US: Final = CPU_PERIOD_US
"""What one pod adds to the bound: 1,000 millicores, as a quota for a period of 100 ms."""
MOST_OPEN: Final = 2
"""Pods that add to it at a time, of the whole node; the others wait for their turn."""
MOST_OPEN_S: Final = 20.0
"""How long one pod adds to it."""
AFTER_START_S: Final = 2.0
"""How long it goes on after the answer to StartContainer."""
MOST_IN_A_MINUTE: Final = 6
"""Openings in any 60 s, so that pods in a crash loop, which start and end within seconds, do not hold the
bound open. Six that never have a container that runs do: each has its `MOST_OPEN_S`."""
MINUTE_S: Final = 60.0
AGAIN_S: Final = 600.0
"""How long a pod that has had an opening comes after those that had none: pods whose sandboxes fail again and
again would otherwise have all of them."""
MOST_WAIT_S: Final = 120.0
"""How long a pod that starts may wait for its turn. Source: the kubelet gives the runtime 2 x 2 minutes for a
sandbox and a container (pkg/kubelet/cri/remote)."""
MOST_STARTING: Final = 256
"""Pods that are followed at a time; more than a node has."""
SAVED: Final = "openings.json"
"""In the state folder: what is added to bounds now, by cgroup. The file of a quota alone does not say it."""
RETRY_S: Final = 1.0
"""Until another attempt, when something could not be written."""


class Starts(StrEnum):
    """The pods whose starts lift the bound of a class (`ledger.openings`)."""

    OFF = "off"
    BEST_EFFORT = "best-effort"
    """Those of the bounded class."""
    ALL = "all"
    """Those of other classes, too: they lift the bound of the best-effort class, whose throttled tasks may
    hold what their start needs."""


class NotOpened(StrEnum):
    """Why a pod that started below a bound had no opening."""

    AT_ONCE = "at-once"
    """Others had theirs all the time."""
    RATE = "rate"
    """There had been `MOST_IN_A_MINUTE` of them."""


@dataclass(slots=True)
class _Starting:
    cgroup: Path
    """Of the class whose bound it lifts."""
    begun_s: float
    opened_s: float | None = None
    started_s: float | None = None
    """Of the last answer to StartContainer."""
    waits: NotOpened | None = None
    """Why it had to wait at the last look."""

    def end_s(self) -> float:
        last_s = self.begun_s + MOST_WAIT_S if self.opened_s is None else self.opened_s + MOST_OPEN_S
        return last_s if self.started_s is None else min(last_s, self.started_s + AFTER_START_S)


class Openings:
    """Which pods lift which bound. Pure: times are given, by a clock that never goes back.

    Attributes:
        opened: How many openings there have been.
        not_opened: How many pods started below a bound without one, by cause.
    """

    def __init__(self) -> None:
        self._pods: dict[str, _Starting] = {}
        self._opened_s: deque[float] = deque(maxlen=MOST_IN_A_MINUTE)
        # By pod, when it had its last one, within `AGAIN_S`.
        self._had_s: dict[str, float] = {}
        self.opened = 0
        self.not_opened: Counter[NotOpened] = Counter()

    def begin(self, uid: str, cgroup: Path, now_s: float) -> None:
        """A pod begins to start; the same one again, while it is followed, changes nothing.

        `cgroup`: of the class whose bound it lifts.
        """
        if uid not in self._pods and len(self._pods) < MOST_STARTING:
            self._pods[uid] = _Starting(cgroup, now_s)

    def started(self, uid: str, now_s: float) -> None:
        # A container of the pod runs.
        if (pod := self._pods.get(uid)) is not None:
            pod.started_s = now_s

    def end(self, uid: str) -> None:
        # The pod was not created, or is gone.
        self._pods.pop(uid, None)

    def is_followed(self, uid: str) -> bool:
        return uid in self._pods

    def look(self, now_s: float, is_bounded: Callable[[Path], bool]) -> dict[Path, int]:
        """Ends what is over, and opens for those that wait: the oldest first of those that had none lately.

        Returns:
            What to add to the bound of each class, as a quota.
        """
        for uid, pod in list(self._pods.items()):
            if now_s >= pod.end_s():
                del self._pods[uid]
                if pod.opened_s is None and pod.waits is not None:
                    self.not_opened[pod.waits] += 1
        self._had_s = {uid: had_s for uid, had_s in self._had_s.items() if now_s - had_s < AGAIN_S}
        for uid, pod in sorted(self._pods.items(), key=lambda each: each[0] in self._had_s):
            if pod.opened_s is not None:
                continue
            is_needed = is_bounded(pod.cgroup)
            # Without a bound it waits for no turn, whatever it waited for before.
            pod.waits = self._why_not(now_s) if is_needed else None
            if is_needed and pod.waits is None:
                pod.opened_s = self._had_s[uid] = now_s
                self._opened_s.append(now_s)
                self.opened += 1
        found: Counter[Path] = Counter()
        for pod in self._pods.values():
            if pod.opened_s is not None:
                found[pod.cgroup] += OPENING_US
        return dict(found)

    def _why_not(self, now_s: float) -> NotOpened | None:
        if sum(pod.opened_s is not None for pod in self._pods.values()) >= MOST_OPEN:
            return NotOpened.AT_ONCE
        is_full = len(self._opened_s) == MOST_IN_A_MINUTE
        return NotOpened.RATE if is_full and now_s - self._opened_s[0] < MINUTE_S else None

    def next_s(self, now_s: float) -> float | None:
        """When to look again; None: not before something happens."""
        times = [pod.end_s() for pod in self._pods.values()]
        if any(pod.waits is NotOpened.RATE and pod.opened_s is None for pod in self._pods.values()):
            times.append(max(self._opened_s[0] + MINUTE_S, now_s))
        return min(times, default=None)

    def open_until_s(self) -> dict[str, float]:
        """The pods that lift a bound now, by uid, and until when."""
        # Another thread may ask.
        return {uid: pod.end_s() for uid, pod in tuple(self._pods.items()) if pod.opened_s is not None}

    def waiting(self) -> dict[str, NotOpened]:
        """The pods that wait for their turn, by uid, and why."""
        return {
            uid: pod.waits
            for uid, pod in tuple(self._pods.items())
            if pod.opened_s is None and pod.waits is not None
        }


def has_bound(books: Books, cgroup: Path) -> bool:
    """Whether something bounds the quota of a cgroup itself."""
    known = books.find(cgroup)
    entry = known.book.entries.get(QUOTA) if known is not None else None
    return entry is not None and any(claim.role is Role.AT_MOST for claim in entry.claims)


def lifted_class(cgroup_parent: str, starts: Starts) -> Path | None:
    """Return the class whose bound a pod lifts while it starts; None for none.

    `cgroup_parent`: of the pod.
    """
    qos = kube_qos_class(cgroup_parent)
    if starts is Starts.OFF or (qos is not KubeQoSClass.BEST_EFFORT and starts is not Starts.ALL):
        return None
    try:
        found = class_cgroups([(cgroup_path(cgroup_parent), qos)]).get(KubeQoSClass.BEST_EFFORT)
    except CgroupPathError:
        return None
    return None if found is None else cgroup_path(found)


class ClassOpenings:
    """Follows pods that start, and has the bounds of their classes lifted. Used in the event loop's thread.

    Args:
        is_idle: Whether nothing is to be written: the bypass is on, or another process decides.
        is_ready: Whether the claims of the process before this one are known.
        clock: CLOCK_MONOTONIC in seconds.

    Attributes:
        starts: Which pods.
        now_s: The clock.
        rules: What is open, and what waits.
        problem: Why bounds cannot be lifted, or not be lowered again; empty if they can.
        file: What is added to bounds now, for a process after this one.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: PodStore,
        in_worker: InWorker,
        is_idle: Callable[[], bool],
        is_ready: Callable[[], bool],
        folder: FilePath,
        boot_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._books = ledger.books
        self._store = store
        self._in_worker = in_worker
        self._is_idle = is_idle
        self._is_ready = is_ready
        self.now_s = clock
        # By pod, its containers that have started since it began to.
        self._started: dict[str, set[str]] = {}
        # What the file says, which is never less than what a quota has.
        self._noted_us: Mapping[Path, int] = {}
        self._wake = asyncio.Event()
        self._failures = FailureLog(output=logger)
        self.starts = Starts.BEST_EFFORT
        self.rules = Openings()
        self.problem = ""
        # Never synced: a reboot ends all that it is about.
        self.file = StateFile(
            folder / SAVED, "bounds may stay lifted", version=1, boot_id=boot_id, is_synced=False
        )

    async def load(self) -> None:
        """Reads what the process before this one has added: to be awaited before claims are restored."""
        saved = await self._in_worker(partial(self.file.load, _openings_of))
        self._books.openings_us = self._noted_us = saved or {}
        self._wake.set()

    # --- what happens to pods ----------------------------------------------------------------------------

    def on_starting(self, uid: str, cgroup_parent: str) -> None:
        """A pod is about to be created, or its first cgroup has just been made."""
        cgroup = lifted_class(cgroup_parent, self.starts) if uid and not self._is_idle() else None
        if cgroup is not None:
            self.rules.begin(uid, cgroup, self.now_s())
            self._wake.set()

    def on_not_created(self, uid: str) -> None:
        if self.rules.is_followed(uid):
            self.rules.end(uid)
            self._wake.set()

    def on_container(self, identity: str) -> None:
        """The record of a container has changed."""
        container = self._store.containers.get(identity)
        pod = self._store.pods.get(container.pod_id) if container is not None else None
        if container is None or pod is None or container.state is not Lifecycle.RUNNING:
            return
        if not self.rules.is_followed(pod.uid):
            return
        started = self._started.setdefault(pod.uid, set())
        if identity not in started:
            started.add(identity)
            self.rules.started(pod.uid, self.now_s())
            self._wake.set()

    # --- time --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        # Until it is cancelled.
        while True:
            pause_s: float | None = None
            try:
                is_done = await self.look()
                next_s = self.rules.next_s(self.now_s())
                pause_s = None if next_s is None else max(0.0, next_s - self.now_s())
                if not is_done:
                    pause_s = RETRY_S
            except Exception:  # a bug costs this look, not the next one
                logger.exception("bounds of classes could not be lifted")
                pause_s = RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()

    async def look(self) -> bool:
        """Does what is due now; returns whether all of it could be done."""
        wanted = self.rules.look(self.now_s(), partial(has_bound, self._books))
        self._started = {uid: ids for uid, ids in self._started.items() if self.rules.is_followed(uid)}
        if wanted == self._books.openings_us == self._noted_us and not self.problem:
            return True
        if self._is_idle() or not self._is_ready():
            return False
        try:
            self.problem = await self._in_worker(partial(self._write, wanted))
        except (OSError, TimeoutError) as error:
            self.problem = described(error)
        if self.problem:
            self._failures.report("openings", "unwritten", f"bounds cannot be moved: {self.problem}")
        return not self.problem

    def _write(self, wanted: Mapping[Path, int]) -> str:
        """Moves the bounds; for a worker thread. Returns why one could not be moved, else an empty text."""
        before = self._noted_us
        paths = sorted({*before, *wanted})
        most = {path: max(before.get(path, 0), wanted.get(path, 0)) for path in paths}
        # A killed process would leave in a quota what the file does not say.
        self._save(most)
        self._books.openings_us = wanted
        unwritten = self._ledger.settle_bounds(paths)
        left = {path: most[path] for path in unwritten}
        self._save({**wanted, **left})
        return next(iter(unwritten.values()), "")

    def _save(self, openings_us: Mapping[Path, int]) -> None:
        openings_us = {path: us for path, us in openings_us.items() if us}
        self.file.save({"quota_us": {cgroup_id(path): us for path, us in openings_us.items()}})
        self._noted_us = openings_us


def _openings_of(document: Mapping[str, Any]) -> dict[Path, int]:
    found = {cgroup_path(cgroup): int(us) for cgroup, us in document["quota_us"].items()}
    if any(not 0 <= us <= MOST_OPEN * OPENING_US for us in found.values()):
        raise ValueError("not what an opening adds")
    return found
