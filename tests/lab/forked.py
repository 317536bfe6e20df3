"""Programs of this repository as processes that begin with their modules loaded: forked, not started.

A daemon's start takes half a second of CPU time, and most of that is Python loading modules. So one process
for each worker of pytest loads them once, and is forked for each daemon. What a daemon does is the same, but
for what `/proc` says of its start: command line and environment there are those of the first process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, Final

from tests.lab.programs import REPOSITORY

_MOST_BYTES: Final = 1 << 20
_MODULES: Final = (
    "grpc_health.v1.health_pb2",
    "grpc_reflection.v1alpha.reflection_pb2",
    "inotify_simple",
    "runtimeproxy.cli",
    "runtimeproxy.commands.process",
    "runtimeproxy.core.core",
    "runtimeproxy.frontends.cri_proxy.core_calls",
    "runtimeproxy.frontends.cri_proxy.front_end",
    "runtimeproxy.frontends.nri.front_end",
    "runtimeproxy.frontends.standalone.front_end",
    "runtimeproxy.frontends.runtime_link",
    "runtimeproxy.hooks.loading",
    "runtimeproxy.pods.runtime_client",
    "runtimeproxy.service.daemon",
    "runtimeproxy.service.kubernetes_link",
    "runtimeproxy.service.parts",
    "runtimeproxy.service.qos_manager",
    "sqlite3",
    "tomllib",
    "uvloop",
)
_PACKAGES: Final = (
    "policies",
    "runtimeproxy.commands",
    "runtimeproxy.frontends.cri_proxy.calls",
    "runtimeproxy.hooks.remote",
)
"""All of their modules."""


class ForkedProcess:
    """A process that was forked; has of `subprocess.Popen` what tests use."""

    def __init__(self, server: _ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired([f"process {self.pid}"], timeout)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        if self.poll() is None:
            # It may end meanwhile.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def fork(
    command: Sequence[str], environment: Mapping[str, str], output: BinaryIO, errors: BinaryIO | None = None
) -> ForkedProcess:
    """Begin `python -m MODULE ...` in a session of its own, in the repository's folder.

    Without `errors` these go to the output, too.
    """
    return _server().fork(command, environment, output, errors or output)


def run(
    command: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ...` to its end; without input. Raises subprocess.TimeoutExpired."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = fork(command, environment, output, errors)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        # From the beginning: the processes share the place in the file.
        texts = [each.read().decode() for each in (output, errors) if not each.seek(0)]
    return subprocess.CompletedProcess(list(command), code, *texts)


class _ForkServer:
    """The process that is forked, seen from the one that asks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def fork(
        self, command: Sequence[str], environment: Mapping[str, str], output: BinaryIO, errors: BinaryIO
    ) -> ForkedProcess:
        request = json.dumps({"command": list(command), "environment": dict(environment)}).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], [output.fileno(), errors.fileno()])
            while (pid := self._receive()) is None:
                pass
        return ForkedProcess(self, pid)

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        end_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                while pid not in self._ended and select.select([self._socket], [], [], 0)[0]:
                    self._receive()
                if pid in self._ended:
                    return self._ended.pop(pid)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return None
            # Others may take the message meanwhile.
            select.select([self._socket], [], [], min(left_s, 0.1))

    def _receive(self) -> int | None:
        """Take one message; return the pid of a process that has begun."""
        message = json.loads(self._socket.recv(_MOST_BYTES))
        if "ended" in message:
            self._ended[message["ended"]] = message["code"]
            return None
        return int(message["begun"])


_servers: list[_ForkServer] = []
_servers_lock = threading.Lock()


def _server() -> _ForkServer:
    with _servers_lock:
        if not _servers or _servers[-1].owner != os.getpid():
            _servers.append(_ForkServer(os.environ))
        return _servers[-1]


# In the process that is forked


def _serve(connection: socket.socket) -> dict[str, object]:
    """Forks for each request; returns in the processes that are forked, with what was asked for."""
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([connection.fileno(), wake], [], [])
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
            _tell_ended(connection)
        if connection.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 2)
        if not data:
            os._exit(0)
        request: dict[str, object] = json.loads(data)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor, given in zip((1, 2), descriptors, strict=True):
                os.dup2(given, descriptor)
            for descriptor in (wake, waker, *descriptors):
                os.close(descriptor)
            connection.close()
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps({"begun": pid}).encode())


def _tell_ended(connection: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            message = {"ended": pid, "code": os.waitstatus_to_exitcode(status)}
            connection.send(json.dumps(message).encode())


def _become(request: dict[str, object]) -> None:
    """Has this process be as one that was started with a command line and an environment."""
    command, environment = request["command"], request["environment"]
    assert isinstance(command, list)
    assert isinstance(environment, dict)
    added = [each for each in environment.get("PYTHONPATH", "").split(":") if each]
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [each for each in added if each not in sys.path]
    importlib.invalidate_caches()
    sys.orig_argv = [str(each) for each in command]
    sys.argv = [str(each) for each in command[2:]]


def _main() -> None:
    packages = [importlib.import_module(each) for each in _PACKAGES]
    names = [
        each.name
        for package in packages
        for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    for module in (*_MODULES, *names):
        importlib.import_module(module)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.set_inheritable(False)
        request = _serve(connection)
    _become(request)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
