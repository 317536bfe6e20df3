"""Runs `tc` and `nft`: one process for all commands of a change; in worker threads."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from runtimeproxy.counts import Counts
from runtimeproxy.documents.reading import InputError, parse_json
from runtimeproxy.node.machine import PROGRAM_FOLDERS, find_program

TIMEOUT_S: Final = 5.0
"""Both take milliseconds; a kernel that hangs answers none."""
DROP_IN: Final = "koord-runtime-proxy.service.d/60-network.conf"
"""In the folder `systemd`."""
_MOST_ERROR: Final = 300


class Output(NamedTuple):
    """What a program has printed."""

    text: str
    error: str
    code: int


Run = Callable[[Sequence[str], str], Output]
"""Runs a program with arguments and what it is to read; raises OSError if it cannot be started, or hangs."""


def run_program(arguments: Sequence[str], commands: str) -> Output:
    """Run a program; see `Run`."""
    import subprocess  # on few nodes

    try:
        done = subprocess.run(  # noqa: S603 - a path of this program's choice
            arguments,
            input=commands.encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={"LC_ALL": "C", "PATH": ":".join(PROGRAM_FOLDERS)},
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(errno.ETIMEDOUT, f"{arguments[0]} has not ended after {TIMEOUT_S:g} s") from None
    return Output(
        done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"), done.returncode
    )


class NetworkTools:
    """The two programs. Safe for all threads.

    Attributes:
        runs: How often each was run, by its name and the outcome: `done` or `failed`; looks are not counted.
    """

    def __init__(self, run: Run = run_program) -> None:
        self._run = run
        self.runs: Counts[tuple[str, str]] = Counts()

    def tc(self, commands: Sequence[str]) -> None:
        """Carry out commands in turn, up to the first that fails.

        Raises:
            OSError: One has failed, with its text.
        """
        if commands:
            self._change("tc", ("-batch", "-"), "\n".join(commands) + "\n")

    def nft(self, commands: str) -> None:
        """Carry out all commands, or none.

        Raises:
            OSError: One has failed.
        """
        if commands:
            self._change("nft", ("-f", "-"), commands + "\n")

    def qdiscs(self) -> object:
        return self._json("tc", ("-j", "qdisc", "show"))

    def classes(self, link: str) -> str:
        return self._checked("tc", ("class", "show", "dev", link), "").text

    def table(self, name: str) -> object:
        """Return the table as JSON; None if there is none."""
        found = self._call("nft", ("-j", "list", "table", "inet", name), "")
        if found.code:
            if "No such file" in found.error:
                return None
            raise _error("nft", found)
        return _parsed("nft", found.text)

    def _change(self, name: str, arguments: Sequence[str], commands: str) -> None:
        try:
            self._checked(name, arguments, commands)
        except OSError:
            self.runs.add((name, "failed"))
            raise
        self.runs.add((name, "done"))

    def _json(self, name: str, arguments: Sequence[str]) -> object:
        return _parsed(name, self._checked(name, arguments, "").text)

    def _checked(self, name: str, arguments: Sequence[str], commands: str) -> Output:
        found = self._call(name, arguments, commands)
        if found.code:
            raise _error(name, found)
        return found

    def _call(self, name: str, arguments: Sequence[str], commands: str) -> Output:
        path = find_program(name)
        if not path:
            raise FileNotFoundError(errno.ENOENT, f"the node has no program {name}")
        return self._run((path, *arguments), commands)


def _parsed(name: str, text: str) -> Any:  # noqa: ANN401 - any document
    try:
        return parse_json(text or "[]")
    except InputError:
        raise OSError(errno.EBADMSG, f"{name} prints no JSON") from None


_ERRNOS: Final[Mapping[str, int]] = {
    "Operation not permitted": errno.EPERM,
    "Permission denied": errno.EPERM,
    "Cannot find device": errno.ENODEV,
    "No such device": errno.ENODEV,
}


def _error(name: str, found: Output) -> OSError:
    # Warnings stand beside errors.
    lines = [line.strip() for line in found.error.splitlines() if line.strip() and "Warning:" not in line]
    text = "; ".join(lines)[:_MOST_ERROR] or f"it ended with {found.code}"
    number = next((each for part, each in _ERRNOS.items() if part in text), errno.EINVAL)
    if number == errno.EPERM:
        text += f": it needs CAP_NET_ADMIN, which the systemd unit has with {DROP_IN}"
    return OSError(number, f"{name}: {text}")
