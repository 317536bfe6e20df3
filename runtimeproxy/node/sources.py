"""Watches the inputs of a node by the kernel's events and by polling, and has the present snapshot."""

from __future__ import annotations

import asyncio
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from runtimeproxy.cgroups.pace import with_rests
from runtimeproxy.errors import described
from runtimeproxy.folder_events import FolderWatch, WatchSettings
from runtimeproxy.node.api_server import ApiServerInputs
from runtimeproxy.node.derived import SharedCpus, empty_pools
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.inputs import InputPlaces, InputsReading, NodeInputs
from runtimeproxy.node.snapshot import Input, InputState, Node, PodCpus, Pools

if TYPE_CHECKING:
    from runtimeproxy.katalyst.targets import TargetState
    from runtimeproxy.katalyst.transition import PlacedPools
    from runtimeproxy.slo.reading import Problem as StrategyProblem

logger = logging.getLogger(__name__)

OnChange = Callable[[Node, frozenset[Input]], None]
OnPodsChanged = Callable[[Node, frozenset[str]], None]

FIRST_READ_S: Final = 3.0
"""How long policies wait for the first pass, because a file system may hang. Less than `hooks.budget_s`."""

MOST_LINES: Final = 100
"""Lines of the log about problems and notes in a minute; the others are logged later."""
_MINUTE_S: Final = 60.0

