"""The command line in this process, and a daemon's API that answers as the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2_grpc
from runtimeproxy.cli import main


class Done(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command without a terminal."""
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", "")

    def run_command(*words: str) -> Done:
        code = main(words)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run_command


class ScriptedApi(api_pb2_grpc.RuntimeProxyServicer, api_pb2_grpc.AdminServicer):
    """Answers each call with what is in `answers` under its name: a message, several, or an error.

    `requests` are those of all calls.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[Any] = []

    def _answer(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        answer = self.answers.get(name, (grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, tuple):
            context.abort(*answer)
        return answer

    # The methods have their names in the service.
    def GetStatus(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("GetStatus", request, context)

    def Explain(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("Explain", request, context)

    def WatchPods(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        yield from self._answer("WatchPods", request, context)

    def WatchAudit(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        yield from self._answer("WatchAudit", request, context)

    def GetNode(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("GetNode", request, context)

    def GetResctrl(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("GetResctrl", request, context)

    def GetCustomNodeResource(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("GetCustomNodeResource", request, context)

    def Simulate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("Simulate", request, context)

    def SetPolicyMode(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("SetPolicyMode", request, context)

    def SetBypass(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("SetBypass", request, context)

    def Record(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        yield from self._answer("Record", request, context)

    def SetClaims(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("SetClaims", request, context)

    def ReleaseClaims(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("ReleaseClaims", request, context)

    def GetClaims(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("GetClaims", request, context)

    def Evict(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("Evict", request, context)

    def ReportQosManager(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return self._answer("ReportQosManager", request, context)


class Served(NamedTuple):
    """A scripted API, and the flags that lead to it."""

    api: ScriptedApi
    path: Path

    @property
    def flags(self) -> Sequence[str]:
        """For commands that read."""
        return ("--endpoint", str(self.path))

    @property
    def admin_flags(self) -> Sequence[str]:
        """For commands that write."""
        return ("--admin-socket", str(self.path))


@pytest.fixture
def served(socket_folder: Path) -> Iterator[Served]:
    """An API that knows no call until the test says what it answers."""
    api, path = ScriptedApi(), socket_folder / "api.sock"
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        api_pb2_grpc.add_RuntimeProxyServicer_to_server(api, server)
        api_pb2_grpc.add_AdminServicer_to_server(api, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        yield Served(api, path)
        server.stop(None).wait()
