"""How much code a reader has to hold in the head: prints the figures; `--check` compares them with the goals.

The ways of two calls are traced in a real daemon before the fake runtime; the rest is counted in the source.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.stubs import BlockingClient
from runtimeproxy.testing.builders import container_config, create_container_request
from runtimeproxy.testing.server import FakeRuntimeProcess
from tests.bench.scenarios import SERVICE, Pod, make_pod
from tests.lab.deadline import wait_until
from tests.peers.load_client import Connection, HeaderEncoder, LoadError, StatusReader
from tests.peers.load_client import call as call_once
from tests.peers.wire import message
from tests.readability import source

_WRITE: Final = "PeerTransport.write"
_EDIT: Final = ":edit_container"
_WARM_CALLS: Final = 30
_CALLS: Final = 15

_FUNCTIONS, _FILES, _FILE_CHANGES = "functions", "files", "changes of file"
GOALS: Final[Mapping[str, float]] = {
    f"warm Version: {_FUNCTIONS}": 16,
    f"warm Version: {_FILES}": 8,
    f"changed CreateContainer: {_FUNCTIONS}": 160,
    f"changed CreateContainer: {_FILES}": 34,
    "circles of imports": 0,
    "class names in more than one place": 24,
    "% of modules with at most one importer": 25,
    "function length, p90": 25,
}
"""The most that a figure may be; tests keep those of calls, circles and class names."""


class TracedCall(NamedTuple):
    """What one call went through until its answer was there."""

    file_changes: int
    names: tuple[str, ...]
    """Its functions, each once, as `FILE:NAME`. Comprehensions are none: Python 3.12 calls none for them."""


class Way(NamedTuple):
    """What all of some calls went through: the rest is of timers, and of threads on a busy machine."""

    functions: int
    files: int
    names: tuple[str, ...]


class TracedDaemon:
    """The daemon of `traced_daemon`, and one connection of a client to it."""

    def __init__(self, process: subprocess.Popen[str], socket: str) -> None:
        self._process = process
        self._connection = Connection(socket)
        self._headers = HeaderEncoder((("grpc-timeout", "120000m"),))
        self._statuses = StatusReader()

    def call(self, method: str, request: bytes = b"") -> bytes:
        """One call on the kept connection; returns the answer's message."""
        self._connection.blocks.clear()
        (stream,) = self._connection.send([(self._headers.block(SERVICE + method), message(request))])
        while stream not in self._connection.completed():
            pass
        for failure in self._statuses.failures(self._connection.blocks):
            raise LoadError(f"{method}: {failure}")
        return bytes(self._connection.answers.pop(stream))[14:]

    def traced(self, method: str, request: bytes = b"") -> TracedCall:
        """The same, with what the daemon did for it up to the write of the answer.

        What follows while the answer is on its way is not the call's: the client notices it some time later.
        """
        self._order("start")
        self.call(method, request)
        answered_s = time.monotonic()
        calls = [each for each in self._order("stop") if each[0] <= answered_s]
        last_write = max(index for index, each in enumerate(calls) if each[3] == _WRITE)
        calls = calls[: last_write + 1]
        names = [f"{file}:{function}" for _, _, file, function in calls if not function.endswith("comp>")]
        files = [file for _, _, file, _ in calls]
        changes = sum(before != after for before, after in pairwise(files))
        return TracedCall(changes, tuple(dict.fromkeys(names)))

    def _order(self, line: str) -> list[tuple[float, int, str, str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer: list[tuple[float, int, str, str]] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """Ends the connection and the process."""
        self._connection.close()
        self._process.terminate()
        self._process.communicate(timeout=10)


@contextmanager
def traced_daemon(folder: Path, runtime: str) -> Iterator[tuple[TracedDaemon, str]]:
    """A traced daemon that serves, and its socket."""
    socket = str(folder / "proxy.sock")
    (folder / "cgroup").mkdir()
    (folder / "hookserver.d").mkdir()
    config = folder / "config.toml"
    config.write_text(f'[cgroups]\nroot = "{folder / "cgroup"}"\n')
    flags = {
        "config": config,
        "remote-runtime-service-endpoint": runtime,
        "koord-runtimeproxy-endpoint": socket,
        "hook-config-dir": folder / "hookserver.d",
        "state-dir": folder / "state",
    }
    command = [sys.executable, "-m", "tests.readability.traced_daemon"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=dict(os.environ),
        )
    try:
        _wait_until_serving(socket, process)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    daemon = TracedDaemon(process, socket)
    try:
        yield daemon, socket
    finally:
        daemon.close()


def way(calls: Sequence[TracedCall]) -> Way:
    """The way of all these calls."""
    common = set.intersection(*(set(each.names) for each in calls))
    names = tuple(name for name in calls[-1].names if name in common)
    return Way(len(names), len({name.partition(":")[0] for name in names}), names)


def _wait_until_recovered(socket: str) -> None:
    """Waits until the runtime's list has been compared: a pod that is in it has one more function."""
    with BlockingClient(socket) as client:
        stub = client.stub(api_pb2.DESCRIPTOR.services_by_name["RuntimeProxy"])
        wait_until(
            lambda: stub.GetStatus(api_pb2.GetStatusRequest(), timeout=30).records.is_recovered, "the records"
        )


def _wait_until_serving(socket: str, process: subprocess.Popen[str]) -> None:
    ends_s = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < ends_s:
        try:
            call_once(socket, SERVICE + "Version")
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise LoadError("the traced daemon does not serve")


def trace(folder: Path, traced_calls: int = _CALLS) -> dict[str, list[TracedCall]]:
    """Several traces of each of the two calls, warm."""
    with (
        FakeRuntimeProcess(folder / "runtime.sock") as runtime,
        traced_daemon(folder, str(runtime.socket_path)) as (daemon, socket),
    ):
        _wait_until_recovered(socket)
        pod = make_pod(socket, "readability", best_effort=True)
        traces: dict[str, list[TracedCall]] = {"warm Version": [], "changed CreateContainer": []}
        for turn in range(_WARM_CALLS + traced_calls):
            is_warm = turn >= _WARM_CALLS
            ask = daemon.traced if is_warm else daemon.call
            version = ask("Version", b"")
            created = ask("CreateContainer", _create_request(pod, turn))
            if isinstance(version, TracedCall) and isinstance(created, TracedCall):
                if not any(name.endswith(_EDIT) for name in created.names):
                    raise LoadError("CreateContainer was not changed")
                traces["warm Version"].append(version)
                traces["changed CreateContainer"].append(created)
    return traces


def _create_request(pod: Pod, attempt: int) -> bytes:
    config = container_config(f"container-{attempt}", pod=pod.config, attempt=attempt)
    config.metadata.name = "main"
    return create_container_request(pod.sandbox_id, config, pod.config).SerializeToString()


def main() -> int:
    """Prints one line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m tests.readability", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--names", action="store_true", help="also print the functions of one call each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traces = trace(Path(folder))
    figures: dict[str, float] = {}
    for name, calls in traces.items():
        figures[f"{name}: {_FUNCTIONS}"], figures[f"{name}: {_FILES}"], _ = way(calls)
        figures[f"{name}: {_FILE_CHANGES}"] = statistics.median(each.file_changes for each in calls)
    figures |= source.figures(Path(__file__).parents[2])
    missed = [name for name, goal in GOALS.items() if figures[name] > goal]
    for name, figure in figures.items():
        goal = f"  <= {GOALS[name]:g}{' MISS' if name in missed else ' ok'}" if name in GOALS else ""
        print(f"{name:<45}{figure:>10,.0f}{goal}")
    if options.names:
        for name, calls in traces.items():
            print(f"\n{name}:", *way(calls).names, sep="\n  ")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
