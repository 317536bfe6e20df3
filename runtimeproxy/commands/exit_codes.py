"""Exit codes of all commands, and the error that ends a command with one of them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from runtimeproxy.errors import RuntimeProxyError


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Source: argparse's own."""
    NO_DAEMON = 3
    NOT_FOUND = 4
    RESTART_INSTEAD = 5
    INTERRUPTED = 128 + 2
    """As a shell shows SIGINT."""
    BROKEN_PIPE = 128 + 13
    """As a shell shows SIGPIPE."""


MEANINGS: Final = {
    ExitCode.OK: "success; of a check: nothing is wrong",
    ExitCode.FAILED: "failure; of a check: a problem was found",
    ExitCode.USAGE: "invalid flag, variable, configuration or input file",
    ExitCode.NO_DAEMON: "the daemon does not answer: it does not run, hangs, has no API or refuses this user",
    ExitCode.NOT_FOUND: "nothing has this name, or several things have",
    ExitCode.RESTART_INSTEAD: "of upgrade in a mode without calls of the kubelet: a restart does the same",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output has ended, as with head",
}
"""The table of the help, the man page and `systemd/COMMANDS.md`."""


class CommandError(RuntimeProxyError):
    """A command cannot do its work; the text says why, and what to do."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code
