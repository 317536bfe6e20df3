"""The process that follows this one: this program as it was started, from the files that are there now."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.service import signals
from runtimeproxy.service.handover.channel import Channel, PeerGoneError, StrangeWordError, Word
from runtimeproxy.service.handover.inherited_fds import Inheritance, successor_environ

if TYPE_CHECKING:
    from runtimeproxy.relay.listener import Listener

END_S: Final = 5.0
"""How long the end of a killed successor, or of one that hung up, is waited for."""
ERRORS_LIMIT_BYTES: Final = 4_096
"""Of what a successor says of its failure; the rest is in the log."""


class NoSuccessorError(RuntimeProxyError):
    """The successor did not come up."""


@dataclass(frozen=True, slots=True)
class Program:
    """How this process was started.

    Attributes:
        command: interpreter and arguments. Names, not open files: what lies there now is started.
        folder: where relative names begin.
        environ: the environment at the start.
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
            # The folder is gone: no relative name can count.
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
        cls, program: Program, listener: Listener, executor: Executor, *, switched: bool | None = None
    ) -> Successor:
        """Starts it with the listening socket, the lock and one end of a socket pair.

        `switched` is an operator's word on held calls, if there is one.

        Raises:
            NoSuccessorError: the program cannot be started.
        """
        here, there = socket.socketpair()
        given = Inheritance(
            there.fileno(), listener.sock.fileno(), listener.lock_fd, listener.path, listener.inode, switched
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
        """Its process id."""
        return self._process.pid

    async def hear(self, word: Word, within_s: float) -> None:
        """Waits for a word.

        Raises:
            NoSuccessorError: the successor ended, hangs or says something else.
        """
        try:
            async with asyncio.timeout(within_s):
                await self.channel.hear(word)
        except TimeoutError:
            raise NoSuccessorError(f"it was not {word} within {within_s:g} s") from None
        except StrangeWordError as error:
            raise NoSuccessorError(f"{error} before it was {word}") from error
        except PeerGoneError as error:
            reason = await self._end_reason() or str(error)
            said = f": {errors}" if (errors := self._errors()) else ""
            raise NoSuccessorError(f"{reason} before it was {word}{said}") from error

    async def kill(self) -> None:
        """Ends it by force if it is still there; it is gone afterwards, and so are its file descriptors."""
        if self._process.poll() is None:
            self._process.kill()
            await self._end_reason()
        await self.channel.close()
        self.forget_errors()

    def forget_errors(self) -> None:
        """Closes what the successor writes its errors to: it is gone, or has come up."""
        if self._errors_fd >= 0:
            os.close(self._errors_fd)
            self._errors_fd = -1

    def _errors(self) -> str:
        """What the successor has said of its failure, in one line."""
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
