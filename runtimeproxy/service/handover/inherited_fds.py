"""What a successor finds in its environment: the numbers of the file descriptors that it was given."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

from runtimeproxy.errors import ConfigError
from runtimeproxy.relay.listener import Listener

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE: Final = "KOORD_RUNTIME_PROXY_HANDOVER"
"""Tells a process that it is a successor."""
ERRORS_VARIABLE: Final = VARIABLE + "_ERRORS"
"""`PID:FD`: where the child of this process writes why it does not come up. A variable of its own, for
releases that do not know it. Children of the child inherit it, too, but they have another parent."""
VERSION: Final = 1
"""Of the variable's value and of the words that are said; a successor that knows another one refuses."""

_FROM_SERVICE_MANAGER: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class Inheritance:
    """File descriptors and what belongs to them.

    Attributes:
        control_fd: one end of the socket pair.
        listening_fd: the listening socket.
        lock_fd: the open lock file; -1 for none.
        path: where the socket is published; None for a socket from systemd.
        inode: of that name.
        switched: whether an operator has switched held calls off, or on; None if nobody has.
        version: of all this.
    """

    control_fd: int
    listening_fd: int
    lock_fd: int
    path: str | None
    inode: int
    switched: bool | None = None
    version: int = VERSION

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self | None:
        """Takes it out of the environment, where a child would find it; None when there is none.

        Raises:
            ConfigError: it is of another version, or makes no sense.
        """
        text = environ.pop(VARIABLE, None)
        if text is None:
            return None
        try:
            taken = cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ConfigError("environment", VARIABLE, f"not understood: {error}") from error
        if taken.version != VERSION:
            raise ConfigError("environment", VARIABLE, f"version {taken.version} is not {VERSION}")
        return taken

    def control(self) -> socket.socket:
        """This process's end of the socket pair."""
        return _socket(self.control_fd)

    def listener(self) -> Listener:
        """The listening socket, not owned yet."""
        sock = _socket(self.listening_fd)
        if self.lock_fd >= 0:
            os.set_inheritable(self.lock_fd, False)
        return Listener(sock, self.path, self.inode, self.lock_fd, is_owner=False)


def tell_predecessor(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Says why this process does not come up, if it is the successor of the one that has started it."""
    pid, _, descriptor = environ.get(ERRORS_VARIABLE, "").partition(":")
    if pid == str(os.getppid()) and descriptor.isdecimal():
        with contextlib.suppress(OSError):
            os.write(int(descriptor), f"{text}\n".encode("utf-8", "replace"))


def successor_environ(
    environ: Mapping[str, str], inheritance: Inheritance, errors_fd: int = -1
) -> dict[str, str]:
    """The environment of a successor: this process's, without what the service manager meant for it alone.

    Args:
        environ: this process's environment.
        inheritance: what the successor gets.
        errors_fd: where it writes why it does not come up; -1 for nowhere.
    """
    result = {name: value for name, value in environ.items() if name not in _FROM_SERVICE_MANAGER}
    if result.get("WATCHDOG_PID") == str(os.getpid()):
        # Without it, whichever process reads the variables is meant. Source: sd_watchdog_enabled(3).
        del result["WATCHDOG_PID"]
    given = asdict(inheritance)
    if inheritance.switched is None:
        # Releases that do not know the key refuse what has it, and an upgrade may lead back to one.
        del given["switched"]
    result[VARIABLE] = json.dumps(given)
    result.pop(ERRORS_VARIABLE, None)
    if errors_fd >= 0:
        result[ERRORS_VARIABLE] = f"{os.getpid()}:{errors_fd}"
    return result


def _socket(descriptor: int) -> socket.socket:
    try:
        taken = socket.socket(fileno=descriptor)
    except OSError as error:
        reason = f"file descriptor {descriptor} is not a socket: {error.strerror}"
        raise ConfigError("environment", VARIABLE, reason) from error
    taken.set_inheritable(False)
    taken.setblocking(False)
    return taken
