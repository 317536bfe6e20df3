"""The predecessor's side of an upgrade."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtimeproxy.service.handover.channel import PeerGoneError, Word
from runtimeproxy.service.handover.successor import NoSuccessorError, Program, Successor

if TYPE_CHECKING:
    from runtimeproxy.relay.listener import Listener
    from runtimeproxy.relay.server import RelayServer
    from runtimeproxy.service.handover.predecessor import Predecessor
    from runtimeproxy.service.sdnotify import Notifier

logger = logging.getLogger(__name__)

SERVING_S: Final = 10.0
"""How long the successor may take to read the records and to accept; clients wait in the backlog."""
FLUSH_S: Final = 2.0
"""How long the records may take to be written; clients wait in the backlog."""

TAKEN_OVER: Final = "taken over"
"""What a successor notes in the lock file."""

_TELL_TIMES: Final = 40
_TELL_PACE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Serving:
    """What is handed over, and how.

    Attributes:
        listener: the listening socket.
        server: accepts on it.
        notifier: to the service manager.
        executor: threads for starting and waiting.
        flush: writes the records.
        finish: ends this process.
        resume: awaited before this process serves again after all; clients wait in the backlog.
        start_s: how long a successor may take to come up.
        drain_s: how long calls may go on here after a successor has taken over.
        switched: an operator's word on held calls: off, on, or None.
        serve_s: how long a successor may take from the last word to it until it serves.
    """

    listener: Listener
    server: RelayServer
    notifier: Notifier
    executor: Executor
    flush: Callable[[], Awaitable[None]]
    finish: Callable[[], None]
    resume: Callable[[], Awaitable[None]]
    start_s: float
    drain_s: float
    switched: Callable[[], bool | None] = lambda: None
    serve_s: float = SERVING_S


class Upgrade:
    """Hands over to a successor, one at a time. Used in the event loop's thread.

    Args:
        program: how the successor is started.
        serving: what is handed over.
        predecessor: the process before this one; None if there was none.

    Attributes:
        has_moved: whether a successor serves now.
    """

    def __init__(self, program: Program, serving: Serving, predecessor: Predecessor | None = None) -> None:
        self._program = program
        self._serving = serving
        self._predecessor = predecessor
        self._successor: Successor | None = None
        self._running: asyncio.Task[None] | None = None
        self.has_moved = False

    async def run(self, changing: asyncio.Lock) -> None:
        """Upgrades: returns when this process is to end, or goes on after a failure.

        Args:
            changing: held while this process and its successor both must stay as they are.
        """
        is_followed = self._predecessor is not None and self._predecessor.is_draining
        if is_followed or self._running is not None:
            refusal = "the process before this one still drains" if is_followed else "one is in progress"
            logger.warning("upgrade refused: %s", refusal)
            self._serving.listener.note(note(f"upgrade refused: {refusal}"))
            return
        self._running = asyncio.current_task()
        try:
            async with changing:
                successor = await self._hand_over()
            if successor is not None:
                await self._retire(successor)
        finally:
            self._running = None

    async def stop(self) -> None:
        """This process is to end: a successor that does not serve yet is not needed any more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
        if self._successor is not None and not self.has_moved:
            await self._successor.kill()
            self._serving.listener.own()
            self._successor = None

    async def tell_drained(self) -> None:
        """No call runs here any more and all records are written."""
        if self._successor is not None:
            self._successor.channel.say(Word.DRAINED)
            await self._successor.channel.close()

    async def _hand_over(self) -> Successor | None:
        """Starts a successor and returns it once it serves; None if it does not come up: all is as before."""
        serving = self._serving
        logger.info("upgrade: starting a successor", extra={"command": list(self._program.command)})
        try:
            successor = await self._start()
            await successor.channel.open()
            await successor.hear(Word.LOADED, serving.start_s)
            serving.server.stop_accepting()
            await self._flush()
            # From here on the lock and the socket's name are the successor's.
            serving.listener.is_owner = False
            successor.channel.say(Word.GO)
            await successor.hear(Word.SERVING, serving.serve_s)
        except NoSuccessorError as error:
            await self._serve_again(str(error))
            return None
        except Exception:  # a bug must not leave the clients in the backlog for good
            logger.exception("upgrade: an error in the proxy itself")
            await self._serve_again("an error in the proxy itself")
            return None
        return successor

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._serving.flush()
        except TimeoutError:
            logger.warning("upgrade: the records are not written yet; the runtime has them too")

    async def _start(self) -> Successor:
        """Starts a process, which is known even if this task is cancelled meanwhile."""
        serving = self._serving
        starting = asyncio.ensure_future(
            Successor.start(self._program, serving.listener, serving.executor, switched=serving.switched())
        )
        try:
            await asyncio.shield(starting)
        finally:
            with contextlib.suppress(NoSuccessorError):
                self._successor = await starting
        return starting.result()

    async def _retire(self, successor: Successor) -> None:
        """Lets calls go on here as long as they may, while the successor serves."""
        serving = self._serving
        self.has_moved = True
        successor.forget_errors()
        await self._tell_main_pid(successor.pid)
        serving.notifier.is_muted = True
        successor.channel.say(Word.MAIN)
        logger.info("upgrade: process %d serves now", successor.pid, extra={"successor": successor.pid})
        draining = asyncio.ensure_future(serving.server.retire(serving.drain_s))
        told = asyncio.ensure_future(successor.channel.hear(Word.STOPPING))
        try:
            await asyncio.wait((draining, told), return_when=asyncio.FIRST_COMPLETED)
            is_gone = told.done() and isinstance(told.exception(), PeerGoneError)
        finally:
            draining.cancel()
            told.cancel()
        if is_gone:
            await self._serve_again("the successor ended after it had taken over")
        else:
            serving.finish()

    async def _tell_main_pid(self, pid: int) -> None:
        """Says it until the service manager's queue has room: what it does not hear, nobody can say later."""
        notifier = self._serving.notifier
        for _ in range(_TELL_TIMES):
            if notifier.main_pid(pid) or not notifier.enabled:
                return
            await asyncio.sleep(_TELL_PACE_S)
        logger.warning("upgrade: the service manager was not told of process %d", pid)

    async def _serve_again(self, reason: str) -> None:
        if self._successor is not None:
            await self._successor.kill()
            self._successor = None
        logger.error("upgrade failed: %s; this process goes on", reason)
        self._serving.listener.own(note(f"upgrade failed: {reason}"))
        self._speak_again()
        await self._resume()
        # What the successor did is known only now.
        self.has_moved = False
        self._serving.server.accept()

    def _speak_again(self) -> None:
        """The service manager may never have taken a process for the main one that ended at once."""
        notifier = self._serving.notifier
        if notifier.is_muted:
            notifier.is_muted = False
            notifier.main_pid(os.getpid())

    async def _resume(self) -> None:
        try:
            await self._serving.resume()
        except Exception:  # a bug may cost records here, but not the node its runtime
            logger.exception("upgrade: what the successor did is not known")


def note(text: str) -> str:
    """A line for the lock file that differs from all earlier ones, so that who waits for it sees it."""
    return f"{time.time_ns()} {text}"
