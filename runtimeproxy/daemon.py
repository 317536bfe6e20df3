"""The daemon: serves at once, loads what decides meanwhile, and lives as a service manager expects."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.errors import ConfigError, PolicyLoadError, RuntimeProxyError
from runtimeproxy.gate import Gate
from runtimeproxy.ops.alive import answers_ping, feed_watchdog
from runtimeproxy.ops.background import BackgroundThreads
from runtimeproxy.ops.breaker import PassBreaker
from runtimeproxy.ops.own_server import OwnServer
from runtimeproxy.ops.reloading import reloaded
from runtimeproxy.ops.switch import BYPASS_OFF, BYPASS_ON
from runtimeproxy.relay.server import RelayServer
from runtimeproxy.sdnotify import Notifier, watchdog_interval_s
from runtimeproxy.sockets import connection_options, listener_of

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.engine import Engine
    from runtimeproxy.relay.listener import Listener

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.00005
"""How long a thread that computes may keep the relay's loop waiting; Python's default is 5 ms."""
STATUS_INTERVAL_S: Final = 1.0
"""How often the breaker is looked at and the service manager is told the status."""
POLICIES_WAIT_S: Final = 5.0
"""How long READY waits for policies that are slow to load; calls that need none pass all the time."""
CLOSING_S: Final = 0.5
"""How long connections may take to write what is left, beyond the drain; the rest is cut."""
BACKGROUND_THREADS: Final = 3
"""For loading, long messages, lists and cgroup files; policies have their own."""

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
            runner.run(_serve(settings, reload))
    except (ConfigError, PolicyLoadError) as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400  # the message says it all
        return 2
    except RuntimeProxyError as error:
        logger.error("cannot serve: %s", error)  # noqa: TRY400  # the message says it all
        return 1
    return 0


async def _serve(settings: Settings, reload: Reload) -> None:
    await Daemon(settings, reload).serve()


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
    """One running daemon; made in its event loop.

    Args:
        settings: what to serve.
        reload: reads the settings again.
        environ: where the service manager's variables are; None for the process's own.
    """

    def __init__(self, settings: Settings, reload: Reload, environ: dict[str, str] | None = None) -> None:
        self._settings = settings
        self._reload = reload
        self._environ = dict(os.environ) if environ is None else environ
        self._notifier = Notifier.from_environ(self._environ)
        self._own: OwnServer | None = None
        self._server: RelayServer | None = None
        self._engine: Engine | None = None
        self._gate = Gate(settings.hooks.budget_s)
        self._breaker = PassBreaker(lambda: self._engine.internal_errors if self._engine else 0)
        self._breaker.forced = not settings.hooks.enabled
        self._gate.bypass = self._breaker.passes()
        self._executor = BackgroundThreads(BACKGROUND_THREADS, "background")
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Serves first, loads everything else meanwhile, and ends gracefully when a signal says so.

        Raises:
            RuntimeProxyError: the socket cannot be had.
            PolicyLoadError: a policy cannot be loaded.
        """
        self._handle_signals()
        listener = listener_of(self._settings.proxy, self._environ)
        socket_path = str(listener.path or listener.sock.getsockname())
        try:
            self._own = self._own_server()
            options = connection_options(self._settings.proxy, self._gate, self._own)
            self._server = RelayServer(options, self._settings.proxy.allowed_uids)
            await self._server.start(listener)
            proxy = self._settings.proxy
            logger.info("serving on %s", socket_path, extra={"runtime": proxy.runtime_endpoint})
            self._spawn(self._start_up(socket_path), is_vital=True)
            await self._end
        finally:
            await self._stop(listener)

    def _own_server(self) -> OwnServer | None:
        if not self._settings.proxy.own_services:
            return None
        try:
            return OwnServer()
        except OSError as error:
            logger.error("health and reflection are left to the runtime: %s", error)  # noqa: TRY400
            return None

    async def _stop(self, listener: Listener) -> None:
        """The listener is given up first, so that a successor can start while this one drains."""
        self._stopping.set()
        self._notifier.stopping("draining")
        if self._server is not None:
            self._server.stop_accepting()
        listener.release()
        await self._drain()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_S)
        if self._own is not None:
            await self._own.stop()
        if self._engine is not None:
            await self._engine.close()
        self._executor.shutdown(cancel_futures=True)
        logger.info("stopped")

    async def _drain(self) -> None:
        held_s = self._settings.proxy.drain_s
        try:
            async with asyncio.timeout(held_s + CLOSING_S):
                if self._server is not None:
                    await self._server.drain(held_s)
        except TimeoutError:
            logger.warning("connections are cut")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for stop in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stop, self._finish)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        loop.add_signal_handler(BYPASS_ON, self._force_pass, True)
        loop.add_signal_handler(BYPASS_OFF, self._force_pass, False)

    def _finish(self, error: BaseException | None = None) -> None:
        """Ends the daemon, once."""
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def _force_pass(self, passes: bool) -> None:
        """The switch: lets all new calls pass unheld, or holds them again."""
        self._breaker.forced = passes
        logger.warning("held calls are switched %s", "off" if passes else "on", extra={"bypass": passes})
        self._look_at_breaker()

    def _begin_reload(self) -> None:
        if not self._end.done():
            self._spawn(self._reload_settings())

    async def _reload_settings(self) -> None:
        """Reads the configuration again; on an error the old one stays."""
        async with self._changing:
            self._notifier.reloading()
            try:
                read = await asyncio.get_running_loop().run_in_executor(self._executor, self._reload)
                settings, waiting = reloaded(self._settings, read)
                await self._use(settings)
            except RuntimeProxyError as error:
                logger.error("configuration not changed: %s", error)  # noqa: TRY400  # the message says it all
            else:
                if waiting:
                    logger.warning("counts after a restart only: %s", ", ".join(waiting))
                logger.info("configuration read again")
            finally:
                self._notifier.ready(self._status())

    async def _use(self, settings: Settings) -> None:
        """Takes settings that have changed."""
        engine, old = self._engine, self._settings
        if engine is not None:
            await engine.load_policies(settings)
            engine.configure(settings)
        self._settings = settings
        if settings.hooks.enabled != old.hooks.enabled:
            self._breaker.forced = not settings.hooks.enabled
        self._look_at_breaker()
        logging.getLogger().setLevel(settings.log.level.upper())

    async def _start_up(self, socket_path: str) -> None:
        """Loads what decides, then the policies; tells the service manager once they are there."""
        async with self._changing:
            engine = self._engine = await self._make_engine()
            self._gate.hand_over(engine.interceptor)
            loading = self._spawn(engine.load_policies(self._settings), is_vital=True)
            await asyncio.wait({loading}, timeout=POLICIES_WAIT_S)
        if self._end.done():
            return
        engine.start()
        self._spawn(self._keep_status())
        if self._own is not None:
            self._spawn(self._own.start(self._executor, engine.runtime_answers, self._stopping))
        interval_s = watchdog_interval_s(self._environ)
        if interval_s is not None:
            is_alive = partial(answers_ping, socket_path)
            self._spawn(feed_watchdog(interval_s, is_alive, self._notifier.watchdog))
        self._spawn(self._tell_recovered(engine))
        self._notifier.ready(self._status())

    async def _tell_recovered(self, engine: Engine) -> None:
        await engine.recovered.wait()
        # What is there now stays: the collector need not stop the loop to look at it again and again.
        gc.freeze()
        self._notifier.status(self._status())
        logger.info("records recovered: %s", engine.summary)

    async def _make_engine(self) -> Engine:
        await asyncio.get_running_loop().run_in_executor(self._executor, _import_engine)
        from runtimeproxy.engine import Engine

        return Engine(self._settings, self._executor, self._spawn, lambda: self._gate.bypass)

    def _spawn(self, work: Coroutine[Any, Any, None], *, is_vital: bool = False) -> asyncio.Task[None]:
        """Starts a background task and keeps it; its error is logged, and ends the daemon if it is vital."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, is_vital=is_vital))
        return task

    def _ended(self, task: asyncio.Task[None], *, is_vital: bool) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and is_vital:
            self._finish(error)
        elif error is not None:
            logger.error("a background task failed", exc_info=error)

    async def _keep_status(self) -> None:
        """Looks at the breaker, and tells the service manager what changed."""
        told = ""
        while True:
            self._look_at_breaker()
            if self._engine is not None:
                self._engine.tidy()
            status = self._status()
            if status != told:
                self._notifier.status(status)
                told = status
            await asyncio.sleep(STATUS_INTERVAL_S)

    def _look_at_breaker(self) -> None:
        before, self._gate.bypass = self._gate.bypass, self._breaker.passes()
        if before and not self._gate.bypass and self._engine is not None:
            self._engine.compare_soon()

    def _status(self) -> str:
        count = self._server.connection_count if self._server is not None else 0
        mode = "all calls pass unheld; " if self._gate.bypass else ""
        return f"{mode}{self._engine.summary if self._engine else 'loading'}; {count} connections"


def _import_engine() -> None:
    import runtimeproxy.engine  # noqa: F401  # the import is the purpose
