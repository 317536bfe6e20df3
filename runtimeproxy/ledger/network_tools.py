"""Runs `tc` and `nft`: one process for all commands of a change; in worker threads."""

from __future__ import annotations

import errno
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.counts import Counts
from runtimeproxy.documents.reading import InputError, parse_json, printable
from runtimeproxy.node.machine import PROGRAM_FOLDERS, find_program

if TYPE_CHECKING:
    import subprocess

TIMEOUT_S: Final = 5.0
"""Both take milliseconds; a kernel that hangs answers none."""
MOST_OUTPUT_BYTES: Final = 32 << 20
"""Our table with all pods of a node is some 100 KiB."""
_PIECE_BYTES: Final = 1 << 16
_END_S: Final = 1.0
"""How long the end of a process is waited for that has been killed."""
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


class Programs:
    """Runs programs, and bounds what they may take: time, output, and processes that cannot be ended."""

    def __init__(self) -> None:
        # One that waits in the kernel for its lock of the network ends when it has it, and not before.
        self._unended: subprocess.Popen[bytes] | None = None

    def run(self, arguments: Sequence[str], commands: str) -> Output:
        """Run a program; see `Run`."""
        import subprocess  # on few nodes

        if self._unended is not None and self._unended.poll() is None:
            text = f"process {self._unended.pid} of before cannot be ended, as it waits for the kernel"
            raise TimeoutError(errno.ETIMEDOUT, f"{arguments[0]} is not run: {text}")
        self._unended = None
        with os.fdopen(os.memfd_create("commands"), "w+b") as given:
            given.write(commands.encode())
            given.seek(0)
            process = subprocess.Popen(  # noqa: S603 - a path of this program's choice
                arguments,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"LC_ALL": "C", "PATH": ":".join(PROGRAM_FOLDERS)},
            )
        assert process.stdout is not None  # noqa: S101 - for the type checker
        assert process.stderr is not None  # noqa: S101 - as above
        end_s = time.monotonic() + TIMEOUT_S
        try:
            with process.stdout as output, process.stderr as error:
                texts = _read_all((output.fileno(), error.fileno()), arguments[0], end_s)
            text, problem = (each.decode("utf-8", "replace") for each in texts)
            return Output(text, problem, process.wait(max(end_s - time.monotonic(), 0)))
        except subprocess.TimeoutExpired:
            raise _late(arguments[0]) from None
        finally:
            process.kill()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._unended = process


def _read_all(pipes: Sequence[int], name: str, end_s: float) -> list[bytearray]:
    """Return what a program prints, up to its end; raises OSError if that is too much, or late."""
    found = {each: bytearray() for each in pipes}
    with selectors.DefaultSelector() as selector:
        for each in pipes:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            if (left_s := end_s - time.monotonic()) <= 0:
                raise _late(name)
            for key, _ in selector.select(left_s):
                piece = os.read(key.fd, _PIECE_BYTES)
                found[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
                elif len(found[key.fd]) > MOST_OUTPUT_BYTES:
                    raise OSError(errno.EFBIG, f"{name} prints more than {MOST_OUTPUT_BYTES >> 20} MiB")
    return list(found.values())


def _late(name: str) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"{name} has not ended after {TIMEOUT_S:g} s")


class NetworkTools:
    """The two programs. Safe for all threads.

    Attributes:
        runs: How often each was run, by its name and the outcome: `done` or `failed`; looks are not counted.
    """

    def __init__(self, run: Run | None = None) -> None:
        self._run = run or Programs().run
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

    def addresses(self) -> frozenset[str]:
        """Return the IP addresses of this node's links, but those of one link alone."""
        shown = self._json("ip", ("-j", "address", "show", "scope", "global"))
        links = [each for each in shown if isinstance(each, dict)] if isinstance(shown, list) else []
        listed = [each.get("addr_info") for each in links]
        of_links = [each for some in listed if isinstance(some, list) for each in some]
        return frozenset(str(each.get("local")) for each in of_links if isinstance(each, dict))

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
    lines = (line.strip() for line in found.error[: 10 * _MOST_ERROR].splitlines())
    # nft underlines the command that has failed.
    texts = (printable(line) for line in lines if line.strip("^") and "Warning:" not in line)
    text = "; ".join(texts)[:_MOST_ERROR] or f"it ended with {found.code}"
    number = next((each for part, each in _ERRNOS.items() if part in text), errno.EINVAL)
    if number == errno.EPERM:
        text += f": it needs CAP_NET_ADMIN, which the systemd unit has with {DROP_IN}"
    return OSError(number, f"{name}: {text}")
