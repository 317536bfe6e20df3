"""Starts the tests' hook server as a process of its own, and talks to it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from cri_api.koordinator.v1alpha1 import api_pb2
from tests.hooks.remote.behaviours import Behaviour, Request
from tests.hooks.remote.hook_server import CONTROL_SERVICE, POD_HOOKS
from tests.lab.programs import REPOSITORY

_CALL_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Asked:
    """One question that the server was asked."""

    hook: str
    """The method, such as `PreCreateContainerHook`."""
    request: Request
    at: float
    """The time of day in seconds."""

    @property
    def pod(self) -> api_pb2.PodSandboxHookRequest:
        """The request of a hook of the pod."""
        assert isinstance(self.request, api_pb2.PodSandboxHookRequest)
        return self.request

    @property
    def container(self) -> api_pb2.ContainerResourceHookRequest:
        """The request of a hook of the container."""
        assert isinstance(self.request, api_pb2.ContainerResourceHookRequest)
        return self.request


class HookServerProcess:
    """A hook server that runs from `with` to the end of its block.

    Args:
        socket: the path that it serves on; short, as a socket's path has 107 bytes.
        behaviour: at each start.
    """

    def __init__(self, socket: Path, behaviour: Behaviour | None = None) -> None:
        self.socket = socket
        self._behaviour = behaviour or Behaviour()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it serves."""
        module = "tests.hooks.remote.hook_server"
        arguments = ["--socket", str(self.socket), "--behaviour", self._behaviour.to_json()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise ChildProcessError(f"the hook server ended with {self.wait()}")

    def behave(self, kind: str, **changes: Any) -> None:
        """Behaves so from now on; see `Behaviour`."""
        self._control("Behave", Behaviour(kind=kind, **changes).to_json().encode())

    def asked(self, hook: str = "") -> list[Asked]:
        """What it was asked since its start, of one hook or of all."""
        lines = [json.loads(line) for line in self._control("Asked").decode().splitlines()]
        return [_asked(line) for line in lines if not hook or line["hook"] == hook]

    def register(
        self,
        folder: Path,
        name: str,
        *hooks: str,
        failure_policy: str = "Ignore",
        timeout_s: float | None = None,
    ) -> Path:
        """Writes a registration file as koordlet does; the hooks are named as there. Returns its path."""
        path = folder / name
        values = {
            "remote-endpoint": str(self.socket),
            "failure-policy": failure_policy,
            "runtime-hooks": list(hooks),
            "timeout-seconds": timeout_s,
        }
        path.write_text(json.dumps(values))
        return path

    def kill(self) -> None:
        """Ends the server with SIGKILL."""
        self._running().kill()
        self.wait()

    def wait(self) -> int:
        """Waits until the process has ended, and returns its exit code."""
        code = self._running().wait(_END_TIMEOUT_S)
        stdout = self._running().stdout
        if stdout is not None:
            stdout.close()
        return code

    def restart(self) -> None:
        """Starts the server again, with its first behaviour."""
        self.close()
        self.start()

    def close(self) -> None:
        """Ends the server if it runs."""
        if self._process is not None:
            self._process.terminate()
            self.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _control(self, method: str, request: bytes = b"") -> bytes:
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(f"unix:{self.socket}", options=options) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{CONTROL_SERVICE}/{method}"
            )
            return call(request, timeout=_CALL_TIMEOUT_S)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the hook server was not started")
        return self._process


def _asked(line: dict[str, Any]) -> Asked:
    is_pod = line["hook"] in POD_HOOKS
    kind = api_pb2.PodSandboxHookRequest if is_pod else api_pb2.ContainerResourceHookRequest
    return Asked(line["hook"], kind.FromString(base64.b64decode(line["request"])), line["at"])
