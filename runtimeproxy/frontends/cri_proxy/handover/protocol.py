"""The protocol of an upgrade: inherited file descriptors, then messages over a socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from runtimeproxy.documents.reading import InputError, json_value
from runtimeproxy.errors import ConfigError
from runtimeproxy.listener import Listener

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE: Final = "KOORD_RUNTIME_PROXY_HANDOVER"
"""Set in the environment of a successor: `Inheritance` as JSON."""
ERRORS_VARIABLE: Final = VARIABLE + "_ERRORS"
"""`PID:FD`: where the child of process PID writes why it does not come up. A variable of its own, for
releases that do not know it. Children of the child inherit it, too, but they have another parent."""
VERSION: Final = 1
"""Of the variable's value and of the messages; a successor that has another one refuses."""
LINE_LIMIT_BYTES: Final = 256
"""Messages are short; a peer that sends more is not a daemon."""

_FROM_SERVICE_MANAGER: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Message(StrEnum):
    """A line on the socket pair; the package's docstring has the order."""

    LOADED = "loaded"
    GO = "go"
    SERVING = "serving"
    MAIN = "main"
    DRAINED = "drained"
    STOPPING = "stopping"


class PeerGoneError(Exception):
    """The other process has ended."""


class UnexpectedMessageError(PeerGoneError):
    """The other process breaks the protocol: it is treated as gone."""


@dataclass(frozen=True, slots=True)
class Inheritance:
    """File descriptors that a successor is given, with the data that belong to them.

    Attributes:
        lock_fd: the open lock file; -1 for none.
        path: where the socket is published; None for a socket from systemd.
        inode: of that name.
        bypass: the operator's choice, see `Bypass.chosen`; `switched` in the variable.
        version: of all this.
    """

    control_fd: int
    listening_fd: int
    lock_fd: int
    path: str | None
    inode: int
    bypass: bool | None = None
    version: int = VERSION

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self | None:
        """Takes it out of the environment, where a child would find it; None when there is none.

        Raises:
            ConfigError: it is of another version, or cannot be parsed.
        """
        text = environ.pop(VARIABLE, None)
        if text is None:
            return None
        try:
            values = json_value(text)
            taken = cls(bypass=values.pop("switched", None), **values)
        except (InputError, TypeError, AttributeError) as error:
            raise ConfigError("environment", VARIABLE, f"cannot be parsed: {error}") from error
        if taken.version != VERSION:
            raise ConfigError("environment", VARIABLE, f"version {taken.version} is not {VERSION}")
        return taken

    def to_json(self) -> str:
        values = asdict(self)
        bypass = values.pop("bypass")
        # Releases that do not know the key refuse a value with it, and an upgrade may lead back to one.
        return json.dumps(values if bypass is None else {**values, "switched": bypass})

    def control(self) -> socket.socket:
        return _socket(self.control_fd)

    def listener(self) -> Listener:
        """The listening socket, not owned yet."""
        sock = _socket(self.listening_fd)
        if self.lock_fd >= 0:
            os.set_inheritable(self.lock_fd, False)
        return Listener(sock, self.path, self.inode, self.lock_fd, is_owner=False)


def successor_environ(
    environ: Mapping[str, str], inheritance: Inheritance, errors_fd: int = -1
) -> dict[str, str]:
    """The environment of a successor: this process's, without the variables meant for this process alone.

    `errors_fd`: where it writes why it does not come up; -1 for nowhere.
    """
    result = {name: value for name, value in environ.items() if name not in _FROM_SERVICE_MANAGER}
    if result.get("WATCHDOG_PID") == str(os.getpid()):
        # Without it, whichever process reads the variables is meant. Source: sd_watchdog_enabled(3).
        del result["WATCHDOG_PID"]
    result[VARIABLE] = inheritance.to_json()
    result.pop(ERRORS_VARIABLE, None)
    if errors_fd >= 0:
        result[ERRORS_VARIABLE] = f"{os.getpid()}:{errors_fd}"
    return result


def report_to_predecessor(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Reports to the predecessor, if there is one, why this process does not come up."""
    pid, _, descriptor = environ.get(ERRORS_VARIABLE, "").partition(":")
    if pid == str(os.getppid()) and descriptor.isdecimal():
        with contextlib.suppress(OSError):
            os.write(int(descriptor), f"{text}\n".encode("utf-8", "replace"))


class Channel:
    """One end of the socket pair. Used in the event loop's thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        """Opens the streams; to be called once, first of all."""
        self._sock.setblocking(False)
        self._streams = await asyncio.open_unix_connection(sock=self._sock, limit=LINE_LIMIT_BYTES)

    def send(self, message: Message) -> None:
        # The other process may be gone.
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(f"{message}\n".encode())

    async def receive(self, expected: Message) -> None:
        """Waits for a message.

        Raises:
            PeerGoneError: the other process has ended.
            UnexpectedMessageError: it sent something else.
        """
        if self._streams is None:
            raise PeerGoneError("the channel is not open")
        try:
            line = await self._streams[0].readline()
        except (OSError, ValueError) as error:
            raise UnexpectedMessageError(f"the channel failed: {error}") from error
        text = line.decode("utf-8", "replace").strip()
        if not text:
            raise PeerGoneError("it closed the channel")
        if text != expected:
            raise UnexpectedMessageError(f"it sent {text!r}")

    async def close(self) -> None:
        """Sends buffered messages and closes this end."""
        if self._streams is None:
            self._sock.close()
            return
        writer = self._streams[1]
        writer.close()
        # The other process may be gone already.
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _socket(descriptor: int) -> socket.socket:
    try:
        taken = socket.socket(fileno=descriptor)
    except OSError as error:
        reason = f"file descriptor {descriptor} is not a socket: {error.strerror}"
        raise ConfigError("environment", VARIABLE, reason) from error
    taken.set_inheritable(False)
    taken.setblocking(False)
    return taken
