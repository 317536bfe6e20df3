"""The daemon: serves at once, loads what decides meanwhile, and lives as a service manager expects."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.config.settings import reloaded
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.logs import flush_failures
from runtimeproxy.relay.server import RelayServer
from runtimeproxy.service import signals
from runtimeproxy.service.bypass import Bypass
from runtimeproxy.service.control_signals import BYPASS_OFF, BYPASS_ON, UPGRADE, is_served
from runtimeproxy.service.gate import Gate
from runtimeproxy.service.handover.predecessor import Predecessor
from runtimeproxy.service.handover.successor import Program
from runtimeproxy.service.handover.upgrade import TAKEN_OVER, Serving, Upgrade, note
from runtimeproxy.service.late_engine import LateEngine
from runtimeproxy.service.sdnotify import Notifier, watchdog_interval_s
from runtimeproxy.service.sockets import check_handed_over, connection_options, listener_of, own_server
from runtimeproxy.service.status_line import status_line
from runtimeproxy.service.tasks import BackgroundTasks
from runtimeproxy.service.thread_latency import exact_timers, wake_soon
from runtimeproxy.service.threads import BackgroundThreads
from runtimeproxy.service.watchdog import answers_ping, feed_watchdog

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.hooks.audit import AuditSink
    from runtimeproxy.hooks.loading import PolicyLoader
    from runtimeproxy.relay.listener import Listener
    from runtimeproxy.service.engine import Engine
    from runtimeproxy.service.kubelet import KubeletSetting
    from runtimeproxy.service.local_server import OwnServer

logger = logging.getLogger(__name__)

STATUS_INTERVAL_S: Final = 1.0
"""How often the breaker is looked at and the service manager is told the status."""
POLICIES_WAIT_S: Final = 5.0
"""How long READY waits for policies that are slow to load; calls that need none pass all the time."""
CLOSING_S: Final = 0.5
"""How long background tasks may take to end."""
KUBELETS_S: Final = 1.0
"""How long the end waits, after the calls, for the look at kubelets; it takes milliseconds."""
BACKGROUND_THREADS: Final = 3
"""For loading, long messages, lists and cgroup files; policies have their own."""

Reload = Callable[[], "Settings"]


class Daemon:
    """One running daemon; made in its event loop.

    Args:
        settings: what to serve.
        reload: reads the settings again.
        environ: where the service manager's variables are; None for the process's own.
        loader: finds and makes the policies; None for the usual one.
        sink: gets the audit entries, beside the log.

    Attributes:
        ready: set when it serves and its policies are there.
    """

    def __init__(
        self,
        settings: Settings,
        reload: Reload,
        environ: MutableMapping[str, str] | None = None,
        *,
        loader: PolicyLoader | None = None,
        sink: AuditSink | None = None,
    ) -> None:
        # In another thread it is a guest, as in tests: signals and the collector are the host's.
        self._owns_process = threading.current_thread() is threading.main_thread()
        self.ready = asyncio.Event()
        self._settings = settings
        self._reload = reload
        self._environ = os.environ if environ is None else environ
        self._predecessor = Predecessor.of(self._environ)
        self._program = Program.this(self._environ)
        self._upgrade: Upgrade | None = None
        self._notifier = Notifier.from_environ(self._environ)
        # Nothing is told before the service manager knows this process.
        self._notifier.is_muted = self._predecessor is not None
        self._own: OwnServer | None = None
        self._server: RelayServer | None = None
        self._engine = LateEngine(loader, sink)
        self._gate = Gate(settings.hooks.budget_s, refuses=settings.hooks.on_failure == "refuse")
        self._gate.on_unseen = self._engine.compare_soon
        self._bypass = Bypass(
            self._gate, self._own_errors, not settings.hooks.enabled, self._engine.compare_soon
        )
        if self._predecessor is not None and self._predecessor.switched is not None:
            self._bypass.switch(self._predecessor.switched)
        self._executor = BackgroundThreads(BACKGROUND_THREADS, "background")
        self._tasks = BackgroundTasks(self._finish)
        self._spawn = self._tasks.spawn
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Serves first, loads everything else meanwhile, and ends gracefully when a signal says so.

        Raises:
            RuntimeProxyError: the socket cannot be had.
            PolicyLoadError: a policy cannot be loaded.
        """
        if self._owns_process:
            self._handle_signals()
        if not await self._policies_allow_start():
            return
        listener = self._listener()
        self._own = own_server(self._settings.proxy)
        options = connection_options(self._settings.proxy, self._gate, self._own)
        server = self._server = RelayServer(
            options, self._settings.proxy.allowed_uids, self._settings.proxy.max_connections_per_process
        )
        upgrade = self._upgrade = Upgrade(self._program, self._serving(listener, server), self._predecessor)
        try:
            starting = self._start_up if self._predecessor is None else self._take_over
            self._spawn(starting(listener, server), is_vital=True)
            await self._end
        finally:
            await self._stop(listener, server, upgrade)

    async def _policies_allow_start(self) -> bool:
        """Loads the policies before there is a socket, if one that cannot be loaded is to end the start.

        Returns:
            False if a signal has ended the daemon meanwhile.
        """
        if self._settings.hooks.on_load_error != "stop" or self._predecessor is not None:
            return True
        loading = self._spawn(self._load_first(), is_vital=True)
        await asyncio.wait({loading, self._end}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done() or loading.exception() is not None:
            await self._tasks.cancel(CLOSING_S)
            await self._engine.close()
            self._executor.shutdown(cancel_futures=True)
            if loading.done():
                await self._end
            return False
        return True

    async def _load_first(self) -> None:
        engine = await self._make_engine()
        await engine.load_policies(self._settings)

    def _listener(self) -> Listener:
        """The listening socket: the predecessor's, systemd's, or one that is made."""
        if self._predecessor is None:
            return listener_of(self._settings.proxy, self._environ)
        check_handed_over(self._predecessor.listener, self._settings.proxy)
        return self._predecessor.listener

    def _serving(self, listener: Listener, server: RelayServer) -> Serving:
        """What an upgrade hands over."""
        return Serving(
            listener=listener,
            server=server,
            notifier=self._notifier,
            executor=self._executor,
            flush=self._engine.flush_state,
            finish=self._finish,
            resume=self._engine.take_back_state,
            start_s=self._settings.proxy.upgrade_start_s,
            drain_s=self._settings.proxy.upgrade_drain_s,
            switched=lambda: self._bypass.switched,
        )

    async def _stop(self, listener: Listener, server: RelayServer, upgrade: Upgrade) -> None:
        """The listener is given up first, so that a successor can start while this one drains."""
        self._stopping.set()
        await upgrade.stop()
        if self._predecessor is not None:
            self._predecessor.stopping()
        self._notifier.stopping("draining")
        server.stop_accepting()
        address = listener.address
        looking = self._look_for_kubelets(listener, upgrade)
        listener.release()
        await server.drain(self._settings.proxy.drain_s)
        await self._tasks.cancel(CLOSING_S)
        if self._own is not None:
            await self._own.stop()
        await self._engine.close()
        await upgrade.tell_drained()
        if looking is not None:
            await self._tell_of_kubelets(looking, address)
        self._executor.shutdown(cancel_futures=True)
        logger.info("stopped")

    def _look_for_kubelets(
        self, listener: Listener, upgrade: Upgrade
    ) -> asyncio.Future[list[KubeletSetting]] | None:
        """Looks, while calls end, for kubelets that lose their runtime; None where others go on serving.

        With the socket unit clients wait for the next instance, unless the service was disabled.
        """
        if upgrade.has_moved:
            return None
        address, is_handed_over = listener.address, listener.path is None

        def look() -> list[KubeletSetting]:
            from runtimeproxy.service.kubelet import is_enabled_unit, kubelet_settings

            return [] if is_handed_over and is_enabled_unit() else kubelet_settings(address)

        return asyncio.get_running_loop().run_in_executor(self._executor, look)

    async def _tell_of_kubelets(self, looking: asyncio.Future[list[KubeletSetting]], address: str) -> None:
        try:
            async with asyncio.timeout(KUBELETS_S):
                found = await looking
        except TimeoutError:
            logger.warning("stopped; whether a kubelet still uses %s is not known", address)
            return
        if found and is_served(address):
            return  # another instance has been started meanwhile
        for each in found:
            advice = each.advice(self._settings.proxy)
            extra = {"place": each.place, "key": each.name}
            logger.warning("a kubelet still uses the proxy's socket: %s", advice, extra=extra)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stop, self._finish)
        loop.add_signal_handler(signal.SIGHUP, self._unless_over, self._reload_settings)
        loop.add_signal_handler(UPGRADE, self._unless_over, self._hand_over)
        loop.add_signal_handler(BYPASS_ON, self._bypass.switch, True)
        loop.add_signal_handler(BYPASS_OFF, self._bypass.switch, False)
        signals.unblock()

    def _unless_over(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._end.done():
            self._spawn(work())

    async def _hand_over(self) -> None:
        if self._upgrade is not None:
            await self._upgrade.run(self._changing)

    def finish(self) -> None:
        """Ends the daemon gracefully; in the loop's thread."""
        self._finish()

    def _finish(self, error: BaseException | None = None) -> None:
        """Ends the daemon, once."""
        if not self._end.done():
            if error is None:
                self._end.set_result(None)
            else:
                self._end.set_exception(error)

    async def _reload_settings(self) -> None:
        """Reads the configuration again; on an error the old one stays."""
        async with self._changing:
            self._notifier.reloading()
            try:
                read = await asyncio.get_running_loop().run_in_executor(self._executor, self._reload)
                settings, waiting = reloaded(self._settings, read)
                await self._use(settings)
            except RuntimeProxyError as error:
                reason = "; ".join(str(error).splitlines())
                logger.error("configuration not changed: %s", reason)  # noqa: TRY400  # the message says it all
            else:
                if waiting:
                    logger.warning("%s changed; restart to apply", ", ".join(waiting))
                logger.info("configuration read again")
            finally:
                self._notifier.ready(self._status())

    async def _use(self, settings: Settings) -> None:
        """Takes settings that have changed."""
        old = self._settings
        await self._engine.use(settings)
        self._settings = settings
        if settings.hooks.enabled != old.hooks.enabled:
            self._bypass.configure(not settings.hooks.enabled)
        logging.getLogger().setLevel(settings.log.level.upper())

    async def _start_up(self, listener: Listener, server: RelayServer) -> None:
        """Serves, loads what decides, then the policies; tells the service manager once they are there."""
        await server.start(listener)
        async with self._changing:
            engine = await self._make_engine()
            await self._decide_with(engine)
            if not engine.has_policies:
                loading = self._spawn(engine.load_policies(self._settings), is_vital=True)
                await asyncio.wait({loading}, timeout=POLICIES_WAIT_S)
        if not self._end.done():
            self._begin(engine, listener)

    async def _take_over(self, listener: Listener, server: RelayServer) -> None:
        """Does all that may fail, and only then serves in place of the process before this one."""
        predecessor = self._predecessor
        if predecessor is None:
            return
        async with self._changing:
            engine = await self._make_engine()
            await engine.load_policies(self._settings)
            await predecessor.loaded()
            await self._decide_with(engine)
            await server.start(listener)
            listener.own(note(TAKEN_OVER))
            await predecessor.serving()
        self._notifier.is_muted = False
        self._begin(engine, listener)
        self._spawn(self._follow(predecessor, engine))

    async def _follow(self, predecessor: Predecessor, engine: Engine) -> None:
        """Takes what the process before this one has seen of the calls that ended there."""
        await predecessor.drained()
        await engine.merge_state()
        logger.info("upgrade: the process before this one has ended its calls")

    async def _decide_with(self, engine: Engine) -> None:
        """Reads the records that were written last; held calls are decided with them from now on."""
        await engine.load_state()
        self._gate.hand_over(engine.interceptor)
        engine.start()

    def _begin(self, engine: Engine, listener: Listener) -> None:
        """Starts what runs in the background, and tells the service manager."""
        exact_timers()
        self._executor.submit(wake_soon, threading.get_native_id())
        self._spawn(self._keep_status(engine))
        if self._own is not None:
            self._spawn(self._own.start(self._executor, engine.runtime_answers, self._stopping))
        if (interval_s := watchdog_interval_s(self._environ)) is not None:
            is_alive = partial(answers_ping, listener.address)
            self._spawn(feed_watchdog(interval_s, is_alive, self._notifier.watchdog))
        self._spawn(self._tell_recovered(engine))
        self._notifier.ready(self._status())
        self.ready.set()

    async def _tell_recovered(self, engine: Engine) -> None:
        await engine.recovered.wait()
        # What is there now stays: the collector need not stop the loop to look at it again and again.
        if self._owns_process:
            gc.freeze()
        self._notifier.status(self._status())
        logger.info("records recovered: %s", engine.summary)

    async def _make_engine(self) -> Engine:
        if self._engine.engine is not None:
            return self._engine.engine
        return await self._engine.make(self._settings, self._executor, self._spawn, self._is_passive)

    def _is_passive(self) -> bool:
        """Whether cgroups are left alone between calls: nobody decides, or the successor does."""
        return self._gate.bypass or (self._upgrade is not None and self._upgrade.has_moved)

    def _own_errors(self) -> int:
        """How many errors there have been in the proxy's own code."""
        return self._engine.internal_errors + (self._server.defect_count if self._server is not None else 0)

    async def _keep_status(self, engine: Engine) -> None:
        """Looks at the breaker, and tells the service manager what changed."""
        told = ""
        while True:
            self._bypass.look()
            engine.tidy()
            flush_failures()
            is_away = self._server is not None and await self._server.looked_after()
            status = self._status("the runtime is away" if is_away else "")
            if status != told:
                self._notifier.status(status)
                told = status
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _status(self, trouble: str = "") -> str:
        count = self._server.connection_count if self._server is not None else 0
        return status_line(self._engine.summary, count, trouble, passes=self._gate.bypass)
