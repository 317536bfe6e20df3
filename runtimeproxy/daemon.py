"""The daemon: joins relay, calls, policies and records, and lives as a service manager expects."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.calls.desk import CallSettings
from runtimeproxy.calls.interceptor import CallInterceptor
from runtimeproxy.calls.operation import CallContext
from runtimeproxy.cgroups.writer import CgroupWriter
from runtimeproxy.config.checks import owner_ids, socket_mode_bits
from runtimeproxy.errors import ConfigError, PolicyLoadError, RuntimeProxyError
from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.hooks.workers import Workers
from runtimeproxy.ops.alive import answers_ping, feed_watchdog
from runtimeproxy.ops.audit_log import AuditLog
from runtimeproxy.ops.breaker import PassBreaker
from runtimeproxy.ops.own_server import OwnServer
from runtimeproxy.pods.lookup import Lookups
from runtimeproxy.pods.recovery import Recovery, RecoverySettings
from runtimeproxy.pods.runtime import RuntimeUnavailableError
from runtimeproxy.pods.runtime_client import ClientSettings, GrpcRuntimeClient
from runtimeproxy.pods.store import PodStore
from runtimeproxy.relay.budget import MemoryBudget
from runtimeproxy.relay.connection import ConnectionOptions
from runtimeproxy.relay.listener import Listener, inherited, listen
from runtimeproxy.relay.server import RelayServer
from runtimeproxy.relay.state import RelayOptions
from runtimeproxy.routes import Routes
from runtimeproxy.sdnotify import Notifier, listen_sockets, watchdog_interval_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtimeproxy.cgroups import WriteResult
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.hooks.loaded import LoadedPolicy

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0002
"""How long a thread that computes may keep the relay's loop waiting; Python's default is 5 ms."""
STATUS_INTERVAL_S: Final = 1.0
"""How often the breaker is looked at and the service manager is told the status."""
PROBE_TIMEOUT_S: Final = 1.0
"""How long the runtime may take to answer a health probe."""
BACKGROUND_THREADS: Final = 2
"""For loading, long messages and lists; policies have their own."""

Reload = Callable[[], "Settings"]


def run(settings: Settings, reload: Reload) -> int:
    """Serves until SIGTERM; returns the exit code: 0, 1 when it cannot serve, 2 for bad configuration.

    Args:
        settings: what to serve.
        reload: reads the settings again; raises ConfigError.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(Daemon(settings, reload).serve())
    except (ConfigError, PolicyLoadError) as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400  # the message says it all
        return 2
    except RuntimeProxyError as error:
        logger.error("cannot serve: %s", error)  # noqa: TRY400  # the message says it all
        return 1
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop where it is there; asyncio's own loop does the same work with more CPU time."""
    if os.environ.get("KOORD_RUNTIMEPROXY_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Daemon:
    """One running daemon.

    Args:
        settings: what to serve.
        reload: reads the settings again.
        environ: where the service manager's variables are.
    """

    def __init__(self, settings: Settings, reload: Reload, environ: dict[str, str] | None = None) -> None:
        self._settings = settings
        self._reload = reload
        self._environ = dict(os.environ) if environ is None else environ
        self._notifier = Notifier.from_environ(self._environ)
        self._stopping = asyncio.Event()
        self._reloading = asyncio.Event()
        self._executor = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="background")
        self._workers = Workers(settings.hooks.worker_threads)
        self._audit = AuditLog()
        self._tasks: set[asyncio.Task[None]] = set()
        self._store = PodStore()
        proxy = settings.proxy
        self._client = GrpcRuntimeClient(
            ClientSettings(
                f"unix:{proxy.runtime_endpoint}",
                list_timeout_s=proxy.runtime_call_timeout_s,
                status_timeout_s=proxy.runtime_call_timeout_s,
            ),
            self._executor,
        )
        interval_s = settings.state.resync_interval_s
        self._recovery = Recovery(self._store, self._client, RecoverySettings(interval_s=interval_s))
        self._interceptor = CallInterceptor(
            CallContext(self._store, Lookups(self._store, self._client)),
            _writer(settings),
            executor=self._executor,
            spawn=self._spawn,
            settings=call_settings(settings),
            unsettled=self._recovery.compare_soon,
        )
        self._breaker = PassBreaker(lambda: self._interceptor.counts.get("internal_error", 0))
        self._breaker.forced = not settings.hooks.enabled
        self._own = OwnServer() if proxy.own_services else None
        self._server = RelayServer(self._connection_options(), proxy.allowed_uids)
        self._policy_count = 0

    def _connection_options(self) -> ConnectionOptions:
        proxy = self._settings.proxy
        routes = Routes(
            runtime_socket=proxy.runtime_endpoint,
            image_socket=proxy.image_endpoint,
            own_socket=self._own.socket_path if self._own is not None else "",
        )
        budget = MemoryBudget(proxy.held_budget_bytes)
        relay = RelayOptions(routes, self._interceptor, budget, proxy.max_message_bytes)
        return ConnectionOptions(relay, routes.runtime, proxy.upstream_wait_s)

    # --- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serves first, loads everything else meanwhile, and ends gracefully when a signal says so.

        Raises:
            RuntimeProxyError: the socket cannot be had.
            PolicyLoadError: a policy cannot be loaded.
        """
        self._interceptor.bypass = self._breaker.passes()
        listener = self._listener()
        try:
            await self._server.start(listener)
            self._handle_signals()
            logger.info(
                "serving", extra={"socket": self._socket_path(listener), "pid": os.getpid(), **self._where()}
            )
            await self._load(self._settings)
            self._start_background(self._socket_path(listener))
            self._notifier.ready(self._status())
            await self._until_stopped()
        finally:
            await self._stop(listener)

    def _listener(self) -> Listener:
        passed = listen_sockets(self._environ)
        if passed:
            for surplus in passed[1:]:
                surplus.socket.close()
            return inherited(passed[0].socket)
        proxy = self._settings.proxy
        uid, gid = owner_ids(proxy)
        return listen(proxy.endpoint, mode=socket_mode_bits(proxy.socket_mode), uid=uid, gid=gid)

    @staticmethod
    def _socket_path(listener: Listener) -> str:
        return str(listener.path or listener.sock.getsockname())

    def _where(self) -> dict[str, str]:
        proxy = self._settings.proxy
        return {"runtime": proxy.runtime_endpoint, "images": proxy.image_endpoint or proxy.runtime_endpoint}

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stop, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reloading.set)
        loop.add_signal_handler(signal.SIGUSR1, self._force_pass, True)
        loop.add_signal_handler(signal.SIGUSR2, self._force_pass, False)

    def _force_pass(self, passes: bool) -> None:
        """The switch: SIGUSR1 lets all new calls pass unheld, SIGUSR2 holds them again."""
        self._breaker.forced = passes
        self._interceptor.bypass = self._breaker.passes()
        logger.warning("held calls are switched %s", "off" if passes else "on", extra={"bypass": passes})

    def _start_background(self, socket_path: str) -> None:
        self._spawn(self._interceptor.load())
        self._spawn(self._recovery.run())
        self._spawn(self._keep_status())
        if self._own is not None:
            self._spawn(self._own.start(self._runtime_answers, self._stopping))
        interval_s = watchdog_interval_s(self._environ)
        if interval_s is not None:
            is_alive = lambda timeout_s: answers_ping(socket_path, timeout_s)  # noqa: E731  # one line, one use
            self._spawn(feed_watchdog(interval_s, is_alive, self._notifier.watchdog))

    async def _until_stopped(self) -> None:
        while not self._stopping.is_set():
            waiters = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._reloading)]
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
            for waiter in waiters:
                waiter.cancel()
            if self._reloading.is_set():
                self._reloading.clear()
                await self._reload_settings()

    async def _stop(self, listener: Listener) -> None:
        """The listener is given up first, so that a successor can start while this one drains."""
        self._stopping.set()
        self._notifier.stopping("draining")
        self._server.stop_accepting()
        listener.release()
        await self._server.drain(self._settings.proxy.drain_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._own is not None:
            await self._own.stop()
        await self._client.close()
        self._workers.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        logger.info("stopped")

    # --- policies and settings -----------------------------------------------------------------------------

    async def _load(self, settings: Settings) -> None:
        from runtimeproxy.hooks.chain import Chain

        policies = await asyncio.to_thread(_policies, settings)
        chain = Chain(policies, self._workers, sink=self._audit, rule=settings.hooks.conflicts)
        self._policy_count = len(policies)
        self._interceptor.use(chain)
        logger.info("policies loaded", extra={"policies": [policy.name for policy in policies]})

    async def _reload_settings(self) -> None:
        """Reads the configuration again; on an error the old one stays."""
        self._notifier.reloading()
        try:
            settings = await asyncio.to_thread(self._reload)
            await self._load(settings)
        except RuntimeProxyError as error:
            logger.error("configuration not changed: %s", error)  # noqa: TRY400  # the message says it all
        else:
            if settings.proxy != self._settings.proxy:
                logger.warning("changes in [proxy] count after a restart only")
            self._settings = replace(settings, proxy=self._settings.proxy)
            self._interceptor.configure(call_settings(self._settings))
            self._breaker.forced = not settings.hooks.enabled
            self._interceptor.bypass = self._breaker.passes()
            logging.getLogger().setLevel(settings.log.level.upper())
            logger.info("configuration read again")
        self._notifier.ready(self._status())

    # --- background ----------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a background task and keeps it; its error is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a background task failed", exc_info=error)

    async def _runtime_answers(self) -> bool:
        try:
            await self._client.version(PROBE_TIMEOUT_S)
        except RuntimeUnavailableError:
            return False
        return True

    async def _keep_status(self) -> None:
        """Looks at the breaker, and tells the service manager what changed."""
        told = ""
        while True:
            self._interceptor.bypass = self._breaker.passes()
            status = self._status()
            if status != told:
                self._notifier.status(status)
                told = status
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _status(self) -> str:
        mode = "all calls pass unheld" if self._interceptor.bypass else f"{self._policy_count} policies"
        recovered = "" if self._recovery.recovered.is_set() else ", waiting for the runtime's lists"
        return (
            f"{mode}; {len(self._store.pods)} pods, {len(self._store.containers)} containers{recovered}; "
            f"{self._server.connection_count} connections"
        )


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