_NOT_MISSED: Final = frozenset({Input.POD_REQUESTS, Input.BLOCK_DEVICES, Input.CPU_POOLS})
"""Inputs that many nodes do not have: kubelets before 1.33 write none, and containers may see no devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWatchSettings(WatchSettings):
    """How the inputs are watched: a changed file counts in well under 3 s."""

    least_s: float = 1.0
    """Least time between two snapshots."""


class NodeSources:
    """The node that these places describe: a `NodeSource`; used in the event loop's thread, but for that.

    The executor has one thread for reading files, and may hang with them.
    """

    def __init__(
        self,
        places: InputPlaces,
        executor: Executor,
        settings: InputWatchSettings | None = None,
        api_server: ApiServerInputs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change: OnChange | None = None
        """Called with each new snapshot and the inputs that have changed."""
        self.on_pods_changed: OnPodsChanged | None = None
        """Called with a new snapshot, and the uids of pods that the API server has changed."""
        self.settled = asyncio.Event()
        """Set once everything has been read."""
        self.looked_s: float | None = None
        """End of the last pass, by the clock."""
        self._executor = executor
        self._allocations: Mapping[str, PodCpus] | None = None
        # Katalyst's pools, with the state of this input.
        self._cpu_pools: tuple[PlacedPools | None, InputState] = (None, InputState.UNKNOWN)
        self._settings = settings or InputWatchSettings()
        self._clock = clock
        self._facts = NodeReader(places.sysfs, places.cgroup_root, clock, places.devfs)
        self._inputs = NodeInputs(places, self._facts, api_server)
        watched = (places.objects_dir, places.kubelet_dir, places.cdi_dir)
        folders = [folder for folder in watched if folder is not None]
        self._watch = FolderWatch("node", folders, self._settings)
        self._base = self.latest = Node()
        self.fresh_until_s = 0.0
        # Held while `latest` is made; who reads it needs no lock.
        self._lock = threading.Lock()
        self._made_of: tuple[object, ...] = (None,) * 5
        # What computed pools follow from, and the pools.
        self._shared: SharedCpus | None = None
        self._pools: Pools | None = None
        self._pools_generation = 0
        self._reported_pools: Pools | None = None
        self._of_look: tuple[str, ...] = ()
        self._of_pools: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.strategy_problems: tuple[StrategyProblem, ...] = ()
        self.katalyst_targets: tuple[TargetState, ...] = ()
        self.look_began_s: float | None = None
        """Begin of the present pass, in seconds since the epoch."""
        self._reported: set[str] = set()
        self._lines, self._lines_since_s = 0, clock()
        self._is_restored = False

    def may_have_claims(self) -> bool:
        """Whether containers may have CPUs of DRA claims, as far as known."""
        return not self.settled.is_set() or bool(self.latest.claimed_cpus)

    def look_soon(self) -> None:
        self._watch.wake.set()

    def snapshot(self) -> Node:
        """The present node; reads facts that are older than a second."""
        self._facts.facts()
        return self._renewed()

    def _renewed(self) -> Node:
        # In any thread.
        with self._lock:
            # First, because another thread may read the facts again just now.
            fresh_until_s = self._facts.fresh_until_s
            base, facts, allocations, shared, cpu_pools = made_of = (
                self._base,
                self._facts.latest,
                self._allocations,
                self._shared,
                self._cpu_pools,
            )
            if any(map(operator.is_not, made_of[:-1], self._made_of[:-1])):
                placed, state = cpu_pools
                states = {**base.states, Input.CPU_POOLS: state}
                node = replace(
                    base, facts=facts, allocations=allocations or {}, cpu_pools=placed, states=states
                )
                if shared is not None and allocations is not None:
                    if (pools := shared.pools(allocations.values())) != self._pools:
                        self._pools = pools
                        self._pools_generation += 1
                    node = replace(
                        node,
                        pools=self._pools,
                        states={**states, Input.POOLS: InputState.KNOWN},
                        generations={**base.generations, Input.POOLS: self._pools_generation},
                    )
                self._made_of, self.latest = made_of, node
            elif cpu_pools is not self._made_of[-1]:
                # Each call that changes them has this.
                self._made_of, self.latest = made_of, self.latest.with_cpu_pools(*cpu_pools)
            self.fresh_until_s = fresh_until_s
            return self.latest

    @property
    def polling_reason(self) -> str:
        # Why the kernel reports no changes of files, which are polled then; empty if it does.
        return self._watch.polling_reason

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self._of_look, *self._of_pools)

    @property
    def summary(self) -> str:
        """A part of the status line; empty if everything is known and usable."""
        unknown = [
            each
            for each, state in self.latest.states.items()
            if state is InputState.UNKNOWN and each not in _NOT_MISSED
        ]
        parts = [f"{', '.join(unknown)} unknown"] if unknown else []
        if self.problems:
            count = len(self.problems)
            parts.append("1 problem" if count == 1 else f"{count} problems")
        return f"node: {', '.join(parts)}" if parts else ""

    async def restore(self) -> None:
        # Until the first pass.
        if not self._is_restored:
            self._is_restored = True
            run = asyncio.get_running_loop().run_in_executor
            restore = partial(self._inputs.restore, self._clock())
            self._publish(await run(self._executor, self._guarded, restore))

    async def run(self) -> None:
        """Watches until it is cancelled."""
        await self.restore()
        job: Future[tuple[InputsReading, str | None]] | None = None
        is_first = True
        try:
            while True:
                self._watch.wake.clear()
                self.look_began_s = time.time()
                job = self._executor.submit(self._look, is_first)
                look, no_events = await asyncio.wrap_future(job)
                self.looked_s = self._clock()
                self.look_began_s = None
                changed_s = self._clock() if self._publish(look) else None
                self._watch.report(no_events)
                self.settled.set()
                is_first = False
                needs_polling = bool(no_events) or look.needs_polling
                await self._watch.wait(needs_polling=needs_polling, most_s=look.wait_s)
                if changed_s is not None:
                    await asyncio.sleep(changed_s + self._settings.least_s - self._clock())
        finally:
            self._watch.close_after(job)

    async def read(self) -> None:
        try:
            async with asyncio.timeout(FIRST_READ_S):
                await self.settled.wait()
        except TimeoutError:
            logger.warning("node: its inputs cannot be read in time: calls go on with what was known before")

    def allocate(self, allocations: Mapping[str, PodCpus]) -> None:
        # Computes the pools at once.
        if allocations != self._allocations:
            self._allocations = allocations
            self._announce(frozenset())

    def place(self, pools: PlacedPools | None, state: InputState) -> None:
        """Takes Katalyst's pools; all pods are evaluated again only if the state is another one."""
        placed, before = self._cpu_pools
        has_changed = state is not before
        if pools is placed and not has_changed:
            return
        self._cpu_pools = (pools, state)
        self._announce(frozenset({Input.CPU_POOLS} if has_changed else ()))

    def _look(self, is_first: bool) -> tuple[InputsReading, str | None]:
        """One pass, after the watches are renewed so that no event is missed; in the executor's thread."""
        no_events = self._watch.renew()
        read = partial(self._guarded, partial(self._inputs.look, self._clock(), is_first=is_first))
        # Calls wait for the first pass; later ones leave the CPU to calls, however large the files are.
        look = read() if is_first else with_rests(read)
        return look, no_events

    def _guarded(self, read: Callable[[], InputsReading]) -> InputsReading:
        # Nothing that is read may end the watch, whatever it makes of the code.
        try:
            return read()
        except Exception as error:
            logger.debug("node: internal error", exc_info=True)
            problem = f"internal error: {described(error)}; what was there before stays"
            return InputsReading(
                self._base,
                frozenset(),
                (problem,),
                (),
                wait_s=None,
                needs_polling=False,
                shared=self._shared,
            )

    def _publish(self, look: InputsReading) -> bool:
        """Makes the pass's node the present one; returns whether something has changed."""
        self._base, self._shared = look.node, look.shared
        self._of_look, self.notes = look.problems, look.notes
        self.strategy_problems = look.strategy_problems
        self.katalyst_targets = look.katalyst_targets
        self._report(look.problems, logging.WARNING)
        self._report(look.notes, logging.INFO)
        self._reported &= {*self.problems, *look.notes}
        has_changed = self._announce(look.changed)
        if look.changed_pods and self.on_pods_changed is not None:
            self.on_pods_changed(self.latest, look.changed_pods)
        return has_changed or bool(look.changed_pods)

    def _announce(self, changed: frozenset[Input]) -> bool:
        """Makes the present node; returns whether an input has changed, pools included."""
        node = self._renewed()
        if node.pools != self._reported_pools:
            changed |= {Input.POOLS}
            self._of_pools = empty_pools(node.pools, is_computed=self._shared is not None)
            self._report(self._of_pools, logging.WARNING)
        self._reported_pools = node.pools
        if changed and self.on_change is not None:
            self.on_change(node, changed)
        return bool(changed)

    def _report(self, texts: Iterable[str], level: int) -> None:
        for text in texts:
            if text not in self._reported and self._may_log():
                self._reported.add(text)
                logger.log(level, "node: %s", text)

    def _may_log(self) -> bool:
        """Whether a line is one of this minute's first: a file may go bad many times a second."""
        now_s = self._clock()
        if now_s - self._lines_since_s >= _MINUTE_S:
            self._lines, self._lines_since_s = 0, now_s
        self._lines += 1
        if self._lines == MOST_LINES + 1:
            logger.warning("node: more than %d lines in a minute, the others are logged later", MOST_LINES)
        return self._lines <= MOST_LINES
