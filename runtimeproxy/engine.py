"""What decides on held calls: records, policies, their threads and the cgroup writer, as one part.

It imports most of the code, so the daemon loads it when it already serves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.calls.desk import CallSettings, Spawn
from runtimeproxy.calls.interceptor import CallInterceptor
from runtimeproxy.calls.operation import CallContext
from runtimeproxy.cgroups import CgroupWriter
from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.ops.audit_log import AuditLog
from runtimeproxy.ops.background import BackgroundThreads
from runtimeproxy.ops.kept_cgroups import KeptCgroups
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.records import Lifecycle
from runtimeproxy.pods.recovery import Recovery, RecoverySettings
from runtimeproxy.pods.runtime import RuntimeUnavailableError
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtimeproxy.cgroups import WriteResult
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.hooks.loaded import LoadedPolicy

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S: Final = 1.0
"""How long the runtime may take to answer a health probe."""


class Engine:
    """Decides on held calls. Used in the event loop's thread.

    Args:
        settings: what counts for the life of the process; `load_policies` and `configure` take the rest.
        executor: threads for loading, long messages, lists and cgroup files; policies have their own.
        spawn: starts background tasks.
        is_bypassed: whether calls pass unheld just now.

    Attributes:
        interceptor: for the relay.
    """

    def __init__(
        self, settings: Settings, executor: Executor, spawn: Spawn, is_bypassed: Callable[[], bool]
    ) -> None:
        self._executor = executor
        self._spawn = spawn
        self._is_bypassed = is_bypassed
        self._workers = Workers(settings.hooks.worker_threads)
        self._audit = AuditLog()
        self._store = PodStore()
        self._client = GrpcRuntimeClient(_client_settings(settings), executor)
        self._cgroups = KeptCgroups(_writer(settings))
        self._recovery = Recovery(
            self._store,
            self._client,
            RecoverySettings(interval_s=settings.state.resync_interval_s),
            on_compared=self._compared,
        )
        self._policy_count: int | None = None
        self.interceptor = CallInterceptor(
            CallContext(self._store, Lookups(self._store, self._client)),
            self._cgroups,
            executor=executor,
            spawn=spawn,
            settings=call_settings(settings),
            unsettled=self._recovery.compare_soon,
        )

    @property
    def internal_errors(self) -> int:
        """How many errors there have been in the proxy's own code since the start."""
        return self.interceptor.counts.get("internal_error", 0)

    @property
    def recovered(self) -> asyncio.Event:
        """Set once the records are those of the runtime."""
        return self._recovery.recovered

    @property
    def summary(self) -> str:
        """One line for people: policies and records."""
        policies = "policies are loading" if self._policy_count is None else f"{self._policy_count} policies"
        recovered = "" if self._recovery.recovered.is_set() else ", waiting for the runtime's lists"
        return (
            f"{policies}; {len(self._store.pods)} pods, {len(self._store.containers)} containers{recovered}"
        )

    async def load_policies(self, settings: Settings) -> None:
        """Loads the policies, in a thread that may hang in what they import, and uses them from now on.

        Raises:
            PolicyLoadError: one cannot be loaded; those that were there stay.
        """
        from runtimeproxy.hooks.chain import Chain

        thread = BackgroundThreads(1, "policy-loading")
        try:
            policies = await asyncio.get_running_loop().run_in_executor(thread, _policies, settings)
        finally:
            thread.shutdown()
        self.interceptor.use(Chain(policies, self._workers, sink=self._audit, rule=settings.hooks.conflicts))
        self._policy_count = len(policies)
        logger.info("policies loaded", extra={"policies": [policy.name for policy in policies]})

    def configure(self, settings: Settings) -> None:
        """Takes the settings of held calls; what other policies wrote to cgroups is no longer kept there."""
        self.interceptor.configure(call_settings(settings))
        self._cgroups.forget_all()

    def start(self) -> None:
        """Starts what runs in the background."""
        self._spawn(self.interceptor.load())
        self._spawn(self._recovery.run())

    def compare_soon(self) -> None:
        """Compares the records with the runtime now: calls have passed that nobody saw."""
        self._recovery.compare_soon()

    def tidy(self) -> None:
        """To be called from time to time; cheap."""
        self._cgroups.tidy(pod.cgroup_parent for pod in self._store.pods)

    async def runtime_answers(self) -> bool:
        """Whether the runtime answers a probe."""
        try:
            await self._client.version(PROBE_TIMEOUT_S)
        except RuntimeUnavailableError:
            return False
        return True

    async def close(self) -> None:
        """Ends the connection to the runtime and the policies' threads."""
        self._workers.close()
        await self._client.close()

    async def _compared(self) -> None:
        """After each comparison of the records: the runtime's name, and the cgroups."""
        try:
            self.interceptor.runtime_is(await self._client.runtime_name())
        except RuntimeUnavailableError as error:
            logger.info("the runtime does not tell its name", extra={"cause": str(error)})
        if not self._is_bypassed():
            running = [pod.cgroup_parent for pod in self._store.pods if pod.state is not Lifecycle.STOPPED]
            await asyncio.get_running_loop().run_in_executor(self._executor, self._cgroups.keep, running)


def call_settings(settings: Settings) -> CallSettings:
    """What the held calls need of the settings."""
    hooks = settings.hooks
    key = hooks.skip_label_key
    return CallSettings(
        budget_s=hooks.budget_s,
        on_unreadable=FailurePolicy.FAIL if hooks.on_unparsable == "refuse" else FailurePolicy.IGNORE,
        skip_label=(key, hooks.skip_label_value) if key else None,
        max_message_bytes=settings.proxy.max_message_bytes,
    )


def _client_settings(settings: Settings) -> ClientSettings:
    timeout_s = settings.proxy.runtime_call_timeout_s
    target = f"unix:{settings.proxy.runtime_endpoint}"
    return ClientSettings(target, list_timeout_s=timeout_s, status_timeout_s=timeout_s)


def _policies(settings: Settings) -> tuple[LoadedPolicy, ...]:
    from runtimeproxy.hooks import loading

    return loading.load(loading.discover(third_party=settings.hooks.third_party), settings.policies)


def _writer(settings: Settings) -> CgroupWriter | NoCgroups:
    return CgroupWriter(Path(settings.cgroups.root)) if settings.cgroups.enabled else NoCgroups()


class NoCgroups:
    """Stands in for the writer where writing cgroup files is switched off."""

    def write(self, cgroup: str, values: Mapping[str, int | str]) -> tuple[WriteResult, ...]:
        """Writes nothing."""
        return ()
