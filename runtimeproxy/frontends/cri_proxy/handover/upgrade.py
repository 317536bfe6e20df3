"""The predecessor's side of an upgrade: it starts its successor, hands over, and drains or serves again.

The command `upgrade` runs in a process of its own: it signals the predecessor and reads the result in the
lock file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy import signals
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.frontends.cri_proxy.handover.protocol import (
    Channel,
    Inheritance,
    Message,
    PeerGoneError,
    UnexpectedMessageError,
    successor_environ,
)
from runtimeproxy.listener import lock_path, read_lock

if TYPE_CHECKING:
    from runtimeproxy.frontends.cri_proxy.handover.predecessor import Predecessor
    from runtimeproxy.frontends.cri_proxy.relay.server import RelayServer
    from runtimeproxy.listener import Listener
    from runtimeproxy.sdnotify import Notifier

logger = logging.getLogger(__name__)

SERVING_S: Final = 10.0
"""How long the successor may take to read the records and to accept; clients wait in the backlog."""
FLUSH_S: Final = 2.0
"""How long the records may take to be written; clients wait in the backlog."""
END_S: Final = 5.0
"""How long to wait for the end of a successor that was killed, or that closed the channel."""
ERRORS_LIMIT_BYTES: Final = 4_096
"""Of the successor's own account of its failure; the rest is in the log."""
MAIN_PID_TRIES: Final = 40
MAIN_PID_PAUSE_S: Final = 0.05

REQUEST_PAUSE_S: Final = 0.05
REQUEST_SLACK_S: Final = 10.0
"""For a start or a reload that the instance finishes first, and for a busy node."""

TAKEN_OVER: Final = "taken over"
"""A successor notes this in the lock file."""
RESTART_INSTEAD: Final = "no calls run here, and a restart does the same: restart the service"
"""Noted there in the modes in which nothing has to be handed over."""

