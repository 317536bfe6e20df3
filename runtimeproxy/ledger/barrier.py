"""Takes the node to the CPU mode that policies want, and sets the other sysctls; see `cpu_mode`.

Used in the event loop's thread; files are read and written in worker threads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from runtimeproxy.cgroups.pace import with_rests
from runtimeproxy.ledger.cpu_mode import OF_MODES, SYSCTLS, CpuMode, Switch, plan
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.ledger.kernel_settings import KernelSettings
    from runtimeproxy.ledger.ledger import Ledger

logger = logging.getLogger(__name__)

DEPTH: Final = 3
"""How far containers are below the cgroup of all pods. Source: kubelet, pkg/kubelet/cm; class, pod,
container."""


class Release(Protocol):
    """Ends the claims on parameters in some cgroups."""

    def __call__(self, change: str, cgroups: Iterable[str], *, names: Collection[str]) -> Awaitable[None]: ...


class Barrier:
    """Between the values of two CPU modes.

    Args:
        ledger: The books. Nothing is claimed of the modes' parameters before the first pass.
        in_worker: Runs something in a worker thread; raises TimeoutError if it hangs.
        release: Gives values back, at a bounded rate.

    Attributes:
        problem: What keeps the node from the wanted mode; empty for nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        sysctls: KernelSettings,
        in_worker: Callable[[Callable[[], Any]], Awaitable[Any]],
        release: Release,
    ) -> None:
        self._ledger = ledger
        self._books = ledger.books
        self._sysctls = sysctls
        self._in_worker = in_worker
        self._release = release
        self._excluded: frozenset[str] = frozenset()
        self._wanted: Mapping[str, int | str] | None = None
        # The mode of the last pass, if it came to the end. Where the kernel lacks a mode's sysctls nothing is
        # written that would tell.
        self._in_force: CpuMode | None = None
        self._failures = FailureLog()
        ledger.books.blocked = OF_MODES
        self.problem = ""

    def on_taken_back(self) -> None:
        """Another process has decided meanwhile, and its mode may be another one."""
        self._books.blocked = OF_MODES
        self._excluded, self._wanted, self._in_force = frozenset(), None, None
        self._sysctls.reload()

    def is_due(self, *, is_long: bool) -> bool:
        """Whether another pass may get further: values that were in the way are gone, or some time is."""
        if self._excluded and not self._books.holders(names=self._excluded):
            self._excluded = frozenset()
            return True
        return is_long and bool(self.problem)

    async def pass_to(
        self, wanted: Mapping[str, int | str], roots: Collection[str], *, is_settled: bool
    ) -> None:
        """Clears what the wanted mode excludes, reads that back, switches the sysctls, and sets the others.

        `roots`: the cgroups of all pods. `is_settled`: whether all policies have answered. If not, no sysctl
        is given back.
        """
        before, self._in_force, self._wanted = self._in_force, None, None
        others = {name: value for name, value in wanted.items() if name not in SYSCTLS}
        try:
            written = await self._in_worker(self._sysctls.written)
            found = plan(wanted if is_settled else {**written, **wanted}, written)
            is_change = found.is_change and found.mode is not before
            self._books.blocked = OF_MODES if is_change else self._books.blocked | found.excluded
            problem = await self._clear(found, roots)
            if problem:
                known = {name: value for name, value in written.items() if name in SYSCTLS}
                await self._in_worker(partial(self._sysctls.apply, {**known, **others}, releases=()))
                self._wanted = {**known, **others} if is_settled else None
            else:
                problem = await self._switch(found, others, is_settled=is_settled)
            if is_change and not problem:
                logger.info("the CPU mode is %s now", found.mode)
        except OSError as error:  # a hung read or write, too
            problem = str(error)
        else:
            problem = problem or found.problem
        self._tell(problem)

    async def give_back(self) -> None:
        # Not while a policy has not answered.
        if self._wanted is not None:
            await self._in_worker(partial(self._sysctls.apply, self._wanted))

    async def _clear(self, found: Switch, roots: Collection[str]) -> str:
        """Has the excluded parameters neutral everywhere; returns what is in the way."""
        self._excluded = frozenset()
        holders = self._books.holders(names=found.excluded)
        await self._release("a change of the CPU mode", holders, names=found.excluded)
        if left := self._books.holders(names=found.excluded):
            self._excluded = found.excluded
            return f"values of {len(left)} cgroups cannot be given back, such as those of {left[0]}"
        # What another agent of this node writes is its own business.
        names = found.excluded - self._books.observed
        differs = partial(self._sysctls.differs, found.sysctls, SYSCTLS)
        if not names or not await self._in_worker(differs):
            return ""
        clear = partial(self._ledger.clear, roots, names, DEPTH)
        left = await self._in_worker(partial(with_rests, clear))
        return f"{len(left)} cgroups are not neutral: {left[0]}" if left else ""

    async def _switch(self, found: Switch, others: Mapping[str, int | str], *, is_settled: bool) -> str:
        """Sets the sysctls; returns what is in the way of the mode, whose parameters are open otherwise."""
        wanted = {**found.sysctls, **others}
        releases = SYSCTLS if is_settled else ()
        changes = await self._in_worker(partial(self._sysctls.apply, wanted, releases=releases))
        errors = [f"{each.name}: {each.error}" for each in changes if each.error and each.name not in others]
        if is_settled:
            self._wanted = wanted
        problem = errors[0] if errors else ""
        if not problem and (
            differs := await self._in_worker(partial(self._sysctls.differs, wanted, SYSCTLS))
        ):
            problem = f"{differs}, by another program"
        if not problem:
            self._in_force = found.mode
            self._books.blocked = found.excluded if found.mode is not CpuMode.OFF else frozenset()
        return problem

    def _tell(self, problem: str) -> None:
        self.problem = f"the CPU mode cannot be changed: {problem}" if problem else ""
        if problem:
            self._failures.report("cpu mode", problem, self.problem)
