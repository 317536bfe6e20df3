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
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy import __version__
from runtimeproxy.background import BackgroundTasks, ThreadPools
from runtimeproxy.config.parsing import parse_listen
from runtimeproxy.config.validation import admin_socket
from runtimeproxy.errors import ConfigError, PolicyLoadError, RuntimeProxyError
from runtimeproxy.frontends.cri_proxy.front_end import CriProxy
from runtimeproxy.frontends.cri_proxy.handover.protocol import report_to_predecessor
from runtimeproxy.frontends.cri_proxy.handover.upgrade import RESTART_INSTEAD, Serving, note
from runtimeproxy.frontends.mode_begin import forget_others
from runtimeproxy.frontends.nri.front_end import NriPlugin
from runtimeproxy.frontends.standalone.front_end import Standalone
from runtimeproxy.logs import flush_failures
from runtimeproxy.process import exact_timers, limit_arenas, wake_soon
from runtimeproxy.sdnotify import Notifier, feed_watchdog, watchdog_interval_s
from runtimeproxy.service.api.loading import ADMIN_SERVICE, READ_SERVICE, loader
from runtimeproxy.service.audit_file import AuditFile
from runtimeproxy.service.bypass import Bypass, Cause
from runtimeproxy.service.configuration import CurrentConfiguration
from runtimeproxy.service.lifetime import Lifetime
from runtimeproxy.service.metrics.server import serve_metrics
from runtimeproxy.service.own_servers import OwnServers
from runtimeproxy.signals import BYPASS_OFF, BYPASS_ON, UPGRADE, is_served, unblock

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtimeproxy.config.settings import Settings
    from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
    from runtimeproxy.frontends.front_end import EarlierProcess, FrontEnd
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.loading import PolicyLoader
    from runtimeproxy.kubelet_endpoints import KubeletSetting
    from runtimeproxy.listener import Listener
    from runtimeproxy.service.api.loading import Load
    from runtimeproxy.service.parts import Parts
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
        parts: all that is there once it is loaded; None before.
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
        environ = os.environ if environ is None else environ
        self._life = Lifetime()
        self._configuration = CurrentConfiguration(settings, reload, config_path)
        self._outputs = _Outputs(AuditFile(settings.audit), _traces(settings), sink)
        self._front_end = self._make_front_end(settings, environ)
        predecessor = self._predecessor
        self.parts: Parts | None = None
        self._bypass = Bypass(
            self._front_end.switch,
            lambda: self._front_end.internal_errors,
            not settings.hooks.enabled,
            self._on_bypass,
        )
        if predecessor is not None and predecessor.bypass is not None:
            self._bypass.choose(predecessor.bypass, Cause.PREDECESSOR)
        self._notifier = Notifier(environ.get("NOTIFY_SOCKET"))
        # The service manager listens to a successor only once it is the main process.
        self._notifier.is_muted = predecessor is not None
        self._owes_ready = False
        self._watchdog_s = watchdog_interval_s(environ)
        self._threads = ThreadPools(BACKGROUND_THREADS)
        self._tasks = BackgroundTasks(self.finish)
        self._servers = OwnServers(admin_socket(settings))
        self._loader = loader

    @property
    def ready(self) -> asyncio.Event:
        # It serves, and its policies are loaded.
        return self._life.ready

    async def serve(self) -> None:
        """Serves first, loads everything else meanwhile, and drains when a signal ends it.

        Raises:
            RuntimeProxyError: the socket cannot be used.
            PolicyLoadError: a policy cannot be loaded.
        """
        settings, front_end = self._configuration.settings, self._front_end
        if self._life.owns_process:
            self._handle_signals()
        # Before there is a socket, if a policy that cannot be loaded is to end the start.
        is_first = settings.hooks.on_load_error == "stop" and self._predecessor is None
        if is_first and not await self._load_policies_first():
            return
        own_socket = self._servers.open() if settings.proxy.own_services else ""
        front_end.open(settings, own_socket)
        try:
            if not front_end.serves_kubelet:
                await self._refuse_kubelets()
            self._tasks.spawn(self._start(), is_vital=True)
            await self._life.ended
        finally:
            await self._stop()

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the daemon, once; in the loop's thread.

        Args:
            error: raised by `serve`; None for a graceful end.
        """
        self._life.finish(error)

    # Start

    def _make_front_end(self, settings: Settings, environ: MutableMapping[str, str]) -> FrontEnd:
        if settings.daemon.mode == "nri":
            return NriPlugin(environ)
        if settings.daemon.mode == "standalone":
            return Standalone(environ)
        return CriProxy(settings, environ, self._serving, self._outputs.traces, self._compare_soon)

    @property
    def _predecessor(self) -> EarlierProcess | None:
        upgradable = self._front_end.upgradable
        return upgradable.predecessor if upgradable is not None else None

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
        if not self._life.ended.done():
            self._tasks.spawn(work())

    async def _load_policies_first(self) -> bool:
        """Loads the policies; returns False if a signal has ended the daemon meanwhile."""

        async def load() -> None:
            parts = await self._make_parts()
            await parts.load_policies(self._threads, self._tasks.spawn)

        loading = self._tasks.spawn(load(), is_vital=True)
        await asyncio.wait({loading, self._life.ended}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is None:
            return True
        await self._tasks.cancel(CLOSING_S)
        if self.parts is not None:
            await self.parts.close(self._threads)
        self._threads.shutdown()
        if loading.done():
            await self._life.ended
        return False

    def _serving(self, listener: Listener, server: RelayServer) -> Serving:
        proxy = self._configuration.settings.proxy
        return Serving(
            listener=listener,
            server=server,
            notifier=self._notifier,
            executor=self._threads.background,
            flush=self._flush_state,
            finish=self.finish,
            resume=self._take_back_state,
            start_s=proxy.upgrade_start_s,
            drain_s=proxy.upgrade_drain_s,
            bypass=lambda: self._bypass.chosen,
            moved=self._life.retired,
        )

    async def _make_parts(self) -> Parts:
        """Imports most of the code in a worker thread."""
        if self.parts is None:
            run = asyncio.get_running_loop().run_in_executor
            await run(self._threads.background, importlib.import_module, "runtimeproxy.service.parts")
            from runtimeproxy.service.parts import make_parts

            outputs = self._outputs
            self.parts = make_parts(
                self._configuration,
                self._front_end,
                self._bypass,
                self._life,
                outputs.audit_file,
                outputs.traces,
                self._servers,
                self._threads,
                self._tasks.spawn,
                self._loader,
                outputs.sinks,
            )
        return self.parts

    async def _start(self) -> None:
        """Accepts clients, then loads records and policies; a successor does so before it accepts."""
        predecessor = self._predecessor
        if predecessor is not None:
            await self._take_over(predecessor)
            return
        await self._front_end.accept()
        async with self._life.changing:
            parts = await self._make_parts()
            state = parts.core.state
            await self._join(parts)
            await state.load(is_successor=False)
            parts.audit_start(is_successor=self._predecessor is not None)
            parts.start(self._tasks.spawn)
            loading = self._tasks.spawn(self._decide(parts), is_vital=True)
            await asyncio.wait({loading}, timeout=POLICIES_WAIT_S)
        if not self._life.ended.done():
            self._begin(parts)

    async def _take_over(self, predecessor: EarlierProcess) -> None:
        """Does everything that may fail, and only then serves in place of the predecessor."""
        async with self._life.changing:
            parts = await self._make_parts()
            state = parts.core.state
            await self._join(parts)
            await parts.load_policies(self._threads, self._tasks.spawn)
            await predecessor.report_loaded()
            await state.load(is_successor=True)
            await self._decide(parts)
            parts.start(self._tasks.spawn)
            await self._front_end.accept()
            parts.audit_start(is_successor=self._predecessor is not None)
        self._notifier.is_muted = False
        self._begin(parts)
        self._tasks.spawn(self._follow(predecessor, parts))

    async def _follow(self, predecessor: EarlierProcess, parts: Parts) -> None:
        """Takes the records of the calls that end in the predecessor."""
        await predecessor.wait_until_drained()
        state = parts.core.state
        await state.checkpoint.merge()
        logger.info("upgrade: the process before this one has ended its calls")

    async def _join(self, parts: Parts) -> None:
        folder = Path(self._configuration.settings.state.dir)
        run = asyncio.get_running_loop().run_in_executor
        await run(self._threads.background, forget_others, folder, self._front_end.mode)
        parts.runtime.client.needs_devices = parts.core.needs_devices
        await self._front_end.join(
            parts.core,
            parts.runtime.client,
            self._configuration.settings,
            self._threads,
            self._tasks.spawn,
        )

    async def _decide(self, parts: Parts) -> None:
        """Loads the policies; the front end decides from now on."""
        await parts.load_policies(self._threads, self._tasks.spawn)
        parts.core.audit_modes()
        if self._outputs.traces is not None:
            self._outputs.traces.start()
        self._front_end.decide()

    def _begin(self, parts: Parts) -> None:
        """Starts the background work, and notifies the service manager."""
        spawn, executor = self._tasks.spawn, self._threads.background
        address = self._front_end.listener.address
        exact_timers()
        executor.submit(wake_soon, threading.get_native_id())
        spawn(self._keep_status(parts))
        services = _services(parts, executor)
        self._servers.start(
            executor,
            parts.runtime.answers,
            self._life.stopping,
            services,
            spawn,
            replaces=self._predecessor is not None,
            public=None if self._front_end.serves_kubelet else self._front_end.listener.sock,
        )
        if self._watchdog_s is not None:
            spawn(feed_watchdog(self._watchdog_s, address, self._notifier))
        spawn(self._report_recovery(parts))
        metrics = self._configuration.settings.metrics
        if (listen := parse_listen(metrics.listen)) is not None:
            page = services[READ_SERVICE] if metrics.page else None
            spawn(serve_metrics(parts, listen, executor, self._life.stopping, page))
        self._notify_ready()
        self._life.ready.set()

    # Service

    async def _report_recovery(self, parts: Parts) -> None:
        inventory = parts.core.inventory
        await inventory.recovered.wait()
        if self._life.owns_process:
            # These objects stay: the collector need not stop the loop to look at them again and again.
            gc.freeze()
            young, middle, _ = gc.get_threshold()
            gc.set_threshold(young, middle, OLD_COLLECTIONS)
        self._notifier.status(self._status())
        logger.info("records recovered: %s", parts.summary)

    async def _keep_status(self, parts: Parts) -> None:
        """Updates bypass and status, and logs suppressed repetitions."""
        last = ""
        loop = asyncio.get_running_loop()
        while True:
            self._bypass.update()
            parts.core.prune()
            flush_failures()
            await self._front_end.update()
            if self._owes_ready:
                self._notify_ready()
            status = self._status()
            if status != last and self._notifier.status(status):
                last = status
            until_s = loop.time() + STATUS_INTERVAL_S
            await asyncio.sleep(STATUS_INTERVAL_S)
            self._life.loop_lag.observe(max(0.0, loop.time() - until_s))

    def _status(self) -> str:
        """One line for `systemctl status`."""
        before, behind = self._front_end.summaries
        return "; ".join(filter(None, (before, self.parts.summary if self.parts else "loading", behind)))

    def _notify_ready(self) -> None:
        # With a full queue it is sent again: without it systemd ends the daemon, or never the reload.
        self._owes_ready = not self._notifier.ready(self._status()) and self._notifier.has_manager

    def _choose_bypass(self, is_on: bool) -> None:
        self._bypass.choose(is_on)
        if self._life.ready.is_set():
            self._notifier.status(self._status())

    def _on_bypass(self, is_on: bool, by: Cause, reason: str) -> None:
        if self.parts is not None:
            self.parts.audit_bypass(is_on, by, reason)
        if not is_on:
            self._compare_soon()

    def _compare_soon(self) -> None:
        if self.parts is not None:
            inventory = self.parts.core.inventory
            inventory.confirm_all()

    # Reload and upgrade

    async def _reload_settings(self) -> None:
        # On an error the old configuration stays.
        async with self._life.changing:
            self._notifier.reloading()
            try:
                settings, waiting = await self._configuration.read(self._threads.background)
                if self.parts is not None:
                    await self.parts.core.use(settings)
            except RuntimeProxyError as error:
                reason = self._configuration.refuse(error)
                logger.error("configuration not changed: %s", reason)  # noqa: TRY400  # the message says it all
            else:
                self._use(settings)
                self._configuration.use(settings, waiting)
                if waiting:
                    logger.warning("%s changed; restart to apply", ", ".join(waiting))
                logger.info("configuration reloaded")
            finally:
                self._notify_ready()

    def _use(self, settings: Settings) -> None:
        if settings.hooks.enabled != self._configuration.settings.hooks.enabled:
            self._bypass.configure(not settings.hooks.enabled)
        self._front_end.use(settings)
        self._outputs.audit_file.configure(settings.audit)
        if self._outputs.traces is not None:
            self._outputs.traces.configure(settings.tracing)
        logging.getLogger().setLevel(settings.log.level.upper())

    async def _hand_over(self) -> None:
        upgradable = self._front_end.upgradable
        if upgradable is not None:
            await upgradable.hand_over(self._life.changing)
            if self.parts is not None and upgradable.upgrade_problem:
                self.parts.audit_upgrade_problem(upgradable.upgrade_problem)
        else:
            logger.warning("upgrade refused: in mode %s a restart costs no call", self._front_end.mode)
            self._front_end.listener.note(note(RESTART_INSTEAD))

    async def _flush_state(self) -> None:
        if self.parts is not None:
            state = self.parts.core.state
            await state.flush(self._threads.background)

    async def _take_back_state(self) -> None:
        if self.parts is not None:
            await self.parts.core.take_back_state()
        await self._servers.publish_again()

    # End

    async def _stop(self) -> None:
        """The listener is released first, so that a new instance can start while this one drains."""
        front_end, proxy = self._front_end, self._configuration.settings.proxy
        self._life.stopping.set()
        await front_end.stop_accepting()
        self._notifier.stopping("draining")
        address = front_end.listener.address
        await self._servers.close_admin()
        kubelets = None
        if front_end.serves_kubelet and not self._life.retired.is_set():
            kubelets = self._find_kubelets(address, front_end.listener.path is None)
        front_end.listener.release()
        await front_end.drain(proxy.drain_s)
        await self._tasks.cancel(CLOSING_S)
        await self._servers.stop()
        if self.parts is not None:
            await self.parts.close(self._threads)
        self._outputs.close()
        await front_end.end()
        if kubelets is not None:
            await self._warn_of_kubelets(kubelets, address)
        self._threads.shutdown()
        logger.info("stopped")

    async def _refuse_kubelets(self) -> None:
        """A kubelet whose runtime is this socket would have none.

        Raises:
            ConfigError: There is one.
        """
        from runtimeproxy.kubelet_endpoints import calls_problem

        # A socket from systemd may have another path than the configuration's.
        sockets = {(proxy := self._configuration.settings.proxy).endpoint, self._front_end.listener.address}
        run = asyncio.get_running_loop().run_in_executor
        if problem := await run(self._threads.background, calls_problem, proxy, sockets):
            raise ConfigError("configuration", "daemon.mode", problem)

    def _find_kubelets(self, address: str, is_passed: bool) -> asyncio.Future[list[KubeletSetting]]:
        """Looks, while calls end, for kubelets that lose their runtime.

        With a socket from systemd clients wait for the next instance, unless the service was disabled.
        """

        def find() -> list[KubeletSetting]:
            from runtimeproxy.kubelet_endpoints import is_enabled_unit, kubelet_settings

            return [] if is_passed and is_enabled_unit() else kubelet_settings(address)

        return asyncio.get_running_loop().run_in_executor(self._threads.background, find)

    async def _warn_of_kubelets(self, kubelets: asyncio.Future[list[KubeletSetting]], address: str) -> None:
        try:
            async with asyncio.timeout(KUBELETS_S):
                found = await kubelets
        except (OSError, ImportError):
            # A TimeoutError too. The search cannot be imported with too few file descriptors, or once another
            # version is installed that has it elsewhere.
            logger.warning("stopped; whether a kubelet still uses %s is not known", address)
            return
        if found and is_served(address):
            return  # another instance has been started meanwhile
        for each in found:
            advice = each.advice(self._configuration.settings.proxy)
            extra = {"place": each.place, "key": each.name}
            logger.warning("a kubelet still uses the proxy's socket: %s", advice, extra=extra)


class _Outputs:
    """Where audit entries and spans go."""

    def __init__(self, audit_file: AuditFile, traces: Traces | None, sink: AuditSink | None) -> None:
        self.audit_file = audit_file
        self.traces = traces
        self.sinks: tuple[AuditSink, ...] = (audit_file,) if sink is None else (sink, audit_file)

    def close(self) -> None:
        """Writes the rest."""
        self.audit_file.close()
        if self.traces is not None:
            self.traces.close()


def _services(parts: Parts, executor: Executor) -> dict[str, Load]:
    """The services of the API; loaded at their first calls."""
    folder = "runtimeproxy.service.api"
    return {
        READ_SERVICE: loader(
            executor, f"{folder}.servicer", lambda it: it.RuntimeProxyServicer(parts, executor)
        ),
        ADMIN_SERVICE: loader(executor, f"{folder}.admin", lambda it: it.AdminServicer(parts, executor)),
    }


def _traces(settings: Settings) -> Traces | None:
    if not settings.tracing.endpoint:
        return None
    from runtimeproxy.service.tracing.traces import Traces

    return Traces(settings.tracing)
