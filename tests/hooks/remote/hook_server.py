"""A hook server as a process of its own, that behaves as koordlet does or in ways that no server should.

    python -m tests.hooks.remote.hook_server --socket S [--behaviour JSON] [--record FILE]

Besides the hook service it serves `test.HookServerControl`: `Behave` takes another behaviour as JSON, `Asked`
returns what it was asked so far, one JSON object a line.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from cri_api.koordinator.v1alpha1 import HOOK_SERVICE, api_pb2
from tests.hooks.remote.behaviours import (
    NONSENSE,
    UNDECODABLE,
    Behaviour,
    Request,
    echo,
    lay_over,
    nothing,
    overlay_of,
)

CONTROL_SERVICE = "test.HookServerControl"
POD_HOOKS = ("PreRunPodSandboxHook", "PostStopPodSandboxHook")
CONTAINER_HOOKS = (
    "PreCreateContainerHook",
    "PreStartContainerHook",
    "PostStartContainerHook",
    "PreUpdateContainerResourcesHook",
    "PostStopContainerHook",
)
_THREADS = 32
_GRACE_S = 0.2


class HookServing:
    """Answers hooks as its behaviour says, and remembers what it was asked."""

    def __init__(self, behaviour: Behaviour, record: Path | None = None) -> None:
        self._behaviour = behaviour
        self._record = record
        self._lock = threading.Lock()
        self._asked: list[str] = []
        self._hanging: set[threading.Event] = set()

    def behave(self, behaviour: Behaviour) -> None:
        """Behaves so from now on; hooks that hang come back."""
        self._behaviour = behaviour
        with self._lock:
            for released in self._hanging:
                released.set()

    @property
    def asked(self) -> bytes:
        """What it was asked, as JSON lines."""
        with self._lock:
            return "\n".join(self._asked).encode()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The hook service and the control service."""
        hooks = {
            **{name: self._hook(name, api_pb2.PodSandboxHookRequest.FromString) for name in POD_HOOKS},
            **{
                name: self._hook(name, api_pb2.ContainerResourceHookRequest.FromString)
                for name in CONTAINER_HOOKS
            },
        }
        control: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Behave": grpc.unary_unary_rpc_method_handler(self._on_behave),
            "Asked": grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.asked),
        }
        return [
            grpc.method_handlers_generic_handler(HOOK_SERVICE, hooks),
            grpc.method_handlers_generic_handler(CONTROL_SERVICE, control),
        ]

    def _hook(self, name: str, parse: Callable[[bytes], Request]) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(partial(self._on_hook, name, parse))

    def _on_behave(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        self.behave(Behaviour.from_json(request.decode()))
        return b""

    def _on_hook(
        self, name: str, parse: Callable[[bytes], Request], data: bytes, context: grpc.ServicerContext
    ) -> bytes:
        self._note(name, data)
        behaviour = self._behaviour
        request = parse(data)
        kind = behaviour.kind if not behaviour.hooks or name in behaviour.hooks else "koordlet"
        if kind == "crash":
            os._exit(3)
        if kind == "error":
            context.abort(grpc.StatusCode[behaviour.code], behaviour.text)
        if kind in ("hang", "late"):
            self._wait(context, behaviour.seconds if kind == "late" else None)
        if kind == "undecodable":
            return UNDECODABLE
        answer = nothing(request) if kind == "partial" else echo(request)
        overlay = NONSENSE if kind == "nonsense" else overlay_of(request, behaviour)
        return lay_over(answer, overlay).SerializeToString()

    def _wait(self, context: grpc.ServicerContext, seconds: float | None) -> None:
        """Waits, at most until the call is over or the behaviour changes."""
        released = threading.Event()
        with self._lock:
            self._hanging.add(released)
        if context.add_callback(released.set):
            released.wait(seconds)
        with self._lock:
            self._hanging.discard(released)

    def _note(self, name: str, data: bytes) -> None:
        line = json.dumps({"hook": name, "at": time.time(), "request": base64.b64encode(data).decode()})
        with self._lock:
            self._asked.append(line)
            if self._record is not None:
                with self._record.open("a") as file:
                    file.write(line + "\n")


def serve(socket: Path, serving: HookServing) -> grpc.Server:
    """Starts a server on a socket, whose file is replaced."""
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers(serving.handlers())
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--behaviour", type=Behaviour.from_json, default=Behaviour(), metavar="JSON")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    serving = HookServing(options.behaviour, options.record)
    server = serve(options.socket, serving)
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serving.behave(Behaviour())
    server.stop(_GRACE_S).wait()


if __name__ == "__main__":
    main()
