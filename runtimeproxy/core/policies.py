"""The policies in use: loads them, and runs them in the modes that operators have set.

Used in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from runtimeproxy.background import BackgroundThreads
from runtimeproxy.core.audit_events import BY_COMMAND, TIME_IS_OVER, audit_modes
from runtimeproxy.core.modes import ModeOverrides
from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.chain import REPORT_S, Chain
from runtimeproxy.hooks.decision import unmet_on
from runtimeproxy.hooks.loading import LoadProblem, LoadResult, PolicyLoader, PolicySources, is_enabled
from runtimeproxy.hooks.modes import Override, needed, present, with_modes
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.vocabulary import Mode

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.core.audit import AuditQueues
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.loaded import LoadedPolicy
    from runtimeproxy.hooks.remote.server_state import Servers
    from runtimeproxy.node.sources import NodeSources

logger = logging.getLogger(__name__)

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
"""Starts a background task that the caller need not keep alive."""

ChangeModes: TypeAlias = Callable[[tuple[Override, ...]], tuple[Override, ...]]
"""Returns the modes that operators have set after a change of the present ones."""

NOTHING_LOADED: Final = LoadResult((), (), ())
ENDING_S: Final = 1.0
"""How often modes are looked for whose time is over."""


class PolicyEvent(Enum):
    """What has changed."""

    CHAIN = "chain"
    """There is another one: of other policies, or of the same in other modes."""
    SERVERS = "servers"
    """The chain runs other hook servers."""
    MODES = "modes"
    """Those that operators have set; some are of owners of claims."""


class PolicySet:
    """The policies of this process, and the hook servers.

    Args:
        settings: Which policies are loaded; `load` takes others.
        carried: What the front end carries.

    Attributes:
        settings: Those in effect.
        loaded: The policies of this process, and what could not be loaded.
        servers: The hook servers; they run after the policies of this process.
        chain: All in use, in their modes; a call that is being decided keeps the one that it began with.
        workers: Threads that run policies.
        modes: Those that operators have set.
        on_event: Called with what has changed.
    """

    def __init__(
        self,
        settings: Settings,
        loader: PolicyLoader,
        node: NodeSources,
        audit: AuditQueues,
        servers: Servers,
        carried: CarriedFields,
    ) -> None:
        self.settings = settings
        self.loader = loader
        self._node = node
        self._audit = audit
        # Held while policies, or the modes that operators have set, change.
        self._changing = asyncio.Lock()
        self.loaded = NOTHING_LOADED
        self.servers = servers
        servers.on_change = self._use_servers
        self.workers = Workers(settings.hooks.worker_threads)
        self.modes = ModeOverrides(Path(settings.state.dir))
        self.on_event: list[Callable[[PolicyEvent], None]] = []
        self.chain = self._new_chain(carried)
        audit.report = self._report
        self._is_late = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_late() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._is_late.set)

        loader.on_late = on_late

    @property
    def is_loaded(self) -> bool:
        """Whether the policies have been loaded once."""
        return self.loaded is not NOTHING_LOADED

    @property
    def skip_label(self) -> tuple[str, str] | None:
        """Key and value of the label of pods that policies leave alone; None for none."""
        return self.settings.hooks.rules.skip_label

    @property
    def disabled(self) -> frozenset[str]:
        """The policies that the configuration disables; some may be loaded for an override."""
        classes = self.loaded.classes
        return frozenset(each.name for each in classes if not is_enabled(each, self.configured(each.name)))

    @property
    def summary(self) -> str:
        """For people: how many there are, which of them are off, and the hook servers."""
        text = f"{len(self.loaded.policies)} policies" if self.is_loaded else "policies are loading"
        found = {each.name: unmet_on(each, self._node.latest) for each in self.loaded.policies}
        notes = [
            f"{name} {'is off' if unmet.is_off else 'in part'}: {unmet}"
            for name, unmet in found.items()
            if unmet is not None
        ]
        if self.loaded.problems:
            names = ", ".join(each.name for each in self.loaded.problems)
            notes.append(f"{names}: not loaded, see the log")
        if notes:
            text += f" ({'; '.join(notes)})"
        return f"{text}, {self.servers.summary}" if self.servers.summary else text

    def configured(self, policy: str) -> PolicySettings:
        """The configuration of a policy."""
        return self.settings.policies.get(policy, PolicySettings())

    async def run(self) -> None:
        """Ends modes whose time is over, and uses code that was late, until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_S):
                    await self._is_late.wait()
            try:
                await self._catch_up()
            except Exception:  # a bug costs this attempt, not the next one
                logger.exception("policies or their modes cannot be brought up to date")

    async def _catch_up(self) -> None:
        if self.modes.ended:
            await self._forget_ended_modes()
        if len(present(self.modes.present, time.time())) < len(self.modes.present):
            await self._end_modes()
        if self._is_late.is_set():
            self._is_late.clear()
            with suppress(PolicyLoadError):  # with "stop" those in use stay
                await self.load(self.settings)

    async def load(self, settings: Settings) -> None:
        """Loads the policies in a thread, for their imports may hang, and runs them from now on.

        Raises:
            PolicyLoadError: A policy cannot be loaded, and `on_load_error` is "stop"; the old ones stay.
        """
        async with self._changing:
            await self._load(settings)

    def configured_modes(self) -> dict[str, Mode]:
        """The modes of the loaded policies without those that operators have set."""
        disabled = self.disabled
        modes = {each.name: each.mode for each in self.loaded.policies}
        return {
            each.name: Mode.OFF if each.name in disabled else modes.get(each.name, Mode.OFF)
            for each in self.loaded.classes
        }

    async def change_modes(self, change: ChangeModes, why: str = BY_COMMAND) -> None:
        """Changes the modes that operators have set, on disk first.

        What leaves enforce mode is given back as other changes of running pods: many at a bounded rate.

        Args:
            change: Returns the new ones; its errors are raised.
            why: For the audit: why those end that are left out.

        Raises:
            OSError: They cannot be saved: nothing has changed.
            PolicyLoadError: A policy that the configuration disables cannot be loaded.
        """
        async with self._changing:
            before = self.modes.present
            overrides = change(before)
            await self._save_modes(overrides)
            audit_modes(self._audit, before, overrides, self.configured_modes(), why)
            self._announce(PolicyEvent.MODES)
            loaded = {each.name for each in self.loaded.policies}
            found = {each.name for each in self.loaded.classes}
            if any(each.mode is not Mode.OFF for each in overrides if each.policy in found - loaded):
                await self._load(self.settings)
                return
            self.chain = self._new_chain(self.chain.carried)
            self._announce(PolicyEvent.CHAIN)

    async def _save_modes(self, overrides: tuple[Override, ...]) -> None:
        thread = BackgroundThreads(1, "policy-modes")
        try:
            await self.modes.save(overrides, thread)
        finally:
            thread.shutdown()

    async def _forget_ended_modes(self) -> None:
        # Those whose time was over before this process has read them.
        async with self._changing:
            ended, self.modes.ended = self.modes.ended, ()
            _log_ended(ended)
            audit_modes(self._audit, ended, (), self.configured_modes(), TIME_IS_OVER)
            try:
                await self._save_modes(self.modes.present)
            except OSError as error:
                logger.warning("modes that have ended cannot be taken out of their file: %s", error)

    async def _end_modes(self) -> None:
        def without_ended(overrides: tuple[Override, ...]) -> tuple[Override, ...]:
            left = present(overrides, time.time())
            _log_ended(each for each in overrides if each not in left)
            return left

        try:
            await self.change_modes(without_ended, TIME_IS_OVER)
        except (OSError, PolicyLoadError) as error:
            # The next second tries again.
            logger.warning("modes of policies cannot be ended: %s", error)

    async def _load(self, settings: Settings) -> None:
        thread = BackgroundThreads(1, "policy-loading")
        hooks = settings.hooks
        sources = PolicySources(hooks.third_party, hooks.policies_dir, hooks.load_timeout_s)
        try:
            if not self.modes.is_read:
                await self.modes.read(thread)
                self._announce(PolicyEvent.MODES)
            wanted = needed(settings.policies, self.modes.present)
            run = asyncio.get_running_loop().run_in_executor
            result = await run(thread, self.loader.load, sources, wanted)
        finally:
            thread.shutdown()
        result = result._replace(problems=self._problems(result, settings))
        if result.problems and hooks.on_load_error == "stop":
            raise PolicyLoadError("; ".join(map(str, result.problems)))
        for problem in result.problems:
            logger.error("policy not loaded: %s", problem, extra={"policy": problem.name})
        for changed in result.changed_code:
            logger.warning("%s; `koord-runtime-proxy upgrade` takes the new code into use", changed)
        await self.servers.read()
        await self._node.read()
        self.loader.use(result)
        self.settings, self.loaded = settings, result
        self.chain = self._new_chain(self.chain.carried)
        self._announce(PolicyEvent.CHAIN)
        logger.info("policies loaded", extra={"policies": [policy.name for policy in result.policies]})

    def _problems(self, result: LoadResult, settings: Settings) -> tuple[LoadProblem, ...]:
        """Those of the configuration; that an operator once set the mode of a policy now gone is none."""
        known = {each.name for each in result.classes} | settings.policies.keys()
        of_modes = {each.policy for each in self.modes.present} - known
        return tuple(each for each in result.problems if each.name not in of_modes)

    def _use_servers(self) -> None:
        if self.is_loaded:
            self.chain.use(self._in_use())
            self._announce(PolicyEvent.SERVERS)

    def _in_use(self) -> tuple[LoadedPolicy, ...]:
        """The policies with the modes that operators have set, and the hook servers."""
        of_process = with_modes(self.loaded.policies, self.modes.present, self.disabled)
        return (*of_process, *self.servers.policies)

    def _new_chain(self, carried: CarriedFields) -> Chain:
        return Chain(
            self._in_use(),
            self.workers,
            sink=self._audit.decisions,
            rule=self.settings.hooks.conflicts,
            node=self._node,
            skip_label=self.skip_label,
            counts=self._audit.counts,
            report_s=REPORT_S,
            carried=carried,
        )

    def _report(self) -> None:
        """Has decisions of the present chain audited."""
        self.chain.flush()

    def _announce(self, event: PolicyEvent) -> None:
        for tell in self.on_event:
            tell(event)


def _log_ended(overrides: Iterable[Override]) -> None:
    for each in overrides:
        text = "policy %s: the mode %s that was set by command has ended"
        logger.warning(text, each.policy, each.mode, extra={"policy": each.policy})
