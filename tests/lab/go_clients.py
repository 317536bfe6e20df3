"""Clients built from Go modules: the kubelet's own, and grpcurl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from google.protobuf import json_format
from google.protobuf.message import Message

from cri_api.runtime.v1 import api_pb2
from tests.lab.pods import PodSpec, container_config, sandbox_config
from tests.lab.programs import KubeletClientVersion, go_tool, run


class KubeletClientError(Exception):
    """A call failed. `code` is the name of the gRPC code as Go spells it, as in `NotFound`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class KubeletClient:
    """Calls through k8s.io/cri-client; each call is a process with connections of its own."""

    socket: Path
    version: KubeletClientVersion = "1.34"

    def call(self, *words: str, stdin: str | None = None) -> Any:
        """Runs one command of `kubelet-client` and returns its answer.

        Raises:
            KubeletClientError: the runtime answered with an error.
        """
        ended = run(self._command(*words), stdin=stdin, timeout_s=50.0)
        if ended.returncode not in {0, 1} or not ended.stdout:
            raise RuntimeError(f"kubelet-client {words}: {ended.stderr}")
        answer = json.loads(ended.stdout.splitlines()[-1])
        if ended.returncode == 1:
            raise KubeletClientError(answer["error"]["code"], answer["error"]["message"])
        return answer

    def run_pod(self, pod: PodSpec, log_directory: Path) -> Any:
        """Runs a pod and returns its ids. The pod's cgroup must be there."""
        config = sandbox_config(pod, str(log_directory))
        containers = [container_config(pod, container) for container in pod.containers]
        request = {
            "sandbox": _as_json(config),
            "containers": [_as_json(container) for container in containers],
        }
        return self.call("run-pod", stdin=json.dumps(request))

    def update(self, container_id: str, resources: api_pb2.LinuxContainerResources) -> None:
        """Changes the resources of a container."""
        self.call("update", container_id, stdin=json_format.MessageToJson(resources))

    @contextmanager
    def watching(self) -> Iterator[Outcomes]:
        """A connection that stays open and makes a call every 50 ms until the block ends."""
        with self._stream("watch") as outcomes:
            yield outcomes

    @contextmanager
    def events(self) -> Iterator[Outcomes]:
        """Container events as they come; the first line says that the stream is open."""
        with self._stream("events") as outcomes:
            yield outcomes

    @contextmanager
    def _stream(self, *words: str) -> Iterator[Outcomes]:
        process = subprocess.Popen(
            self._command(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with process:
            try:
                if process.stdin is None or process.stdout is None:
                    raise RuntimeError("no pipes")
                yield Outcomes(process.stdout)
            finally:
                process.kill()

    def _command(self, *words: str) -> list[str]:
        program = str(
            go_tool("kubelet-client" if self.version == "1.34" else f"kubelet-client-{self.version}")
        )
        return [program, "-endpoint", f"unix://{self.socket}", *words]


def _as_json(message: Message) -> Any:
    # Enums as numbers: the Go program's decoder knows the names of no enum.
    return json_format.MessageToDict(message, use_integers_for_enums=True)


@dataclass(frozen=True)
class Outcomes:
    """Lines of JSON as a running client prints them."""

    lines: IO[str]

    def next(self) -> Any:
        """Waits for the next line. Raises EOFError at the end of the output."""
        line = self.lines.readline()
        if not line:
            raise EOFError("the client has ended")
        return json.loads(line)

    def until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Reads on until a line is the wanted one, and returns those before it."""
        before: list[Any] = []
        while not wanted(line := self.next()):
            before.append(line)
        return before

    def until_code(self, code: str) -> set[str]:
        """Reads on until a call ends with this code, and returns the other codes before it."""
        return {line["code"] for line in self.until(lambda line: line["code"] == code)}


@dataclass(frozen=True)
class Grpcurl:
    """Runs grpcurl without a .proto file: it asks the server for reflection first."""

    socket: Path

    def names(self, *service: str) -> list[str]:
        """The services of the server, or the methods of one service."""
        return self._run([self._target, "list", *service]).stdout.split()

    def describe(self, symbol: str) -> str:
        """A symbol in the language of .proto files."""
        return self._run([self._target, "describe", symbol]).stdout

    def call(self, method: str, request: str = "{}") -> Any:
        """Calls a method with JSON and returns the JSON answer."""
        return json.loads(self._run(["-d", request, self._target, method]).stdout)

    def failing_call(self, method: str, request: str = "{}") -> str:
        """Calls a method that must fail and returns what grpcurl printed."""
        ended = run([go_tool("grpcurl"), "-plaintext", "-d", request, self._target, method])
        if ended.returncode == 0:
            raise RuntimeError(f"{method} succeeded: {ended.stdout}")
        return ended.stderr

    @property
    def _target(self) -> str:
        return f"unix://{self.socket}"

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        ended = run([go_tool("grpcurl"), "-plaintext", *words])
        if ended.returncode != 0:
            raise RuntimeError(f"grpcurl {words}: {ended.stderr}")
        return ended