_UNREADABLE: Final = (0, "")


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts of this process that an upgrade hands over or uses.

    Attributes:
        executor: threads for starting and waiting.
        flush: writes the records.
        finish: ends this process.
        resume: awaited before this process serves again after all; clients wait in the backlog.
        start_s: how long a successor may take to come up.
        drain_s: how long calls may go on here after a successor has taken over.
        bypass: the operator's choice, see `Bypass.chosen`.
        serve_s: how long a successor may take from `go` until it serves.
        flush_s: how long writing the records may take.
        moved: set while a successor serves.
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
    bypass: Callable[[], bool | None] = lambda: None
    serve_s: float = SERVING_S
    flush_s: float = FLUSH_S
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class Upgrade:
    """Hands over to a successor, one at a time. Used in the event loop's thread.

    Attributes:
        has_moved: whether a successor serves now.
        last: when the last attempt ended, in seconds since the epoch, and why it failed; None for none.
        moved: set while a successor serves.
    """

    def __init__(self, program: Program, serving: Serving, predecessor: Predecessor | None = None) -> None:
        self._program = program
        self._serving = serving
        self._predecessor = predecessor
        self._successor: Successor | None = None
        self._running: asyncio.Task[None] | None = None
        # Whether its failure is known already.
        self._has_failed = False
        self._is_stopped = False
        self.failures = 0
        self.last: tuple[float, str] | None = None
        self.moved = serving.moved

    @property
    def has_moved(self) -> bool:
        return self.moved.is_set()

    @property
    def successor_pid(self) -> int:
        # 0 if this process serves.
        return self._successor.pid if self._successor is not None and self.has_moved else 0

    async def run(self, changing: asyncio.Lock) -> None:
        """Upgrades: returns when this process is to end, or goes on after a failure.

        Args:
            changing: held while this process and its successor both must stay as they are.
        """
        if self._running is not None and self._has_failed:
            # Who asks again has read that in the lock file.
            await asyncio.wait((self._running,))
            if self._is_stopped:
                return
        is_followed = self._predecessor is not None and self._predecessor.is_draining
        if is_followed or self._running is not None:
            refusal = "the process before this one still drains" if is_followed else "one is in progress"
            logger.warning("upgrade refused: %s", refusal)
            self.last = time.time(), f"refused: {refusal}"
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
            self._has_failed = False

    async def stop(self) -> None:
        """Kills a successor that does not serve yet, because this process is to end."""
        self._is_stopped = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
        if self._successor is not None and not self.has_moved:
            await self._successor.kill()
            self._serving.listener.own()
            self._successor = None

    async def send_drained(self) -> None:
        if self._successor is not None:
            self._successor.channel.send(Message.DRAINED)
            await self._successor.channel.close()

    async def _hand_over(self) -> Successor | None:
        """Starts a successor and returns it once it serves; None if it fails: then nothing has changed."""
        serving = self._serving
        logger.info("upgrade: starting a successor", extra={"command": list(self._program.command)})
        try:
            successor = await self._start()
            await successor.channel.open()
            await successor.receive(Message.LOADED, serving.start_s)
            serving.server.stop_accepting()
            await self._flush()
            # From here on the lock and the socket's name are the successor's.
            serving.listener.is_owner = False
            successor.channel.send(Message.GO)
            await successor.receive(Message.SERVING, serving.serve_s)
        except NoSuccessorError as error:
            await self._serve_again(str(error))
            return None
        except Exception:  # a bug must not leave the clients in the backlog for good
            logger.exception("upgrade: internal error")
            await self._serve_again("internal error")
            return None
        return successor

    async def _flush(self) -> None:
        try:
            async with asyncio.timeout(self._serving.flush_s):
                await self._serving.flush()
        except TimeoutError:
            logger.warning("upgrade: the records are not written in time; the successor asks the runtime")

    async def _start(self) -> Successor:
        """Starts a process, which is known even if this task is cancelled meanwhile."""
        serving = self._serving
        starting = asyncio.ensure_future(
            Successor.start(self._program, serving.listener, serving.executor, bypass=serving.bypass())
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
        self.moved.set()
        self.last = time.time(), ""
        successor.forget_errors()
        await self._send_main_pid(successor.pid)
        serving.notifier.is_muted = True
        successor.channel.send(Message.MAIN)
        logger.info("upgrade: process %d serves now", successor.pid, extra={"successor": successor.pid})
        draining = asyncio.ensure_future(serving.server.retire(serving.drain_s))
        stopping = asyncio.ensure_future(successor.channel.receive(Message.STOPPING))
        try:
            await asyncio.wait((draining, stopping), return_when=asyncio.FIRST_COMPLETED)
            is_gone = stopping.done() and isinstance(stopping.exception(), PeerGoneError)
        finally:
            draining.cancel()
            stopping.cancel()
        if is_gone:
            await self._serve_again("the successor ended after it had taken over")
        else:
            serving.finish()

    async def _send_main_pid(self, pid: int) -> None:
        """Tries until the service manager's queue has room: this process cannot repeat it later."""
        notifier = self._serving.notifier
        for _ in range(MAIN_PID_TRIES):
            if notifier.main_pid(pid) or not notifier.has_manager:
                return
            await asyncio.sleep(MAIN_PID_PAUSE_S)
        logger.warning("upgrade: the service manager could not be notified of process %d", pid)

    async def _serve_again(self, reason: str) -> None:
        serving = self._serving
        if self._successor is not None:
            await self._successor.kill()
            self._successor = None
        self.failures += 1
        self._has_failed = True
        logger.error("upgrade failed: %s; this process continues to serve", reason)
        self.last = time.time(), reason
        serving.listener.own(note(f"upgrade failed: {reason}"))
        if serving.notifier.is_muted:
            # The service manager may never have taken a process for the main one that ended at once.
            serving.notifier.is_muted = False
            serving.notifier.main_pid(os.getpid())
        try:
            await serving.resume()
        except Exception:  # a bug may cost records here, but not the node its runtime
            logger.exception("upgrade: the successor's records cannot be read")
        # What the successor did is known only now.
        self.moved.clear()
        serving.server.accept()


def note(text: str) -> str:
    # Differs from all earlier lines, so that a reader notices it.
    return f"{time.time_ns()} {text}"


class NoSuccessorError(RuntimeProxyError):
    """The successor did not come up."""


@dataclass(frozen=True, slots=True)
class Program:
    """How this process was started.

    Attributes:
        command: interpreter and arguments. Names, not open files: the files that are there now are started.
        folder: where relative names begin.
    """

    command: tuple[str, ...]
    folder: str
    environ: Mapping[str, str]

    @classmethod
    def this(cls, environ: Mapping[str, str]) -> Program:
        """This process, whose folder and environment are still those of its start."""
        interpreter = sys.executable or sys.orig_argv[0]
        try:
            folder = str(Path.cwd())
        except OSError:
            # The folder is gone: relative names have no meaning.
            folder = "/"
        return cls((interpreter, *sys.orig_argv[1:]), folder, dict(environ))


class Successor:
    """A successor from its start until it serves or is given up. Used in the event loop's thread."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: Channel, errors_fd: int, executor: Executor
    ) -> None:
        self._process = process
        self._errors_fd = errors_fd
        self._executor = executor
        self.channel = channel

    @classmethod
    async def start(
        cls, program: Program, listener: Listener, executor: Executor, *, bypass: bool | None = None
    ) -> Successor:
        """Starts it with the listening socket, the lock and one end of a socket pair.

        Raises:
            NoSuccessorError: the program cannot be started.
        """
        here, there = socket.socketpair()
        given = Inheritance(
            there.fileno(), listener.sock.fileno(), listener.lock_fd, listener.path, listener.inode, bypass
        )
        errors_fd = -1
        try:
            with there:
                errors_fd = os.memfd_create("upgrade-errors")
                process = await asyncio.get_running_loop().run_in_executor(
                    executor, _start, program, given, errors_fd
                )
        except OSError as error:
            here.close()
            if errors_fd >= 0:
                os.close(errors_fd)
            raise NoSuccessorError(f"it cannot be started: {error}") from error
        return cls(process, Channel(here), errors_fd, executor)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def receive(self, message: Message, within_s: float) -> None:
        """Waits for a message.

        Raises:
            NoSuccessorError: the successor ended, hangs or sends something else.
        """
        try:
            async with asyncio.timeout(within_s):
                await self.channel.receive(message)
        except TimeoutError:
            raise NoSuccessorError(f"it was not {message} within {within_s:g} s") from None
        except UnexpectedMessageError as error:
            raise NoSuccessorError(f"{error} before it was {message}") from error
        except PeerGoneError as error:
            reason = await self._end_reason() or str(error)
            reported = f": {errors}" if (errors := self._errors()) else ""
            raise NoSuccessorError(f"{reason} before it was {message}{reported}") from error

    async def kill(self) -> None:
        """Ends it by force if it is still there; it is gone afterwards, and so are its file descriptors."""
        if self._process.poll() is None:
            self._process.kill()
            await self._end_reason()
        await self.channel.close()
        self.forget_errors()

    def forget_errors(self) -> None:
        # The successor is gone, or has come up.
        if self._errors_fd >= 0:
            os.close(self._errors_fd)
            self._errors_fd = -1

    def _errors(self) -> str:
        """The successor's report of its failure, in one line."""
        if self._errors_fd < 0:
            return ""
        text = os.pread(self._errors_fd, ERRORS_LIMIT_BYTES, 0).decode("utf-8", "replace")
        return "; ".join(filter(None, map(str.strip, text.splitlines()))).replace(":; ", ": ")

    async def _end_reason(self) -> str:
        run = asyncio.get_running_loop().run_in_executor
        try:
            code = await run(self._executor, self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            return ""
        return f"it was ended by {_signal_name(-code)}" if code < 0 else f"it ended with exit code {code}"


def _start(program: Program, given: Inheritance, errors_fd: int) -> subprocess.Popen[bytes]:
    passed = [fd for fd in (given.control_fd, given.listening_fd, given.lock_fd, errors_fd) if fd >= 0]
    with signals.blocked():
        return subprocess.Popen(  # noqa: S603  # the very command that started this process
            program.command,
            cwd=program.folder,
            env=successor_environ(program.environ, given, errors_fd),
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# The command


class UpgradeFailedError(RuntimeProxyError):
    """The upgrade failed; the old instance continues to serve."""


class RestartInsteadError(UpgradeFailedError):
    """The instance runs in a mode in which a restart does the same."""


def request_upgrade(endpoint: str, start_s: float) -> tuple[int, int]:
    """Has the instance on a socket start its successor; returns the process ids of both.

    Raises:
        NoInstanceError: no instance serves there, or it is another user's.
        UpgradeFailedError: the successor did not come up, or the result is not known in time.
    """
    path = lock_path(endpoint)
    before = last = _lock_lines(path)
    pid = signals.signal_instance(endpoint, signals.UPGRADE)
    deadline_s = time.monotonic() + start_s + SERVING_S + REQUEST_SLACK_S
    while time.monotonic() < deadline_s:
        now = _lock_lines(path)
        # The note begins with its time.
        if now[0] != pid and now[1].partition(" ")[2] == TAKEN_OVER:
            return pid, now[0]
        # Read twice: the first time it may have been half written.
        if now == last and (failure := _request_failure(pid, before, now)):
            is_restart = now[1].endswith(RESTART_INSTEAD)
            raise (RestartInsteadError if is_restart else UpgradeFailedError)(f"{endpoint}: {failure}")
        last = now
        # Polled: the instance may be of an older version, and the lock file is all that they share.
        time.sleep(REQUEST_PAUSE_S)
    raise UpgradeFailedError(f"{endpoint}: process {pid} did not report the result in time; see its log")


def _request_failure(pid: int, before: tuple[int, str], now: tuple[int, str]) -> str:
    """Why the upgrade failed; empty while its result is not known."""
    if now in (before, _UNREADABLE):
        return ""
    if now[0] != pid:
        return f"process {pid} has ended, and process {now[0]} was started anew"
    text = now[1].partition(" ")[2]
    return f"{text}; process {pid} serves" if now[1] else f"process {pid} was asked to end"


def _lock_lines(path: str) -> tuple[int, str]:
    try:
        return read_lock(path)
    except (OSError, ValueError):
        # `signal_instance` finds out whether there is an instance.
        return _UNREADABLE
