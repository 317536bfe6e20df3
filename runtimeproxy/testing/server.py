"""The fake runtime: a real gRPC server on a real Unix socket, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Self, Unpack

import grpc

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import EVERY_METHOD, Behaviour, BehaviourFields, checked_name
from runtimeproxy.testing.dispatch import METHOD_NAMES, CallDispatch, RecordedCalls
from runtimeproxy.testing.events import EventBroadcast
from runtimeproxy.testing.services import FakeImageService, FakeRuntimeService
from runtimeproxy.testing.state import RuntimeState

SOCKET_MODE: Final = 0o660
"""Mode of the socket. Source: containerd, sys.GetLocalListener."""

MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: Linux, ``sun_path`` of 108 bytes with its end mark."""

MAX_WORKERS: Final = 1024
"""Calls at one time; threads are only made when they are needed."""

_END_TIMEOUT_S: Final = 10.0

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # grpc-go, which real runtimes use, allows 16 MiB of headers.
    ("grpc.max_metadata_size", 16 * 1024 * 1024),
    ("grpc.absolute_max_metadata_size", 16 * 1024 * 1024),
)


class FakeRuntime:
    """A container runtime that runs nothing, for tests; serves while the ``with`` block runs.

    It serves from threads of its own, so a test may use any kind of client, on any loop. The state
    outlives ``stop``, ``kill`` and ``restart``, as containers outlive their runtime.

    Attributes:
        socket_path: Absolute path of the socket.
        state: Sandboxes, containers and images; tests may look and change.
        recorded: Calls that arrived (empty with ``record=False``).
        events: Subscribers of ``GetContainerEvents``.
    """

    def __init__(
        self,
        socket_path: Path | str,
        *,
        state: RuntimeState | None = None,
        record: bool = True,
        handlers: Sequence[grpc.GenericRpcHandler] = (),
        v1alpha2: bool = True,
    ) -> None:
        """Prepares a runtime; nothing happens before ``start``.

        Args:
            socket_path: Where to serve; an existing file is replaced.
            state: The initial state; ``None`` for an empty one.
            record: Whether calls are recorded.
            handlers: More services on the same socket, such as health or reflection.
            v1alpha2: Whether ``runtime.v1alpha2`` is answered, as by containerd 1.6, or is an unknown
                service, as to containerd 2.
        """
        self.socket_path = Path(socket_path).absolute()
        self.state = state or RuntimeState()
        self.events = EventBroadcast(self.state)
        self.recorded = RecordedCalls()
        self._dispatch = CallDispatch(
            FakeRuntimeService(self.state, self.events),
            FakeImageService(self.state),
            self.recorded if record else None,
            v1alpha2=v1alpha2,
        )
        self._handlers = [self._dispatch, *handlers]
        self._starts = itertools.count(1)
        self._running: _Running | None = None

    @property
    def endpoint(self) -> str:
        """The socket as a gRPC target."""
        return f"unix://{self.socket_path}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serves; the socket appears under its name once it accepts.

        Raises:
            ValueError: The path is too long for a socket.
            RuntimeError: It serves already, or the socket cannot be bound.
        """
        if self._running is not None:
            raise RuntimeError(f"{self.socket_path} is already served")
        # gRPC removes the path that it bound when it stops, so the name is never the bound one.
        bound = f"{self.socket_path}~{next(self._starts)}"
        if len(os.fsencode(bound)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"{bound} is longer than {MAX_SOCKET_PATH_BYTES} bytes")
        pool = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="fake-runtime")
        server = grpc.server(pool, handlers=self._handlers, options=_OPTIONS)
        server.add_insecure_port(f"unix:{bound}")
        server.start()
        Path(bound).chmod(SOCKET_MODE)
        Path(bound).rename(self.socket_path)
        self._running = _Running(server, pool, bound, self.socket_path.stat().st_ino)
        self.state.open()

    def stop(self, grace_s: float | None = None) -> None:
        """Stops and removes the socket; calls that run have ``grace_s`` seconds, or are cancelled."""
        running, self._running = self._running, None
        if running is not None:
            self.state.close()
            if self.socket_path.exists() and self.socket_path.stat().st_ino == running.inode:
                self.socket_path.unlink()
            running.stop(grace_s)

    def kill(self) -> None:
        """Cuts all connections without a GOAWAY and leaves the socket file, as SIGKILL does."""
        running, self._running = self._running, None
        if running is not None:
            self.state.close()
            cut_connections(running.bound_path)
            running.stop(None)

    def restart(self, grace_s: float | None = None) -> None:
        """Stops and serves again on the same path, with the same state."""
        self.stop(grace_s)
        self.start()

    def on(self, method: str, **behaviour: Unpack[BehaviourFields]) -> None:
        """Sets how the next calls of a method (``*``: of each without its own) behave.

        Example: ``runtime.on("CreateContainer", error=CallError("UNAVAILABLE"), times=1)``.

        Raises:
            ValueError: The CRI has no such method.
        """
        checked_name(method, (*METHOD_NAMES, EVERY_METHOD), "method")
        self._dispatch.behaviours.set(method, Behaviour(**behaviour))

    def clear(self, method: str | None = None) -> None:
        """Removes the behaviours of a method, or all with ``None``; running calls keep theirs."""
        checked_name(method or EVERY_METHOD, (*METHOD_NAMES, EVERY_METHOD), "method")
        self._dispatch.behaviours.clear(method)

    def release(self, method: str | None = None) -> None:
        """Lets calls that hang or wait go on: those of a method, or all with ``None``."""
        checked_name(method or EVERY_METHOD, (*METHOD_NAMES, EVERY_METHOD), "method")
        self._dispatch.release(method)

    def emit_event(self, event: api_pb2.ContainerEventResponse) -> None:
        """Hands an event to all subscribers of ``GetContainerEvents``."""
        self.events.publish(event)


class FakeRuntimeProcess:
    """Runs ``python -m runtimeproxy.testing``; serves while the ``with`` block runs.

    Attributes:
        socket_path: Absolute path of the socket.
    """

    def __init__(self, socket_path: Path | str, arguments: Sequence[str] = ()) -> None:
        """Prepares a process; nothing happens before ``start``.

        Args:
            socket_path: Where to serve.
            arguments: More arguments of the command, such as ``["--containers", "1000"]``.
        """
        self.socket_path = Path(socket_path).absolute()
        self._command = [
            *(sys.executable, "-m", "runtimeproxy.testing", "--socket", str(self.socket_path)),
            *arguments,
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id.

        Raises:
            RuntimeError: It does not run.
        """
        if self._process is None:
            raise RuntimeError("the fake runtime does not run")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and returns once it serves.

        Raises:
            RuntimeError: It ended before it served; its reason is on the standard error.
        """
        # S603: the command is this interpreter with arguments of the test, and no shell.
        self._process = subprocess.Popen(  # noqa: S603
            self._command, stdout=subprocess.PIPE, text=True
        )
        if self._process.stdout is None or not self._process.stdout.readline():
            self.stop()
            raise RuntimeError(f"the fake runtime did not start on {self.socket_path}")

    def stop(self) -> None:
        """Ends the process as a service manager does; nothing happens if it does not run."""
        if self._process is not None:
            self._process.terminate()
            self._reap(self._process)

    def kill(self) -> None:
        """Ends the process with SIGKILL; the socket file stays, the state is lost."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def _reap(self, process: subprocess.Popen[str]) -> None:
        self._process = None
        with process:
            process.wait(_END_TIMEOUT_S)


class _Running(NamedTuple):
    """A server that runs, the path that it bound, and the inode of its socket."""

    server: grpc.Server
    pool: ThreadPoolExecutor
    bound_path: str
    inode: int

    def stop(self, grace_s: float | None) -> None:
        self.server.stop(grace_s).wait()
        self.pool.shutdown(wait=True)


def cut_connections(bound_path: str) -> None:
    """Shuts down all accepted connections of a Unix socket of this process, as its sudden death would.

    Args:
        bound_path: Path to which the listening socket was bound, whatever the file's name is now.
    """
    for entry in Path("/proc/self/fd").iterdir():
        descriptor = int(entry.name)
        # OSError: another thread closed the descriptor, or its peer was faster.
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                is_listener = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if connection.getsockname() == bound_path and not is_listener:
                    connection.shutdown(socket.SHUT_RDWR)
