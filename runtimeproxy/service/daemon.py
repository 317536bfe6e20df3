"""The daemon from start to end: it serves at once, loads policies meanwhile, reloads, upgrades and drains."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy import __version__
from runtimeproxy.background import BackgroundTasks, BackgroundThreads
from runtimeproxy.config.parsing import parse_listen
from runtimeproxy.config.settings import reloaded
from runtimeproxy.config.validation import admin_socket
from runtimeproxy.errors import ConfigError, PolicyLoadError, RuntimeProxyError
from runtimeproxy.frontends.cri_proxy.calls.interceptor import CallInterceptor, CallSettings
from runtimeproxy.frontends.cri_proxy.handover.predecessor import Predecessor
from runtimeproxy.frontends.cri_proxy.handover.protocol import report_to_predecessor
from runtimeproxy.frontends.cri_proxy.handover.upgrade import TAKEN_OVER, Program, Serving, Upgrade, note
from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
from runtimeproxy.http2.server import Budget
from runtimeproxy.logs import dropped_lines, flush_failures
from runtimeproxy.process import exact_timers, limit_arenas, wake_soon
from runtimeproxy.sdnotify import Notifier, feed_watchdog, watchdog_interval_s
from runtimeproxy.service.api.admin_socket import AdminSocket
from runtimeproxy.service.api.loading import ADMIN_SERVICE, READ_SERVICE, loader
from runtimeproxy.service.api.sources import ApiSources, Reloaded
from runtimeproxy.service.audit_file import AuditFile
from runtimeproxy.service.bypass import Bypass, Cause
from runtimeproxy.service.local_server import LocalServer
from runtimeproxy.service.metrics.server import serve_metrics
from runtimeproxy.service.metrics.sources import MetricSources, ServiceCounts
from runtimeproxy.service.signals import BYPASS_OFF, BYPASS_ON, UPGRADE, is_served, unblock
from runtimeproxy.service.wiring import check_handed_over, connection_options, listener_of, local_server

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.frontends.cri_proxy.calls.interceptor import OpenCall
    from runtimeproxy.frontends.cri_proxy.relay.listener import Listener
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.loading import PolicyLoader
    from runtimeproxy.service.api.loading import Load
    from runtimeproxy.service.engine import Engine
    from runtimeproxy.service.kubelet import KubeletSetting
    from runtimeproxy.service.tracing.traces import Traces

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.00005
"""How long a thread may keep the interpreter while the relay's loop waits for it; Python's default is 5 ms.
While a policy computes for long it is less: see `RunTimer` in `runtimeproxy.hooks.workers`."""
OLD_COLLECTIONS: Final = 100
"""After how many collections of younger objects the collector may look at all objects that are not frozen;
Python's default is 10. With 500 containers that stops all threads for 30 ms, and a strategy that changes all
pods makes 10 of the others. Records and books have no cycles: what waits for it is little."""
STATUS_INTERVAL_S: Final = 1.0
"""How often bypass and status are updated."""
POLICIES_WAIT_S: Final = 5.0
"""How long READY waits for policies that are slow to load; calls that need none pass all the time."""
CLOSING_S: Final = 0.5
"""How long background tasks may take to end."""
KUBELETS_S: Final = 1.0
"""How long the shutdown waits, after the calls, for the search for kubelets; it takes milliseconds."""
BACKGROUND_THREADS: Final = 3
"""For loading, long messages, lists and cgroup files; policies have their own."""

_STANDARD_ERROR: Final = 2
"""The descriptor, for `sys.stderr` may be an object without one."""

Reload = Callable[[], "Settings"]


def run(settings: Settings, reload: Reload, config_path: str = "") -> int:
    """Serves until SIGTERM; returns the exit code: 0, 1 when it cannot serve, 2 for bad configuration.

    Args:
        settings: the settings at the start.
        reload: reads the settings again; raises ConfigError.
        config_path: the configuration file, for the status; empty for none.
    """
    # A crash of the interpreter leaves the stacks of all threads in the journal, also after an upgrade.
    faulthandler.enable(_STANDARD_ERROR)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logger.debug("version %s with Python %s", __version__, sys.version.partition(" ")[0])
    limit_arenas()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, reload, config_path))
    except RuntimeProxyError as error:
        is_usage = isinstance(error, ConfigError | PolicyLoadError)
        # The message says it all: no traceback.
        logger.error("cannot %s: %s", "start" if is_usage else "serve", error)  # noqa: TRY400
        report_to_predecessor(str(error))
        return 2 if is_usage else 1
    except Exception as error:
        report_to_predecessor(f"{type(error).__name__}: {error}")
        raise
    return 0


def loop_factory(environ: Mapping[str, str] = os.environ) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop if it is installed; None for asyncio's own loop, which does the same work with more CPU time."""
    if environ.get("KOORD_RUNTIMEPROXY_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(settings: Settings, reload: Reload, config_path: str) -> None:
    await Daemon(settings, reload, config_path=config_path).serve()


class Daemon:
    """One running daemon; made in its event loop.

    Args:
        settings: the settings at the start.
        reload: reads the settings again.
        environ: where the service manager's variables are; None for the process's own.
        loader: finds and makes the policies; None for the usual one.
        sink: gets the audit entries, beside the log.
        config_path: the configuration file, for the status; empty for none.

    Attributes:
        ready: set when it serves and its policies are loaded.
    """

    def __init__(
        self,
        settings: Settings,
        reload: Reload,
        environ: MutableMapping[str, str] | None = None,
        *,
        loader: PolicyLoader | None = None,
        sink: AuditSink | None = None,
        config_path: str = "",
    ) -> None:
        # In another thread, as in tests, signals and the garbage collector belong to the host program.
        self._owns_process = threading.current_thread() is threading.main_thread()
        self.ready = asyncio.Event()
        self._settings = settings
        self._reload = reload
        self._config_path = config_path
        self._started_s = time.time()
        self._last_reload: Reloaded | None = None
        self._environ = os.environ if environ is None else environ
        self._predecessor = Predecessor.of(self._environ)
        self._program = Program.this(self._environ)
        self._notifier = Notifier(self._environ.get("NOTIFY_SOCKET"))
        # The service manager listens to a successor only once it is the main process.
        self._notifier.is_muted = self._predecessor is not None
        self._upgrade: Upgrade | None = None
        self._local: LocalServer | None = None
        path = admin_socket(settings)
        self._admin = AdminSocket(path) if path else None
        self._admin_server: LocalServer | None = None
        self._own_budget = Budget()
        self._server: RelayServer | None = None
        self._counts = ServiceCounts(configured_s=time.time())
        self._loader = loader
        self._audit_file = AuditFile(settings.audit)
        self._sinks: tuple[AuditSink, ...] = (self._audit_file,) if sink is None else (sink, self._audit_file)
        self._traces = _traces(settings)
        self._engine: Engine | None = None
        self._interceptor = CallInterceptor(CallSettings.of(settings), self._compare_soon)
        self._bypass = Bypass(
            self._interceptor, self._internal_errors, not settings.hooks.enabled, self._compare_soon
        )
        if self._predecessor is not None and self._predecessor.bypass is not None:
            self._bypass.choose(self._predecessor.bypass, Cause.PREDECESSOR)
        self._executor = BackgroundThreads(BACKGROUND_THREADS, "background")
        self._tasks = BackgroundTasks(self.finish)
        self._spawn = self._tasks.spawn
        self._changing = asyncio.Lock()
        """Held by start, reload and upgrade: one at a time."""
        self._stopping = asyncio.Event()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Serves first, loads everything else meanwhile, and drains when a signal ends it.

        Raises:
            RuntimeProxyError: the socket cannot be used.
            PolicyLoadError: a policy cannot be loaded.
        """
        proxy = self._settings.proxy
        if self._owns_process:
            self._handle_signals()
        # Before there is a socket, if a policy that cannot be loaded is to end the start.
        is_first = self._settings.hooks.on_load_error == "stop" and self._predecessor is None
        if is_first and not await self._load_policies_first():
            return
        if self._predecessor is None:
            listener = listener_of(proxy, self._environ)
        else:
            listener = self._predecessor.listener
            check_handed_over(listener, proxy)
        self._local = local_server(proxy)
        options = connection_options(proxy, self._interceptor, self._local)
        server = self._server = RelayServer(options, proxy.allowed_uids, proxy.max_connections_per_process)
        serving = Serving(
            listener=listener,
            server=server,
            notifier=self._notifier,
            executor=self._executor,
            flush=self._flush_state,
            finish=self.finish,
            resume=self._take_back_state,
            start_s=proxy.upgrade_start_s,
            drain_s=proxy.upgrade_drain_s,
            bypass=lambda: self._bypass.chosen,
        )
        upgrade = self._upgrade = Upgrade(self._program, serving, self._predecessor)
        try:
            if self._predecessor is None:
                start = self._start_up(listener, server)
            else:
                start = self._take_over(self._predecessor, listener, server)
            self._spawn(start, is_vital=True)
            await self._end
        finally:
            await self._stop(listener, server, upgrade)

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the daemon, once; in the loop's thread.

        Args:
            error: raised by `serve`; None for a graceful end.
        """
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    # Start

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.finish)
        loop.add_signal_handler(signal.SIGINT, self.finish)
        loop.add_signal_handler(signal.SIGHUP, self._unless_over, self._reload_settings)
        loop.add_signal_handler(UPGRADE, self._unless_over, self._hand_over)
        loop.add_signal_handler(BYPASS_ON, self._choose_bypass, True)
        loop.add_signal_handler(BYPASS_OFF, self._choose_bypass, False)
        unblock()

    def _unless_over(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._end.done():
            self._spawn(work())

    async def _load_policies_first(self) -> bool:
        """Loads the policies; returns False if a signal has ended the daemon meanwhile."""

        async def load() -> None:
            engine = await self._make_engine()
            await engine.load_policies(self._settings)

        loading = self._spawn(load(), is_vital=True)
        await asyncio.wait({loading, self._end}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is None:
            return True
        await self._tasks.cancel(CLOSING_S)
        if self._engine is not None:
            await self._engine.close()
        self._executor.shutdown(cancel_futures=True)
        if loading.done():
            await self._end
        return False

    async def _make_engine(self) -> Engine:
        """Imports most of the code in a worker thread."""
        if self._engine is None:
            run = asyncio.get_running_loop().run_in_executor
            await run(self._executor, importlib.import_module, "runtimeproxy.service.engine")
            from runtimeproxy.service.engine import Engine

            self._engine = Engine(
                self._settings,
                self._executor,
                self._spawn,
                self._is_standby,
                self._loader,
                self._sinks,
            )
        return self._engine

    async def _start_up(self, listener: Listener, server: RelayServer) -> None:
        """Accepts clients, then loads records and policies."""
        await server.start(listener)
        async with self._changing:
            engine = await self._make_engine()
            await engine.load_state()
            engine.start()
            loading = self._spawn(self._intercept(engine), is_vital=True)
            await asyncio.wait({loading}, timeout=POLICIES_WAIT_S)
        if not self._end.done():
            self._begin(engine, listener)

    async def _take_over(self, predecessor: Predecessor, listener: Listener, server: RelayServer) -> None:
        """Does everything that may fail, and only then serves in place of the predecessor."""
        async with self._changing:
            engine = await self._make_engine()
            await engine.load_policies(self._settings)
            await predecessor.report_loaded()
            await engine.load_state(is_successor=True)
            await self._intercept(engine)
            engine.start()
            await server.start(listener)
            listener.own(note(TAKEN_OVER))
            await predecessor.report_serving()
        self._notifier.is_muted = False
        self._begin(engine, listener)
        self._spawn(self._follow(predecessor, engine))

    async def _follow(self, predecessor: Predecessor, engine: Engine) -> None:
        """Takes the records of the calls that end in the predecessor."""
        await predecessor.wait_until_drained()
        await engine.merge_state()
        logger.info("upgrade: the process before this one has ended its calls")

    async def _intercept(self, engine: Engine) -> None:
        """Loads the policies; intercepted calls are decided from now on, those that wait for it first."""
        if not engine.has_policies:
            await engine.load_policies(self._settings)
        self._interceptor.start(self._open_call(engine))

    def _open_call(self, engine: Engine) -> OpenCall:
        """Makes the handlers of intercepted calls, traced ones if there is a collector."""
        if self._traces is None:
            return engine.open_call
        from runtimeproxy.frontends.cri_proxy.calls.traced_call import open_traced

        self._traces.start()
        return partial(open_traced, self._traces, engine.services)

    def _begin(self, engine: Engine, listener: Listener) -> None:
        """Starts the background work, and notifies the service manager."""
        exact_timers()
        self._executor.submit(wake_soon, threading.get_native_id())
        self._spawn(self._keep_status(engine))
        apis = self._api(engine, listener)
        if self._admin is not None:
            self._spawn(self._publish_admin(engine, apis))
        if self._local is not None:
            api = {READ_SERVICE: apis[READ_SERVICE]}
            budget = self._own_budget
            self._spawn(
                self._local.start(self._executor, engine.runtime_answers, self._stopping, api, budget)
            )
        if (interval_s := watchdog_interval_s(self._environ)) is not None:
            self._spawn(feed_watchdog(interval_s, listener.address, self._notifier))
        self._spawn(self._report_recovery(engine))
        self._spawn(self._serve_metrics(engine, apis[READ_SERVICE]))
        self._notifier.ready(self._status())
        self.ready.set()

    async def _serve_metrics(self, engine: Engine, api: Load) -> None:
        address = parse_listen(self._settings.metrics.listen)
        if address is None or self._server is None or self._upgrade is None:
            return
        sources = MetricSources(
            service=self._counts,
            relay=self._server,
            interceptor=self._interceptor,
            bypass=self._bypass,
            engine=engine,
            upgrade=self._upgrade,
            budget=self._server.budget,
            own_budget=self._own_budget,
            dropped_log_lines=dropped_lines,
            audit_file=self._audit_file,
            traces=self._traces,
        )
        page_api = api if self._settings.metrics.page else None
        await serve_metrics(sources, address, self._executor, self._stopping, page_api)

    def _api(self, engine: Engine, listener: Listener) -> dict[str, Load]:
        """The services of the API; loaded at their first calls."""
        assert self._server is not None  # noqa: S101 - it serves
        assert self._upgrade is not None  # noqa: S101 - made with the server
        predecessor = self._predecessor
        sources = ApiSources(
            engine=engine,
            server=self._server,
            own_budget=self._own_budget,
            interceptor=self._interceptor,
            bypass=self._bypass,
            upgrade=self._upgrade,
            audit_file=self._audit_file,
            traces=self._traces,
            settings=lambda: self._settings,
            endpoint=listener.address,
            started_s=self._started_s,
            stopping=self._stopping,
            config_path=self._config_path,
            last_reload=lambda: self._last_reload,
            has_predecessor=lambda: predecessor is not None and predecessor.is_draining,
            admin=self._admin,
            changing=self._changing,
        )
        module = "runtimeproxy.service.api.servicer"
        executor = self._executor
        return {
            READ_SERVICE: loader(executor, module, lambda it: it.RuntimeProxyServicer(sources, executor)),
            ADMIN_SERVICE: loader(
                executor, "runtimeproxy.service.api.admin", lambda it: it.AdminServicer(sources, executor)
            ),
        }

    async def _publish_admin(self, engine: Engine, apis: dict[str, Load]) -> None:
        """Publishes the admin socket; its server is made at the first connection."""
        admin, lock = self._admin, asyncio.Lock()
        assert admin is not None  # noqa: S101 - the caller has looked

        async def start() -> str:
            async with lock:
                if self._admin_server is None:
                    server = LocalServer()
                    await server.start(
                        self._executor, engine.runtime_answers, self._stopping, apis, self._own_budget
                    )
                    self._admin_server = server
                return self._admin_server.socket_path

        admin.start = start
        await admin.publish(replaces=self._predecessor is not None)

    # Service

    async def _report_recovery(self, engine: Engine) -> None:
        await engine.recovered.wait()
        if self._owns_process:
            # These objects stay: the collector need not stop the loop to look at them again and again.
            gc.freeze()
            young, middle, _ = gc.get_threshold()
            gc.set_threshold(young, middle, OLD_COLLECTIONS)
        self._notifier.status(self._status())
        logger.info("records recovered: %s", engine.summary)

    async def _keep_status(self, engine: Engine) -> None:
        """Updates bypass and status, and logs suppressed repetitions."""
        last = ""
        while True:
            self._bypass.update()
            engine.prune()
            engine.end_modes()
            flush_failures()
            if self._server is not None:
                self._counts.is_runtime_away = await self._server.is_runtime_away()
            status = self._status()
            if status != last:
                self._notifier.status(status)
                last = status
            until_s = asyncio.get_running_loop().time() + STATUS_INTERVAL_S
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._counts.loop_lag.observe(max(0.0, asyncio.get_running_loop().time() - until_s))

    def _status(self) -> str:
        """One line for `systemctl status`."""
        trouble = "the runtime is away" if self._counts.is_runtime_away else ""
        count = self._server.connection_count if self._server is not None else 0
        clients = "1 connection" if count == 1 else f"{count} connections"
        bypass = "bypass is on" if self._interceptor.bypass else ""
        summary = self._engine.summary if self._engine is not None else "loading"
        return "; ".join(filter(None, (trouble, bypass, summary, clients)))

    def _choose_bypass(self, is_on: bool) -> None:
        self._bypass.choose(is_on)
        if self.ready.is_set():
            self._notifier.status(self._status())

    def _internal_errors(self) -> int:
        in_calls = self._engine.internal_errors if self._engine is not None else 0
        return in_calls + (self._server.defect_count if self._server is not None else 0)

    def _compare_soon(self) -> None:
        if self._engine is not None:
            self._engine.compare_soon()

    def _is_standby(self) -> bool:
        """Whether this process decides on no calls: the bypass is on, or a successor serves."""
        return self._interceptor.bypass or (self._upgrade is not None and self._upgrade.has_moved)

    # Reload and upgrade

    async def _reload_settings(self) -> None:
        """Reads the configuration again; on an error the old one stays."""
        async with self._changing:
            self._notifier.reloading()
            try:
                read = await asyncio.get_running_loop().run_in_executor(self._executor, self._reload)
                settings, waiting = reloaded(self._settings, read)
                if self._engine is not None:
                    await self._engine.use(settings)
            except RuntimeProxyError as error:
                reason = "; ".join(str(error).splitlines())
                self._counts.is_configured = False
                logger.error("configuration not changed: %s", reason)  # noqa: TRY400  # the message says it all
                self._last_reload = Reloaded(time.time(), reason)
            else:
                self._use(settings)
                self._counts.is_configured, self._counts.configured_s = True, time.time()
                self._last_reload = Reloaded(time.time(), need_restart=tuple(waiting))
                if waiting:
                    logger.warning("%s changed; restart to apply", ", ".join(waiting))
                logger.info("configuration reloaded")
            finally:
                self._notifier.ready(self._status())

    def _use(self, settings: Settings) -> None:
        old, self._settings = self._settings, settings
        if settings.hooks.enabled != old.hooks.enabled:
            self._bypass.configure(not settings.hooks.enabled)
        self._audit_file.configure(settings.audit)
        if self._traces is not None:
            self._traces.configure(settings.tracing)
        logging.getLogger().setLevel(settings.log.level.upper())

    async def _hand_over(self) -> None:
        if self._upgrade is not None:
            await self._upgrade.run(self._changing)

    async def _flush_state(self) -> None:
        if self._engine is not None:
            await self._engine.flush_state()

    async def _take_back_state(self) -> None:
        if self._engine is not None:
            await self._engine.take_back_state()
        if self._admin is not None:
            # The successor's is there, or its remains.
            await self._admin.publish(replaces=True)

    # End

    async def _stop(self, listener: Listener, server: RelayServer, upgrade: Upgrade) -> None:
        """The listener is released first, so that a new instance can start while this one drains."""
        self._stopping.set()
        await upgrade.stop()
        if self._predecessor is not None:
            self._predecessor.report_stopping()
        self._notifier.stopping("draining")
        server.stop_accepting()
        address = listener.address
        if self._admin is not None:
            await self._admin.stop()
        kubelets = None if upgrade.has_moved else self._find_kubelets(address, listener.path is None)
        listener.release()
        await server.drain(self._settings.proxy.drain_s)
        await self._tasks.cancel(CLOSING_S)
        for local in (self._local, self._admin_server):
            if local is not None:
                await local.stop()
        if self._engine is not None:
            await self._engine.close()
        self._audit_file.close()
        if self._traces is not None:
            self._traces.close()
        await upgrade.send_drained()
        if kubelets is not None:
            await self._warn_of_kubelets(kubelets, address)
        self._executor.shutdown(cancel_futures=True)
        logger.info("stopped")

    def _find_kubelets(self, address: str, is_passed: bool) -> asyncio.Future[list[KubeletSetting]]:
        """Looks, while calls end, for kubelets that lose their runtime.

        With a socket from systemd clients wait for the next instance, unless the service was disabled.
        """

        def find() -> list[KubeletSetting]:
            from runtimeproxy.service.kubelet import is_enabled_unit, kubelet_settings

            return [] if is_passed and is_enabled_unit() else kubelet_settings(address)

        return asyncio.get_running_loop().run_in_executor(self._executor, find)

    async def _warn_of_kubelets(self, kubelets: asyncio.Future[list[KubeletSetting]], address: str) -> None:
        try:
            async with asyncio.timeout(KUBELETS_S):
                found = await kubelets
        except OSError:  # a TimeoutError too; with too few file descriptors the search cannot be imported
            logger.warning("stopped; whether a kubelet still uses %s is not known", address)
            return
        if found and is_served(address):
            return  # another instance has been started meanwhile
        for each in found:
            advice = each.advice(self._settings.proxy)
            extra = {"place": each.place, "key": each.name}
            logger.warning("a kubelet still uses the proxy's socket: %s", advice, extra=extra)


def _traces(settings: Settings) -> Traces | None:
    if not settings.tracing.endpoint:
        return None
    from runtimeproxy.service.tracing.traces import Traces

    return Traces(settings.tracing)
